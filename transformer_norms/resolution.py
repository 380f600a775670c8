"""The second tier of the config door: every node checked, every auto replaced by what it means.

Typed wins over preset (both stand in the config already), preset over placement, placement over
norm, norm over none. The words that were replaced are kept beside, so that `config=FILE norm=...`
can translate them again.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from transformer_norms.cautions import cautions
from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.errors import ConfigError
from transformer_norms.initialization import InitRule
from transformer_norms.mlp import ACTIVATIONS, MLPS
from transformer_norms.names import unknown
from transformer_norms.norms import NORMS
from transformer_norms.optimizer import OPTIMIZERS
from transformer_norms.placement import HEAD_SITES, SHARES, Placement
from transformer_norms.position import POSITIONS
from transformer_norms.registry import Registry
from transformer_norms.saved import KEYS, WORD_KEYS, get
from transformer_norms.schedule import SCHEDULES
from transformer_norms.settings import (
    TRACKING,
    Architecture,
    DataKeys,
    MLPKeys,
    PlainKeys,
    PositionKeys,
    Sizes,
    TrainerKeys,
)
from transformer_norms.validation import check, check_formulas

Config = dict[str, Any]
ReadOption = Callable[[str, str], dict[str, Any]]  # (axis, name) -> what that file holds

# What may go with a norm or a placement, where neither the user nor a preset chose.
BRINGS = "embed final_norm qk_norm init embed_scale attention_cap".split()


def resolve(config: Config, axes: Mapping[str, str], typed: set[str], option: ReadOption) -> Config:
    """The complete config of a run; ConfigError where something is out of range or contradicts.

    `axes` are the names of the files chosen, `typed` the keys that the user typed.
    """
    words = {"init": axes["init"], **{key: get(config, key) for key in WORD_KEYS}}
    _check_plain(config)
    placement = _build(Placement, "placement", config["placement"])
    brings = _brings(config["norm"], placement)
    notes = _resolve_norms(config, brings, placement, typed, option)
    init = _resolve_init(config, words["init"], brings, typed, option)
    for key in ("embed_scale", "attention_cap"):
        if config["architecture"][key] == "auto":
            config["architecture"][key] = brings.get(key, "none")
    _resolve_machine(config)
    _check_axes(config)
    check_formulas(config, placement, InitRule(**config["init"]))
    config["choices"] = {
        **axes,
        "init": init,
        **{key: config[key] for key in ("embed", "final_norm", "qk_norm")},
    }
    config["words"] = words
    config["warnings"] = notes + cautions(config, placement)
    return {key: config[key] for key in KEYS}


def _brings(norm: Config, placement: Placement) -> Config:
    """What the norm and the placement bring; the placement's wins."""
    of_norm = norm.get("brings", {})
    if not isinstance(of_norm, Mapping):
        raise ConfigError(f"norm.brings: {of_norm!r} is not allowed; it is a group of keys")
    for node, brings, known in (
        ("norm", of_norm, [*BRINGS, "qkv"]),
        ("placement", placement.brings, BRINGS),
    ):
        for key in brings:
            if key not in known:
                raise ConfigError(f"{node}.brings: {unknown('choice', key, known)}")
    return {**of_norm, **placement.brings}


def _resolve_norms(
    config: Config, brings: Config, placement: Placement, typed: set[str], option: ReadOption
) -> list[str]:
    """Which norm stands at embed, final, q, k and v; every named one's content goes in `norms`."""
    notes = []
    if config["embed"] == "auto":
        config["embed"] = brings.get("embed", "none")
    if config["final_norm"] == "auto":
        ends_normed = placement.ends_normed(config["model"]["depth"])
        config["final_norm"] = brings.get("final_norm", "none" if ends_normed else "norm")
    elif config["final_norm"] == "always":
        config["final_norm"] = "norm"
    word = config["qk_norm"]
    if word == "auto":
        word = brings.get("qk_norm", "none")
    if word not in ("none", *SHARES):
        raise ConfigError(f"qk_norm: {unknown('choice', word, ('auto', 'none', *SHARES))}")
    own = [site for site, _ in placement.sites() if site in HEAD_SITES]
    if own and word != "none":
        if "qk_norm" in typed:
            raise ConfigError(
                f"qk_norm={word}: this placement sets {', '.join(own)} itself; "
                "leave qk_norm out or choose another placement"
            )
        notes.append(f"the preset's qk_norm={word} gives way to the placement's own q and k norms")
        word = "none"
    config["qk_norm"] = word
    config["qkv"] = config["norm"].get("brings", {}).get("qkv", "norm")
    if word != "none" and config["norm"]["type"] == "none":
        config["qkv"] = "rmsnorm"
    config["norms"] = {}
    named = [(key, config[key]) for key in ("embed", "final_norm", "qkv")]
    for where, name in [*named, *((f"placement.{key}", s.norm) for key, s in placement.sites())]:
        if name not in ("norm", "none"):
            config["norms"][name] = _read_norm(where, name, option)
    return notes


