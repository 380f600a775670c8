"""What was typed: `norm=rmsnorm optimizer.lr=1e-3`, parsed by Hydra's own parser and looked at."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from transformer_norms.errors import ConfigError


@dataclass(frozen=True)
class Typed:
    """One KEY=VALUE; `text` is VALUE as it was typed."""

    key: str
    value: Any
    text: str

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


def parse(overrides: Iterable[str]) -> list[Typed]:
    """The typed pairs, or a ConfigError: a sweep where one value is wanted, `+`, `~`, `${...}`,
    a key typed twice, something that is no KEY=VALUE."""
    typed: dict[str, Typed] = {}
    for text in overrides:
        override = parse_one(text)
        if override.is_sweep_override():
            raise ConfigError(f"{text}: several values are a sweep; type -m before them")
        value = _plain(override.value())
        key = override.key_or_group
        if key in typed and typed[key].value != value:
            raise ConfigError(f"{key} is typed twice: {typed[key]} and {text}")
        _refuse_unusable(key, value, text)
        typed[key] = Typed(key, value, text.partition("=")[2])
    return list(typed.values())


def parse_one(text: str) -> Override:
    """Hydra's own reading of one KEY=VALUE, sweeps included."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is no KEY=VALUE")
    if text[:1] in "+~":
        raise ConfigError(f"{text}: keys are fixed; write KEY=VALUE without '{text[:1]}'")
    if "=" not in text:
        raise ConfigError(f"{text!r} is no KEY=VALUE, such as norm=rmsnorm or optimizer.lr=1e-3")
    if not text.isprintable():
        raise ConfigError(f"{text!r}: control characters are not allowed")
    if "${" in text:
        raise ConfigError(f"{text}: ${{...}} is not allowed in a value")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        raise ConfigError(f"{text}: cannot be read; quote what holds , = [ ] {{ }}") from None
    if override.type != OverrideType.CHANGE or override.package is not None:
        raise ConfigError(f"{text}: only KEY=VALUE is allowed")
    return override


def _plain(value: Any) -> Any:
    """Hydra's quoted strings as strings, also inside lists and mappings."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.text if hasattr(value, "text") else value


def _refuse_unusable(key: str, value: Any, text: str) -> None:
    for leaf in _leaves(value):
        if leaf is None:
            raise ConfigError(f"{text}: null is not allowed; write none where a key takes none")
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise ConfigError(f"{text}: {key} must be finite")


def _leaves(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
