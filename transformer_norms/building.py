"""From a config to a model and its trainer: the only place that turns names into objects."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from transformer_norms.attention import ORDERS, AllHeads, Attention, Capped, PerHead
from transformer_norms.block import TOPOLOGIES, SubLayer
from transformer_norms.coefficient import REST_OF_B, FromBlock, Rest, Scaled, coefficient
from transformer_norms.constraint import CONSTRAINTS
from transformer_norms.formula import Formula
from transformer_norms.initialization import InitRule
from transformer_norms.mlp import ACTIVATIONS, MLPS
from transformer_norms.model import LogitCap, Transformer
from transformer_norms.norms import NORMS, NOT_ARGUMENTS, nothing
from transformer_norms.optimizer import OPTIMIZERS
from transformer_norms.placement import HEAD_SITES, Placement, Site, SubLayerPlan
from transformer_norms.placement import TOPOLOGIES as TOPOLOGY_NAMES
from transformer_norms.position import POSITIONS
from transformer_norms.schedule import SCHEDULES
from transformer_norms.trainer import Trainer, Windows

Config = Mapping[str, Any]
MakeNorm = Callable[[int], Any]
assert set(TOPOLOGIES) == set(TOPOLOGY_NAMES)


def build_model(config: Config, vocab_size: int) -> Transformer:
    """The model of a composed config, its weights drawn from `config.seed`, on the CPU, in float64
    where trainer.precision=fp64 and float32 otherwise.
    """
    sizes, architecture = config["model"], config["architecture"]
    width = sizes["width"]
    placement = Placement(**config["placement"])
    topology = TOPOLOGIES[placement.topology]
    values = formula_values(config)
    position = POSITIONS[config["position"]["type"]](
        width=width,
        context=sizes["context"],
        head_dim=sizes["head_dim"],
        base=architecture["rope_base"],
        fraction=architecture["rope_fraction"],
    )
    blocks = [
        _block(config, placement, position, {**values, "i": i, "l": i + 1})
        for i in range(sizes["depth"])
    ]
    cap, fixnorm = architecture["logit_cap"], config["embed"] == "fixnorm"
    model = Transformer(
        vocab_size=vocab_size,
        width=width,
        context=sizes["context"],
        position=position,
        blocks=blocks,
        tied=architecture["tied"],
        scale=_scale(architecture["embed_scale"], width, values),
        embed=_norm(config, Site("none" if fixnorm else config["embed"]))(width),
        final=topology.leave(_norm(config, Site(config["final_norm"]))(width)),
        dropout=_dropout(sizes["dropout"]),
        logit_scale=_scale(architecture["logit_scale"], vocab_size, values),
        cap=nothing if cap == "none" else LogitCap(cap),
        rows=_norm(config, Site("l2norm" if fixnorm else "none"))(width),
        enter=topology.enter,
        constrain=CONSTRAINTS[placement.weight_constraint],
    )
    InitRule(**config["init"]).apply(model, config["seed"], values)
    model.constrain(model)
    return model.double() if config["trainer"]["precision"] == "fp64" else model


def build_trainer(
    config: Config, model: Transformer, batches: Callable[[int], Any], validation: Windows
) -> Trainer:
    """The trainer of a composed config. Moves the model to the config's device."""
    keys, optimizer, schedule = config["trainer"], config["optimizer"], config["schedule"]
    model = model.to(keys["device"])
    if keys["compile"]:
        for block in model.blocks:  # one region a block: the time to compile knows no depth
            block.compile()
    own = {key: value for key, value in schedule.items() if key != "type"}
    return Trainer(
        model,
        batches,
        validation,
        OPTIMIZERS[optimizer["type"]](model, **{k: v for k, v in optimizer.items() if k != "type"}),
        partial(SCHEDULES[schedule["type"]], **own),
        **{key: keys[key] for key in ("steps", "accumulation", "clip", "precision", "device")},
        **{key: keys[key] for key in ("eval_every", "log_every", "checkpoint_every")},
        seed=config["seed"],
        warmup=schedule["warmup"],
        constrain=model.constrain,
    )


def formula_values(config: Config) -> dict[str, float]:
    """What formulas in YAML may name, besides i and l of a block."""
    sizes = config["model"]
    return {
        "N": sizes["depth"],
        "R": 2 * sizes["depth"],
        "d": sizes["width"],
        "H": sizes["heads"],
        "dh": sizes["head_dim"],
        "m": sizes["mlp_width"],
        "L": sizes["context"],
    }


def _block(config: Config, placement: Placement, position: Any, values: dict[str, float]) -> Any:
    plans = placement.plans(int(values["i"]), int(values["N"]))
    functions = {
        "attention": _attention(config, plans["attention"], position, values),
        "mlp": _mlp(config, plans["mlp"], values),
    }
    shared: dict[str, Any] = {}
    return TOPOLOGIES[placement.topology].block(
        **{
            name: _sublayer(config, plan, functions[name], values, shared)
            for name, plan in plans.items()
        },
        **{name: _site(config, placement.whole, name, values) for name in placement.whole.sites},
    )


