"""Gradients and streams before training: Xiong's laws, numbers by hand, and the command."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from analyses.init_gradients import (
    DOWN,
    OUTPUT,
    SQUARE,
    bound,
    measure_variants,
    outcome,
    read_setting,
    rows_of,
)
from combinations import combined
from scipy import stats
from untrained import streams_by_hand

from transformer_norms.analysis.rendering import figure, tables, terminal
from transformer_norms.analysis.untrained_models import draw_tokens, fit_law
from transformer_norms.config.building import build_model

DEEPEST = 16
SMALL = ("model.depth=1,2", "model.width=4", "model.context=3", "seed=5")


@cache
def under_xiong():
    """{placement: its variant}, at the width of 64"""
    typed = ["placement=pre,post,sandwich,out", f"model.depth=2,8,{DEEPEST}", "seed=0,1"]
    variants = measure_variants(read_setting(typed, xiong=True))
    return {variant.name: variant for variant in variants}


@pytest.mark.goal("Q8")
@pytest.mark.parametrize(
    ("placement", "expected", "band"),
    [
        ("post", 0, 0.15),
        ("pre", -0.5, 0.1),  # the paper's two: O(d sqrt(ln d)) and O(d sqrt(ln d / N))
        ("sandwich", -0.43, 0.1),  # these two measured, not proven
        ("out", -0.43, 0.1),
    ],
)
def test_the_last_gradient_falls_with_depth_where_the_stream_grows(placement, expected, band):
    variant = under_xiong()[placement]
    assert abs(variant.law.slope - expected) < band
    assert variant.bound == (expected if placement in ("pre", "post") else None)


def squares(placement):
    """{block: the stream's mean square after it, by seed}"""
    models = under_xiong()[placement].blocks[DEEPEST]
    return {b: models[:, b - 1, SQUARE].tolist() for b in range(1, DEEPEST + 1)}


@pytest.mark.goal("Q8")
def test_the_stream_of_pre_norm_grows_between_the_papers_bounds_at_every_depth():
    """(1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d"""
    for after, found in squares("pre").items():
        assert 1 + after / 2 <= sum(found) / len(found) <= 1 + 3 * after / 2


def test_the_stream_of_post_norm_keeps_its_size():
    assert all(found == pytest.approx([1, 1], rel=1e-4) for found in squares("post").values())


@pytest.mark.parametrize(
    ("words", "slope"),
    [
        ("placement=pre", -0.5),
        ("placement=pre norm=layernorm", -0.5),
        ("placement=pre final_norm=none", None),  # nothing divides by what grew
        ("placement=pre norm=dyt", None),
        ("placement=post", 0),
        *((f"placement={name}", None) for name in ("deepnorm", "mixln", "parallel")),
    ],
)
def test_a_bound_is_proven_for_what_is_pre_or_post_norm_and_for_nothing_else(words, slope):
    assert bound(combined(**dict(word.split("=") for word in words.split()))) == slope


def test_xiongs_models_begin_with_the_papers_deviations_whatever_a_placement_brings():
    setting = read_setting(["placement=deepnorm", "model.depth=1,2", "seed=0"], xiong=True)
    model = build_model(setting.variants["deepnorm"][1], 64)
    named = {name.removesuffix(".weight"): p for name, p in model.named_parameters()}
    zero = {name for name, weight in named.items() if not weight.any()}
    assert zero == {f"blocks.{i}.attention.f.{name}" for i in (0, 1) for name in ("query", "key")}
    for name, weight in named.items():
        if weight.ndim == 2 and name not in zero:
            assert weight.shape == (64, 64)
            wanted = 1 if name == "embedding" else 1 / 8  # 1/sqrt(d)
            assert weight.std().item() == pytest.approx(wanted, rel=0.05)


def by_differences(model, batch, weight):
    """The length of the loss's gradient for one matrix, element by element."""

    def loss(place, step):
        weight.view(-1)[place] += step
        logits = model(batch[:, :-1]).flatten(0, 1)
        weight.view(-1)[place] -= step
        return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten()).item()

    step, places = 1e-5, range(weight.numel())
    return math.hypot(*((loss(n, step) - loss(n, -step)) / (2 * step) for n in places))


