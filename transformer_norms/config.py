"""The config door: from what was typed to one validated config, or to one line that says why not.

compose(["norm=rmsnorm", "placement=pre"]) is all there is to know for a user. Nothing behind this
door knows Hydra.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transformer_norms import plugins as plugin_folder
from transformer_norms.errors import ConfigError
from transformer_norms.names import nearest, unknown
from transformer_norms.overrides import Typed, parse
from transformer_norms.saved import read_saved, unresolved

AXES = (
    "norm placement init position mlp preset model data tokenizer optimizer schedule tracking "
    "launcher parallel sweep"
).split()
# These do not describe a run; they stand in no run's config.
COMMAND_KEYS = ("preset", "sweep", "launcher", "parallel", "hydra")

ReadOption = Callable[[str, str], dict[str, Any]]
Parts = tuple[dict[str, Any], dict[str, str], ReadOption]


def folder_of_configs() -> Path:
    """configs/ beside the package in a clone, inside it in a wheel."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


def compose(overrides: Iterable[str] = ()) -> DictConfig:
    """What `python train.py OVERRIDES` would run: validated, every auto resolved, read-only.

    `config=FILE` starts from a saved run instead of the defaults. Raises ConfigError, one line.
    """
    typed = parse(list(overrides))
    keys = {pair.key: pair for pair in typed}
    saved = keys.pop("config", None)
    folder = plugin_folder.check(keys["plugins"].text) if "plugins" in keys else None
    if saved is None:
        return _complete(*_fresh(list(keys.values()), folder), set(keys), folder)
    return _complete(*_from_saved(Path(saved.text), list(keys.values()), folder), set(keys), folder)


def _complete(
    config: dict[str, Any], axes: dict[str, str], option: ReadOption, typed: set[str], folder: Any
) -> DictConfig:
    """The second tier, ranges and combinations against the constructors; torch is imported here."""
    from transformer_norms.resolution import resolve

    if folder is not None:
        plugin_folder.load(folder)
    resolved = OmegaConf.create(resolve(config, axes, typed, option))
    OmegaConf.set_readonly(resolved, True)
    return resolved


def options(axis: str, folder: Path | None = None) -> list[str]:
    """The names that AXIS=NAME may take."""
    roots = [folder_of_configs(), *([folder / "configs"] if folder else [])]
    return sorted({file.stem for root in roots for file in (root / axis).glob("*.yaml")})


def _fresh(typed: list[Typed], folder: Path | None) -> Parts:
    """The defaults with what was typed: names and kinds checked, without torch."""
    groups = [pair for pair in typed if pair.key in AXES]
    for pair in groups:
        check_option(pair, folder)
    config = _hydra(groups, folder)
    chosen = dict(config.hydra.runtime.choices)
    _apply(config, [pair for pair in typed if pair.key not in AXES])
    values = {key: value for key, value in plain(config).items() if key not in COMMAND_KEYS}
    axes = {axis: chosen[axis] for axis in AXES if axis in values or axis == "preset"}
    return values, axes, _option_reader(folder)


def _from_saved(file: Path, typed: list[Typed], folder: Path | None) -> Parts:
    """A saved run with what was typed. Its own files' contents count, not today's of that name."""
    saved = read_saved(file)
    norms, init = saved["norms"], {saved["choices"]["init"]: saved["init"]}
    values, axes = unresolved(saved)
    read = _option_reader(folder)
    for pair in (pair for pair in typed if pair.key in AXES):
        if pair.key in COMMAND_KEYS:
            raise ConfigError(f"{pair}: {pair.key} goes with no saved run; name the axes")
        check_option(pair, folder)
        values[pair.key] = read(pair.key, pair.text)
        axes[pair.key] = pair.text
    config = OmegaConf.create(values)
    _apply(config, [pair for pair in typed if pair.key not in AXES])

    def option(axis: str, name: str) -> dict[str, Any]:
        held = {"norm": norms, "init": init}[axis]
        return held[name] if name in held else read(axis, name)

    return plain(config), axes, option


