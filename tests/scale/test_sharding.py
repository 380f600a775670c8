"""parallel=fsdp: two ranks with a shard of each weight compute what one process computes."""

import pytest
from rank_workers import on_ranks
from sharded import config_of, cut_short, first_gradients, refusal, steps

PRECISE = "trainer.precision=fp64"
TIED = PRECISE, "preset=gpt2"
UNTIED = PRECISE, "placement=rezero", "architecture.tied=false"
LATENT = PRECISE, "placement=hyper_connections", "architecture.q_rank=7", "architecture.kv_rank=5"
CONSTRAINED = PRECISE, "placement=ngpt", "final_norm=rmsnorm", "optimizer=muon"
AVERAGING = "norm=batchnorm", "norm.allow_noncausal=true"


def work(ranks, tied, untied, latent, constrained, averaging):
    return (
        first_gradients(ranks, [tied, untied, latent]),
        steps(ranks, [constrained]),
        refusal(ranks, averaging),
        cut_short(ranks, tied),
    )


@pytest.fixture(scope="module")
def seen():
    configs = [config_of(*typed) for typed in (TIED, UNTIED, LATENT, CONSTRAINED, AVERAGING)]
    first, second = on_ranks(2, work, *configs)
    assert first == second
    return first


def test_the_start_is_that_of_one_process_bit_by_bit(seen):
    for case in seen[0]:
        assert case["sharded"]
        assert case["buffers"]
        assert case["start"] == 0


@pytest.mark.goal("A4")
def test_a_loss_and_every_gradient_are_those_of_one_process(seen):
    for case in seen[0]:
        assert len(case["gradients"]) > 10
        assert case["loss"] < 1e-12
        assert max(case["gradients"].values()) < 1e-12


@pytest.mark.goal("A4")
def test_steps_probes_and_evaluations_are_those_of_one_process(seen):
    for case in seen[1]:
        assert max(case["losses"], case["norm"], case["nats"]) < 1e-12
        assert max(case["tensors"].values()) < 1e-9
        assert case["tokens"]
        assert case["probed"] == [{}, {}, {}]


def test_a_signal_to_one_rank_ends_a_step_of_all_behind_the_same_micro_batch(seen):
    assert seen[3] == {
        "computed": 3, "of": 4, "interrupted": True, "as_before": True, "gradients": 0,
    }  # fmt: skip


def test_running_averages_are_refused(seen):
    assert "norm=batchnorm" in seen[2]
    assert "\n" not in seen[2]
