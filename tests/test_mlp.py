"""Activations against their formulas, with gradients by finite differences."""

import math

import pytest
import torch

from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.model.mlp import ACTIVATIONS, MLP, MLPS

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


@pytest.mark.parametrize(("mlp", "width"), [("relu2", 4 * 96), ("swiglu", 256)])
def test_the_mlps_width_is_four_times_the_models_or_as_many_parameters_gated(mlp, width):
    assert compose([f"mlp={mlp}", "model.width=96"]).model.mlp_width == width
    assert compose([f"mlp={mlp}", "model.mlp_width=50"]).model.mlp_width == 50


def test_a_norm_on_hidden_units_is_refused_where_the_mlp_has_no_place_for_it(monkeypatch):
    class Own(MLP):
        def __init__(self, *, width, mlp_width, bias, activation, mid, up_scale):
            super().__init__(width=width, mlp_width=mlp_width, bias=bias, activation=activation)

    monkeypatch.setitem(MLPS, "plain", Own)
    compose(["mlp=relu"])
    with pytest.raises(ConfigError, match="mlp: plain takes no argument up_norm"):
        compose(["mlp=relu", "placement=simplenorm"])
