"""Weights are drawn by name, and a deviation is a formula. test_starts has how wide they are."""

import math

import pytest
import torch

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.formula import Formula
from transformer_norms.model.initialization import InitRule, draw, truncated


def test_a_weight_is_drawn_from_its_name_seed_and_shape_alone():
    a, again, *others = (
        draw(f"blocks.{block}.mlp.f.up.weight", (400, 100), seed)
        for block, seed in ((0, 3), (0, 3), (1, 3), (0, 4))
    )
    assert torch.equal(a, again)
    for other in others:
        correlation = torch.corrcoef(torch.stack((a.flatten(), other.flatten())))[0, 1]
        assert abs(correlation) < 0.03
    assert abs(a.mean()) < 0.03
    assert abs(a.std() - 1) < 0.03


def test_biases_start_at_zero():
    config = compose(["model=nano", "model.depth=3", "architecture.bias=true", "norm=layernorm"])
    named = build_model(config, 31).named_parameters()
    biases = [p for name, p in named if name.endswith(".bias")]
    assert len(biases) == 3 * 8 + 1
    assert all(p.abs().max() == 0 for p in biases)


def test_truncation_moves_each_draw_to_its_quantile_of_the_normal_cut_off():
    z = draw("any", (100_000,), 0)
    cut = truncated(z, 2.0)
    assert cut.abs().max() <= 2.0
    assert (cut[z.argsort()].diff() >= 0).all()
    # The variance of a normal cut at +-2: 1 - 2 * 2 * pdf(2) / (cdf(2) - cdf(-2)).
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    variance = 1 - 4 * density / math.erf(2 / math.sqrt(2))
    assert cut.var().item() == pytest.approx(variance, rel=0.01)


def test_a_rule_that_names_no_role_of_the_model_is_refused():
    with pytest.raises(ValueError, match="querry"):
        InitRule(std={"default": 0.02, "querry": 1}, truncate="none")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(2*N)**0.25", 24**0.25),
        ("1/sqrt(l)", 3**-0.5),
        ("-log(d) + 2", 2 - math.log(256)),
        ("0.02", 0.02),
        ("10 + 5 * (l % 2 == 1)", 15),
        ("N % 5 + (l != 3)", 2),
        ("-7 % 4", 1),
        ("(l >= 3) + 10 * (l > 3) + 100 * (N > l)", 101),
    ],
)
def test_a_formula_is_the_number_that_it_says(text, value):
    assert Formula(text)({"N": 12, "l": 3, "d": 256}) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "N.real", "[1]", "f(N)", "sqrt(1, 2)", "N if N else 1", "1 +", "'a'",
     "N := 3", "lambda: 1", "sqrt", "x", "1/0", "9**9**9", "(-1)**0.5", "log(0)", "1e400", "N @ N",
     "N % 0", "N // 2", "N is 3"],
)  # fmt: skip
def test_what_is_no_formula_is_refused_and_nothing_runs(text):
    with pytest.raises(ValueError):  # noqa: PT011
        Formula(text)({"N": 12})