def plain(config: Any) -> dict[str, Any]:
    """The config as dicts, lists and values."""
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def check_option(pair: Typed, folder: Path | None) -> None:
    known = options(pair.key, folder)
    if not isinstance(pair.value, (str, int, float, bool)) or pair.text.strip("'\"") not in known:
        raise ConfigError(f"{pair}: {unknown(pair.key, pair.text, known)}")


def _hydra(groups: Iterable[Typed], folder: Path | None) -> DictConfig:
    """Hydra's own composition of the chosen files, apart from any Hydra that is running."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    typed = [str(pair) for pair in groups]
    if folder is not None:
        typed.append(f"hydra.searchpath=['file://{folder / 'configs'}']")
    try:
        with initialize_config_dir(str(folder_of_configs().resolve()), version_base="1.3"):
            return hydra_compose("train", typed, return_hydra_config=True)
    except HydraException as error:
        raise ConfigError(" ".join(str(error).split())) from None


def _option_reader(folder: Path | None) -> ReadOption:
    def read(axis: str, name: str) -> dict[str, Any]:
        """The content of configs/AXIS/NAME.yaml."""
        if name not in options(axis, folder):
            raise ConfigError(f"{axis}={name}: {unknown(axis, name, options(axis, folder))}")
        return plain(_hydra([Typed(axis, name, name)], folder)[axis])

    return read


def _apply(config: DictConfig, typed: Iterable[Typed]) -> None:
    """Each KEY=VALUE put in its place, if there is such a place and VALUE is of its kind."""
    for pair in typed:
        if pair.key.split(".")[0].split("/")[0] == "hydra":
            raise ConfigError(f"{pair}: Hydra's own keys are for sweeps (-m)")
        if OmegaConf.select(config, pair.key, throw_on_missing=False) is None:
            raise ConfigError(_no_such_key(pair, config))
        value = _of_kind(pair, OmegaConf.select(config, pair.key))
        OmegaConf.update(config, pair.key, value, merge=True, force_add=True)


def _no_such_key(pair: Typed, config: DictConfig) -> str:
    known = list(flat(config, depth=2)) + AXES + ["config"]
    last = pair.key.rpartition(".")[2]
    near = [key for key in known if key.rpartition(".")[2] == last][:1] or nearest(pair.key, known)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    parent = pair.key.rpartition(".")[0]
    node = OmegaConf.select(config, parent) if parent else None
    if isinstance(node, DictConfig):
        there = f"keys of {parent} are {', '.join(str(key) for key in node)}"
    else:
        there = f"axes are {', '.join(AXES)}"
    return f"{pair}: there is no key '{pair.key}'; {there}{hint}"


def flat(config: Mapping[Any, Any], depth: int = 99, above: str = "") -> Iterable[str]:
    """The dotted keys of a config, hydra's own left out."""
    for key, value in config.items():
        if key != "hydra":
            yield f"{above}{key}"
            if isinstance(value, Mapping) and depth > 1:
                yield from flat(value, depth - 1, f"{above}{key}.")


def _of_kind(pair: Typed, there: Any) -> Any:
    """The typed value, or a ConfigError where it is of another kind than the value it replaces."""
    value = pair.value
    free = there in ("auto", "none") or pair.key.split(".")[0] in ("placement", "init")
    if isinstance(there, Mapping):
        fits, wanted = isinstance(value, Mapping), "a group of keys"
    elif free:
        fits, wanted = True, ""
    elif isinstance(there, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(there, (int, float)):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        wanted = "a number"
    elif isinstance(there, str):
        fits, wanted = not isinstance(value, (list, Mapping)), "a word"
        value = value if isinstance(value, str) else pair.text
    else:
        fits, wanted = not isinstance(value, Mapping), "a list"
    if not fits:
        raise ConfigError(f"{pair}: {pair.text} is not allowed; {pair.key} is {wanted}")
    return value


def refuse(error: ConfigError) -> int:
    """Prints the one line; the exit code of a wrong config."""
    print(str(error).replace("\n", " "), file=sys.stderr)
    return 2
