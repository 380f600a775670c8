"""What each family calls our parameters."""

from transformer_norms.hf.layouts import AFTER_TWO, BY_HEAD, COLUMNS, HEADS, STACKED
from transformer_norms.hf.weights import Line, lines

_QUERY_KEY_VALUE = [f"blocks.{{i}}.attention.f.{name}" for name in ("query", "key", "value")]
_ENDS = {"model.embed_tokens": "embedding", "model.norm": "final", "lm_head": "head"}
_ATTENTION = {
    "model.layers.{i}.self_attn.q_proj": "blocks.{i}.attention.f.query",
    "model.layers.{i}.self_attn.k_proj": "blocks.{i}.attention.f.key",
    "model.layers.{i}.self_attn.v_proj": "blocks.{i}.attention.f.value",
    "model.layers.{i}.self_attn.o_proj": "blocks.{i}.attention.f.output",
}
_MLP = {
    "model.layers.{i}.mlp.gate_proj": "blocks.{i}.mlp.f.gate",
    "model.layers.{i}.mlp.up_proj": "blocks.{i}.mlp.f.up",
    "model.layers.{i}.mlp.down_proj": "blocks.{i}.mlp.f.down",
}
_BASE = {**_ENDS, **_ATTENTION, **_MLP}
_PRE = {
    "model.layers.{i}.input_layernorm": "blocks.{i}.attention.pre",
    "model.layers.{i}.post_attention_layernorm": "blocks.{i}.mlp.pre",
}
_OUT = {
    "model.layers.{i}.post_attention_layernorm": "blocks.{i}.attention.out",
    "model.layers.{i}.post_feedforward_layernorm": "blocks.{i}.mlp.out",
}
_SANDWICH = {
    **_OUT,
    "model.layers.{i}.input_layernorm": "blocks.{i}.attention.pre",
    "model.layers.{i}.pre_feedforward_layernorm": "blocks.{i}.mlp.pre",
}
_QK = {
    "model.layers.{i}.self_attn.q_norm": "blocks.{i}.attention.f.q",
    "model.layers.{i}.self_attn.k_norm": "blocks.{i}.attention.f.k",
}
LLAMA = lines(_BASE, _PRE)
QWEN3 = lines(_BASE, _PRE, _QK)
OLMO2 = lines(_BASE, _OUT, {theirs: f"{ours}.norm" for theirs, ours in _QK.items()})
EXAONE4 = lines(_BASE, _OUT, _QK)
SANDWICH = lines(_BASE, _SANDWICH)
GEMMA3 = lines(_BASE, _SANDWICH, _QK)
GLM4 = (
    *lines(
        _ENDS,
        _ATTENTION,
        {
            "model.layers.{i}.input_layernorm": "blocks.{i}.attention.pre",
            "model.layers.{i}.post_self_attn_layernorm": "blocks.{i}.attention.out",
            "model.layers.{i}.post_attention_layernorm": "blocks.{i}.mlp.pre",
            "model.layers.{i}.post_mlp_layernorm": "blocks.{i}.mlp.out",
            "model.layers.{i}.mlp.down_proj": "blocks.{i}.mlp.f.down",
        },
    ),
    Line(
        "model.layers.{i}.mlp.gate_up_proj",
        ["blocks.{i}.mlp.f.gate", "blocks.{i}.mlp.f.up"],
        STACKED,
    ),
)
COHERE = (
    *lines(_BASE, {"model.layers.{i}.input_layernorm": "blocks.{i}.pre"}),
    *(Line(theirs, [f"{ours}.heads.{{h}}"], HEADS) for theirs, ours in _QK.items()),
)
_GPT = (
    Line("transformer.h.{i}.attn.c_attn", _QUERY_KEY_VALUE, COLUMNS),
    Line("transformer.h.{i}.attn.c_proj", ["blocks.{i}.attention.f.output"], COLUMNS),
    Line("transformer.h.{i}.mlp.c_fc", ["blocks.{i}.mlp.f.up"], COLUMNS),
    Line("transformer.h.{i}.mlp.c_proj", ["blocks.{i}.mlp.f.down"], COLUMNS),
)
GPT2 = (
    *_GPT,
    *lines(
        {
            "transformer.wte": "embedding",
            "transformer.wpe": "position.position",
            "transformer.h.{i}.ln_1": "blocks.{i}.attention.pre",
            "transformer.h.{i}.ln_2": "blocks.{i}.mlp.pre",
            "transformer.ln_f": "final",
            "lm_head": "head",
        }
    ),
)
GPT1 = (
    *_GPT,
    *lines(
        {
            "transformer.tokens_embed": "embedding",
            "transformer.positions_embed": "position.position",
            "transformer.h.{i}.ln_1": "blocks.{i}.attention.post",
            "transformer.h.{i}.ln_2": "blocks.{i}.mlp.post",
            "lm_head": "head",
        }
    ),
)
GPTJ = lines(
    {
        "transformer.wte": "embedding",
        "transformer.h.{i}.ln_1": "blocks.{i}.pre",
        "transformer.h.{i}.attn.q_proj": "blocks.{i}.attention.f.query",
        "transformer.h.{i}.attn.k_proj": "blocks.{i}.attention.f.key",
        "transformer.h.{i}.attn.v_proj": "blocks.{i}.attention.f.value",
        "transformer.h.{i}.attn.out_proj": "blocks.{i}.attention.f.output",
        "transformer.h.{i}.mlp.fc_in": "blocks.{i}.mlp.f.up",
        "transformer.h.{i}.mlp.fc_out": "blocks.{i}.mlp.f.down",
        "transformer.ln_f": "final",
        "lm_head": "head",
    }
)
GPT_NEOX = (
    Line("gpt_neox.layers.{i}.attention.query_key_value", _QUERY_KEY_VALUE, BY_HEAD),
    *lines(
        {
            "gpt_neox.embed_in": "embedding",
            "gpt_neox.layers.{i}.input_layernorm": "blocks.{i}.attention.pre",
            "gpt_neox.layers.{i}.post_attention_layernorm": "blocks.{i}.mlp.pre",
            "gpt_neox.layers.{i}.attention.dense": "blocks.{i}.attention.f.output",
            "gpt_neox.layers.{i}.mlp.dense_h_to_4h": "blocks.{i}.mlp.f.up",
            "gpt_neox.layers.{i}.mlp.dense_4h_to_h": "blocks.{i}.mlp.f.down",
            "gpt_neox.final_layer_norm": "final",
            "lm_head": "head",
        }
    ),
)
_OPT = "model.decoder.layers.{i}"
OPT = (
    Line("model.decoder.embed_positions", ["position.position"], AFTER_TWO),
    *lines(
        {
            "model.decoder.embed_tokens": "embedding",
            f"{_OPT}.self_attn.q_proj": "blocks.{i}.attention.f.query",
            f"{_OPT}.self_attn.k_proj": "blocks.{i}.attention.f.key",
            f"{_OPT}.self_attn.v_proj": "blocks.{i}.attention.f.value",
            f"{_OPT}.self_attn.out_proj": "blocks.{i}.attention.f.output",
            f"{_OPT}.fc1": "blocks.{i}.mlp.f.up",
            f"{_OPT}.fc2": "blocks.{i}.mlp.f.down",
            "model.decoder.final_layer_norm": "final",
            "lm_head": "head",
        },
        # do_layer_norm_before, or not: a block has one pair of these
        {
            f"{_OPT}.self_attn_layer_norm": "blocks.{i}.attention.pre",
            f"{_OPT}.final_layer_norm": "blocks.{i}.mlp.pre",
        },
        {
            f"{_OPT}.self_attn_layer_norm": "blocks.{i}.attention.post",
            f"{_OPT}.final_layer_norm": "blocks.{i}.mlp.post",
        },
    ),
)
