"""From a trained model to one without norms: what each stage costs, beside an equal control."""

import json
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformer_norms.analysis.norm_removal.cost import Cost, as_csv
from transformer_norms.analysis.norm_removal.folding import save
from transformer_norms.analysis.norm_removal.removal import RATE, USUAL, Subject
from transformer_norms.analysis.norm_removal.showing import LEGEND, figure, folding, gaps, rows
from transformer_norms.analysis.norm_removal.tuning import ORDER
from transformer_norms.analysis.writing import check_folder, grid, markdown_grid, written
from transformer_norms.cli import Parser, print_line, run_command
from transformer_norms.errors import ConfigError
from transformer_norms.explain.text import wrapped
from transformer_norms.progress import Live
from transformer_norms.report.escape import markdown
from transformer_norms.report.grouping import variants_of
from transformer_norms.report.reading import Run
from transformer_norms.run.loading import tokenizer
from transformer_norms.run.sweep_record import label

_EPILOG = f"""
RUN is the folder of a finished run whose norms are LayerNorms or RMSNorms that
stand before sub-layers and before the head (placement=pre, parallel, lns, ...).
KEY=VALUE changes how it is tuned on, as for train.py; where nothing is typed,
  {" ".join(USUAL)}
and {RATE:.2g} of the run's own peak rate, its optimizer afresh. From step --start
on, every --gap steps, one norm after the other divides by its average length
instead of each token's own: those before the mlps, then those before attention,
then the one before the head; the sequence's first token last. The control is
the same model, tuned on the same batches with its norms. Losses are validation
losses in nats per token. Files are written after each run.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m transformer_norms.analysis.norm_removal",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN | KEY=VALUE", help="see below")
    parser.add_argument(
        "--start", type=int, default=20, metavar="STEP", help="of the first norm (%(default)s)"
    )
    parser.add_argument(
        "--gap", type=int, default=5, metavar="STEPS", help="between two norms (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where table and figure go, in the place of others"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help="where the folded models go")
    return run_command(partial(_answer, parser, arguments), "stopped; finished runs are written")


def _answer(parser: Parser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_intermixed_args(arguments)
    keys = [text for text in typed.runs if "=" in text and not Path(text).exists()]
    folders = [Path(text) for text in typed.runs if text not in keys]
    _check(typed, folders)
    subjects = [Subject(folder, keys, typed.start, typed.gap) for folder in folders]
    costs: list[Cost] = []
    files: list[str] = []
    with Live() as live:
        for subject, name in zip(subjects, _names(folders), strict=True):
            cost, model = subject.remove(name, live)
            costs.append(cost)
            if typed.save and model is not None:
                step = subject.summary["step"] + subject.config.trainer.steps
                out = _saved(typed.save, subject.folder)
                run = subject.folder
                save(model, subject.normless, tokenizer(run), step, run.resolve().name, out)
                files.append(str(out))
            shown = []
            if typed.out:
                shown = written(typed.out, _files(costs, subjects, typed, keys))
    said = [line for text in (LEGEND, *gaps(costs), *folding(costs)) for line in wrapped(text, "")]
    answer = json.dumps({"files": [*shown, *files]})
    print_line("\n".join([grid(rows(costs)), "", *said, answer]))
    return 0


def _check(typed: Namespace, folders: Sequence[Path]) -> None:
    for name in ("start", "gap"):
        if getattr(typed, name) < 1:
            raise ConfigError(f"--{name} {getattr(typed, name)}: at least 1 is wanted")
    if not folders:
        raise ConfigError("name at least one RUN, such as runs/main/FOLDER")
    for folder in (typed.out, typed.save):
        if folder:
            check_folder(folder)
    saved = [_saved(typed.save, folder) for folder in folders] if typed.save else []
    for out in saved:
        if out.exists() or saved.count(out) > 1:
            twice = "is there already" if out.exists() else "would be written twice"
            raise ConfigError(f"--save {typed.save}: {out} {twice}; name another folder")


def _saved(folder: Path, run: Path) -> Path:
    return folder / f"{run.resolve().name}-folded"


def _names(folders: Sequence[Path]) -> list[str]:
    """Norm, placement, and whatever else differs besides the seed; ConfigError where two runs are
    one variant with one seed: they are no repetition of each other."""
    variants = variants_of([Run(folder) for folder in folders], ["norm", "placement"])
    names = {run.folder: label(values) for values, members in variants for run in members}
    for _, members in variants:
        seeds = [run.config["seed"] for run in members]
        for run in members:
            if seeds.count(run.config["seed"]) > 1:
                raise ConfigError(f"{run.folder}: another RUN differs from it in nothing")
    return [names[folder] for folder in folders]


def _files(
    costs: Sequence[Cost], subjects: Sequence[Subject], typed: Namespace, keys: Sequence[str]
) -> dict[str, bytes]:
    setting = (
        f"Tuned on for {len(costs[0].control_training)} steps, a norm frozen every {typed.gap} "
        f"from step {typed.start} on{', ' * bool(keys)}{' '.join(keys)}. {LEGEND}"
    )
    said = "\n".join(f"- {line}" for line in (*gaps(costs), *folding(costs)))
    runs = "\n".join(
        f"- {markdown(one.folder.name)}: identity {one.summary['identity']}, commit "
        f"{one.summary['commit']}, torch {one.summary['versions']['torch']}"
        for one in subjects[: len(costs)]
    )
    table = markdown_grid(rows(costs, ORDER))
    text = "\n\n".join(["# Norms removed", said, table, setting, "## Runs", runs])
    return {
        **as_csv(costs),
        "norm_removal.md": (text + "\n").encode(),
        "norm_removal.svg": figure(costs),
    }


if __name__ == "__main__":
    sys.exit(main())
