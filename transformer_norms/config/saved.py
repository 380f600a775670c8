"""The config.yaml of a run: what was chosen, auto included, and under `resolved` the values.

Reading it gives values only, whoever wrote it: no tags, aliases or `${`, of bounded size and depth.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_omega_conf_dumper

from transformer_norms.config.tree import CHOSEN, Config, owner_of_keys
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Text, Values, plain
from transformer_norms.names import AXES_OF_A_RUN, unknown
from transformer_norms.storage.reading import read_yaml
from transformer_norms.text_tables import show
from transformer_norms.validation import check, parameters

FORM = 1  # of a config.yaml. A key that is renamed or dropped raises the number.
# Keys that were added to form 1, each at the value that is left out of the identity.
_ADDED = {"trainer": {"branches": "none", "average": "none"}}
# The names of files end up in a folder's name; that of a typed equation is made fit for it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Saved:
    """A saved run: the names of its axes, the nodes as they were chosen, and as resolved."""

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
            raise ConfigError("is not a saved run; it should be a group of keys")
        if (form := content.pop("form", None)) != FORM:
            raise ConfigError(f"its form is {form!r}; this version reads form {FORM} alone")
        check("", content, _CONTENT)
        axes, resolved = content.pop("choices"), content.pop("resolved")
        for nodes, (name, added) in itertools.product((content, resolved), _ADDED.items()):
            if isinstance(nodes.get(name), dict):  # else it is refused where it is read
                nodes[name] |= {key: added[key] for key in added if key not in nodes[name]}
        check("choices", axes, _AXES)
        check("resolved", resolved, _RESOLVED)
        equation = show(content["placement"].get("equation"))
        for axis, name in axes.items():
            if not (_NAME.fullmatch(name) or (axis == "placement" and name == equation != "")):
                raise ConfigError(f"choices.{axis}: {name!r} is not allowed; it should be a name")
        return Saved(axes, content, resolved)
    except ValueError as error:  # a ConfigError, or a number of too many digits
        raise ConfigError(f"{file}: {error}") from None


# The keys of config.yaml, and of two of its groups.
_CONTENT = owner_of_keys({**CHOSEN, "choices": Values, "resolved": Values})
_AXES = owner_of_keys(dict.fromkeys(AXES_OF_A_RUN, Text))
_RESOLVED = owner_of_keys(
    {
        **{name: one.annotation for name, one in parameters(Config).items() if name != "chosen"},
        "norms": Mapping[str, Mapping[str, Any]],
    }
)
