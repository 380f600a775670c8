"""Signals: at any point of a command, to one rank of several, twice, from a closed terminal."""

import itertools
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from warm import CEILING, TEXT, result, run_in_this_process, starting

from transformer_norms import signals
from transformer_norms.judge import __main__ as judge
from transformer_norms.run import checkpoint
from transformer_norms.run.metrics import read_metrics
from transformer_norms.signals import Preempted, Stopping

ROOT = Path(__file__).parents[2]
TINY = "data=text data.paths=corpus.txt data.val_tokens=300 plugins=mine tracking=none model=nano"
TINY += " model.width=16 model.heads=2 model.depth=1 model.context=16 trainer.batch_size=4"
TINY += " trainer.steps=20 trainer.log_every=1 trainer.eval_every=5 trainer.checkpoint_every=5"
TINY = f"{TINY} trainer.threads=1 trainer.probe_every=0 schedule.warmup=3".split()
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


# A plugin that sends a signal to its own process at a point of a run.
# $AT is `POINT CALL NUMBER`: this signal comes when POINT is called for the CALL-th time. Where
# $TWICE is set, the process then waits. Where $AGAIN is set, it comes twice in a moment.
POINTS = """
import os, time
from importlib import import_module
from transformer_norms.sweep import ending
from transformer_norms.run import beginning, run
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Summary
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.trainer import Trainer

prepare = import_module("transformer_norms.data.prepare")  # a function has the same name
PLACES = {
    "read": (prepare, "read_corpus"),
    "tokenize": (prepare, "encode_work"),
    "count": (Plan, "data"),
    "build": (beginning, "build_model"),
    "start": (beginning, "measure_start"),
    "step": (ModelLoss, "backward"),
    "evaluate": (ModelLoss, "sum"),
    "save": (Trainer, "tensors"),
    "row": (MetricsFile, "append"),
    "write": (os, "fsync"),
    "replace": (os, "replace"),
    "end": (Summary, "write"),
    "draw": (run, "draw_curve"),
    "report": (ending, "write_report"),
}

def plant(place, name, count, number):
    original, calls = getattr(place, name), iter(range(1, 1 << 30))

    def send_signal(*arguments, **keys):
        if next(calls) == count:
            with open("sent", "w") as file:
                file.write(str(time.monotonic()))
            os.kill(os.getpid(), number)
            if "AGAIN" in os.environ:
                os.kill(os.getpid(), number)
            while "TWICE" in os.environ:
                time.sleep(0.01)
        return original(*arguments, **keys)

    setattr(place, name, send_signal)

if "AT" in os.environ:
    point, count, number = os.environ["AT"].split()
    plant(*PLACES[point], int(count), int(number))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    Path("corpus.txt").write_text(TEXT)
    Path("mine").mkdir()
    Path("mine/points.py").write_text(POINTS)


def words(typed):
    """The arguments of a command: what is typed takes the place of its key in TINY."""
    keys = {text.partition("=")[0] for text in typed}
    return [text for text in TINY if text.partition("=")[0] not in keys] + list(typed)


@pytest.fixture
def start():
    with starting() as start_one:

        def start_command(*arguments, prepare=None, **environment):
            return start_one(words(arguments), environment, prepare=prepare)

        yield start_command


@pytest.fixture
def run_here(capsys, monkeypatch):
    return lambda *typed: run_in_this_process(words(typed), capsys, monkeypatch)[:2]


def leftovers(folder="."):
    return list(Path(folder).rglob(".tmp-*"))


def check_saved(study):
    """The newest checkpoint is of the last step: of the last row, or of the one whose evaluation
    was cut short."""
    for folder in Path("runs", study).glob("*/"):
        if saved := checkpoint.newest(folder / "checkpoints", None, print):
            rows = (folder / "metrics.jsonl").read_text().splitlines()
            assert saved.step - json.loads(rows[-1])["step"] in (0, 1)


QUICK = [("tokenize", 1, "SIGHUP"), ("step", 7, "SIGUSR1"), ("write", 9, "SIGTERM")]
# How often a run calls each of these; only a sweep writes a report.
OFTEN = {"read": 1, "tokenize": 1, "count": 1, "build": 1, "start": 1, "step": 20, "evaluate": 31}
OFTEN |= {"save": 8, "write": 55, "end": 6, "draw": 1, "report": 1, "import": 1, "compile": 2}


def points(count):
    """So many points: each kind in turn, a call of it and a signal that are drawn."""
    if count == len(QUICK):
        return QUICK
    draw, kinds = random.Random(0), [*OFTEN, "step", "evaluate", "save", "write", "import"]
    kinds = [kinds[i % len(kinds)] for i in range(count)]
    return [(kind, draw.randint(1, OFTEN[kind]), draw.choice(SIGNALS).name) for kind in kinds]


def wait_until_caught(process, number, ceiling=CEILING):
    """Waits for the first moment in which this process can catch a signal."""
    end = time.monotonic() + ceiling
    while True:
        assert process.poll() is None, "the process has ended"
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            return
        assert time.monotonic() < end
        time.sleep(0.001)


def stop(start, kind, call, name, typed):
    """Starts a command, to which this signal comes at this point. Returns its exit code, what it
    said and the seconds that it took to end."""
    number = signal.Signals[name]
    if kind != "import":
        at = "step" if kind == "compile" else kind
        process = start(*typed, AT=f"{at} {call} {number:d}")
        err = process.communicate(timeout=CEILING)[1]
        return process.returncode, err, time.monotonic() - float(Path("sent").read_text())
    # In a process that is not forked from one that has imported everything.
    command, pipe = [sys.executable, ROOT / "train.py", *words(typed)], subprocess.PIPE
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=pipe, text=True)
    wait_until_caught(process, number)
    time.sleep(random.Random(str(typed)).random())
    sent = time.monotonic()
    process.send_signal(number)
    err = process.communicate(timeout=CEILING)[1]
    return process.returncode, err, time.monotonic() - sent


@pytest.mark.goal("P1")
@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_signal_at_any_point_ends_a_command_with_75_and_the_next_one_goes_on_bitwise(
    count, start, run_here, monkeypatch, measured
):
    def run_there(*typed):  # shapes are checked in this process, which no compiler understands
        return start(*typed).end()[:2]

    longest, calm = 0.0, {}
    for i, (kind, call, name) in enumerate(points(count)):
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(Path(f"cache-{i}").absolute()))
        more = ["-m", "seed=0,1", "trainer.steps=5"] if kind == "report" else []
        more += ["trainer.compile=block"] * (kind == "compile")
        code, err, seconds = stop(start, kind, call, name, [f"study=at-{i}", *more])
        where = f"{name} at call {call} of {kind}: {err}"
        assert (code, f"{name}: " in err) == (75, True), where
        assert not re.search("Traceback|Exception ignored", err), where
        check_saved(f"at-{i}")
        longest = max(longest, seconds)
        finish = run_there if kind == "compile" else run_here
        code, answer = finish(f"study=at-{i}", *more)
        assert code == 0, where
        if kind == "report":
            assert (answer["finished"], Path(answer["report"]).is_file()) == (2, True)
            continue
        if kind not in calm:
            same = "compile" if kind == "compile" else "others"
            calm[kind] = calm[same] = calm.get(same) or finish(f"study={same}", *more)[1]["run"]
        assert result(answer["run"]) == result(calm[kind]), where
        assert not leftovers(), where
    if count > len(QUICK):
        assert longest < 10
    measured(f"{count} of {count} points; the slowest process ended after {longest:.1f} s")


KILLED = OFTEN | {"row": 24, "replace": 20, "report": 0, "import": 0, "compile": 0}


@pytest.mark.goal("R1")
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "often", "least"), [([], KILLED, 90), (["-m", "seed=0"], {"report": 1}, 10)]
)
def test_a_run_that_is_killed_anywhere_ends_as_one_that_nobody_disturbed(
    words, often, least, start, monkeypatch, measured
):
    calm = start("study=calm", *words).end()
    kills, lost, draw = Counter(), [0], random.Random(least)
    for study in map("rough{}".format, itertools.count()):
        if kills.total() >= least:
            break
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(Path(f"cache-{study}").absolute()))
        while True:
            kind = draw.choice([kind for kind, calls in often.items() if calls])
            call = draw.randint(1, often[kind]) if kills.total() < least else 0
            at = f"{kind} {call} {signal.SIGKILL:d}"
            code, _, err = start(f"study={study}", *words, AT=at).end()
            if code != -signal.SIGKILL:
                break
            kills[kind] += 1
            lost += unsaved_steps(study)
        assert code == 0, err
        assert [contents(study)] == [contents("calm")], (study, calm)
        assert not leftovers("runs")
    assert max(lost) <= 5  # of checkpoint_every
    where = ", ".join(f"{count} in {kind}" for kind, count in sorted(kills.items()))
    measured(f"{kills.total()} kills ({where}), bitwise, {max(lost)} steps repeated at most")


def unsaved_steps(study):
    for file in Path("runs", study).glob("*/metrics.jsonl"):
        steps = [row["step"] for row in read_metrics(file)]
        saved = checkpoint.newest(file.parent / "checkpoints", None, print)
        yield max([*steps, 0]) - (saved.step if saved else 0)


def contents(study):
    (folder,) = Path("runs", study).glob("*/")
    files = [*folder.rglob("*.safetensors"), folder / "curve.svg"]
    bits = {file.relative_to(folder): file.read_bytes() for file in files}
    rows = [row | {"seconds": 0} for row in read_metrics(folder / "metrics.jsonl")]
    summary = json.loads((folder / "summary.json").read_text())
    kept = "status step val_loss best_val_loss test_loss batch_chain spikes initial_loss tokens"
    return bits, rows, [summary[key] for key in kept.split()]


@pytest.mark.goal("P3")
@pytest.mark.parametrize(
    ("kind", "call", "left"),
    [pytest.param("step", 8, 5, marks=pytest.mark.nightly), ("write", 46, 15)],
)
def test_a_second_signal_ends_the_process_at_once_and_the_last_checkpoint_verifies(
    start, run_here, measured, kind, call, left
):
    """Also in the middle of a save, whose draft the next command removes."""
    process = start("study=twice", AT=f"{kind} {call} {signal.SIGTERM:d}", TWICE="1")
    process.wait_for(lambda: "once more ends it at once" in process.printed())
    end = time.monotonic() + 60
    while process.poll() is None:  # two within a moment are one wish
        assert time.monotonic() < end
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    code, _, err = process.end()
    assert code == 75
    assert "stopped at once; the same command goes on from the last checkpoint" in err
    folder = next(Path("runs/twice").iterdir())
    assert checkpoint.newest(folder / "checkpoints", None, print).step == left
    code, answer = run_here("study=twice")
    assert (code, leftovers()) == (0, [])
    assert result(answer["run"]) == result(run_here("study=calm")[1]["run"])
    measured(f"in a {kind}")


@pytest.mark.goal("P1")
def test_a_step_that_does_not_end_is_left_where_nothing_has_been_computed_before(start):
    """As where the compiler works, or another rank does not come."""
    code, _, err = start("study=stuck", AT=f"step 1 {signal.SIGUSR1:d}", TWICE="1").end()
    assert code == 75
    assert "SIGUSR1: this run stops" in err
    assert err.endswith("stopped; the same command goes on\n")


def test_one_wish_that_comes_twice_in_a_moment_is_one(start):
    """`timeout` sends its signal to the command and then to the command's group."""
    code, _, _ = start("study=once", AT=f"step 4 {signal.SIGTERM:d}", AGAIN="1").end()
    assert code == 75
    assert list(Path("runs/once").glob("*/checkpoints/step-00000004"))


