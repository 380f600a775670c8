"""The config of a run: one frozen tree of the nodes that the rooms declare.

Nothing here imports torch, so a wrong key, type or range is answered at once. The settings of a
registered class are checked against its signature after torch's import (registered.py).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from inspect import Parameter, Signature, isclass
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator

from transformer_norms.config.data_settings import DataSettings
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Flag, Mark, Text, Texts, Values, marks_of, node, plain, value_at
from transformer_norms.model.settings import ModelConfig
from transformer_norms.names import Registry
from transformer_norms.training.settings import ParallelSettings, TrainerSettings
from transformer_norms.validation import check, parameters


def _folder_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", text):
        raise ValueError("a name has up to 100 letters, digits, . _ -, and begins without . or -")
    return text


Study = Annotated[Text, AfterValidator(_folder_name)]

ReadOption = Callable[[str, str], dict[str, Any]]  # (axis, name) -> the content of that file
TRACKING = Registry("tracking")


@TRACKING("none")
@node
class NoTracking:
    """`tracking=none`: the run folder is all there is."""


@TRACKING("wandb")
@node
class WandbTracking:
    """`tracking=wandb`: W&B mirrors the run folder. `model=final` keeps the trained model there, as
    an artifact. The other keys have W&B's own names, and come before W&B's variables."""

    mode: Literal["auto", "online", "offline"]
    model: Literal["none", "final"]
    project: Text
    entity: Text
    group: Text
    name: Text
    tags: Texts


@node
class About:
    """`about.*`: where a preset is published, and what of it could not be verified; the same of a
    recipe."""

    source: Text
    unverified: Text
    recipe_source: Text
    recipe_unverified: Text


@node
class Config(ModelConfig):
    """The config that `compose` returns. Every value is resolved, except trainer.threads,
    trainer.replicas and tracking.mode, which depend on the machine. `chosen` has the same keys as
    they were chosen, auto included. `choices` has the name of each axis, and `warnings` have one
    sentence each."""

    choices: Annotated[Values, Mark.NOT_IN_IDENTITY, Mark.DERIVED]
    about: Annotated[About, Mark.NOT_IN_IDENTITY]
    data: Annotated[Values, DataSettings]
    tokenizer: Values
    loss: Values
    optimizer: Values
    schedule: Values
    trainer: TrainerSettings
    tracking: Annotated[Values, Mark.NOT_IN_IDENTITY]
    parallel: Annotated[ParallelSettings, Mark.NOT_IN_IDENTITY, Mark.NOT_SAVED]
    study: Annotated[Study, Mark.NOT_IN_IDENTITY]
    plugins: Annotated[Text, Mark.NOT_IN_IDENTITY, Mark.NOT_SAVED]
    again: Annotated[Flag, Mark.NOT_IN_IDENTITY, Mark.NOT_SAVED]
    continue_from: Annotated[Text, Mark.NOT_IN_IDENTITY, Mark.NOT_SAVED]
    warnings: Annotated[tuple[str, ...], Mark.NOT_IN_IDENTITY, Mark.DERIVED, Mark.NOT_SAVED]
    chosen: Annotated[Values, Mark.NOT_IN_IDENTITY, Mark.DERIVED]

    def diff(self, second: "Config") -> dict[str, tuple[Any, Any]]:
        """Returns both values of each dotted key whose resolved values differ, this config's first,
        None where one has no such key. Raises ConfigError for anything but a config."""
        check_config(second)
        return diff(flat(_resolved(self)), flat(_resolved(second)))

    def __repr__(self) -> str:
        names = [self.choices[axis] for axis in ("norm", "placement", "data")]
        sizes = f"depth {self.model.depth}, width {self.model.width}, {self.trainer.steps} steps"
        return f"Config({', '.join(names)}, {sizes}, seed {self.seed})"

    def __str__(self) -> str:
        """The resolved values as YAML."""
        return yaml.safe_dump(_resolved(self), sort_keys=False, allow_unicode=True)


def _resolved(config: Config) -> dict[str, Any]:
    return {key: value for key, value in plain(config).items() if key != "chosen"}


def check_config(config: object) -> None:
    """Raises ConfigError for anything else, such as a dictionary of a config's keys."""
    if not isinstance(config, Config):
        raise ConfigError(f"{config!r:.60}: a config is wanted, as compose(['norm=rmsnorm'])")


