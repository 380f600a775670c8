"""Gradients and streams by block before training, and how the last gradient changes with depth."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformer_norms.analysis.init_gradients.asking import USUAL, setting
from transformer_norms.analysis.writing import check_folder
from transformer_norms.cli import Parser, print_line, run_command
from transformer_norms.progress import Live

_EPILOG = f"""
Typed as for train.py -m: model.depth is the axis of depth, seed the seeds, every other list an axis
of variants. Where they are not typed: {" ".join(f"{key}={value}" for key, value in USUAL.items())},
and one head with --xiong. Of placements with two streams x and r, x is measured. The last line on
stdout is JSON.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m transformer_norms.analysis.init_gradients",
        description=__doc__,
        epilog=_EPILOG,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=A,B", help="as train.py -m takes them")
    parser.add_argument(
        "--xiong", action="store_true",
        help="with the suppositions of Xiong et al. 2020: uniform attention, relu, square matrices",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write .csv, .md and .svg")
    return run_command(partial(_answer, parser, arguments))


def _answer(parser: Parser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_intermixed_args(arguments)
    from transformer_norms.analysis.init_gradients.law import variants
    from transformer_norms.analysis.init_gradients.measuring import measured
    from transformer_norms.analysis.init_gradients.writing import text, write

    if typed.out:
        check_folder(typed.out)
    with Live() as live:
        asked = setting(typed.overrides, typed.xiong, live)
        found = variants(asked, measured(asked.variants, live))
    paths = write(asked, found, typed.out) if typed.out else []
    print_line("\n".join([text(asked, found), json.dumps({"files": paths})]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