def _read_norm(where: str, name: Any, option: ReadOption) -> Config:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {name!r} is not allowed; it is a word, such as none or a norm")
    words = {"embed": "auto, ", "final_norm": "auto, always, "}.get(where, "")
    try:
        norm = option("norm", name)
    except ConfigError as error:
        line = str(error).replace(f"norm={name}", f"{where}={name}", 1)
        raise ConfigError(line.replace("there are ", f"there are {words}", 1)) from None
    _check_registered(f"norms.{name}", norm, NORMS, ("width",))
    return norm


def _resolve_init(
    config: Config, word: str, brings: Config, typed: set[str], option: ReadOption
) -> str:
    """The init rule's content in place of auto; its name."""
    if word != "auto":
        return word
    inside = sorted(key for key in typed if key.startswith("init."))
    if inside:
        raise ConfigError(f"{inside[0]}: init is auto; choose the rule to change, as init=scaled")
    name = str(brings.get("init", "scaled"))
    config["init"] = option("init", name)
    return name


def _resolve_machine(config: Config) -> None:
    if config["data"]["seed"] == "auto":
        config["data"]["seed"] = config["seed"]
    trainer = config["trainer"]
    if trainer["device"] == "auto":
        trainer["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    elif trainer["device"] == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device: cuda is not available on this machine; allowed is cpu")


def _check_plain(config: Config) -> None:
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
    mlp = _check_choice("mlp.type", config["mlp"]["type"], MLPS)
    _check_choice("mlp.activation", config["mlp"]["activation"], ACTIVATIONS)
    _check_choice("position.type", config["position"]["type"], POSITIONS)
    try:
        config["model"] = Sizes(**sizes).resolve(
            gated=mlp.gated, rotary=config["position"]["type"] == "rope"
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_axes(config: Config) -> None:
    _check_registered("norm", config["norm"], NORMS, ("width",))
    _build(InitRule, "init", config["init"])
    architecture = dict(config["architecture"])
    scale = architecture["embed_scale"]
    config["architecture"] = check("architecture", architecture, Architecture)
    config["architecture"]["embed_scale"] = scale
    names = DataKeys.__dataclass_fields__
    shared = {key: config["data"].pop(key) for key in names if key in config["data"]}
    _check_registered("data", config["data"], CORPORA)
    config["data"] |= check("data", shared, DataKeys)
    _check_registered("tokenizer", config["tokenizer"], TOKENIZERS)
    _check_registered("optimizer", config["optimizer"], OPTIMIZERS, ("model",))
    _check_registered("schedule", config["schedule"], SCHEDULES, ("step", "steps"))
    config["trainer"] = check("trainer", config["trainer"], TrainerKeys)
    try:
        TrainerKeys(**config["trainer"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _check_registered("tracking", config["tracking"], TRACKING)


def _check_registered(
    node: str, values: Config, registry: Registry, supplied: tuple[str, ...] = ()
) -> None:
    """Checks `values` in place against the class that their `type` names."""
    owner = _check_choice(f"{node}.type", values.get("type"), registry)
    own = {key: value for key, value in values.items() if key not in ("type", "brings")}
    values.update(check(node, own, owner, supplied))


def _check_choice(key: str, name: Any, registry: Registry) -> Any:
    if name is None:
        raise ConfigError(f"{key} is missing; there are {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{key}: {unknown(registry.kind, name, sorted(registry))}")
    return registry[name]


def _build(owner: Callable[..., Any], node: str, values: Config) -> Any:
    checked = check(node, values, owner)
    try:
        return owner(**checked)
    except (ValueError, TypeError) as error:  # TypeError: a word inside a schedule, not keys
        raise ConfigError(f"{node}.{error}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{node}: a formula in it is nested too deeply") from None
