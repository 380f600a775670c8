"""From a config to a model and its trainer: the only place that turns names into objects."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from transformer_norms.attention import AllHeads, Attention, Capped, HeadScale
from transformer_norms.block import TOPOLOGIES, SubLayer
from transformer_norms.coefficient import coefficient
from transformer_norms.initialization import InitRule
from transformer_norms.mlp import ACTIVATIONS, MLPS
from transformer_norms.model import LogitCap, Transformer
from transformer_norms.norms import NORMS, nothing
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
    placement = Placement(**config["placement"])
    values = formula_values(config)
    position = POSITIONS[config["position"]["type"]](
        width=sizes["width"],
        context=sizes["context"],
        head_dim=sizes["head_dim"],
        base=architecture["rope_base"],
        fraction=architecture["rope_fraction"],
    )
    blocks = [
        _block(config, placement, position, {**values, "i": i, "l": i + 1})
        for i in range(sizes["depth"])
    ]
    scale, cap = architecture["embed_scale"], architecture["logit_cap"]
    model = Transformer(
        vocab_size=vocab_size,
        width=sizes["width"],
        context=sizes["context"],
        position=position,
        blocks=blocks,
        tied=architecture["tied"],
        scale=coefficient(1 if scale == "none" else scale, sizes["width"], values),
        embed=_norm(config, Site(config["embed"]))(sizes["width"]),
        final=_norm(config, Site(config["final_norm"]))(sizes["width"]),
        dropout=_dropout(sizes["dropout"]),
        cap=nothing if cap == "none" else LogitCap(cap),
    )
    InitRule(**config["init"]).apply(model, config["seed"], values)
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
    }


def _block(config: Config, placement: Placement, position: Any, values: dict[str, float]) -> Any:
    plans = placement.block(int(values["i"]), int(values["N"]))
    attention = _attention(config, plans["attention"], position)
    mlp = _mlp(config, plans["mlp"])
    return TOPOLOGIES[placement.topology](
        attention=_sublayer(config, plans["attention"], attention, values),
        mlp=_sublayer(config, plans["mlp"], mlp, values),
    )


def _sublayer(config: Config, plan: SubLayerPlan, f: nn.Module, values: Mapping[str, float]) -> Any:
    width = config["model"]["width"]
    return SubLayer(
        f,
        **{name: _site(config, plan, name)(width) for name in ("pre", "out", "post")},
        skip=coefficient(plan.a, width, values),
        branch=coefficient(plan.b, width, values),
        dropout=_dropout(config["model"]["dropout"]),
    )


def _attention(config: Config, plan: SubLayerPlan, position: Any) -> Attention:
    sizes, cap = config["model"], config["architecture"]["attention_cap"]
    heads = {"q": sizes["heads"], "k": sizes["kv_heads"], "v": sizes["kv_heads"]}
    if config["qk_norm"] != "none":
        both = Site("norm", config["qk_norm"])
        plan = SubLayerPlan({**plan.sites, "q": both, "k": both}, plan.head_scale, plan.a, plan.b)
    return Attention(
        **{key: sizes[key] for key in ("width", "heads", "kv_heads", "head_dim", "dropout")},
        bias=config["architecture"]["bias"],
        attend=F.scaled_dot_product_attention if cap == "none" else Capped(cap),
        rotate=position.rotate,
        **{name: _head_norm(config, plan, name, heads[name]) for name in HEAD_SITES},
        head_norm=_site(config, plan, "head_norm")(sizes["head_dim"]),
        head_scale=(
            nothing if plan.head_scale is None else HeadScale(sizes["heads"], plan.head_scale)
        ),
        ctx=_site(config, plan, "ctx")(sizes["heads"] * sizes["head_dim"]),
    )


def _mlp(config: Config, plan: SubLayerPlan) -> nn.Module:
    sizes = config["model"]
    return MLPS[config["mlp"]["type"]](
        width=sizes["width"],
        mlp_width=sizes["mlp_width"],
        bias=config["architecture"]["bias"],
        activation=ACTIVATIONS[config["mlp"]["activation"]],
        mid=_site(config, plan, "mid")(sizes["mlp_width"]),
    )


def _site(config: Config, plan: SubLayerPlan, name: str) -> MakeNorm:
    return _norm(config, plan.sites.get(name, Site("none")))


def _head_norm(config: Config, plan: SubLayerPlan, name: str, heads: int) -> Any:
    """The norm at q, k or v: not every norm of the stream can stand there (`qkv`)."""
    site, head_dim = plan.sites.get(name, Site("none")), config["model"]["head_dim"]
    if site.norm == "norm":
        site = Site(config["qkv"], site.share)
    norm = _norm(config, site)(head_dim * heads if site.share == "full" else head_dim)
    return AllHeads(norm) if site.share == "full" and norm is not nothing else norm


def _norm(config: Config, site: Site) -> MakeNorm:
    """`norm(width)` for the norm that a site names."""
    if site.norm == "none":
        return NORMS["none"]
    spec = config["norm"] if site.norm == "norm" else config["norms"][site.norm]
    own = {key: value for key, value in spec.items() if key not in ("type", "brings")}
    return lambda width: NORMS[spec["type"]](width, **own)


def _dropout(share: float) -> Any:
    return nn.Dropout(share) if share else nothing
