"""The clauses of a family's config: `read` makes facts of a config, `write` a config of facts.

A clause that cannot say a fact writes something near. Reading that config shows the difference.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_norms.hf.facts import (
    LATENT_KEYS,
    Facts,
    branch_factor,
    eps_of,
    first,
    number_of_each,
    number_or_each,
    own_value_dim,
    share,
)


class Clause(NamedTuple):
    """A part of a family's config.

    `read` returns the facts that a config of theirs states, and raises ValueError if it states what
    no fact can say. `write` returns the keys of their config that state the facts.
    """

    read: Callable[[Any], Facts] = lambda config: {}
    write: Callable[[Facts], dict[str, Any]] = lambda facts: {}


def same(keys: Mapping[str, str]) -> Clause:
    """Their key has the value of our fact."""

    def write(facts: Facts) -> dict[str, Any]:
        values = {theirs: first(facts.get(ours)) for theirs, ours in keys.items()}
        return {key: value for key, value in values.items() if value is not None}

    return Clause(lambda config: {keys[theirs]: getattr(config, theirs) for theirs in keys}, write)


def always(facts: Facts) -> Clause:
    """Facts that hold for the whole family."""
    return Clause(lambda config: facts)


def never(*keys: str) -> Clause:
    """These keys must be empty: what they switch on is not built here."""

    def read(config: Any) -> Facts:
        for key in keys:
            if value := getattr(config, key, None):
                raise ValueError(f"{key}={value} has no counterpart here")
        return {}

    return Clause(read)


def only(key: str, wanted: str) -> Clause:
    """Every block has the same word at this key; the others are not built here."""

    def read(config: Any) -> Facts:
        for word in getattr(config, key):
            if word != wanted:
                raise ValueError(f"{key}: {word} has no counterpart here; known is {wanted}")
        return {}

    return Clause(read, lambda facts: {key: [wanted] * facts["model.depth"]})


def _read_dense(config: Any) -> Facts:
    blocks = range(config.num_hidden_layers)
    if config.num_experts > 0 and (more := set(blocks) - set(config.mlp_only_layers)):
        raise ValueError(
            f"mlp_only_layers: block {min(more)} is not in it, and experts are not built"
        )
    return {}


# Every block has a dense mlp      Qwen3-Next
DENSE = Clause(_read_dense, lambda facts: {"mlp_only_layers": [*range(facts["model.depth"])]})


def _read_first_dense(config: Any) -> Facts:
    dense = config.first_k_dense_replace or 0
    if dense < config.num_hidden_layers:
        raise ValueError(
            f"first_k_dense_replace={dense}: block {dense} has experts, which are not built"
        )
    return {}


# The first blocks have a dense mlp, here all      DeepSeek-V2
FIRST_DENSE = Clause(
    _read_first_dense, lambda facts: {"first_k_dense_replace": facts["model.depth"]}
)


def _read_latents(config: Any) -> Facts:
    for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        if not (size := getattr(config, key)):
            raise ValueError(f"{key}={size} has no counterpart here")
    if config.q_lora_rank == 0:
        raise ValueError("q_lora_rank=0 has no counterpart here; None leaves the latent out")
    if config.qk_rope_head_dim % 2:
        raise ValueError(
            f"qk_rope_head_dim={config.qk_rope_head_dim} has no counterpart here: dimensions "
            "turn in pairs"
        )
    if config.rms_norm_eps != 1e-6:
        raise ValueError(
            f"rms_norm_eps={config.rms_norm_eps:g} has no counterpart here: the norms on latents "
            "keep 1e-06"
        )
    if config.num_key_value_heads != config.num_attention_heads:
        raise ValueError(
            f"num_key_value_heads={config.num_key_value_heads} has no counterpart here: it is not "
            f"num_attention_heads={config.num_attention_heads}"
        )
    head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    return {
        "model.head_dim": head_dim,
        "architecture.q_rank": config.q_lora_rank or 0,
        "architecture.kv_rank": config.kv_lora_rank,
        "architecture.rope_dim": config.qk_rope_head_dim,
        "architecture.value_dim": own_value_dim(config.v_head_dim, head_dim),
    }


def _write_latents(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    sizes = {key: first(facts[f"architecture.{key}"]) for key in LATENT_KEYS}
    return {
        "num_key_value_heads": facts["model.heads"],
        "q_lora_rank": sizes["q_rank"] or None,
        "kv_lora_rank": sizes["kv_rank"],
        "qk_rope_head_dim": sizes["rope_dim"],
        "qk_nope_head_dim": head_dim - sizes["rope_dim"],
        "v_head_dim": sizes["value_dim"] or head_dim,
    }


# Attention through latents, with one key of rope for all heads      DeepSeek-V2
LATENTS = Clause(_read_latents, _write_latents)


def equal(key: str, wanted: str) -> Clause:
    """Two keys must be the same: what lies between them is not built here."""

    def read(config: Any) -> Facts:
        here, there = getattr(config, key), getattr(config, wanted)
        if here != there:
            raise ValueError(f"{key}={here} has no counterpart here: it is not {wanted}={there}")
        return {}

    return Clause(read)


def choice(key: str, values: Mapping[bool, Facts]) -> Clause:
    """A switch stands for facts. The first of them that hold are written."""

    def write(facts: Facts) -> dict[str, Any]:
        for value, wanted in values.items():
            if all(facts.get(name) == fact for name, fact in wanted.items()):
                return {key: value}
        return {}

    return Clause(lambda config: values[bool(getattr(config, key))], write)


def inner_width(key: str = "") -> Clause:
    """The width inside the mlp. Without a value, or a key, it is four times the model's width."""
    return Clause(
        lambda config: {"model.mlp_width": getattr(config, key, None) or 4 * config.hidden_size},
        lambda facts: {key: facts["model.mlp_width"]} if key else {},
    )


