"""Replaces every `auto` of a config by a value. checks/contradictions.py then refuses what
contradicts itself.

A value comes from the first of these that has one: the command, the recipe, the preset (choices.py
has applied these three), the placement, the norm, the init, the default. A separate head of the
init wins over the preset's tied head (choices.py). Sizes become numbers in model/sizes.py. Formulas
become numbers when a block is built, threads and replicas when the run starts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, cast

import torch

from transformer_norms.config.checks.cautions import cautions
from transformer_norms.config.checks.contradictions import refuse_contradictions
from transformer_norms.config.checks.formulas import is_of_weights, name_key
from transformer_norms.config.checks.registered import check_norm, check_parts
from transformer_norms.config.choices import Choices
from transformer_norms.config.chosen_files import merge
from transformer_norms.config.data_settings import affordable_val_tokens
from transformer_norms.config.tree import (
    CHOSEN,
    DEFAULTS,
    TIED_SCALE,
    Config,
    ReadOption,
    base_of,
    marked,
)
from transformer_norms.errors import ConfigError
from transformer_norms.formula import Formula, quotient, substitute
from transformer_norms.kinds import Mark, Values, freeze
from transformer_norms.model.initialization import InitRule, deviation_inside
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import head_sites, read_placement
from transformer_norms.model.settings import InitFile
from transformer_norms.model.sites import HEAD_SITES
from transformer_norms.model.sizes import Sizes, formula_values, resolve_sizes
from transformer_norms.names import NORM_WORDS, options, unknown
from transformer_norms.training.schedule import SCHEDULES
from transformer_norms.training.settings import GROUPS
from transformer_norms.validation import build, check

Nodes = dict[str, Any]

# The keys that name a norm, or say where the run's norm is.
NORM_KEYS = tuple(NORM_WORDS)
# The keys that a norm or a placement may bring.
BRINGS = [*NORM_KEYS, "init", *DEFAULTS]
# For q and k of length 1: Henry et al. 2020, arXiv:2010.04245.
HENRYS_SCALE = {"learn": "scalar", "init": "log(L*L - L)/log(2)"}


def resolve(
    choices: Choices, typed: Collection[str], spelled: Mapping[str, str], device: str
) -> Config:
    """Returns the complete config of a run. Raises ConfigError where something is out of range or
    contradicts itself.

    The values of the choices are what `check_chosen` returned, and `typed` the keys that the user
    typed. `device` replaces an auto device. If it is auto too, the machine decides.
    """
    axes, nodes = choices.axes, check_parts(choices.values, typed, spelled)
    resolving = _Resolving(nodes, typed, choices.option)
    resolving.resolve_sizes()
    resolving.resolve_horizon()
    resolving.resolve_norms()
    rule = resolving.resolve_init(axes["init"])
    resolving.resolve_architecture()
    resolving.resolve_stream()
    resolving.resolve_rates()
    resolving.resolve_device_and_seed(device)
    nodes["choices"] = {**axes, "init": rule, **{key: nodes[key] for key in NORM_KEYS}}
    nodes["chosen"] = {"choices": axes, **choices.values}
    for name, node in nodes.items():
        owner: Any = base_of(CHOSEN.get(name, Values))
        frozen = freeze(node)
        nodes[name] = build(cast(Any, owner), name, frozen) if is_dataclass(owner) else frozen
    config = Config(**nodes, warnings=())
    refuse_contradictions(config)
    return replace(config, warnings=tuple(cautions(config)))


class _Resolving:
    """The nodes of one config while each `auto` in them is replaced. `brings` are the choices that
    the norm and the placement make, where the placement wins."""

    def __init__(self, nodes: Nodes, typed: Collection[str], option: ReadOption) -> None:
        self.nodes, self.typed, self.option = nodes, typed, option
        try:
            self.placement = read_placement(nodes["placement"])
        except (ValueError, TypeError) as error:  # TypeError: a word where a group is wanted
            raise ConfigError(f"placement.{error}") from None
        except (RecursionError, MemoryError):
            raise ConfigError("placement: a formula in it is nested too deeply") from None
        of_norm = nodes["norm"].get("brings", {})
        _check_known("norm.brings", "choice", of_norm, [*BRINGS, "qkv"])
        _check_known("placement.brings", "choice", self.placement.brings, BRINGS)
        self.brings = {**of_norm, **self.placement.brings}

    def resolve_sizes(self) -> None:
        nodes = self.nodes
        in_part = nodes["architecture"]["rope_dim"] != "none"
        rotary = nodes["position"]["type"] == "rope" and not in_part
        gated = MLPS[nodes["mlp"]["type"]].gated
        try:
            nodes["model"] = resolve_sizes(nodes["model"], gated=gated, rotary=rotary)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def resolve_horizon(self) -> None:
        """Sets the steps where the horizon was given in tokens, and what follows from the steps:
        a warm-up that was given as a share, and the number of validation tokens. Branches become
        steps; for the same losses all of them read as many tokens as the longest."""
        nodes, trainer = self.nodes, self.nodes["trainer"]
        per_step = trainer["batch_size"] * self.nodes["model"]["context"]
        if trainer["tokens"] != "auto":
            trainer = {**trainer, "steps": -(-trainer["tokens"] // per_step)}
        steps, branches = trainer["steps"], trainer["branches"]
        if isinstance(branches, Mapping):
            branches = [-(-tokens // per_step) for tokens in branches["tokens"]]
        if branches != "none":
            branches = sorted({*branches})
            if len(branches) == 1:
                raise ConfigError(f"trainer.branches: all are one horizon, of steps={branches[0]}")
        nodes["trainer"] = {**trainer, "tokens": steps * per_step, "branches": branches}
        schedule = dict(nodes["schedule"])
        for key in marked(Mark.STEPS, SCHEDULES[schedule["type"]]):
            if 0 < (share := schedule.get(key, 0)) < 1:
                if branches != "none":
                    of_shortest = max(1, round(share * branches[0]))
                    raise ConfigError(
                        f"schedule.{key}: {share} of the steps is another number in each of "
                        f"trainer.branches; type steps, such as {of_shortest}"
                    )
                schedule[key] = max(1, round(schedule[key] * steps))
        nodes["schedule"] = schedule
        if nodes["data"]["val_tokens"] == "auto":
            longest = steps if branches == "none" else branches[-1]
            val_tokens = affordable_val_tokens(longest * per_step)
            nodes["data"] = {**nodes["data"], "val_tokens": val_tokens}

    def resolve_norms(self) -> None:
        """Chooses the norms at embed, final, q, k and v. A final_norm of `always` follows also a
        last block that ends with a norm. The content of every named norm goes into `norms`."""
        nodes = self.nodes
        if nodes["embed"] == "auto":
            nodes["embed"] = self.brings.get("embed", "none")
        final = nodes["final_norm"]
        if final == "auto":
            ends_normed = self.placement.ends_normed(nodes["model"]["depth"])
            brings_none = ends_normed and "final_norm" not in self.placement.brings
            final = "none" if brings_none else self.brings.get("final_norm", "norm")
        nodes["final_norm"] = "norm" if final == "always" else final
        for key, sites in (("qk_norm", ("q", "k")), ("v_norm", ("v",))):
            nodes[key] = self._resolve_head_norm(key, sites)
        chosen = head_sites(nodes["qk_norm"], nodes["v_norm"])
        nodes["qkv"] = nodes["norm"].get("brings", {}).get("qkv", "norm")
        if nodes["norm"]["type"] == "none" and any(s.norm == "norm" for s in chosen.values()):
            nodes["qkv"] = "rmsnorm"
        named = [(key, str(nodes[key])) for key in ("embed", "final_norm", "qkv")]
        named += [("v_norm" if at == "v" else "qk_norm", s.norm) for at, s in chosen.items()]
        named += [(f"placement.{site}", norm.norm) for site, norm in self.placement.sites()]
        nodes["norms"] = {}
        for key, name in named:
            if name not in ("norm", "none"):
                name = "l2norm" if (key, name) == ("embed", "fixnorm") else name
                nodes["norms"][name] = self._read_norm(key, name)

    def _resolve_head_norm(self, key: str, sites: Collection[str]) -> str:
        """Returns the resolved qk_norm or v_norm."""
        word = str(self.nodes[key])
        if word == "auto":
            word = str(self.brings.get(key, "none"))
        if word not in NORM_WORDS[key][1:]:
            self._read_norm(key, word)  # raises ConfigError for an unknown norm
        own = [site for site, _ in self.placement.sites() if site in HEAD_SITES]
        if word == "none" or not {*own} & {*sites}:
            return word
        if key in self.typed:
            itself = f"this placement sets {', '.join(own)} itself"
            raise ConfigError(
                f"{key}={word}: {itself}; leave {key} out or choose another placement"
            )
        return "none"

    def _read_norm(self, key: str, name: str) -> Nodes:
        """Returns the content of the norm that a key or a site names."""
        at_heads = key == "placement.head_norm" and name in options("norm/head")
        try:
            norm = self.option("norm/head" if at_heads else "norm", name)
        except ConfigError:
            if name in options("norm"):
                raise  # a norm whose file is wrong
            if key.startswith("placement."):
                reason = unknown("norm", name, ["norm", *options("norm")])
                line = f"placement.equation: {reason}; all functions but f are norms"
            else:
                names = dict.fromkeys([*NORM_WORDS.get(key, ()), *options("norm")])
                line = f"{key}={name}: {unknown(key, name, names, 'norm')}"
            raise ConfigError(line) from None
        return check_norm(f"norms.{name}", norm)

    def resolve_init(self, name: str) -> str:
        """Replaces `init=auto` by the rule that is brought, or else by `otherwise` of its file.
        Keeps typed keys. Returns the rule's name. All other choices win over what it brings."""
        init = dict(self.nodes["init"])
        otherwise = init.pop("otherwise", "")
        if name == "auto":
            name = str(self.brings.get("init", otherwise))
            init = merge(self.option("init", name), init)
        check("init", init, InitRule, InitFile)
        brings, std = init.get("brings", {}), init["std"]
        _check_known("init.brings", "choice", brings, [*DEFAULTS, TIED_SCALE])
        self.brings = {**brings, **self.brings}
        if "default" in std:
            std = {role: substitute("default", std["default"], of) for role, of in std.items()}
        self.nodes["init"] = {**init, "std": std}
        return name

    def resolve_stream(self) -> None:
        """Sets the std of the embedding table, or the scale of the embedded tokens. Then the input
        of the first block has the rms `init.stream`."""
        nodes, init = self.nodes, self.nodes["init"]
        if init.get("stream", "none") == "none":
            return
        if "architecture.embed_scale" in self.typed and init.get("stream_by") == "scale":
            raise ConfigError("init.stream_by: scale sets architecture.embed_scale, too")
        std, scale = init["std"], nodes["architecture"]["embed_scale"]
        cut = deviation_inside(init["truncate"])
        if init.get("stream_by", "table") == "table":
            start = scale["init"] if isinstance(scale, Mapping) else scale
            start = 1 if start == "none" else start
            std = {**std, "embedding": quotient(init["stream"], cut, start)}
            nodes["init"] = {**init, "std": std}
        else:
            deviation = std.get("embedding", std["default"])
            start = quotient(init["stream"], cut, deviation)
            scale = {**scale, "init": start} if isinstance(scale, Mapping) else start
            nodes["architecture"]["embed_scale"] = scale

    def resolve_architecture(self) -> None:
        architecture = self.nodes["architecture"] = dict(self.nodes["architecture"])
        brought = {**DEFAULTS, **self.brings}
        unit_length = self._has_unit_length_queries()
        if unit_length and "attention_scale" not in self.brings:
            brought["attention_scale"] = HENRYS_SCALE
        if self.nodes["embed"] == "fixnorm":  # whose paper has a scale that wins over all others
            brought["embed_scale"] = "sqrt(d)"
        for key in DEFAULTS:
            if architecture[key] == "auto":
                own = TIED_SCALE if key == "logit_scale" and architecture["tied"] else key
                architecture[key] = brought.get(own, brought[key])
        formula, values = architecture["logit_scale"], formula_values(Sizes(**self.nodes["model"]))
        if formula != "none" and not isinstance(formula, Mapping):
            with name_key("architecture.logit_scale", formula):
                if Formula(formula)(values) == 1:  # as mup's is at its base width
                    architecture["logit_scale"] = "none"
        scale = str(architecture["attention_scale"]).replace(" ", "")
        if unit_length and scale == DEFAULTS["attention_scale"]:
            raise ConfigError(
                "architecture.attention_scale: 1/sqrt(dh) is too small for queries and keys of "
                "length 1 (l2norm); leave it out for a learned scale"
            )

    def resolve_rates(self) -> None:
        """Takes the factors of the learning rate that are auto from the init rule. A factor that is
        the same for a whole group of parameters becomes a number. Others stay formulas, which are
        evaluated for each weight."""
        nodes, values = self.nodes, formula_values(Sizes(**self.nodes["model"]))
        architecture = nodes["architecture"]
        latents = any(architecture[key] != "none" for key in ("q_rank", "kv_rank"))
        chosen, of_init = nodes["optimizer"].get("lr_factor"), nodes["init"].get("lr_factor", {})
        if not isinstance(chosen, Mapping):  # a plugin's optimizer
            return
        _check_known("optimizer.lr_factor", "group", chosen, GROUPS)
        _check_known("init.lr_factor", "group", of_init, GROUPS)
        factors = {}
        for group in GROUPS:
            formula = chosen.get(group, "auto")
            formula = of_init.get(group, 1) if formula == "auto" else formula
            with name_key(f"optimizer.lr_factor.{group}", formula):
                factor = Formula(formula)
                each = is_of_weights(factor, group, latents)
                factors[group] = formula if each else float(factor(values))
        nodes["optimizer"] = {**nodes["optimizer"], "lr_factor": factors}

    def resolve_device_and_seed(self, device: str) -> None:
        """Raises ConfigError if this machine has no such device."""
        nodes, typed = self.nodes, self.nodes["trainer"]["device"]
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        allowed = ["cpu", *(name for name in there if there[name])]
        if typed == "auto":
            if device == "auto":
                device = "cuda" if there["cuda"] else "cpu"
            nodes["trainer"] = {**nodes["trainer"], "device": device}
        elif device == "auto" and not there.get(typed, True):
            line = f"{typed} is not available here; allowed is {', '.join(allowed)}"
            raise ConfigError(f"trainer.device: {line}")
        if nodes["data"]["seed"] == "auto":
            nodes["data"] = {**nodes["data"], "seed": nodes["seed"]}

    def _has_unit_length_queries(self) -> bool:
        nodes = self.nodes
        norms = [site.norm for name, site in self.placement.sites() if name in ("q", "k")]
        norms += [site.norm for site in head_sites(nodes["qk_norm"], "none").values()]
        names = [nodes["qkv"] if name == "norm" else name for name in norms]
        contents = {"norm": nodes["norm"], "none": {"type": "none"}, **nodes["norms"]}
        return any(contents[name]["type"] == "l2norm" for name in names)


def _check_known(where: str, kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: {unknown(kind, name, known)}")
