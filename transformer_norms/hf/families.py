"""The families of transformers that are ours too, each with what its configs say.

A family is a row: the clauses of its config, and the keys of its dropout. A model belongs to the
first family that can say all its facts. Families of one kind stand together. A new family is a new
row, and in tensors.yaml the names of its tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformer_norms.hf.clauses.dense import DENSE, FIRST_DENSE, NO_EXPERTS
from transformer_norms.hf.clauses.gemma import (
    GEMMA3N,
    GEMMA4,
    KV_OF_LAST,
    LAYER_INPUTS,
    PROPORTIONAL_PER_KIND,
    VALUES_FROM_KEYS,
)
from transformer_norms.hf.clauses.general import (
    HEAD_DIM,
    LOGIT_DIVISOR,
    QUERY_SCALAR,
    RESIDUAL_MULTIPLIER,
    ROOT_WIDTH,
    SEQUENCE,
    Clause,
    activation,
    always,
    biases,
    cap,
    choice,
    equal,
    inner_width,
    never,
    only,
    same,
    unsaid,
)
from transformer_norms.hf.clauses.latents import LATENTS
from transformer_norms.hf.clauses.llama4 import (
    CHUNKS,
    NORMED_WHERE_ROTATED,
    TEMPERATURE_WHERE_NOT_ROTATED,
)
from transformer_norms.hf.clauses.rotation import (
    BASE_PER_KIND,
    FULL,
    PARTIAL_ROTARY,
    ROTARY,
    ROTARY_DIMENSIONS,
    ROTATED_WHERE_MARKED,
    ROTATED_WHERE_SLIDING,
    WINDOW_IF_USED,
    WINDOW_OF_ALL,
    WINDOW_OF_ANOTHER_CLAUSE,
    WINDOW_OF_KINDS,
    WINDOW_OF_SOME,
)
from transformer_norms.hf.facts import Facts, complete_facts
from transformer_norms.hf.weights import Line, lines
from transformer_norms.storage.reading import read_yaml

# ---------------------------------------------------------------------- clauses that families share


def norm(name: str, **facts: Any) -> Clause:
    return always({"norm": name, **facts})


# A config of transformers has these names also for keys that its family calls n_embd or n_layer.
NAMES = {
    "vocab_size": "vocab_size",
    "tie_word_embeddings": "architecture.tied",
    "hidden_size": "model.width",
    "num_hidden_layers": "model.depth",
    "num_attention_heads": "model.heads",
}
FEW = {**NAMES, "max_position_embeddings": "model.context"}
EPSILON = same({"layer_norm_epsilon": "norm.eps"})
OPENAI = (same(FEW), EPSILON)
SIZES = same({**FEW, "intermediate_size": "model.mlp_width"})
GROUPS = same({"num_key_value_heads": "model.kv_heads"})
HEAD_WIDTH = same({"head_dim": "model.head_dim"})
RMS_EPS, LN_EPS = same({"rms_norm_eps": "norm.eps"}), same({"layer_norm_eps": "norm.eps"})
PRE, POST = {"placement": "pre"}, {"placement": "post", "final_norm": "none"}
SILU, GEMMA = activation("hidden_act", "gated"), activation("hidden_activation", "gated")
ATTENTION, MLP = "query key value output", "up gate down"
LEARNED = {"position": "learned"}
INTERLEAVED = {"architecture.rope_interleaved": True}
HALVES = {"architecture.rope_interleaved": False}
TURNED_FIRST = {"architecture.qk_norm_order": "after"}  # queries and keys, before their norms
LATENT_ATTENTION = "query_down kv_down rope_key output"  # those that attention_bias gives a bias
OPENAI_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
OPENAI_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
ATTENTION_BIAS = biases({"attention_bias": ATTENTION})

# Most families since Llama: one of the two has its heads' width in every config.
LLAMA = (SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU)
MODERN = (SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU)
GELU_OR_RELU = activation("hidden_act", "plain")
BOTH_BIASES = biases({"attention_bias": ATTENTION, "mlp_bias": MLP})
LOGIT_CAP = cap("final_logit_softcapping", "architecture.logit_cap")
ONE_WAY = never("use_bidirectional_attention")


@cache
def _tables() -> Any:
    return read_yaml(Path(__file__).parent / "tensors.yaml")


@dataclass(frozen=True)
class Family:
    """`dropouts` are the keys of its dropout, where they act in all the places that ours do. The
    names of its tensors are in tensors.yaml."""

    model_type: str
    clauses: Sequence[Clause]
    dropouts: Sequence[str] = ()

    def table(self) -> list[Line]:
        tables = _tables()
        own = tables["families"].get(self.model_type, {"of": "ends attention mlp pre"})
        groups = [tables["groups"][name] for name in own.get("of", "").split()]
        text = "".join([*groups, own.get("names", "")])
        return lines(text, own.get("block", tables["block"]))

    def read(self, config: Any) -> Facts:
        """The facts of one of its configs. ValueError for what has no counterpart here."""
        facts: Facts = {}
        for clause in self.clauses:
            facts |= clause.read(config)
        if not getattr(config, "is_causal", True):  # which the masks of every family read
            raise unsaid("is_causal", False)
        return complete_facts(facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        """The config that says the facts, as far as it can. `read` shows what it cannot say."""
        keys: dict[str, Any] = {}
        for clause in self.clauses:
            keys |= clause.write(facts)
        return keys


FAMILIES = (
    Family(
        "gpt2",
        (
            *(norm("layernorm", **PRE, **LEARNED), *OPENAI, inner_width("n_inner")),
            *(activation("activation_function", "plain"), biases(fixed=f"{ATTENTION} up down")),
            choice("scale_attn_weights", {False: {"architecture.attention_scale": 1.0}, True: {}}),
            never("scale_attn_by_inverse_layer_idx", "add_cross_attention"),
        ),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "openai-gpt",
        (
            *(norm("layernorm", **POST, **LEARNED), *OPENAI, inner_width()),
            *(activation("afn", "plain", OPENAI_ACTIVATIONS), biases(fixed=f"{ATTENTION} up down")),
        ),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "opt",
        (
            always({"norm.eps": 1e-5, **LEARNED}),
            same({**FEW, "ffn_dim": "model.mlp_width"}),
            choice("do_layer_norm_before", {True: PRE, False: POST}),
            choice(
                "layer_norm_elementwise_affine",
                {True: {"norm": "layernorm"}, False: {"norm": "layernorm_np"}},
            ),
            activation("activation_function", "plain"),
            biases({"enable_bias": f"{ATTENTION} up down"}),
            equal("word_embed_proj_dim", "hidden_size"),
            never("_remove_final_layer_norm"),
        ),
    ),
    Family("llama", (norm("rmsnorm", **PRE), *LLAMA, ROTARY, BOTH_BIASES)),
    Family(
        "llama4_text",
        (
            norm("rmsnorm", **INTERLEAVED),
            same({**FEW, "intermediate_size_mlp": "model.mlp_width"}),
            *(GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTATED_WHERE_MARKED, ATTENTION_BIAS),
            *(NORMED_WHERE_ROTATED, TEMPERATURE_WHERE_NOT_ROTATED, CHUNKS, NO_EXPERTS),
        ),
    ),
    Family(
        "smollm3",
        (norm("rmsnorm", **PRE), *MODERN, ROTATED_WHERE_MARKED, WINDOW_IF_USED, BOTH_BIASES),
    ),
    Family(
        "granite",
        (
            *(norm("rmsnorm"), *MODERN, ROTARY, RESIDUAL_MULTIPLIER, BOTH_BIASES),
            same({"embedding_multiplier": "architecture.embed_scale"}),
            same({"attention_multiplier": "architecture.attention_scale"}),
            LOGIT_DIVISOR,
        ),
    ),
    Family(
        "arcee",
        (
            *(norm("rmsnorm", **PRE), SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, GELU_OR_RELU, ROTARY),
            biases({"attention_bias": ATTENTION, "mlp_bias": "up down"}),
        ),
    ),
    Family(
        "nanochat",
        (
            norm("rmsnorm_np", **PRE, **TURNED_FIRST, embed="norm", qk_norm="head"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, GELU_OR_RELU, ROTARY, ATTENTION_BIAS, LOGIT_CAP),
        ),
    ),
    Family(
        "mistral",
        (norm("rmsnorm", **PRE), *LLAMA, ROTARY, WINDOW_OF_ALL, never("layer_types")),
    ),
    Family(
        "qwen2",
        (norm("rmsnorm", **PRE), *MODERN, ROTARY, WINDOW_IF_USED, biases(fixed="query key value")),
    ),
    Family(
        "qwen3",
        (norm("rmsnorm", **PRE, qk_norm="head"), *LLAMA, ROTARY, WINDOW_IF_USED, ATTENTION_BIAS),
    ),
    Family(
        "qwen3_next",
        (
            norm("rmsnorm_1p", **PRE, qk_norm="head"),
            always({"architecture.attention_gate": "elementwise"}),
            *(*LLAMA, PARTIAL_ROTARY, only("layer_types", FULL), DENSE),
            biases({"attention_bias": f"{ATTENTION} attention_gate"}),
        ),
    ),
    Family(
        "deepseek_v3",
        (
            *(norm("rmsnorm", **PRE), SIZES, RMS_EPS, SILU, LATENTS, FIRST_DENSE),
            choice("rope_interleave", {True: INTERLEAVED, False: HALVES}),
            biases({"attention_bias": LATENT_ATTENTION}),
        ),
    ),
    Family(
        "deepseek_v2",
        (
            *(norm("rmsnorm", **PRE, **INTERLEAVED), SIZES, RMS_EPS, SILU, LATENTS, FIRST_DENSE),
            biases({"attention_bias": LATENT_ATTENTION, "mlp_bias": MLP}),
        ),
    ),
    Family(
        "olmo",
        (
            norm("layernorm_np", **PRE, **{"norm.eps": 1e-5}),
            *(SIZES, GROUPS, HEAD_DIM, SILU, ROTARY, ATTENTION_BIAS, never("clip_qkv")),
        ),
    ),
    Family(
        "olmo2",
        (norm("rmsnorm", placement="out", qk_norm="full"), *MODERN, ROTARY, ATTENTION_BIAS),
    ),
    Family(
        "olmo3",
        (
            norm("rmsnorm", placement="out", qk_norm="full"),
            *(*MODERN, ATTENTION_BIAS, BASE_PER_KIND, WINDOW_OF_KINDS),
        ),
    ),
    Family(
        "exaone4",
        (
            norm("rmsnorm", placement="out", qk_norm="head"),
            *(*MODERN, ROTATED_WHERE_SLIDING, WINDOW_OF_ANOTHER_CLAUSE),
        ),
    ),
    Family(
        "gemma",
        (norm("rmsnorm_1p", **PRE), *LLAMA, ROTARY, ATTENTION_BIAS, ROOT_WIDTH, ONE_WAY),
    ),
    Family(
        "gemma2",
        (
            norm("rmsnorm_1p", placement="sandwich"),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, ROTARY, WINDOW_OF_SOME),
            *(ATTENTION_BIAS, ROOT_WIDTH, QUERY_SCALAR, LOGIT_CAP, ONE_WAY),
            cap("attn_logit_softcapping", "architecture.attention_cap"),
        ),
    ),
    Family(
        "gemma3_text",
        (
            norm("rmsnorm_1p", placement="sandwich", qk_norm="head"),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, BASE_PER_KIND, WINDOW_OF_KINDS),
            *(ATTENTION_BIAS, ROOT_WIDTH, QUERY_SCALAR, LOGIT_CAP, ONE_WAY),
        ),
    ),
    Family(
        "gemma4_text",
        (
            norm("rmsnorm", qk_norm="head"),
            *(LAYER_INPUTS, GEMMA4, SIZES, RMS_EPS, GEMMA, PROPORTIONAL_PER_KIND, WINDOW_OF_KINDS),
            *(ATTENTION_BIAS, ROOT_WIDTH, VALUES_FROM_KEYS, LOGIT_CAP, KV_OF_LAST),
            never("enable_moe_block"),
        ),
    ),
    Family(
        "gemma3n_text",
        (
            norm("rmsnorm", qk_norm="head"),
            *(SIZES, GEMMA3N, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, BASE_PER_KIND, WINDOW_OF_KINDS),
            *(ATTENTION_BIAS, ROOT_WIDTH, LOGIT_CAP, KV_OF_LAST),
        ),
    ),
    Family(
        "glm4",
        (
            *(norm("rmsnorm", placement="sandwich", **INTERLEAVED), *LLAMA, PARTIAL_ROTARY),
            biases({"attention_bias": "query key value"}),
        ),
    ),
    Family(
        "gpt_neox",
        (
            *(norm("layernorm"), SIZES, LN_EPS, GELU_OR_RELU, PARTIAL_ROTARY, never("head_dim")),
            choice(
                "use_parallel_residual", {True: {"placement": "parallel_two_norms"}, False: PRE}
            ),
            biases({"attention_bias": ATTENTION}, fixed="up down"),
        ),
        dropouts=("attention_dropout", "hidden_dropout"),
    ),
    Family(
        "stablelm",
        (
            *(norm("layernorm"), SIZES, GROUPS, LN_EPS, SILU, PARTIAL_ROTARY),
            never("head_dim", "qk_layernorm"),
            choice("use_parallel_residual", {True: {"placement": "parallel"}, False: PRE}),
            biases({"use_qkv_bias": "query key value"}),
        ),
    ),
    Family(
        "bloom",
        (
            norm("layernorm", **PRE, embed="norm", position="alibi"),
            *(same(NAMES), EPSILON, SEQUENCE, inner_width()),
            always({"mlp": ("plain", "gelu_tanh")}),
            biases(fixed=f"{ATTENTION} up down"),
            never("apply_residual_connection_post_layernorm", "slow_but_exact"),
        ),
    ),
    Family(
        "gptj",
        (
            norm("layernorm", placement="parallel", **INTERLEAVED),
            *(*OPENAI, inner_width("n_inner"), ROTARY_DIMENSIONS),
            *(activation("activation_function", "plain"), biases(fixed="up down head")),
        ),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "cohere",
        (
            norm("layernorm_nobias", placement="parallel", **INTERLEAVED),
            *(SIZES, GROUPS, HEAD_DIM, LN_EPS, SILU, ROTARY, ATTENTION_BIAS),
            same({"logit_scale": "architecture.logit_scale"}),
            choice("use_qk_norm", {True: {"qk_norm": "per_head"}, False: {"qk_norm": "none"}}),
        ),
    ),
)