def head_dim_of(config: Any) -> int:
    """A head's width. Most of their code reads it where a config has it."""
    equal_share: int = config.hidden_size // config.num_attention_heads
    return getattr(config, "head_dim", None) or equal_share


def _write_head_dim(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    equal_share = facts["model.width"] // facts["model.heads"]
    return {} if head_dim == equal_share else {"head_dim": head_dim}


HEAD_DIM = Clause(lambda config: {"model.head_dim": head_dim_of(config)}, _write_head_dim)

# Their name -> ours. The first name of a kind is the one that is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def activation(key: str, mlp: str, names: Mapping[str, str] = ACTIVATIONS) -> Clause:
    """The activation of an mlp of the kind `mlp`."""

    def read(config: Any) -> Facts:
        name = getattr(config, key)
        if name not in names:
            known = ", ".join(names)
            raise ValueError(f"{key}={name} has no counterpart here; known are {known}")
        return {"mlp": (mlp, names[name])}

    def write(facts: Facts) -> dict[str, Any]:
        ours = facts["mlp"][1]
        return {key: next((name for name in names if names[name] == ours), "relu")}

    return Clause(read, write)


def biases(flags: Mapping[str, str] = {}, fixed: str = "") -> Clause:
    """A flag gives its roles a bias. The roles in `fixed` always have one."""

    def read(config: Any) -> Facts:
        on = [roles for flag, roles in flags.items() if getattr(config, flag)]
        return {"architecture.bias": frozenset(" ".join([fixed, *on]).split())}

    def write(facts: Facts) -> dict[str, Any]:
        bias = facts["architecture.bias"]
        return {flag: bool(bias & set(roles.split())) for flag, roles in flags.items()}

    return Clause(read, write)


def cap(key: str, fact: str) -> Clause:
    """A cap, which is None where there is none."""

    def read(config: Any) -> Facts:
        value = getattr(config, key)
        return {fact: "none" if value is None else float(value)}

    return Clause(read, lambda facts: {key: None if facts[fact] == "none" else facts[fact]})


def divisor(key: str, fact: str) -> Clause:
    """Their key divides by what our fact multiplies with."""

    def write(facts: Facts) -> dict[str, Any]:
        factor = facts[fact]
        return {key: 1 / factor} if isinstance(factor, float) and factor else {}

    return Clause(lambda config: {fact: 1 / getattr(config, key)}, write)


def _read_residual(config: Any) -> Facts:
    factor = float(config.residual_multiplier)
    return {"placement": "pre" if factor == 1 else f"x + {factor} * f(norm(x))"}


# The branch of a pre-norm, multiplied by a number      Granite
RESIDUAL_MULTIPLIER = Clause(
    _read_residual, lambda facts: {"residual_multiplier": branch_factor(facts["placement"])}
)


def _write_query_scalar(facts: Facts) -> dict[str, Any]:
    scale = facts["architecture.attention_scale"]
    number = isinstance(scale, float) and 0 < scale <= 1
    return {"query_pre_attn_scalar": round(scale**-2) if number else 1}


# q k^T / sqrt(query_pre_attn_scalar), a whole number      Gemma
QUERY_SCALAR = Clause(
    lambda config: {"architecture.attention_scale": config.query_pre_attn_scalar**-0.5},
    _write_query_scalar,
)
# The embedding times sqrt(width)      Gemma
ROOT_WIDTH = Clause(lambda config: {"architecture.embed_scale": config.hidden_size**0.5})


# ALiBi knows no last position; released configs say how long the sequences of training were.
SEQUENCE = Clause(
    lambda config: {"model.context": getattr(config, "seq_length", 2048)},
    lambda facts: {"seq_length": facts["model.context"]},
)

# --------------------------------------------------------------------- rotation and windows

BASE, FRACTION = "architecture.rope_base", "architecture.rope_fraction"
WINDOW = "architecture.sliding_window"
CHUNK, FLOOR = "architecture.attention_chunk", "architecture.temperature_floor"
TEMPERATURE = "architecture.temperature_scale"
PROPORTIONAL, SHARED = "architecture.rope_proportional", "architecture.values_from_keys"
KV_FROM = "architecture.kv_from_block"
SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def _read_base(parameters: Mapping[str, Any]) -> float:
    """The base. ValueError if the angles are no plain powers of it."""
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"rope_type={kind} has no counterpart here; known is default")
    return float(parameters["rope_theta"])


