"""A report that is kept fresh while runs go on."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

EVERY = 10  # seconds
_READ = ("summary.json", "metrics.jsonl")


def watch(write: Callable[..., tuple[Path, Any]], folders: Sequence[Path]) -> None:
    """Writes the report, and again within EVERY seconds of a change, until every run that was
    planned has ended, or Ctrl-C. `write` takes the seconds after which a browser looks again."""
    with suppress(OSError):
        os.nice(10)  # the runs come first
    before: object = None
    with suppress(KeyboardInterrupt):
        while True:
            now = _looks(folders)
            if now != before:
                path, found = write(refresh=EVERY)
                count, before = found.study.count(), now
                ended = count["finished"] + count["diverged"]
                print(
                    f"{time.strftime('%H:%M:%S')}  {path}: {ended} of {count['runs']} runs ended",
                    file=sys.stderr,
                    flush=True,
                )
                if not found.study.unfinished:
                    return
            time.sleep(EVERY)


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
