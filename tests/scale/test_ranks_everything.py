"""The same bits on 1, 2 and 4 ranks; signals, kills and resumes under torchrun; two machines."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from rank_workers import ROOT, free_port, on_ranks, torchrun, train_all, train_all_alone
from short_runs import BASE, go, here, rows, same, state, stop_at  # noqa: F401

pytestmark = pytest.mark.nightly

PLACEMENTS = "pre hybrid ngpt mixln residual_dual qk_cap mhc siamese laurel gemma3n"
VARIANTS = [f"placement={name}" for name in [*PLACEMENTS.split(), "attention_residuals"]]
VARIANTS += ["norm=dyt", "norm=seednorm", "trainer.qk_clip=0.01", "architecture.kv_rank=6"]
OTHERS = [[], ["model.dropout=0.1"]], [["trainer.accumulation=4"], ["trainer.accumulation=8"]]
OPTIMIZERS = [["optimizer=adamw"], ["optimizer=muon"]]
CASES = [
    [variant, *dropout, *accumulation, *optimizer]
    for variant, dropout, accumulation, optimizer in product(VARIANTS, *OTHERS, OPTIMIZERS)
]


@pytest.fixture(scope="module")
def alone():
    """Each case in one process. No two are alike, else they would say less than they seem to."""
    found = train_all_alone(CASES)
    assert len({weights for _, weights in found}) == len(CASES)
    return found


@pytest.mark.goal("R3", "A4")
@pytest.mark.parametrize("count", [2, 4])
def test_the_weights_and_every_loss_have_the_bits_of_one_process(count, alone):
    for found in on_ranks(count, train_all, CASES):
        for case, one, other in zip(CASES, alone, found, strict=True):
            assert one == other, case


MORE = ["trainer.accumulation=4", "trainer.steps=400", "trainer.checkpoint_every=20"]
MORE += ["trainer.batch_size=8", "parallel=ddp", "trainer.eval_every=100", "trainer.probe_every=0"]


def command(study, *more):
    typed = dict(text.split("=", 1) for text in [*BASE, *MORE, f"study={study}", *more])
    return [f"{key}={value}" for key, value in typed.items()]


def folder_of(study):
    return next(Path("runs", study).iterdir())


def wait_for(job, found):
    """Waits for an event; a job that ends before it fails the test."""
    while not found():
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)


def saved(study, beyond=0):
    folders = Path("runs", study).glob("*/checkpoints/step-*")
    return max((int(folder.name[5:]) for folder in folders), default=0) > beyond


def ranks_of(job):
    """The processes that torchrun started, by number."""
    ranks = {}
    for pid in subprocess.check_output(["pgrep", "-P", str(job.pid)], text=True).split():
        if found := re.search(rb"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes()):
            ranks[int(found[1])] = int(pid)
    return ranks


def start(count, study, *more):
    """A job on so many ranks; one process is started without torchrun."""
    if count > 1:
        return torchrun(count, *command(study, *more))
    words = [sys.executable, str(ROOT / "train.py"), *command(study, "parallel=none", *more)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def summary():
    return json.loads((folder_of("rough") / "summary.json").read_text())


def go_through(stages, *typed):
    """Trains the run `rough` in stages, each of a kind of parallel training and a number of ranks.
    All but the last one are stopped once they have saved."""
    beyond = 0
    for place, (parallel, count) in enumerate(stages, start=1):
        job, last = start(count, "rough", f"parallel={parallel}", *typed), place == len(stages)
        if not last:
            wait_for(job, lambda beyond=beyond: saved("rough", beyond))
            job.send_signal(signal.SIGTERM)
        out, err = job.communicate()
        found = summary()
        ended = found["status"], found["parallel"], found["ranks"]
        assert ended == ("finished" if last else "preempted", parallel, count), err
        beyond = found["step"]


def train_calm(*typed):
    job = start(1, "calm", *typed)
    _, err = job.communicate()
    assert job.returncode == 0, err
    return folder_of("calm")


@pytest.fixture
def calm(here):  # noqa: F811
    return train_calm()


@pytest.mark.goal("R6", "R3", "T6")
@pytest.mark.parametrize("counts", [(1, 2, 1), (2, 4), (4, 1)], ids=str)
def test_a_run_goes_on_with_another_number_of_ranks(counts, calm, measured):
    go_through([("ddp" if count > 1 else "none", count) for count in counts])
    assert same(calm, folder_of("rough"))
    measured(f"ranks {' -> '.join(map(str, counts))}: bitwise")


def signal_rank(count, rank, number, *typed):
    """Signals one of the ranks of the run `rough` once it has saved. Returns the run's summary,
    what the job printed, and the seconds until all had ended."""
    job = start(count, "rough", *typed)
    wait_for(job, lambda: saved("rough"))
    begun = time.monotonic()
    os.kill(ranks_of(job)[rank], number)
    out, err = job.communicate()
    seconds = time.monotonic() - begun
    assert seconds < 60
    assert job.returncode == 1
    return summary(), out, err, seconds


TO_ONE = [(2, 1, number) for number in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")]
TO_ONE += [(2, 0, "SIGTERM"), (4, 0, "SIGUSR1"), (4, 3, "SIGTERM")]


@pytest.mark.goal("R3", "P2")
@pytest.mark.parametrize(("count", "rank", "name"), TO_ONE)
def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(
    count, rank, name, calm, measured
):
    found, out, err, seconds = signal_rank(count, rank, signal.Signals[name])
    assert found["status"] == "preempted", err
    assert state(folder_of("rough"))[1]["step"] == found["step"]
    assert json.loads(out)["status"] == "preempted"
    assert start(2, "rough").wait() == 0
    assert same(calm, folder_of("rough"))
    measured(f"{name} to rank {rank} of {count}: all ended after {seconds:.0f} s")


def test_a_run_that_is_mirrored_answers_before_its_other_ranks_end(here):  # noqa: F811
    """torchrun ends rank 0 as soon as another one has ended with an exit code."""
    mirrored = "tracking=wandb", "tracking.mode=offline"
    _, out, err, _ = signal_rank(2, 1, signal.SIGTERM, *mirrored)
    assert json.loads(out)["status"] == "preempted", err


@pytest.mark.goal("P4")
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_job_and_the_same_command_goes_on(rank, parallel, calm, measured):
    found, _, _, seconds = signal_rank(2, rank, signal.SIGKILL, f"parallel={parallel}")
    # Rank 0 may itself be the one that is gone, or be ended before it notices.
    assert found["status"] in ("running", "preempted"), found["error"]
    assert start(2, "rough").wait() == 0
    assert parallel == "fsdp" or same(calm, folder_of("rough"))
    measured(f"rank {rank}, {parallel}: ended after {seconds:.0f} s, resumed")


def meet(ranks, *folders):
    """Two agents that meet as two machines do, each in its folder. Returns the exit codes, and what
    was printed on stdout and on stderr."""
    meeting = f"--rdzv-endpoint=localhost:{free_port()}"
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"]
    words += [f"--nproc-per-node={ranks}", "--rdzv-id=norms", meeting, str(ROOT / "train.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen([*words, *command("rough")], cwd=one, **pipes) for one in folders]
    outs, errs = zip(*(job.communicate() for job in jobs), strict=True)
    return [job.returncode for job in jobs], outs, errs


def test_two_agents_meet_as_two_machines_do(calm):
    codes, outs, errs = meet(2, None, None)
    assert codes == [0, 0], errs
    assert sorted(len(out.splitlines()) for out in outs) == [0, 1]
    assert same(calm, folder_of("rough"))


def test_a_rank_with_other_code_or_data_is_refused(here):  # noqa: F811
    """The second machine has another corpus."""
    (here / "other").mkdir()
    (here / "other" / "corpus.txt").write_text((here / "corpus.txt").read_text() + "and one more\n")
    codes, _, errs = meet(1, here, here / "other")
    assert codes == [1, 1]
    assert any("has another" in err and "than rank 0" in err for err in errs), errs
    assert not (here / "runs").exists()
    assert not (here / "other" / "runs").exists()


# At step 13 of rank 1 alone, in one number of what $PLANT says: the loss or a gradient of the first
# of its two micro-batches, or a weight after the update.
PLANT = """
import math, os
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.tensors import local
from transformer_norms.training.trainer import Trainer