def _write_base(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base or 1e4}


# One base for all blocks.
ROTARY = Clause(
    lambda config: {BASE: [_read_base(config.rope_parameters)] * config.num_hidden_layers},
    lambda facts: {"rope_parameters": _write_base(max(facts.get(BASE, [0])))},
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
    base = _write_base(max(facts.get(BASE, [0])))
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
    bases = {kind: _read_base(config.rope_parameters[kind]) for kind in set(config.layer_types)}
    return {BASE: [bases[kind] for kind in config.layer_types]}


def _write_bases(facts: Facts) -> dict[str, Any]:
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
        "rope_parameters": {kind: _write_base(base) for kind, base in of_kind.items()},
        "layer_types": [SLIDING if slide else FULL for slide in slides],
    }


# One base where attention is full, another where it slides      Gemma 3
BASE_PER_KIND = Clause(_read_bases, _write_bases)


def _read_rotated(config: Any) -> Facts:
    base, everywhere = _read_base(config.rope_parameters), config.sliding_window is None
    return {BASE: [base if everywhere or kind == SLIDING else 0.0 for kind in config.layer_types]}


def _write_rotated(facts: Facts) -> dict[str, Any]:
    bases = facts.get(BASE, [0])
    some = not all(bases) or any(facts[WINDOW])
    return {
        "rope_parameters": _write_base(max(bases)),
        "layer_types": [SLIDING if base and some else FULL for base in bases],
        "sliding_window": _window_or_context(facts) if some else None,
    }


# Where a window is set, only the blocks that it is for are turned      EXAONE 4
ROTATED_WHERE_SLIDING = Clause(_read_rotated, _write_rotated)


def _read_marked(config: Any) -> Facts:
    base = _read_base(config.rope_parameters)
    marks = config.no_rope_layers[: config.num_hidden_layers]
    return {BASE: [base if turns else 0.0 for turns in marks]}


def _write_marked(facts: Facts) -> dict[str, Any]:
    bases = facts.get(BASE, [0] * facts["model.depth"])
    marks = [int(base > 0) for base in bases]
    return {"rope_parameters": _write_base(max(bases)), "no_rope_layers": marks}


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


# ------------------------------------------------------------------------------------- Llama 4


def _read_chunks(config: Any) -> Facts:
    """A chunk as long as the context hides nothing."""
    size, kinds = config.attention_chunk_size, config.layer_types
    if strange := sorted(set(kinds) - {CHUNKED, FULL}):
        raise ValueError(f"layer_types: {strange[0]} has no counterpart here")
    hides = size < config.max_position_embeddings
    return {CHUNK: [size if hides and kind == CHUNKED else 0 for kind in kinds]}


def _write_chunks(facts: Facts) -> dict[str, Any]:
    chunks = facts[CHUNK]
    kinds = [CHUNKED if chunk else FULL for chunk in chunks]
    return {"attention_chunk_size": max(chunks) or facts["model.context"], "layer_types": kinds}


# One size of chunks, for the blocks of one kind.
CHUNKS = Clause(_read_chunks, _write_chunks)