def _sublayer(
    config: Config,
    plan: SubLayerPlan,
    f: nn.Module,
    values: Mapping[str, float],
    shared: dict[str, Any],
) -> Any:
    shapes = {"scalar": (), "vector": (config["model"]["width"],)}
    a, b = plan.coefficient("a"), plan.coefficient("b")
    branch = coefficient(b, shapes, values)
    if isinstance(b, Mapping) and b.get("share") == "block":
        branch = shared.setdefault("b", branch)
    skip = Rest(branch) if a == REST_OF_B else coefficient(a, shapes, values)
    return SubLayer(
        f,
        **{name: _site(config, plan, name, values) for name in ("pre", "out", "post")},
        skip=FromBlock(skip) if plan.skip == "block" else skip,
        branch=branch,
        dropout=_dropout(config["model"]["dropout"]),
    )


def _attention(
    config: Config, plan: SubLayerPlan, position: Any, values: Mapping[str, float]
) -> Attention:
    sizes, architecture = config["model"], config["architecture"]
    heads = {"q": sizes["heads"], "k": sizes["kv_heads"], "v": sizes["kv_heads"]}
    if config["qk_norm"] != "none":
        plan = replace(plan, sites={**plan.sites, **dict.fromkeys("qk", qk_site(config))})
    attend, scale = _attend(config, values)
    return Attention(
        **{key: sizes[key] for key in ("width", "heads", "kv_heads", "head_dim", "dropout")},
        bias=architecture["bias"],
        attend=attend,
        scale=scale,
        turn=partial(ORDERS[architecture["qk_norm_order"]], position.rotate),
        **{name: _head_norm(config, plan, name, heads[name], values) for name in HEAD_SITES},
        head_norm=_head_norm(config, plan, "head_norm", sizes["heads"], values),
        head_scale=coefficient(
            plan.coefficient("head_scale"), _head_shapes(sizes["heads"], sizes), values
        ),
        ctx=_site(config, plan, "ctx", values, sizes["heads"] * sizes["head_dim"]),
    )


def _attend(config: Config, values: Mapping[str, float]) -> tuple[Callable[..., Any], Any]:
    """Attention with its cap and scale, and what is left of the scale for q to be multiplied by."""
    cap, scale = (config["architecture"][f"attention_{key}"] for key in ("cap", "scale"))
    attend = F.scaled_dot_product_attention if cap == "none" else Capped(cap)
    if isinstance(scale, Mapping):
        shapes = _head_shapes(config["model"]["heads"], config["model"])
        return partial(attend, scale=1.0), coefficient(scale, shapes, values)
    number = Formula(scale)(values)
    usual = number == values["dh"] ** -0.5
    return (attend if usual else partial(attend, scale=number)), nothing


def _head_shapes(heads: int, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {"scalar": (), "head": (heads, 1), "vector": (heads, sizes["head_dim"])}


def _mlp(config: Config, plan: SubLayerPlan, values: Mapping[str, float]) -> nn.Module:
    sizes, kind = config["model"], MLPS[config["mlp"]["type"]]
    scales = ("up_scale", "gate_scale") if kind.gated else ("up_scale",)
    return kind(
        width=sizes["width"],
        mlp_width=sizes["mlp_width"],
        bias=config["architecture"]["bias"],
        activation=ACTIVATIONS[config["mlp"]["activation"]],
        mid=_site(config, plan, "mid", values, sizes["mlp_width"]),
        **{
            name: _scale(plan.coefficient("hidden_scale"), sizes["mlp_width"], values)
            for name in scales
        },
    )


def _site(
    config: Config,
    plan: SubLayerPlan,
    name: str,
    values: Mapping[str, float],
    width: int | None = None,
) -> Any:
    """The norm at a site of the stream, of `width` features (the model's, unless said)."""
    site, width = plan.site(name), width or config["model"]["width"]
    norm = _norm(config, site)(width)
    return norm if site.scale == 1 else Scaled(norm, _scale(site.scale, width, values))


def _head_norm(
    config: Config, plan: SubLayerPlan, name: str, heads: int, values: Mapping[str, float]
) -> Any:
    """The norm on heads. Not every norm of the stream can stand at q, k or v (`qkv`)."""
    site, sizes = plan.site(name), config["model"]
    if site.norm == "norm" and name in HEAD_SITES:
        site = replace(site, norm=config["qkv"])
    make, head_dim = _norm(config, site), sizes["head_dim"]
    norm = make(head_dim)
    if norm is not nothing and site.share == "full":
        norm = AllHeads(make(heads * head_dim))
    elif norm is not nothing and site.share == "per_head":
        norm = PerHead([make(head_dim) for _ in range(heads)])
    if site.scale == 1:
        return norm
    return Scaled(norm, coefficient(site.scale, _head_shapes(heads, sizes), values))


def qk_site(config: Config) -> Site:
    """What `qk_norm` puts at q and at k."""
    word = config["qk_norm"]
    return Site("l2norm") if word == "l2" else Site("norm", word)


def _norm(config: Config, site: Site) -> MakeNorm:
    """`norm(width)` for the norm that a site names."""
    if site.norm == "none":
        return NORMS["none"]
    spec = config["norm"] if site.norm == "norm" else config["norms"][site.norm]
    own = {key: value for key, value in spec.items() if key not in NOT_ARGUMENTS}
    return lambda width: NORMS[spec["type"]](width, **own)


def _scale(spec: Any, width: int, values: Mapping[str, float]) -> Any:
    """A coefficient of `width` features, or nothing."""
    shapes = {"scalar": (), "vector": (width,)}
    return coefficient(1 if spec == "none" else spec, shapes, values)


def _dropout(share: float) -> Any:
    return nn.Dropout(share) if share else nothing
