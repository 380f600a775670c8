"""Activations against their formulas, with gradients by finite differences."""

import math

import pytest
import torch
from tiny_models import drawn

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.model.mlp import ACTIVATIONS, SparseActivation

FORMULAS = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: (x + x.abs()) / 2,
    "relu2": lambda x: torch.where(x > 0, x * x, torch.zeros_like(x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation_and_its_gradient_are_its_formula(name):
    x = torch.linspace(-4, 4, 80, dtype=torch.double, requires_grad=True)
    torch.testing.assert_close(ACTIVATIONS[name](x), FORMULAS[name](x), rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(ACTIVATIONS[name], x)


def sparse(name, share, z):
    """The threshold and the activation, from moments and the quantile of torch.special."""
    quantile = torch.special.ndtri(torch.tensor(share, dtype=torch.double))
    above = z - z.mean(-1, keepdim=True) - quantile * z.std(-1, keepdim=True, correction=0)
    return FORMULAS[name]((above + above.abs()) / 2)


@pytest.mark.parametrize("mlp", ["relu2", "geglu_tanh"])
def test_a_sparse_activation_reads_what_is_above_the_threshold_of_its_block(mlp):
    typed = [f"mlp={mlp}", "architecture.activation_sparsity=[0.9,0]", "trainer.precision=fp64"]
    config = compose([*typed, "model=nano", "model.depth=2", "model.width=16", "model.heads=2"])
    model, x = build_model(config, 32), torch.randn(2, 5, 16, dtype=torch.double)
    for block, share in zip(model.blocks, (0.9, None), strict=True):
        f, name = block.mlp.f, config.mlp.activation
        z = x @ (f.gate if f.gated else f.up).weight.T
        active = FORMULAS[name](z) if share is None else sparse(name, share, z)
        hidden = active * (x @ f.up.weight.T) if f.gated else active
        torch.testing.assert_close(f(x), hidden @ f.down.weight.T, rtol=1e-12, atol=1e-14)


def test_of_normal_numbers_the_share_is_below_the_threshold_and_gradients_pass_it():
    activation = SparseActivation(ACTIVATIONS["relu"], 0.95)
    z = 3 + 5 * drawn(200_000)
    assert (activation(z) == 0).double().mean().item() == pytest.approx(0.95, abs=1e-3)
    few = torch.linspace(-1, 1, 14, dtype=torch.double).view(2, 7).requires_grad_()
    assert torch.autograd.gradcheck(SparseActivation(ACTIVATIONS["gelu"], 0.3), few)
    half = z[:512].bfloat16()
    assert activation(half).dtype == torch.bfloat16
    torch.testing.assert_close(activation(half), activation(half.float()).bfloat16())


@pytest.mark.parametrize(("mlp", "width"), [("relu2", 4 * 96), ("swiglu", 256)])
def test_the_mlps_width_is_four_times_the_models_or_as_many_parameters_gated(mlp, width):
    assert compose([f"mlp={mlp}", "model.width=96"]).model.mlp_width == width
    assert compose([f"mlp={mlp}", "model.mlp_width=50"]).model.mlp_width == 50
