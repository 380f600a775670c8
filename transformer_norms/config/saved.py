"""Reads a saved config.yaml: values only, whoever wrote it."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES_OF_A_RUN, unknown

NORM_WORDS = ("embed", "final_norm", "qk_norm")
# architecture.* keys that are auto, and what that is where nothing brings another.
AUTO_ARCHITECTURE: dict[str, Any] = {
    "tied": True,
    "embed_scale": "none",
    "attention_scale": "1/sqrt(dh)",
    "logit_scale": "none",
    "qk_norm_order": "before",
    "attention_cap": "none",
}
# The keys that hold a word to be translated (auto, always, a norm's name).
WORD_KEYS = (
    *NORM_WORDS,
    *(f"architecture.{key}" for key in AUTO_ARCHITECTURE),
    *("model.kv_heads model.head_dim model.mlp_width data.seed trainer.device").split(),
)
# What a complete config holds, in the order of the file.
KEYS = (
    "choices words about norm placement init position attention mlp embed final_norm qk_norm qkv "
    "norms architecture model data tokenizer loss optimizer schedule trainer tracking seed study "
    "plugins again continue_from warnings"
).split()
_PLAIN = "embed final_norm qk_norm qkv seed study plugins again continue_from warnings".split()
_UNREAD = {"plugins": str, "again": bool, "continue_from": str, "warnings": list}
_DERIVED = ("choices", "words", "norms", "qkv", "warnings")
# The device is the machine's; what is not carried over or is computed anew may differ as well.
_FREE = ("trainer.device", "words.trainer.device", "plugins", "again", "continue_from", "warnings")
# Keys that are younger than some files, and what a file without them means.
_YOUNGER = {
    "trainer.probe_every": 0,
    "trainer.activation_checkpointing": False,
    "trainer.replicas": 1,
}
# Axes that are younger than some files, and the choice that those files made without saying so.
YOUNGER_AXES = {"attention": "softmax", "loss": "cross_entropy"}
# Names end up in a folder's name.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_BYTES, _DEPTH = 1 << 18, 20


def read_saved(file: Path) -> dict[str, Any]:
    """The mapping in `file`; ConfigError where it holds tags, aliases or `${`, or is no run's.

    OmegaConf's loader is PyYAML's safe one with its rule for floats: 1e-5 is a number.
    """
    text = _text(file)
    try:
        _refuse_more_than_values(text)
        value = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        add_younger_axes(value)
        _refuse_other_files(value)
    except ConfigError as error:
        raise ConfigError(f"config={file}: {error}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"config={file}: is no YAML: {' '.join(str(error).split())}") from None
    assert isinstance(value, dict)
    saved = {str(key): item for key, item in value.items()}
    for key, meant in _YOUNGER.items():
        node, _, last = key.rpartition(".")
        get(saved, node).setdefault(last, meant)
    return saved


def add_younger_axes(value: Any) -> None:
    """Adds what a file from before an axis existed chose on it."""
    for axis, name in YOUNGER_AXES.items():
        if isinstance(value, dict) and isinstance(value.get("choices"), dict):
            value.setdefault(axis, {"type": name})
            value["choices"].setdefault(axis, name)


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
    """Looks at the events, before anything is built from them."""
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


def _refuse_other_files(value: Any) -> None:
    """ConfigError where a part of a run's config is missing, unknown or of another kind."""
    if not isinstance(value, dict):
        raise ConfigError("is no saved run; 'choices' is missing")
    _same_keys("", value, KEYS)
    kinds: dict[str, type] = {key: dict for key in KEYS if key not in _PLAIN} | _UNREAD
    for key, kind in kinds.items():
        _of_kind(key, value[key], kind)
    for name, norm in value["norms"].items():
        _of_kind(f"norms.{name}", norm, dict)
    choices, words = value["choices"], value["words"]
    _same_keys("choices", choices, [*AXES_OF_A_RUN, *NORM_WORDS])
    _same_keys("words", words, ["init", *WORD_KEYS])
    names = {f"choices.{key}": name for key, name in choices.items()}
    names |= {f"words.{key}": words[key] for key in ("init", *NORM_WORDS)}
    names |= {f"norms.{name}": name for name in value["norms"]}
    for where, name in names.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} is not allowed; it should be a name")


def _of_kind(key: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        wanted = "a group of keys" if kind is dict else f"of kind {kind.__name__}"
        raise ConfigError(f"{key}: {value!r} is not allowed; it should be {wanted}")


def _same_keys(node: str, there: dict[str, Any], wanted: list[str]) -> None:
    dot = f"{node}." if node else ""
    for key in wanted:
        if key not in there:
            raise ConfigError(f"is no saved run; '{dot}{key}' is missing")
    for key in there:
        if key not in wanted:
            raise ConfigError(f"{dot}{key}: {unknown('key', key, wanted)}")


def unresolved(saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A saved run as it was before its words were translated, and the names of its axes."""
    words = saved["words"]
    values = copy.deepcopy({key: item for key, item in saved.items() if key not in _DERIVED})
    for key in WORD_KEYS:
        put(values, key, words[key])
    values.update(plugins="none", again=False, continue_from="none")
    axes = {axis: saved["choices"][axis] for axis in AXES_OF_A_RUN}
    return values, {**axes, "init": words["init"]}


def check_unedited(saved: dict[str, Any], resolved: dict[str, Any]) -> None:
    """ConfigError where the file says one thing and the words that it holds mean another: a change
    in it would be lost, or take others along that it does not show."""
    for key, there, here in _differences(saved, resolved):
        if key not in _FREE:
            raise ConfigError(
                f"{key}: {there!r} is not allowed; what the file's words mean is {here!r}. "
                f"To change a saved run leave the file and type it: config=FILE {key}=VALUE"
            )


def _differences(saved: Any, resolved: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    if not (isinstance(saved, dict) and isinstance(resolved, dict)):
        return [] if saved == resolved else [(key, saved, resolved)]
    found = []
    for name in [*resolved, *(name for name in saved if name not in resolved)]:
        there, here = saved.get(name), resolved.get(name)
        found += _differences(there, here, f"{key}.{name}".strip("."))
    return found


def get(config: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def put(config: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        config = config[part]
    config[last] = value
