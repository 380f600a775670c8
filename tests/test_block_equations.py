"""Every placement computes the equation that its YAML states, and the run's norm its formula."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from transformer_norms.building import build_model
from transformer_norms.config import compose as composed
from transformer_norms.config import options
from transformer_norms.norms import NORMS

SMALL = ["model=tiny", "model.width=16", "model.heads=2", "model.context=12"]
SMALL += ["trainer.precision=fp64"]


@cache
def config_of(*overrides):
    return composed(overrides)


def model_of(*overrides, init="megatron"):
    """A float64 model whose norms have gains that differ from 1 and are the same everywhere."""
    model = build_model(config_of(*SMALL, f"init={init}", *overrides), vocab_size=11)
    torch.manual_seed(1)
    gain, bias = torch.randn(16).double(), torch.randn(16).double()
    for module in model.modules():
        if isinstance(module, tuple(NORMS[n] for n in ("layernorm", "rmsnorm"))):
            width = len(module.gain)
            module.gain.data = gain[:width].clone()
            if getattr(module, "bias", None) is not None:
                module.bias.data = bias[:width].clone()
    return model, gain, bias


def written_out(name, gain, bias):
    """The norm's formula, from its paper, on the last axis."""

    def layernorm(x, shift=True):
        mean = sum(x[..., j] for j in range(x.shape[-1])) / x.shape[-1]
        centred = x - mean[..., None]
        variance = (centred * centred).sum(-1) / x.shape[-1]
        y = centred / (variance[..., None] + 1e-5).sqrt() * gain[: x.shape[-1]]
        return y + bias[: x.shape[-1]] if shift else y

    def rmsnorm(x):
        square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        return gain[: x.shape[-1]] * x / (square + 1e-6).sqrt()

    return {
        "layernorm": layernorm,
        "layernorm_nobias": lambda x: layernorm(x, shift=False),
        "rmsnorm": rmsnorm,
        "none": lambda x: x,
    }[name]


@pytest.mark.parametrize("norm", options("norm"))
@pytest.mark.parametrize("placement", options("placement"))
def test_every_placement_computes_its_stated_equation(placement, norm):
    model, gain, bias = model_of(f"placement={placement}", f"norm={norm}")
    equation = config_of(f"placement={placement}").placement.equation
    x = torch.randn(2, 12, 16, dtype=torch.double)
    angles = model.position.angles(0, 12)
    for block in model.blocks:
        for name in ("attention", "mlp"):
            sub_layer = getattr(block, name)
            scope = {"x": x, "norm": written_out(norm, gain, bias)}
            scope["f"] = lambda h, f=sub_layer.f: f(h, angles, None)
            expected = eval(equation[name], scope)
            torch.testing.assert_close(sub_layer(x, x, angles, None), expected, rtol=0, atol=1e-12)


def rotated(x, base=10_000):
    """Rotary positions by complex numbers: pairs (j, j + half), turned by t / base^(2j/r)."""
    half = x.shape[-1] // 2
    turned = torch.empty_like(x)
    for t in range(x.shape[1]):
        for j in range(half):
            frequency = 1 / torch.tensor(float(base)) ** (j / half)  # in float32, as published code
            angle = t * frequency.double()
            pair = torch.complex(x[:, t, :, j], x[:, t, :, j + half])
            pair = pair * torch.polar(torch.ones(()).double(), angle)
            turned[:, t, :, j], turned[:, t, :, j + half] = pair.real, pair.imag
    return turned


def attention_written_out(f, x, q_norm, k_norm, v_norm):
    """softmax(q k^T / sqrt(dh)) v over the past, head by head and token by token."""
    heads = lambda w: (x @ w.weight.T).unflatten(-1, (2, 8))  # noqa: E731
    q, k, v = rotated(q_norm(heads(f.query))), rotated(k_norm(heads(f.key))), v_norm(heads(f.value))
    context = torch.zeros_like(q)
    for t in range(x.shape[1]):
        for h in range(2):
            scores = (q[:, t, h, None] * k[:, : t + 1, h]).sum(-1) / math.sqrt(8)
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            context[:, t, h] = (weights[..., None] * v[:, : t + 1, h]).sum(1)
    return context.flatten(2) @ f.output.weight.T


