"""The command `runs`: lists the runs of a folder."""

from collections.abc import Sequence
from functools import partial

from transformer_norms.cli import PROGRAM, Parser, print_line, run_command
from transformer_norms.config.finding import find_study, is_run, runs_below, runs_in


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} runs", description="Lists the runs of a folder.")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a study (default: ./runs)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(partial(_print, arguments))


def _print(arguments: Sequence[str] | None) -> int:
    typed = make_parser().parse_args(arguments)
    study = find_study(typed.folder) if typed.folder else None
    runs = [study] if study and is_run(study) else runs_in(study) if study else runs_below()
    for run in runs:
        print_line(str(run))
    return 0