def check_chosen(values: Mapping[str, Any], spelled: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values as the tree takes them, auto included. Raises ConfigError. The settings
    that only a registered class knows stay as they are. `spelled` has numbers as they were typed,
    for keys that turn out to be words."""
    checked = check("", values, _CHOSEN_KEYS, spelled=spelled)
    for name, kind in CHOSEN.items():
        if (owner := owner_of(kind)) is None:
            continue
        known, node = parameters(owner), checked[name]
        declares_all = base_of(kind) is owner or not is_dataclass(owner)
        own = {key: value for key, value in node.items() if declares_all or key in known}
        checked[name] = {**node, **check(name, own, owner, auto=True, spelled=spelled)}
    return {name: checked[name] for name in CHOSEN}


def base_of(kind: Any) -> Any:
    """Returns an annotation without its marks."""
    return kind.__origin__ if marks_of(kind) else kind


def owner_of(kind: Any) -> Any:
    """Returns the class that declares the keys of a node, all of them or those besides the settings
    of a registered class. Returns None for a node whose keys a registered class declares alone."""
    classes = [mark for mark in marks_of(kind) if isclass(mark)]
    return classes[0] if classes else base_of(kind) if is_dataclass(base_of(kind)) else None


def marked(mark: Mark, owner: Any = Config) -> Iterator[str]:
    """Yields the dotted keys that carry a mark. `norms.*.source` is the source of each norm."""
    for name, parameter in parameters(owner).items():
        kind = parameter.annotation
        inner = owner_of(kind)
        if mark in marks_of(kind):
            yield name
        elif inner is not None:
            every = "*." if Mark.BY_NAME in marks_of(kind) else ""
            yield from (f"{name}.{every}{key}" for key in marked(mark, inner))


def chosen_value(chosen: Any, key: str) -> Any:
    """Returns the value chosen for a dotted key or an axis, auto included. Raises KeyError."""
    return value_at(chosen["choices"] if key in chosen["choices"] else chosen, key)


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """{"trainer": {"steps": 8}} -> {"trainer.steps": 8}"""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        flattened |= flat(value, f"{above}{key}.") if nested else {f"{above}{key}": value}
    return flattened


def diff(
    before: Mapping[str, Any], now: Mapping[str, Any], absent: Any = None
) -> dict[str, tuple[Any, Any]]:
    """Returns both values of each name whose values differ, sorted by name. `absent` is the value
    of a name that one side does not have."""
    pairs = {name: (before.get(name, absent), now.get(name, absent)) for name in {*before, *now}}
    return {name: pairs[name] for name in sorted(pairs) if pairs[name][0] != pairs[name][1]}


def within(key: str, groups: Iterable[str]) -> bool:
    """Returns whether a dotted key is one of the groups, or lies in one."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


# The nodes and plain keys that a command or a file may choose, with their annotations.
CHOSEN = {
    name: parameter.annotation
    for name, parameter in parameters(Config).items()
    if Mark.DERIVED not in marks_of(parameter.annotation)
}


def owner_of_keys(kinds: Mapping[str, Any]) -> type:
    """Returns a class that takes these keys with their annotations; a node is a group of keys."""
    arguments = []
    for name, kind in kinds.items():
        is_group = base_of(kind) is Values or is_dataclass(base_of(kind))
        annotation = Mapping[str, Any] if is_group else kind
        arguments.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation))
    return type("Keys", (), {"__signature__": Signature(arguments)})


_CHOSEN_KEYS = owner_of_keys(CHOSEN)
AUTO_ARCHITECTURE = tuple(key for key in marked(Mark.AUTO) if key.startswith("architecture."))
# The value of architecture.* where it is auto and nothing brings another one.
DEFAULTS: dict[str, Any] = {
    "tied": True,
    "embed_scale": "none",
    "embed_scale_order": "before",
    "attention_scale": "1/sqrt(dh)",
    "logit_scale": "none",
    "qk_norm_order": "before",
    "attention_cap": "none",
}
TIED_SCALE = "tied_logit_scale"  # what an init brings: the logit_scale of a tied head alone
