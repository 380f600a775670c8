"""Processes that need one cache at the same time, and processes that die while they build it."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from corpora import Listed, ready

import transformer_norms
from transformer_norms.storage.files import sha256

PACKAGE = str(Path(transformer_norms.__file__).parent)
FORK = multiprocessing.get_context("fork")
TOGETHER = 8  # processes


class Counted(Listed):
    """A corpus that writes into a file how often all processes together have read it."""

    def __init__(self, reads: Path):
        super().__init__()
        self.file = reads

    def documents(self):
        with self.file.open("ab") as file:
            file.write(b".")
        yield from self.texts


def build(cache, say=lambda line: None):
    os.environ["TRANSFORMER_NORMS_CACHE"] = str(cache)
    reads = cache.with_suffix(".reads")
    tokens = ready(Counted(reads), say=say)
    parts = [sha256(tokens.folder / f"{part}.bin") for part in ("train", "val", "test")]
    return " ".join([tokens.fingerprint, *parts])


def start(job, *arguments):
    process = FORK.Process(target=job, args=arguments)
    process.start()
    return process


def answer(cache, number, barrier):
    barrier.wait()
    cache.with_suffix(f".{number}").write_text(build(cache))


def holds_one_entry(cache):
    (entry,) = cache.glob("*/")
    return {path.name for path in cache.iterdir()} == {entry.name, f"{entry.name}.lock"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", "")  # what `build` sets is put back
    return tmp_path


@pytest.mark.goal("T1")
@pytest.mark.parametrize("repeats", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_of_eight_processes_on_an_empty_cache_one_reads_the_text_and_all_get_its_tokens(
    repeats, folder, measured
):
    expected = build(folder / "alone")
    for repeat in range(repeats):
        cache, barrier = folder / f"cache-{repeat}", FORK.Barrier(TOGETHER)
        jobs = [start(answer, cache, number, barrier) for number in range(TOGETHER)]
        for job in jobs:
            job.join()
        assert [job.exitcode for job in jobs] == [0] * TOGETHER
        answers = [cache.with_suffix(f".{number}").read_text() for number in range(TOGETHER)]
        assert answers == [expected] * TOGETHER
        assert cache.with_suffix(".reads").read_bytes() == b"."
        assert holds_one_entry(cache)
    measured(f"{repeats} of {repeats} times one tokenization for {TOGETHER} processes")


class Lines:
    """Follows a process through the lines of the package, and stops it at the `stop`-th."""

    def __init__(self, stop=0):
        self.stop, self.count, self.first = stop, 0, {}

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.count += 1
            self.first.setdefault((frame.f_code.co_filename, frame.f_lineno), self.count)
            if self.count == self.stop:
                os.kill(os.getpid(), signal.SIGSTOP)
        return self

    def follow(self, cache):
        sys.settrace(self)
        build(cache)
        sys.settrace(None)
        cache.with_suffix(".lines").write_text(" ".join(map(str, self.first.values())))


def wait_and_build(cache, pipe):
    say = lambda line: "waiting" in line and os.write(pipe, b"w")  # noqa: E731
    os.write(pipe, build(cache, say).encode())


@pytest.mark.goal("T2")
@pytest.mark.parametrize("points", [3, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_builder_that_is_killed_leaves_the_lock_to_who_waits_and_the_content_is_the_same(
    points, folder, measured
):
    """It is killed where it first comes to a line, from its first line to its last."""
    expected = build(folder / "alone")
    start(Lines().follow, folder / "followed").join()
    lines = [int(number) for number in (folder / "followed.lines").read_text().split()]
    longest, waited = 0.0, 0
    for number in range(points):
        cache = folder / f"cache-{number}"
        killed = start(Lines(lines[number * (len(lines) - 1) // (points - 1)]).follow, cache)
        assert os.WIFSTOPPED(os.waitpid(killed.pid, os.WUNTRACED)[1])
        here, there = os.pipe()
        other = start(wait_and_build, cache, there)
        os.close(there)
        said = os.read(here, 1000)  # that it waits, or that no lock was in its way
        begun = time.monotonic()
        killed.kill()
        killed.join()
        if said == b"w":
            waited, said = waited + 1, os.read(here, 1000)
            longest = max(longest, time.monotonic() - begun)
        other.join()
        os.close(here)
        assert said.decode() == expected
        assert holds_one_entry(cache)
    assert waited
    assert points == 3 or longest < 10  # a machine that is busy with `make test` proves nothing
    measured(
        f"{points} of {points} kills, each time the same content; "
        f"{waited} held the lock, the next went on within {longest:.1f} s"
    )