def _read_temperature(config: Any) -> Facts:
    marks = config.no_rope_layers[: config.num_hidden_layers]
    floor = config.floor_scale if config.attn_temperature_tuning else 0
    return {FLOOR: [0 if turns else floor for turns in marks], TEMPERATURE: config.attn_scale}


def _write_temperature(facts: Facts) -> dict[str, Any]:
    if not any(floors := facts[FLOOR]):
        return {"attn_temperature_tuning": False}
    return {"floor_scale": max(floors), "attn_scale": facts[TEMPERATURE]}


# The temperature of queries that nothing turns.
TEMPERATURE_WHERE_NOT_ROTATED = Clause(_read_temperature, _write_temperature)


def _read_rotated_norms(config: Any) -> Facts:
    """The placement has the norms in three blocks of four. ValueError where other blocks turn, or
    where the norms' eps is not that of its file."""
    if not config.use_qk_norm:
        return {"placement": "pre"}
    marks = [bool(mark) for mark in config.no_rope_layers[: config.num_hidden_layers]]
    if marks != [i % 4 != 3 for i in range(len(marks))]:
        raise ValueError(
            f"no_rope_layers={config.no_rope_layers} has no counterpart here beside use_qk_norm: "
            "every fourth block has 0, and no other"
        )
    _check_eps(config, "rmsnorm_np_eps5", "use_qk_norm: the norm of queries and keys")
    return {"placement": "llama4"}


def _check_eps(config: Any, norm: str, beside: str) -> None:
    """Raises ValueError if a config's eps is not that of the norm's file."""
    if config.rms_norm_eps != (eps := eps_of(norm)):
        given = f"rms_norm_eps={config.rms_norm_eps}"
        raise ValueError(f"{given} has no counterpart here beside {beside} has {eps}")


# A norm without gain on the queries and keys that turn.
NORMED_WHERE_ROTATED = Clause(
    _read_rotated_norms, lambda facts: {"use_qk_norm": facts["placement"] == "llama4"}
)


def _read_no_experts(config: Any) -> Facts:
    if config.moe_layers:
        raise ValueError(
            f"moe_layers: block {min(config.moe_layers)} is in it, and experts are not built"
        )
    return {}


NO_EXPERTS = Clause(_read_no_experts, lambda facts: {"moe_layers": []})


# ------------------------------------------------------------------------------------- Gemma 4


def _read_rotations(config: Any) -> Facts:
    turns = {kind: _read_rotation(config, kind) for kind in set(config.layer_types)}
    bases, fractions = zip(*(turns[kind] for kind in config.layer_types), strict=True)
    return {BASE: [*bases], FRACTION: [*fractions], PROPORTIONAL: True}


def _read_rotation(config: Any, kind: str) -> tuple[float, float]:
    """The base of a kind of blocks, and the share of a head's pairs that it turns."""
    parameters = config.rope_parameters[kind]
    if parameters.get("rope_type") != "proportional":
        return _read_base(parameters), 1.0
    given, factor = parameters.get("partial_rotary_factor", 1.0), parameters.get("factor", 1.0)
    head_dim = config.per_layer_config[kind].head_dim
    turned = int(head_dim * given) // 2 * 2
    if turned < 2 or factor != 1:
        said = f"factor={factor}" if turned >= 2 else f"partial_rotary_factor={given}"
        raise ValueError(f"{said} of {kind} has no counterpart here")
    return float(parameters["rope_theta"]), turned / head_dim


def _write_rotations(facts: Facts) -> dict[str, Any]:
    keys, depth = _write_bases(facts), facts["model.depth"]
    fractions = facts.get(FRACTION, [1.0] * depth)
    dims = number_of_each(facts["model.head_dim"], depth)
    for kind, fraction, head_dim in zip(keys["layer_types"], fractions, dims, strict=True):
        if fraction < 1:
            shown = share(round(fraction * head_dim), head_dim)
            partial = {"rope_type": "proportional", "partial_rotary_factor": shown}
            keys["rope_parameters"][kind] |= partial
    return keys


# One base where attention is full, and there a share of the pairs, another where it slides.
PROPORTIONAL_PER_KIND = Clause(_read_rotations, _write_rotations)


def _read_shared(config: Any) -> Facts:
    shared = config.attention_k_eq_v
    return {SHARED: [shared and kind == FULL for kind in config.layer_types]}


# Full attention has no W_v, and its values are W_k x.
VALUES_FROM_KEYS = Clause(_read_shared, lambda facts: {"attention_k_eq_v": any(facts[SHARED])})


