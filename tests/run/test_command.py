"""The command line: what it prints, its exit codes, signals, kill -9, two processes on one run."""

import json
import signal
from pathlib import Path

import pytest
from pausing import PAUSE
from run_folders import skip_pictures
from short_runs import here  # noqa: F401
from warm import result, run_in_this_process, starting

from transformer_norms import compose, runs
from transformer_norms.kinds import plain
from transformer_norms.run.folder import hold_run

SHORT = ["model=nano", "data=text", "data.paths=corpus.txt", "data.val_tokens=300"]
SHORT += ["tracking=none", "trainer.threads=1", "trainer.checkpoint_every=5", "schedule.warmup=3"]
SHORT += ["model.depth=1", "trainer.batch_size=4"]


@pytest.fixture
def start():
    with starting() as start_one:
        yield lambda *arguments, **environment: start_one([*SHORT, *arguments], environment)


@pytest.fixture
def run_here(capsys, monkeypatch):
    skip_pictures(monkeypatch)
    return lambda first, *more: run_in_this_process([first, *SHORT, *more], capsys, monkeypatch)


def wait_for_step(step, process):

    def find_folder():
        for file in Path("runs").glob("*/*/metrics.jsonl"):
            lines = file.read_text().splitlines(keepends=True)
            if lines and lines[-1].endswith("}\n") and json.loads(lines[-1])["step"] == step:
                return file.parent
        return None

    return process.wait_for(find_folder)


@pytest.mark.goal("R1", "R3")
@pytest.mark.parametrize(
    "more", [[], pytest.param(["trainer.compile=block"], marks=pytest.mark.nightly)]
)
def test_sigterm_and_kill_lose_nothing_and_the_same_command_ends_bitwise_equal(
    more, start, run_here, measured
):
    """A compiled run has a process of its own: the checker of shapes here cannot be compiled."""
    run = (lambda *words: start(*words).end()) if more else run_here
    Path("mine").mkdir()
    Path("mine/pause.py").write_text(PAUSE)
    typed = ["trainer.steps=40", "trainer.log_every=1", "trainer.eval_every=10", "plugins=mine"]
    typed += more
    stopped = start("study=rough", *typed, PAUSE="8")
    folder = wait_for_step(8, stopped)
    stopped.send_signal(signal.SIGTERM)
    code, answer, _ = stopped.end()
    assert (code, answer["status"], answer["run"]) == (75, "preempted", str(folder))
    assert (answer["steps"], result(folder)[0]) == (8, "step-00000008")
    with hold_run(folder):
        code, _, err = run_here("study=rough", *typed)
    assert code == 75
    assert f"{folder} is being trained by process {stopped.pid}" in err

    killed = start("study=rough", *typed, PAUSE="23")
    wait_for_step(23, killed)
    killed.kill()
    killed.communicate()

    code, answer, err = run("study=rough", *typed)
    assert (code, answer["status"], answer["steps"]) == (0, "finished", 40)
    assert "goes on from step 20" in err
    code, expected, _ = run("study=calm", *typed)
    assert code == 0
    assert result(answer["run"]) == result(expected["run"])
    assert not list(Path(answer["run"], "checkpoints").glob(".tmp-*"))
    measured(f"{' '.join(more) or 'one process'}: SIGTERM at 8 and -9 at 23 bitwise")


def test_where_is_swept_without_quotes_though_the_placements_file_has_none(run_here):
    entries = [f"{{blocks: i == 0, equation: {text}}}" for text in ("norm(x + f(x))", "x + f(x)")]
    entries[0] = f"[{entries[0]}]"
    typed = f"placement.where={','.join(entries)}"
    code, answer, err = run_here("-m", "hydra/launcher=basic", "trainer.steps=1", typed)
    assert (code, answer["finished"]) == (0, 2), err
    swept = [run["config"]["placement"]["where"] for run in runs("runs/main")]
    typed = [compose([f"placement.where={entry}"]).placement.where for entry in entries]
    assert sorted(map(str, swept)) == sorted(str(plain(where)) for where in typed)
