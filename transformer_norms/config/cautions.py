"""Warnings: what is strange about a config, one sentence each. Whatever the user types is trained,
and the record, `explain` and the report say so."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from transformer_norms.config.tree import AUTO_ARCHITECTURE, Config
from transformer_norms.formula import Formula
from transformer_norms.kinds import value_at
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement, read_placement
from transformer_norms.model.settings import formula_values
from transformer_norms.model.sites import HEAD_SITES, REST_OF_B

BOUNDED = ("dyt", "derf")  # norms that bound each feature and divide by nothing


def cautions(config: Config, typed: Collection[str]) -> list[str]:
    """Returns what is strange about a resolved config, of which the user typed the keys `typed`."""
    placement = read_placement(config.placement)
    return [
        *_stream(config, placement),
        *_ignored(config, placement),
        *_heads(config, placement),
        *_unlike_the_paper(config, placement, typed),
        *_unlike_the_file(config, typed),
    ]


def _stream(config: Config, placement: Placement) -> Iterator[str]:
    sites = {name for name, site in placement.sites() if site.norm != "none"}
    normless = config.norm.type == "none"
    named = {site.norm for site_name, site in placement.sites() if site_name not in HEAD_SITES}
    bounded = sites & {"pre", "out", "post"} and not (normless and named <= {"norm"})
    ends_normed = placement.ends_normed(config.model.depth)
    final = config.final_norm not in ("none", *(["norm"] if normless else []))
    learned = [plan.coefficient("b") for _, plan in placement.everywhere()]
    if any(plan.coefficient("a") == 0 for _, plan in placement.everywhere()):
        yield "placement.equation: a sub-layer has no skip, and gradients reach x through f alone"
    if not bounded and not any(isinstance(b, Mapping) for b in learned):
        yield "there is no norm on the stream: nothing bounds its growth"
    if not final and (not ends_normed or (normless and named <= {"norm"})):
        yield "final_norm: the stream reaches the head without a norm"
    if final and ends_normed:
        yield "final_norm: it follows a norm, and at the start changes nothing"
    std = config.init.std
    zeros = [role for role in ("output", "down") if str(std.get(role)) in ("0", "0.0")]
    convex = any(plan.coefficient("a") == REST_OF_B for _, plan in placement.everywhere())
    if zeros and ("out" in sites or convex):
        yield (
            f"init: {' and '.join(zeros)} start at zero under a norm of the branch, which scales "
            "what little comes to full size"
        )


def _ignored(config: Config, placement: Placement) -> Iterator[str]:
    """Yields the choices that change nothing."""
    depth, norm = config.model.depth, config.choices["norm"]
    named = {site.norm for _, site in placement.sites()} | {config.embed, config.final_norm}
    if "norm" not in named and config.qk_norm in ("none", "l2") and norm != "none":
        yield f"norm={norm} stands nowhere in placement={config.choices.placement}"
    for number, entry in enumerate(placement.where):
        if not any(entry.blocks({"i": i, "l": i + 1, "N": depth}) for i in range(depth)):
            yield (
                f"placement.where[{number}]: no block of model.depth={depth} meets "
                f"'{entry.blocks.text}'"
            )
    values = {**formula_values(config.model), "i": 0, "l": 1}
    plans = [plan for name, plan in placement.everywhere() if name != "block"]
    pairs = [(plan.coefficient("a"), plan.coefficient("b")) for plan in plans]
    if all(isinstance(c, (int, float, str)) and c != REST_OF_B for pair in pairs for c in pair):
        numbers = [(Formula(a)(values), Formula(b)(values)) for a, b in pairs]
        if all(a == b for a, b in numbers) and any(a != 1 for a, _ in numbers):
            yield "placement.equation: a and b are one number, and norms forget a common scale"
    warmup, steps = config.schedule.get("warmup", 0), config.trainer.steps
    if warmup >= steps:
        yield f"schedule.warmup={warmup} is as long as trainer.steps={steps}: the rate never peaks"


def _heads(config: Config, placement: Placement) -> Iterator[str]:
    sizes = config.model
    for name, site in placement.sites():
        if name == "v" and site.share == "full" and sizes.kv_heads != sizes.heads:
            yield "placement.equation: v=norm@full spans the few heads of model.kv_heads alone"
        kind = config.norms.get(site.norm, {}).get("type")
        if name in ("q", "k") and kind in BOUNDED:
            yield (
                f"placement.equation: {name}={kind} bounds each coordinate of a query or key, and "
                "not its length"
            )


def _unlike_the_paper(
    config: Config, placement: Placement, typed: Collection[str]
) -> Iterator[str]:
    """Yields the choices that differ from those that a norm or a placement brings, unless a preset
    made both."""
    choices = config.choices
    here = {
        **{key: choices[key] for key in ("embed", "final_norm", "qk_norm", "init")},
        **{key: value_at(config, key) for key in AUTO_ARCHITECTURE},
    }
    names = {key.rpartition(".")[2]: key for key in here}
    brought = {"norm": config.norm.get("brings", {}), "placement": placement.brings}
    for axis, brings in brought.items():
        for short, wanted in brings.items():
            key = names.get(short)
            if key is None or here[key] == wanted:
                continue
            if choices["preset"] == "none" or {axis, key} & set(typed):
                node = f"{axis}={choices[axis]}"
                there = _value_text(wanted)
                yield f"{key}={_value_text(here[key])}, where {node} goes with {there}"
    if MLPS[config.mlp.type].gated and "gate" in config.init.std:
        yield (
            f"mlp={choices['mlp']} has a gate, on which the paper of init={choices['init']} is "
            "silent; it starts as the rest of the mlp does"
        )
    if config.about.unverified != "none":
        yield f"preset={choices['preset']} is not verified: {config.about.unverified}"
    if placement.unverified:
        yield f"placement={choices['placement']} is not verified: {placement.unverified}"


def _unlike_the_file(config: Config, typed: Collection[str]) -> Iterator[str]:
    """Typed values that make another formula or equation than the one that the file states."""
    choices = config.choices
    for key in sorted(typed):
        axis, _, own = key.partition(".")
        if axis == "placement" and own and "placement.equation" not in typed:
            name = choices[axis]
            yield f"{key} is typed: what is computed is not the equation of placement={name}"


def _value_text(value: Any) -> str:
    """Returns a value, or a learned coefficient in a few words."""
    if isinstance(value, Mapping):
        return f"a learned {value['learn']} from {value['init']}"
    return str(value)
