"""What each norm, as built here, is invariant to: measured, not quoted."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformer_norms.analysis.invariances.measuring import measured
from transformer_norms.analysis.invariances.page import files
from transformer_norms.analysis.invariances.tables import terminal
from transformer_norms.analysis.writing import check_folder, written
from transformer_norms.cli import Parser, print_line, run_command
from transformer_norms.progress import Live


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m transformer_norms.analysis.invariances", description=__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE",
        help="norm=A,B, norm.KEY=VALUE and plugins=DIR, as train.py takes them (default: all norms"
        " but those that differ from another in eps alone)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="a page, a figure and tables, written there"
    )
    return run_command(partial(_answer, parser, arguments))


def _answer(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_intermixed_args(arguments)
    if typed.out:
        check_folder(typed.out)
    with Live() as tell:
        rows = measured(typed.overrides, tell)
    made = [] if typed.out is None else written(typed.out, files(rows))
    answer = json.dumps({"norms": len(rows), "files": made})
    print_line("\n".join([terminal(rows), answer]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
