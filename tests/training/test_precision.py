"""Under bf16 the sums are float32 or float64: each against a float64 oracle of the same numbers."""

import math

import pytest
import torch
import torch.nn.functional as F
from tiny_models import drawn
from trainers import trainer_of

from transformer_norms.model.attention import Softmax

HALF = 2**-8  # the rounding of a bfloat16, relative
BF16 = "trainer.precision=bf16"


@pytest.mark.goal("N4")
@pytest.mark.parametrize("cap", [None, 30.0])
def test_a_softmax_over_a_thousand_keys_is_that_of_float64_to_one_rounding(cap, measured):
    """Nearly equal weights: their sum in bfloat16 would end at 256."""
    time = 1024
    q, k, v = (drawn(1, 2, time, 16, seed=i).bfloat16() for i in range(3))
    v = v.abs()
    attend = Softmax(scale=0.05, cap=cap, dropout=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, k, v, torch.empty(1, time, 1)).double()
    logits = 0.05 * q.double() @ k.double().mT
    logits = logits if cap is None else cap * (logits / cap).tanh()
    expected = logits.exp().tril()
    expected = expected / expected.sum(-1, keepdim=True) @ v.double()
    worst = ((found - expected).abs() / expected).max().item()
    assert worst < 3 * HALF  # of the products' operands, and of the result
    measured(f"softmax, cap {cap}: {worst:.1e} of float64's; {HALF:.1e} is bfloat16's rounding")


@pytest.mark.goal("N4")
@pytest.mark.parametrize("window", [None, 64])
def test_attention_and_its_gradients_round_once_on_a_cpu(window):
    """Under autocast in bf16 PyTorch's kernel rounds the weights too."""
    time = 96
    inputs = [drawn(1, 2, time, 16, seed=i).bfloat16().requires_grad_() for i in range(3)]
    weights = drawn(1, 2, time, 16, seed=3).bfloat16()
    attend = Softmax(scale=0.25, cap=None, dropout=0.0, sliding_window=window)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(*inputs, torch.empty(1, time, 1))
    assert found.dtype == torch.bfloat16
    q, k, v = (x.detach().double().requires_grad_() for x in inputs)
    at = torch.arange(time)
    seen = (at[:, None] >= at) & (at[:, None] - at < (window or time))
    expected = (0.25 * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v
    pairs = [(found, expected)]
    gradients = torch.autograd.grad(found, inputs, weights)
    pairs += zip(gradients, torch.autograd.grad(expected, (q, k, v), weights.double()), strict=True)
    for half, exact in pairs:
        off = (half.double() - exact).abs()
        assert (off <= exact.abs() * HALF + exact.abs().max() * 1e-6).all()


@pytest.mark.goal("N4")
def test_losses_and_sums_of_evaluations_are_those_of_float64(measured):
    """From the same bfloat16 logits: the loss of a step, of a window and of 64 windows."""
    trainer = trainer_of(BF16, "trainer.clip=0")
    batch = trainer.batches(0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = trainer.model(batch[:, :-1]).flatten(0, 1)
    assert logits.dtype == torch.bfloat16
    exact = F.cross_entropy(logits.double(), batch[:, 1:].flatten(), reduction="sum").item()
    with torch.no_grad():
        window = trainer.loss.sum(batch)
    many, tokens, _ = trainer.evaluate([batch] * 64)
    assert (window.dtype, tokens) == (torch.float32, 64 * batch[:, 1:].numel())
    assert many == 64 * window.item()  # no digit is lost: the sum is in float64
    step = trainer.micro_batches.backward(batch, 0)[0].item() * batch[:, 1:].numel()
    off = [abs(found / exact - 1) for found in (window.item(), step)]
    assert max(off) < 1e-6
    measured(f"losses: {max(off):.0e} of float64's; a sum of 64 evaluations is exact")


@pytest.mark.goal("N4")
def test_the_norm_of_the_gradients_is_that_of_float64(measured):
    trainer = trainer_of(BF16, "trainer.clip=0")
    gradients = []
    trainer.optimizers[0].register_step_pre_hook(
        lambda *_: gradients.extend(p.grad.double() for p in trainer.parameters)
    )
    assert trainer.train_step() is None
    exact = math.sqrt(sum(g.square().sum().item() for g in gradients))
    off = abs(trainer.grad_norm / exact - 1)
    assert off < 1e-6
    assert {p.dtype for p in trainer.parameters} == {torch.float32}
    measured(f"gradient norm: {off:.0e} of float64's")
