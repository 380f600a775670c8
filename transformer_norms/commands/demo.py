"""make demo: trains the default model on little stories for about three minutes, and shows what
it writes."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from transformer_norms.cli import main
from transformer_norms.progress import say
from transformer_norms.run.metrics import read_metrics
from transformer_norms.run.summary import read_summary
from transformer_norms.text_tables import wrap_text

# A story's words recur, so a small vocabulary of whole words lets a short run reach coherence.
RECIPE = (
    "study=demo data=stories data.documents=6000 data.val_tokens=32768 tokenizer=bpe "
    "tokenizer.vocab_size=512 trainer.steps=600"
).split()
OPENINGS = ("Emma was a brave girl from", "Tom was a shy boy from")
TEMPERATURE = 0.9
BAR = "  | "  # before each line of a sample
REFERENCES = {
    "uniform": "every token equally likely",
    "unigram": "the tokens' frequencies alone",
    "bigram": "counts of pairs of tokens",
    **{f"{order}-gram": f"counts of {order} tokens in a row" for order in (3, 4, 5)},
    "entropy floor": "the stories' own entropy",
}


def demo(overrides: Sequence[str] = ()) -> int:
    """Trains by the usual command, then prints losses to compare, samples and the JSON line."""
    say("training the default model on little stories; about three minutes on two cores")
    typed = {text.partition("=")[0] for text in overrides}
    recipe = [text for text in RECIPE if text.partition("=")[0] not in typed]
    output = StringIO()
    with redirect_stdout(output):  # the JSON line comes last
        code = main([*recipe, *overrides])
    if not (lines := output.getvalue().splitlines()):
        return code
    answer = json.loads(lines[-1])
    if answer["status"] == "finished":
        _explain(Path(answer["run"]))
    print(lines[-1], flush=True)
    return code


def _explain(folder: Path) -> None:
    from transformer_norms.commands.sampling import sample  # imports torch

    summary = read_summary(folder)
    assert summary is not None
    last = read_metrics(folder / "metrics.jsonl")[-1]
    say("")
    say(f"{'validation loss, nats per token':<34}{last['val/loss']:.3f}")
    for name, loss in summary.data.reference_lines().items():
        say(f"  {REFERENCES[name]:<32}{loss:.3f}  ({name})")
    for seed, opening in enumerate(OPENINGS):
        say("")
        story = sample(folder, opening, 300, temperature=TEMPERATURE, seed=seed)
        for line in wrap_text(story, BAR):
            say(line)
    say("")
    say(f"the run     {folder}")
    say(f"its curve   {folder / 'curve.svg'}")
    say("next        python train.py norm=layernorm placement=post        (in .venv/bin)")


if __name__ == "__main__":
    sys.exit(demo(sys.argv[1:]))