backward, train_step = ModelLoss.backward, Trainer.train_step

def planted_backward(self, batch, parts):
    total = backward(self, batch, parts)
    self.calls = getattr(self, "calls", 0) + 1
    if self.calls == 25 and os.environ["PLANT"] == "loss":
        total *= math.nan
    if self.calls == 25 and os.environ["PLANT"] == "gradient":
        self.model.final.gain.grad[0] = math.nan
    return total

def planted_train_step(self):
    reason = train_step(self)
    if reason is None and self.step == 13 and os.environ["PLANT"] == "update":
        local(self.parameters[0].detach()).view(-1)[0] = math.inf
    return reason

if os.environ.get("RANK") == "1" and "PLANT" in os.environ:
    ModelLoss.backward, Trainer.train_step = planted_backward, planted_train_step
"""
DIVERGED = {
    "loss": "the loss is nan at step 13",
    "gradient": "the gradient's norm is nan at step 13",
    "update": "embedding.weight is not finite after the update of step 13",
}


@pytest.mark.goal("N1")
@pytest.mark.parametrize(
    ("parallel", "plant"),
    [("ddp", plant) for plant in DIVERGED] + [("fsdp", "loss"), ("fsdp", "update")],
)
def test_what_is_not_finite_on_one_rank_is_a_divergence_of_all(
    parallel, plant, here, stop_at, measured  # noqa: F811
):  # fmt: skip
    Path("mine").mkdir()
    Path("mine/plant.py").write_text(PLANT)
    typed = ["plugins=mine", f"parallel={parallel}", "trainer.steps=24", "trainer.eval_every=10"]
    typed += ["trainer.checkpoint_every=7"]
    stop_at(12)
    calm = go("study=calm", *[text for text in [*MORE, *typed] if "steps=400" not in text])
    job = torchrun(2, *command("rough", *typed), PLANT=plant)
    _, err = job.communicate()
    assert job.returncode == 1, err
    found = summary()
    ended = found["status"], found["step"], found["diverged"]
    assert ended == ("diverged", 12, DIVERGED[plant]), err
    assert state(folder_of("rough"))[1]["step"] == 12
    if parallel == "ddp":  # whose sums are those of one process
        assert same(calm["folder"], folder_of("rough"))
    measured(f"{plant} on one of two ranks, {parallel}: step 12 kept")