def _read_kv_sources(config: Any) -> Facts:
    kinds, shared = config.layer_types, config.num_kv_shared_layers
    before = kinds[: len(kinds) - shared]
    if shared and getattr(config, "use_double_wide_mlp", False):
        raise ValueError(
            f"use_double_wide_mlp=True has no counterpart here beside num_kv_shared_layers={shared}"
        )
    last = {kind: i for i, kind in enumerate(before)}
    return {KV_FROM: [*range(len(before)), *(last[kind] for kind in kinds[len(before) :])]}


def _write_kv_sources(facts: Facts) -> dict[str, Any]:
    """Without inputs per layer, transformers 5.23 computes shared keys only where it is also to
    return its hidden states: else it cuts the inputs, which there are none of."""
    shared = sum(source != i for i, source in enumerate(facts[KV_FROM]))
    return {"num_kv_shared_layers": shared, **({"output_hidden_states": True} if shared else {})}


# The last blocks use the keys and values of the last one before them of their kind.
KV_OF_LAST = Clause(_read_kv_sources, _write_kv_sources)


def _read_dense_gemma4(config: Any) -> Facts:
    blocks = [*config.per_layer_config]
    if config.use_bidirectional_attention == "all":
        raise ValueError("use_bidirectional_attention=all has no counterpart here")
    _check_eps(config, "rmsnorm_np", "v_norm, which")
    return {
        "model.head_dim": number_or_each([block.head_dim for block in blocks]),
        "model.kv_heads": number_or_each([block.num_key_value_heads for block in blocks]),
        "v_norm": "rmsnorm_np",
        "architecture.attention_scale": 1.0,
    }


def _write_dense_gemma4(facts: Facts) -> dict[str, Any]:
    """A config has one size for sliding blocks, and one for the others."""
    kinds, keys = _write_bases(facts)["layer_types"], {}
    for fact, sliding, full in (
        ("model.head_dim", "head_dim", "global_head_dim"),
        ("model.kv_heads", "num_key_value_heads", "num_global_key_value_heads"),
    ):
        sizes = number_of_each(facts[fact], len(kinds))
        of_kind = dict(zip(reversed(kinds), reversed(sizes), strict=True))
        keys[sliding] = of_kind.get(SLIDING, sizes[0])
        keys[full] = of_kind.get(FULL, sizes[0])
    return keys


# Heads of one size where attention is full, of another where it slides, no experts.
GEMMA4 = Clause(_read_dense_gemma4, _write_dense_gemma4)


# ------------------------------------------------------------------- inputs per layer: Gemma 3n, 4

INPUTS, STREAMS = "placement.connection.inputs", "placement.connection.streams"
LAUREL_RANK, SPARSITY = "placement.learned.c.rank", "architecture.activation_sparsity"


def _read_inputs(config: Any) -> Facts:
    if not (inputs := config.hidden_size_per_layer_input):
        return {"placement": "gemma4"}
    if (rows := config.vocab_size_per_layer_input) != config.vocab_size:
        raise ValueError(
            f"vocab_size_per_layer_input={rows} has no counterpart here: it is not "
            f"vocab_size={config.vocab_size}"
        )
    return {"placement": "gemma4_inputs", INPUTS: inputs}


def _write_inputs(facts: Facts) -> dict[str, Any]:
    return {
        "hidden_size_per_layer_input": facts.get(INPUTS, 0),
        "vocab_size_per_layer_input": facts["vocab_size"],
    }


# A small input of each block beside the stream, or none      Gemma 4
LAYER_INPUTS = Clause(_read_inputs, _write_inputs)


def _read_gemma3n(config: Any) -> Facts:
    inputs = config.hidden_size_per_layer_input
    for key, value, wanted in (
        ("hidden_size_per_layer_input", inputs, max(inputs, 1)),
        ("altup_active_idx", config.altup_active_idx, 0),
        ("altup_correct_scale", config.altup_correct_scale, True),
        (
            "intermediate_size",
            config.intermediate_size,
            [config.intermediate_size[0]] * config.num_hidden_layers,
        ),
    ):
        if value != wanted:
            raise ValueError(f"{key}={value} has no counterpart here; known is {wanted}")
    _check_eps(config, "rmsnorm_np", "v_norm, which")
    return {
        **_read_inputs(config),
        "placement": "gemma3n_inputs",
        STREAMS: config.altup_num_inputs,
        LAUREL_RANK: config.laurel_rank,
        SPARSITY: [float(share) for share in config.activation_sparsity_pattern],
        "model.mlp_width": config.intermediate_size[0],
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
