"""The second tier of the config door: every node checked, every auto replaced by what it means.

Typed wins over preset (both stand in the config already), preset over placement, placement over
norm, norm over none. The words that were replaced are kept beside, so that `config=FILE norm=...`
can translate them again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from transformer_norms.config.cautions import cautions
from transformer_norms.config.checks import (
    build,
    check_axes,
    check_causal,
    check_plain,
    check_registered,
)
from transformer_norms.config.saved import AUTO_ARCHITECTURE, KEYS, WORD_KEYS, get
from transformer_norms.config.validation import check_formulas
from transformer_norms.errors import ConfigError
from transformer_norms.model.initialization import InitRule
from transformer_norms.model.placement import Placement, qk_site
from transformer_norms.model.sites import HEAD_SITES, SHARES
from transformer_norms.names import options, unknown
from transformer_norms.norms import NORMS, NOT_ARGUMENTS
from transformer_norms.norms.stated import check_formula

Config = dict[str, Any]
ReadOption = Callable[[str, str], dict[str, Any]]  # (axis, name) -> what that file holds

# What may go with a norm or a placement, where neither the user nor a preset chose.
BRINGS = ["embed", "final_norm", "qk_norm", "init", *AUTO_ARCHITECTURE]
HEAD_NORMS = options("norm/head")  # norms that stand at the site head_norm alone
HENRYS_SCALE = {"learn": "scalar", "init": "log(L*L - L)/log(2)"}  # for q and k of length 1


def resolve(config: Config, axes: Mapping[str, str], typed: set[str], option: ReadOption) -> Config:
    """The complete config of a run; ConfigError where something is out of range or contradicts.

    `axes` are the names of the files chosen, `typed` the keys that the user typed.
    """
    words = {"init": axes["init"], **{key: get(config, key) for key in WORD_KEYS}}
    check_plain(config)
    changed = _check_norm("norm", config["norm"], typed)
    placement = build(Placement, "placement", config["placement"])
    brings = _brings(config["norm"], placement)
    notes = _resolve_norms(config, brings, placement, typed, option)
    init = _resolve_init(config, words["init"], brings, typed, option)
    _resolve_architecture(config, brings, placement)
    _resolve_machine(config)
    check_axes(config)
    check_causal(config)
    check_formulas(config, placement, InitRule(**config["init"]))
    config["choices"] = {
        **axes,
        "init": init,
        **{key: config[key] for key in ("embed", "final_norm", "qk_norm")},
    }
    config["words"] = words
    config["warnings"] = notes + changed + cautions(config, placement, typed)
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
    if word not in ("none", *SHARES, "l2"):
        raise ConfigError(f"qk_norm: {unknown('choice', word, ('auto', 'none', *SHARES, 'l2'))}")
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
    named.append(("qk_norm", "norm" if word == "none" else qk_site(word).norm))
    for where, name in [*named, *((f"placement.{key}", s.norm) for key, s in placement.sites())]:
        if name not in ("norm", "none"):
            name = "l2norm" if (where, name) == ("embed", "fixnorm") else name
            config["norms"][name] = _read_norm(where, name, option)
    return notes


def _read_norm(where: str, name: Any, option: ReadOption) -> Config:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {name!r} is not allowed; it is a word, such as none or a norm")
    words = {"embed": "auto, fixnorm, ", "final_norm": "auto, always, "}.get(where, "")
    axis = "norm/head" if where == "placement.head_norm" and name in HEAD_NORMS else "norm"
    try:
        norm = option(axis, name)
    except ConfigError as error:
        line = str(error).replace(f"norm={name}", f"{where}={name}", 1)
        raise ConfigError(line.replace("there are ", f"there are {words}", 1)) from None
    _check_norm(f"norms.{name}", norm, set())
    return norm


def _check_norm(node: str, norm: Config, typed: set[str]) -> list[str]:
    """Checks a norm's keys against its class, and its formula against what the class computes. A
    typed value may make another norm of it, which is said in a line."""
    check_registered(node, norm, NORMS, ("width",))
    own = {key: value for key, value in norm.items() if key not in NOT_ARGUMENTS}
    if "formula" in norm:
        try:
            check_formula(norm["type"], norm["formula"], own)
        except ValueError as error:
            keys = sorted(key for key in typed if key.startswith(f"{node}."))
            if not keys:
                raise ConfigError(f"{node}.formula: {error}") from None
            return [f"{keys[0]} is typed: the norm is no longer its formula, {norm['formula']}"]
    return []


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


def _resolve_architecture(config: Config, brings: Config, placement: Placement) -> None:
    architecture = config["architecture"]
    usual = dict(AUTO_ARCHITECTURE)
    if config["embed"] == "fixnorm":  # on which the paper's scale goes before what others bring
        brings = {**brings, "embed_scale": "sqrt(d)"}
    short = _unit_length_queries(config, placement)
    if short:
        usual["attention_scale"] = HENRYS_SCALE
    for key in AUTO_ARCHITECTURE:
        if architecture[key] == "auto":
            architecture[key] = brings.get(key, usual[key])
    if short and str(architecture["attention_scale"]).replace(" ", "") == "1/sqrt(dh)":
        raise ConfigError(
            "architecture.attention_scale: 1/sqrt(dh) is not allowed where queries and keys have "
            "length 1 (l2norm): no logit could pass it; leave it out for a learned scale"
        )


def _unit_length_queries(config: Config, placement: Placement) -> bool:
    there = [site.norm for name, site in placement.sites() if name in ("q", "k")]
    if config["qk_norm"] != "none":
        there.append(qk_site(config["qk_norm"]).norm)
    names = [config["qkv"] if name == "norm" else name for name in there]
    types = {name: norm["type"] for name, norm in config["norms"].items()}
    types |= {"norm": config["norm"]["type"], "none": "none"}
    return any(types[name] == "l2norm" for name in names)


def _resolve_machine(config: Config) -> None:
    if config["data"]["seed"] == "auto":
        config["data"]["seed"] = config["seed"]
    trainer = config["trainer"]
    if trainer["device"] == "auto":
        trainer["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    elif trainer["device"] == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device: cuda is not available on this machine; allowed is cpu")
