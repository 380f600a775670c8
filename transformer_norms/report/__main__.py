"""Reports runs as a page, tables and figures: which variant is better, and how sure that is."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_norms.commands.terminal import PROGRAM, Parser, run_command, typed_path
from transformer_norms.config.finding import find_study
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live
from transformer_norms.report.paper.figure_sheet import add_flags, typed_sheet

if TYPE_CHECKING:
    from transformer_norms.report.findings import Findings

EVERY = 10  # seconds
_WATCHED = ("summary.json", "metrics.jsonl")
_EPILOG = """
FOLDER is a run, a folder of runs (runs/STUDY) or a sweep-NAME.json, named by its path or by a part
of its name below ./runs:
  transformer-norms report quick --baseline placement=pre

If a sweep's record
lies beside its runs, it says what was planned, and a run that is not there is counted as missing;
else runs that differ only in their seed are one variant. Runs that differ in data, split,
tokenizer, evaluation, precision or horizon are not compared, but refused. The last line on stdout
is JSON. Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage.
"""
Write = Callable[..., tuple[Path, "Findings"]]


def main(arguments: Sequence[str] | None = None) -> int:
    when_stopped = "stopped; nothing was written since the last report"
    return run_command(partial(_report, arguments), when_stopped)


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
        "--effect", type=float, metavar="NATS",
        help="smallest difference worth naming (default: the sweep's, else 0.005)",
    )  # fmt: skip
    parser.add_argument(
        "--contrast", action="append", default=[], metavar="TEXT",
        help='one more comparison, such as "post - sandwich" or "(post - pre) under gpt2 - '
        '(post - pre) under xavier" or "post - pre over model.depth"; may repeat',
    )  # fmt: skip
    parser.add_argument(
        "--watch", action="store_true",
        help=f"write it anew every {EVERY} seconds as runs go on, until none does or Ctrl-C",
    )  # fmt: skip
    add_flags(parser)
    return parser


def _report(arguments: Sequence[str] | None) -> int:
    typed = make_parser().parse_args(arguments)
    if typed.effect is not None and not (isfinite(typed.effect) and typed.effect >= 0):
        raise ConfigError(f"--effect {typed.effect}: a number of nats, 0 or more, is wanted")
    sheet = typed_sheet(typed)
    baseline = typed.baseline
    if baseline is not None:
        from transformer_norms.config.overrides import parse

        pairs = [] if baseline == ["none"] else parse(baseline)
        baseline = {pair.key: pair.value for pair in pairs}
    from transformer_norms.comparison.sentences import plural
    from transformer_norms.report.table import summary_lines
    from transformer_norms.report.writing import write_figures, write_report

    folders = [_find_place(text, typed.watch) for text in typed.folders]
    write = partial(write_report, folders, typed.out, baseline, typed.effect, typed.contrast)
    path, findings = watch(write, folders) if typed.watch else write()
    print("\n".join(summary_lines(findings)), file=sys.stderr)
    if sheet is not None:
        with Live() as live:
            files = write_figures(findings, typed.figures, sheet, live)
        print(f"{plural(len(files), 'figure')} in {typed.figures}", file=sys.stderr)
    print(json.dumps({"report": str(path), **findings.study.count()}), flush=True)
    return 0


def _find_place(text: str, awaited: bool) -> Path:
    """Returns what `text` names. The path of a study that is `awaited` need not be there yet."""
    try:
        return find_study(text)
    except ConfigError:
        if awaited and os.sep in text and not os.path.exists(text):
            return typed_path(text)
        raise


def watch(write: Write, folders: Sequence[Path]) -> tuple[Path, "Findings"]:
    """Writes the report, and again within EVERY seconds of a change, until every planned run has
    ended or failed, or Ctrl-C. Returns what `write` returned last. `write` takes the seconds after
    which a browser loads the page again."""
    with suppress(OSError):
        os.nice(10)  # the runs come first
    if not _file_states(folders):  # a sweep that has just begun checks its jobs first
        print(f"waiting for {folders[0]}", file=sys.stderr, flush=True)
    while not (before := _file_states(folders)):
        time.sleep(EVERY)
    # Ctrl-C in the first report ends the command: its imports may be half done.
    path, findings = _write_once(write)
    with suppress(KeyboardInterrupt):
        while findings.study.goes_on:
            time.sleep(EVERY)
            if (now := _file_states(folders)) != before:
                before = now
                path, findings = _write_once(write)
    return write() if findings.study.unfinished else (path, findings)


def _write_once(write: Write) -> tuple[Path, "Findings"]:
    path, findings = write(refresh=EVERY)
    count = findings.study.count()
    ended = count["finished"] + count["diverged"]
    clock = time.strftime("%H:%M:%S")
    print(f"{clock}  {path}: {ended} of {count['runs']} runs ended", file=sys.stderr, flush=True)
    return path, findings


def _file_states(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """The files that a report reads, each with its time of writing and its size."""
    files = []
    for folder in folders:
        study = folder if folder.is_dir() else folder.parent
        files += [*study.glob("sweep-*.json")]
        files += [file for name in _WATCHED for at in ("", "*/") for file in study.glob(at + name)]
    states = []
    for file in sorted(files):
        with suppress(OSError):  # being replaced, or gone
            status = file.stat()
            states.append((str(file), status.st_mtime_ns, status.st_size))
    return states


if __name__ == "__main__":
    sys.exit(main())
