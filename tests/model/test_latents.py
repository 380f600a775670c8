"""Latent attention: its norms are sites, and its sizes those of DeepSeek-V3. test_model_choices has
what goes around it."""

import math

import pytest
import torch
from written_out import linear_of, own_layernorm, own_rmsnorm, rotated, same

from transformer_norms import build_model, compose
from transformer_norms.model.constraint import QKClip
from transformer_norms.training.tensors import shard_like

TINY = ["model.width=12", "model.heads=2", "model.head_dim=6", "model.depth=2", "model.context=8"]
LATENT = [f"architecture.{text}" for text in ("q_rank=5", "kv_rank=4", "rope_dim=2", "value_dim=3")]
USUAL = [*TINY, *LATENT, "trainer.precision=fp64", "init=xavier"]


def model_of(*typed):
    keys = dict(text.split("=", 1) for text in (*USUAL, *typed))
    return build_model(compose([f"{key}={value}" for key, value in keys.items()]), 11).eval()


def by_the_paper(f, x, q_latent, kv_latent):
    """DeepSeek-V2's equations 9 to 19 and 37 to 47, head by head and token by token."""
    c_q, c = q_latent(linear_of(f.query_down, x)), kv_latent(linear_of(f.kv_down, x))
    shared, heads = rotated(linear_of(f.rope_key, x)[:, :, None])[:, :, 0], []
    for h in range(2):
        q, k, v = (
            linear_of(linear, latent).unflatten(-1, (2, -1))[:, :, h]
            for linear, latent in ((f.query, c_q), (f.key, c), (f.value, c))
        )
        q_rope, q_rest = rotated(q[:, :, None, :2])[:, :, 0], q[..., 2:]
        logits = (q_rope @ shared.mT + q_rest @ k.mT) / math.sqrt(6)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        heads.append(logits.masked_fill(later, -torch.inf).softmax(-1) @ v)
    return linear_of(f.output, torch.cat(heads, -1))


@pytest.mark.parametrize(
    ("inside", "norms"),
    [
        ("", (own_rmsnorm, own_rmsnorm)),
        (", q_latent=layernorm, kv_latent=none", (own_layernorm, same)),
        (", kv_latent=layernorm", (own_rmsnorm, own_layernorm)),
    ],
)
def test_attention_is_the_papers_with_the_norms_that_the_equation_puts_on_latents(inside, norms):
    model = model_of(f"placement.equation='x + f(norm(x){inside})'")
    f, x = model.blocks[0].attention.f, torch.randn(2, 8, 12, dtype=torch.double)
    found = f(x, model.position.angles(0, 8), None)
    torch.testing.assert_close(found, by_the_paper(f, x, *norms), rtol=0, atol=1e-12)
    gains = [hasattr(norm, "gain") for norm in (f.q_latent, f.kv_latent)]
    assert gains == [norm is not same for norm in norms]


def test_a_matrix_that_reads_a_latent_is_drawn_by_the_width_of_the_latent():
    wide = ["model.width=256", "architecture.q_rank=64", "architecture.kv_rank=36"]
    wide += ["model.head_dim=128", "architecture.value_dim=128"]
    for init, of in (("mup", lambda d: 1 / math.sqrt(2.5 * d)), ("ngpt", lambda d: d**-0.5)):
        f = model_of(*wide, f"init={init}").blocks[0].attention.f
        for name, d in (("query", 64), ("key", 36), ("value", 36), ("kv_down", 256)):
            assert getattr(f, name).weight.std().item() == pytest.approx(of(d), rel=0.05)


def test_qk_clip_scales_the_turned_part_of_a_query_by_g_and_all_else_by_its_root():
    """Kimi K2, arXiv:2507.20534: q^C and k^C by sqrt(g), q^R by g, the shared k^R not at all."""
    model = model_of()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    f = model.blocks[0].attention.f
    with torch.no_grad():
        QKClip(model, 4.0, shard_like).clip(torch.tensor([[16.0, 1.0], [1.0, 1.0]]))
    ratio = (f.query.weight / before["blocks.0.attention.f.query.weight"]).mean(-1)
    assert ratio.tolist() == pytest.approx([0.25, 0.25, *[0.5] * 4, *[1.0] * 6])
    ratio = (f.key.weight / before["blocks.0.attention.f.key.weight"]).mean(-1)
    assert ratio.tolist() == pytest.approx([*[0.5] * 4, *[1.0] * 4])
    for name in ("rope_key", "query_down", "kv_down"):
        own = f"blocks.0.attention.f.{name}.weight"
        assert torch.equal(model.get_parameter(own), before[own])
