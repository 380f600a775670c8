"""make demo: trains the default model on the built-in corpus for about three minutes, and shows
what came of it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_norms.cli import main
from transformer_norms.files import read_metrics
from transformer_norms.progress import say
from transformer_norms.run.summary import read_summary

PROMPT = "def "


def demo(overrides: Sequence[str] = ()) -> int:
    """A run as by the command, then its loss beside what no model would score, and a sample."""
    say("training the default model on text that every Python carries; about three minutes")
    answer, code = _captured(["study=demo", *overrides])
    if answer is None:
        return code
    if answer["status"] == "finished":
        _explain(Path(answer["run"]))
    print(json.dumps(answer), flush=True)
    return code


def _captured(arguments: list[str]) -> tuple[Any, int]:
    """The command's JSON line, held back so that it is the last thing printed, and its code."""
    from contextlib import redirect_stdout
    from io import StringIO

    out = StringIO()
    with redirect_stdout(out):
        code = main(arguments)
    lines = out.getvalue().splitlines()
    return (json.loads(lines[-1]) if lines else None), code


def _explain(folder: Path) -> None:
    from transformer_norms.sample import sample

    summary = read_summary(folder)
    assert summary is not None
    last = read_metrics(folder / "metrics.jsonl")[-1]
    say("")
    say(
        f"validation loss      {last['val/loss']:.3f} nats per token, "
        f"{last['val/bpb']:.2f} bits per byte"
    )
    names = {
        "uniform": "every token alike",
        "unigram": "tokens by frequency",
        "entropy floor": "the text's own entropy",
    }
    for name, value in summary.data.reference_lines().items():
        say(f"  {names[name]:<22}{value:.3f}  ({name})")
    say("")
    say(f"what it writes after {PROMPT!r}:")
    for line in sample(folder, PROMPT, 300).splitlines():
        say(f"  | {line}")
    say("")
    say(f"the run     {folder}")
    say(f"its curve   {folder / 'curve.svg'}")
    say("next        python train.py norm=layernorm placement=post        (in .venv/bin)")


if __name__ == "__main__":
    sys.exit(demo(sys.argv[1:]))
