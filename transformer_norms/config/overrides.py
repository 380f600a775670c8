"""Reads typed overrides such as `norm=rmsnorm optimizer.lr=1e-3` with Hydra's parser, and puts
their values in their places."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from transformer_norms.errors import ConfigError
from transformer_norms.model.placement import Placement
from transformer_norms.model.settings import OF_BLOCKS, ROLES
from transformer_norms.names import (
    AXES,
    AXES_OF_A_RUN,
    did_you_mean,
    name_list,
    nearest,
    option_files,
    option_name,
    options,
    other_codebases,
    spelling,
    theirs,
    unknown,
)
from transformer_norms.training.settings import GROUPS
from transformer_norms.validation import parameters


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


def parse(overrides: Iterable[str]) -> list[Typed]:
    """Returns the typed pairs. Raises ConfigError for a text that is no KEY=VALUE, for several
    values, for `+`, `~` and `${...}`, and for a key that is typed twice."""
    if isinstance(overrides, (str, Mapping)):
        such = [overrides if isinstance(overrides, str) else "norm=rmsnorm"]
        raise ConfigError(f"{overrides!r}: a list of KEY=VALUE is wanted, such as {such}")
    typed: dict[str, Typed] = {}
    overrides = list(overrides)
    check_pairs(overrides)
    for text in overrides:
        override = parse_one(text)
        if override.is_sweep_override():
            raise ConfigError(f"{text}: several values are a sweep; type -m before them")
        key = override.key_or_group
        value = option_name(key, _plain(override.value()))
        if key in typed and typed[key].value != value:
            raise ConfigError(f"{key} is typed twice: {typed[key]} and {text}")
        _refuse_unusable(key, value, text)
        typed[key] = Typed(key, value, text.partition("=")[2])
    return list(typed.values())


def check_pairs(words: Sequence[str]) -> None:
    """Raises ConfigError for a key and a value that are typed as two words, and for several values
    without brackets of a key that takes a list."""
    for text, following in zip_longest(words, words[1:], fillvalue=""):
        _refuse_without_equals(text, following)
        key, _, values = str(text).partition("=")
        axis, _, own = key.partition(".")
        bare = own and _split(values)[1:] and values[0] not in "[{'\""
        files = option_files(axis).values() if bare else ()
        if any(isinstance(to_dict(OmegaConf.load(file)).get(own), list) for file in files):
            raise ConfigError(f"{text}: a list is typed {key}=[{values}], also in a sweep")


def _refuse_without_equals(text: object, following: object) -> None:
    """Raises ConfigError for `norm rmsnorm` and `norm: rmsnorm`, and says how they are typed."""
    key, _, value = str(text).partition(":")
    if not isinstance(text, str) or "=" in text:
        return
    if key not in AXES and (near := _settings_of(text)):
        raise ConfigError(f"{text!r}: {did_you_mean(near)}a setting is one word, KEY=VALUE")
    if _is_key(key):
        value = value or (str(following) if "=" not in str(following) else "") or "VALUE"
        ours = (theirs(key) or [key])[0]
        typed = ours if "=" in ours else f"{ours}={value.strip()}"
        raise ConfigError(f"{text!r}: did you mean {typed!r}? a setting is one word, KEY=VALUE")


def _settings_of(word: str) -> list[str]:
    """Returns KEY=VALUE for each key that has this value, by our name or by another codebase's."""
    ours = [f"{axis}={word}" for axis in AXES_OF_A_RUN if word in options(axis)]
    pairs = ours or [
        one if "=" in one else f"{key}={one}"
        for key in other_codebases().values
        if key in AXES or key.startswith("trainer.")
        for one in theirs(word, key)
    ]
    pairs = list(dict.fromkeys(pairs))
    return pairs if len(pairs) <= 3 else []  # none, off and the like are values of most keys


