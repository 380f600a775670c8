"""The families of transformers that are ours too, each with what its configs say.

A family is a row: the clauses of its config, and the keys of its dropout. A model belongs to the
first family that can say all its facts. Families of one kind are next to each other. A new family
is a new row, and in tensors.yaml the names of its tensors.
"""

from collections.abc import Sequence
from typing import Any

from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import DEFAULTS
from transformer_norms.hf.clauses import dense, gemma, llama4, rotation
from transformer_norms.hf.clauses.general import (
    HEAD_DIM,
    INNER_WIDTH,
    LOGIT_DIVISOR,
    QUERY_SCALAR,
    RESIDUAL_MULTIPLIER,
    ROOT_WIDTH,
    SEQUENCE,
    Clause,
    Keys,
    activation,
    always,
    biases,
    cap,
    choice,
    equal,
    never,
    same,
    unsaid,
)
from transformer_norms.hf.clauses.latents import LATENTS
from transformer_norms.hf.clauses.rotation import PARTIAL_ROTARY, ROTARY, WINDOW_IF_USED
from transformer_norms.hf.facts import Facts, facts_of

# ---------------------------------------------------------------------- clauses that families share


def norm(name: str, **keys: Any) -> Clause:
    return always({"norm": name, **keys})


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
LAYERNORM, LEARNED = {"norm": "layernorm"}, {"position": "learned"}
RMS_PRE = norm("rmsnorm", **PRE)
SILU, GEGLU = activation("hidden_act", "gated"), activation("hidden_activation", "gated")
PLAIN, PLAIN_HIDDEN = activation("activation_function", "plain"), activation("hidden_act", "plain")
ATTENTION, MLP = "query key value output", "up gate down"
INTERLEAVED = {"architecture.rope_interleaved": True}
HALVES = {"architecture.rope_interleaved": False}
TURNED_FIRST = {"architecture.qk_norm_order": "after"}  # queries and keys, before their norms
LATENT_ATTENTION = "query_down kv_down rope_key output"  # those that attention_bias gives a bias
OPENAI_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
OPENAI_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
ALL_BIASES = biases(fixed=f"{ATTENTION} up down")
ATTENTION_BIAS = biases({"attention_bias": ATTENTION})
BOTH_BIASES = biases({"attention_bias": ATTENTION, "mlp_bias": MLP})
LOGIT_CAP = cap("final_logit_softcapping", "architecture.logit_cap")
ONE_WAY = never("use_bidirectional_attention")
# Most families since Llama: one of the two has its heads' width in every config.
LLAMA = (SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU)
MODERN = (SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU)
PER_KIND = (rotation.BASE_PER_KIND, rotation.WINDOW_OF_KINDS)
GEMMA = (SIZES, RMS_EPS, GEGLU, ATTENTION_BIAS, ROOT_WIDTH, LOGIT_CAP)


# The keys that a family does not mention.
USUAL: Keys = {
    **{"embed": "none", "final_norm": "norm", "qk_norm": "none", "v_norm": "none"},
    "architecture.bias": frozenset(),
    **{f"architecture.{key}": value for key, value in DEFAULTS.items()},
}
# The choices of an imported config that are about this machine.
HERE = ["tracking=none", "trainer.device=cpu"]


class Family:
    """`dropouts` are the keys of its dropout, where they act in all the places that ours do."""

    def __init__(self, model_type: str, *clauses: Clause, dropouts: Sequence[str] = ()) -> None:
        self.model_type, self.clauses, self.dropouts = model_type, clauses, dropouts

    def read(self, config: Any) -> list[str]:
        """Returns the words that compose the same model here. ValueError where a key has no
        counterpart."""
        keys = dict(USUAL)
        for clause in self.clauses:
            keys |= clause.read(config)
        if not getattr(config, "is_causal", True):  # which the masks of every family read
            raise unsaid("is_causal", False)
        del keys["vocab_size"]
        bias = keys["architecture.bias"]
        if keys.get("architecture.q_rank") == "none":  # DeepSeek may lack this latent
            bias -= {"query_down"}
        keys["architecture.bias"] = sorted(bias) or False
        for key, value in keys.items():
            if isinstance(value, list) and all(number == value[0] for number in value):
                keys[key] = value[0]
        return [*HERE, *(as_typed(key, value) for key, value in keys.items())]

    def facts(self, config: Any) -> Facts:
        """The facts of one of its configs. ValueError for what has no counterpart here."""
        return facts_of(compose(self.read(config)), config.vocab_size)

    def write(self, facts: Facts) -> dict[str, Any]:
        """The config that says the facts, as far as it can. `facts` shows what it cannot say."""
        keys: dict[str, Any] = {}
        for clause in self.clauses:
            keys |= clause.write(facts)
        return keys


