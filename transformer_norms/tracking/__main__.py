"""The command `tracking`: run folders in Weights & Biases."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_norms.commands.terminal import PROGRAM, Parser, command
from transformer_norms.config.finding import find_study
from transformer_norms.errors import ConfigError
from transformer_norms.tracking.wishes import resolve_mode

_EPILOG = """
FOLDER is a run or a study, by its path or by a part of its name below ./runs:
  transformer-norms tracking sync main

Exit codes: 0 done, 1 something was not mirrored, 2 wrong input or a damaged run, 4 storage,
75 another process mirrors it.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} tracking", description=__doc__, epilog=_EPILOG)
    add = parser.add_argument
    add("command", choices=["sync"], metavar="COMMAND", help="sync writes folders whole")
    add("folders", nargs="+", metavar="FOLDER", help="a run or a study")
    add("--mode", choices=["auto", "online", "offline"], default="auto", help="(default: auto)")
    add("--model", action="store_true", help="keep each trained model there, too")
    return parser


def sync(named: Sequence[str | Path], mode: str, with_model: bool = False) -> int:
    """Shows each run folder, and the report of each study, whole."""
    places = map(find_study, named)
    folders = [place if place.is_dir() else place.parent for place in places]
    shown = [run for folder in folders for run in _runs_to_show(folder)]
    shown += [folder for folder in folders if (folder / "report.html").is_file()]
    if mode == "disabled":
        print("W&B is disabled (WANDB_MODE); nothing is mirrored", file=sys.stderr)
        return 0
    from transformer_norms.tracking.view import problem_of, show_folder  # imports wandb

    later = "" if mode == "online" else "; its upload waits for `sync` online"
    failed, typed = 0, {"model": "final"} if with_model else {}
    for folder in dict.fromkeys(one.resolve() for one in shown):
        code = 0
        try:
            next(show_folder(folder, mode, lambda: True, typed))  # which waits for nothing
        except StopIteration as end:
            outcome = ("mirrored" if end.value < 0 else f"mirrored up to step {end.value}") + later
        except Exception as error:  # the other folders go on
            outcome, code = problem_of(error, folder)
        failed = max(failed, code)
        print(f"{folder.name}: {outcome}", file=sys.stderr)
    return failed


def _runs_to_show(folder: Path) -> list[Path]:
    """Returns the folder itself if it is a run's, and the run folders of a study."""
    if (folder / "metrics.jsonl").is_file():
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    if not runs:
        raise ConfigError(f"{folder}: neither a run folder nor a study with runs in it")
    return runs


main = command(
    make_parser,
    lambda typed: sync(typed.folders, resolve_mode(typed.mode, os.environ), typed.model),
)

if __name__ == "__main__":
    sys.exit(main())
