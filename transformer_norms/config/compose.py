"""The config door: what was typed becomes one validated config, or one line that says why not.

A user needs `compose(["norm=rmsnorm", "placement=pre"])` only. Nothing but this room, the sweep's
plugins and the command line knows Hydra.
"""

import copy
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from transformer_norms.config.finding import CONFIG, find_config, find_run
from transformer_norms.config.launchers import check_chosen_launcher, read_launcher
from transformer_norms.config.overrides import (
    HORIZONS,
    Typed,
    as_hydra_reads,
    as_typed,
    parse,
    place,
    to_dict,
)
from transformer_norms.config.plugins import ACROSS, TO_CHOOSE, check_plugins, load, unread
from transformer_norms.config.saved import Saved, equation_text, read_saved, saved_of
from transformer_norms.config.tree import CHOSEN, Config, ReadOption, check_chosen, flat
from transformer_norms.errors import ConfigError
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.names import (
    AXES,
    AXES_OF_A_RUN,
    folder_of_configs,
    nearest,
    option_files,
    options,
    unknown,
)

PARALLEL = {"parallel": {"type": "none"}}  # of a command that names none


@dataclass(frozen=True)
class Choices:
    """The choices before they are checked: the content of every node, the name chosen on each
    axis, how the file of another name is read, and lines for the record."""

    values: dict[str, Any]
    axes: dict[str, str]
    option: ReadOption
    notes: tuple[str, ...] = ()

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
    saved = read_saved(find_config(file.word))
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
        choices = replace(choices, notes=(*choices.notes, *unread(folder)))
    keys = {pair.key for pair in typed}
    config = resolve(checked, choices.axes, keys, spelled, choices.option, device)
    config = replace(config, warnings=(*choices.notes, *config.warnings))
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
    roots = [folder_of_configs(), *([folder / "configs"] if folder else [])]
    states = tuple(_state_of_files(root) for root in roots)
    content, chosen = _compose_options(tuple(groups), folder, states)
    # The rest of the content is about commands, and describes no run.
    values = {key: copy.deepcopy(content[key]) for key in CHOSEN}
    axes = {axis: chosen[axis] for axis in AXES_OF_A_RUN}
    choices = Choices(values, axes, _option_reader(folder))
    keys = {pair.key for pair in typed}  # a preset may state its own init and its own head
    if values["architecture"]["tied"] is True and "architecture.tied" not in keys:
        choices = _untie(choices) if keys & {"init", "placement", "norm"} else choices
    recipe = copy.deepcopy(content.get("recipe") or {})
    return _put_typed(_put_recipe(choices, recipe, {pair.key: pair for pair in groups}), typed)


def _untie(choices: Choices) -> Choices:
    """Returns the choices without a preset's tied head where the init brings a separate one."""
    values, name, init = choices.values, choices.axes["init"], choices.values["init"]
    if name == "auto":
        name = init.get("otherwise")
        for brings in (values[axis].get("brings") for axis in ("norm", "placement")):
            name = brings.get("init", name) if isinstance(brings, dict) else name
        init = choices.option("init", name) if name in options("init") else {}
    brings = init.get("brings")
    if not isinstance(brings, dict) or brings.get("tied") is not False:
        return choices
    note = f"init={name} brings a separate head, which overrides the tied head of the preset"
    values = {**values, "architecture": {**values["architecture"], "tied": "auto"}}
    return replace(choices, values=values, notes=(*choices.notes, note))


def _put_recipe(choices: Choices, recipe: dict[str, Any], typed: Mapping[str, Typed]) -> Choices:
    """Returns the choices with the values of a recipe. A typed option of an axis is taken as its
    file has it: the recipe's values for that axis give way, and a note says so. The values of
    architecture belong to the recipe's preset."""
    name = choices.axes["recipe"]
    about = {f"recipe_{key}": recipe.pop(key, "none") for key in ("source", "unverified")}
    values = {**choices.values, "about": {**choices.values["about"], **about}}
    notes = list(choices.notes)
    for node, held in recipe.items():
        if not isinstance(values.get(node), dict) or not isinstance(held, dict):
            groups = [key for key, value in values.items() if isinstance(value, dict)]
            raise ConfigError(f"recipe={name}: {unknown('group of keys', node, groups)}")
        if (axis := "preset" if node == "architecture" else node) in typed:
            keys = ", ".join(f"{node}.{key}" for key in held)
            notes.append(f"recipe={name} gives way to {typed[axis]} in {keys}")
        else:
            values[node] = {**values[node], **held}
    if "preset" in typed and (kept := _axes_of_recipe(name) - typed.keys()):
        stand = " ".join(f"{axis}={choices.axes[axis]}" for axis in sorted(kept))
        notes.append(f"recipe={name} keeps {stand} beside {typed['preset']}; what is typed wins")
    return replace(choices, values=values, notes=tuple(notes))


