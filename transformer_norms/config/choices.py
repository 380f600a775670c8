"""What is chosen for a run, before it is checked: the files of its options, what a recipe sets and
what was typed, in the order in which one wins over the other."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_norms.config.chosen_files import check_option, compose_files, option_reader
from transformer_norms.config.overrides import HORIZONS, Typed, merge, place
from transformer_norms.config.tree import CHOSEN, TIED_SCALE, ReadOption
from transformer_norms.errors import ConfigError
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.names import AXES, AXES_OF_A_RUN, options, unknown
from transformer_norms.text_tables import show


@dataclass(frozen=True)
class Choices:
    """The choices before they are checked: the content of every node, the name chosen on each
    axis, and how the file of another name is read."""

    values: dict[str, Any]
    axes: dict[str, str]
    option: ReadOption

    def choose(self, axis: str, name: str) -> "Choices":
        """Returns the choices with another option of an axis."""
        values = {**self.values, axis: self.option(axis, name)}
        axes = {**self.axes, axis: name} if axis in AXES_OF_A_RUN else self.axes
        return replace(self, values=values, axes=axes)


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
    name = choices.axes["recipe"]
    about = {f"recipe_{key}": recipe.pop(key, "none") for key in ("source", "unverified")}
    for node, held in recipe.items():
        if not isinstance(choices.values.get(node), dict) or not isinstance(held, dict):
            groups = [key for key, value in choices.values.items() if isinstance(value, dict)]
            raise ConfigError(f"recipe={name}: {unknown('group of keys', node, groups)}")
    kept = {
        node: held
        for node, held in recipe.items()
        if ("preset" if node == "architecture" else node) not in typed
    }
    nodes = {node: {**choices.values[node], **held} for node, held in kept.items()}
    about = {"about": {**choices.values["about"], **about}}
    return replace(choices, values={**choices.values, **about, **nodes})


def put_typed(choices: Choices, typed: Collection[Typed]) -> Choices:
    """Returns the choices with typed values. A typed equation makes a placement of its own, which
    keeps of the chosen file only the learned coefficients and the connection that the equation
    names."""
    pairs = [pair for pair in typed if pair.key not in AXES]
    values, axes = place(_one_horizon(choices.values, pairs), typed), dict(choices.axes)
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


def _one_horizon(values: dict[str, Any], typed: Iterable[Typed]) -> dict[str, Any]:
    """Returns the values without tokens of a file where steps are typed. Raises ConfigError where
    both are typed."""
    said = {pair.key: pair for pair in typed if pair.key in HORIZONS and pair.value != "auto"}
    if len(said) > 1:
        raise ConfigError(
            f"{' and '.join(map(str, said.values()))}: both are the horizon; type one"
        )
    if HORIZONS[0] in said:
        values = {**values, "trainer": {**values["trainer"], "tokens": "auto"}}
    return values