def test_hybrid_is_the_papers_equations_with_qkv_norm_written_out():
    """HybridNorm, arXiv:2503.04598: Y = MHA_qkv(X) + X; X' = FFN(Norm(Y)) + Norm(Y)."""
    model, gain, bias = model_of("placement=hybrid")
    norm = written_out("rmsnorm", gain, bias)
    x = torch.randn(2, 12, 16, dtype=torch.double)
    block = model.blocks[1]
    f, mlp = block.attention.f, block.mlp.f
    y = attention_written_out(f, x, norm, norm, norm) + x
    z = norm(y)
    hidden = torch.relu(z @ mlp.up.weight.T) ** 2
    expected = hidden @ mlp.down.weight.T + z
    found = block(x, model.position.angles(0, 12), None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert model.final is not None
    assert [n for n, _ in model.named_parameters() if n.startswith("final")] == ["final.gain"]


@pytest.mark.parametrize("qk_norm", ["none", "head", "full"])
def test_attention_is_the_softmax_written_out_with_its_query_and_key_norms(qk_norm):
    model, gain, bias = model_of(f"qk_norm={qk_norm}")
    one_head = written_out("rmsnorm", gain, bias)
    norm = {
        "none": lambda q: q,
        "head": one_head,
        "full": lambda q: one_head(q.flatten(2)).unflatten(-1, (2, 8)),
    }[qk_norm]
    x = torch.randn(2, 12, 16, dtype=torch.double)
    f = model.blocks[0].attention.f
    expected = attention_written_out(f, x, norm, norm, lambda v: v)
    found = f(x, model.position.angles(0, 12), None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("placement", options("placement"))
def test_an_empty_site_is_absent_from_the_module_tree(placement):
    model = build_model(config_of(*SMALL, "init=megatron", f"placement={placement}"), vocab_size=11)
    sites = {"pre", "q", "k", "v", "head_norm", "head_scale", "ctx", "mid", "out", "post"}
    plan = config_of(f"placement={placement}").placement
    named = {"attention": set(plan.get("attention", {})), "mlp": set(plan.get("mlp", {}))}
    for block in model.blocks:
        for name in ("attention", "mlp"):
            sub_layer = getattr(block, name)
            there = set(dict(sub_layer.named_children())) | set(dict(sub_layer.f.named_children()))
            assert there & sites == named[name] | set(plan.get("both", {}))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", options("placement"))
def test_later_tokens_move_earlier_logits_by_exactly_nothing(placement, norm):
    model, *_ = model_of(f"placement={placement}", f"norm={norm}", init="gpt2")
    tokens = torch.randint(11, (2, 12))
    logits = model(tokens)
    for t in (3, 10):
        changed = tokens.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % 11
        moved = model(changed)
        assert torch.equal(moved[:, : t + 1], logits[:, : t + 1])
        assert not torch.equal(moved[:, t + 1 :], logits[:, t + 1 :])


def test_a_leak_from_the_future_is_caught():
    """The positive control of the test above: a norm over time instead of features."""
    model, *_ = model_of()

    class Leaky(nn.Module):
        def forward(self, x):
            return x / (x.square().mean((1, 2), keepdim=True) + 1e-6).sqrt()

    model.blocks[0].mlp.pre = Leaky()
    tokens = torch.randint(11, (2, 12))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    assert not torch.equal(model(tokens)[:, :-1], model(changed)[:, :-1])


@pytest.mark.parametrize("placement", options("placement"))
@pytest.mark.parametrize("position", options("position"))
def test_generating_from_a_cache_gives_the_logits_of_the_full_forward(placement, position):
    model, *_ = model_of(f"placement={placement}", f"position={position}", "model.kv_heads=1")
    tokens = torch.randint(11, (2, 12))
    expected = model(tokens)
    cache, found = model.new_cache(), []
    for part in tokens.split([5, 1, 1, 3, 2], dim=1):
        found.append(model(part, cache))
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=0, atol=1e-12)


def test_more_tokens_than_the_context_are_refused():
    model, *_ = model_of()
    with pytest.raises(ValueError, match="13 tokens are more than the context of 12"):
        model(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize("cap", ["architecture.attention_cap=0.5", "architecture.logit_cap=0.5"])
def test_a_cap_bounds_what_it_names_and_a_high_one_changes_nothing(cap):
    tokens = torch.randint(11, (2, 12))
    plain, low, high = (model_of(*extra)[0] for extra in ([], [cap], [cap.replace("0.5", "1e4")]))
    torch.testing.assert_close(high(tokens), plain(tokens), rtol=1e-6, atol=1e-7)
    assert not torch.allclose(low(tokens), plain(tokens), atol=1e-4)
    if "logit" in cap:
        assert low(tokens).abs().max() <= 0.5


def test_the_embedding_scale_of_post_is_the_root_of_the_width():
    post, pre = model_of("placement=post")[0], model_of("placement=pre")[0]
    tokens = torch.tensor([[1, 2]])
    assert torch.allclose(post.scale(post.embedding(tokens)), 4 * pre.embedding(tokens))
