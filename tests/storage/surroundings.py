"""Makes surroundings for a command: small disks, streams that are gone, rights that are missing."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

TINY = ["model=nano", "model.width=16", "model.heads=2", "model.depth=1", "model.context=16"]
TINY += ["data=stories", "data.documents=150", "data.val_tokens=300", "tokenizer=byte"]
TINY += ["tracking=none", "trainer.steps=12", "trainer.batch_size=4", "trainer.threads=1"]
TINY += ["trainer.checkpoint_every=5", "trainer.log_every=1", "schedule.warmup=3"]
TINY += ["trainer.device=cpu"]


def exit_code(work, *given):
    """The exit code of a process that is forked for this work."""
    child = multiprocessing.get_context("fork").Process(target=work, args=given)
    child.start()
    child.join()
    return child.exitcode


def tiny(*more):
    """A short run; what is given here replaces what TINY says of the same key."""
    return [f"{k}={v}" for k, v in dict(text.split("=", 1) for text in [*TINY, *more]).items()]


def the_line(err):
    """The last line on stderr, which is the only one that is not about work that goes on."""
    lines = [line for line in err.splitlines() if not line.startswith(("data: ", "warning: "))]
    assert "Traceback" not in err
    return lines[-1]


@contextmanager
def small_disk(folder: Path, size: int, **options):
    """A disk of `size` bytes at `folder`; `nr_inodes=5` limits its files. Skips without root."""
    folder.mkdir(exist_ok=True)
    named = ",".join(f"{key}={value}" for key, value in {"size": size, **options}.items())
    command = ["mount", "-t", "tmpfs", "-o", named, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def free(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def fill(folder: Path, leave: int = 0) -> Path:
    """Writes a file that leaves so many bytes of the disk, and returns it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while (left := free(folder) - leave) > 0 and file.write(bytes(min(left, 1 << 20))):
            pass
    return ballast


def drop_rights():
    """Takes from root the right to read and write whatever its mode says."""
    library = ctypes.CDLL(None, use_errno=True)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and library.capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def _replace(number, target):
    (sys.stdout, sys.stderr)[number - 1].flush()
    os.dup2(target, number)
    os.close(target)


def spoil_streams(how, *numbers):
    """Closes streams, as Python finds them, fills them, or leaves them without a reader, as
    `| head -0` does."""
    for number in numbers:
        if how == "close":
            os.close(number)
            for name in (("stdout", "__stdout__"), ("stderr", "__stderr__"))[number - 1]:
                setattr(sys, name, None)
        elif how == "fill":
            _replace(number, os.open("/dev/full", os.O_WRONLY))
        else:
            reader, writer = os.pipe()
            os.close(reader)
            _replace(number, writer)


STATES = {"leave_both": partial(spoil_streams, "leave", 1, 2)}
STATES |= {"close_both": partial(spoil_streams, "close", 1, 2)}
STATES |= {
    f"{how}_{name}": partial(spoil_streams, how, number)
    for how in ("fill", "close", "leave")
    for number, name in ((1, "stdout"), (2, "stderr"))
}
