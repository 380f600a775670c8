"""The parts that the analyses share: from the arguments to the printed answer and its files."""

import json
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command, typed_path
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, Tell
from transformer_norms.report.figures import figure_bytes, pyplot
from transformer_norms.storage.files import storage_error
from transformer_norms.text_tables import paragraph as paragraph

# Measures what was typed. Returns the text to print and what the JSON line holds.
Analysis = Callable[[Namespace, Tell], tuple[str, dict[str, Any]]]


_ENDING = """
Example:
  {prog} {example}

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage, 130 Ctrl-C.
"""

OF_SUBJECTS = """
MODEL is a run, a study of several runs, or a folder that transformers loads.
A run or a study is named by its path or by a part of its name below ./runs.
A run is measured on its own validation text, a folder of transformers on the
text in --text FILE or on the corpus of typed data keys, with the tokenizer.json
that the folder needs.
KEY=VALUE is as for train: data and data.KEY (data.val_tokens is how much is
read), trainer.device, trainer.precision, trainer.batch_size, plugins, and
model.context for shorter windows of text.
"""


def analysis_parser(
    name: str, description: str | None, out: str, example: str, epilog: str = ""
) -> Parser:
    """The parser of `transformer-norms analysis NAME`; `out` is the help of --out."""
    prog = f"{PROGRAM} analysis {name}"
    epilog += _ENDING.format(prog=prog, example=example)
    parser = Parser(prog=prog, description=description, epilog=epilog)
    parser.add_argument("--out", type=typed_path, metavar="DIR", help=out)
    return parser


def run_analysis(
    parser: Parser,
    arguments: Sequence[str] | None,
    analyse: Analysis,
    when_stopped: str = "stopped",
) -> int:
    """Reads the arguments, measures under a live line, prints the text and last the JSON line.

    Returns the exit code. A folder `--out` that cannot be written is refused before measuring.
    """

    def body() -> int:
        typed = parser.parse_intermixed_args(arguments)
        if typed.out:
            check_folder(typed.out)
        with Live() as tell:
            text, facts = analyse(typed, tell)
        print_line(f"{text}\n{json.dumps(facts)}")
        return 0

    return run_command(body, when_stopped)


def add_subjects(parser: Parser) -> None:
    """Adds the arguments that name models and their text."""
    parser.add_argument("where", nargs="+", metavar="MODEL | KEY=VALUE", help="see below")
    parser.add_argument("--text", type=typed_path, metavar="FILE", help="a text to measure on")
    parser.add_argument(
        "--baseline", action="append", metavar="KEY=VALUE",
        help="compare with that, not with the sweep's own baseline; none compares nothing; "
        "may repeat",
    )  # fmt: skip


def check_folder(folder: Path) -> None:
    """Raises ConfigError if `folder` can be no folder, StorageError if it may not be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{folder}: {nearest} is a file; name a folder")
    if not os.access(nearest, os.W_OK):
        raise storage_error(folder, f"{nearest} cannot be written to")


def saved_folder(home: Path, folder: Path, by: str) -> Path:
    """The folder in `home` for what an analysis makes of the model in `folder`."""
    return home / f"{folder.resolve().name}-{by}"


def check_saved(home: Path | None, folders: Sequence[Path], by: str) -> None:
    """Raises ConfigError if a model cannot be written into the folder that --save names."""
    if home is None:
        return
    check_folder(home)
    outs = [saved_folder(home, folder, by) for folder in folders]
    for out in outs:
        if out.exists() or outs.count(out) > 1:
            why = "is there already" if out.exists() else "would be written twice"
            raise ConfigError(f"--save {home}: {out} {why}; name another folder")


def svg_bytes(drawing: Any) -> bytes:
    """The drawing as an SVG. It is closed."""
    data = figure_bytes(drawing, "svg")
    pyplot().close(drawing)
    return data


def set_decades(axes: Any) -> None:
    """Numbers all decades, and parts of decades where the axis has few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    parts = (1,) if high / low > 1e3 else (1, 2, 5) if high / low > 10 else (1, 2, 3, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=parts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
