"""These clauses say which blocks turn their queries and keys, by which base, and which have a
window."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_norms.hf.clauses.general import Clause, Keys, head_dim_of, unsaid
from transformer_norms.hf.facts import SCALING, Facts, first
from transformer_norms.model.position import SCALINGS, scaling_factors
from transformer_norms.validation import parameters as parameters_of

BASE, FRACTION = "architecture.rope_base", "architecture.rope_fraction"
WINDOW = "architecture.sliding_window"
SLIDING, FULL, PARTIAL = "sliding_attention", "full_attention", "partial_rotary_factor"
THEIR_KEYS = {"type": "rope_type", "original_context": "original_max_position_embeddings"}
Parameters = Mapping[str, Any]  # what their config says of the rotation of some blocks


def mscale(factor: float, share: float = 1) -> float:
    """1 + 0.1 ln(factor), YaRN's attention factor; DeepSeek has a share of the logarithm."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_scaling(config: Any, parameters: Parameters) -> dict[str, Any]:
    """A scaling by our keys, of the factor 1 where there is none."""
    given = {key: value for key, value in parameters.items() if value is not None}
    if (kind := given.get("rope_type", "default")) == "default":
        return {"factor": 1.0}
    if kind not in SCALINGS:
        raise unsaid("rope_type", kind, f"; known are default, {', '.join(SCALINGS)}")
    if (part := given.get(PARTIAL, 1)) != 1:
        raise unsaid(PARTIAL, part, f" with {kind}")
    original = given.get(THEIR_KEYS["original_context"])
    factor = given.get("factor", config.max_position_embeddings / original if original else 1.0)
    one, of_all = given.get("mscale"), given.get("mscale_all_dim")
    attention = mscale(factor, one) / mscale(factor, of_all) if one and of_all else mscale(factor)
    values = {
        **{"beta_fast": 32, "beta_slow": 1, "attention_factor": attention, **given},
        **{"type": kind, "factor": factor, "original_context": original},
        # Theirs looks for it outside of the parameters that a kind of blocks has.
        "truncate": bool(config.rope_parameters.get("truncate", True)),
    }
    if kind == "yarn" and factor == 1 != (attention := values["attention_factor"]):
        raise unsaid("attention_factor", attention, " with factor=1")
    return {key: values[key] for key in ("type", *parameters_of(SCALINGS[kind])) if key in values}


def read_turns(config: Any, blocks: Sequence[Parameters | None]) -> Keys:
    """The base of each block, 0 where nothing turns, and their scaling. ValueError for two."""
    each = [_read_scaling(config, parameters or {}) for parameters in blocks]
    factors = [scaling["factor"] for scaling in each]
    scalings = [{**scaling, "factor": factors} for scaling in each if scaling["factor"] != 1]
    if any(scaling != scalings[0] for scaling in scalings):
        raise ValueError("rope_parameters has no counterpart here: it has two scalings")
    bases = [float(parameters["rope_theta"]) if parameters else 0.0 for parameters in blocks]
    return {BASE: bases, SCALING: [*scalings, "none"][0]}


def turns_of(facts: Facts) -> list[tuple[float, float]]:
    """The base and the factor of each block."""
    scaling, bases = facts.get(SCALING, "none"), facts.get(BASE, [0] * facts["model.depth"])
    return [*zip(bases, scaling_factors(scaling, len(bases)), strict=True)]


def write_turn(facts: Facts, turn: tuple[float, float] | None = None) -> dict[str, Any]:
    """Their parameters of a base and a factor; by default, of the largest that blocks have."""
    base, factor = turn or max(turns_of(facts))
    scaling = {"type": "default"} if factor == 1 else {**facts[SCALING], "factor": factor}
    theirs = {THEIR_KEYS.get(key, key): first(value) for key, value in scaling.items()}
    return {**theirs, "rope_theta": base or 1e4}


def rotary(
    turned: Callable[[Any], Sequence[Any]], write: Callable[[Facts], dict[str, Any]]
) -> Clause:
    """One base for all blocks that turn, which are those where `turned` of their config is true.
    `write` says which turn."""

    def read(config: Any) -> Keys:
        return read_turns(config, [config.rope_parameters if t else None for t in turned(config)])

    return Clause(read, lambda facts: {"rope_parameters": write_turn(facts), **write(facts)})


ROTARY = rotary(lambda config: [True] * config.num_hidden_layers, lambda facts: {})
# Each block is marked: 1 where it is turned, 0 where nothing turns      SmolLM3
ROTATED_WHERE_MARKED = rotary(
    lambda config: config.no_rope_layers[: config.num_hidden_layers],
    lambda facts: {"no_rope_layers": [int(base > 0) for base, _ in turns_of(facts)]},
)


def _write_sliding(facts: Facts) -> dict[str, Any]:
    bases = [base for base, _ in turns_of(facts)]
    some = not all(bases) or any(facts[WINDOW])
    return {
        "layer_types": [SLIDING if base and some else FULL for base in bases],
        "sliding_window": _window_or_context(facts) if some else None,
    }


# Where a window is set, only the blocks that it is for are turned      EXAONE 4
ROTATED_WHERE_SLIDING = rotary(
    lambda config: [
        config.sliding_window is None or kind == SLIDING for kind in config.layer_types
    ],
    _write_sliding,
)


