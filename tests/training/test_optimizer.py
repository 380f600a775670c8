"""Optimizers and schedules against torch, a singular value decomposition and their formulas."""

import math
import re

import pytest
import torch
from refusing import refused

from transformer_norms import build_model, compose
from transformer_norms.names import options
from transformer_norms.training.optimizer import OPTIMIZERS, Muon, orthogonal
from transformer_norms.training.parameter_groups import groups
from transformer_norms.training.schedule import SCHEDULES


def built(*overrides):
    config = compose(["model=nano", *overrides])
    model = build_model(config, 31)
    return model, OPTIMIZERS.maker(config.optimizer)(model)


def rates_and_decays(optimizers, model):
    names = {p: name for name, p in model.named_parameters()}
    return {
        names[p]: (group["lr"], group["weight_decay"])
        for o in optimizers for group in o.param_groups for p in group["params"]
    }  # fmt: skip


@pytest.mark.parametrize("optimizer", options("optimizer"))
@pytest.mark.parametrize("extra", ["", "preset=gpt2", "architecture.tied=false qk_norm=head"])
def test_every_parameter_is_in_exactly_one_group(optimizer, extra):
    model, optimizers = built(f"optimizer={optimizer}", *extra.split())
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def group_of(name):
    """The group of a parameter, by its name alone."""
    if re.search(r"\.(pre|q|k)\.(gain|bias)$|^final\.(gain|bias)$", name):
        return "norms"
    if name in ("embedding.weight", "position.position.weight"):
        return "embeddings"
    return {"head.weight": "head"}.get(name, "biases" if name.endswith("bias") else "matrices")


@pytest.mark.parametrize("typed", [["preset=gpt2", "qk_norm=head"], ["norm=gatednorm"]])
def test_groups_tell_matrices_embeddings_head_norms_and_biases_apart(typed):
    """The matrices of a norm's gate are matrices."""
    model, _ = built(*typed, "architecture.tied=false")
    found = {name: group for group, held in groups(model).items() for name, _ in held}
    assert found == {name: group_of(name) for name, _ in model.named_parameters()}


UNTIED = "preset=gpt2", "architecture.tied=false"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("embeddings", [True, False])
def test_decay_acts_on_matrices_and_on_others_where_asked(optimizer, norms, embeddings):
    typed = [f"optimizer.decay_norms={norms}", f"optimizer.decay_embeddings={embeddings}"]
    model, optimizers = built(f"optimizer={optimizer}", *UNTIED, *map(str.lower, typed))
    decayed = {"matrices": True, "head": True, "norms": norms, "embeddings": embeddings}
    for name, (_, decay) in rates_and_decays(optimizers, model).items():
        assert decay == (0.1 if decayed.get(group_of(name)) else 0), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_factor_of_the_rate_is_of_a_group_and_leaves_the_decay_as_it_is(optimizer):
    factors = "matrices=128/fan_in embeddings=sqrt(128/d) head=0.5 norms=2*N biases=4"
    typed = [f"optimizer.lr_factor.{factor}" for factor in factors.split()]
    sizes = "model.width=64", "model.depth=3", "optimizer.lr=0.01", "optimizer.weight_decay=0.2"
    model, optimizers = built(f"optimizer={optimizer}", *UNTIED, *sizes, *typed)
    found = rates_and_decays(optimizers, model)
    expected = {
        "blocks.1.attention.f.query.weight": 2,
        "blocks.2.mlp.f.up.weight": 2,
        "blocks.2.mlp.f.down.weight": 0.5,  # fan_in is 4 * 64
        "embedding.weight": 2**0.5,
        "position.position.weight": 2**0.5,
        "head.weight": 0.5,
    }
    for name, factor in expected.items():
        # lr * weight_decay is what a step takes away: 0.01 * 0.2 for every factor.
        assert found[name] == pytest.approx((0.01 * factor, 0.2 / factor)), name
    assert found["final.gain"] == pytest.approx((0.06, 0))
    assert found["blocks.0.mlp.f.up.bias"] == pytest.approx((0.04, 0))


FACTORS = {  # what is typed, and what the init states where nobody typed it
    "init=scaled": {},
    "init=mup": {"matrices": 0.5},
    "init=mup optimizer.lr_factor.matrices=2": {"matrices": 2},
    "init=spectral": {"matrices": "128/fan_in", "head": "128/fan_in"},
    # Muon's step of a matrix is another one; the rest is AdamW's.
    "init=spectral optimizer=muon": {"head": "128/fan_in"},
    # A matrix that reads a latent has another width.
    "init=mup architecture.q_rank=16": {"matrices": "128/d"},
    "init=mup architecture.kv_rank=d/8": {"matrices": "128/d"},
    "init=mup architecture.kv_rank=16 optimizer.lr_factor.matrices=0.5": {"matrices": 0.5},
}


@pytest.mark.parametrize("typed", FACTORS)
def test_the_init_states_the_factors_that_nobody_typed(typed):
    ones = dict.fromkeys(("matrices", "embeddings", "head", "norms", "biases"), 1.0)
    found = compose(["model.width=256", "model.heads=4", *typed.split()]).optimizer.lr_factor
    assert dict(found) == {**ones, **FACTORS[typed]}


