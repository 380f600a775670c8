"""A model as facts: KEY -> value, the keys those of the config, each value in one spelling.

Two models with the same facts are the same function of their weights. Our facts are read from a
config, and theirs by their family. `overrides_of` spells facts as what one types for them.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from transformer_norms.config.chosen_files import option_content, read_config_file
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config, flat
from transformer_norms.formula import Formula
from transformer_norms.kinds import plain
from transformer_norms.model.architecture import MADE_BY, PER_BLOCK
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement
from transformer_norms.model.position import scaling_factors
from transformer_norms.model.sites import SHARES
from transformer_norms.model.sizes import formula_values
from transformer_norms.names import option_files, options

Facts = dict[str, Any]

# Keys of a norm's file that describe it, or that have a fact of their own.
_BESIDE = ("source", "formula", "eps", "allow_noncausal")
SIZES = ("width", "depth", "heads", "kv_heads", "head_dim", "mlp_width", "context")
ORDER_KEYS = ("embed_scale_order", "qk_norm_order")
SCALING = "position.scaling"
ROTATION = (
    SCALING,
    *(f"architecture.rope_{key}" for key in ("base", "fraction", "interleaved", "proportional")),
)
LATENT_KEYS = ("q_rank", "kv_rank", "rope_dim", "value_dim")  # as numbers, 0 for none
UNUSED = (  # where a family does not mention them
    *("smear", "attention_cap", "attention_gate", "logit_cap", "value_residual", "value_gate"),
)
AS_CHOSEN = (
    *(*UNUSED, *ORDER_KEYS, "rope_interleaved", "rope_proportional"),
    *("temperature_scale", "value_scale"),
)
# Sizes inside a placement, which are facts of their own.
PLACEMENT_SIZES = (
    "placement.connection.streams",
    "placement.connection.inputs",
    "placement.learned.c.rank",
)
# Facts that follow from another: where that differs there is nothing to compare.
FOLLOWERS = {"norm": ("norm.eps",), "position": ROTATION, "placement": PLACEMENT_SIZES}
# The facts of a family that does not mention them.
DEFAULTS: Facts = {
    "embed": "none",
    "final_norm": "norm",
    "qk_norm": "none",
    "v_norm": "none",
    "position": "rope",
    SCALING: "none",
    "attention": "softmax",
    "architecture.bias": frozenset(),
    **{f"architecture.{key}": "none" for key in UNUSED},
    **{f"architecture.{key}": 1.0 for key in ("embed_scale", "logit_scale")},
    "architecture.value_scale": 1,
    **{f"architecture.{key}": "before" for key in ORDER_KEYS},
    **{f"architecture.rope_{key}": False for key in ("interleaved", "proportional")},
}


def facts_of(config: Config, vocab_size: int) -> Facts:
    """The facts of one of our models. A fact that is no number is a few words."""
    sizes, architecture = config.model, config.architecture
    mlp, values = config.mlp, formula_values(config.model)
    blocks = config.blocks
    bases = [own.rope_base for own in blocks]
    own_sizes = flat({"placement": config.placement})
    turned = [own.rope_dim or own.sizes.head_dim for own in blocks]
    fractions = [own.rope_fraction for own in blocks]
    qk_norm, v_norm = (
        f"{word} with {config.qkv}" if word in SHARES and config.qkv != "norm" else word
        for word in (config.qk_norm, config.v_norm)
    )
    return complete_facts(
        {
            "placement": _name("placement", config),
            **{key: size for key, size in own_sizes.items() if key in PLACEMENT_SIZES},
            "norm": _name("norm", config),
            "norm.eps": config.norm.get("eps"),
            "embed": config.embed,
            "final_norm": config.final_norm,
            "qk_norm": qk_norm,
            "v_norm": v_norm,
            "position": config.position.type,
            SCALING: scaling_fact(config.position.get("scaling"), bases),
            "attention": config.attention.type,
            "mlp": (mlp.type, mlp.activation),
            "vocab_size": vocab_size,
            **{f"model.{key}": plain(getattr(sizes, key)) for key in SIZES},
            **{f"architecture.{key}": [getattr(own, key) for own in blocks] for key in PER_BLOCK},
            "architecture.tied": architecture.tied,
            "architecture.bias": biased(architecture.bias),
            **{
                f"architecture.{key}": _number(getattr(architecture, key), values)
                for key in ("embed_scale", "logit_scale")
            },
            "architecture.attention_scale": number_or_each(
                [_number(architecture.attention_scale, formula_values(b.sizes)) for b in blocks]
            ),
            **{f"architecture.{key}": getattr(architecture, key) for key in AS_CHOSEN},
            "architecture.value_dim": [
                own_value_dim(own.value_dim, own.sizes.head_dim) for own in blocks
            ],
            "architecture.rope_fraction": [
                whole_pairs(*each) for each in zip(turned, fractions, strict=True)
            ],
        }
    )


def scaling_fact(scaling: Any, bases: Sequence[float]) -> Any:
    """A scaling with the factor of each block, 1 where nothing turns, and with its attention factor
    as a number. It is none where no block is scaled."""
    each = zip(scaling_factors(scaling, len(bases)), bases, strict=True)
    factors = [factor if base else 1.0 for factor, base in each]
    scaled = [factor for factor in factors if factor != 1]
    if not scaled:
        return "none"
    fact = {**scaling, "factor": factors}
    if formula := fact.get("attention_factor"):
        fact["attention_factor"] = number_or_each([Formula(formula)({"factor": f}) for f in scaled])
    return fact


def number_or_each(each: list[Any]) -> Any:
    """One number where all blocks have it, else the list of them."""
    return each[0] if all(number == each[0] for number in each) else each


def number_of_each(fact: Any, depth: int) -> list[Any]:
    """The number of each block, from a fact that is one number or a list of them."""
    return fact if isinstance(fact, list) else [fact] * depth


def first(fact: Any) -> Any:
    """The number of the first block. It is near, where a family has one number for all."""
    return fact[0] if isinstance(fact, list) else fact


def own_value_dim(value_dim: int, head_dim: int) -> int:
    """0 where values have the size of queries: else two facts would say one thing."""
    return 0 if value_dim == head_dim else value_dim


def complete_facts(facts: Facts) -> Facts:
    """The facts with the defaults added, and without those that play no part: a gate's bias where
    there is no gate, rotation where positions are learned. A fact of PER_BLOCK that is one number
    is that of all blocks."""
    facts, depth = {**DEFAULTS, **facts}, facts["model.depth"]
    equal_share, rest = divmod(facts["model.width"], facts["model.heads"])
    head_dim = facts.setdefault("model.head_dim", "none" if rest else equal_share)
    facts.setdefault("model.kv_heads", facts["model.heads"])
    for key in PER_BLOCK:
        fact = facts.get(f"architecture.{key}", _usual(key, depth))
        facts[f"architecture.{key}"] = number_of_each(fact, depth)
    if not any(facts["architecture.temperature_floor"]):
        facts.pop("architecture.temperature_scale", None)
    if head_dim != "none":
        scales = [each_dim**-0.5 for each_dim in number_of_each(head_dim, 1)]
        facts.setdefault("architecture.attention_scale", number_or_each(scales))
    facts["architecture.rope_proportional"] &= min(facts["architecture.rope_fraction"]) < 1
    own = [source == i for i, source in enumerate(facts["architecture.kv_from_block"])]
    marks = facts["architecture.values_from_keys"]
    facts["architecture.values_from_keys"] = [
        bool(mark and has_keys) for mark, has_keys in zip(marks, own, strict=True)
    ]
    facts["architecture.bias"] = facts["architecture.bias"] & biasable_roles(facts)
    if facts["position"] in ("rope", "none", "alibi"):  # nothing is added to the embedded tokens
        facts["architecture.embed_scale_order"] = "before"
    if facts["position"] != "rope":
        facts = {key: value for key, value in facts.items() if key not in ROTATION}
    if facts["qk_norm"] == "none":
        del facts["architecture.qk_norm_order"]
    return facts


def _usual(key: str, depth: int) -> list[float]:
    """The numbers of the blocks of a family that does not mention a key of PER_BLOCK."""
    return [*range(depth)] if key == "kv_from_block" else [float(key == "rope_fraction")] * depth


def biasable_roles(facts: Facts) -> set[str]:
    """The roles that a model of these facts has, of those that may have a bias."""
    there = {"gate": MLPS[facts["mlp"][0]].gated}
    for role, key in MADE_BY.items():
        there[role] = first(facts[f"architecture.{key}"]) not in ("none", 0)
    return {role for role in BIASED if there.get(role, True)}


def whole_pairs(head_dim: int, fraction: float) -> float:
    """The share of a head that turns. It is an even number of dimensions."""
    return max(2, int(head_dim * fraction) // 2 * 2) / head_dim


def share(dimensions: int, whole: int) -> float:
    """The least number from dimensions / whole on for which int(whole * number) is `dimensions`."""
    number = dimensions / whole
    return number if int(whole * number) == dimensions else math.nextafter(number, 2)


def _name(axis: str, config: Config) -> str:
    """The name of the choice. If its values were changed, or an equation was typed, it is the name
    of the file that says the same. An equation that no file has is a name of its own."""
    chosen, content = config.choices[axis], _content(axis, getattr(config, axis))
    files = option_files(axis)
    same_content = [name for name in files if _content_of_name(axis, name) == content]
    if chosen in same_content:
        return chosen
    if same_content:  # peri is sandwich, and brings a norm on the embedding
        brought = {name: read_config_file(files[name]).get("brings", {}) for name in same_content}
        return min(same_content, key=lambda name: len(brought[name].keys() - {"init"}))
    return chosen if _content_of_name(axis, chosen) == content else f"{chosen}, changed"


@cache
def _content_of_name(axis: str, name: str) -> Any:
    """The content of a file, or of an equation that needs nothing beside it. Else the name."""
    if file := option_files(axis).get(name):
        return _content(axis, read_config_file(file))
    try:
        return _content(axis, {"equation": name}) if axis == "placement" else name
    except ValueError:
        return name


def eps_of(norm: str) -> float:
    """Returns the eps that a norm's file states."""
    return float(option_content("norm", norm)["eps"])


