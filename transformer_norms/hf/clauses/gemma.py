"""Only Gemma 4 and 3n need these clauses: two kinds of heads, shared keys, inputs per layer."""

from typing import Any

from transformer_norms.hf.clauses.general import Clause, Keys, check_eps, equal, unsaid
from transformer_norms.hf.clauses.rotation import (
    FRACTION,
    FULL,
    PARTIAL,
    SLIDING,
    read_share,
    read_turns,
    share,
    write_bases,
)
from transformer_norms.hf.facts import Facts

PROPORTIONAL, SHARED = "architecture.rope_proportional", "architecture.values_from_keys"
KV_FROM = "architecture.kv_from_block"


def _read_rotations(config: Any) -> Keys:
    turns = {kind: _read_rotation(config, kind) for kind in set(config.layer_types)}
    blocks, fractions = zip(*(turns[kind] for kind in config.layer_types), strict=True)
    return {**read_turns(config, blocks), FRACTION: [*fractions], PROPORTIONAL: True}


def _read_rotation(config: Any, kind: str) -> tuple[dict[str, Any], float]:
    """The parameters of a kind of blocks, and the share of a head's pairs that it turns."""
    parameters = {**config.rope_parameters[kind]}
    if parameters.get("rope_type") != "proportional":
        return parameters, 1.0
    given, head_dim = parameters.pop(PARTIAL, 1.0), config.per_layer_config[kind].head_dim
    parameters["rope_type"] = "default" if parameters.get("factor", 1) == 1 else "linear"
    return parameters, read_share(PARTIAL, given, int(head_dim * given) // 2 * 2, head_dim)


def _write_rotations(facts: Facts) -> dict[str, Any]:
    keys, depth = write_bases(facts), facts["model.depth"]
    fractions = facts.get(FRACTION, [1.0] * depth)
    each = zip(keys["layer_types"], fractions, facts["model.head_dim"], strict=True)
    for kind, fraction, head_dim in each:
        if fraction < 1:
            shown = share(round(fraction * head_dim), head_dim)
            keys["rope_parameters"][kind] |= {"rope_type": "proportional", PARTIAL: shown}
    return keys


# One base where attention is full, and there a share of the pairs, another where it slides.
PROPORTIONAL_PER_KIND = Clause(_read_rotations, _write_rotations)


# Full attention has no W_v, and its values are W_k x.
VALUES_FROM_KEYS = Clause(
    lambda c: {SHARED: [int(c.attention_k_eq_v and kind == FULL) for kind in c.layer_types]},
    lambda facts: {"attention_k_eq_v": any(facts[SHARED])},
)


def _read_kv_sources(config: Any) -> Keys:
    kinds, shared = config.layer_types, config.num_kv_shared_layers
    if not shared:
        return {}
    before = kinds[: len(kinds) - shared]
    if getattr(config, "use_double_wide_mlp", False):
        raise unsaid("use_double_wide_mlp", True, f" with num_kv_shared_layers={shared}")
    last = {kind: i for i, kind in enumerate(before)}
    return {KV_FROM: [*range(len(before)), *(last[kind] for kind in kinds[len(before) :])]}


def _write_kv_sources(facts: Facts) -> dict[str, Any]:
    """Without inputs per layer, transformers 5.23 computes shared keys only where it is also to
    return its hidden states: else it cuts the inputs, which there are none of."""
    shared = sum(source != i for i, source in enumerate(facts[KV_FROM]))
    return {"num_kv_shared_layers": shared, **({"output_hidden_states": True} if shared else {})}


# The last blocks use the keys and values of the last one before them of their kind.
KV_OF_LAST = Clause(_read_kv_sources, _write_kv_sources)


def _read_dense_gemma4(config: Any) -> Keys:
    blocks = [*config.per_layer_config]
    if config.use_bidirectional_attention == "all":
        raise unsaid("use_bidirectional_attention", "all")
    check_eps(config, "rmsnorm_np", "the norm of values")
    return {
        "model.head_dim": [block.head_dim for block in blocks],
        "model.kv_heads": [block.num_key_value_heads for block in blocks],
        "v_norm": "rmsnorm_np",
        "architecture.attention_scale": 1.0,
    }


def _write_dense_gemma4(facts: Facts) -> dict[str, Any]:
    """A config has one size for sliding blocks, and one for the others."""
    kinds, keys = write_bases(facts)["layer_types"], {}
    for fact, sliding, full in (
        ("model.head_dim", "head_dim", "global_head_dim"),
        ("model.kv_heads", "num_key_value_heads", "num_global_key_value_heads"),
    ):
        sizes = facts[fact]
        of_kind = dict(zip(reversed(kinds), reversed(sizes), strict=True))
        keys[sliding] = of_kind.get(SLIDING, sizes[0])
        keys[full] = of_kind.get(FULL, sizes[0])
    return keys


# Heads of one size where attention is full, of another where it slides, no experts.
GEMMA4 = Clause(_read_dense_gemma4, _write_dense_gemma4)


INPUTS, STREAMS = "placement.connection.inputs", "placement.connection.streams"
LAUREL_RANK, SPARSITY = "placement.learned.c.rank", "architecture.activation_sparsity"


def _read_inputs(config: Any) -> Keys:
    if not (inputs := config.hidden_size_per_layer_input):
        return {"placement": "gemma4"}
    equal("vocab_size_per_layer_input", "vocab_size").read(config)
    return {"placement": "gemma4_inputs", INPUTS: inputs}


def _write_inputs(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_size_per_layer_input": facts.get(INPUTS, 0),
        "vocab_size_per_layer_input": facts["vocab_size"],
    }


# A small input of each block next to the residual stream, or none      Gemma 4
LAYER_INPUTS = Clause(_read_inputs, _write_inputs)


def _read_gemma3n(config: Any) -> Keys:
    inputs, (width, *_) = config.hidden_size_per_layer_input, config.intermediate_size
    for key, wanted in (
        ("hidden_size_per_layer_input", max(inputs, 1)),
        ("altup_active_idx", 0),
        ("altup_correct_scale", True),
        ("intermediate_size", [width] * config.num_hidden_layers),
    ):
        if (value := getattr(config, key)) != wanted:
            raise unsaid(key, value, f"; known is {wanted}")
    check_eps(config, "rmsnorm_np", "the norm of values")
    return {
        **_read_inputs(config),
        "placement": "gemma3n_inputs",
        STREAMS: config.altup_num_inputs,
        LAUREL_RANK: config.laurel_rank,
        SPARSITY: [float(share) for share in config.activation_sparsity_pattern],
        "model.mlp_width": width,
        "v_norm": "rmsnorm_np",
        "architecture.attention_scale": 1.0,
    }


# Streams of AltUp that inputs are added to, LAuReL, and a share of each mlp's hidden units below a
# threshold. It is read after the sizes: all mlps have as many units.
GEMMA3N = Clause(
    _read_gemma3n,
    lambda facts: {
        **_write_inputs(facts),
        "altup_num_inputs": facts.get(STREAMS, 1),
        "laurel_rank": facts.get(LAUREL_RANK, 1),
        "activation_sparsity_pattern": facts[SPARSITY],
    },
)
