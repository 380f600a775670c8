"""Warnings about strange choices, one sentence each. The program trains whatever the user types,
and the record, `explain` and the report repeat the warnings."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from textwrap import shorten
from typing import Any

from transformer_norms.config.checks.formulas import is_of_weights
from transformer_norms.config.tree import AUTO_ARCHITECTURE, Config
from transformer_norms.formula import Formula
from transformer_norms.kinds import value_at
from transformer_norms.model.connections import CONNECTIONS
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement, head_sites, latent_sites, read_placement
from transformer_norms.model.position import (
    POSITIONS,
    NoPosition,
    rotary_fractions,
    temperature_floors,
)
from transformer_norms.model.settings import MADE_BY, block_sizes, block_values, formula_values
from transformer_norms.model.sites import HEAD_SITES, REST_OF_B
from transformer_norms.validation import parameters

BOUNDED = ("dyt", "derf")  # norms that bound each feature and divide by nothing


def cautions(config: Config, typed: Collection[str]) -> list[str]:
    """Returns what is strange about a resolved config, of which the user typed the keys `typed`."""
    placement = read_placement(config.placement)
    return [
        *_stream(config, placement),
        *_ignored(config, placement),
        *_typed_in_vain(config, placement, typed),
        *_heads(config, placement),
        *_unlike_the_paper(config, placement, typed),
        *(unverified_line(*each) for each in unverified(config, placement).items()),
        *_rates(config),
        *_unlike_the_file(config, typed),
        *_unchecked(config),
    ]


def _stream(config: Config, placement: Placement) -> Iterator[str]:
    sites = {name for name, site in placement.sites() if site.norm != "none"}
    plans = [plan for _, plan in placement.everywhere()]
    norms = {site.norm for name, site in placement.sites() if name not in HEAD_SITES}
    no_norm = config.norm.type == "none" and norms <= {"norm"}
    bounded = sites & {"pre", "out", "post"} and not no_norm
    connection = CONNECTIONS.get(placement.connection.get("type", ""))
    bounded = bounded or getattr(connection, "bounded", False)
    ends_normed = placement.ends_normed(config.model.depth)
    final_type = config.norm.type if config.final_norm == "norm" else config.final_norm
    final = final_type != "none"
    if any(plan.coefficient("a") == 0 and not plan.adds for plan in plans):
        yield "placement.equation: a sub-layer has no skip, and gradients reach x through f alone"
    if not bounded and not any(isinstance(plan.coefficient("b"), Mapping) for plan in plans):
        yield "there is no norm on the stream: nothing bounds its growth"
    if not final and (not ends_normed or no_norm):
        yield "final_norm: the stream reaches the head without a norm"
    if final and ends_normed:
        yield "final_norm: it follows a norm, and at the start changes nothing"
    std = config.init.std
    zeros = [role for role in ("output", "down") if str(std.get(role)) in ("0", "0.0")]
    convex = any(plan.coefficient("a") == REST_OF_B for plan in plans)
    if zeros and ("out" in sites or convex):
        yield (
            f"init: {' and '.join(zeros)} start at zero under a norm of the branch, which scales "
            "what little comes to full size"
        )


def _ignored(config: Config, placement: Placement) -> Iterator[str]:
    """Yields the choices that change nothing."""
    depth, norm = config.model.depth, config.choices["norm"]
    sites = [*placement.sites(), *head_sites(config.qk_norm, config.v_norm).items()]
    sites += latent_sites(config.architecture).items()
    norms = {site.norm for _, site in sites} | {config.embed, config.final_norm}
    if "norm" not in norms and norm != "none":
        yield f"norm={norm} stands nowhere in placement={config.choices.placement}"
    for number, entry in enumerate(placement.where):
        if not any(entry.blocks({"i": i, "l": i + 1, "N": depth}) for i in range(depth)):
            yield (
                f"placement.where[{number}]: no block of model.depth={depth} meets "
                f"'{entry.blocks.text}'"
            )
    values = block_values(config.model, 0)
    plans = [plan for name, plan in placement.everywhere() if name != "block"]
    pairs = [(plan.coefficient("a"), plan.coefficient("b")) for plan in plans]
    if all(isinstance(c, (int, float, str)) and c != REST_OF_B for pair in pairs for c in pair):
        numbers = [(Formula(a)(values), Formula(b)(values)) for a, b in pairs]
        if all(a == b for a, b in numbers) and any(a != 1 for a, _ in numbers):
            yield "placement.equation: a and b are one number, and norms forget a common scale"
    if depth == 1 and config.architecture.value_residual != "none":
        yield "architecture.value_residual: there is no block after the first, to which it adds"
    warmup, steps = config.schedule.get("warmup", 0), config.trainer.steps
    share = config.schedule.decay if config.schedule.type == "wsd" else 0
    decay = round(steps * (1 - share))
    if warmup >= steps:
        yield f"schedule.warmup={warmup} is as long as trainer.steps={steps}: the rate never peaks"
    elif warmup > decay:
        yield f"schedule.warmup={warmup} ends behind step {decay}, where the rate begins to fall"


def _typed_in_vain(config: Config, placement: Placement, typed: Collection[str]) -> Iterator[str]:
    """Yields the typed settings that nothing reads beside what was chosen."""
    reasons = _reasons_not_to_act(config, placement)
    for key in sorted(reasons.keys() & set(typed)):
        if value_at(config, key) not in _UNSET:
            yield f"{key} is typed and changes nothing: {reasons[key]}"


_UNSET = ("none", False, "before")  # the values that ask for nothing


def _reasons_not_to_act(config: Config, placement: Placement) -> dict[str, str]:
    """Returns {key: reason} for the settings that change nothing in this config."""
    how, position, depth = config.architecture, POSITIONS[config.position.type], config.model.depth
    reasons: dict[str, str] = {}

    def add(keys: Iterable[str], reason: str, is_idle: bool) -> None:
        reasons.update(dict.fromkeys(keys, reason) if is_idle else {})

    named = {name for base in position.__mro__ for name in parameters(base)}
    chosen = f"position={config.choices.position}"
    turned = {"bases": "base", "fractions": "fraction", "interleaved": "interleaved"}
    turned["proportional"] = "proportional"
    whole = min(rotary_fractions(how.rope_fraction, depth)) == 1
    add(["architecture.rope_proportional"], "architecture.rope_fraction is 1", whole)
    for argument, key in turned.items():
        idle = argument not in named
        add([f"architecture.rope_{key}"], f"{chosen} does not turn queries and keys", idle)
    floors = temperature_floors(how.temperature_floor, depth, config.model.context)
    add(
        ["architecture.temperature_scale"],
        "architecture.temperature_floor is none",
        not any(floors),
    )
    adds = position.forward is not NoPosition.forward
    add(["architecture.embed_scale_order"], "no embed_scale stands here", how.embed_scale == "none")
    add(["architecture.embed_scale_order"], f"{chosen} adds nothing to the tokens", not adds)
    sites = {*dict(placement.sites()), *head_sites(config.qk_norm, config.v_norm)}
    idle = not sites & {"q", "k"}
    add(["architecture.qk_norm_order"], "there is no norm on queries and keys", idle)
    if "bases" not in named:
        add(["architecture.qk_norm_order"], f"{chosen} does not turn queries and keys", True)
    add(["data.val_fraction"], "data.val_paths is val", bool(config.data.get("val_paths", ())))
    add(["init.stream_by"], "init.stream is none", config.init.get("stream", "none") == "none")
    absent = {role: getattr(how, key) == "none" for role, key in MADE_BY.items()}
    absent |= {"position": config.position.type != "learned", "head": how.tied}
    absent |= {"gate": not MLPS[config.mlp.type].gated, "smear_gate": how.smear == "none"}
    absent |= {key: getattr(how, key) == "none" for key in ("value_embedding", "value_gate")}
    for role, is_absent in absent.items():
        add([f"init.std.{role}"], f"the model has no {role} of its own to draw", is_absent)
    return reasons


def _heads(config: Config, placement: Placement) -> Iterator[str]:
    sizes = config.model
    few = any(block_sizes(sizes, i).kv_heads != sizes.heads for i in range(sizes.depth))
    chosen = head_sites(config.qk_norm, config.v_norm)
    sites = [("placement.equation: ", name, site) for name, site in placement.sites()]
    sites += [
        (f"{'v' if name == 'v' else 'qk'}_norm: ", name, site) for name, site in chosen.items()
    ]
    if config.trainer.qk_clip != "none":
        if {"q", "k"} & {name for _, name, _ in sites}:
            yield "trainer.qk_clip: it scales W_q and W_k, and the norms on q and k undo that"
        elif placement.weight_constraint != "none":
            yield "trainer.qk_clip: it scales W_q and W_k, whose lengths a constraint holds"
    for key, name, site in sites:
        if name == "v" and site.share == "full" and few:
            yield f"{key}v=norm@full spans the few heads of model.kv_heads alone"
        kind = config.norms.get(site.norm, {}).get("type")
        if name in ("q", "k") and kind in BOUNDED:
            yield (
                f"{key}{name}={kind} bounds each coordinate of a query or key, and not its length"
            )


def _unlike_the_paper(
    config: Config, placement: Placement, typed: Collection[str]
) -> Iterator[str]:
    """Yields the choices that differ from those that a norm or a placement brings, unless a preset
    made both."""
    choices = config.choices
    made = {
        **{key: choices[key] for key in ("embed", "final_norm", "qk_norm", "v_norm", "init")},
        **{key: value_at(config, key) for key in AUTO_ARCHITECTURE},
    }
    names = {key.rpartition(".")[2]: key for key in made}
    if config.architecture.tied:
        names["tied_logit_scale"] = "architecture.logit_scale"
    brought = {"norm": config.norm.get("brings", {}), "placement": placement.brings}
    init = config.init.get("brings", {})  # which give way to those of norm and placement
    wins = {**brought["norm"], **brought["placement"]}
    brought["init"] = {key: value for key, value in init.items() if key not in wins}
    for axis, brings in brought.items():
        for short, wanted in brings.items():
            key = names.get(short)
            if key is None or made[key] == wanted or _is_no_scale(config, made[key], wanted):
                continue
            if choices["preset"] == "none" or {axis, key} & set(typed):
                value, expected = _value_text(made[key]), _value_text(wanted)
                yield f"{key}={value}, where {axis}={choices[axis]} goes with {expected}"
    if MLPS[config.mlp.type].gated and "gate" in config.init.std:
        yield (
            f"mlp={choices['mlp']} has a gate, on which the paper of init={choices['init']} is "
            "silent; it starts as the rest of the mlp does"
        )


def unverified(config: Config, placement: Placement) -> dict[str, str]:
    """Returns {AXIS=NAME: what could not be verified of it}."""
    choices, about = config.choices, config.about
    texts = {
        f"preset={choices['preset']}": about.unverified,
        f"recipe={choices['recipe']}": about.recipe_unverified,
        f"init={choices['init']}": config.init.get("unverified"),
        f"attention={choices['attention']}": config.attention.get("unverified"),
    }
    for name, norm in {choices["norm"]: config.norm, **config.norms}.items():
        texts[f"norm={name}"] = norm.get("unverified")
    texts[f"placement={choices['placement']}"] = placement.unverified
    return {choice: text for choice, text in texts.items() if text not in (None, "", "none")}


def unverified_line(choice: str, text: str) -> str:
    """Returns the warning about a choice, whose first words name what is not verified."""
    short = shorten(text, _SHORT, placeholder=" ... (explain has the whole)")
    return f"{choice} is not verified: {short}"


_SHORT = 140  # letters


def _is_no_scale(config: Config, made: Any, wanted: Any) -> bool:
    """Whether none stands for a wanted factor of 1, as muP's is at its base width."""
    if made != "none" or not isinstance(wanted, str) or wanted == "none":
        return False
    try:
        return bool(Formula(wanted)(formula_values(config.model)) == 1)
    except ValueError:  # a word, such as the name of a norm
        return False


def _rates(config: Config) -> Iterator[str]:
    """Yields where the rates of groups of parameters are not those that the init states."""
    stated, factors = config.init.get("lr_factor", {}), config.optimizer.get("lr_factor")
    init, values = config.choices.init, formula_values(config.model)
    latents = {config.architecture.q_rank, config.architecture.kv_rank} != {"none"}
    for group, formula in stated.items():
        each = is_of_weights(Formula(formula), group, latents)
        wanted = formula if each else Formula(formula)(values)
        found = factors.get(group) if isinstance(factors, Mapping) else 1.0
        if found not in (wanted, formula):
            shown = found if isinstance(found, str) else f"{found:g}"
            yield f"optimizer.lr_factor.{group}={shown}, where init={init} goes with {formula}"


def _unchecked(config: Config) -> Iterator[str]:
    """Yields the norms whose class nothing is compared with."""
    for name, norm in {config.choices["norm"]: config.norm, **config.norms}.items():
        if "formula" not in norm:
            yield f"norm={name} states no formula, so that nothing checks what its class computes"


def _unlike_the_file(config: Config, typed: Collection[str]) -> Iterator[str]:
    """Yields the typed values that make another equation than the one that the file states."""
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
