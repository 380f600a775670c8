"""Each node of a config checked against what it will build: kinds, ranges, names."""

import re
from collections.abc import Callable
from typing import Any

from transformer_norms.config.settings import (
    TRACKING,
    About,
    Architecture,
    MLPKeys,
    PlainKeys,
    PositionKeys,
    Sizes,
)
from transformer_norms.config.validation import check
from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.data.settings import DataSettings
from transformer_norms.errors import ConfigError
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.initialization import InitRule
from transformer_norms.model.mlp import ACTIVATIONS, MLPS
from transformer_norms.model.position import POSITIONS
from transformer_norms.names import unknown
from transformer_norms.norms import NORMS, NOT_ARGUMENTS
from transformer_norms.registry import Registry
from transformer_norms.training.loss import LOSSES
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.schedule import SCHEDULES
from transformer_norms.training.settings import TrainerSettings

Config = dict[str, Any]
# What an attention is built with besides its own settings.
ATTENTION_ARGUMENTS = ("scale", "cap", "dropout", "width", "heads", "head_dim", "context", "sizes")


def check_plain(config: Config) -> None:
    plain = check("", {key: config[key] for key in PlainKeys.__dataclass_fields__}, PlainKeys)
    config.update(plain)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", config["study"]):
        raise ConfigError(
            f"study: {config['study']!r} is not allowed; a name of up to 100 letters, digits and "
            ". _ - that does not start with . or -"
        )
    sizes = check("model", config["model"], Sizes)
    config["mlp"] = check("mlp", config["mlp"], MLPKeys)
    config["position"] = check("position", config["position"], PositionKeys)
    check_registered("attention", config["attention"], ATTENTIONS, ATTENTION_ARGUMENTS)
    mlp = _choice("mlp.type", config["mlp"]["type"], MLPS)
    _choice("mlp.activation", config["mlp"]["activation"], ACTIVATIONS)
    _choice("position.type", config["position"]["type"], POSITIONS)
    try:
        config["model"] = Sizes(**sizes).resolve(
            gated=mlp.gated, rotary=config["position"]["type"] == "rope"
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_axes(config: Config) -> None:
    config["about"] = check("about", config["about"], About)
    build(InitRule, "init", config["init"])
    architecture = dict(config["architecture"])
    scale = architecture["embed_scale"]
    config["architecture"] = check("architecture", architecture, Architecture)
    config["architecture"]["embed_scale"] = scale
    _check_biases(config)
    _check_attention(config)
    names = DataSettings.__dataclass_fields__
    shared = {key: config["data"].pop(key) for key in names if key in config["data"]}
    check_registered("data", config["data"], CORPORA)
    config["data"] |= check("data", shared, DataSettings)
    check_registered("tokenizer", config["tokenizer"], TOKENIZERS)
    check_registered("loss", config["loss"], LOSSES)
    check_registered("optimizer", config["optimizer"], OPTIMIZERS, ("model",))
    check_registered("schedule", config["schedule"], SCHEDULES, ("step", "steps"))
    config["trainer"] = check("trainer", config["trainer"], TrainerSettings)
    try:
        TrainerSettings(**config["trainer"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_registered("tracking", config["tracking"], TRACKING)


def _check_biases(config: Config) -> None:
    """A bias that is asked for by name stands somewhere."""
    bias = config["architecture"]["bias"]
    named = [] if isinstance(bias, bool) else bias
    if "gate" in named and not MLPS[config["mlp"]["type"]].gated:
        kind = config["mlp"]["type"]
        raise ConfigError(f"architecture.bias: gate is not allowed: a {kind} mlp has no gate")
    if "head" in named and config["architecture"]["tied"]:
        raise ConfigError("architecture.bias: head is not allowed where architecture.tied is true")


def _check_attention(config: Config) -> None:
    """ConfigError where an option is set for which the chosen attention has no use."""
    usual = {
        "architecture.attention_cap": "none",
        "architecture.attention_scale": "1/sqrt(dh)",
        "model.dropout": 0,
    }
    kind = config["attention"]["type"]
    refuses = getattr(ATTENTIONS[kind], "refuses", {})
    for key, reason in refuses.items():
        node, _, last = key.partition(".")
        if key not in usual:
            raise ConfigError(f"attention={kind}: refuses: {unknown('key', key, usual)}")
        if config[node][last] != usual[key]:
            value = config[node][last]
            raise ConfigError(f"{key}: {value} is not allowed with attention={kind}: {reason}")


def check_causal(config: Config) -> None:
    if config["norm"].get("allow_noncausal"):
        return
    for name, norm in {"norm": config["norm"], **config["norms"]}.items():
        if not getattr(NORMS[norm["type"]], "causal", True):
            where = "" if name == "norm" else f" ({name}, besides the run's norm)"
            raise ConfigError(
                f"norm: {norm['type']}{where} takes its statistics over later tokens too, so that "
                "a causal model would be trained on what it must predict and judged without; "
                "norm=batchnorm norm.allow_noncausal=true trains it all the same"
            )


def check_registered(
    node: str, values: Config, registry: Registry, supplied: tuple[str, ...] = ()
) -> None:
    """Checks `values` in place against the class that their `type` names."""
    owner = _choice(f"{node}.type", values.get("type"), registry)
    own = {key: value for key, value in values.items() if key not in NOT_ARGUMENTS}
    values.update(check(node, own, owner, supplied))


def _choice(key: str, name: Any, registry: Registry) -> Any:
    if name is None:
        raise ConfigError(f"{key} is missing; there are {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{key}: {unknown(registry.kind, name, sorted(registry))}")
    return registry[name]


def build(owner: Callable[..., Any], node: str, values: Config) -> Any:
    checked = check(node, values, owner)
    try:
        return owner(**checked)
    except (ValueError, TypeError) as error:  # TypeError: a word inside a schedule, not keys
        raise ConfigError(f"{node}.{error}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{node}: a formula in it is nested too deeply") from None