def take_terminal(name):
    """Makes the terminal that of this session, which leads no other, and prints there."""
    os.dup2(os.open(name, os.O_RDWR), 2)


@pytest.mark.goal("P1")
@pytest.mark.parametrize(
    "closed", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["ctrl-c", "hang-up"]
)
def test_ctrl_c_and_a_terminal_that_is_closed_save_a_checkpoint(start, run_here, closed):
    terminal, theirs = os.openpty()
    prepare, printed = partial(take_terminal, os.ttyname(theirs)), b""
    process = start("study=typed", f"trainer.steps={10**6}", prepare=prepare)
    os.close(theirs)
    while not list(Path("runs/typed").glob("*/checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        drain(terminal)
    if closed:
        os.close(terminal)
    else:
        os.write(terminal, b"\x03")
    while process.poll() is None:
        printed += b"" if closed else drain(terminal)
    assert process.returncode == 75
    assert closed or b"SIGINT: this run stops with a checkpoint" in printed + drain(terminal)
    assert b"Traceback" not in printed
    check_saved("typed")
    _, answer, _ = process.end()
    assert (answer["status"], answer["steps"] > 0) == ("preempted", True)


def drain(terminal):
    with suppress(OSError):  # the command has ended
        if select.select([terminal], [], [], 0.02)[0]:
            return os.read(terminal, 65536)
    return b""


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(number, start):
    """SIGHUP under nohup, and SIGINT in the background of a script."""
    prepare = partial(signal.signal, number, signal.SIG_IGN)
    code, answer, err = start("study=on", AT=f"step 4 {number:d}", prepare=prepare).end()
    assert (code, answer["status"]) == (0, "finished"), err
    assert "SIG" not in err


def test_signals_are_answered_before_anything_is_imported_that_takes_long():
    """In each way to start a command."""
    lines = """
import os, runpy, sys
before = set(sys.modules)
from transformer_norms import signals
signals.watch_command = lambda: (print(*set(sys.modules) - before, flush=True), os._exit(0))
"""
    ways = [
        "sys.argv[1:] = ['train', '-h']; from transformer_norms.__main__ import main; main()",
        "sys.argv[1:] = ['train', '-h']; runpy.run_module('transformer_norms', None, '__main__')",
        f"sys.argv[1:] = ['-h']; exec(open({str(ROOT / 'train.py')!r}).read())",
    ]
    for way in ways:
        command, own = [sys.executable, "-c", lines + way], {**os.environ, "PYTHONPATH": str(ROOT)}
        loaded = set(subprocess.check_output(command, env=own, text=True).split())
        assert "transformer_norms.signals" in loaded
        slow = {"typing", "threading", "argparse", "subprocess", "pathlib", "hydra", "torch"}
        assert slow & loaded == set()


@pytest.mark.parametrize("command", ["explain", "runs"])
def test_other_commands_end_by_a_signal_as_programs_do(command):
    script = (
        "import signal, sys; from transformer_norms.commands import dispatch; "
        "from transformer_norms import __main__ as m; "
        "dispatch.run = lambda words: signal.raise_signal(signal.SIGTERM); "
        f"sys.argv[1:] = [{command!r}]; m.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_training_raises_and_one_in_training_asks(number):
    stopping = Stopping(print)
    with pytest.raises(Preempted), stopping:
        signal.raise_signal(number)
    with Stopping(print) as stopping:
        stopping.deferring = True
        signal.raise_signal(number)
        assert stopping.stop_requested


def test_the_line_of_a_signal_is_of_the_state_in_which_it_came(monkeypatch):
    said, later = [], []
    with Stopping(said.append) as stopping:
        late = lambda do, given: later.append((do, given))  # noqa: E731
        with monkeypatch.context() as patch:
            patch.setattr(signals._thread, "start_new_thread", late)
            stopping.deferring = True
            signal.raise_signal(signal.SIGTERM)
            while not later:
                time.sleep(0.01)
        stopping.deferring = False
        ((do, given),) = later
        do(*given)
    assert said == ["SIGTERM: this run stops with a checkpoint; once more ends it at once"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_judge_that_is_stopped_ends_with_75(number, monkeypatch):
    monkeypatch.setattr(judge, "_judge", lambda typed: signal.raise_signal(number))
    assert judge.main(["pre", "post"]) == 75


def test_a_signal_in_an_import_or_a_destructor_is_heard_and_breaks_neither(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    raised = "import signal\nsignal.raise_signal(signal.SIGTERM)\nwhole = True\n"
    (tmp_path / "struck_by_a_signal.py").write_text(raised)

    class Freed:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    for occasion in lambda: import_module("struck_by_a_signal").whole, lambda: Freed() and True:
        with Stopping(print) as stopping:
            assert occasion()
            assert stopping.stop_requested


def test_a_signal_that_came_between_two_runs_of_a_sweep_stops_the_second_one():
    with Stopping(print) as sweep:
        sweep.deferring = True
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Preempted), Stopping(print):
            raise AssertionError("it begins")


def test_a_forked_process_has_its_signals_for_itself(capfd):
    with Stopping(print) as stopping:
        stopping.deferring = True
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        assert not stopping.stop_requested
    assert "SIGTERM" not in capfd.readouterr().out


@pytest.mark.goal("P3")
def test_processes_are_born_deaf_to_signals_which_they_let_through_once_they_can_answer():
    with signals.withhold_signals():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    status = Path(f"/proc/{child.pid}/status").read_text()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    child.kill()
    child.wait()
    assert all(blocked >> (number - 1) & 1 for number in SIGNALS)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
