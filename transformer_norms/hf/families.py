"""The families of transformers that are ours too: what their configs say, what tensors are called.

A model belongs to the first family that can say all its facts; those of one kind stand together.
"""

from typing import Any

from transformer_norms.hf.clauses import (
    Activation,
    Always,
    Biases,
    Cap,
    Choice,
    Equal,
    HeadDim,
    Inner,
    Never,
    QueryScalar,
    RootWidth,
    Same,
)
from transformer_norms.hf.family import Family
from transformer_norms.hf.rotation import (
    BasePerKind,
    NoWindow,
    Rotary,
    RotaryDimensions,
    RotatedWhereSliding,
)
from transformer_norms.hf.tables import (
    COHERE,
    EXAONE4,
    GEMMA3,
    GLM4,
    GPT1,
    GPT2,
    GPT_NEOX,
    GPTJ,
    LLAMA,
    OLMO2,
    OPT,
    QWEN3,
    SANDWICH,
)


def norm(name: str, **facts: Any) -> Always:
    return Always({"norm": name, **facts})


TIED = {"vocab_size": "vocab_size", "tie_word_embeddings": "architecture.tied"}
OPENAI = Same(
    {
        **TIED,
        "n_embd": "model.width",
        "n_layer": "model.depth",
        "n_head": "model.heads",
        "n_positions": "model.context",
        "layer_norm_epsilon": "norm.eps",
    }
)
FEW = {
    **TIED,
    "hidden_size": "model.width",
    "num_hidden_layers": "model.depth",
    "num_attention_heads": "model.heads",
    "max_position_embeddings": "model.context",
}
SIZES = Same({**FEW, "intermediate_size": "model.mlp_width"})
GROUPS = Same({"num_key_value_heads": "model.kv_heads"})
HEADS = Same({"head_dim": "model.head_dim"})
RMS_EPS, LN_EPS = Same({"rms_norm_eps": "norm.eps"}), Same({"layer_norm_eps": "norm.eps"})
PRE, POST = {"placement": "pre"}, {"placement": "post", "final_norm": "none"}
SILU, GEMMA = Activation("hidden_act", "gated"), Activation("hidden_activation", "gated")
ATTENTION, MLP = "query key value output", "up gate down"
LEARNED = {"position": "learned"}
INTERLEAVED = {"architecture.rope_interleaved": True}
OPENAI_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
OPENAI_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
ATTENTION_BIAS = Biases({"attention_bias": ATTENTION})

