"""The families of transformers that are ours too, each with what its configs say and its names.

A family is a row: the clauses of its config, the names of its tensors, and the keys of its dropout.
A model belongs to the first family that can say all its facts. Families of one kind stand together.
A new family is a new row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    divisor,
    equal,
    inner_width,
    never,
    only,
    same,
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
from transformer_norms.model.connections import MOST_STREAMS


@dataclass(frozen=True)
class Family:
    """`dropouts` are the keys of its dropout, where they act in all the places that ours do."""

    model_type: str
    clauses: Sequence[Clause]
    names: Sequence[Line]
    dropouts: Sequence[str] = ()

    def read(self, config: Any) -> Facts:
        """The facts of one of its configs. ValueError for what has no counterpart here."""
        facts: Facts = {}
        for clause in self.clauses:
            facts |= clause.read(config)
        if not getattr(config, "is_causal", True):  # which the masks of every family read
            raise ValueError("is_causal=False has no counterpart here")
        return complete_facts(facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        """The config that says the facts, as far as it can. `read` shows what it cannot say."""
        keys: dict[str, Any] = {}
        for clause in self.clauses:
            keys |= clause.write(facts)
        return keys


# ------------------------------------------------------------ names of tensors that families share

ENDS = """
    model.embed_tokens                embedding
    model.norm                        final
    lm_head                           head
"""
ATTENTION_NAMES = """
    .self_attn.q_proj                 .attention.f.query
    .self_attn.k_proj                 .attention.f.key
    .self_attn.v_proj                 .attention.f.value
    .self_attn.o_proj                 .attention.f.output
"""
MLP_NAMES = """
    .mlp.gate_proj                    .mlp.f.gate
    .mlp.up_proj                      .mlp.f.up
    .mlp.down_proj                    .mlp.f.down
"""
BASE = ENDS + ATTENTION_NAMES + MLP_NAMES
PRE_NAMES = """
    .input_layernorm                  .attention.pre
    .post_attention_layernorm         .mlp.pre
"""
OUT_NAMES = """
    .post_attention_layernorm         .attention.out
    .post_feedforward_layernorm       .mlp.out
"""
SANDWICH_NAMES = """
    .input_layernorm                  .attention.pre
    .post_attention_layernorm         .attention.out
    .pre_feedforward_layernorm        .mlp.pre
    .post_feedforward_layernorm       .mlp.out
"""
QK_NAMES = """
    .self_attn.q_norm                 .attention.f.q
    .self_attn.k_norm                 .attention.f.k
"""
FULL_QK_NAMES = """
    .self_attn.q_norm                 .attention.f.q.norm
    .self_attn.k_norm                 .attention.f.k.norm
"""
LATENT_NAMES = """
    .self_attn.q_proj              [turned_last] .attention.f.query where !.attention.f.query_down
    .self_attn.q_a_proj            .attention.f.query_down
    .self_attn.q_a_layernorm       .attention.f.q_latent
    .self_attn.q_b_proj            [turned_last] .attention.f.query where .attention.f.query_down
    .self_attn.kv_a_proj_with_mqa  [stacked] .attention.f.kv_down .attention.f.rope_key
    .self_attn.kv_a_layernorm      .attention.f.kv_latent
    .self_attn.kv_b_proj           [by_head] .attention.f.key .attention.f.value
    .self_attn.o_proj              .attention.f.output
"""
INPUT_NAMES = """
    model.embed_tokens_per_layer      enter.input_embedding
    model.per_layer_model_projection  enter.input_projection
    model.per_layer_projection_norm   enter.norm
    model.norm                        final.norm
    .per_layer_input_gate             .connection.gated.gate
    .per_layer_projection             .connection.gated.output
    .post_per_layer_input_norm        .connection.gated.norm
"""
ALTUP_NAMES = """
    .laurel.linear_left               .attention.skip.normed.scale.left
    .laurel.linear_right              .attention.skip.normed.scale.right
    .laurel.post_laurel_norm          .attention.skip.normed.scale.norm
    .altup.router_norm                .connection.norm
    .altup.modality_router            .connection.router
    .altup.prediction_coefs           .connection.predict_change
    .altup.correction_coefs           .connection.correct_change
    .altup.correct_output_scale       .connection.scale
