"""Reads what is typed, such as `norm=rmsnorm optimizer.lr=1e-3`.

A value is a number, true, false, a list in [ ], a group of keys in { }, or a word. An equation is a
word, and needs no quotes. A text in quotes stays as it is. Commas outside of brackets divide the
values of a sweep.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES, AXES_OF_A_RUN, did_you_mean, option_name, options, theirs

HORIZONS = ("trainer.steps", "trainer.tokens")  # one of them is typed
BRANCHES = "trainer.branches"  # many of them
SEPARATOR = "data.separator"  # whose value is text of any kind
_CONTROL = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r"})


@dataclass(frozen=True)
class Typed:
    """One KEY=VALUE; `text` is VALUE as it was typed."""

    key: str
    value: Any
    text: str

    def __str__(self) -> str:
        return f"{self.key}={self.text}"

    @property
    def word(self) -> str:
        """VALUE as a word, without its quotes. 1e5 is the word that was typed."""
        return self.value if isinstance(self.value, str) else self.text


# ------------------------------------------------------------------------------ the text of a value

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_INTEGER = re.compile(r"[+-]?(0|[1-9](_?\d)*)")
_FLOAT = re.compile(r"[+-]?((\d+\.\d*|\.\d+)(e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"true": True, "false": False, "null": None}
FUNCTION = re.compile(r"(choice|range|interval|glob|tag|shuffle|sort)\((.*)\)")


def split(text: str, sign: str = ",") -> list[str]:
    """Splits a text at each sign that no bracket and no quotes enclose."""
    parts, depth = [""], 0
    for token in re.findall(rf"{_QUOTED}|.", text, re.DOTALL):
        depth += (token in "([{") - (token in ")]}")
        if token == sign and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def read_value(text: str) -> Any:
    """Returns the value of a text."""
    text = text.strip()
    if re.fullmatch(_QUOTED, text):  # with half of the backslashes before a quote or the end
        ends = r"(\\+)(['\"]|$)"
        return _at_home(re.sub(ends, lambda m: m[1][: len(m[1]) // 2] + m[2], text[1:-1]))
    items = [part for part in split(text[1:-1]) if part.strip()]
    if text[:1] + text[-1:] == "[]":
        return [read_value(item) for item in items]
    if text[:1] + text[-1:] == "{}":
        pairs = [split(item, ":") for item in items]
        return {str(read_value(key)): read_value(":".join(rest)) for key, *rest in pairs}
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else _at_home(text)


def _at_home(text: str) -> str:
    return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text


def as_typed(key: str, value: Any) -> str:
    """Returns KEY=VALUE as a user types it, from which `parse` reads the same value back."""
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    words = (*_WORDS, "nan", "inf")  # read as something else
    if isinstance(value, str) and not (_WORD.fullmatch(value) and value.lower() not in words):
        text = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2], value)
        return "'" + text.replace("'", "\\'") + "'"
    return str(value)


# ------------------------------------------------------------------------------------ KEY=VALUE


def parse(overrides: Iterable[str]) -> list[Typed]:
    """Returns the typed pairs. Raises ConfigError for a text that is not KEY=VALUE, for several
    values, for `+`, `~` and `${...}`, and for a key that is typed twice."""
    if isinstance(overrides, (str, Mapping)):
        such = [overrides if isinstance(overrides, str) else "norm=rmsnorm"]
        raise ConfigError(f"{overrides!r}: a list of KEY=VALUE is wanted, such as {such}")
    typed: dict[str, Typed] = {}
    for text in overrides:
        key, parts = read_several(text)
        if parts is None or is_several(text):
            a_list = f" (a list is {key}=[A,B])" if "." in key else ""
            raise ConfigError(f"{text}: several values are a sweep; type -m before them{a_list}")
        value: Any = parts[0]
        if key != SEPARATOR or value[:1] in ("'", '"'):
            try:
                value = option_name(key, read_value(value))
            except (ValueError, RecursionError):  # endless digits, brackets
                raise ConfigError(f"{key}={value}: cannot be read") from None
        if key in typed and typed[key].value != value:
            raise ConfigError(f"{key} is typed twice: {typed[key]} and {text}")
        _refuse_unusable(key, value, text)
        typed[key] = Typed(key, value, text.partition("=")[2])
    return list(typed.values())


def read_several(text: str) -> tuple[str, Sequence[Any] | None]:
    """Returns the key and the texts of the values of KEY=A,B, KEY=choice(A,B) or KEY=range(A,B).
    They are None where a function of Hydra's lists no values. Raises ConfigError for any
    other text."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not KEY=VALUE")
    if text.startswith(f"{SEPARATOR}="):
        text = text.translate(_CONTROL)
    if not text.isprintable():
        raise ConfigError(f"{text!r}: control characters are not allowed")
    if text.startswith(("+", "~")):
        raise ConfigError(f"{text}: keys are fixed; write KEY=VALUE without '{text[0]}'")
    key, equals, value = text.partition("=")
    if not equals and os.path.isfile(f"{text}/config.yaml"):
        raise ConfigError(f"{text!r} is not KEY=VALUE; did you mean config={text}?")
    if not (key and equals):
        near = meant_setting(text)
        such = f"; {near}" if near else ", such as norm=rmsnorm or optimizer.lr=1e-3"
        raise ConfigError(f"{text!r} is not KEY=VALUE{such}")
    if "${" in text:
        raise ConfigError(f"{text}: ${{...}} is not allowed in a value")
    if key == SEPARATOR:
        return key, [value]
    if (call := FUNCTION.fullmatch(value)) is None:
        return key, split(value)
    inside = split(call[2])
    try:
        ends = [int(float(end)) for end in inside] if call[1] == "range" else []
        return key, range(*ends) if ends else inside if call[1] == "choice" else None
    except (ValueError, TypeError, OverflowError):
        return key, None


