"""Checks the settings of registered classes against their signatures, and replaces every `auto`.

Sizes become numbers in model/settings.py. A formula becomes a number when its block is built,
threads and replicas when the run starts.

Typed wins over preset (both stand in the values already), preset over placement, placement over
norm, norm over none.
"""

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, cast

import torch

from transformer_norms.config.cautions import cautions
from transformer_norms.config.formulas import check_formulas
from transformer_norms.config.tree import (
    CHOSEN,
    TRACKING,
    Config,
    ReadOption,
    base_of,
    owner_of,
)
from transformer_norms.config.validation import build, check
from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Values, freeze, value_at
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.initialization import InitRule
from transformer_norms.model.mlp import ACTIVATIONS, MLPS
from transformer_norms.model.placement import Placement, qk_site
from transformer_norms.model.position import POSITIONS
from transformer_norms.model.settings import resolve_sizes
from transformer_norms.model.sites import HEAD_SITES, SHARES
from transformer_norms.names import Registry, options, unknown
from transformer_norms.norms import NORMS
from transformer_norms.norms.stated import check_formula
from transformer_norms.training.loss import LOSSES
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.schedule import SCHEDULES

Nodes = dict[str, Any]

# Where a node's `type` is looked up, and what the builder adds to the node's settings.
REGISTRIES: dict[str, tuple[Registry, tuple[str, ...]]] = {
    "norm": (NORMS, ("width",)),
    "position": (POSITIONS, ("width", "context", "head_dim", "bases", "fraction", "interleaved")),
    "attention": (ATTENTIONS, ("width", "heads", "head_dim", "context", "dropout", "scale", "cap")),
    "mlp": (MLPS, ("width", "mlp_width", "bias", "mid", "up_scale", "gate_scale")),
    "data": (CORPORA, ()),
    "tokenizer": (TOKENIZERS, ()),
    "loss": (LOSSES, ()),
    "optimizer": (OPTIMIZERS, ("model",)),
    "schedule": (SCHEDULES, ("step", "steps")),
    "tracking": (TRACKING, ()),
}
# The value of architecture.* where it is auto and nothing brings another one.
USUAL: Nodes = {
    "tied": True,
    "embed_scale": "none",
    "attention_scale": "1/sqrt(dh)",
    "logit_scale": "none",
    "qk_norm_order": "before",
    "attention_cap": "none",
}
# The keys that a norm or a placement may bring.
BRINGS = ["embed", "final_norm", "qk_norm", "init", *USUAL]
HEAD_NORMS = options("norm/head")  # norms that stand at the site head_norm alone
HENRYS_SCALE = {"learn": "scalar", "init": "log(L*L - L)/log(2)"}  # for q and k of length 1


def resolve(
    chosen: Mapping[str, Any],
    axes: Mapping[str, str],
    typed: Collection[str],
    spelled: Mapping[str, str],
    option: ReadOption,
    device: str,
) -> Config:
    """The complete config of a run; ConfigError where something is out of range or contradicts.

    `chosen` is what `check_chosen` returned, `axes` are the names of the files chosen, `typed` the
    keys that the user typed. `device` is what an auto device means, or auto: the machine's.
    """
    nodes = dict(chosen)
    for name in REGISTRIES:
        nodes[name] = check_registered(name, name, nodes[name], spelled)
    changed = _check_formula("norm", nodes["norm"], typed)
    placement = build(Placement, "placement", nodes["placement"])
    brings = _brings(nodes["norm"], placement)
    if (activation := nodes["mlp"]["activation"]) not in ACTIVATIONS:
        raise ConfigError(f"mlp.activation: {unknown('activation', activation, ACTIVATIONS)}")
    nodes["model"] = _sizes(nodes)
    notes = _resolve_norms(nodes, brings, placement, typed, option)
    check("init", nodes["init"], InitRule)
    rule = _resolve_init(nodes, axes["init"], brings, typed, option)
    init = build(InitRule, "init", nodes["init"])
    nodes["architecture"] = _architecture(nodes, brings, placement)
    nodes["trainer"] = _on_machine(nodes["trainer"], device)
    if nodes["data"]["seed"] == "auto":
        nodes["data"] = {**nodes["data"], "seed": nodes["seed"]}
    words = {key: nodes[key] for key in ("embed", "final_norm", "qk_norm")}
    nodes["choices"] = {**axes, "init": rule, **words}
    nodes["chosen"] = {"choices": axes, **chosen}
    for name, node in nodes.items():
        owner: Any = base_of(CHOSEN.get(name, Values))
        if is_dataclass(owner):
            nodes[name] = build(cast(Any, owner), name, freeze(node))
        elif isinstance(node, Mapping):
            nodes[name] = Values(node)
    config = Config(**nodes, warnings=())
    _check_biases(config)
    _check_attention(config)
    _check_causal(config)
    check_formulas(config, placement, init)
    return replace(config, warnings=(*notes, *changed, *cautions(config, placement, typed)))


