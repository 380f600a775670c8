"""These clauses say which blocks turn their queries and keys, by which base, and which have a
window."""

from collections.abc import Mapping
from typing import Any

from transformer_norms.hf.clauses.general import Clause, head_dim_of
from transformer_norms.hf.facts import Facts, first, share

BASE, FRACTION = "architecture.rope_base", "architecture.rope_fraction"
WINDOW = "architecture.sliding_window"
SLIDING, FULL = "sliding_attention", "full_attention"


def read_base(parameters: Mapping[str, Any]) -> float:
    """The base. ValueError if the angles are no plain powers of it."""
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"rope_type={kind} has no counterpart here; known is default")
    return float(parameters["rope_theta"])


def write_base(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base or 1e4}


# One base for all blocks.
ROTARY = Clause(
    lambda config: {BASE: [read_base(config.rope_parameters)] * config.num_hidden_layers},
    lambda facts: {"rope_parameters": write_base(max(facts.get(BASE, [0])))},
)


def _read_partial(config: Any) -> Facts:
    head_dim, given = head_dim_of(config), config.rope_parameters.get("partial_rotary_factor", 1.0)
    turned = int(head_dim * given)
    facts = ROTARY.read(config)
    if turned % 2 or not 2 <= turned <= head_dim:
        raise ValueError(
            f"partial_rotary_factor={given} turns {turned} of {head_dim} dimensions, which "
            "has no counterpart here: they turn in pairs"
        )
    return {**facts, FRACTION: [turned / head_dim] * config.num_hidden_layers}


def _write_partial(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    turned = round(max(facts.get(FRACTION, [1])) * head_dim)
    base = write_base(max(facts.get(BASE, [0])))
    return {"rope_parameters": {**base, "partial_rotary_factor": share(turned, head_dim)}}


# One base for all blocks, and a share of each head that turns.
PARTIAL_ROTARY = Clause(_read_partial, _write_partial)


def _read_dimensions(config: Any) -> Facts:
    head_dim = config.hidden_size // config.num_attention_heads
    turned = config.rotary_dim
    if not turned or turned % 2 or turned > head_dim:
        raise ValueError(f"rotary_dim={turned} has no counterpart here: heads have {head_dim}")
    blocks = config.n_layer
    return {BASE: [1e4] * blocks, FRACTION: [turned / head_dim] * blocks}


# The first `rotary_dim` dimensions of each head, by the base 10000      GPT-J
ROTARY_DIMENSIONS = Clause(
    _read_dimensions,
    lambda facts: {
        "rotary_dim": round(max(facts.get(FRACTION, [1])) * first(facts["model.head_dim"]))
    },
)


def _read_bases(config: Any) -> Facts:
    bases = {kind: read_base(config.rope_parameters[kind]) for kind in set(config.layer_types)}
    return {BASE: [bases[kind] for kind in config.layer_types]}


def write_bases(facts: Facts) -> dict[str, Any]:
    """A block slides where it has a window, or, where none has one, where its base is not the
    largest."""
    bases, windows = [base or 1e4 for base in facts.get(BASE, [0])], facts[WINDOW]
    full = max(bases)
    slides = [bool(w) if any(windows) else base < full for base, w in zip(bases, windows)]  # noqa: B905
    of_kind = {
        kind: next((base for base, here in zip(bases, slides) if here == slide), full)  # noqa: B905
        for kind, slide in ((SLIDING, True), (FULL, False))
    }
    return {
        "rope_parameters": {kind: write_base(base) for kind, base in of_kind.items()},
        "layer_types": [SLIDING if slide else FULL for slide in slides],
    }


# One base where attention is full, another where it slides      Gemma 3
BASE_PER_KIND = Clause(_read_bases, write_bases)


def _read_rotated(config: Any) -> Facts:
    base, everywhere = read_base(config.rope_parameters), config.sliding_window is None
    return {BASE: [base if everywhere or kind == SLIDING else 0.0 for kind in config.layer_types]}


def _write_rotated(facts: Facts) -> dict[str, Any]:
    bases = facts.get(BASE, [0])
    some = not all(bases) or any(facts[WINDOW])
    return {
        "rope_parameters": write_base(max(bases)),
        "layer_types": [SLIDING if base and some else FULL for base in bases],
        "sliding_window": _window_or_context(facts) if some else None,
    }


# Where a window is set, only the blocks that it is for are turned      EXAONE 4
ROTATED_WHERE_SLIDING = Clause(_read_rotated, _write_rotated)


def _read_marked(config: Any) -> Facts:
    base = read_base(config.rope_parameters)
    marks = config.no_rope_layers[: config.num_hidden_layers]
    return {BASE: [base if turns else 0.0 for turns in marks]}


def _write_marked(facts: Facts) -> dict[str, Any]:
    bases = facts.get(BASE, [0] * facts["model.depth"])
    marks = [int(base > 0) for base in bases]
    return {"rope_parameters": write_base(max(bases)), "no_rope_layers": marks}


# Each block is marked: 1 where it is turned, by one base, 0 where nothing turns      SmolLM3
ROTATED_WHERE_MARKED = Clause(_read_marked, _write_marked)


def _read_windows(config: Any) -> Facts:
    """A window as long as the context hides nothing."""
    window, context = config.sliding_window, config.max_position_embeddings
    kinds = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    if strange := sorted(set(kinds) - {SLIDING, FULL}):
        raise ValueError(f"layer_types: {strange[0]} has no counterpart here")
    hides = window is not None and window < context
    return {WINDOW: [window if hides and kind == SLIDING else 0 for kind in kinds]}


def _window_or_context(facts: Facts) -> int:
    return max(facts[WINDOW]) or int(facts["model.context"])


def _kinds(facts: Facts) -> dict[str, Any]:
    some = any(facts[WINDOW])
    return {"layer_types": [SLIDING if w else FULL for w in facts[WINDOW]]} if some else {}


# One window. It is for all blocks, or for some, and then their kinds are written; where there is
# none, it is written as None, or as the context where the family's default layers want a number.
WINDOW_OF_ALL = Clause(_read_windows, lambda facts: {"sliding_window": max(facts[WINDOW]) or None})
WINDOW_IF_USED = Clause(
    _read_windows,
    lambda facts: {
        "sliding_window": max(facts[WINDOW]) or None,
        "use_sliding_window": any(facts[WINDOW]),
        **_kinds(facts),
    },
)
WINDOW_OF_SOME = Clause(
    _read_windows, lambda facts: {"sliding_window": _window_or_context(facts), **_kinds(facts)}
)
# The kinds, or all, are written by another clause.
WINDOW_OF_KINDS = Clause(_read_windows, lambda facts: {"sliding_window": _window_or_context(facts)})
WINDOW_OF_ANOTHER_CLAUSE = Clause(_read_windows)
