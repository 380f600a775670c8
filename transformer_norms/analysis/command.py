"""How an analysis is run: from its arguments to the printed outcome and its files."""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence

from transformer_norms.analysis.outcome import Analysis, Outcome
from transformer_norms.analysis.rendering import check_folder, facts, files, terminal
from transformer_norms.analysis.trained.measuring import Measure, measure_models, read_subjects
from transformer_norms.analysis.trained.subjects import load_measured
from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command, typed_path
from transformer_norms.progress import Live, Tell
from transformer_norms.report.writing import write_files

_ENDING = """
Example:
  %(prog)s {example}

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage, 130 Ctrl-C.
"""
_OF_SUBJECTS = """
MODEL is a run, a study of several runs, or a folder that transformers loads.
A run or a study is named by its path or by a part of its name below ./runs.
A run is measured on its own validation text, a folder of transformers on the
text in --text FILE or on the corpus of typed data keys, with the tokenizer.json
that the folder needs.
KEY=VALUE is as for train: data and data.KEY (data.val_tokens is how much is
read), trainer.device, trainer.precision, trainer.batch_size, plugins, and
model.context for shorter windows of text.
"""


def analysis_parser(about: str | None, example: str, epilog: str = "", name: str = "") -> Parser:
    """The parser of an analysis. `name` is that of a command of the package."""
    prog = {"prog": f"{PROGRAM} analysis {name}"} if name else {}
    parser = Parser(description=about, epilog=epilog + _ENDING.format(example=example), **prog)
    parser.add_argument("--out", type=typed_path, metavar="DIR", help="also write .csv, .md, .svg")
    return parser


def models_parser(
    about: str | None,
    example: str = "runs/main --out DIR",
    epilog: str = _OF_SUBJECTS,
    name: str = "",
) -> Parser:
    """The parser of an analysis of trained models, which are typed with their text."""
    parser = analysis_parser(about, example, epilog, name)
    parser.add_argument("where", nargs="+", metavar="MODEL | KEY=VALUE", help="see below")
    parser.add_argument("--text", type=typed_path, metavar="FILE", help="a text to measure on")
    parser.add_argument(
        "--baseline", action="append", metavar="KEY=VALUE",
        help="compare with that, not with the sweep's own baseline; none compares nothing; "
        "may repeat",
    )  # fmt: skip
    return parser


def tuned_parser(about: str | None, example: str, epilog: str, name: str) -> Parser:
    """The parser of an analysis of trained models that are changed and tuned on."""
    parser = models_parser(about, example, epilog, name)
    parser.add_argument("--save", type=typed_path, metavar="DIR", help="where changed models go")
    return parser


def run_analysis(
    parser: Parser,
    arguments: Sequence[str] | None,
    analyse: Callable[[Namespace, Tell], Outcome],
    when_stopped: str = "stopped",
) -> int:
    """Reads the arguments, measures under a live line, writes the files, prints the outcome and
    last the JSON line.

    Returns the exit code. A folder `--out` that cannot be written is refused before measuring.
    """

    def body() -> int:
        typed = parser.parse_intermixed_args(arguments)
        if typed.out:
            check_folder(typed.out)
        with Live() as tell:
            outcome = analyse(typed, tell)
            written = write_files(typed.out, files(outcome)) if typed.out else []
        answer = {**facts(outcome), "files": [*written, *outcome.saved]}
        print_line(f"{terminal(outcome)}\n{json.dumps(answer)}")
        return 0

    return run_command(body, when_stopped)


def run_on_models(
    analysis: Analysis, measure: Measure, parser: Parser, arguments: Sequence[str] | None = None
) -> int:
    """Runs an analysis that measures one trained model after the other. Returns the exit code."""

    def analyse(typed: Namespace, tell: Tell) -> Outcome:
        subjects = read_subjects(typed, tell)
        return measure_models(analysis, measure, typed, tell, subjects, load_measured)

    return run_analysis(parser, arguments, analyse)
