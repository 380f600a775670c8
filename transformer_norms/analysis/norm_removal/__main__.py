"""From a trained model to one without norms: what each stage costs, beside an equal control."""

import json
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformer_norms.analysis.norm_removal.cost import Cost, as_csv
from transformer_norms.analysis.norm_removal.folding import save
from transformer_norms.analysis.norm_removal.removal import RATE, USUAL, Removal, Subject
from transformer_norms.analysis.norm_removal.showing import figure, rows, sentences
from transformer_norms.analysis.writing import check_folder, grid, markdown_grid, written
from transformer_norms.command import Parser, answered, printed
from transformer_norms.errors import ConfigError
from transformer_norms.loading import tokenizer
from transformer_norms.progress import Live

_EPILOG = f"""
RUN is the folder of a finished run whose norms are LayerNorms or RMSNorms that stand before
sub-layers and before the head (placement=pre, parallel, lns, ...). KEY=VALUE changes how it is
tuned on, as for train.py; where nothing is typed that is
  {" ".join(USUAL)}
and {RATE:.2g} of the run's own peak rate. From step --start on, every --gap steps, one norm after
the other divides by its average length instead of each token's own: those before the mlps, then
those before attention, then the one before the head; the sequence's first token last. The control
is the same model, tuned on the same batches with its norms. Losses are validation losses in nats
per token.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m transformer_norms.analysis.norm_removal",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN | KEY=VALUE", help="see below")
    parser.add_argument("--start", type=int, default=20, metavar="STEP", help="of the first norm")
    parser.add_argument("--gap", type=int, default=5, metavar="STEPS", help="between two norms")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where table and figure go")
    parser.add_argument("--save", type=Path, metavar="DIR", help="where the folded models go")
    return answered(partial(_answer, parser, arguments))


def _answer(parser: Parser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_intermixed_args(arguments)
    for name in ("start", "gap"):
        if getattr(typed, name) < 1:
            raise ConfigError(f"--{name} {getattr(typed, name)}: at least 1 is wanted")
    keys = [text for text in typed.runs if "=" in text and not Path(text).exists()]
    folders = [Path(text) for text in typed.runs if text not in keys]
    if not folders:
        raise ConfigError("name at least one RUN, such as runs/main/FOLDER")
    for folder in (typed.out, typed.save):
        if folder:
            check_folder(folder)
    subjects = [Subject(folder, keys, typed.start, typed.gap) for folder in folders]
    with Live() as live:
        removals = [subject.remove(live) for subject in subjects]
    costs = [removal.cost for removal in removals]
    files = written(typed.out, _files(costs, typed, keys)) if typed.out else []
    if typed.save:
        for subject, removal in zip(subjects, removals, strict=True):
            files += _saved(subject, removal, typed.save)
    answer = json.dumps({"files": files})
    printed("\n".join([grid(rows(costs)), "", *sentences(costs), answer]))
    return 0


def _files(costs: Sequence[Cost], typed: Namespace, keys: Sequence[str]) -> dict[str, bytes]:
    setting = (
        f"Tuned on for {len(costs[0].control_training)} steps, a norm frozen every {typed.gap} "
        f"from step {typed.start} on{', ' * bool(keys)}{' '.join(keys)}. Validation losses in nats "
        "per token; gap: above the control, which was tuned alike with its norms."
    )
    said = "\n".join(f"- {line}" for line in sentences(costs))
    text = "\n\n".join(["# Norms removed", said, markdown_grid(rows(costs)), setting])
    return {
        **as_csv(costs),
        "norm_removal.md": (text + "\n").encode(),
        "norm_removal.svg": figure(costs),
    }


def _saved(subject: Subject, removal: Removal, folder: Path) -> list[str]:
    if removal.folded is None:
        return []
    out = folder / f"{subject.folder.name}-folded"
    step = subject.summary["step"] + subject.config.trainer.steps
    save(removal.folded, subject.normless, tokenizer(subject.folder), step, out)
    return [str(out)]


if __name__ == "__main__":
    sys.exit(main())