FAMILIES = (
    Family(
        "gpt2",
        (
            norm("layernorm", **PRE, **LEARNED),
            OPENAI,
            Inner("n_inner"),
            Activation("activation_function", "plain"),
            Biases(always=f"{ATTENTION} up down"),
            Choice("scale_attn_weights", {False: {"architecture.attention_scale": 1.0}, True: {}}),
            Never(("scale_attn_by_inverse_layer_idx", "add_cross_attention")),
        ),
        GPT2,
        OPENAI_DROPOUTS,
    ),
    Family(
        "openai-gpt",
        (
            norm("layernorm", **POST, **LEARNED),
            OPENAI,
            Inner(),
            Activation("afn", "plain", OPENAI_ACTIVATIONS),
            Biases(always=f"{ATTENTION} up down"),
        ),
        GPT1,
        OPENAI_DROPOUTS,
    ),
    Family(
        "opt",
        (
            Always({"norm.eps": 1e-5, **LEARNED}),
            Same({**FEW, "ffn_dim": "model.mlp_width"}),
            Choice("do_layer_norm_before", {True: PRE, False: POST}),
            Choice(
                "layer_norm_elementwise_affine",
                {True: {"norm": "layernorm"}, False: {"norm": "layernorm_np"}},
            ),
            Activation("activation_function", "plain"),
            Biases({"enable_bias": f"{ATTENTION} up down"}),
            Equal("word_embed_proj_dim", "hidden_size"),
            Never(("_remove_final_layer_norm",)),
        ),
        OPT,
    ),
    Family(
        "llama",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HEADS, RMS_EPS, SILU, Rotary()),
            Biases({"attention_bias": ATTENTION, "mlp_bias": MLP}),
        ),
        LLAMA,
    ),
    Family(
        "mistral",
        (norm("rmsnorm", **PRE), SIZES, GROUPS, HEADS, RMS_EPS, SILU, Rotary(), NoWindow()),
        LLAMA,
    ),
    Family(
        "qwen2",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HeadDim(), RMS_EPS, SILU, Rotary(), NoWindow()),
            Biases(always="query key value"),
        ),
        LLAMA,
    ),
    Family(
        "qwen3",
        (
            norm("rmsnorm", **PRE, qk_norm="head"),
            *(SIZES, GROUPS, HEADS, RMS_EPS, SILU, Rotary(), NoWindow()),
            ATTENTION_BIAS,
        ),
        QWEN3,
    ),
    Family(
        "olmo",
        (
            norm("layernorm_np", **PRE, **{"norm.eps": 1e-5}),
            *(SIZES, GROUPS, HeadDim(), SILU, Rotary(), ATTENTION_BIAS),
            Never(("clip_qkv",)),
        ),
        LLAMA,
    ),
    Family(
        "olmo2",
        (
            norm("rmsnorm", placement="out", qk_norm="full"),
            *(SIZES, GROUPS, HeadDim(), RMS_EPS, SILU, Rotary(), ATTENTION_BIAS),
        ),
        OLMO2,
    ),
    Family(
        "exaone4",
        (
            norm("rmsnorm", placement="out", qk_norm="head"),
            *(SIZES, GROUPS, HeadDim(), RMS_EPS, SILU),
            *(RotatedWhereSliding(), NoWindow(written=False)),
        ),
        EXAONE4,
    ),
    Family(
        "gemma2",
        (
            norm("rmsnorm_1p", placement="sandwich"),
            *(SIZES, GROUPS, HEADS, RMS_EPS, GEMMA, Rotary(), NoWindow(number=True)),
            *(ATTENTION_BIAS, RootWidth(), QueryScalar()),
            Cap("attn_logit_softcapping", "architecture.attention_cap"),
            Cap("final_logit_softcapping", "architecture.logit_cap"),
            Never(("use_bidirectional_attention",)),
        ),
        SANDWICH,
    ),
    Family(
        "gemma3_text",
        (
            norm("rmsnorm_1p", placement="sandwich", qk_norm="head"),
            *(SIZES, GROUPS, HEADS, RMS_EPS, GEMMA, BasePerKind(), NoWindow(number=True)),
            *(ATTENTION_BIAS, RootWidth(), QueryScalar()),
            Cap("final_logit_softcapping", "architecture.logit_cap"),
            Never(("use_bidirectional_attention",)),
        ),
        GEMMA3,
    ),
    Family(
        "glm4",
        (
            norm("rmsnorm", placement="sandwich", **INTERLEAVED),
            *(SIZES, GROUPS, HEADS, RMS_EPS, SILU, Rotary(partial=True)),
            Biases({"attention_bias": "query key value"}),
        ),
        GLM4,
    ),
    Family(
        "gpt_neox",
        (
            norm("layernorm"),
            *(SIZES, LN_EPS, Activation("hidden_act", "plain"), Rotary(partial=True)),
            Choice(
                "use_parallel_residual", {True: {"placement": "parallel_two_norms"}, False: PRE}
            ),
            Biases({"attention_bias": ATTENTION}, always="up down"),
        ),
        GPT_NEOX,
        ("attention_dropout", "hidden_dropout"),
    ),
    Family(
        "gptj",
        (
            norm("layernorm", placement="parallel", **INTERLEAVED),
            *(OPENAI, Inner("n_inner"), RotaryDimensions()),
            Activation("activation_function", "plain"),
            Biases(always="up down head"),
        ),
        GPTJ,
        OPENAI_DROPOUTS,
    ),
    Family(
        "cohere",
        (
            norm("layernorm_nobias", placement="parallel", **INTERLEAVED),
            *(SIZES, GROUPS, HeadDim(), LN_EPS, SILU, Rotary(), ATTENTION_BIAS),
            Same({"logit_scale": "architecture.logit_scale"}),
            Choice("use_qk_norm", {True: {"qk_norm": "per_head"}, False: {"qk_norm": "none"}}),
        ),
        COHERE,
    ),
)
