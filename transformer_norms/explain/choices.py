"""Every key that may be auto: what it came to, and who chose it."""

from collections.abc import Mapping
from typing import Any

from transformer_norms.config.resolution import HENRYS_SCALE
from transformer_norms.config.saved import AUTO_ARCHITECTURE, get
from transformer_norms.explain.facts import Fact, Section
from transformer_norms.model.placement import Placement
from transformer_norms.model.position import rotary_bases

Config = Mapping[str, Any]
SIZES = {
    "model.kv_heads": "as many as model.heads",
    "model.head_dim": "model.width / model.heads",
    "model.mlp_width": "4 x model.width, or 8/3 of it where the mlp is gated",
}


def choices(config: Config, typed: set[str]) -> Section:
    keys = ["init", "embed", "final_norm", "qk_norm"]
    keys += [f"architecture.{key}" for key in AUTO_ARCHITECTURE]
    facts = [Fact(key, (_shown(_value(config, key)), _who(config, key, typed))) for key in keys]
    facts += [
        Fact(key, (_shown(get(dict(config), key)), _size(config, key, typed))) for key in SIZES
    ]
    return Section("What auto came to", ("where", "key", "value", "chosen by"), facts)


def others(config: Config) -> Section:
    """The rest of what makes the model: sizes, positions, mlp, biases."""
    architecture, sizes = config["architecture"], config["model"]
    facts = [
        Fact(f"model.{key}", (_shown(value),))
        for key, value in sizes.items()
        if f"model.{key}" not in SIZES
    ]
    facts += [Fact(f"mlp.{key}", (_shown(value),)) for key, value in config["mlp"].items()]
    facts.append(Fact("position.type", (config["position"]["type"],)))
    rotary = config["position"]["type"] == "rope"
    for key, value in architecture.items():
        if key not in AUTO_ARCHITECTURE and (rotary or not key.startswith("rope_")):
            facts.append(Fact(f"architecture.{key}", (_shown(value),)))
    if rotary:
        for i, base in enumerate(rotary_bases(architecture["rope_base"], sizes["depth"])):
            turned = (f"{base:g}",) if base else ("0: not rotated",)
            facts.append(Fact("rotary base", turned, i))
    return Section("Other choices", ("where", "key", "value"), facts)


def _value(config: Config, key: str) -> Any:
    return config["choices"]["init"] if key == "init" else get(dict(config), key)


def _size(config: Config, key: str, typed: set[str]) -> str:
    if config["words"][key] == "auto":
        return f"auto: {SIZES[key]}"
    return _by_hand(config, key, typed)


def _who(config: Config, key: str, typed: set[str]) -> str:
    """Typed before preset, preset before placement, placement before norm, and then the rule."""
    word, value, short = config["words"][key], _value(config, key), key.rpartition(".")[2]
    if word not in ("auto", value) and word != "always":
        return f"the placement's own q and k norms, before the preset's {word}"
    if word != "auto":
        return _by_hand(config, key, typed) + (": always" if word == "always" else "")
    fixnorm = config["embed"] == "fixnorm" and short == "embed_scale"
    if fixnorm:
        return "embed=fixnorm, whose paper scales so"
    for axis in ("placement", "norm"):
        brings = config[axis].get("brings", {})
        if short in brings and brings[short] == value:
            return f"{axis}={config['choices'][axis]}, which brings it"
    return "auto: " + _rule(config, key, value)


def _by_hand(config: Config, key: str, typed: set[str]) -> str:
    if key in typed:
        return "you typed it"
    preset = config["choices"].get("preset", "none")
    return "the saved run" if "config" in typed else f"preset={preset}"


def _rule(config: Config, key: str, value: Any) -> str:
    if key == "final_norm":
        if Placement(**config["placement"]).ends_normed(config["model"]["depth"]):
            return "the last block ends in a norm, so that none is wanted before the head"
        return "the stream leaves the last block without a norm"
    if key == "architecture.attention_scale" and value == HENRYS_SCALE:
        return "queries and keys have length 1, and want a learned scale"
    return "the usual"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        more = "".join(f", {k} {v}" for k, v in value.items() if k not in ("learn", "init"))
        return f"a learned {value['learn']} from {value['init']}{more}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
