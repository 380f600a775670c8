"""The same numbers as transformers' GPT-2 and Llama in float64: logits and every gradient."""

import pytest
import torch
import torch.nn.functional as F

from transformer_norms.building import build_model
from transformer_norms.config import compose

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = ["model.width=24", "model.depth=3", "model.heads=4", "model.context=20"]
SIZES += ["trainer.precision=fp64", "init=megatron"]
VOCABULARY = 37


def ours_of(*overrides):
    model = build_model(compose([*SIZES, *overrides]), VOCABULARY)
    torch.manual_seed(0)
    for parameter in model.parameters():  # gains and biases that a slip would show
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture
def in_float64(monkeypatch):
    """transformers casts norms, softmax and angles to float32 even in float64: lifted here."""
    to, softmax = torch.Tensor.to, F.softmax

    def lifted_to(self, *args, **kwargs):
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return to(self, *args, **kwargs)

    def lifted_softmax(x, dim=None, dtype=None, **kwargs):
        return softmax(x, dim=dim, dtype=torch.float64, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", lifted_to)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(F, "softmax", lifted_softmax)


def gpt2_weights(model):
    """transformers' name -> (our parameters, how they stand in its tensor)"""
    yield "transformer.wte.weight", ["embedding.weight"], False
    yield "transformer.wpe.weight", ["position.position.weight"], False
    yield "transformer.ln_f.weight", ["final.gain"], False
    yield "transformer.ln_f.bias", ["final.bias"], False
    for i in range(len(model.blocks)):
        here, there = f"blocks.{i}.", f"transformer.h.{i}."
        for norm, layer in (("ln_1", "attention"), ("ln_2", "mlp")):
            yield f"{there}{norm}.weight", [f"{here}{layer}.pre.gain"], False
            yield f"{there}{norm}.bias", [f"{here}{layer}.pre.bias"], False
        for name, ours in {
            "attn.c_attn": ["attention.f.query", "attention.f.key", "attention.f.value"],
            "attn.c_proj": ["attention.f.output"],
            "mlp.c_fc": ["mlp.f.up"],
            "mlp.c_proj": ["mlp.f.down"],
        }.items():
            yield f"{there}{name}.weight", [f"{here}{our}.weight" for our in ours], True
            yield f"{there}{name}.bias", [f"{here}{our}.bias" for our in ours], False


def llama_weights(model):
    yield "model.embed_tokens.weight", ["embedding.weight"], False
    yield "lm_head.weight", ["head.weight"], False
    yield "model.norm.weight", ["final.gain"], False
    for i in range(len(model.blocks)):
        here, there = f"blocks.{i}.", f"model.layers.{i}."
        yield f"{there}input_layernorm.weight", [f"{here}attention.pre.gain"], False
        yield f"{there}post_attention_layernorm.weight", [f"{here}mlp.pre.gain"], False
        for name, our in {
            "self_attn.q_proj": "attention.f.query",
            "self_attn.k_proj": "attention.f.key",
            "self_attn.v_proj": "attention.f.value",
            "self_attn.o_proj": "attention.f.output",
            "mlp.gate_proj": "mlp.f.gate",
            "mlp.up_proj": "mlp.f.up",
            "mlp.down_proj": "mlp.f.down",
        }.items():
            yield f"{there}{name}.weight", [f"{here}{our}.weight"], False


def compare(ours, theirs, weights):
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    table = list(weights(ours))
    assert sorted(name for _, names, _ in table for name in names) == sorted(mine)
    assert {name for name, _, _ in table} == set(other)
    with torch.no_grad():
        for name, names, transposed in table:
            value = torch.cat([mine[our] for our in names])
            other[name].copy_(value.T if transposed else value)
    tokens = torch.randint(VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))
    logits, reference = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, reference, rtol=1e-10, atol=1e-10)
    pull = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).double()
    (logits * pull).sum().backward()
    (reference * pull).sum().backward()
    for name, names, transposed in table:
        grad = torch.cat([mine[our].grad for our in names])
        expected = other[name].grad.T if transposed else other[name].grad
        scale = expected.abs().max().item()
        torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-10 * scale, msg=name)


def test_preset_gpt2_is_transformers_gpt2(in_float64):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=20, n_embd=24, n_layer=3, n_head=4)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    compare(ours_of("preset=gpt2"), GPT2LMHeadModel(config).double(), gpt2_weights)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_pre_rmsnorm_with_rope_and_swiglu_is_transformers_llama(in_float64, kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=20,
        rms_norm_eps=1e-6,
        attention_bias=False,
        tie_word_embeddings=False,
    )
    ours = ours_of("mlp=swiglu", "architecture.tied=false", f"model.kv_heads={kv_heads}")
    assert ours.blocks[0].mlp.f.up.weight.shape[0] == 64
    compare(ours, LlamaForCausalLM(config).double(), llama_weights)