def check_registered(
    key: str, axis: str, values: Mapping[str, Any], spelled: Mapping[str, str] = {}
) -> Nodes:
    """The node's values as the class that its `type` names takes them, and its file besides."""
    registry, supplied = REGISTRIES[axis]
    name = values.get("type")
    if name is None:
        raise ConfigError(f"{key}.type is missing; there are {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{key}.type: {unknown(registry.kind, name, sorted(registry))}")
    file = owner_of(CHOSEN[axis])
    owners = [registry[name], *([file] if file else [])]
    own = {k: value for k, value in values.items() if k != "type"}
    return {"type": name, **check(key, own, *owners, supplied=supplied, auto=True, spelled=spelled)}


def _brings(norm: Nodes, placement: Placement) -> Nodes:
    """Returns what the norm and the placement bring. The placement wins."""
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
    nodes: Nodes, brings: Nodes, placement: Placement, typed: Collection[str], option: ReadOption
) -> list[str]:
    """Which norm stands at embed, final, q, k and v; every named one's content goes in `norms`."""
    notes = []
    if nodes["embed"] == "auto":
        nodes["embed"] = brings.get("embed", "none")
    if nodes["final_norm"] == "auto":
        ends_normed = placement.ends_normed(nodes["model"]["depth"])
        nodes["final_norm"] = brings.get("final_norm", "none" if ends_normed else "norm")
    elif nodes["final_norm"] == "always":
        nodes["final_norm"] = "norm"
    word = nodes["qk_norm"]
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
    nodes["qk_norm"] = word
    nodes["qkv"] = nodes["norm"].get("brings", {}).get("qkv", "norm")
    if word != "none" and nodes["norm"]["type"] == "none":
        nodes["qkv"] = "rmsnorm"
    nodes["norms"] = norms = {}
    named = [(key, nodes[key]) for key in ("embed", "final_norm", "qkv")]
    named.append(("qk_norm", "norm" if word == "none" else qk_site(word).norm))
    for where, name in [*named, *((f"placement.{key}", s.norm) for key, s in placement.sites())]:
        if name not in ("norm", "none"):
            name = "l2norm" if (where, name) == ("embed", "fixnorm") else name
            norms[name] = _read_norm(where, name, option)
    return notes


def _read_norm(where: str, name: Any, option: ReadOption) -> Nodes:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {name!r} is not allowed; it is a word, such as none or a norm")
    words = {"embed": "auto, fixnorm, ", "final_norm": "auto, always, "}.get(where, "")
    axis = "norm/head" if where == "placement.head_norm" and name in HEAD_NORMS else "norm"
    try:
        norm = option(axis, name)
    except ConfigError as error:
        if where.startswith("placement."):
            known = ["norm", *options("norm")]
            line = f"placement.equation: {unknown('norm', name, known)}"
            raise ConfigError(line) from None
        line = str(error).replace(f"norm={name}", f"{where}={name}", 1)
        raise ConfigError(line.replace("there are ", f"there are {words}", 1)) from None
    norm = check_registered(f"norms.{name}", "norm", norm)
    _check_formula(f"norms.{name}", norm, ())
    return norm


def _check_formula(node: str, norm: Nodes, typed: Collection[str]) -> list[str]:
    """Compares a norm's formula with what its class computes. A typed value may make another norm
    of it; a line says so."""
    if "formula" not in norm:
        return []
    try:
        check_formula(norm["type"], norm["formula"], NORMS.maker(norm).keywords)
    except ValueError as error:
        keys = sorted(key for key in typed if key.startswith(f"{node}."))
        if not keys:
            raise ConfigError(f"{node}.formula: {error}") from None
        return [f"{keys[0]} is typed: the norm is no longer its formula, {norm['formula']}"]
    return []


