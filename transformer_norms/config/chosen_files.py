"""The files of the options that are chosen: which of them exist, and what they hold together."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_norms.config.overrides import Typed, parse
from transformer_norms.config.plugins import check_plugins
from transformer_norms.config.tree import CHOSEN, ReadOption, flat, marked
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Mark
from transformer_norms.names import AXES, folder_of_configs, option_files, options, unknown
from transformer_norms.storage.reading import LONGEST_YAML, parse_yaml, read_bytes, real_path

OF_A_COMMAND = frozenset(marked(Mark.NOT_SAVED))  # the keys that no file and no saved run sets
# The axes whose files have keys of several groups, and the keys in such a file.
_KEYS = [key for key in CHOSEN if key not in OF_A_COMMAND]
ACROSS = {"preset": _KEYS, "recipe": [*_KEYS, "recipe"]}
_TO_CHOOSE = "a file chooses under 'defaults:', as '- override /norm: layernorm'"


def option_content(axis: str, name: str, folder: Path | None = None) -> dict[str, Any]:
    """Returns what configs/AXIS/NAME.yaml holds. `folder` is a folder of plugins."""
    file = option_files(axis, folder)[name]
    return read_config_file(file, _plugin_title(axis, name, folder) or str(file))


def _plugin_title(axis: str, name: str, folder: Path | None) -> str:
    """Returns how an error names an option's file in a folder of plugins; '' for our own file."""
    file = option_files(axis, folder)[name]
    if folder is None or not file.is_relative_to(folder):
        return ""
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return f"plugins={shown}: {file.relative_to(folder).as_posix()}"


def read_config_file(file: Path, title: str = "") -> dict[str, Any]:
    """Returns the keys of a file of configs/, which an error names by its `title`. Raises
    ConfigError where it is not YAML."""
    title, data = title or str(file), read_bytes(real_path(file), LONGEST_YAML)
    if data.startswith(BOM_UTF8):
        why = "it begins with a byte order mark; save it as UTF-8 without one"
        raise ConfigError(f"{title}: {why}")
    content = parse_yaml(data, title, values_only=False)
    if not isinstance(content, dict | None):
        raise ConfigError(f"{title}: a list is not allowed; it should be keys")
    return {str(key): value for key, value in (content or {}).items()}


def option_reader(folder: Path | None) -> ReadOption:
    """Returns a function that reads configs/AXIS/NAME.yaml, with what it extends."""
    return lambda axis, name: _read_option(axis, name, folder)[0]


def default_axes() -> dict[str, str]:
    """Returns the names that train.yaml chooses."""
    listed = read_config_file(folder_of_configs() / "train.yaml")["defaults"]
    entries = {key: name for item in listed if isinstance(item, dict) for key, name in item.items()}
    return {axis: name for axis, name in entries.items() if axis in AXES}


def default_choices() -> dict[str, Any]:
    """Returns the dotted keys that train.yaml sets, and the names that it chooses."""
    content = read_config_file(folder_of_configs() / "train.yaml")
    return {**flat({key: content[key] for key in CHOSEN if key in content}), **default_axes()}


def check_option(pair: Typed, folder: Path | None) -> None:
    if isinstance(pair.value, list) and len(pair.value) > 1:
        names = f"{pair.key}={','.join(map(str, pair.value))}"
        raise ConfigError(f"{pair}: several are a sweep; type -m {names}")
    known = options(pair.key, folder)
    if not isinstance(pair.value, (str, int, float, bool)) or pair.word not in known:
        line = unknown(pair.key, pair.word, known)
        if folder is not None:
            line += f"; your own are in {folder}/configs/{pair.key}"
        elif not line.startswith("did you mean"):
            line += "; one of your own needs plugins=FOLDER"
        raise ConfigError(f"{pair}: {line}")


def check_names(overrides: Iterable[str]) -> None:
    """Raises ConfigError where an option does not exist. A sweep checks the names of all its jobs
    before it composes the first."""
    pairs = [pair for text in overrides for pair in parse([text])]
    folders = [check_plugins(pair.word) for pair in pairs if pair.key == "plugins"]
    if len(folders) < 2:
        for pair in (pair for pair in pairs if pair.key in AXES):
            check_option(pair, *(folders or [None]))


def compose_files(
    typed: Mapping[str, str], folder: Path | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the content of train.yaml with the files that are chosen, and the name chosen on each
    axis. A typed word wins over the choice of a recipe, and that over the choice of its preset."""
    listed = default_axes()
    chosen, held = dict(typed), {}
    for axis in reversed(listed):  # preset and recipe, which choose for other axes, are the last
        name = chosen.setdefault(axis, listed[axis])
        held[axis], choices = _read_option(axis, name, folder)
        chosen = {**choices, **chosen}
    values = read_config_file(folder_of_configs() / "train.yaml")
    for axis in listed:
        across = axis in ACROSS
        values = merge(values, held[axis] if across else {axis: held[axis]})
    return values, {axis: chosen[axis] for axis in listed}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of both, at every depth. Where both have a value, that of `above` wins."""
    both = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merge(both[key], value) if nested else value
    return both


def _read_option(
    axis: str, name: str, folder: Path | None, above: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the content of an option's file, with that of the files of its axis that it extends,
    and the names that it chooses on other axes."""
    check_option(Typed(axis, name, name), folder)
    if name in above:
        raise ConfigError(f"{axis}={name}: its defaults lead back to itself")
    content = option_content(axis, name, folder)
    title = _plugin_title(axis, name, folder) or f"{axis}={name}"
    extended: dict[str, Any] = {}
    choices: dict[str, str] = {}
    defaults = content.pop("defaults", ())
    for key, value in content.items() if axis in ACROSS else ():
        if key not in ACROSS[axis]:
            raise ConfigError(f"{title}: {unknown('key', key, ACROSS[axis])}")
        if key in AXES and isinstance(value, str):
            raise ConfigError(f"{title}: '{key}: {value}' chooses nothing; {_TO_CHOOSE}")
    for entry in defaults:
        if isinstance(entry, str) and entry != "_self_":
            below, further = _read_option(axis, entry, folder, (*above, name))
            extended, choices = merge(extended, below), {**further, **choices}
        for key, word in entry.items() if isinstance(entry, dict) else ():
            chosen = key.removeprefix("override /")
            if chosen == key or chosen not in AXES or axis not in ACROSS:
                rule = _TO_CHOOSE if axis in ACROSS else f"a file of {axis} has keys of {axis} only"
                raise ConfigError(f"{title}: defaults: '{key}' chooses nothing; {rule}")
            choices = {**choices, chosen: str(word)}
    return merge(extended, content), choices
