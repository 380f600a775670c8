"""A model as facts: KEY -> value, the keys those of the config, each value in one spelling.

Two models with the same facts are the same function of their weights. The facts of a config of
transformers are those of the config of ours that its family composes.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.config.tree import Config, flat
from transformer_norms.explain.anatomy import ADDED
from transformer_norms.formula import Formula
from transformer_norms.kinds import plain
from transformer_norms.model.architecture import MADE_BY, PER_BLOCK, BlockChoices
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement
from transformer_norms.model.position import scaling_factors
from transformer_norms.model.sites import SHARES
from transformer_norms.model.sizes import OF_BLOCKS, formula_values
from transformer_norms.names import option_files

Facts = dict[str, Any]

# Keys of a norm's file that describe it, or that have their own fact.
_NOT_COMPUTED = ("source", "formula", "eps", "allow_noncausal")
SCALING = "position.scaling"
ROTATION = (
    SCALING,
    *(f"architecture.rope_{key}" for key in ("base", "fraction", "interleaved", "proportional")),
)
QK_ORDER, TEMPERATURE = "architecture.qk_norm_order", "architecture.temperature_scale"
# Sizes inside a placement, which have their own facts.
PLACEMENT_SIZES = (
    "placement.connection.streams",
    "placement.connection.inputs",
    "placement.learned.c.rank",
)
# Facts that follow from another: where that differs there is nothing to compare.
FOLLOWERS = {"norm": ("norm.eps",), "position": ROTATION, "placement": PLACEMENT_SIZES}


def facts_of(config: Config, vocab_size: int) -> Facts:
    """The facts of one of our models, without those that play no part: rotation where positions
    are learned, the bias of a gate where there is no gate. A fact that may differ between blocks is
    a list."""
    how, blocks, position = config.architecture, config.blocks, config.position.type
    values, inside = formula_values(config.model), flat({"placement": config.placement})
    qk_norm, v_norm = (
        f"{word} with {config.qkv}" if word in SHARES and config.qkv != "norm" else word
        for word in (config.qk_norm, config.v_norm)
    )
    roles, fractions = biased(how.bias) & biasable_roles(config), [*map(_turned_share, blocks)]
    facts = {
        "placement": _name("placement", config),
        **{key: size for key, size in inside.items() if key in PLACEMENT_SIZES},
        "norm": _name("norm", config),
        "norm.eps": config.norm.get("eps"),
        "embed": config.embed,
        "final_norm": config.final_norm,
        "qk_norm": qk_norm,
        "v_norm": v_norm,
        "position": position,
        SCALING: _scaling(config, blocks),
        "attention": config.attention.type,
        "mlp": (config.mlp.type, config.mlp.activation),
        "vocab_size": vocab_size,
        **{f"model.{key}": size for key, size in plain(config.model).items() if key != "dropout"},
        **{f"model.{key}": [getattr(own.sizes, key) for own in blocks] for key in OF_BLOCKS},
        **{f"architecture.{key}": value for key, value in vars(how).items()},
        **{f"architecture.{key}": [getattr(own, key) for own in blocks] for key in PER_BLOCK},
        "architecture.bias": (*(role for role in BIASED if role in roles),),
        # The embedded tokens are scaled before or after positions are added, if they are added.
        "architecture.embed_scale_order": how.embed_scale_order if position in ADDED else "before",
        "architecture.embed_scale": _number(how.embed_scale, values),
        "architecture.logit_scale": _number(how.logit_scale, values),
        "architecture.attention_scale": [_number(how.attention_scale, b.values) for b in blocks],
        "architecture.value_dim": [
            0 if own.value_dim == own.sizes.head_dim else own.value_dim for own in blocks
        ],
        "architecture.rope_fraction": fractions,
        "architecture.rope_proportional": how.rope_proportional and min(fractions) < 1,
        "architecture.values_from_keys": [
            own.values_from_keys and own.source is None for own in blocks
        ],
    }
    unused = {*(() if position == "rope" else ROTATION)}
    unused |= {QK_ORDER} if qk_norm == "none" else set()
    unused |= set() if any(own.temperature_floor for own in blocks) else {TEMPERATURE}
    return {key: fact for key, fact in facts.items() if key not in unused}


def _scaling(config: Config, blocks: list[BlockChoices]) -> Any:
    """A scaling with the factor of each block, 1 where nothing turns, and with its attention factor
    as a number for each block that is scaled. It is none where no block is scaled."""
    scaling = config.position.get("scaling", "none")
    each = zip(scaling_factors(scaling, len(blocks)), blocks, strict=True)
    factors = [factor if own.rope_base else 1.0 for factor, own in each]
    scaled = [factor for factor in factors if factor != 1]
    if not scaled:
        return "none"
    fact = {**scaling, "factor": factors}
    if formula := fact.get("attention_factor"):
        fact["attention_factor"] = [Formula(formula)({"factor": factor}) for factor in scaled]
    return fact


def _turned_share(own: BlockChoices) -> float:
    """The share of a head that turns. It is an even number of dimensions."""
    head_dim = own.rope_dim or own.sizes.head_dim
    return max(2, int(head_dim * own.rope_fraction) // 2 * 2) / head_dim


def first(fact: Any) -> Any:
    """The number of the first block. It is near, where a family has one number for all."""
    return fact[0] if isinstance(fact, list) else fact


def biasable_roles(config: Config) -> set[str]:
    """The roles that a model of this config has, of those that may have a bias."""
    there = {role: getattr(config.architecture, key) != "none" for role, key in MADE_BY.items()}
    there["gate"] = MLPS[config.mlp.type].gated
    return {role for role in BIASED if there.get(role, True)}


def _name(axis: str, config: Config) -> str:
    """The name of the choice. If its values were changed, or an equation was typed, it is the name
    of the file that says the same. An equation that no file has is its own name."""
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
    """The content of a file, or of an equation that needs nothing else. Else the name."""
    if file := option_files(axis).get(name):
        return _content(axis, read_config_file(file))
    try:
        return _content(axis, {"equation": name}) if axis == "placement" else name
    except ValueError:
        return name


def branch_factor(placement: str) -> float:
    """Returns the number that the first sub-layer's output is multiplied by, or 1 where it is not a
    number."""
    content = _content_of_name("placement", placement)
    factor = 1 if isinstance(content, str) else content[3][0][1].scale("b")
    return float(factor) if isinstance(factor, (int, float)) else 1.0


def _content(axis: str, node: Mapping[str, Any]) -> Any:
    """The part of a norm's or a placement's values that says what it computes."""
    if axis == "norm":
        return plain({key: value for key, value in node.items() if key not in _NOT_COMPUTED})
    placement = Placement(**_without_sizes(node))
    streams, held = plain(placement.connection), placement.weight_constraint
    blocks = [entry.blocks.text for entry in placement.where]
    return placement.topology, streams, blocks, [*placement.everywhere()], held


def _without_sizes(node: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a placement without the sizes that have their own facts."""
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
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_fact(item)}" for key, item in value.items())
    if isinstance(value, list):
        each = [number if isinstance(number, str) else f"{number:g}" for number in value]
        return each[0] if len(set(each)) == 1 else " ".join(each)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
