"""Replicas that share a batch: the same loss and gradients, and none where they would differ."""

import copy
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
import trainers
import variants
from short_runs import go, here, rows, same, state, stop_at  # noqa: F401
from tiny_models import Instead
from trainers import SIZES, VOCABULARY

from transformer_norms import ConfigError, build_model, compose
from transformer_norms.training import loss as loss_module
from transformer_norms.training.causality import examine_rows
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel.replicas import Replicas
from transformer_norms.training.parallel.work_division import divide, thread_count

# Two streams, weights held to a length, a number that two sub-layers share, a skip to the block's
# start, norms of each head, attention written out, blocks computed again.
TELLING = ["placement=residual_dual", "placement=ngpt", "placement=rezero", "norm=seednorm"]
TELLING += ["placement=qk_cap", "placement=hybrid_star", "norm=derf", "placement=keel"]

trainer_of = partial(trainers.trainer_of, replicas=2)


def losses_of(trainer):
    return trainer.micro_batches.replicas.losses


def check_gradients(*typed, **tolerance):
    two, one = trainers = [trainer_of(*typed, replicas=count) for count in (2, 1)]
    losses = [trainer.micro_batches.backward(one.batches(0), 0) for trainer in trainers]
    torch.testing.assert_close(*losses, **tolerance)
    assert all(p.grad is None for p in two.micro_batches.replicas.parameters[1])
    gradients = ([p.grad for p in trainer.parameters] for trainer in trainers)
    torch.testing.assert_close(*gradients, **tolerance)


NEAR = {"fp64": (1e-11, 1e-15), "fp32": (1e-5, 1e-7), "bf16": (0.02, 2e-4)}  # relative, absolute
CASES = {name: [name, "trainer.precision=fp64"] for name in TELLING}
CASES["recomputed"] = ["trainer.activation_checkpointing=true", "trainer.precision=fp64"]
CASES |= {"fp32": ["trainer.precision=fp32"], "bf16": ["trainer.precision=bf16", "init=scaled"]}
CASES["gpt2"] = ["preset=gpt2", "model.dropout=0", "trainer.precision=fp32"]
ALL = sorted({*variants.every_variant()} - {"norm=batchnorm"})


@pytest.mark.parametrize(
    "name", [*CASES, *(pytest.param(name, marks=pytest.mark.nightly) for name in ALL)]
)
def test_a_replica_has_the_models_weights_and_adds_the_gradients_of_its_share_to_the_models(name):
    """To rounding. It has separate gradients: else two threads would add to one tensor."""
    typed = CASES.get(name) or [*variants.every_variant()[name], "trainer.precision=fp64"]
    precision = next(text[-4:] for text in typed if "precision" in text)
    rtol, atol = NEAR[precision]
    check_gradients(*typed, rtol=rtol, atol=atol)
    trainer = trainer_of(*typed)
    model, replica = (loss.model for loss in losses_of(trainer))
    losses_of(trainer)[1].backward(trainer.batches(0), 1)
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in replica.parameters())
    trainer.train_step()
    shared = zip(model.parameters(), replica.parameters(), strict=True)
    assert all(p.data_ptr() == q.data_ptr() and p is not q for p, q in shared)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_an_evaluation_computes_each_window_whole(rows):
    trainers = trainer_of(replicas=1), trainer_of()
    batch = trainers[0].batches(0)
    windows = [batch, batch[:rows], batch[:1, :5]]
    one, two = (trainer.evaluate(windows) for trainer in trainers)
    assert one.tokens == two.tokens == sum(window[:, 1:].numel() for window in windows)
    assert two.nats == pytest.approx(one.nats, rel=1e-6)


def test_an_evaluation_has_neither_dropout_nor_a_graph_and_training_has_both():
    trainers = [trainer_of("model.dropout=0.5", replicas=count) for count in (1, 2)]
    batch = trainers[0].batches(0)
    one, two = (trainer.evaluate([batch]).nats for trainer in trainers)
    assert one == pytest.approx(two, rel=1e-6)
    for graph in (False, True):
        with torch.set_grad_enabled(graph):
            shares = trainers[1].micro_batches.replicas.run(lambda loss, i: loss.sum(batch[i:]), 2)
        assert [share.requires_grad for share in shares] == [graph, graph]
    replica = losses_of(trainers[1])[1].model
    next(trainers[1].micro_batches.sums([batch]))
    assert replica.training
    assert all(module.training for module in replica.modules())