FAMILIES = (
    Family(
        "gpt2",
        *(norm("layernorm", **PRE, **LEARNED), *OPENAI, INNER_WIDTH, PLAIN, ALL_BIASES),
        choice("scale_attn_weights", {False: {"architecture.attention_scale": 1.0}, True: {}}),
        never("scale_attn_by_inverse_layer_idx", "add_cross_attention"),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "openai-gpt",
        *(norm("layernorm", **POST, **LEARNED), *OPENAI, ALL_BIASES),
        activation("afn", "plain", OPENAI_ACTIVATIONS),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "opt",
        always(LEARNED),
        same({**FEW, "ffn_dim": "model.mlp_width"}),
        choice("do_layer_norm_before", {True: PRE, False: POST}),
        choice("layer_norm_elementwise_affine", {True: LAYERNORM, False: {"norm": "layernorm_np"}}),
        *(PLAIN, biases({"enable_bias": f"{ATTENTION} up down"})),
        *(equal("word_embed_proj_dim", "hidden_size"), never("_remove_final_layer_norm")),
    ),
    Family("llama", RMS_PRE, *LLAMA, ROTARY, BOTH_BIASES),
    Family(
        "llama4_text",
        norm("rmsnorm", **INTERLEAVED),
        same({**FEW, "intermediate_size_mlp": "model.mlp_width"}),
        *(GROUPS, HEAD_WIDTH, RMS_EPS, SILU, rotation.ROTATED_WHERE_MARKED, ATTENTION_BIAS),
        *(llama4.NORMED_WHERE_ROTATED, llama4.TEMPERATURE_WHERE_NOT_ROTATED, llama4.CHUNKS),
        dense.NO_EXPERTS,
    ),
    Family("smollm3", RMS_PRE, *MODERN, rotation.ROTATED_WHERE_MARKED, WINDOW_IF_USED, BOTH_BIASES),
    Family(
        "granite",
        *(norm("rmsnorm"), *MODERN, ROTARY, RESIDUAL_MULTIPLIER, LOGIT_DIVISOR, BOTH_BIASES),
        same({"embedding_multiplier": "architecture.embed_scale"}),
        same({"attention_multiplier": "architecture.attention_scale"}),
    ),
    Family(
        "arcee",
        *(RMS_PRE, SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, PLAIN_HIDDEN, ROTARY),
        biases({"attention_bias": ATTENTION, "mlp_bias": "up down"}),
    ),
    Family(
        "nanochat",
        norm("rmsnorm_np", **PRE, **TURNED_FIRST, embed="norm", qk_norm="head"),
        *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, PLAIN_HIDDEN, ROTARY, ATTENTION_BIAS, LOGIT_CAP),
    ),
    Family("mistral", RMS_PRE, *LLAMA, ROTARY, rotation.WINDOW_OF_ALL, never("layer_types")),
    Family("qwen2", RMS_PRE, *MODERN, ROTARY, WINDOW_IF_USED, biases(fixed="query key value")),
    Family(
        "qwen3",
        norm("rmsnorm", **PRE, qk_norm="head"),
        *(*LLAMA, ROTARY, WINDOW_IF_USED, ATTENTION_BIAS),
    ),
    Family(
        "qwen3_next",
        norm("rmsnorm_1p", **PRE, qk_norm="head"),
        always({"architecture.attention_gate": "elementwise"}),
        *(*LLAMA, PARTIAL_ROTARY, rotation.ALL_FULL, dense.DENSE),
        biases({"attention_bias": f"{ATTENTION} attention_gate"}),
    ),
    Family(
        "deepseek_v3",
        *(RMS_PRE, SIZES, RMS_EPS, SILU, LATENTS, dense.FIRST_DENSE),
        choice("rope_interleave", {True: INTERLEAVED, False: HALVES}),
        biases({"attention_bias": LATENT_ATTENTION}),
    ),
    Family(
        "deepseek_v2",
        norm("rmsnorm", **PRE, **INTERLEAVED),
        *(SIZES, RMS_EPS, SILU, LATENTS, dense.FIRST_DENSE),
        biases({"attention_bias": LATENT_ATTENTION, "mlp_bias": MLP}),
    ),
    Family(
        "olmo",
        norm("layernorm_np", **PRE),
        *(SIZES, GROUPS, HEAD_DIM, SILU, ROTARY, ATTENTION_BIAS, never("clip_qkv")),
    ),
    Family(
        "olmo2",
        norm("rmsnorm", placement="out", qk_norm="full"),
        *(*MODERN, ROTARY, ATTENTION_BIAS),
    ),
    Family(
        "olmo3",
        norm("rmsnorm", placement="out", qk_norm="full"),
        *(*MODERN, ATTENTION_BIAS, *PER_KIND),
    ),
    Family(
        "exaone4",
        norm("rmsnorm", placement="out", qk_norm="head"),
        *(*MODERN, rotation.ROTATED_WHERE_SLIDING, rotation.WINDOW_OF_ANOTHER_CLAUSE),
    ),
    Family("gemma", norm("rmsnorm_1p", **PRE), *LLAMA, ROTARY, ATTENTION_BIAS, ROOT_WIDTH, ONE_WAY),
    Family(
        "gemma2",
        norm("rmsnorm_1p", placement="sandwich"),
        *(*GEMMA, GROUPS, HEAD_WIDTH, ROTARY, rotation.WINDOW_OF_SOME, QUERY_SCALAR, ONE_WAY),
        cap("attn_logit_softcapping", "architecture.attention_cap"),
    ),
    Family(
        "gemma3_text",
        norm("rmsnorm_1p", placement="sandwich", qk_norm="head"),
        *(*GEMMA, GROUPS, HEAD_WIDTH, *PER_KIND, QUERY_SCALAR, ONE_WAY),
    ),
    Family(
        "gemma4_text",
        norm("rmsnorm", qk_norm="head"),
        *(*GEMMA, gemma.LAYER_INPUTS, gemma.GEMMA4, gemma.PROPORTIONAL_PER_KIND),
        *(rotation.WINDOW_OF_KINDS, gemma.VALUES_FROM_KEYS, gemma.KV_OF_LAST),
        never("enable_moe_block"),
    ),
    Family(
        "gemma3n_text",
        norm("rmsnorm", qk_norm="head"),
        *(*GEMMA, gemma.GEMMA3N, GROUPS, HEAD_WIDTH, *PER_KIND, gemma.KV_OF_LAST),
    ),
    Family(
        "glm4",
        norm("rmsnorm", placement="sandwich", **INTERLEAVED),
        *(*LLAMA, PARTIAL_ROTARY, biases({"attention_bias": "query key value"})),
    ),
    Family(
        "gpt_neox",
        *(norm("layernorm"), SIZES, LN_EPS, PLAIN_HIDDEN, PARTIAL_ROTARY, never("head_dim")),
        choice("use_parallel_residual", {True: {"placement": "parallel_two_norms"}, False: PRE}),
        biases({"attention_bias": ATTENTION}, fixed="up down"),
        dropouts=("attention_dropout", "hidden_dropout"),
    ),
    Family(
        "stablelm",
        *(norm("layernorm"), SIZES, GROUPS, LN_EPS, SILU, PARTIAL_ROTARY),
        never("head_dim", "qk_layernorm"),
        choice("use_parallel_residual", {True: {"placement": "parallel"}, False: PRE}),
        biases({"use_qkv_bias": "query key value"}),
    ),
    Family(
        "bloom",
        norm("layernorm", **PRE, embed="norm", position="alibi", mlp="gelu_tanh"),
        *(same(NAMES), EPSILON, SEQUENCE, ALL_BIASES),
        never("apply_residual_connection_post_layernorm", "slow_but_exact"),
    ),
    Family(
        "gptj",
        norm("layernorm", placement="parallel", **INTERLEAVED),
        *(*OPENAI, INNER_WIDTH, rotation.ROTARY_DIMENSIONS, PLAIN),
        biases(fixed="up down head"),
        dropouts=OPENAI_DROPOUTS,
    ),
    Family(
        "cohere",
        norm("layernorm_nobias", placement="parallel", **INTERLEAVED),
        *(SIZES, GROUPS, HEAD_DIM, LN_EPS, SILU, ROTARY, ATTENTION_BIAS),
        same({"logit_scale": "architecture.logit_scale"}),
        choice("use_qk_norm", {True: {"qk_norm": "per_head"}, False: {"qk_norm": "none"}}),
    ),
)