def _resolve_init(
    nodes: Nodes, word: str, brings: Nodes, typed: Collection[str], option: ReadOption
) -> str:
    """The init rule's content in place of auto; its name."""
    if word != "auto":
        return word
    inside = sorted(key for key in typed if key.startswith("init."))
    if inside:
        raise ConfigError(f"{inside[0]}: init is auto; choose the rule to change, as init=scaled")
    name = str(brings.get("init", "scaled"))
    nodes["init"] = option("init", name)
    return name


def _architecture(nodes: Nodes, brings: Nodes, placement: Placement) -> Nodes:
    architecture = dict(nodes["architecture"])
    usual = dict(USUAL)
    if nodes["embed"] == "fixnorm":  # on which the paper's scale goes before what others bring
        brings = {**brings, "embed_scale": "sqrt(d)"}
    short = _unit_length_queries(nodes, placement)
    if short:
        usual["attention_scale"] = HENRYS_SCALE
    for key in USUAL:
        if architecture[key] == "auto":
            architecture[key] = brings.get(key, usual[key])
    if short and str(architecture["attention_scale"]).replace(" ", "") == "1/sqrt(dh)":
        raise ConfigError(
            "architecture.attention_scale: 1/sqrt(dh) is not allowed where queries and keys have "
            "length 1 (l2norm): no logit could pass it; leave it out for a learned scale"
        )
    return architecture


def _unit_length_queries(nodes: Nodes, placement: Placement) -> bool:
    there = [site.norm for name, site in placement.sites() if name in ("q", "k")]
    if nodes["qk_norm"] != "none":
        there.append(qk_site(nodes["qk_norm"]).norm)
    names = [nodes["qkv"] if name == "norm" else name for name in there]
    types = {name: norm["type"] for name, norm in nodes["norms"].items()}
    types |= {"norm": nodes["norm"]["type"], "none": "none"}
    return any(types[name] == "l2norm" for name in names)


def _sizes(nodes: Nodes) -> Nodes:
    try:
        return resolve_sizes(
            nodes["model"],
            gated=MLPS[nodes["mlp"]["type"]].gated,
            rotary=nodes["position"]["type"] == "rope",
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _on_machine(trainer: Nodes, device: str) -> Nodes:
    """The trainer's settings with its device; ConfigError where this machine has no such device."""
    there = torch.cuda.is_available()
    if trainer["device"] == "auto":
        return {**trainer, "device": device if device != "auto" else "cuda" if there else "cpu"}
    if trainer["device"] == "cuda" and not there and device == "auto":
        raise ConfigError("trainer.device: cuda is not available on this machine; allowed is cpu")
    return trainer


def _check_biases(config: Config) -> None:
    """A bias that is asked for by name stands somewhere."""
    bias = config.architecture.bias
    named = () if isinstance(bias, bool) else bias
    if "gate" in named and not MLPS[config.mlp.type].gated:
        kind = config.mlp.type
        raise ConfigError(f"architecture.bias: gate is not allowed: a {kind} mlp has no gate")
    if "head" in named and config.architecture.tied:
        raise ConfigError("architecture.bias: head is not allowed where architecture.tied is true")


def _check_attention(config: Config) -> None:
    """ConfigError where an option is set for which the chosen attention has no use."""
    usual = {f"architecture.{key}": USUAL[key] for key in ("attention_cap", "attention_scale")}
    usual["model.dropout"] = 0
    kind = config.attention.type
    for key, reason in getattr(ATTENTIONS[kind], "refuses", {}).items():
        if key not in usual:
            raise ConfigError(f"attention={kind}: refuses: {unknown('key', key, usual)}")
        if (value := value_at(config, key)) != usual[key]:
            raise ConfigError(f"{key}: {value} is not allowed with attention={kind}: {reason}")


def _check_causal(config: Config) -> None:
    if config.norm.get("allow_noncausal"):
        return
    for name, norm in {"norm": config.norm, **config.norms}.items():
        if not getattr(NORMS[norm.type], "causal", True):
            where = "" if name == "norm" else f" ({name}, besides the run's norm)"
            raise ConfigError(
                f"norm: {norm.type}{where} takes its statistics over later tokens too, so that "
                "a causal model would be trained on what it must predict and judged without; "
                "norm=batchnorm norm.allow_noncausal=true trains it all the same"
            )