def test_all_replicas_together_hold_as_many_logits_as_one(monkeypatch):
    monkeypatch.setattr(loss_module, "LOGITS", 16 * VOCABULARY)
    check_gradients("trainer.precision=fp64", rtol=1e-11, atol=1e-15)
    for count in (1, 2, 4):
        trainer = trainer_of(replicas=count)
        shares = zip(losses_of(trainer), trainer.batches(0).chunk(count), strict=True)
        for loss, share in shares:
            pieces = loss._pieces(*loss._states(share))
            assert [len(targets) for _, targets in pieces] == [16 // count] * 4


@pytest.mark.parametrize("failing", [0, 1])
def test_a_replica_that_fails_fails_the_step_and_leaves_no_replica_at_work(failing):
    replicas, ended = trainer_of().micro_batches.replicas, []

    def work(loss, i):
        if i == failing:
            raise ArithmeticError("planted")
        time.sleep(0.2 * i)
        ended.append(i)

    with pytest.raises(ArithmeticError, match="planted"):
        replicas.run(work, 2)
    assert ended == [1 - failing]


def enough(*typed):
    """replicas_of(threads, number): of a config of as little as is worth sharing: 64 sequences of
    16 tokens."""
    words = dict(text.split("=") for text in [*SIZES, "trainer.batch_size=64", *typed])
    config = compose([f"{key}={value}" for key, value in words.items()])
    model, optimizer = build_model(config, VOCABULARY), OPTIMIZERS[config.optimizer.type]

    def replicas_of(threads, number="auto", device="cpu"):
        settings = replace(config.trainer, replicas=number, device=device)
        return divide(settings, model, optimizer, threads).replicas

    return replicas_of


WHOLE = [
    ("", 3, "3 threads"),
    ("", 1, "1 threads"),
    ("trainer.batch_size=65", 2, "65 sequences"),
    ("trainer.batch_size=65 trainer.accumulation=5", 2, "65 sequences"),
    ("trainer.compile=block", 2, "compile"),
    ("model.dropout=0.1", 2, "draws"),
    ("norm=batchnorm norm.allow_noncausal=true", 2, "independent"),
]


@pytest.mark.parametrize(("typed", "threads", "said"), WHOLE)
def test_there_is_one_where_more_would_differ_or_bring_nothing(typed, threads, said):
    replicas_of = enough(*typed.split())
    assert replicas_of(threads) == replicas_of(threads, 1) == 1
    with pytest.raises(ConfigError, match=rf"^trainer.replicas=2: .*{said}"):
        replicas_of(threads, 2)


SLOWER = ["optimizer=muon", "trainer.activation_checkpointing=true", "model.context=15"]


def test_two_share_a_batch_on_a_cpu_unless_another_number_is_typed():
    replicas_of = enough()
    assert [replicas_of(threads) for threads in (2, 4, 8)] == [2, 2, 2]
    assert (replicas_of(8, 4), replicas_of(8, device="cuda")) == (4, 1)
    for typed in SLOWER:
        replicas_of = enough(typed)
        assert (replicas_of(2), replicas_of(2, 2)) == (1, 2), typed


SMALL = ["model=nano", "trainer.batch_size=16"]  # 512 tokens of width 64


@pytest.mark.parametrize(
    ("typed", "vocabulary", "threads"),
    [
        (SMALL, 257, 1),
        (SMALL, 4096, 8),
        ([*SMALL, "trainer.threads=3"], 257, 3),
        ([*SMALL, "trainer.replicas=2"], 257, 8),
        (["model=nano", "trainer.batch_size=32"], 257, 8),
        (["model=nano", "trainer.batch_size=32", "trainer.accumulation=2"], 257, 1),
        (["model=micro"], 257, 8),
        (["model=nano", "model.width=768", "trainer.batch_size=1"], 257, 8),
    ],
)
def test_a_small_step_has_one_thread_and_others_have_one_for_each_core(typed, vocabulary, threads):
    config = compose(typed)
    assert thread_count(config.trainer, config.model, vocabulary, cores=8) == threads


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


KINDS = {
    "draws": lambda: Instead(lambda x: x + 1e-9 * torch.randn_like(x)),
    "counts": Counts,
    "of the batch": lambda: Instead(lambda x: x - x.mean(0, keepdim=True)),
}


def apart(model):
    rows = examine_rows(model)
    return rows.rows_are_independent and not rows.drawn and not rows.counted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("typed", ["init=zero_out", "placement=rezero", "placement=layerscale"])
def test_a_module_that_draws_counts_or_reads_other_rows_is_seen_and_left_as_it_was(kind, typed):
    """Also where blocks begin as nothing."""
    model = build_model(compose([*SIZES, typed]), VOCABULARY)
    assert apart(model)
    model.blocks[1].mlp.f.mid = KINDS[kind]()
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert not apart(model)
    assert torch.equal(drawn, torch.get_rng_state())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert model.training


def test_a_replica_has_the_models_buffers():
    model = build_model(compose(SIZES), VOCABULARY)
    model.final = Counts()
    loss = loss_module.ModelLoss(model, loss_module.CrossEntropy(), device="cpu", precision="fp32")
    one, other = (each.model.final.calls for each in Replicas(loss, 2).losses)
    assert one.data_ptr() == other.data_ptr()


def test_a_run_says_how_many_it_had_and_goes_on_with_as_many(stop_at):  # noqa: F811
    alike = ["trainer.threads=2", "model.dropout=0", "trainer.steps=14"]
    two = "trainer.replicas=2"
    calm, alone = go("study=calm", *alike, two), go("study=one", *alike, "trainer.replicas=1")
    assert (calm["threads"], calm["replicas"], alone["replicas"]) == (2, 2, 1)
    assert calm["identity"] == alone["identity"]
    assert torch.get_num_threads() == 2
    assert rows(alone["folder"])[-1]["val/loss"] == pytest.approx(calm["val_loss"], rel=1e-5)
    stop_at(7, 10)
    for _ in range(2):
        assert go("study=rough", *alike, two)["status"] == "preempted"
    rough = go("study=rough", *alike, "trainer.replicas=1")
    assert rough["replicas"] == 2
    assert same(calm["folder"], rough["folder"])


def test_replicas_work_side_by_side():
    """Each waits for the other inside its share: one after the other would wait for ever."""
    replicas, both = trainer_of().micro_batches.replicas, threading.Barrier(2, timeout=600)
    arrived = replicas.run(lambda loss, i: torch.tensor(both.wait()), 2)
    assert sorted(map(int, arrived)) == [0, 1]