def _axes_of_recipe(name: str) -> set[str]:
    """Returns the axes of the architecture on which a recipe chooses, besides the preset."""
    listed = to_dict(OmegaConf.load(option_files("recipe")[name])).get("defaults", [])
    axes = {key.rpartition("/")[2] for item in listed if isinstance(item, dict) for key in item}
    return axes & {"norm", "placement", "init", "position", "attention", "mlp"}


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
        values["placement"], axes["placement"] = placement, equation_text(placement["equation"])
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
    read = _option_reader(folder)
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
    """Raises ConfigError where `resolved` of the file is not what comes of its choices."""
    device = saved.resolved["trainer"].get("device")
    try:
        saved.compare(complete(_choices_of(saved, [], folder), [], folder, device))
    except ConfigError as error:
        made_with = saved.chosen["plugins"]
        needs_plugins = made_with != "none" and not folder
        hint = f"type plugins={made_with} (or --plugins {made_with}) as well; " * needs_plugins
        raise ConfigError(f"{file}: {hint}{error}") from None


def default_axes() -> dict[str, str]:
    """Returns the names that train.yaml chooses."""
    listed = _content_of(folder_of_configs() / "train.yaml")["defaults"]
    return {axis: name for item in listed if isinstance(item, dict) for axis, name in item.items()}


def default_choices() -> dict[str, Any]:
    """Returns the dotted keys that train.yaml sets, and the names that it chooses."""
    content = _content_of(folder_of_configs() / "train.yaml")
    return {**flat({key: content[key] for key in CHOSEN if key in content}), **default_axes()}


def check_option(pair: Typed, folder: Path | None) -> None:
    if isinstance(pair.value, list) and len(pair.value) > 1:
        names = f"{pair.key}={','.join(map(str, pair.value))}"
        raise ConfigError(f"{pair}: several are a sweep; type -m {names}")
    known = options(pair.key, folder)
    if not isinstance(pair.value, (str, int, float, bool)) or pair.word not in known:
        raise ConfigError(f"{pair}: {_unknown_option(pair.key, pair.word, known, folder)}")


def _unknown_option(axis: str, name: object, known: Iterable[str], folder: Path | None) -> str:
    line = unknown(axis, name, known)
    if folder is not None:
        return f"{line}; your own stand in {folder}/configs/{axis}"
    if line.startswith("did you mean"):
        return line
    return f"{line}; one of your own needs plugins=FOLDER"


def check_names(overrides: Iterable[str]) -> None:
    """Raises ConfigError where an option does not exist. A sweep checks the names of all its jobs
    before it composes the first."""
    pairs = [pair for text in overrides for pair in parse([text])]
    folders = [check_plugins(pair.word) for pair in pairs if pair.key == "plugins"]
    if len(folders) < 2:
        for pair in (pair for pair in pairs if pair.key in AXES):
            check_option(pair, *(folders or [None]))


def check_hydra_keys(typed: Iterable[str]) -> None:
    """Raises ConfigError where a key of Hydra's own, such as hydra/launcher=NAME, is wrong."""
    typed = list(typed)
    if not typed:  # composing takes Hydra a tenth of a second
        return
    for pair in (pair for pair in parse(typed) if pair.key in ("launcher", "parallel")):
        check_option(pair, None)
        if pair.key == "parallel" and pair.word != "none":
            raise ConfigError(
                f"{pair}: is for one run under torchrun; each run of a sweep is one process "
                "(launcher=pool runs several at a time)"
            )
    try:
        composed = _compose_with_hydra(typed, None)
    except ConfigError as error:
        raise ConfigError(f"{' '.join(typed)}: {error}{_launchers_with(typed)}") from None
    choices = composed.hydra.runtime.choices
    check_chosen_launcher(choices.launcher, choices["hydra/launcher"])
    read_launcher(choices.launcher, to_dict(composed.launcher))


