"""The training step and an evaluation, plain and compiled."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from new_process import run_python
from trainers import SIZES, losses, trainer_of

from transformer_norms import build_model, compose
from transformer_norms.data.batches import windows
from transformer_norms.names import options


def cross_entropy(model, batch):
    return -model(batch[:, :-1]).log_softmax(-1).gather(-1, batch[:, 1:, None]).flatten()


def test_a_step_is_autograds_gradient_clipped_and_torchs_adamw():
    typed = "trainer.precision=fp64", "init=scaled"  # one rate for all groups
    trainer = trainer_of("trainer.clip=0.5", "optimizer.weight_decay=0", *typed)
    model = build_model(compose([*SIZES, *typed]), 31)
    reference = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
    batch = trainer.batches(0)
    for step in range(4):
        reference.param_groups[0]["lr"] = 3e-3 * (step + 1) / 6
        loss = cross_entropy(model, batch).mean()
        reference.zero_grad()
        loss.backward()
        norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
        factor = min(1.0, 0.5 / (norm.item() + 1e-6))
        torch._foreach_mul_([p.grad for p in model.parameters()], factor)
        reference.step()
        assert losses(trainer, 1)[-1] == pytest.approx(loss.item(), rel=1e-12)
        assert trainer.grad_norm == pytest.approx(norm.item(), rel=1e-12)
    both = ([*m.parameters()] for m in (trainer.model, model))
    torch.testing.assert_close(*both, rtol=0, atol=1e-12)


@pytest.mark.goal("T8")
def test_an_evaluation_is_the_same_each_time_and_in_batches_of_any_size(measured):
    trainer = trainer_of("norm=layernorm")
    losses(trainer, 3)
    tokens = np.random.default_rng(0).integers(0, 31, 64 * 16 + 8)
    found = [trainer.evaluate(windows(tokens, 16, 10**6, 64)) for _ in range(10)]
    assert found == found[:1] * 10
    nats, count, _ = trainer.evaluate(windows(tokens, 16, 10**6, 1))
    assert count == found[0].tokens == len(tokens) - 1
    difference = abs(nats - found[0].nats) / count
    assert difference <= 1e-6
    measured(f"10 times one loss, bitwise; batches of 1 and of 64 differ by {difference:.0e} nats")


@pytest.mark.parametrize("count", [40, 64, 150])  # windows: at most 64 blocks of as many each
def test_the_losses_by_blocks_are_those_of_the_model_on_each_part_of_the_text(count):
    trainer = trainer_of("norm=layernorm", "trainer.precision=fp64")
    losses(trainer, 3)
    tokens = np.random.default_rng(0).integers(0, 31, 16 * count + 6)  # the last has five tokens
    nats, _, blocks = trainer.evaluate(windows(tokens, 16, 10**6, 1))
    size = -(-count // 64)
    assert len(blocks) == count // size <= 64
    ends = [16 * size * block for block in range(1, len(blocks))]
    parts = [*pairwise([0, *ends, len(tokens) - 1])]  # what is left belongs to the last block
    assert blocks == pytest.approx([_loss(trainer, tokens[a : b + 1]) for a, b in parts])
    assert np.dot(blocks, [b - a for a, b in parts]) == pytest.approx(nats, abs=1e-3)


def _loss(trainer, tokens):
    """The mean cross-entropy of tokens that are read in windows of 16."""
    parts = [torch.as_tensor(tokens[n : n + 17])[None] for n in range(0, len(tokens) - 1, 16)]
    with torch.no_grad():
        return torch.cat([cross_entropy(trainer.model, part) for part in parts]).mean().item()


COMPILED = """
import torch._dynamo.utils as dynamo
import trainers as t
losses = t.losses(t.trainer_of(*{}), 20)
print(dynamo.counters["stats"]["unique_graphs"], *losses)
"""


def compiled_and_eager(*typed):
    """Losses of 20 steps, in separate processes: what checks shapes here is not compiled."""
    for compiled in ("block", "none"):
        command = COMPILED.format([f"trainer.compile={compiled}", *typed])
        graphs, *losses = map(float, run_python(command).split())
        assert (graphs > 0) == (compiled == "block")
        yield losses


@pytest.mark.goal("A4")
@pytest.mark.nightly
def test_compiled_by_region_the_losses_are_those_of_eager_to_rounding():
    """At a rate that leaves them far from zero, where rounding would be a larger part of them."""
    compiled, eager = compiled_and_eager("optimizer.lr=3e-4")
    assert compiled == pytest.approx(eager, rel=1e-5)
    assert min(eager) > 0.1


LATENTS = ["architecture.q_rank=14", "architecture.kv_rank=10", "architecture.value_dim=20"]
LATENTS += ["architecture.rope_dim=4", "architecture.sliding_window=5"]
MORE = ["attention=sinks", "placement=mhc", "trainer.activation_checkpointing=true"]
COMPILED_CASES = [[f"placement={placement}"] for placement in options("placement")]
COMPILED_CASES += [[*LATENTS, more] for more in MORE]


@pytest.mark.goal("A4")
@pytest.mark.nightly
@pytest.mark.parametrize("typed", COMPILED_CASES, ids=" ".join)
def test_compiled_every_placement_and_latents_are_the_same_function(typed):
    """In float64, where 20 steps of an optimizer leave rounding small."""
    compiled, eager = compiled_and_eager("trainer.precision=fp64", *typed)
    assert compiled == pytest.approx(eager, rel=1e-9)