def _is_key(word: str) -> bool:
    known = (*AXES, "seed", "study", "plugins", "config", "final_norm", "embed")
    return word in known or bool(re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", word) or theirs(word))


def check_flags(arguments: Sequence[str], flags: Iterable[str]) -> None:
    """Raises ConfigError for a setting that is typed as a flag, such as `--norm rmsnorm`."""
    for text, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        flag, equals, value = text.partition("=")
        key = flag.lstrip("-").replace("-", "_")
        if flag.startswith("-") and flag not in flags and _is_key(key):
            if not equals:
                value = following if following and following[0] != "-" else "VALUE"
            near = [one if "=" in one else f"{one}={value}" for one in theirs(key) or [key]]
            raise ConfigError(f"{text}: {did_you_mean(near)}a setting has no dashes")


def parse_one(text: str) -> Override:
    """Returns Hydra's own reading of one KEY=VALUE or KEY=A,B. An equation needs no quotes."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is no KEY=VALUE")
    if text.startswith(f"{SEPARATOR}="):
        text = text.translate(_CONTROL)
    if not text.isprintable():
        raise ConfigError(f"{text!r}: control characters are not allowed")
    if text.startswith(("+", "~")):
        raise ConfigError(f"{text}: keys are fixed; write KEY=VALUE without '{text[0]}'")
    key, equals, _ = text.partition("=")
    if not equals and os.path.isfile(f"{text}/config.yaml"):
        raise ConfigError(f"{text!r} is no KEY=VALUE; did you mean config={text}?")
    if not (key and equals):
        raise ConfigError(f"{text!r} is no KEY=VALUE, such as norm=rmsnorm or optimizer.lr=1e-3")
    if "${" in text:
        raise ConfigError(f"{text}: ${{...}} is not allowed in a value")
    try:
        override = OverridesParser.create().parse_override(as_hydra_reads(text))
    except (HydraException, ValueError, RecursionError):  # the last two: endless digits, brackets
        wanted = (EQUATION, EQUATION.partition(".")[2])
        if key == "placement" or (key != EQUATION and nearest(key, wanted, cutoff=_MISSPELLED)):
            raise ConfigError(f"{text}: cannot be read; an equation is {EQUATION}=...") from None
        raise ConfigError(
            f"{text}: cannot be read; a value with , = [ ] {{ }} ( ) or letters beyond a-z needs "
            f"quotes that the shell leaves, \"{key}='VALUE'\""
        ) from None
    if override.type != OverrideType.CHANGE or override.package is not None:
        raise ConfigError(f"{text}: only KEY=VALUE is allowed")
    return override


HORIZONS = ("trainer.steps", "trainer.tokens")  # one of them is typed
EQUATION = "placement.equation"
_MISSPELLED = 0.8  # the likeness from which on a key is taken for that of an equation
_WITH_EQUATIONS = (EQUATION, "placement.where")
_WITH_FORMULAS = (
    "init.stream",
    *(f"init.std.{role}" for role in ("default", *ROLES)),
    *(f"architecture.{key}" for key in ("embed_scale", "attention_scale", "logit_scale")),
    *(f"model.{key}" for key in OF_BLOCKS),
    *(f"position.scaling{key}" for key in ("", ".factor", ".attention_factor")),
    "architecture.rope_base",
    "architecture.rope_fraction",
    "architecture.values_from_keys",
    "architecture.kv_from_block",
    "architecture.activation_sparsity",
    "architecture.sliding_window",
    "architecture.attention_chunk",
    "architecture.temperature_floor",
    *(f"optimizer.lr_factor.{group}" for group in GROUPS),
)


SEPARATOR = "data.separator"  # whose value is text of any kind
_CONTROL = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r"})


def as_hydra_reads(text: str) -> str:
    """Returns KEY=VALUE or KEY=A,B as Hydra is to read it: options by their names, ~/ as the home
    folder, and `placement.equation=norm(x + f(x))` with the quotes that Hydra's parser needs,
    around each of several and around each word in `{...}` and `[...]`."""
    key, _, value = text.partition("=")
    if key in AXES and value:
        return f"{key}={re.sub(_OPTION, lambda found: option_name(key, found[0]), value)}"
    if key == SEPARATOR and value[:1] not in ("'", '"'):
        return f"{key}={QuotedString(value, Quote.single).with_quotes()}"
    value = re.sub(_HOME, lambda _: str(Path.home()), value)
    text = f"{key}={value}" if value else text
    has_signs = key in _WITH_FORMULAS and re.search("[(^|<>=]", value)
    if not (key in _WITH_EQUATIONS or has_signs) or re.search(r"""['"]|^choice\(""", value):
        return text
    return f"{key}={','.join(map(_quote, _split(value)))}"


def _quote(text: str) -> str:
    text = text.strip()
    inside = _split(text[1:-1])
    if text.startswith("[") and text.endswith("]"):
        return f"[{','.join(map(_quote, inside))}]"
    if text.startswith("{") and text.endswith("}"):
        pairs = [part.partition(":") for part in inside if part]
        return "{" + ",".join(f"{key.strip()}:{_quote(value)}" for key, _, value in pairs) + "}"
    if not text or _NO_TEXT.fullmatch(text):
        return text
    return QuotedString(text, Quote.single).with_quotes()


def _split(text: str) -> list[str]:
    """Splits a text at each comma that no bracket encloses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


_OPTION = re.compile(r"[\w./-]+")
_HOME = re.compile(r"""(?<![^,['"])~(?=/|$)""")
_NO_TEXT = re.compile(r"-?[0-9.]+(e-?[0-9]+)?|true|false")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_WORDS = ("null", "true", "false", "nan", "inf")  # what Hydra reads as something else


def as_typed(key: str, value: Any) -> str:
    """Returns KEY=VALUE as a user types it. Hydra's parser reads the same value back."""
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    if isinstance(value, str) and not (_WORD.fullmatch(value) and value.lower() not in _NO_WORDS):
        return QuotedString(value, Quote.single).with_quotes()
    return str(value)


def _plain(value: Any) -> Any:
    """Returns a value with Hydra's quoted strings as strings, also inside lists and mappings."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.text if hasattr(value, "text") else value


def _refuse_unusable(key: str, value: Any, text: str) -> None:
    for leaf in _leaves(value):
        if leaf is None or leaf == "???":
            word = "null" if leaf is None else leaf
            raise ConfigError(f"{text}: {word} is not allowed; write none where a key takes none")
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise ConfigError(f"{text}: {key} must be finite")


def _leaves(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


_STD = ["default", *ROLES]  # what init.std may name
# The keys of a file that another value would make untrue.
_FIXED = ("type", "formula", "source", "unverified")


def place(values: dict[str, Any], pairs: Iterable[Typed]) -> dict[str, Any]:
    """Returns the values with each KEY=VALUE in its place; those of axes have theirs already.
    Raises ConfigError for a key that there is not."""
    options_typed = {pair.key: pair for pair in pairs if pair.key in AXES}
    typed = [pair for pair in pairs if pair.key not in AXES]
    nodes = {pair.key.partition(".")[0] for pair in typed}
    config = OmegaConf.create({key: node for key, node in values.items() if key in nodes})
    for pair in typed:
        if pair.key.split(".")[0].split("/")[0] == "hydra":
            raise ConfigError(f"{pair}: Hydra's own keys are for sweeps (-m)")
        try:
            value = OmegaConf.select(config, pair.key)
        except OmegaConfBaseException:  # a word where a list has positions
            value = None
        axis, _, own = pair.key.partition(".")
        if value is None and not _is_optional(axis, own):
            raise ConfigError(_no_such_key(pair, {**values, **to_dict(config)}, options_typed))
        if axis == "about" or (axis in AXES and own in _FIXED):
            if axis == "about":
                axis = "recipe" if own.startswith("recipe") else "preset"
            raise ConfigError(f"{pair}: {own} is what the file is; choose another, {axis}=NAME")
        merge = isinstance(value, DictConfig) and pair.key != EQUATION
        if merge and not isinstance(pair.value, Mapping):
            raise ConfigError(f"{pair}: {pair.text} is not allowed; it is a group of keys")
        OmegaConf.update(config, pair.key, pair.value, merge=merge, force_add=True)
    return {**values, **to_dict(config)}


def _is_optional(axis: str, own: str) -> bool:
    """Whether a key may be typed that its file leaves out."""
    if axis == "init":
        group, _, role = own.partition(".")
        return own in ("stream", "stream_by", "truncate") or (group == "std" and role in _STD)
    return axis == "placement" and own in parameters(Placement)


def to_dict(config: Any) -> dict[str, Any]:
    """Returns OmegaConf's mapping as dicts, lists and values."""
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _no_such_key(pair: Typed, values: dict[str, Any], chosen: Mapping[str, Typed]) -> str:
    """Returns what to say of a key that there is not, where the user typed the options `chosen`."""
    config = OmegaConf.create(values)
    parent, _, last = pair.key.rpartition(".")
    if parent == "init.std":
        return f"{pair}: {unknown('role', last, _STD)}"
    axis, _, own = pair.key.partition(".")
    if axis in AXES and "." not in own and (having := _options_with(axis, own, pair.key)):
        near = f"type {axis}={having[0]} too; " if len(having) == 1 and axis not in chosen else ""
        lacks = f"{chosen[axis]} has no key" if axis in chosen else "there is no key"
        others = f"{axis}={', '.join(having)} {'have' if len(having) > 1 else 'has'} it"
        return f"{pair}: {near}{lacks} '{pair.key}'; {others}"
    node = OmegaConf.select(config, parent) if parent else None
    if isinstance(node, DictConfig):
        shown = f"transformer-norms train --cfg job --package {parent} shows all"
        names = name_list(_typable(node, parent), shown)
        allowed = f"keys of {parent} are {names}" if names else f"{parent} has no keys"
    else:
        allowed = f"axes are {', '.join(AXES)}"
    near = did_you_mean(_near_keys(pair.key, config))
    return f"{pair}: {near}there is no key '{pair.key}'; {allowed}"


def _typable(node: DictConfig, parent: str) -> list[str]:
    """Returns the keys of a node that a user may type."""
    fixed = _FIXED if parent in AXES else ()
    return [key for key in to_dict(node) if key not in fixed]


def _near_keys(key: str, config: DictConfig) -> list[str]:
    """Returns the keys that a wrong key may mean: a word of another codebase, the same word
    elsewhere, a key that looks alike in the same node, or an option of its axis. Where there is no
    such node, it is a key that looks alike anywhere."""
    parent, _, last = key.rpartition(".")
    known = [*_keys_and_inner_keys(config), *AXES, "config"]
    node = OmegaConf.select(config, parent) if parent else None
    if not isinstance(node, DictConfig):
        same = [one for one in known if one.rpartition(".")[2] == last]
        return theirs(last) or same[:1] or nearest(key, known)
    beside = _typable(node, parent)
    inner = [one for one in other_codebases().inner_keys.get(spelling(last), []) if one in node]
    same = [one for one in known if one.rpartition(".")[2] == last and one != key]
    if words := [f"{parent}.{one}" if one in beside else parent for one in inner]:
        return words
    if words := theirs(last) or same[:1] or [f"{parent}.{one}" for one in nearest(last, beside)]:
        return words
    named = nearest(last, options(parent), cutoff=0.7) if parent in AXES else []
    return [f"{parent}={one}" for one in named]


def _options_with(axis: str, key: str, dotted: str) -> list[str]:
    """Returns the options whose files hold `key`: the usual one of many, or all of a few."""
    names = [name for name, file in option_files(axis).items() if key in OmegaConf.load(file)]
    usual = other_codebases().goes_with.get(dotted, "").partition("=")[2]
    return [usual] if usual in names else names[:3]


def _keys_and_inner_keys(config: DictConfig) -> Iterable[str]:
    """The keys of a config, each followed by the dotted keys of its node."""
    for key, node in to_dict(config).items():
        yield key
        if isinstance(node, dict):
            yield from (f"{key}.{inner}" for inner in node)
