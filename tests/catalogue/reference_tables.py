"""What public implementations call our parameters; how to read a table: references.py."""

from references import HEADS, minus_one, over_root_width

LLAMA = {
    "model.embed_tokens": "embedding",
    "lm_head": "head",
    "model.norm": "final",
    "model.layers.{i}.self_attn.q_proj": "blocks.{i}.attention.f.query",
    "model.layers.{i}.self_attn.k_proj": "blocks.{i}.attention.f.key",
    "model.layers.{i}.self_attn.v_proj": "blocks.{i}.attention.f.value",
    "model.layers.{i}.self_attn.o_proj": "blocks.{i}.attention.f.output",
    "model.layers.{i}.mlp.gate_proj": "blocks.{i}.mlp.f.gate",
    "model.layers.{i}.mlp.up_proj": "blocks.{i}.mlp.f.up",
    "model.layers.{i}.mlp.down_proj": "blocks.{i}.mlp.f.down",
    "model.layers.{i}.input_layernorm": "blocks.{i}.attention.pre",
    "model.layers.{i}.post_attention_layernorm": "blocks.{i}.mlp.pre",
}
GPT_OSS = {**LLAMA, "model.layers.{i}.self_attn.sinks": "blocks.{i}.attention.f.attend.sinks"}
_TORCHSCALE = {
    "embed_tokens": "embedding",
    "layers.{i}.self_attn.q_proj": "blocks.{i}.attention.f.query",
    "layers.{i}.self_attn.k_proj": "blocks.{i}.attention.f.key",
    "layers.{i}.self_attn.v_proj": "blocks.{i}.attention.f.value",
    "layers.{i}.self_attn.out_proj": "blocks.{i}.attention.f.output",
    "layers.{i}.ffn.fc1": "blocks.{i}.mlp.f.up",
    "layers.{i}.ffn.fc2": "blocks.{i}.mlp.f.down",
}
TORCHSCALE_PRE = {
    **_TORCHSCALE,
    "layers.{i}.self_attn_layer_norm": "blocks.{i}.attention.pre",
    "layers.{i}.self_attn.inner_attn_ln": "blocks.{i}.attention.f.ctx",
    "layers.{i}.final_layer_norm": "blocks.{i}.mlp.pre",
    "layers.{i}.ffn.ffn_layernorm": "blocks.{i}.mlp.f.mid",
    "layer_norm": "final",
}
TORCHSCALE_POST = {
    **_TORCHSCALE,
    "layers.{i}.self_attn_layer_norm": "blocks.{i}.attention.post",
    "layers.{i}.final_layer_norm": "blocks.{i}.mlp.post",
}
_LAYERS = "attn_layers.layers"
_SUB_LAYERS = ("attention", "mlp")
X_TRANSFORMERS = {
    "token_emb.emb": "embedding",
    "post_emb_norm": "embed",
    "attn_layers.final_norm": "final",
    **{
        f"{_LAYERS}.{{{layer}}}.0.{k}": f"blocks.{{i}}.{layer}.{site}"
        for layer in _SUB_LAYERS
        for k, site in enumerate(("pre", "out", "post"))
    },
    **{
        f"{_LAYERS}.{{attention}}.1.to_{there}": f"blocks.{{i}}.attention.f.{here}"
        for there, here in {"q": "query", "k": "key", "v": "value", "out": "output"}.items()
    },
    f"{_LAYERS}.{{mlp}}.1.ff.0.0": "blocks.{i}.mlp.f.up",
    f"{_LAYERS}.{{mlp}}.1.ff.2": "blocks.{i}.mlp.f.down",
}
# The weights that x-transformers adds, by the option that adds them.
X_ATTENTION = f"{_LAYERS}.{{attention}}.1"
X_SCALENORM = {
    "attn_layers.final_norm": (over_root_width, "final"),
    **{
        f"{_LAYERS}.{{{layer}}}.0.0": (over_root_width, f"blocks.{{i}}.{layer}.pre")
        for layer in _SUB_LAYERS
    },
}
# LayerScale wraps each sub-layer
X_LAYERSCALE = {
    **{key.replace("}.1.", "}.1.fn."): ours for key, ours in X_TRANSFORMERS.items()},
    **{f"{_LAYERS}.{{{layer}}}.1": f"blocks.{{i}}.{layer}.branch" for layer in _SUB_LAYERS},
}
# The norm inside the mlp moves its second matrix on by one
X_NORMFORMER = {
    f"{X_ATTENTION}.head_scale_params": "blocks.{i}.attention.f.head_scale.gain",
    f"{_LAYERS}.{{mlp}}.1.ff.1": "blocks.{i}.mlp.f.mid",
    f"{_LAYERS}.{{mlp}}.1.ff.3": "blocks.{i}.mlp.f.down",
}
X_GATE = "blocks.{i}.attention.f.attention_gate"
X_SINKS = "blocks.{i}.attention.f.attend.sinks"
X_HEADS = {
    site: (minus_one, *(f"blocks.{{i}}.attention.f.{site}.heads.{head}" for head in range(HEADS)))
    for site in "qkv"
}
