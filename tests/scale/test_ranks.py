"""A step is a sum of micro-batches in one tree: the same bits on any number of ranks."""

import json
import os
from dataclasses import replace

import pytest
import torch
from rank_workers import (
    SIZES,
    VOCABULARY,
    batches,
    free_port,
    on_ranks,
    torchrun,
    train_all,
    train_all_alone,
    train_some,
    trainer_of,
)
from short_runs import BASE, go, here, rows, same, state  # noqa: F401
from tiny_models import Instead
from warm import Command

from transformer_norms import ConfigError, build_model, cli, compose
from transformer_norms.run.beginning import check_ranks
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Data
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel import ranks as ranks_module
from transformer_norms.training.parallel.ranks import ALONE, Ranks, add_in_tree
from transformer_norms.training.parallel.work_division import Division, divide, resume_division


def test_the_tree_is_the_same_whoever_holds_its_branches():
    """The rounding of these numbers' sum depends on the order."""
    a, b, c, d, e, f, g, h = parts = [0.58, 0.61, 0.84, 0.49, 0.27, 0.13, 0.63, 0.04]
    whole = ((a + b) + (c + d)) + ((e + f) + (g + h))
    assert whole != sum(parts)
    for holders in (1, 2, 4, 8):
        share = len(parts) // holders
        held = [add_in_tree(parts[i * share :][:share], float.__add__) for i in range(holders)]
        assert add_in_tree(held, float.__add__) == whole
    assert add_in_tree(parts[:3], float.__add__) == a + (b + c)


def add_on_ranks(ranks, tensors):
    """Each rank adds its own tensors, in buckets of 5 numbers at most."""
    ranks_module.BUCKET = 5
    own = [tensor.clone() for tensor in tensors[ranks.rank]]
    ranks.add(own)
    facts = [
        ranks.any(ranks.rank == 1),
        ranks.any(False),
        ranks.stop(ranks.rank == 1),
        ranks.stop(False),
        ranks.gather(ranks.rank * 10),
        ranks.on_first(lambda: f"from {ranks.rank}"),
        ranks.stack(torch.tensor([ranks.rank, 7])).tolist(),
    ]
    errors = []
    for work in (lambda: ranks.on_first(lambda: int("x")), lambda: check_weights(ranks)):
        try:
            work()
        except (ValueError, RuntimeError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return own, facts, errors


def check_weights(ranks):
    """The weights are equal, and then one differs in its last bits."""
    trainer = trainer_of(ranks, [])
    ranks.check_equal(trainer.parameters)
    with torch.no_grad():
        trainer.parameters[-1].view(-1)[0] += 1e-6 * ranks.rank
    ranks.check_equal(trainer.parameters)


AVERAGE = "trainer.average={type: window, count: 2, every: 3}"
CASES = [["placement=hybrid", "trainer.accumulation=4", "model.dropout=0.1", AVERAGE]]
CASES += [["norm=seednorm", "optimizer=muon", "trainer.accumulation=4"]]
CASES += [["placement=hyper_connections", "architecture.kv_rank=6", "trainer.accumulation=4"]]


def both(ranks, tensors, cases):
    return add_on_ranks(ranks, tensors), train_all(ranks, cases)


@pytest.mark.goal("A4")
def test_two_ranks_add_and_agree_and_train_to_the_bits_of_one():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (4, 4), (1,), (2, 2), ()]
    tensors = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2)]
    tensors[0].append(torch.ones(3, dtype=torch.float64) / 3)
    tensors[1].append(torch.ones(3, dtype=torch.float64) / 7)
    found = on_ranks(2, both, tensors, CASES)
    alone = train_all_alone(CASES)
    for (sums, facts, errors), trained in found:
        wanted = (a + b for a, b in zip(*tensors, strict=True))
        assert all(map(torch.equal, sums, wanted))
        assert facts == [True, False, True, False, [0, 10], "from 0", [[0, 7], [1, 7]]]
        assert [line.partition(":")[0] for line in errors] == ["ValueError", "RuntimeError"]
        assert errors[1].endswith("rank 1 has another weight than rank 0")
        assert trained == alone
    assert alone[0] != train_all_alone([[*CASES[0], "seed=1"]])[0]


