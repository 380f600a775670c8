"""Puts together the choices of a run, before they are checked: files of options, then a recipe,
then what was typed. The later one wins."""

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_norms.config.chosen_files import (
    check_option,
    compose_files,
    merge,
    option_content,
    option_reader,
)
from transformer_norms.config.overrides import HORIZONS, Typed
from transformer_norms.config.tree import CHOSEN, TIED_SCALE, ReadOption, flat
from transformer_norms.errors import ConfigError
from transformer_norms.model.architecture import ROLES
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.model.placement import Placement
from transformer_norms.names import (
    AXES,
    AXES_OF_A_RUN,
    did_you_mean,
    name_list,
    nearest,
    options,
    theirs,
    unknown,
)
from transformer_norms.text_tables import show
from transformer_norms.validation import parameters

EQUATION = "placement.equation"
_INSTEAD = (
    "type study=NAME for a folder of runs, plugins=FOLDER for your own files, or for a sweep -m "
    "hydra/launcher=NAME hydra.launcher.KEY=VALUE, and so of hydra/sweeper"
)
_STD = ["default", *ROLES]  # what init.std may name
# The keys of a file that another value would make untrue.
_FIXED = ("type", "formula", "source", "unverified")


@dataclass(frozen=True)
class Choices:
    """The choices before they are checked: the content of every node, the name chosen on each
    axis, and how the file of another name is read."""

    values: dict[str, Any]
    axes: dict[str, str]
    option: ReadOption


def choose(typed: Collection[Typed], folder: Path | None) -> Choices:
    """Returns the defaults with what was typed. Checks the names, without torch."""
    groups = [pair for pair in typed if pair.key in AXES]
    for pair in groups:
        check_option(pair, folder)
        if pair.key in ("sweep", "launcher") and pair.word not in ("none", "basic"):
            raise ConfigError(f"{pair}: is about many runs, and this is one (-m and sweep=NAME)")
    content, chosen = compose_files({pair.key: pair.word for pair in groups}, folder)
    # The rest of the content is about commands, and describes no run.
    values = {key: content[key] for key in CHOSEN}
    axes = {axis: chosen[axis] for axis in AXES_OF_A_RUN}
    choices = Choices(values, axes, option_reader(folder))
    keys = {pair.key for pair in typed}  # a preset may state its own init and its own head
    if values["architecture"]["tied"] is True and "architecture.tied" not in keys:
        choices = _untie(choices) if keys & {"init", "placement", "norm"} else choices
    recipe, axes_typed = content.get("recipe") or {}, {pair.key for pair in groups}
    return put_typed(_put_recipe(choices, recipe, axes_typed), typed)


def _untie(choices: Choices) -> Choices:
    """Returns the choices without a preset's tied head if that does not fit the init. The init
    brings a separate head, or a scale of the logits that is not the preset's."""
    values, name, init = choices.values, choices.axes["init"], choices.values["init"]
    if name == "auto":
        name = init.get("otherwise")
        for brings in (values[axis].get("brings") for axis in ("norm", "placement")):
            name = brings.get("init", name) if isinstance(brings, dict) else name
        init = choices.option("init", name) if name in options("init") else {}
    brings, scale = init.get("brings"), values["architecture"]["logit_scale"]
    if not isinstance(brings, dict):
        return choices
    separate = brings.get("tied") is False
    if not separate and scale in ("auto", brings.get(TIED_SCALE, scale)):
        return choices
    tied = "auto" if separate else False
    return replace(choices, values=merge(values, {"architecture": {"tied": tied}}))


def _put_recipe(choices: Choices, recipe: dict[str, Any], typed: Collection[str]) -> Choices:
    """Returns the choices with the values of a recipe, but for the axes that are typed, whose files
    have all their values. The values of architecture belong to the recipe's preset."""
    about = {f"recipe_{key}": recipe.pop(key, "none") for key in ("source", "unverified")}
    kept = {
        node: held
        for node, held in recipe.items()
        if ("preset" if node == "architecture" else node) not in typed
    }
    return replace(choices, values=merge(choices.values, {"about": about, **kept}))


