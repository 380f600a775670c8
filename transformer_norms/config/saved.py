"""The config.yaml of a run: what was chosen, auto included, and under `resolved` what came of it.

Reading it gives values only, whoever wrote it: no tags, aliases or `${`, of bounded size and depth.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from transformer_norms.config import old
from transformer_norms.config.tree import CHOSEN, Config, marked
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Mark, plain
from transformer_norms.names import AXES_OF_A_RUN, unknown

# The names of files end up in a folder's name; that of a typed equation is made fit for it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_BYTES, _DEPTH = 1 << 18, 20


@dataclass(frozen=True)
class Saved:
    """A saved run: the names of its axes, the nodes as they were chosen, and what came of them."""

    axes: dict[str, str]
    chosen: dict[str, Any]
    resolved: dict[str, Any]

    def content(self, axis: str, name: str) -> dict[str, Any] | None:
        """Returns the content that an option's file had for this run, if the run used it."""
        if axis == "init":
            same = self.resolved["choices"].get("init") == name
            return dict(self.resolved["init"]) if same else None
        return self.resolved["norms"].get(name) if axis.startswith("norm") else None

    def compare(self, config: Config) -> None:
        """ConfigError where `config`, which came of the choices, is not what the file says."""
        here = to_mapping(config)["resolved"]
        for key, there, now in _differences(self.resolved, here):
            raise ConfigError(
                f"{key}: under resolved stands {there!r}, and {now!r} comes of what was chosen. To "
                f"change a saved run leave the file as it is and type: config=FILE {key}=VALUE"
            )


def to_yaml(config: Config) -> str:
    """The text of config.yaml."""
    return OmegaConf.to_yaml(OmegaConf.create(to_mapping(config)))


def to_mapping(config: Config) -> dict[str, Any]:
    """Returns the text of config.yaml."""
    resolved = plain(config)
    chosen = resolved.pop("chosen")
    return {**chosen, "resolved": resolved}


def parse_mapping(value: Any) -> Any:
    """A config.yaml's content in today's form: itself, or what a file of before means."""
    if isinstance(value, dict) and "words" in value and "resolved" not in value:
        return old.translate(value)
    return value


def is_old(file: Path) -> bool:
    """Whether a config.yaml was written before there was `resolved`."""
    return b"\nresolved:" not in file.read_bytes()


def resolved_values(value: Any) -> dict[str, Any]:
    """Returns the resolved values of a config.yaml of any version; `chosen` has its choices."""
    chosen = dict(parse_mapping(value))
    resolved = chosen.pop("resolved")
    return {**resolved, "chosen": chosen}


def read_saved(file: Path) -> Saved:
    """The saved run in `file`; ConfigError where it holds tags, aliases or `${`, or is no run's.

    OmegaConf's loader is PyYAML's safe one with its rule for floats: 1e-5 is a number.
    """
    text = _text(file)
    try:
        _refuse_more_than_values(text)
        value = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        today = parse_mapping(value)
        if today is not value:
            print(f"config={file}: {old.SAID}", file=sys.stderr)
        return _saved(today)
    except ConfigError as error:
        raise ConfigError(f"config={file}: {error}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"config={file}: is no YAML: {' '.join(str(error).split())}") from None


def _text(file: Path) -> str:
    try:
        if file.is_dir():
            raise ConfigError(f"config={file}: is a folder; name a file, config={file}/config.yaml")
        if not file.is_file():
            raise ConfigError(f"config={file}: there is no such file")
        with open(file, "rb") as stream:
            data = stream.read(_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config={file}: cannot be read: {error}") from None
    if len(data) > _BYTES:
        raise ConfigError(f"config={file}: is longer than {_BYTES} bytes; no run's config is")
    return text


def _refuse_more_than_values(text: str) -> None:
    """Looks at the events, before anything is built from them; ConfigError."""
    depth = 0
    for event in yaml.parse(text, Loader=get_yaml_loader()):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ConfigError("a saved config holds no anchors or aliases")
        if tag := getattr(event, "tag", None):
            raise ConfigError(f"a saved config holds no tags, and there is {tag!r}")
        if isinstance(event, yaml.ScalarEvent):
            if "${" in event.value:
                raise ConfigError("a saved config holds no ${...}")
            if event.value in ("<<", "???"):
                raise ConfigError(f"a saved config holds no {event.value}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ConfigError("is nested too deeply")


def _saved(value: Any) -> Saved:
    """ConfigError where a part of a run's config is missing, unknown or of another kind."""
    if not isinstance(value, dict):
        raise ConfigError("is no saved run; 'choices' is missing")
    _same_keys("", value, ["choices", *CHOSEN, "resolved"])
    choices, resolved = value.pop("choices"), value.pop("resolved")
    for key, group in (("choices", choices), ("resolved", resolved)):
        _check_group(key, group)
    for key in ("choices", "norms", "init", "trainer"):
        _check_group(f"resolved.{key}", resolved.get(key))
    _same_keys("choices", choices, AXES_OF_A_RUN)
    for key, name in choices.items():
        typed = (
            key == "placement"
            and isinstance(value["placement"], dict)
            and (name == equation_text(value["placement"].get("equation")))
        )
        if not isinstance(name, str) or not (typed or _NAME.fullmatch(name)):
            raise ConfigError(f"choices.{key}: {name!r} is not allowed; it should be a name")
    for name, norm in resolved["norms"].items():
        _check_group(f"resolved.norms.{name}", norm)
    return Saved(choices, value, resolved)


def equation_text(equation: Any) -> str:
    """The name of a placement that was typed as an equation."""
    if isinstance(equation, Mapping):
        return ", ".join(f"{part}: {text}" for part, text in equation.items())
    return str(equation)


def _check_group(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: {value!r} is not allowed; it should be a group of keys")


def _same_keys(node: str, there: dict[str, Any], wanted: list[str]) -> None:
    dot = f"{node}." if node else ""
    for key in wanted:
        if key not in there:
            raise ConfigError(f"is no saved run; '{dot}{key}' is missing")
    for key in there:
        if key not in wanted:
            raise ConfigError(f"{dot}{key}: {unknown('key', key, wanted)}")


def _differences(saved: Any, resolved: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    if not (isinstance(saved, dict) and isinstance(resolved, dict)):
        return [] if saved == resolved else [(key, saved, resolved)]
    found = []
    for name in [*resolved, *(name for name in saved if name not in resolved)]:
        inner = f"{key}.{name}".strip(".")
        if inner not in _OF_A_COMMAND:
            found += _differences(saved.get(name), resolved.get(name), inner)
    return found


_OF_A_COMMAND = frozenset(marked(Mark.COMMAND))
