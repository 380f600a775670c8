"""Reads a saved config.yaml: values only, whoever wrote it."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from transformer_norms.errors import ConfigError


# The keys that hold a word to be translated (auto, always, a norm's name).
WORD_KEYS = (
    "embed final_norm qk_norm architecture.embed_scale architecture.attention_cap "
    "model.kv_heads model.head_dim model.mlp_width data.seed trainer.device"
).split()


def read_saved(file: Path) -> dict[str, Any]:
    """The mapping in `file`; ConfigError where it holds tags, aliases or `${`, or is no run's.

    OmegaConf's loader is PyYAML's safe one with its rule for floats: 1e-5 is a number.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config={file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config={file}: cannot be read: {error}") from None
    if "${" in text:
        raise ConfigError(f"config={file}: a saved config holds no ${{...}}")
    try:
        for event in yaml.parse(text, Loader=get_yaml_loader()):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError(f"config={file}: a saved config holds no anchors or aliases")
            if getattr(event, "tag", None):
                raise ConfigError(f"config={file}: a saved config holds no tags")
        value = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"config={file}: is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"config={file}: is nested too deeply") from None
    if not isinstance(value, dict) or not isinstance(value.get("choices"), dict):
        raise ConfigError(f"config={file}: is no saved run; 'choices' is missing")
    return {str(key): item for key, item in value.items()}


def unresolved(saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A saved run as it was before its words were translated, and the names of its axes."""
    words = saved.pop("words")
    axes = {**saved.pop("choices"), "init": words["init"]}
    for key in ("embed", "final_norm", "qk_norm"):
        axes.pop(key)
    for key in WORD_KEYS:
        put(saved, key, words[key])
    saved.update(plugins="none", again=False, continue_from="none")
    return saved, axes


def get(config: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def put(config: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        config = config[part]
    config[last] = value
