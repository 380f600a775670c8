"""A model as facts: KEY -> value, the keys those of the config, each value in one spelling.

Two models with the same facts are the same function of their weights. Ours are read from a
config, theirs by their family; what is typed for facts (spelling.py) makes a config of them.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from transformer_norms.config.building import plain
from transformer_norms.formula import Formula, formula_values
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.position import rotary_bases
from transformer_norms.names import option_files

Config = Mapping[str, Any]
Facts = dict[str, Any]

# What a file says of itself, and what has a fact of its own.
_BESIDE = ("source", "brings", "unverified", "formula", "eps", "allow_noncausal")
SIZES = ("width", "depth", "heads", "kv_heads", "head_dim", "mlp_width", "context")
ROTATION = tuple(f"architecture.rope_{key}" for key in ("base", "fraction", "interleaved"))
# Facts that are of another: without it there is nothing to compare.
FOLLOWERS = {"norm": ("norm.eps",), "position": ROTATION}
# What holds for a family that says nothing of it.
USUAL: Facts = {
    "embed": "none",
    "final_norm": "norm",
    "qk_norm": "none",
    "position": "rope",
    "attention": "softmax",
    "architecture.bias": frozenset(),
    "architecture.embed_scale": 1.0,
    "architecture.logit_scale": 1.0,
    "architecture.attention_cap": "none",
    "architecture.logit_cap": "none",
    "architecture.qk_norm_order": "before",
    "architecture.rope_interleaved": False,
}


def facts_of(config: Config, vocab_size: int) -> Facts:
    """The facts of one of our models. What no number can say is said in words."""
    sizes, architecture = config["model"], config["architecture"]
    mlp, values = config["mlp"], formula_values(config["model"])
    qk_norm = config["qk_norm"]
    if qk_norm != "none" and config["qkv"] != "norm":
        qk_norm = f"{qk_norm} with {config['qkv']}"
    return completed(
        {
            "placement": _name("placement", config),
            "norm": _name("norm", config),
            "norm.eps": config["norm"].get("eps"),
            **{key: config[key] for key in ("embed", "final_norm")},
            "qk_norm": qk_norm,
            "position": config["position"]["type"],
            "attention": config["attention"]["type"],
            "mlp": (mlp["type"], mlp["activation"]),
            "vocab_size": vocab_size,
            **{f"model.{key}": sizes[key] for key in SIZES},
            "architecture.tied": architecture["tied"],
            "architecture.bias": biased(architecture["bias"]),
            **{
                f"architecture.{key}": _number(architecture[key], values)
                for key in ("embed_scale", "attention_scale", "logit_scale")
            },
            **{
                f"architecture.{key}": architecture[key]
                for key in ("attention_cap", "logit_cap", "qk_norm_order", "rope_interleaved")
            },
            "architecture.rope_base": rotary_bases(architecture["rope_base"], sizes["depth"]),
            "architecture.rope_fraction": whole_pairs(
                sizes["head_dim"], architecture["rope_fraction"]
            ),
        }
    )


def completed(facts: Facts) -> Facts:
    """With what is usual, and without what plays no part: a gate's bias where there is no gate,
    rotation where positions are learned."""
    facts = {**facts, **{key: value for key, value in USUAL.items() if key not in facts}}
    whole, rest = divmod(facts["model.width"], facts["model.heads"])
    head_dim = facts.setdefault("model.head_dim", "none" if rest else whole)
    facts.setdefault("model.kv_heads", facts["model.heads"])
    if not rest or head_dim != "none":
        facts.setdefault("architecture.attention_scale", head_dim**-0.5)
    facts.setdefault("architecture.rope_fraction", 1.0)
    if not MLPS[facts["mlp"][0]].gated:
        facts["architecture.bias"] = facts["architecture.bias"] - {"gate"}
    if facts["position"] != "rope":
        facts = {key: value for key, value in facts.items() if key not in ROTATION}
    if facts["qk_norm"] == "none":
        del facts["architecture.qk_norm_order"]
    return facts


def whole_pairs(head_dim: int, fraction: float) -> float:
    """The share of a head that turns, of an even number of dimensions."""
    return max(2, int(head_dim * fraction) // 2 * 2) / head_dim


def share(dimensions: int, whole: int) -> float:
    """The least number above dimensions / whole, or it, of which int(whole * number) makes
    `dimensions` again."""
    number = dimensions / whole
    return number if int(whole * number) == dimensions else math.nextafter(number, 2)


def _name(axis: str, config: Config) -> str:
    """The choice whose file has this content: the one that was typed, unless it was changed."""
    content, chosen = _content(config[axis]), config["choices"][axis]
    names = sorted(option_files(axis), key=lambda name: name != chosen)
    found = (name for name in names if _of_file(axis, name) == content)
    return next(found, f"{chosen}, changed or a plugin's")


@cache
def _of_file(axis: str, name: str) -> Any:
    file = option_files(axis).get(name)
    return name if file is None else _content(OmegaConf.to_container(OmegaConf.load(file)))


def _content(node: Any) -> Any:
    return plain({key: value for key, value in node.items() if key not in _BESIDE})


def _number(spec: Any, values: Mapping[str, float]) -> Any:
    if isinstance(spec, Mapping):
        return f"a learned {spec['learn']} from {spec['init']}"
    return 1.0 if spec == "none" else float(Formula(spec)(values))


def differences(facts: Facts, others: Facts) -> list[str]:
    """The keys on which two models differ, in the order of the facts; where one brings others
    along, that one alone."""
    keys = dict.fromkeys((*facts, *others))
    wrong = [key for key in keys if not same(*(_compared(key, of) for of in (facts, others)))]
    followers = {follower for key in wrong for follower in FOLLOWERS.get(key, ())}
    return [key for key in wrong if key not in followers]


def _compared(key: str, facts: Facts) -> Any:
    """Two files may hold the same placement: peri is sandwich, and brings something along."""
    value = facts.get(key)
    return _of_file(key, value) if key in ("placement", "norm") and value is not None else value


def same(one: Any, other: Any) -> bool:
    """Numbers that took another way to the same value differ in their last digit."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def shown(value: Any) -> str:
    """A fact in a few words."""
    if isinstance(value, frozenset):
        return " ".join(role for role in BIASED if role in value) or "none"
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, list):
        each = [f"{number:g}" for number in value]
        return each[0] if len(set(each)) == 1 else " ".join(each)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