def put_typed(choices: Choices, typed: Collection[Typed]) -> Choices:
    """Returns the choices with typed values. Typed steps are in the place of a file's tokens. A
    typed equation makes a separate placement, which keeps of the chosen file only the learned
    coefficients and the connection that the equation names."""
    pairs = [pair for pair in typed if pair.key not in AXES]
    horizons = {pair.key: pair for pair in pairs if pair.key in HORIZONS and pair.value != "auto"}
    if len(horizons) > 1:
        both = " and ".join(map(str, horizons.values()))
        raise ConfigError(f"{both}: both are the horizon; type one")
    steps_alone = {"trainer": {"tokens": "auto"}} if HORIZONS[0] in horizons else {}
    values, axes = place(merge(choices.values, steps_alone), typed), dict(choices.axes)
    own = {pair.key.split(".")[1] for pair in pairs if pair.key.startswith("placement.")}
    if "equation" in own:
        placement = {key: item for key, item in values["placement"].items() if key in own}
        named = set(re.findall(r"\w+", str([placement["equation"], placement.get("where")])))
        learned = values["placement"].get("learned", {})
        if isinstance(learned, dict):  # else it is refused where the placement is read
            learned = {name: spec for name, spec in learned.items() if name in named}
        if learned:
            placement["learned"] = learned
        if {READ, WRITE} & named and "connection" in values["placement"]:
            placement["connection"] = values["placement"]["connection"]
        values["placement"], axes["placement"] = placement, show(placement["equation"])
    return replace(choices, values=values, axes=axes)


# ------------------------------------------------------------------------- values in their places


def place(values: dict[str, Any], pairs: Iterable[Typed]) -> dict[str, Any]:
    """Returns the values with each KEY=VALUE in its place; those of axes have theirs already.
    Raises ConfigError for a key that does not exist."""
    placed = copy.deepcopy(values)
    for pair in (pair for pair in pairs if pair.key not in AXES):
        if pair.key.split(".")[0].split("/")[0] == "hydra":
            raise ConfigError(f"{pair}: Hydra's setting is not taken; {_INSTEAD}")
        axis, _, own = pair.key.partition(".")
        above, _, last = pair.key.rpartition(".")
        node = _node_at(placed, above)
        if (node is None or last not in node) and not _is_optional(axis, own):
            raise ConfigError(f"{pair}: {_no_such_key(pair.key, placed)}")
        if axis == "about" or (axis in AXES and own in _FIXED):
            if axis == "about":
                axis = "recipe" if own.startswith("recipe") else "preset"
            raise ConfigError(f"{pair}: {own} is what the file is; choose another, {axis}=NAME")
        if node is None:  # of an optional key
            node = placed[axis][own.partition(".")[0]] = {}
        held, value = node.get(last), pair.value
        if isinstance(held, dict) and pair.key not in (EQUATION, "trainer.branches"):
            kind = held.get("type")  # whose settings those of another class replace, and none
            if isinstance(value, dict):
                value = merge(held, value) if value.get("type", kind) == kind else value
            elif kind is None:
                raise ConfigError(f"{pair}: {pair.text} is not allowed; it is a group of keys")
        node[last] = value
    return placed


def _node_at(values: Mapping[str, Any], key: str) -> Any:
    """Returns the group of keys at a dotted key, or None where there is none."""
    node: Any = values
    for part in key.split(".") if key else ():
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def _is_optional(axis: str, own: str) -> bool:
    """Whether a key may be typed that its file leaves out."""
    if axis == "init":
        group, _, role = own.partition(".")
        return own in ("stream", "stream_by", "truncate") or (group == "std" and role in _STD)
    return axis == "placement" and own in parameters(Placement)


def _no_such_key(key: str, values: dict[str, Any]) -> str:
    """Returns what to say of a key that does not exist: which options of its axis have it, else the
    nearest key."""
    parent, _, last = key.rpartition(".")
    if parent == "init.std":
        return unknown("role", last, _STD)
    files = {
        f"{parent}={name}": option_content(parent, name)
        for name in (options(parent) if parent in AXES else ())
    }
    if having := [option for option, held in files.items() if last in held.get(parent, held)][:3]:
        return (
            f"the chosen {parent} has no key '{key}'; choose one that has it: {', '.join(having)}"
        )
    node = _node_at(values, parent) if parent else None
    others = [one for one in node or () if not (parent in AXES and one in _FIXED)]
    listed = name_list(others, f"transformer-norms train --cfg job --package {parent} shows all")
    allowed = f"keys of {parent} are {listed}" if listed else f"{parent} has no keys"
    known = [*flat(values), *values, *AXES, "config"]
    same = [one for one in known if one.rpartition(".")[2] == last and one != key][:1]
    meant = theirs(last) or same or [f"{parent}.{one}" for one in nearest(last, others)]
    if node is None:
        allowed, meant = f"axes are {', '.join(AXES)}", meant or nearest(key, known)
    return f"{did_you_mean(meant)}there is no key '{key}'; {allowed}"
