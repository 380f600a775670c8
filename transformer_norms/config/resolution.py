"""Replaces every `auto` by what it comes to, and refuses choices that contradict each other.

Typed wins over recipe and recipe over preset (all three stand in the values already), preset over
placement, placement over norm, norm over init, init over none. Sizes become numbers in
model/settings.py. A formula becomes a number when its block is built, threads and replicas when the
run starts.
"""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, cast

import torch

from transformer_norms.config.cautions import cautions
from transformer_norms.config.formulas import check_formulas, is_of_weights, name_key
from transformer_norms.config.registered import USES, check_registered
from transformer_norms.config.tree import CHOSEN, Config, ReadOption, base_of, marked
from transformer_norms.config.validation import build, check
from transformer_norms.data.settings import affordable_val_tokens
from transformer_norms.errors import ConfigError
from transformer_norms.formula import Formula, quotient, substitute
from transformer_norms.kinds import Mark, Values, as_number, freeze, value_at
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.initialization import InitRule, deviation_inside
from transformer_norms.model.mlp import ACTIVATIONS, MLPS
from transformer_norms.model.placement import Placement, head_sites, latent_sites, read_placement
from transformer_norms.model.position import (
    POSITIONS,
    NoPosition,
    kv_sources,
    rotary_bases,
    rotary_fractions,
    shared_blocks,
    sliding_windows,
)
from transformer_norms.model.settings import (
    MADE_BY,
    BlockSizes,
    InitFile,
    Sizes,
    block_sizes,
    block_values,
    formula_values,
    head_sizes,
    resolve_sizes,
    site_width,
    value_factor,
)
from transformer_norms.model.sites import HEAD_SITES, LATENT_SITES, SHARES, Site
from transformer_norms.names import options, unknown
from transformer_norms.norms import NORMS
from transformer_norms.norms.stated import check_formula, check_width
from transformer_norms.training.schedule import SCHEDULES
from transformer_norms.training.settings import GROUPS

Nodes = dict[str, Any]

# The value of architecture.* where it is auto and nothing brings another one.
DEFAULTS: Nodes = {
    "tied": True,
    "embed_scale": "none",
    "embed_scale_order": "before",
    "attention_scale": "1/sqrt(dh)",
    "logit_scale": "none",
    "qk_norm_order": "before",
    "attention_cap": "none",
}
# The keys that name a norm, or say where the run's norm stands.
NORM_KEYS = ("embed", "final_norm", "qk_norm", "v_norm")
# The keys that a norm or a placement may bring.
BRINGS = [*NORM_KEYS, "init", *DEFAULTS]
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
    """Returns the complete config of a run. Raises ConfigError where something is out of range or
    contradicts itself.

    `chosen` is what `check_chosen` returned, `axes` are the names of the files chosen, `typed` the
    keys that the user typed. `device` is what an auto device means, or auto: the machine's.
    """
    nodes = dict(chosen)
    for name in (name for name in USES if name in nodes):
        nodes[name] = check_registered(name, name, nodes[name], spelled)
    nodes["placement"] = _check_connection(nodes["placement"], spelled)
    changed = _check_formula("norm", nodes["norm"], typed)
    if (activation := nodes["mlp"]["activation"]) not in ACTIVATIONS:
        raise ConfigError(f"mlp.activation: {unknown('activation', activation, ACTIVATIONS)}")
    resolving = _Resolving(nodes, typed, option)
    resolving.resolve_sizes()
    resolving.resolve_horizon()
    resolving.resolve_norms()
    rule = resolving.resolve_init(axes["init"])
    resolving.resolve_architecture()
    resolving.resolve_stream()
    resolving.resolve_rates()
    resolving.resolve_device_and_seed(device)
    words = {key: nodes[key] for key in NORM_KEYS}
    nodes["choices"] = {**axes, "init": rule, **words}
    nodes["chosen"] = {"choices": axes, **chosen}
    config = Config(**{name: _freeze(name, node) for name, node in nodes.items()}, warnings=())
    for check_choices in (
        _check_split,
        _check_biases,
        _check_attention,
        _check_latents,
        _check_values,
        _check_causal,
        _check_widths,
        check_formulas,
        _check_values_from_keys,
        _check_kv_from_block,
        _check_offered,
        _check_qk_clip,
    ):
        check_choices(config)
    lines = [*resolving.notes, *changed, *cautions(config, typed)]
    return replace(config, warnings=tuple(lines))