def is_several(text: str) -> bool:
    """Whether KEY=A,B, a function of values, or seed=A..B names the values of a sweep."""
    key, _, value = text.partition("=")
    many = len(split(value)) > 1 or FUNCTION.fullmatch(value)
    return key != SEPARATOR and bool(many or re.fullmatch(r"seed=\d+\.\.\d+", text))


def are_many(overrides: Iterable[str]) -> bool:
    """Whether the texts ask for a sweep without several values: by its name, or by horizons that
    share first steps, where none of them is typed."""
    typed = dict(text.partition("=")[::2] for text in overrides)
    named, branches = typed.get("sweep", "none"), typed.get(BRANCHES, "none")
    return named != "none" or (branches != "none" and not typed.keys() & {*HORIZONS})


def meant_setting(text: str) -> str:
    """Returns the hint for `norm`, `--norm=dyt`, `norm:` and `rmsnorm`, words that are a key or the
    value of an axis; otherwise nothing."""
    name, _, value = text.lstrip("-").replace(":", "=", 1).partition("=")
    kinds = (*AXES_OF_A_RUN, "trainer.precision", "trainer.device")
    pairs = [f"{axis}={name}" for axis in AXES_OF_A_RUN if name in options(axis)]
    pairs = pairs or [f"{kind}={own}" for kind in kinds for own in theirs(name, kind)]
    if not value and 0 < len(pairs) <= 3:  # none is a value of most axes
        return did_you_mean(pairs).rstrip()
    key = (theirs(name) or [name.replace("-", "_")])[0]
    known = (*AXES, "seed", "study", "plugins", "config", "final_norm", "embed")
    if theirs(name) or key in known or re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", key):
        return did_you_mean([f"{key}={value or 'VALUE'}"]).rstrip()
    return ""


def _refuse_unusable(key: str, value: Any, text: str) -> None:
    items = list(value.values()) if isinstance(value, dict) else value
    for item in items if isinstance(items, list) else ():
        _refuse_unusable(key, item, text)
    if value is None or value == "???":
        word = "null" if value is None else value
        raise ConfigError(f"{text}: {word} is not allowed; write none where a key takes none")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{text}: {key} must be finite")
