"""NO_FILES lists what may stand where a file is expected. `bounded` ends a test that hangs."""

import os
import resource
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT = 1 << 20
MEMORY = 200 << 20  # bytes beyond those that the process has


@contextmanager
def ends_if_it_hangs():
    """Raises TimeoutError in what waits for a pipe, after a time that no machine needs."""

    def give_up(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def bounded(tmp_path, monkeypatch, request):
    """A read that hangs or takes all memory ends here, and fails its test."""
    monkeypatch.chdir(tmp_path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + getattr(request, "param", MEMORY), before[1]))
    with ends_if_it_hangs():
        yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def bind_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def link_out(path):
    Path("elsewhere").write_text("{}")
    path.symlink_to(Path("elsewhere").absolute())


NO_FILES = {
    "a pipe": (os.mkfifo, "is not a file, but a pipe"),
    "a socket": (bind_socket, "is not a file, but a socket"),
    "a folder": (Path.mkdir, "is not a file, but a folder"),
    "a device behind a link": (lambda path: path.symlink_to("/dev/zero"), "is a link"),
    "a link out of the folder": (link_out, "is a link"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "is a link"),
    "eight sparse gigabytes": (
        lambda path: path.touch() or os.truncate(path, 8 << 30),
        f"is longer than {LIMIT} bytes",
    ),
    "nothing": (lambda path: None, "No such file"),
}
