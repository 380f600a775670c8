"""A report that is kept fresh while runs go on."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_norms.report.findings import Findings

EVERY = 10  # seconds
_READ = ("summary.json", "metrics.jsonl")

Write = Callable[..., tuple[Path, "Findings"]]


def watch(write: Write, folders: Sequence[Path]) -> tuple[Path, "Findings"]:
    """Writes the report, and again within EVERY seconds of a change, until every run that was
    planned has ended or failed, or Ctrl-C; what was written last. `write` takes the seconds after
    which a browser looks again."""
    with suppress(OSError):
        os.nice(10)  # the runs come first
    if not _looks(folders):  # a sweep that was begun a moment ago looks at its jobs first
        print(f"waiting for {folders[0]}", file=sys.stderr, flush=True)
    while not (before := _looks(folders)):
        time.sleep(EVERY)
    # Ctrl-C in the first is no end of watching: what it imports may be half there.
    path, found = _written(write)
    with suppress(KeyboardInterrupt):
        while found.study.goes_on:
            time.sleep(EVERY)
            if (now := _looks(folders)) != before:
                before = now
                path, found = _written(write)
    return write() if found.study.unfinished else (path, found)


def _written(write: Write) -> tuple[Path, "Findings"]:
    path, found = write(refresh=EVERY)
    count = found.study.count()
    ended = count["finished"] + count["diverged"]
    clock = time.strftime("%H:%M:%S")
    print(f"{clock}  {path}: {ended} of {count['runs']} runs ended", file=sys.stderr, flush=True)
    return path, found


def _looks(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """What there is to read, and when each file was written last."""
    files = []
    for folder in folders:
        study = folder if folder.is_dir() else folder.parent
        files += [*study.glob("sweep-*.json")]
        files += [file for name in _READ for at in ("", "*/") for file in study.glob(at + name)]
    seen = []
    for file in sorted(files):
        with suppress(OSError):  # being replaced, or gone
            found = file.stat()
            seen.append((str(file), found.st_mtime_ns, found.st_size))
    return seen
