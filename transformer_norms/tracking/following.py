"""The background process: it follows what is named on stdin until its parent is gone."""

import json
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 0.5
_ORPHAN_SECONDS = 60


def follow(mode: str) -> int:
    with suppress(OSError):
        os.nice(10)
    named: queue.Queue[str] = queue.Queue()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=_listen, args=(named, ended), daemon=True).start()
    from transformer_norms.tracking.syncing import AnyMirror, mirror_of

    mirrors: dict[str, AnyMirror] = {}
    parent = os.getppid()
    last_look = False
    while not last_look:
        ended.wait(_POLL_SECONDS)
        # A forked sibling may hold the pipe open after the parent died.
        last_look = ended.is_set() or os.getppid() != parent
        while not named.empty():
            folder = named.get()
            mirrors.setdefault(folder, mirror_of(Path(folder), mode))
        if last_look:
            _end_anyhow()
        for folder, one in list(mirrors.items()):
            if one.poll(last_look):
                one.close()
                del mirrors[folder]
    for one in mirrors.values():
        one.close()
    return 0


def _listen(named: "queue.Queue[str]", ended: threading.Event) -> None:
    for line in sys.stdin:
        with suppress(ValueError):
            named.put(json.loads(line))
    ended.set()


def _end_anyhow() -> None:
    timer = threading.Timer(_ORPHAN_SECONDS, lambda: os._exit(1))
    timer.daemon = True
    timer.start()