def _freeze(name: str, node: Any) -> Any:
    """Returns a node as the class that declares its keys, or as read-only values."""
    owner: Any = base_of(CHOSEN.get(name, Values))
    if is_dataclass(owner):
        return build(cast(Any, owner), name, freeze(node))
    return Values(node) if isinstance(node, Mapping) else node


class _Resolving:
    """The nodes of one config while each `auto` in them is replaced. `brings` are the choices that
    the norm and the placement make, where the placement wins. `notes` are lines for the record."""

    def __init__(self, nodes: Nodes, typed: Collection[str], option: ReadOption) -> None:
        self.nodes, self.typed, self.option = nodes, typed, option
        self.placement = _read_placement(nodes["placement"])
        self.brings = _merge_brings(nodes["norm"], self.placement)
        self.notes: list[str] = []

    def resolve_sizes(self) -> None:
        mlp, position = self.nodes["mlp"], self.nodes["position"]
        try:
            self.nodes["model"] = resolve_sizes(
                self.nodes["model"],
                gated=MLPS[mlp["type"]].gated,
                rotary=position["type"] == "rope"
                and self.nodes["architecture"]["rope_dim"] == "none",
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def resolve_horizon(self) -> None:
        """Sets the steps where the horizon was given in tokens, and what follows from the steps:
        a warm-up that was given as a share, and how much of val is read."""
        nodes, trainer = self.nodes, self.nodes["trainer"]
        per_step = trainer["batch_size"] * self.nodes["model"]["context"]
        if trainer["tokens"] != "auto":
            trainer = {**trainer, "steps": -(-trainer["tokens"] // per_step)}
        steps = trainer["steps"]
        nodes["trainer"] = {**trainer, "tokens": steps * per_step}
        schedule = dict(nodes["schedule"])
        for key in marked(Mark.STEPS, SCHEDULES[schedule["type"]]):
            if 0 < schedule.get(key, 0) < 1:
                schedule[key] = max(1, round(schedule[key] * steps))
        nodes["schedule"] = schedule
        if nodes["data"]["val_tokens"] == "auto":
            val_tokens = affordable_val_tokens(steps * per_step)
            nodes["data"] = {**nodes["data"], "val_tokens": val_tokens}

    def resolve_norms(self) -> None:
        """Chooses the norms at embed, final, q, k and v. The content of every norm that is named
        goes into `norms`."""
        nodes = self.nodes
        if nodes["embed"] == "auto":
            nodes["embed"] = self.brings.get("embed", "none")
        if nodes["final_norm"] == "auto":
            ends_normed = self.placement.ends_normed(nodes["model"]["depth"])
            if ends_normed and "final_norm" not in self.placement.brings:
                nodes["final_norm"] = "none"
            else:
                nodes["final_norm"] = self.brings.get("final_norm", "norm")
        elif nodes["final_norm"] == "always":
            nodes["final_norm"] = "norm"
        for key, sites in (("qk_norm", ("q", "k")), ("v_norm", ("v",))):
            nodes[key] = self._resolve_head_norm(key, sites)
        chosen = head_sites(nodes["qk_norm"], nodes["v_norm"])
        nodes["qkv"] = nodes["norm"].get("brings", {}).get("qkv", "norm")
        if nodes["norm"]["type"] == "none" and any(s.norm == "norm" for s in chosen.values()):
            nodes["qkv"] = "rmsnorm"
        named = [(key, nodes[key]) for key in ("embed", "final_norm", "qkv")]
        named += [("v_norm" if at == "v" else "qk_norm", s.norm) for at, s in chosen.items()]
        named += [(f"placement.{site}", norm.norm) for site, norm in self.placement.sites()]
        self._check_hidden()
        nodes["norms"] = {}
        for key, name in named:
            if name not in ("norm", "none"):
                name = "l2norm" if (key, name) == ("embed", "fixnorm") else name
                nodes["norms"][name] = self._read_norm(key, name)

    def _check_hidden(self) -> None:
        """Raises ConfigError if the placement puts a norm on hidden units, for which the mlp, which
        may be a user's own, has no argument."""
        kind = self.nodes["mlp"]["type"]
        arguments = inspect.signature(MLPS[kind]).parameters.values()
        takes = any(one.name == "up_norm" or one.kind is one.VAR_KEYWORD for one in arguments)
        if not takes and any(site == "hidden" for site, _ in self.placement.sites()):
            raise ConfigError(f"mlp: {kind} takes no argument up_norm, for the placement's hidden")

    def _resolve_head_norm(self, key: str, sites: Collection[str]) -> str:
        """Returns the word for the norm at the sites q and k, or v."""
        word = self.nodes[key]
        if word == "auto":
            word = self.brings.get(key, "none")
        known = ["auto", "none", *SHARES, "l2"]
        if word not in known[1:]:
            try:
                self.option("norm", word)
            except ConfigError:
                names = dict.fromkeys([*known, *options("norm")])
                raise ConfigError(f"{key}: {unknown(key, word, names, 'norm')}") from None
        own = [site for site, _ in self.placement.sites() if site in HEAD_SITES]
        if word == "none" or not {*own} & {*sites}:
            return str(word)
        if key in self.typed:
            raise ConfigError(
                f"{key}={word}: this placement sets {', '.join(own)} itself; "
                f"leave {key} out or choose another placement"
            )
        norms = " and ".join(sites) + (" norms" if len(sites) > 1 else " norm")
        self.notes.append(f"the preset's {key}={word} gives way to the placement's own {norms}")
        return "none"

    def _read_norm(self, key: str, name: Any) -> Nodes:
        """Reads the file of the norm that stands at a key or a site."""
        if not isinstance(name, str):
            raise ConfigError(
                f"{key}: {name!r} is not allowed; it is a word, such as none or a norm"
            )
        at_heads = key == "placement.head_norm" and name in HEAD_NORMS
        try:
            norm = self.option("norm/head" if at_heads else "norm", name)
        except ConfigError as error:
            if key.startswith("placement."):
                reason = unknown("norm", name, ["norm", *options("norm")])
                raise ConfigError(f"placement.equation: {reason}") from None
            words = {"embed": "auto, fixnorm, ", "final_norm": "auto, always, "}.get(key, "")
            line = str(error).replace(f"norm={name}", f"{key}={name}", 1)
            raise ConfigError(line.replace("there are ", f"there are {words}", 1)) from None
        norm = check_registered(f"norms.{name}", "norm", norm)
        _check_formula(f"norms.{name}", norm, ())
        return norm

    def resolve_init(self, name: str) -> str:
        """Puts the content of an init rule in the place of auto, with what was typed of it, and
        returns the rule's name. What the rule brings gives way to all other choices."""
        init = dict(self.nodes["init"])
        otherwise = init.pop("otherwise", "")
        if name == "auto":
            name, typed = str(self.brings.get("init", otherwise)), init
            try:
                rule = self.option("init", name)
                check("init", rule, InitRule, InitFile)
            except ConfigError as error:
                if name != otherwise:
                    raise
                reason = str(error).removeprefix(f"init={name}: ")
                raise ConfigError(f"init.otherwise={name}: {reason}") from None
            init = {**rule, **typed, "std": {**rule["std"], **typed.get("std", {})}}
        check("init", init, InitRule, InitFile)
        brings, std = init.get("brings", {}), init["std"]
        for key in brings:
            if key not in DEFAULTS:
                raise ConfigError(f"init.brings: {unknown('choice', key, DEFAULTS)}")
        self.brings = {**brings, **self.brings}
        if "default" in std:
            std = {role: substitute("default", std["default"], of) for role, of in std.items()}
        self.nodes["init"] = {**init, "std": std}
        return name

    def resolve_stream(self) -> None:
        """Sets the embedding table, or the scale of the embedded tokens, so that these have the rms
        `init.stream` where they enter the first block."""
        nodes, init = self.nodes, self.nodes["init"]
        if init.get("stream", "none") == "none":
            return
        if nodes["embed"] != "none":
            raise ConfigError(
                f"init.stream: embed={nodes['embed']} gives the embedded tokens their size; "
                "leave one of the two out"
            )
        if "architecture.embed_scale" in self.typed and init.get("stream_by") == "scale":
            raise ConfigError(
                "init.stream_by: scale sets architecture.embed_scale; leave one of the two out"
            )
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
                architecture[key] = brought[key]
        if self._is_one(architecture["logit_scale"]):  # as mup's is at its base width
            architecture["logit_scale"] = "none"
        scale = str(architecture["attention_scale"]).replace(" ", "")
        if unit_length and scale == DEFAULTS["attention_scale"]:
            raise ConfigError(
                "architecture.attention_scale: 1/sqrt(dh) is not allowed where queries and keys "
                "have length 1 (l2norm): no logit could pass it; leave it out for a learned scale"
            )

    def _is_one(self, spec: Any) -> bool:
        """Whether a coefficient is the number 1 for these sizes."""
        if isinstance(spec, Mapping) or spec == "none":
            return False
        with name_key("architecture.logit_scale", spec):
            return bool(Formula(spec)(formula_values(Sizes(**self.nodes["model"]))) == 1)

    def resolve_rates(self) -> None:
        """Takes the factors of the learning rate that are auto from the init rule, and makes
        numbers of those that a whole group of parameters has in common. The formula of the others
        stays, for each weight to be worked out."""
        nodes, values = self.nodes, formula_values(Sizes(**self.nodes["model"]))
        architecture = nodes["architecture"]
        latents = any(architecture[key] != "none" for key in ("q_rank", "kv_rank"))
        chosen, of_init = nodes["optimizer"].get("lr_factor"), nodes["init"].get("lr_factor", {})
        if not isinstance(chosen, Mapping):  # a plugin's optimizer
            return
        factors = {}
        for name, stated in (("optimizer", chosen), ("init", of_init)):
            for group in stated:
                if group not in GROUPS:
                    raise ConfigError(f"{name}.lr_factor: {unknown('group', group, GROUPS)}")
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
        nodes, has_cuda = self.nodes, torch.cuda.is_available()
        if nodes["trainer"]["device"] == "auto":
            if device == "auto":
                device = "cuda" if has_cuda else "cpu"
            nodes["trainer"] = {**nodes["trainer"], "device": device}
        elif nodes["trainer"]["device"] == "cuda" and not has_cuda and device == "auto":
            line = "trainer.device: cuda is not available on this machine; allowed is cpu"
            raise ConfigError(line)
        if nodes["data"]["seed"] == "auto":
            nodes["data"] = {**nodes["data"], "seed": nodes["seed"]}

    def _has_unit_length_queries(self) -> bool:
        nodes = self.nodes
        norms = [site.norm for name, site in self.placement.sites() if name in ("q", "k")]
        norms += [site.norm for site in head_sites(nodes["qk_norm"], "none").values()]
        names = [nodes["qkv"] if name == "norm" else name for name in norms]
        contents = {"norm": nodes["norm"], "none": {"type": "none"}, **nodes["norms"]}
        return any(contents[name]["type"] == "l2norm" for name in names)


def _check_connection(placement: Nodes, spelled: Mapping[str, str]) -> Nodes:
    """Returns the placement's node with the settings of its connection as their class takes
    them."""
    given = placement.get("connection")
    if not given:
        return placement
    checked = check_registered("placement.connection", "connection", given, spelled)
    return {**placement, "connection": checked}


def _read_placement(node: Nodes) -> Placement:
    try:
        return read_placement(node)
    except (ValueError, TypeError) as error:  # TypeError: a word where a group of keys is wanted
        raise ConfigError(f"placement.{error}") from None
    except (RecursionError, MemoryError):
        raise ConfigError("placement: a formula in it is nested too deeply") from None


def _merge_brings(norm: Nodes, placement: Placement) -> Nodes:
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


def _check_formula(node: str, norm: Nodes, typed: Collection[str]) -> list[str]:
    """Compares a norm's formula with what its class computes. A typed value may make another norm
    of it; then the line that is returned says so."""
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


def _check_split(config: Config) -> None:
    split, share = config.data.split, config.data.test_fraction
    separator = config.data.get("separator", "none") != "none"
    if config.data.get("val_paths", ()):
        for key, unset in (("split", "hash"), ("test_fraction", 0)):
            if (value := config.data[key]) != unset:
                raise ConfigError(
                    f"data.{key}: {value} is not allowed with data.val_paths, which is val: no "
                    "text of data.paths is cut off, and there is no test part"
                )
    if separator and split == "tail":
        raise ConfigError(
            "data.separator: is not allowed with data.split=tail, which reads one stretch of text; "
            "leave one of the two out"
        )
    if share and split != "tail":
        raise ConfigError(
            f"data.test_fraction: {share:g} is not allowed with data.split={split}, whose test "
            "part is as large as val; data.split=tail takes a test part from the end of train"
        )


def _check_biases(config: Config) -> None:
    """Raises ConfigError if a bias is asked for by name and can stand nowhere."""
    bias = config.architecture.bias
    roles = () if isinstance(bias, bool) else bias
    if "gate" in roles and not MLPS[config.mlp.type].gated:
        kind = config.mlp.type
        raise ConfigError(f"architecture.bias: gate is not allowed: a {kind} mlp has no gate")
    for role, key in MADE_BY.items():
        if role in roles and getattr(config.architecture, key) == "none":
            raise ConfigError(
                f"architecture.bias: {role} is not allowed where architecture.{key} is none"
            )
    if "head" in roles and config.architecture.tied:
        raise ConfigError("architecture.bias: head is not allowed where architecture.tied is true")


def _blocks(config: Config) -> list[BlockSizes]:
    """Returns the sizes of the blocks, each once where several are alike."""
    sizes = config.model
    return list(dict.fromkeys(block_sizes(sizes, i) for i in range(sizes.depth)))


def _check_latents(config: Config) -> None:
    """Raises ConfigError if a size inside attention is none, or a norm is to stand on a latent that
    there is not."""
    architecture = config.architecture
    try:
        blocks = [head_sizes(architecture, sizes) for sizes in _blocks(config)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for inner in blocks:
        if config.position.type == "rope" and inner.rope_dim % 2:
            raise ConfigError(
                f"architecture.rope_dim: {inner.rope_dim} is odd, and position=rope turns pairs"
            )
    for name, _ in read_placement(config.placement).sites():
        if name in LATENT_SITES and (key := LATENT_SITES[name]) and not getattr(blocks[0], key):
            raise ConfigError(
                f"placement.equation: there is no latent for {name}, since architecture.{key} is "
                "none"
            )


def _check_values(config: Config) -> None:
    """Raises ConfigError if an option of the values has nothing to act on, or a gate has too few
    channels to read."""
    how, width = config.architecture, config.model.width
    if how.value_scale != 1 and how.value_residual == "none":
        raise ConfigError(
            f"architecture.value_scale: {as_number(how.value_scale)} is not allowed without "
            "architecture.value_residual, beside which it stands"
        )
    heads = [(sizes.kv_heads, head_sizes(how, sizes).value_dim) for sizes in _blocks(config)]
    if how.value_residual != "none" and len({*heads}) > 1:
        raise ConfigError(
            f"architecture.value_residual: {as_number(how.value_residual)} is not allowed where "
            "the values of blocks differ in size (model.kv_heads, model.head_dim): they are "
            "added to those of the first block"
        )
    if how.value_gate != "none" and how.value_embedding == "none":
        raise ConfigError(
            f"architecture.value_gate: {how.value_gate} is not allowed without "
            "architecture.value_embedding, whose rows it multiplies"
        )
    for key in ("value_gate", "smear"):
        if (channels := getattr(how, key)) != "none" and channels > width:
            raise ConfigError(
                f"architecture.{key}: {channels} is not allowed; x has model.width={width} channels"
            )


def _check_values_from_keys(config: Config) -> None:
    """Raises ConfigError if what W_k computes cannot be values, or W_v has a bias and stands
    nowhere."""
    how = config.architecture
    spec = how.values_from_keys
    marks = shared_blocks(spec, config.model.depth)
    for i, mark in enumerate(marks):
        sizes = block_sizes(config.model, i)
        inner = head_sizes(how, sizes)
        made = sizes.head_dim - inner.rope_dim
        if mark and made != inner.value_dim:
            raise ConfigError(
                f"architecture.values_from_keys: {as_number(spec)} is not allowed where a head's "
                f"values have {inner.value_dim} dimensions and W_k computes {made}; "
                f"architecture.value_dim={made} makes them as many"
            )
    if all(marks) and not isinstance(how.bias, bool) and "value" in how.bias:
        raise ConfigError(
            f"architecture.bias: value is not allowed where architecture.values_from_keys is "
            f"{as_number(spec)}"
        )


def _check_kv_from_block(config: Config) -> None:
    """Raises ConfigError if a block is to use keys and values that do not fit its queries, or that
    its own keys would change."""
    how, depth = config.architecture, config.model.depth
    rope = config.position.type == "rope"
    turns = [
        *zip(
            *(
                f(s, depth)
                for f, s in ((rotary_bases, how.rope_base), (rotary_fractions, how.rope_fraction))
            ),
            strict=True,
        )
    ]
    for i, source in enumerate(kv_sources(how.kv_from_block, depth)):
        sizes, there = (block_sizes(config.model, at) for at in (i, source))
        inner, inner_there = (head_sizes(how, each) for each in (sizes, there))
        table = value_factor(how.value_embedding, block_values(config.model, i))
        for key, differs in (
            ("model.head_dim", sizes.head_dim != there.head_dim),
            ("model.kv_heads", sizes.kv_heads != there.kv_heads),
            ("architecture.value_dim", inner.value_dim != inner_there.value_dim),
            ("architecture.rope_dim", inner.rope_dim != inner_there.rope_dim),
            ("architecture.rope_base or rope_fraction", rope and turns[i] != turns[source]),
            ("architecture.value_embedding", source != i and table),
        ):
            if differs:
                raise ConfigError(
                    f"architecture.kv_from_block: {as_number(how.kv_from_block)} is not allowed; "
                    f"block i={i} uses the keys and values of block {source}, "
                    f"and has {key} of its own"
                )


def _check_attention(config: Config) -> None:
    """Raises ConfigError if an option is set for which the chosen attention has no use."""
    unset = {f"architecture.{key}": DEFAULTS[key] for key in ("attention_cap", "attention_scale")}
    unset["model.dropout"] = 0
    kind = config.attention.type
    for key, reason in getattr(ATTENTIONS[kind], "refuses", {}).items():
        if key not in unset:
            raise ConfigError(f"attention={kind}: refuses: {unknown('key', key, unset)}")
        if (value := value_at(config, key)) != unset[key]:
            raise ConfigError(
                f"{key}: {as_number(value)} is not allowed with attention={kind}: {reason}"
            )


def _check_widths(config: Config) -> None:
    """Raises ConfigError if a norm cannot be built at the width of a site where it stands."""
    placement, norms = read_placement(config.placement), {"norm": config.norm, **config.norms}
    sites = [*placement.sites(), ("embed", Site(config.embed)), ("final", Site(config.final_norm))]
    sites += head_sites(config.qk_norm, config.v_norm).items()
    sites += latent_sites(config.architecture).items()
    blocks = [(sizes, head_sizes(config.architecture, sizes)) for sizes in _blocks(config)]
    for name, site in sites:
        word = config.qkv if name in HEAD_SITES and site.norm == "norm" else site.norm
        if word not in norms:  # none, and fixnorm, which is on the table
            continue
        widths = dict.fromkeys(site_width(name, site.share, *block) for block in blocks)
        try:
            for width in widths:
                check_width(norms[word].type, width, NORMS.maker(norms[word]).keywords)
        except ValueError as error:
            key = "norm." if word == "norm" else f"norm={word}: "
            raise ConfigError(f"{key}{error} (at {name})") from None
        except Exception:  # no refusal but a fault of a plugin, which ends its own run alone
            continue


def _check_qk_clip(config: Config) -> None:
    """Raises ConfigError if the largest logit is to be read where there is none."""
    kind, clip = config.attention.type, config.trainer.qk_clip
    if clip != "none" and not hasattr(ATTENTIONS[kind], "largest"):
        raise ConfigError(
            f"trainer.qk_clip: {clip:g} is not allowed with attention={kind}: it has no logits"
        )


def _check_offered(config: Config) -> None:
    """Raises ConfigError if a window, a chunk or a bias is set, and the chosen attention does not
    name it among its arguments, so that it could not act."""
    kind, sizes = config.attention.type, config.model
    how, context = config.architecture, sizes.context
    biased = POSITIONS[config.position.type].bias is not NoPosition.bias
    chosen = {
        **{
            key: (
                f"architecture.{key}: {as_number(spec)}",
                any(sliding_windows(spec, sizes.depth, context)),
            )
            for key, spec in (
                ("sliding_window", how.sliding_window),
                ("attention_chunk", how.attention_chunk),
            )
        },
        "position_bias": (f"position={config.choices.position}", biased),
    }
    named = {name for base in ATTENTIONS[kind].__mro__ for name in _arguments(base)}
    for argument, (key, wanted) in chosen.items():
        if wanted and argument not in named:
            raise ConfigError(
                f"{key} is not allowed with attention={kind}: it takes no argument {argument}"
            )


def _arguments(kind: type) -> Collection[str]:
    """Returns the names of the arguments that a class itself states."""
    own = vars(kind).get("__init__")
    return inspect.signature(own).parameters if inspect.isfunction(own) else ()


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