@pytest.mark.goal("A4")
def test_replicas_give_the_bits_of_one_with_as_many_micro_batches():
    typed = ["placement=pre", "trainer.accumulation=4"]
    alone = train_some(ALONE, typed, 3)
    for replicas in (2, 4):
        assert train_some(ALONE, typed, 3, replicas) == alone


def test_what_is_dropped_depends_on_the_step_and_the_sequence():
    """A micro-batch at another place in the step's batch drops other numbers."""
    trainer = trainer_of(ALONE, ["model.dropout=0.5", "trainer.accumulation=2"])
    found, backward = [], trainer.loss.backward
    trainer.loss.backward = lambda *given: found.append(backward(*given)) or found[-1]
    for step in (3, 3, 4):
        trainer.micro_batches.backward(batches(0)[:8].repeat(2, 1), step)
    a, b, again, once_more, c, d = (loss[0].item() for loss in found)
    assert ([a, b], len({a, b, c, d})) == ([again, once_more], 4)


def divided(before, ranks, cores, *typed, device="cpu"):
    sizes = [text for text in SIZES if not text.startswith("trainer.device=")]
    config = compose([*sizes, *typed], device)
    model = build_model(config, VOCABULARY)
    return resume_division(before, config.trainer, model, cores // ranks, ranks)


RESUMED = [  # before, ranks, cores, after
    ((2, 1, 2, 2), 2, 2, (2, 2, 1, 1)),
    ((2, 2, 1, 1), 1, 2, (2, 1, 2, 2)),
    ((2, 1, 2, 2), 1, 8, (2, 1, 2, 2)),  # as it was
    ((4, 4, 1, 1), 1, 2, (4, 1, 2, 2)),  # as many as there are cores
    ((4, 4, 1, 1), 1, 8, (4, 1, 4, 4)),
    ((2, 1, 2, 4), 4, 16, (4, 4, 1, 2)),  # more micro-batches: other digits
    ((1, 1, 1, 3), 2, 2, (2, 2, 1, 3)),
]


@pytest.mark.parametrize("case", RESUMED, ids=str)
def test_a_run_goes_on_with_the_micro_batches_and_operators_that_it_had(case):
    before, ranks, cores, after = case
    assert divided(Division(*before), ranks, cores) == Division(*after)
    # Replicas would draw what to drop in another order, and a GPU has one model.
    one = Division(*after[:2], 1, after[3] // after[2])
    dropping = divided(Division(*before), ranks, cores, "model.dropout=0.1")
    assert dropping == (Division(*after) if before[1] == ranks else one)
    on_a_gpu = divided(Division(*before), ranks, cores, device="cuda")
    assert (on_a_gpu.micro_batches, on_a_gpu.replicas) == (after[0], 1)


SIX = ["trainer.batch_size=6", "trainer.accumulation=3"]
AVERAGES = ["norm=batchnorm", "norm.allow_noncausal=true"]
OF_THE_BATCH = Instead(lambda x: x - x.mean(0, keepdim=True))  # rows that know of each other
REFUSED = [  # what is typed, an mlp's norm, the ranks, and what is said of them
    (SIX, None, 4, "as 12 is; .* be 3 processes"),
    (AVERAGES, None, 2, "running averages"),
    (["trainer.accumulation=1"], OF_THE_BATCH, 2, "trainer.accumulation=2 says so"),
]


@pytest.mark.parametrize(("typed", "mid", "ranks", "said"), REFUSED)
def test_what_ranks_cannot_share_is_refused(typed, mid, ranks, said):
    model = trainer_of(ALONE, typed).model
    if mid is not None:
        divide(model.config.trainer, model, OPTIMIZERS["adamw"], 2, ranks)
        model.blocks[1].mlp.f.mid = mid
    with pytest.raises(ConfigError, match=said):
        divide(model.config.trainer, model, OPTIMIZERS["adamw"], 2, ranks)
    several = replace(model.config.trainer, accumulation=2) if mid else model.config.trainer
    divide(several, model, OPTIMIZERS["adamw"], 2, ranks if mid else 1)


def test_a_rank_that_was_started_by_another_command_is_refused(here):  # noqa: F811
    """The times of checkpoints and probes are not a part of a run's identity, and ranks whose times
    differ would wait for one another for ever."""

    class Two(Ranks):
        def gather(self, value):
            assert "trainer.checkpoint_every" in value
            return [value, {**value, "trainer.checkpoint_every": 8}]

    plan = Plan(compose([*BASE, "parallel=ddp"]))
    facts = {"train": {}, "val": {}, "test": {}, "identity": {}}
    with pytest.raises(ConfigError, match=r"rank 1 has another trainer\.checkpoint_every than"):
        check_ranks(plan, Data(fingerprint="0", **facts), Two())


def set_environment(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_all_processes_say_that_there_are_more_of_them_than_gpus(monkeypatch):
    """torchrun shows what the first one prints."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for local_rank in ("0", "1"):
        set_environment(monkeypatch, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, LOCAL_RANK=local_rank)
        with pytest.raises(ConfigError, match="it should be --nproc-per-node 1"):
            ranks_module.join("ddp", "cuda")


SWEPT = "-m norm=rmsnorm,layernorm parallel=ddp"


@pytest.mark.parametrize("typed", [SWEPT, "sweep=quick", ""])
def test_torchrun_is_for_one_run_that_is_parallel(typed, monkeypatch, capsys, here):  # noqa: F811
    said = "start it with python" if typed else "type parallel=ddp or fsdp"
    typed = typed.split()
    if "-m" in typed:
        assert cli.main(typed) == 2
        assert "each run of a sweep is one process" in capsys.readouterr().err
    set_environment(monkeypatch, WORLD_SIZE=2, RANK=0, TORCHELASTIC_RUN_ID=1)
    assert cli.main(typed) == 2
    assert said in capsys.readouterr().err
    set_environment(monkeypatch, RANK=1, LOCAL_RANK=1)
    assert cli.main(typed) == 2
    assert capsys.readouterr().err == ""  # one rank says it for all
    assert not os.path.exists("runs")


@pytest.mark.goal("T6", "A4")
@pytest.mark.parametrize("agent", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_run_of_two_ranks_is_the_run_of_one(agent, here):  # noqa: F811
    """Also where torchrun starts the two."""
    alone = go("study=alone", "trainer.accumulation=2")
    typed = [*BASE, "study=both", "trainer.accumulation=2", "parallel=ddp"]
    where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    where |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    each = [where | {"RANK": n, "LOCAL_RANK": n} for n in "01"]
    jobs = [torchrun(2, *typed)] if agent else [Command(typed, one) for one in each]
    (out, err), *others = [job.communicate() for job in jobs]
    assert {job.returncode for job in jobs} == {0}, err
    assert (len(out.splitlines()), [silent for silent, _ in others]) == (1, [""] * len(others))
    answer = json.loads(out)  # of rank 0 alone
    assert answer["val_loss"] == alone["val_loss"]
    assert rows(answer["run"]) == rows(alone["folder"])
    (tensors, saved), (wanted, expected) = state(answer["run"]), state(alone["folder"])
    assert saved["chain"] == expected["chain"]
    torch.testing.assert_close(tensors, wanted, rtol=0, atol=0)
    summary = json.loads((here / answer["run"] / "summary.json").read_text())
    assert (summary["ranks"], summary["parallel"], summary["micro_batches"]) == (2, "ddp", 2)
    assert summary["identity"] == alone["identity"]


@pytest.mark.nightly
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_branch_on_two_ranks_is_the_separate_run(parallel, here):  # noqa: F811
    typed = [*(one for one in BASE if "steps" not in one and "warmup" not in one), "schedule=wsd"]
    typed += [f"parallel={parallel}", "trainer.accumulation=2", "schedule.warmup=4"]
    found, both = [], ["trainer.branches=[10,20]"]
    for job in ([*both, "trainer.steps=10"], [*both, "trainer.steps=20"], ["trainer.steps=20"]):
        out, err = torchrun(2, *typed, f"study=s{len(job)}", *job).communicate()
        found.append(json.loads(out or err)["run"])
    _, branch, separate = found
    assert json.loads((here / branch / "summary.json").read_text())["branch_step"] == 9
    assert same(branch, separate)
