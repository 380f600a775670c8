"""Makes one checked config from the KEY=VALUE words of a command, or refuses them in one line.

overrides.py reads the words. choices.py merges the chosen files with the words. tree.py checks
keys, types and ranges. resolution.py replaces each `auto` by a value. Hydra is not involved. A
user needs `compose(["norm=rmsnorm", "placement=pre"])` only.
"""

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_norms.config.choices import Choices, choose, put_typed
from transformer_norms.config.chosen_files import OF_A_COMMAND, check_option, option_reader
from transformer_norms.config.finding import CONFIG, find_config, find_run
from transformer_norms.config.overrides import Typed, as_typed, parse
from transformer_norms.config.plugins import check_plugins, load
from transformer_norms.config.saved import Saved, read_saved, saved_of
from transformer_norms.config.tree import CHOSEN, Config, check_chosen, diff, flat
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain
from transformer_norms.names import AXES, AXES_OF_A_RUN


def compose(overrides: Iterable[str] = (), device: str = "auto") -> Config:
    """Returns the config that `python train.py OVERRIDES` would run, checked and resolved.

    `config=RUN` starts from a saved run instead of the defaults: its folder, its config.yaml, or a
    part of its name. `continue_from=RUN` also starts from that run's config. `device` is used where
    the config says auto. Raises ConfigError, one line.
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
    config: Config, overrides: Iterable[str] = (), choices: Mapping[str, Any] = {}
) -> Config:
    """Returns the config with other choices, as `compose` does with config=RUN and `overrides` for
    a run of this config. The config need not be saved. `choices` maps a key to its node, or an axis
    to the pair of a name and its node. Raises ConfigError, one line."""
    plugins = [] if config.plugins == "none" else [as_typed("plugins", config.plugins)]
    typed = parse([*plugins, *overrides])
    folder, saved = check_plugins(config.plugins), saved_of(config)
    named = {axis: choices[axis] for axis in choices.keys() & {*AXES_OF_A_RUN}}
    axes = saved.axes | {axis: name for axis, (name, _) in named.items()}
    chosen = {**saved.chosen, **choices, **{axis: node for axis, (_, node) in named.items()}}
    return complete(
        _choices_of(replace(saved, axes=axes, chosen=chosen), typed, folder), typed, folder
    )


def _saved_file(keys: dict[str, Typed]) -> Typed | None:
    """Removes `config=FILE` from the typed keys and returns it. Without it, a run that continues
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
    """Checks and resolves the choices. `folder` is that of the plugins. `device` is used where the
    config says auto. Resolving needs the registered classes, which import torch."""
    spelled = {pair.key: pair.text for pair in typed if isinstance(pair.value, (int, float))}
    checked = replace(choices, values=check_chosen(choices.values, spelled))
    from transformer_norms.config.resolution import resolve

    if folder is not None:
        load(folder)
    config = resolve(checked, {pair.key for pair in typed}, spelled, device)
    if "${" in repr(plain(config)):  # from a plugin's file
        raise ConfigError("${...} is not allowed; a run's config holds values")
    return config


def _choices_of(saved: Saved, typed: Collection[Typed], folder: Path | None) -> Choices:
    """Returns a saved run's choices with what was typed. An option keeps the content
    from the saved run."""
    read = option_reader(folder)
    values, axes = copy.deepcopy(saved.chosen), dict(saved.axes)
    values |= {"plugins": "none", "again": False, "continue_from": "none"}  # not of a run
    values |= {"parallel": {"type": "none"}}
    for pair in (pair for pair in typed if pair.key in AXES):
        if pair.key in CHOSEN:
            check_option(pair, folder)
            values[pair.key] = read(pair.key, pair.word)
            axes |= {pair.key: pair.word} if pair.key in axes else {}
        elif (held := saved.axes.get(pair.key)) != pair.word:
            its = f" (its {pair.key} is {held})" if held else ""
            raise ConfigError(f"{pair}: {pair.key} goes with no saved run{its}; name the axes")

    def option(axis: str, name: str) -> dict[str, Any]:
        return saved.content(axis, name) or read(axis, name)

    return put_typed(Choices(values, axes, option), typed)


def _check_unedited(file: str, saved: Saved, folder: Path | None) -> None:
    """Raises ConfigError where `resolved` of the file is not what its choices give."""
    device = saved.resolved["trainer"].get("device")
    try:
        config = complete(_choices_of(saved, [], folder), [], folder, device)
        differing = diff(flat(saved.resolved), flat(saved_of(config).resolved))
        for key, (stated, computed) in differing.items():
            if key.partition(".")[0] not in OF_A_COMMAND:
                said = f"resolved says {stated!r}, and the choices give {computed!r}"
                raise ConfigError(f"{key}: {said}; leave the file as it is and type {key}=VALUE")
    except ConfigError as error:
        made_with = saved.chosen["plugins"]
        needs_plugins = made_with != "none" and not folder
        hint = f"type plugins={made_with} (or --plugins {made_with}) as well; " * needs_plugins
        raise ConfigError(f"{file}: {hint}{error}") from None
