"""What runs found, as a page, tables and figures: which variant is better, and how sure that is."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path

from transformer_norms.cli import Parser, run_command
from transformer_norms.config.overrides import parse
from transformer_norms.errors import ConfigError
from transformer_norms.report import write_report
from transformer_norms.report.watching import EVERY, watch

_EPILOG = """
FOLDER is a run folder, a folder of runs (runs/STUDY), or a sweep-NAME.json. Where a sweep's record
lies beside its runs, it says what was planned, and a run that is not there is counted as missing;
else runs that differ only in their seed are one variant. Runs that differ in data, split,
tokenizer, evaluation, precision or horizon are not compared, but refused. The last line on stdout
is JSON.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m transformer_norms.report", description=__doc__, epilog=_EPILOG)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what to read")
    parser.add_argument(
        "--baseline", nargs="+", metavar="KEY=VALUE",
        help="compare with that, not with the sweep's own baseline; none compares nothing",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (default: first FOLDER)")
    parser.add_argument(
        "--effect", type=float, metavar="NATS",
        help="smallest difference worth naming (default: the sweep's, else 0.005)",
    )  # fmt: skip
    parser.add_argument(
        "--watch", action="store_true",
        help=f"write it anew every {EVERY} seconds as runs go on, until none does or Ctrl-C",
    )  # fmt: skip
    nothing = "stopped; nothing was written since the last report"
    return run_command(partial(_answer, parser, arguments), nothing)


def _answer(parser: Parser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_args(arguments)
    if typed.effect is not None and not (isfinite(typed.effect) and typed.effect >= 0):
        raise ConfigError(f"--effect {typed.effect}: a number of nats, 0 or more, is wanted")
    baseline = typed.baseline
    if baseline is not None:
        pairs = [] if baseline == ["none"] else parse(baseline)
        baseline = {pair.key: pair.value for pair in pairs}
    write = partial(write_report, typed.folders, typed.out, baseline, typed.effect)
    from transformer_norms.report.table import summary_lines

    path, found = watch(write, typed.folders) if typed.watch else write()
    print("\n".join(summary_lines(found)), file=sys.stderr)
    print(json.dumps({"report": str(path), **found.study.count()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