""" + "".join(
    f"model.altup_projections.{i}        enter.streams.projections.{i}\n"
    f"model.altup_unembed_projections.{i}  final.projections.{i}\n"
    for i in range(MOST_STREAMS - 1)
)
QUERY_KEY_VALUE = ".attention.f.query .attention.f.key .attention.f.value"
GPT_NAMES = f"""
    .attn.c_attn            [columns] {QUERY_KEY_VALUE}
    .attn.c_proj            [columns] .attention.f.output
    .mlp.c_fc               [columns] .mlp.f.up
    .mlp.c_proj             [columns] .mlp.f.down
    lm_head                           head
"""

# ---------------------------------------------------------------------- clauses that families share


def norm(name: str, **facts: Any) -> Clause:
    return always({"norm": name, **facts})


TIED = {"vocab_size": "vocab_size", "tie_word_embeddings": "architecture.tied"}
OPENAI = same(
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
BLOOM = {**TIED, "hidden_size": "model.width", "n_layer": "model.depth", "n_head": "model.heads"}
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

FAMILIES = (
    Family(
        "gpt2",
        (
            norm("layernorm", **PRE, **LEARNED),
            OPENAI,
            inner_width("n_inner"),
            activation("activation_function", "plain"),
            biases(fixed=f"{ATTENTION} up down"),
            choice("scale_attn_weights", {False: {"architecture.attention_scale": 1.0}, True: {}}),
            never("scale_attn_by_inverse_layer_idx", "add_cross_attention"),
        ),
        lines(
            f"""{GPT_NAMES}
            transformer.wte           embedding
            transformer.wpe           position.position
            .ln_1                     .attention.pre
            .ln_2                     .mlp.pre
            transformer.ln_f          final
            """,
            "transformer.h.{i}",
        ),
        OPENAI_DROPOUTS,
    ),
    Family(
        "openai-gpt",
        (
            norm("layernorm", **POST, **LEARNED),
            OPENAI,
            inner_width(),
            activation("afn", "plain", OPENAI_ACTIVATIONS),
            biases(fixed=f"{ATTENTION} up down"),
        ),
        lines(
            f"""{GPT_NAMES}
            transformer.tokens_embed     embedding
            transformer.positions_embed  position.position
            .ln_1                        .attention.post
            .ln_2                        .mlp.post
            """,
            "transformer.h.{i}",
        ),
        OPENAI_DROPOUTS,
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
        # do_layer_norm_before, or not: a block has one pair of the norms
        lines(
            """
            model.decoder.embed_tokens      embedding
            model.decoder.embed_positions   [after_two] position.position
            .self_attn.q_proj               .attention.f.query
            .self_attn.k_proj               .attention.f.key
            .self_attn.v_proj               .attention.f.value
            .self_attn.out_proj             .attention.f.output
            .self_attn_layer_norm           .attention.pre
            .self_attn_layer_norm           .attention.post
            .fc1                            .mlp.f.up
            .fc2                            .mlp.f.down
            .final_layer_norm               .mlp.pre
            .final_layer_norm               .mlp.post
            model.decoder.final_layer_norm  final
            lm_head                         head
            """,
            "model.decoder.layers.{i}",
        ),
    ),
    Family(
        "llama",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTARY),
            biases({"attention_bias": ATTENTION, "mlp_bias": MLP}),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "llama4_text",
        (
            norm("rmsnorm", **INTERLEAVED),
            same({**FEW, "intermediate_size_mlp": "model.mlp_width"}),
            *(GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTATED_WHERE_MARKED, ATTENTION_BIAS),
            *(NORMED_WHERE_ROTATED, TEMPERATURE_WHERE_NOT_ROTATED, CHUNKS, NO_EXPERTS),
        ),
        lines(
            f"""{ENDS}{ATTENTION_NAMES}{PRE_NAMES}
            .feed_forward.gate_proj   .mlp.f.gate
            .feed_forward.up_proj     .mlp.f.up
            .feed_forward.down_proj   .mlp.f.down
            """
        ),
    ),
    Family(
        "smollm3",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU, ROTATED_WHERE_MARKED, WINDOW_IF_USED),
            biases({"attention_bias": ATTENTION, "mlp_bias": MLP}),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "granite",
        (
            norm("rmsnorm"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU, ROTARY, RESIDUAL_MULTIPLIER),
            biases({"attention_bias": ATTENTION, "mlp_bias": MLP}),
            same({"embedding_multiplier": "architecture.embed_scale"}),
            same({"attention_multiplier": "architecture.attention_scale"}),
            divisor("logits_scaling", "architecture.logit_scale"),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "arcee",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, activation("hidden_act", "plain"), ROTARY),
            biases({"attention_bias": ATTENTION, "mlp_bias": "up down"}),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "nanochat",
        (
            norm("rmsnorm_np", **PRE, **TURNED_FIRST, embed="norm", qk_norm="head"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, activation("hidden_act", "plain"), ROTARY),
            *(ATTENTION_BIAS, cap("final_logit_softcapping", "architecture.logit_cap")),
        ),
        lines(
            f"""{ENDS}
            .self_attn.q_proj    [turned_back] .attention.f.query
            .self_attn.k_proj    [turned_back] .attention.f.key
            .self_attn.v_proj    .attention.f.value
            .self_attn.o_proj    .attention.f.output
            .mlp.fc1             .mlp.f.up
            .mlp.fc2             .mlp.f.down
            """
        ),
    ),
    Family(
        "mistral",
        (
            *(norm("rmsnorm", **PRE), SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTARY),
            *(WINDOW_OF_ALL, never("layer_types")),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "qwen2",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU, ROTARY, WINDOW_IF_USED),
            biases(fixed="query key value"),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "qwen3",
        (
            norm("rmsnorm", **PRE, qk_norm="head"),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTARY, WINDOW_IF_USED),
            ATTENTION_BIAS,
        ),
        lines(BASE + PRE_NAMES + QK_NAMES),
    ),
    Family(
        "qwen3_next",
        (
            norm("rmsnorm_1p", **PRE, qk_norm="head"),
            always({"architecture.attention_gate": "elementwise"}),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, PARTIAL_ROTARY),
            *(only("layer_types", FULL), DENSE),
            biases({"attention_bias": f"{ATTENTION} attention_gate"}),
        ),
        lines(
            f"""{ENDS}{MLP_NAMES}{PRE_NAMES}{QK_NAMES}
            .self_attn.q_proj  [by_head] .attention.f.query .attention.f.attention_gate
            .self_attn.k_proj  .attention.f.key
            .self_attn.v_proj  .attention.f.value
            .self_attn.o_proj  .attention.f.output
            """
        ),
    ),
    Family(
        "deepseek_v3",
        (
            norm("rmsnorm", **PRE),
            *(SIZES, RMS_EPS, SILU, LATENTS, FIRST_DENSE),
            choice("rope_interleave", {True: INTERLEAVED, False: HALVES}),
            biases({"attention_bias": LATENT_ATTENTION}),
        ),
        lines(ENDS + MLP_NAMES + PRE_NAMES + LATENT_NAMES),
    ),
    Family(
        "deepseek_v2",
        (
            norm("rmsnorm", **PRE, **INTERLEAVED),
            *(SIZES, RMS_EPS, SILU, LATENTS, FIRST_DENSE),
            biases({"attention_bias": LATENT_ATTENTION, "mlp_bias": MLP}),
        ),
        lines(ENDS + MLP_NAMES + PRE_NAMES + LATENT_NAMES),
    ),
    Family(
        "olmo",
        (
            norm("layernorm_np", **PRE, **{"norm.eps": 1e-5}),
            *(SIZES, GROUPS, HEAD_DIM, SILU, ROTARY, ATTENTION_BIAS),
            never("clip_qkv"),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "olmo2",
        (
            norm("rmsnorm", placement="out", qk_norm="full"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU, ROTARY, ATTENTION_BIAS),
        ),
        lines(BASE + OUT_NAMES + FULL_QK_NAMES),
    ),
    Family(
        "olmo3",
        (
            norm("rmsnorm", placement="out", qk_norm="full"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU, ATTENTION_BIAS),
            *(BASE_PER_KIND, WINDOW_OF_KINDS),
        ),
        lines(BASE + OUT_NAMES + FULL_QK_NAMES),
    ),
    Family(
        "exaone4",
        (
            norm("rmsnorm", placement="out", qk_norm="head"),
            *(SIZES, GROUPS, HEAD_DIM, RMS_EPS, SILU),
            *(ROTATED_WHERE_SLIDING, WINDOW_OF_ANOTHER_CLAUSE),
        ),
        lines(BASE + OUT_NAMES + QK_NAMES),
    ),
    Family(
        "gemma",
        (
            norm("rmsnorm_1p", **PRE),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, ROTARY, ATTENTION_BIAS, ROOT_WIDTH),
            never("use_bidirectional_attention"),
        ),
        lines(BASE + PRE_NAMES),
    ),
    Family(
        "gemma2",
        (
            norm("rmsnorm_1p", placement="sandwich"),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, ROTARY, WINDOW_OF_SOME),
            *(ATTENTION_BIAS, ROOT_WIDTH, QUERY_SCALAR),
            cap("attn_logit_softcapping", "architecture.attention_cap"),
            cap("final_logit_softcapping", "architecture.logit_cap"),
            never("use_bidirectional_attention"),
        ),
        lines(BASE + SANDWICH_NAMES),
    ),
    Family(
        "gemma3_text",
        (
            norm("rmsnorm_1p", placement="sandwich", qk_norm="head"),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, BASE_PER_KIND, WINDOW_OF_KINDS),
            *(ATTENTION_BIAS, ROOT_WIDTH, QUERY_SCALAR),
            cap("final_logit_softcapping", "architecture.logit_cap"),
            never("use_bidirectional_attention"),
        ),
        lines(BASE + SANDWICH_NAMES + QK_NAMES),
    ),
    Family(
        "gemma4_text",
        (
            norm("rmsnorm", qk_norm="head"),
            *(LAYER_INPUTS, GEMMA4, SIZES, RMS_EPS, GEMMA, PROPORTIONAL_PER_KIND),
            *(WINDOW_OF_KINDS, ATTENTION_BIAS, ROOT_WIDTH, VALUES_FROM_KEYS),
            cap("final_logit_softcapping", "architecture.logit_cap"),
            never("enable_moe_block"),
            KV_OF_LAST,
        ),
        lines(
            f"""{BASE}{SANDWICH_NAMES}{QK_NAMES}{INPUT_NAMES}
            .layer_scalar     .mlp.skip.gain
            .layer_scalar     .connection.scale
            """
        ),
    ),
    Family(
        "gemma3n_text",
        (
            norm("rmsnorm", qk_norm="head"),
            *(SIZES, GEMMA3N, GROUPS, HEAD_WIDTH, RMS_EPS, GEMMA, BASE_PER_KIND, WINDOW_OF_KINDS),
            *(ATTENTION_BIAS, ROOT_WIDTH),
            cap("final_logit_softcapping", "architecture.logit_cap"),
            KV_OF_LAST,
        ),
        lines(BASE + SANDWICH_NAMES + QK_NAMES + INPUT_NAMES + ALTUP_NAMES),
    ),
    Family(
        "glm4",
        (
            norm("rmsnorm", placement="sandwich", **INTERLEAVED),
            *(SIZES, GROUPS, HEAD_WIDTH, RMS_EPS, SILU, PARTIAL_ROTARY),
            biases({"attention_bias": "query key value"}),
        ),
        lines(
            f"""{ENDS}{ATTENTION_NAMES}
            .input_layernorm           .attention.pre
            .post_self_attn_layernorm  .attention.out
            .post_attention_layernorm  .mlp.pre
            .post_mlp_layernorm        .mlp.out
            .mlp.gate_up_proj          [stacked] .mlp.f.gate .mlp.f.up
            .mlp.down_proj             .mlp.f.down
            """
        ),
    ),
    Family(
        "gpt_neox",
        (
            norm("layernorm"),
            *(SIZES, LN_EPS, activation("hidden_act", "plain"), PARTIAL_ROTARY, never("head_dim")),
            choice(
                "use_parallel_residual", {True: {"placement": "parallel_two_norms"}, False: PRE}
            ),
            biases({"attention_bias": ATTENTION}, fixed="up down"),
        ),
        lines(
            f"""
            gpt_neox.embed_in           embedding
            .input_layernorm            .attention.pre
            .post_attention_layernorm   .mlp.pre
            .attention.query_key_value  [by_head] {QUERY_KEY_VALUE}
            .attention.dense            .attention.f.output
            .mlp.dense_h_to_4h          .mlp.f.up
            .mlp.dense_4h_to_h          .mlp.f.down
            gpt_neox.final_layer_norm   final
            lm_head                     head
            """,
            "gpt_neox.layers.{i}",
        ),
        ("attention_dropout", "hidden_dropout"),
    ),
    Family(
        "stablelm",
        (
            norm("layernorm"),
            *(SIZES, GROUPS, LN_EPS, SILU, PARTIAL_ROTARY, never("head_dim", "qk_layernorm")),
            choice("use_parallel_residual", {True: {"placement": "parallel"}, False: PRE}),
            biases({"use_qkv_bias": "query key value"}),
        ),
        # use_parallel_residual, or not: a block has one norm, or two
        lines(BASE + PRE_NAMES + ".input_layernorm  .pre"),
    ),
    Family(
        "bloom",
        (
            norm("layernorm", **PRE, embed="norm", position="alibi"),
            same({**BLOOM, "layer_norm_epsilon": "norm.eps"}),
            *(SEQUENCE, inner_width(), always({"mlp": ("plain", "gelu_tanh")})),
            biases(fixed=f"{ATTENTION} up down"),
            never("apply_residual_connection_post_layernorm", "slow_but_exact"),
        ),
        lines(
            f"""
            transformer.word_embeddings            embedding
            transformer.word_embeddings_layernorm  embed
            .input_layernorm                       .attention.pre
            .post_attention_layernorm              .mlp.pre
            .self_attention.query_key_value        [by_head] {QUERY_KEY_VALUE}
            .self_attention.dense                  .attention.f.output
            .mlp.dense_h_to_4h                     .mlp.f.up
            .mlp.dense_4h_to_h                     .mlp.f.down
            transformer.ln_f                       final
            lm_head                                head
            """,
            "transformer.h.{i}",
        ),
    ),
    Family(
        "gptj",
        (
            norm("layernorm", placement="parallel", **INTERLEAVED),
            *(OPENAI, inner_width("n_inner"), ROTARY_DIMENSIONS),
            activation("activation_function", "plain"),
            biases(fixed="up down head"),
        ),
        lines(
            """
            transformer.wte           embedding
            .ln_1                     .pre
            .attn.q_proj              .attention.f.query
            .attn.k_proj              .attention.f.key
            .attn.v_proj              .attention.f.value
            .attn.out_proj            .attention.f.output
            .mlp.fc_in                .mlp.f.up
            .mlp.fc_out               .mlp.f.down
            transformer.ln_f          final
            lm_head                   head
            """,
            "transformer.h.{i}",
        ),
        OPENAI_DROPOUTS,
    ),
    Family(
        "cohere",
        (
            norm("layernorm_nobias", placement="parallel", **INTERLEAVED),
            *(SIZES, GROUPS, HEAD_DIM, LN_EPS, SILU, ROTARY, ATTENTION_BIAS),
            same({"logit_scale": "architecture.logit_scale"}),
            choice("use_qk_norm", {True: {"qk_norm": "per_head"}, False: {"qk_norm": "none"}}),
        ),
        lines(
            f"""{BASE}
            .input_layernorm          .pre
            .self_attn.q_norm         [heads] .attention.f.q.heads.{{h}}
            .self_attn.k_norm         [heads] .attention.f.k.heads.{{h}}
            """
        ),
    ),
)
