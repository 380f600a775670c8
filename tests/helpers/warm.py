"""A command in a process that is forked from one which has imported torch and the package, as that
takes longer than a small run. Signals, exit codes and output are those of any process."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401

import transformer_norms.report.writing  # noqa: F401
import transformer_norms.sweep.drive  # noqa: F401
from transformer_norms import cli
from transformer_norms.run import run  # noqa: F401

ROOT = Path(__file__).parents[2]
CEILING = 600  # seconds, for a machine that is busy with other things
TEXT = "".join(f"{i} owls read {i * i % 97} books on {i % 7} trees.\n" for i in range(900))


def forking():
    """Returns what starts processes by a fork of one server, which this process shares."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank_workers", __name__])
    with pytest.MonkeyPatch.context() as patch:  # Python 3.11 tells the server no other path
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context


class Command:
    """train.py, or `program`, with the methods of subprocess.Popen that tests use. It has a process
    group of its own, as a terminal would have it. `prepare` is called in that process before."""

    def __init__(self, arguments, environment=(), program="train.py", prepare=None):
        self._folder = tempfile.TemporaryDirectory()
        given = (arguments, os.getcwd(), {**os.environ, **dict(environment)}, self._folder.name)
        self._process = forking().Process(target=_run, args=(*given, program, prepare))
        self._process.start()
        self.pid = self._process.pid

    returncode = property(lambda self: self._process.exitcode)

    def poll(self):
        return self.returncode

    def communicate(self, timeout=None):
        """Returns what the command printed, once it has ended."""
        self._process.join(timeout)
        assert self.returncode is not None, "the command has not ended"
        return [self.printed(name) for name in ("out", "err")]

    def end(self):
        """Returns the exit code, the JSON line and what a person reads, once the command has
        ended."""
        out, err = self.communicate(timeout=CEILING)
        return self.returncode, json.loads(out.splitlines()[-1]) if out else None, err

    def wait_for(self, condition):
        """Returns what the condition returns once that is true, while the command goes on."""
        end = time.monotonic() + CEILING
        while not (found := condition()):
            assert self.poll() is None, self.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.01)
        return found

    def printed(self, stream="err"):
        """Returns what the command has printed so far."""
        file = Path(self._folder.name, stream)
        return file.read_text() if file.exists() else ""  # it may have been killed at birth

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def run_in_this_process(arguments, capsys, monkeypatch):
    """Returns the exit code, the JSON line and what a person reads."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    try:
        code = cli.main(arguments)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if out else None, err


def result(folder):
    """Returns the newest checkpoint of a run, its weights and its optimizer's state, and the rows
    without times."""
    newest = max(Path(folder, "checkpoints").glob("step-*"))
    tensors = [(newest / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")]
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return newest.name, tensors, [{k: v for k, v in r.items() if k != "seconds"} for r in rows]


@contextmanager
def starting():
    """Gives what starts a Command, and kills those that a failing test leaves behind."""
    started = []

    def start(*given, **named):
        started.append(Command(*given, **named))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _run(arguments, here, environment, folder, program, prepare):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(here)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [str(ROOT / program), *arguments]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if prepare:
        prepare()
    runpy.run_path(sys.argv[0], run_name="__main__")