def share(dimensions: int, whole: int) -> float:
    """The least number from dimensions / whole on for which int(whole * number) is `dimensions`."""
    number = dimensions / whole
    return number if int(whole * number) == dimensions else math.nextafter(number, 2)


def turned_dimensions(facts: Facts) -> int:
    """The dimensions of a head that turn, the most that blocks have."""
    return round(max(facts.get(FRACTION, [1])) * first(facts["model.head_dim"]))


def read_share(key: str, given: Any, turned: int, head_dim: int) -> float:
    """The share of a head that turns, where the value `given` at their key turns so many of its
    dimensions. ValueError where these are not pairs."""
    if turned % 2 or not 2 <= turned <= head_dim:
        raise unsaid(key, given, f": it turns {turned} of {head_dim} dimensions, in pairs")
    return share(turned, head_dim)


def _read_partial(config: Any) -> Keys:
    whole, head_dim = {**config.rope_parameters}, head_dim_of(config)
    given = whole.pop(PARTIAL, 1.0)
    turns = read_turns(config, [whole] * config.num_hidden_layers)
    return {**turns, FRACTION: read_share(PARTIAL, given, int(head_dim * given), head_dim)}


def _write_partial(facts: Facts) -> dict[str, Any]:
    part = share(turned_dimensions(facts), first(facts["model.head_dim"]))
    return {"rope_parameters": {**write_turn(facts), PARTIAL: part}}


# One base for all blocks, and a share of each head that turns.
PARTIAL_ROTARY = Clause(_read_partial, _write_partial)


def _read_dimensions(config: Any) -> Keys:
    head_dim, turned = config.hidden_size // config.num_attention_heads, config.rotary_dim
    return {BASE: 1e4, FRACTION: read_share("rotary_dim", turned, turned or 0, head_dim)}


# The first `rotary_dim` dimensions of each head, by the base 10000      GPT-J
ROTARY_DIMENSIONS = Clause(_read_dimensions, lambda facts: {"rotary_dim": turned_dimensions(facts)})


def write_bases(facts: Facts) -> dict[str, Any]:
    """A block slides where it has a window, or, where none has one, where its base, or its factor,
    is not the largest."""
    turns, windows = turns_of(facts), facts[WINDOW]
    full = max(turns)
    slides = [bool(w) if any(windows) else turn < full for turn, w in zip(turns, windows)]  # noqa: B905
    of_kind = {
        kind: next((turn for turn, here in zip(turns, slides) if here == slide), full)  # noqa: B905
        for kind, slide in ((SLIDING, True), (FULL, False))
    }
    return {
        "rope_parameters": {kind: write_turn(facts, turn) for kind, turn in of_kind.items()},
        "layer_types": [SLIDING if slide else FULL for slide in slides],
    }


# One base and factor where attention is full, another where it slides      Gemma 3
BASE_PER_KIND = Clause(
    lambda config: read_turns(
        config, [config.rope_parameters[kind] for kind in config.layer_types]
    ),
    write_bases,
)


# ------------------------------------------------------------------ windows


def kinds_of(config: Any, own: str) -> list[str]:
    """The kind of each block: `own`, or full attention. ValueError for another one."""
    kinds = getattr(config, "layer_types", None) or [own] * config.num_hidden_layers
    if strange := sorted(set(kinds) - {own, FULL}):
        known = " and ".join(dict.fromkeys((own, FULL)))
        raise ValueError(f"layer_types: {strange[0]} has no counterpart here; known is {known}")
    return kinds


# Every block has full attention      Qwen3-Next
ALL_FULL = Clause(
    lambda config: {WINDOW: [0 for _ in kinds_of(config, FULL)]},
    lambda facts: {"layer_types": [FULL] * facts["model.depth"]},
)


def tokens_of_kind(config: Any, key: str, own: str) -> list[int]:
    """The number of tokens at a key for each block of the kind `own`, 0 for one of full attention.
    As many as the context hide nothing."""
    tokens = getattr(config, key)
    hides = tokens is not None and tokens < config.max_position_embeddings
    return [tokens if hides and kind == own else 0 for kind in kinds_of(config, own)]


def _window_or_context(facts: Facts) -> int:
    return max(facts[WINDOW]) or int(facts["model.context"])


def _kinds(facts: Facts) -> dict[str, Any]:
    some = any(facts[WINDOW])
    return {"layer_types": [SLIDING if w else FULL for w in facts[WINDOW]]} if some else {}


def window(write: Callable[[Facts], dict[str, Any]]) -> Clause:
    """One window. It is for all blocks, or for some, and then their kinds are written. Where there
    is none, `write` says None, or the context where the family's default layers want a number."""
    return Clause(lambda config: {WINDOW: tokens_of_kind(config, "sliding_window", SLIDING)}, write)


WINDOW_OF_ALL = window(lambda facts: {"sliding_window": max(facts[WINDOW]) or None})
WINDOW_IF_USED = window(
    lambda facts: {
        "sliding_window": max(facts[WINDOW]) or None,
        "use_sliding_window": any(facts[WINDOW]),
        **_kinds(facts),
    }
)
WINDOW_OF_SOME = window(
    lambda facts: {"sliding_window": _window_or_context(facts), **_kinds(facts)}
)
# The kinds, or all, are written by another clause.
WINDOW_OF_KINDS = window(lambda facts: {"sliding_window": _window_or_context(facts)})
WINDOW_OF_ANOTHER_CLAUSE = window(lambda facts: {})
