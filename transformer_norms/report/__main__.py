"""Reports runs as a page, tables and figures: which variant is better, and how sure that is."""

import json
import sys
from argparse import Namespace

from transformer_norms.commands.terminal import PROGRAM, Parser, command, typed_path
from transformer_norms.config.finding import find_study
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live
from transformer_norms.report.horizons import BUDGETS
from transformer_norms.report.paper.figure_sheet import add_flags, typed_sheet

_EPILOG = """
FOLDER is a run, a folder of runs (runs/STUDY) or a sweep-NAME.json, named by its path or by a part
of its name below ./runs:
  transformer-norms report quick --baseline placement=pre

If a sweep's record
lies next to its runs, it says what was planned, and a run that is not there is counted as missing;
else runs that differ only in their seed are one variant. Runs that differ in data, split,
tokenizer, evaluation, precision or horizon are not compared, but refused. The last line on stdout
is JSON. Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} report", description=__doc__, epilog=_EPILOG)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what to read")
    parser.add_argument(
        "--baseline", nargs="+", metavar="KEY=VALUE",
        help="compare with that, not with the sweep's own baseline; none compares nothing",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=typed_path, metavar="DIR", help="where to (default: first FOLDER)"
    )
    parser.add_argument(
        "--margin", type=float, metavar="NATS",
        help="bound of a negligible difference (default: the sweep's, else 0.02)",
    )  # fmt: skip
    parser.add_argument(
        "--contrast", action="append", default=[], metavar="TEXT",
        help='one more comparison, such as "post - sandwich" or "(post - pre) under gpt2 - '
        '(post - pre) under xavier" or "post - pre over model.depth"; may repeat',
    )  # fmt: skip
    parser.add_argument(
        "--names", nargs="+", default=[], metavar="WORD=NAME",
        help="what figures and tables show for words of labels, such as pre=Pre-LN",
    )  # fmt: skip
    parser.add_argument(
        "--at", choices=[*BUDGETS], default="",
        help="compare at an equal budget (default: at equal steps)",
    )  # fmt: skip
    parser.add_argument(
        "--appendix", action="store_true",
        help="write an appendix for a paper as well: appendix.md and appendix.tex",
    )  # fmt: skip
    parser.add_argument(
        "--join", action="store_true",
        help="one estimate over studies: each FOLDER is one, and all have the same contrast",
    )  # fmt: skip
    add_flags(parser)
    return parser


def _report(typed: Namespace) -> int:
    sheet, names = typed_sheet(typed), dict(map(_read_name, typed.names))
    baseline = typed.baseline
    if baseline is not None:
        from transformer_norms.config.overrides import parse

        pairs = [] if baseline == ["none"] else parse(baseline)
        baseline = {pair.key: pair.value for pair in pairs}
    from transformer_norms.comparison.sentences import plural
    from transformer_norms.report.table import summary_lines
    from transformer_norms.report.writing import write_figures, write_report

    folders = [find_study(text) for text in typed.folders]
    if typed.join:
        for flag, given, why in (
            ("figures", sheet, ", which writes joined.svg"),
            ("at", typed.at, ", which joins comparisons at equal steps"), ("names", names, ""),
            ("appendix", typed.appendix, ""),
        ):  # fmt: skip
            if given:
                raise ConfigError(f"--{flag}: is not for --join{why}")
        from transformer_norms.report.joined_report import write_joined
        from transformer_norms.text_tables import wrap_text

        path, sentences = write_joined(folders, typed.out, baseline, typed.margin, typed.contrast)
        print("\n".join(line for one in sentences for line in wrap_text(one)), file=sys.stderr)
        print(json.dumps({"report": str(path), "joined": len(sentences)}), flush=True)
        return 0
    wanted = sheet.panels if sheet is not None and typed.panels else ()
    path, findings = write_report(
        folders, typed.out, baseline, typed.margin, typed.contrast, typed.at, names, wanted,
        typed.appendix,
    )  # fmt: skip
    print("\n".join(summary_lines(findings)), file=sys.stderr)
    if sheet is not None:
        with Live() as live:
            files = write_figures(findings, typed.figures, sheet, live)
        print(f"{plural(len(files), 'figure')} in {typed.figures}", file=sys.stderr)
    print(json.dumps({"report": str(path), **findings.study.count()}), flush=True)
    return 0


def _read_name(text: str) -> tuple[str, str]:
    word, _, name = text.rpartition("=")  # a word may be `depth=8`
    if not (word and name):
        raise ConfigError(f"--names {text}: WORD=NAME is wanted, such as pre=Pre-LN")
    return word, name


main = command(make_parser, _report, "stopped; nothing was written since the last report")

if __name__ == "__main__":
    sys.exit(main())
