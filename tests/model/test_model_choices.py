"""Choices of what a token and a block read: each looks back only, and computes from a cache and in
blocks that run again what it computes at once, or is refused in one line. Smear and keys of an
earlier block, which are such choices, against their formulas."""

import re

import pytest
import torch
from generating import from_a_cache
from tiny_models import drawn, same_grads, some_tokens, with_gradients

from transformer_norms import Block, ConfigError, build_model, compose
from transformer_norms.model.coefficient import Smear
from transformer_norms.training.causality import lookahead
from transformer_norms.training.graphs.recomputation import recompute

TIME, VOCABULARY, CHANNELS = 9, 31, 5
SMALL = ["model=nano", "model.depth=3", f"model.context={TIME}", "init=megatron"]
SMALL += ["trainer.precision=fp64", "trainer.device=cpu"]
SHARED = "architecture.kv_from_block=[0,1,0]"
OF_KEYS = ("key", "value", "rope_key", "kv_down", "kv_latent", "k", "v")
INPUTS = "placement.connection.inputs=5"
LATENTS = "architecture.kv_rank=4 architecture.rope_dim=2 architecture.value_dim=3 model.head_dim=6"
GATED = "architecture.attention_gate=elementwise"
CHOICES = [
    "architecture.smear=4 embed=norm",
    "architecture.rope_base=[100,0,50] architecture.rope_interleaved=true",
    "model.kv_heads=2 qk_norm=head v_norm=rmsnorm_np architecture.values_from_keys=[1,0,1]",
    f"{SHARED} qk_norm=head v_norm=head model.kv_heads=2",
    f"{SHARED} {LATENTS} architecture.bias=true",
    f"{SHARED} architecture.value_residual=0.5 architecture.values_from_keys=1",
    f"{SHARED} architecture.sliding_window=3*(i%2) architecture.rope_base=100**(1+i%2) "
    "model.head_dim=8*(1+i%2)",
    "model.head_dim=d/H*(1+(i==1)) model.kv_heads=[H/2,H/4,4] qk_norm=head",
    "attention=sinks model.kv_heads=2",
    "architecture.value_residual=0.5 architecture.value_embedding=3*((N-1-i)%2==0)",
    f"{LATENTS} {GATED} norm=layernorm placement=parallel",
    f"{LATENTS} {GATED} position=alibi placement=siamese",
    f"{LATENTS} {GATED} attention=sinks placement=hyper_connections",
    f"{LATENTS} {GATED} architecture.sliding_window=3 placement=hybrid architecture.q_rank=5",
    f"placement=gemma4_inputs {INPUTS}",
    f"placement=gemma3n_inputs {INPUTS}",
]


def words_of(typed):
    return re.split(r" (?=[\w.]+=)", typed)


def model_of(typed):
    return build_model(compose([*SMALL, *words_of(typed)]), VOCABULARY)


def tokens_of():
    return some_tokens(2, TIME, vocabulary=VOCABULARY, seed=1)


def moved(module):
    """The same module in float64, with every parameter elsewhere than at its start."""
    for seed, parameter in enumerate(module.double().parameters()):
        parameter.data += 0.3 * drawn(*parameter.shape, seed=seed)
    return module


@pytest.mark.parametrize("typed", CHOICES)
def test_a_model_looks_back_only_and_computes_from_a_cache_what_it_computes_at_once(typed):
    model, tokens = moved(model_of(typed)).eval(), tokens_of()
    assert lookahead(model, VOCABULARY) == 0
    expected = model(tokens)
    assert not torch.equal(expected, model(tokens.flip(1)).flip(1))
    for pieces in ([1] * TIME, [4, 1, 4], [TIME]):
        found, cache = from_a_cache(model, tokens, pieces)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        for one, own in zip(cache, model.config.blocks, strict=True):
            kept = own.kv_from_block == own.i  # else the cache of the source is enough
            assert one.length == TIME * kept
            assert not kept or one.k.shape[2:] == (own.sizes.kv_heads, own.sizes.head_dim)
    plain, model.through = with_gradients(expected, [*model.parameters()]), recompute
    again = with_gradients(model(tokens), [*model.parameters()])
    torch.testing.assert_close(again, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("typed", [typed for typed in CHOICES if SHARED in typed])
def test_attention_reads_the_keys_and_values_of_its_source(typed):
    model, plain, met = model_of(typed), model_of(typed.removeprefix(f"{SHARED} ")), []
    for block in model.blocks:
        block.attention.f.attend.register_forward_pre_hook(lambda attend, given: met.append(given))
    model(tokens_of())
    for i, source in enumerate((0, 1, 0)):
        assert all(torch.equal(met[i][at], met[source][at]) for at in (1, 2))
        of_block = (m.blocks[i].attention.f.named_parameters() for m in (model, plain))
        own, wanted = ({name for name, _ in named} for named in of_block)
        absent = {name for name in wanted if name.split(".")[0] in OF_KEYS}
        assert own == (wanted if i == source else wanted - absent)
    assert not torch.equal(met[0][1], met[1][1])


def test_each_token_has_the_one_before_times_a_gate_of_its_own_channels():
    smear = Smear(CHANNELS)
    torch.nn.init.zeros_(smear.smear_gate.weight)  # the init has not drawn it
    moved(smear)
    x, rows = drawn(2, TIME, 16).requires_grad_(), []
    for t in range(TIME):
        logit = sum(smear.smear_gate.weight[0, c] * x[:, t, c] for c in range(CHANNELS))
        gate = smear.scale / (1 + (-logit).exp())
        rows.append(x[:, t] + (gate[:, None] * x[:, t - 1] if t else 0))
    expected, learned = torch.stack(rows, 1), [x, *smear.parameters()]
    same_grads(smear(x), expected, learned, rtol=1e-13, atol=1e-13)


def test_smear_starts_as_nothing():
    plain, smeared = model_of("seed=0"), model_of("architecture.smear=4")
    assert torch.equal(plain(tokens_of()), smeared(tokens_of()))
    extra = dict(smeared.named_parameters()).keys() - dict(plain.named_parameters()).keys()
    assert extra == {"smear.smear_gate.weight", "smear.scale"}


def test_a_block_alone_has_no_earlier_block_and_no_tokens():
    own = ["architecture.kv_from_block=0"]
    with pytest.raises(ConfigError, match="kv_from_block: 0 is not allowed in a block alone"):
        Block("x + f(norm(x))", 64, 4, depth=2, index=1, settings=own)
    with pytest.raises(ConfigError, match="=gemma4_inputs is not allowed in a block alone"):
        Block("gemma4_inputs", width=16, heads=2)
