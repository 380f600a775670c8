"""The config door: from what was typed to one validated config, or to one line that says why not.

compose(["norm=rmsnorm", "placement=pre"]) is all there is to know for a user. Nothing behind this
door knows Hydra.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from transformer_norms.config import plugins as plugin_folder
from transformer_norms.config.overrides import Typed, apply, parse
from transformer_norms.config.saved import check_unedited, read_saved, unresolved
from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES, folder_of_configs, option_files, options, unknown

# These do not describe a run; they stand in no run's config.
MOST_WORKERS = 1024
COMMAND_KEYS = ("preset", "sweep", "launcher", "parallel", "hydra")

ReadOption = Callable[[str, str], dict[str, Any]]
Parts = tuple[dict[str, Any], dict[str, str], ReadOption]


def compose(overrides: Iterable[str] = ()) -> DictConfig:
    """What `python train.py OVERRIDES` would run: validated, every auto resolved, read-only.

    `config=FILE` starts from a saved run instead of the defaults. Raises ConfigError, one line.
    """
    keys = {pair.key: pair for pair in parse(overrides)}
    file = keys.pop("config", None)
    typed = list(keys.values())
    folder = _plugins(keys["plugins"].word) if "plugins" in keys else None
    if file is None:
        parts = _fresh(typed, folder)
    else:
        saved = read_saved(Path(file.word))
        parts = _from_saved(saved, typed, folder)
        _check_unedited(str(file), saved, folder)
    resolved = OmegaConf.create(_complete(parts, set(keys), folder))
    OmegaConf.set_readonly(resolved, True)
    return resolved


def _complete(parts: Parts, typed: set[str], folder: Path | None) -> dict[str, Any]:
    """The second tier, ranges and combinations against the constructors; torch is imported here."""
    from transformer_norms.config.resolution import resolve

    if folder is not None:
        plugin_folder.load(folder)
    config, axes, option = parts
    resolved = resolve(config, axes, typed, option)
    for key, value in resolved.items():  # from a plugin's file
        if "${" in str(value):
            raise ConfigError(f"{key}: {value} is not allowed; a run's config holds no ${{...}}")
    return resolved


def _plugins(text: str) -> Path | None:
    """The folder that `plugins=TEXT` names; its options are of our axes, and hide none of ours."""
    folder = plugin_folder.check(text)
    for file in sorted((folder / "configs").glob("*/*.yaml")) if folder else ():
        axis, where = file.parent.name, f"plugins={text}: configs/{file.parent.name}"
        if axis not in (*AXES, "hydra"):
            raise ConfigError(f"{where}: {unknown('axis', axis, AXES)}")
        try:
            keys = isinstance(OmegaConf.load(file), DictConfig)
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(f"{where}/{file.name}: {' '.join(str(error).split())}") from None
        if not keys:
            raise ConfigError(f"{where}/{file.name}: a list is not allowed; it should be keys")
        if file.stem in options(axis):
            raise ConfigError(f"{where}/{file.name}: {axis}={file.stem} is ours; name it otherwise")
    return folder


def _fresh(typed: list[Typed], folder: Path | None) -> Parts:
    """The defaults with what was typed: names and kinds checked, without torch."""
    groups = [pair for pair in typed if pair.key in AXES]
    for pair in groups:
        check_option(pair, folder)
        if pair.key in ("sweep", "launcher") and pair.word not in ("none", "basic"):
            raise ConfigError(f"{pair}: is about many runs, and this is one (-m and sweep=NAME)")
    roots = [folder_of_configs(), *([folder / "configs"] if folder else [])]
    files = tuple(_files(root) for root in roots)
    content, chosen = _chosen(tuple(str(pair) for pair in groups), folder, files)
    config = OmegaConf.create(content)
    apply(config, [pair for pair in typed if pair.key not in AXES])
    values = {key: value for key, value in plain(config).items() if key not in COMMAND_KEYS}
    axes = {axis: chosen[axis] for axis in AXES if axis in values or axis == "preset"}
    return values, axes, _option_reader(folder)


@lru_cache(maxsize=256)
def _chosen(
    groups: tuple[str, ...], folder: Path | None, files: object
) -> tuple[dict[str, Any], dict[str, str]]:
    """The chosen files' content and their names. Composing takes Hydra a tenth of a second, and the
    jobs of a sweep choose the same few; `files`, their sizes and dates, makes an edit seen."""
    config = _hydra(groups, folder)
    chosen = {str(axis): str(name) for axis, name in config.hydra.runtime.choices.items()}
    return {key: value for key, value in plain(config).items() if key != "hydra"}, chosen


def _files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    stats = [(str(file), file.stat()) for file in sorted(folder.rglob("*.yaml"))]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _from_saved(saved: dict[str, Any], typed: list[Typed], folder: Path | None) -> Parts:
    """A saved run with what was typed. Its own files' contents count, not today's of that name."""
    norms, init = saved["norms"], {saved["choices"]["init"]: saved["init"]}
    values, axes = unresolved(saved)
    read = _option_reader(folder)
    for pair in (pair for pair in typed if pair.key in AXES):
        if pair.key in COMMAND_KEYS:
            raise ConfigError(f"{pair}: {pair.key} goes with no saved run; name the axes")
        check_option(pair, folder)
        values[pair.key] = read(pair.key, pair.word)
        axes[pair.key] = pair.word
    config = OmegaConf.create(values)
    apply(config, [pair for pair in typed if pair.key not in AXES])

    def option(axis: str, name: str) -> dict[str, Any]:
        held = init if axis == "init" else norms
        return held[name] if name in held else read(axis, name)

    return plain(config), axes, option


def _check_unedited(file: str, saved: dict[str, Any], folder: Path | None) -> None:
    """What the file says must be what it means, on whatever device it was run."""
    words = {**saved["words"], "trainer.device": "auto"}
    try:
        parts = _from_saved({**saved, "words": words}, [], folder)
        check_unedited(saved, _complete(parts, set(), folder))
    except ConfigError as error:
        made_with = saved["plugins"]
        hint = f" (type plugins={made_with} as well?)" if made_with != "none" and not folder else ""
        raise ConfigError(f"{file}: {error}{hint}") from None


def plain(config: Any) -> dict[str, Any]:
    """The config as dicts, lists and values."""
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def usual_axes() -> dict[str, str]:
    """The names that train.yaml chooses."""
    listed = plain(OmegaConf.load(folder_of_configs() / "train.yaml"))["defaults"]
    return {axis: name for item in listed if isinstance(item, dict) for axis, name in item.items()}


def check_option(pair: Typed, folder: Path | None) -> None:
    known = options(pair.key, folder)
    if not isinstance(pair.value, (str, int, float, bool)) or pair.word not in known:
        raise ConfigError(f"{pair}: {unknown(pair.key, pair.word, known)}")


def check_names(overrides: Iterable[str]) -> None:
    """ConfigError where an option does not exist: a sweep asks for all before it composes any."""
    pairs = [pair for text in overrides for pair in parse([text])]
    folders = [_plugins(pair.word) for pair in pairs if pair.key == "plugins"]
    if len(folders) < 2:
        for pair in (pair for pair in pairs if pair.key in AXES):
            check_option(pair, *(folders or [None]))


def check_hydras(typed: Iterable[str]) -> None:
    """ConfigError where a key of Hydra's own, such as hydra/launcher=NAME, is none."""
    typed = list(typed)
    for pair in (pair for pair in parse(typed) if pair.key in ("launcher", "parallel")):
        check_option(pair, None)
    try:
        composed = _hydra(typed, None)
    except ConfigError as error:
        lacks = any(text.startswith("launcher.") for text in typed) and "launcher=pool" not in typed
        hint = " (launcher=pool has workers)" if lacks else ""
        raise ConfigError(f"{' '.join(typed)}: {error}{hint}") from None
    workers = composed.hydra.launcher.get("workers", 1)
    if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"launcher.workers={workers}: should be from 1 to {MOST_WORKERS}")


def _hydra(groups: Iterable[object], folder: Path | None) -> DictConfig:
    """Hydra's own composition of the chosen files, apart from any Hydra that is running."""
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
        line = " ".join(str(error).split())
        raise ConfigError(re.split(" Config search path| To append", line)[0]) from None
    finally:
        GlobalHydra.instance().hydra = enclosing
        VersionBase.instance().version_base = version


def search_path(folder: Path | None) -> list[str]:
    """What is to be typed for Hydra to find the options in a folder of plugins."""
    if folder is None or not (folder / "configs").is_dir():
        return []
    quoted = str(folder / "configs").replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"]


def _option_reader(folder: Path | None) -> ReadOption:
    def read(axis: str, name: str) -> dict[str, Any]:
        """The content of configs/AXIS/NAME.yaml; Hydra is asked only where it extends another."""
        files = option_files(axis, folder)
        if name not in files:
            raise ConfigError(f"{axis}={name}: {unknown(axis, name, sorted(files))}")
        content = OmegaConf.load(files[name])
        if "defaults" not in content:
            return plain(content)
        return plain(_hydra([Typed(axis, name, name)], folder)[axis])

    return read