@pytest.mark.parametrize(("q", "kv"), [("48", "16"), ("3*d/8", "d/16")])
@pytest.mark.parametrize("width", [64, 256])
def test_what_reads_a_latent_has_the_rate_of_a_model_as_wide_as_the_latent(q, kv, width):
    """Tensor Programs V, table 8: Adam's rate of a matrix falls as 1/fan_in, and not at all where
    the fan_in does not grow. So one step changes what every matrix computes by as much."""
    typed = [f"model.width={width}", "architecture.rope_dim=d/16", "optimizer.lr=1e-3"]
    typed += [f"architecture.q_rank={q}", f"architecture.kv_rank={kv}"]
    model, optimizers = built("init=mup", "optimizer=adamw", *typed)
    rates = rates_and_decays(optimizers, model)
    q_rank, kv_rank = (48, 16) if q == "48" else (3 * width / 8, width / 16)
    reads = dict.fromkeys(("query_down", "kv_down", "rope_key", "output"), width)
    reads |= {"query": q_rank, "key": kv_rank, "value": kv_rank}
    for role, fan_in in reads.items():
        rate, decay = rates[f"blocks.1.attention.f.{role}.weight"]
        assert (rate, rate * decay) == pytest.approx((1e-3 * 128 / fan_in, 1e-4)), role
    f = model.blocks[0].attention.f
    before = {role: getattr(f, role).weight.detach().sum(1) for role in reads}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizers[0].step()
    for role, sums in before.items():
        change = getattr(f, role).weight.detach().sum(1) - (1 - 1e-4) * sums
        assert change.numpy() == pytest.approx(-0.128, rel=1e-3), role


@pytest.mark.parametrize("typed", ["optimizer.lr_factor.matrices=1-20/d", "init.std.key=1/(d-16)"])
def test_a_formula_that_has_no_value_for_the_latent_is_refused(typed):
    keys = ["model.width=128", "model.heads=4", typed]
    compose(keys)
    assert typed.split("=")[0] in refused(compose, [*keys, "architecture.kv_rank=16"])


WRONG = {  # a factor, and what its refusal says
    "norms=1/fan_in": ["lr_factor.norms", "fan_in", "known here are"],
    "head=0": ["lr_factor.head", "above 0"],
    "matrices=128/width": ["lr_factor.matrices", "names width"],
    "matrices='128/fan_in - 0.5'": ["lr_factor.matrices", "above 0"],  # at W_down
    "matrix=2": ["lr_factor.matrix", "matrices, embeddings, head, norms, biases"],
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_factor_is_refused_in_one_line(typed):
    keys = ["model.width=128", "model.heads=4", f"optimizer.lr_factor.{typed}"]
    line = refused(compose, keys)
    assert all(word in line for word in ["optimizer.lr_factor.", *WRONG[typed]])


@pytest.mark.parametrize("shape", [(3, 20, 20), (2, 12, 40), (1, 64, 16)])
def test_orthogonalizing_brings_every_singular_value_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    found = orthogonal(matrices)
    inner = u.mT @ found @ vh.mT  # the same singular vectors: this is diagonal
    values = torch.diagonal(inner, dim1=-2, dim2=-1)
    assert 0.5 < values.min() <= values.max() < 1.3
    assert (inner - torch.diag_embed(values)).abs().max() < 1e-3


def test_a_step_of_muon_is_its_formula():
    weight = torch.nn.Parameter(torch.randn(6, 10))
    start, total = weight.detach().clone(), torch.zeros(6, 10)
    optimizer = Muon([weight], lr=0.02, momentum=0.9, weight_decay=0.1)
    expected = start.clone()
    for step in range(3):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(step))
        weight.grad = gradient.clone()
        optimizer.step()
        total = 0.9 * total + 0.1 * gradient
        direction = orthogonal((0.1 * gradient + 0.9 * total)[None])[0]
        expected = expected * (1 - 0.02 * 0.1) - 0.02 * 0.2 * math.sqrt(10) * direction
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-6)


STEPS, WARMUP = 200, 20
CURVES = {  # of t, from 0 after the warm-up to 1 at the end
    "constant": ({}, lambda t: 1.0),
    "linear": ({"final": 0.0}, lambda t: 1 - t),
    "cosine": ({"final": 0.1}, lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * t)) / 2),
    "wsd": ({"final": 0.1, "decay": 0.2}, lambda t: min(1, 1 - 0.9 * (t - 7 / 9) / (2 / 9))),
}


@pytest.mark.parametrize("name", sorted({*SCHEDULES} & {*options("schedule")}))
def test_every_schedule_rises_linearly_to_one_and_is_then_its_own_curve(name):
    keys, curve = CURVES[name]
    rates = [SCHEDULES[name](step, STEPS, warmup=WARMUP, **keys) for step in range(STEPS)]
    assert rates[:WARMUP] == pytest.approx([(step + 1) / (WARMUP + 1) for step in range(WARMUP)])
    t = [(step - WARMUP) / (STEPS - WARMUP) for step in range(WARMUP, STEPS)]
    assert rates[WARMUP:] == pytest.approx([curve(share) for share in t])


def test_the_logits_scale_of_mup_is_none_at_its_base_width():
    for width, scale in ((128, "none"), (64, "128/d")):
        config = compose(["model.heads=4", f"model.width={width}"])
        assert (config.choices.init, config.architecture.logit_scale) == ("mup", scale)
