"""Only Llama 4 needs these clauses: chunks, a temperature, norms where queries and keys turn."""

from typing import Any

from transformer_norms.hf.clauses.general import Clause, Keys, check_eps, unsaid
from transformer_norms.hf.clauses.rotation import FULL, tokens_of_kind
from transformer_norms.hf.facts import Facts

CHUNK, FLOOR = "architecture.attention_chunk", "architecture.temperature_floor"
TEMPERATURE = "architecture.temperature_scale"
CHUNKED = "chunked_attention"


def _write_chunks(facts: Facts) -> dict[str, Any]:
    chunks = facts[CHUNK]
    kinds = [CHUNKED if chunk else FULL for chunk in chunks]
    return {"attention_chunk_size": max(chunks) or facts["model.context"], "layer_types": kinds}


# One size of chunks, for the blocks of one kind.
CHUNKS = Clause(
    lambda config: {CHUNK: tokens_of_kind(config, "attention_chunk_size", CHUNKED)}, _write_chunks
)


def _read_temperature(config: Any) -> Keys:
    marks = config.no_rope_layers[: config.num_hidden_layers]
    floor = config.floor_scale if config.attn_temperature_tuning else 0
    return {FLOOR: [0 if turns else floor for turns in marks], TEMPERATURE: config.attn_scale}


def _write_temperature(facts: Facts) -> dict[str, Any]:
    if not any(floors := facts[FLOOR]):
        return {"attn_temperature_tuning": False}
    return {"floor_scale": max(floors), "attn_scale": facts[TEMPERATURE]}


# The temperature of queries that nothing turns.
TEMPERATURE_WHERE_NOT_ROTATED = Clause(_read_temperature, _write_temperature)


def _read_rotated_norms(config: Any) -> Keys:
    """The placement has the norms in three blocks of four. ValueError where other blocks turn, or
    where the norms' eps is not that of its file."""
    if not config.use_qk_norm:
        return {"placement": "pre"}
    marks = [bool(mark) for mark in config.no_rope_layers[: config.num_hidden_layers]]
    if marks != [i % 4 != 3 for i in range(len(marks))]:
        why = " with use_qk_norm: every fourth block has 0, and no other"
        raise unsaid("no_rope_layers", config.no_rope_layers, why)
    check_eps(config, "rmsnorm_np_eps5", "the norm of queries and keys")
    return {"placement": "llama4"}


# A norm without gain on the queries and keys that turn.
NORMED_WHERE_ROTATED = Clause(
    _read_rotated_norms, lambda facts: {"use_qk_norm": facts["placement"] == "llama4"}
)