@pytest.mark.parametrize("placement", ["pre", "post", "parallel", "residual_dual"])
@torch.no_grad()
def test_gradients_are_differences_of_the_loss_and_streams_those_between_blocks(placement):
    setting = read_setting([f"placement={placement}", *SMALL], xiong=True)
    with torch.enable_grad():
        (variant,) = measure_variants(setting)
    shapes = {depth: numbers.shape for depth, numbers in variant.blocks.items()}
    assert shapes == {1: (1, 1, 3), 2: (1, 2, 3)}
    for config in setting.variants[placement]:
        model, batch = build_model(config, 64).double(), draw_tokens(config)
        streams = [streams_by_hand(SimpleNamespace(model=model), tokens)[0] for tokens in batch]
        for i, block in enumerate(model.blocks):
            found = variant.blocks[config.model.depth][0, i]
            after = [each[i + 1] for each in streams]
            x = [each[0] if isinstance(each, list) else each for each in after]
            assert found[SQUARE] == pytest.approx(np.square(x).mean(), rel=1e-12)
            for f, column in ((block.mlp.f.down, DOWN), (block.attention.f.output, OUTPUT)):
                wanted = by_differences(model, batch, f.weight)
                assert found[column] == pytest.approx(wanted, rel=1e-6)


def test_a_law_is_least_squares_of_each_seed_and_its_interval_is_students():
    depths, values = (2, 3, 7, 20), np.random.default_rng(0).uniform(0.1, 3, (4, 3))
    x, y = np.log(depths), np.log(values)
    lines = [stats.linregress(x, seed) for seed in y.T]
    slopes, intercepts = ([getattr(line, key) for line in lines] for key in ("slope", "intercept"))
    found = fit_law(depths, values)
    assert found.slopes == pytest.approx(slopes)
    assert found.slope == pytest.approx(np.mean(slopes))
    spread = np.std(slopes, ddof=1) / math.sqrt(3)
    assert found.half == pytest.approx(stats.t.ppf(0.975, 2) * spread)
    line = np.mean(intercepts) + found.slope * x
    assert [found(depth) for depth in depths] == pytest.approx(np.exp(line))
    assert found.misfit == pytest.approx(np.exp(abs(y.mean(1) - line).max()))


def test_one_seed_has_no_interval_and_what_has_no_logarithm_no_law():
    assert fit_law((2, 4), np.array([[1.0], [2.0]])).half is None
    for value in (0.0, math.inf, math.nan):
        assert fit_law((2, 4), np.array([[1.0], [value]])) is None


def setting_of(*typed, **options):
    return read_setting([*typed, "model.depth=2,3", "seed=0", "model.width=8"], **options)


def outcome_of(setting):
    return outcome(setting, rows_of(measure_variants(setting)))


def test_the_table_has_slopes_bounds_and_what_has_neither():
    made = outcome_of(setting_of("placement=pre,rezero,residual_dual", xiong=True))
    (table,) = tables(made)
    rows = {name: cells for name, *cells in table.cells}
    assert rows["pre"][0] == "N^-1/2"
    assert rows["pre"][-1].endswith(" (2.5 to 5.5)")  # 1 + N/2, 1 + 3N/2
    assert rows["rezero"][:-1] == ["", "none", "", "0", "0"]
    assert "two streams of residual_dual, x is measured" in terminal(made).replace("\n", " ")
    assert len(made.rows) == 3 * (2 + 3)  # variants, blocks
    assert {row["down"] for row in made.rows if row["model"] == "rezero"} == {0}
    assert all(key in made.notices[0] for key in ("mlp=relu", "model.mlp_width=model.width"))
    drawn = figure(made).decode()
    words = ("pre", "rezero", "slope -1/2", "slope 0", "bounds of pre")
    assert [word for word in words if word not in drawn] == []


def test_without_xiong_the_models_are_the_configs_own_and_nothing_is_said_to_be_proven():
    setting = setting_of("norm=rmsnorm,layernorm", "placement=pre")
    assert "-1/2" not in terminal(outcome_of(setting))
    assert [*setting.variants] == ["rmsnorm", "layernorm"]
    config = setting.variants["layernorm"][0]
    assert (config.choices.init, config.mlp.activation) == ("mup", "relu2")