def _launchers_with(typed: Iterable[str]) -> str:
    """Returns the launchers that have the typed keys, where none or another one is chosen, or the
    nearest key of the chosen one."""
    typed = list(typed)
    keys = {text.partition("=")[0].removeprefix("launcher.") for text in typed if "." in text}
    files = {name: to_dict(OmegaConf.load(file)) for name, file in option_files("launcher").items()}
    fits = [name for name, content in files.items() if keys & content.get("launcher", {}).keys()]
    names = " and ".join(f"launcher={name}" for name in fits if f"launcher={name}" not in typed)
    if names:
        return f" ({names} {'have' if ' and ' in names else 'has'} that key)"
    chosen = [content for name, content in files.items() if f"launcher={name}" in typed]
    known = chosen[0].get("launcher", {}) if chosen else {}
    near = (nearest(key, known) for key in sorted(keys - known.keys()))
    return next((f" (did you mean {one[0]!r}?)" for one in near if one), "")


@lru_cache(maxsize=1024)
def _compose_options(
    groups: tuple[Typed, ...], folder: Path | None, states: object
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the content of the chosen files, and the name chosen on each axis. Hydra, which takes
    a tenth of a second, composes only the files with keys of several groups; another file takes
    the place of one of its axis. `states` are the sizes and dates of all files, so that an edited
    file is read again."""
    across = tuple(pair for pair in groups if pair.key in ACROSS)
    lone = {pair.key: pair.word for pair in groups if pair not in across}
    content, chosen = _compose_extending(across, folder, states)
    read = _option_reader(folder)
    if any(content.get(axis, {}) != read(axis, chosen[axis]) for axis in lone):
        return _compose_extending(groups, folder, states)  # another file writes into this one
    nodes = {axis: read(axis, name) for axis, name in lone.items()}
    return {**content, **nodes}, {**chosen, **lone}


@lru_cache(maxsize=256)
def _compose_extending(
    groups: tuple[Typed, ...], folder: Path | None, states: object
) -> tuple[dict[str, Any], dict[str, str]]:
    config = _compose_with_hydra([as_hydra_reads(str(pair)) for pair in groups], folder)
    chosen = {str(k): str(v) for k, v in config.hydra.runtime.choices.items()}
    return {key: value for key, value in to_dict(config).items() if key != "hydra"}, chosen


def _content_of(file: Path) -> dict[str, Any]:
    """Returns the content of an option's file, which is read again where its state is another."""
    return _content(file, _state_of(file))


@lru_cache(maxsize=1024)
def _content(file: Path, state: object) -> dict[str, Any]:
    return to_dict(OmegaConf.load(file))


def _state_of_files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = (f"{at}/{name}" for at, _, names in os.walk(folder) for name in names)
    return tuple(_state_of(file) for file in sorted(files) if file.endswith(".yaml"))


def _state_of(file: str | Path) -> tuple[str, int, int]:
    stat = os.stat(file)
    return str(file), stat.st_size, stat.st_mtime_ns


def _compose_with_hydra(groups: Iterable[object], folder: Path | None) -> DictConfig:
    """Composes the chosen files with Hydra, apart from any Hydra that is running."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from hydra.version import VersionBase

    typed = [*(str(pair) for pair in groups), *search_path(folder)]
    enclosing, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder_of_configs().resolve()), version_base="1.3"):
            return hydra_compose("train", typed, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        advice = "[.]? (?:Config search path|To append|To override|No match|Did you mean)"
        line = re.split(advice, " ".join(str(error).split()))[0]
        if unknown_name := re.match("In .*Could not find '([a-z]+)/([^/']+)'", line):
            check_option(Typed(unknown_name[1], unknown_name[2], unknown_name[2]), folder)
        chooses = folder and ("verrid" in str(error) or line.startswith("In '"))
        raise ConfigError(f"{line}; {TO_CHOOSE}" if chooses else line) from None
    finally:
        GlobalHydra.instance().hydra = enclosing
        VersionBase.instance().version_base = version


def search_path(folder: Path | None) -> list[str]:
    """Returns the override by which Hydra finds the options of a folder of plugins."""
    if folder is None or not (folder / "configs").is_dir():
        return []
    quoted = str(folder / "configs").replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"]


def _option_reader(folder: Path | None) -> ReadOption:
    def read(axis: str, name: str) -> dict[str, Any]:
        """Reads configs/AXIS/NAME.yaml, with Hydra only where the file extends another."""
        files = option_files(axis, folder)
        if name not in files:
            raise ConfigError(
                f"{axis}={name}: {_unknown_option(axis, name, sorted(files), folder)}"
            )
        content = _content_of(files[name])
        if "defaults" not in content:
            return copy.deepcopy(content)
        return to_dict(_compose_with_hydra([Typed(axis, name, name)], folder)[axis])

    return read