def branch_factor(placement: str) -> float:
    """Returns the number that every sub-layer's output is multiplied by, or 1 where it is none."""
    content = _content_of_name("placement", placement)
    plans = [] if isinstance(content, str) else [plan for _, plan in content[3]]
    factors = [plan.scale("b") for plan in plans] or [1]
    fixed = all(isinstance(b, (int, float)) and b == factors[0] for b in factors)
    return float(factors[0]) if fixed else 1.0


def _content(axis: str, node: Mapping[str, Any]) -> Any:
    """The part of a norm's or a placement's values that says what it computes."""
    if axis == "norm":
        return plain({key: value for key, value in node.items() if key not in _BESIDE})
    placement = Placement(**_without_sizes(node))
    streams, held = plain(placement.connection), placement.weight_constraint
    blocks = [entry.blocks.text for entry in placement.where]
    return placement.topology, streams, blocks, [*placement.everywhere()], held


def _without_sizes(node: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a placement without the sizes that are facts of their own."""
    left: dict[str, Any] = deepcopy(plain(node))
    for key in PLACEMENT_SIZES:
        _, *above, last = key.split(".")
        inside = left
        for part in above:
            inside = inside.get(part, {})
        inside.pop(last, None)
    return left


def _number(spec: Any, values: Mapping[str, float]) -> Any:
    if isinstance(spec, Mapping):
        return f"a learned {spec['learn']} from {spec['init']}"
    return 1.0 if spec == "none" else float(Formula(spec)(values))


def differences(facts: Facts, others: Facts) -> list[str]:
    """The keys on which two models differ, in the order of the facts. A key that follows from
    another is left out where both differ."""
    keys = dict.fromkeys((*facts, *others))
    wrong = [key for key in keys if not same(_compared(key, facts), _compared(key, others))]
    followers = {follower for key in wrong for follower in FOLLOWERS.get(key, ())}
    return [key for key in wrong if key not in followers]


def _compared(key: str, facts: Facts) -> Any:
    """The content of a file: peri holds the same placement as sandwich, and brings more along."""
    return _content_of_name(key, facts[key]) if key in ("placement", "norm") else facts.get(key)


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, but for the last digit of numbers."""
    if isinstance(one, float) and isinstance(two, (int, float)):
        return math.isclose(one, two, rel_tol=1e-14)
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return all(same(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return all(same(one[key], two[key]) for key in one)
    return bool(one == two)


def format_fact(value: Any) -> str:
    """A fact in a few words."""
    if isinstance(value, frozenset):
        return " ".join(role for role in BIASED if role in value) or "none"
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_fact(item)}" for key, item in value.items())
    if isinstance(value, list):
        each = [f"{number:g}" for number in value]
        return each[0] if len(set(each)) == 1 else " ".join(each)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------- facts as typed keys


def overrides_of(facts: Facts) -> list[str]:
    """The keys to type for the model that the facts describe."""
    values = {key: value for key, value in facts.items() if key not in ("vocab_size", "attention")}
    kind, activation = values.pop("mlp")
    bias, everywhere = facts["architecture.bias"], biased(True) & biasable_roles(facts)
    roles = [role for role in BIASED if role in bias]
    if values["placement"] not in option_files("placement"):
        values["placement.equation"] = values.pop("placement")
    dims = number_of_each(facts["model.head_dim"], facts["model.depth"])
    for key, value, formula in (
        ("embed_scale", 1.0, "none"),
        ("embed_scale", facts["model.width"] ** 0.5, "sqrt(d)"),
        ("logit_scale", 1.0, "none"),
        ("attention_scale", number_or_each([dim**-0.5 for dim in dims]), "1/sqrt(dh)"),
    ):
        if same(facts[f"architecture.{key}"], value):
            values[f"architecture.{key}"] = formula
    if "architecture.rope_base" in facts:
        parts = (facts[f"architecture.{key}"] for key in ("rope_fraction", "rope_dim"))
        values["architecture.rope_fraction"] = [
            share(round(fraction * (part or dim)), part or dim)
            for fraction, part, dim in zip(*parts, dims, strict=True)
        ]
    marks = facts["architecture.values_from_keys"]
    values["architecture.values_from_keys"] = [int(mark) for mark in marks]
    for key, each in values.items():
        if isinstance(each, list) and all(number == each[0] for number in each):
            values[key] = each[0]
    for key in PER_BLOCK.keys() - {"rope_base", "rope_fraction"}:
        if facts[f"architecture.{key}"] == _usual(key, facts["model.depth"]):
            values[f"architecture.{key}"] = "none"
    values["architecture.bias"] = bias == everywhere or roles or False
    mlps = [read_config_file(file) for file in option_files("mlp").values()]
    content = {"type": kind, "activation": activation}
    if content in mlps:
        values["mlp"] = options("mlp")[mlps.index(content)]
    else:
        usual = "swiglu" if MLPS[kind].gated else "gelu"
        values |= {"mlp": usual, "mlp.activation": activation}
    return [as_typed(key, value) for key, value in values.items()]
