"""The config door: what was typed becomes one validated config, or one line that says why not.

A user needs `compose(["norm=rmsnorm", "placement=pre"])` only. Hydra is not a part of it.
"""

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_norms.config.chosen_files import check_option, compose_files, option_reader
from transformer_norms.config.finding import CONFIG, find_config, find_run
from transformer_norms.config.overrides import HORIZONS, Typed, as_typed, merge, parse, place
from transformer_norms.config.plugins import check_plugins, load
from transformer_norms.config.saved import Saved, read_saved, saved_of
from transformer_norms.config.tree import (
    CHOSEN,
    TIED_SCALE,
    Config,
    ReadOption,
    check_chosen,
    diff,
    flat,
    marked,
)
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Mark
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.names import AXES, AXES_OF_A_RUN, options, unknown
from transformer_norms.text_tables import show

PARALLEL = {"parallel": {"type": "none"}}  # of a command that names none
_OF_A_COMMAND = frozenset(marked(Mark.COMMAND))


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


def compose(overrides: Iterable[str] = (), device: str = "auto") -> Config:
    """Returns the config that `python train.py OVERRIDES` would run, checked and resolved.

    `config=RUN` starts from a saved run instead of the defaults: its folder, its config.yaml, or a
    part of its name. So does `continue_from=RUN`. `device` stands for the machine's own where the
    config says auto. Raises ConfigError, one line.
    """
    keys = {pair.key: pair for pair in parse(overrides)}
    file = _saved_file(keys)
    folder = check_plugins(keys["plugins"].word) if "plugins" in keys else None
    typed = list(keys.values())
    if file is None:
        return complete(choose(typed, folder), typed, folder, device)
    try:
        saved = read_saved(find_config(file.word))
    except ConfigError as error:
        raise ConfigError(f"config={error}") from None
    choices = _choices_of(saved, typed, folder)
    _check_unedited(str(file), saved, folder)
    return complete(choices, typed, folder, device)


def recompose(
    config: Config,
    overrides: Iterable[str] = (),
    choices: Mapping[str, Any] = {},
    norms: Mapping[str, Mapping[str, Any]] = {},
) -> Config:
    """Returns the config with other choices, as `compose` does with config=RUN and `overrides` for
    a run of this config, which need not be a file. `choices` has whole nodes, and for an axis the
    pair of a name and its node. A norm of `norms` has the content there. Raises ConfigError, one
    line."""
    plugins = [] if config.plugins == "none" else [as_typed("plugins", config.plugins)]
    typed = parse([*plugins, *overrides])
    folder, saved = check_plugins(config.plugins), saved_of(config)
    of_axes = {name: choices[name] for name in choices if name in AXES_OF_A_RUN}
    axes = {**saved.axes, **{axis: name for axis, (name, _) in of_axes.items()}}
    chosen = {**saved.chosen, **choices, **{axis: node for axis, (_, node) in of_axes.items()}}
    resolved = {**saved.resolved, "norms": {**saved.resolved["norms"], **norms}}
    return complete(_choices_of(Saved(axes, chosen, resolved), typed, folder), typed, folder)


def _saved_file(keys: dict[str, Typed]) -> Typed | None:
    """Takes `config=FILE` out of what was typed and returns it. Without it, a run that continues
    another one starts from that one's config. `continue_from` becomes the folder that it names."""
    origin = keys.get("continue_from")
    if origin is None or origin.word == "none":
        return keys.pop("config", None)
    folder = str(find_run(origin.word, origin=True))
    keys["continue_from"] = replace(origin, value=folder, text=folder)
    return keys.pop("config", Typed("config", f"{folder}/{CONFIG}", f"{folder}/{CONFIG}"))


def complete(
    choices: Choices, typed: Collection[Typed], folder: Path | None = None, device: str = "auto"
) -> Config:
    """Checks and resolves the choices. Torch is imported between the two, for the settings of
    registered classes. `device` stands for the machine's own where the config says auto."""
    spelled = {pair.key: pair.text for pair in typed if isinstance(pair.value, (int, float))}
    checked = check_chosen(choices.values, spelled)
    from transformer_norms.config.resolution import resolve

    if folder is not None:
        load(folder)
    keys = {pair.key for pair in typed}
    config = resolve(checked, choices.axes, keys, spelled, choices.option, device)
    if "${" in str(config):  # from a plugin's file
        raise ConfigError("${...} is not allowed; a run's config holds values")
    return config


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
    return _put_typed(_put_recipe(choices, recipe, axes_typed), typed)


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


def _put_typed(choices: Choices, typed: Collection[Typed]) -> Choices:
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


def _choices_of(saved: Saved, typed: Collection[Typed], folder: Path | None) -> Choices:
    """Returns a saved run's choices with what was typed. An option that the saved run used has the
    content that it had then."""
    read = option_reader(folder)
    of_a_command = {"plugins": "none", "again": False, "continue_from": "none", **PARALLEL}
    choices = Choices({**copy.deepcopy(saved.chosen), **of_a_command}, dict(saved.axes), read)
    for pair in (pair for pair in typed if pair.key in AXES):
        if pair.key not in CHOSEN:
            if (held := saved.axes.get(pair.key)) == pair.word:
                continue
            its = f" (its {pair.key} is {held})" if held else ""
            raise ConfigError(f"{pair}: {pair.key} goes with no saved run{its}; name the axes")
        check_option(pair, folder)
        choices = choices.choose(pair.key, pair.word)

    def option(axis: str, name: str) -> dict[str, Any]:
        return saved.content(axis, name) or read(axis, name)

    return _put_typed(replace(choices, option=option), typed)


def _check_unedited(file: str, saved: Saved, folder: Path | None) -> None:
    """Raises ConfigError where `resolved` of the file is not what its choices give."""
    device = saved.resolved["trainer"].get("device")
    try:
        config = complete(_choices_of(saved, [], folder), [], folder, device)
        differing = diff(flat(saved.resolved), flat(saved_of(config).resolved))
        for key, (stated, computed) in differing.items():
            if key.partition(".")[0] not in _OF_A_COMMAND:
                raise ConfigError(
                    f"{key}: resolved says {stated!r}, and the choices give {computed!r}. To "
                    f"change a saved run leave the file as it is and type: config=FILE {key}=VALUE"
                )
    except ConfigError as error:
        made_with = saved.chosen["plugins"]
        needs_plugins = made_with != "none" and not folder
        hint = f"type plugins={made_with} (or --plugins {made_with}) as well; " * needs_plugins
        raise ConfigError(f"{file}: {hint}{error}") from None
