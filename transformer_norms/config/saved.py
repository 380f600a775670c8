"""The config.yaml of a run: what was chosen, auto included, and under `resolved` what came of it.

Reading it gives values only, whoever wrote it: no tags, aliases or `${`, of bounded size and depth.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_omega_conf_dumper

from transformer_norms.config.tree import CHOSEN, Config
from transformer_norms.errors import ConfigError, describe_error
from transformer_norms.kinds import plain
from transformer_norms.names import AXES_OF_A_RUN, unknown
from transformer_norms.storage.reading import read_yaml
from transformer_norms.text_tables import show

FORM = 1  # of a config.yaml. A key that is added, renamed or dropped raises the number.
# The names of files end up in a folder's name; that of a typed equation is made fit for it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


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


def to_yaml(config: Config, node: str = "") -> str:
    """Returns the text of config.yaml, or of one node of it: what OmegaConf.to_yaml writes, which
    copies all values twice before. A text that reads as a number is in quotes. Raises ConfigError
    where there is no such node."""
    content: Any = {"form": FORM, **to_mapping(config)}
    for part in node.split(".") if node else ():
        known = content if isinstance(content, dict) else {}
        if part not in known:
            raise ConfigError(f"--package {node}: {unknown('node', part, known)}")
        content = known[part]
    return yaml.dump(
        content,
        Dumper=get_omega_conf_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        sort_keys=False,
    )


def to_mapping(config: Config) -> dict[str, Any]:
    """Returns the content of config.yaml without the number of its form."""
    resolved = plain(config)
    chosen = resolved.pop("chosen")
    return {**chosen, "resolved": resolved}


def saved_of(config: Config) -> Saved:
    """Returns a config as `read_saved` reads it from its file."""
    content = to_mapping(config)
    return Saved(content.pop("choices"), {key: content[key] for key in CHOSEN}, content["resolved"])


def read_saved(file: Path) -> Saved:
    """Reads a config.yaml. Raises ConfigError if the file holds more than values, no run, or a run
    of another form."""
    content = read_yaml(file)
    try:
        if not isinstance(content, dict):
            raise ConfigError("is no saved run; it should be a group of keys")
        if (form := content.pop("form", None)) != FORM:
            raise ConfigError(f"its form is {form!r}; this version reads form {FORM} alone")
        return _saved(content)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{file}: is no run's config: {describe_error(error)}") from None


def _saved(content: dict[str, Any]) -> Saved:
    """Raises ConfigError where a part of a run's config is missing, unknown or of another kind."""
    _check_keys("", content, ["choices", *CHOSEN, "resolved"])
    choices, resolved = content.pop("choices"), content.pop("resolved")
    _check_group("choices", choices)
    _check_group("resolved", resolved)
    for key in ("choices", "norms", "init", "trainer"):
        _check_group(f"resolved.{key}", resolved.get(key))
    for name, norm in resolved["norms"].items():
        _check_group(f"resolved.norms.{name}", norm)
    _check_keys("choices", choices, AXES_OF_A_RUN)
    placement = content["placement"]
    equation = placement.get("equation") if isinstance(placement, dict) else None
    for axis, name in choices.items():
        typed = axis == "placement" and equation is not None and name == show(equation)
        if not isinstance(name, str) or not (typed or _NAME.fullmatch(name)):
            raise ConfigError(f"choices.{axis}: {name!r} is not allowed; it should be a name")
    return Saved(choices, content, resolved)


def _check_group(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: {value!r} is not allowed; it should be a group of keys")


def _check_keys(node: str, values: dict[str, Any], known: list[str]) -> None:
    dot = f"{node}." if node else ""
    for key in known:
        if key not in values:
            raise ConfigError(f"is no saved run; '{dot}{key}' is missing")
    for key in values:
        if key not in known:
            raise ConfigError(f"{dot}{key}: {unknown('key', key, known)}")
