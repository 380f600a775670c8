"""Moves gains, biases and centring of norms into the matrices after them and before them.

    W (gain * n + bias) + b = (W diag(gain)) n + (W bias + b)          the matrices that read n
    layernorm(x) = rmsnorm(x - mean(x))                                those that write x

The first is exact where matrices alone read the norm's output, the second where matrices alone
write its input: their outputs then have the mean 0. Both as in SliceGPT, Ashkboos et al. 2024,
arXiv:2401.15024; bias as in Heimersheim 2024, arXiv:2409.13710. eps stays what it is: the variance
is then the mean of squares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.attention import Sinks, Softmax
from transformer_norms.model.block import ParallelBlock, SerialBlock
from transformer_norms.model.coefficient import Learned, Scaled, ScaledNorm
from transformer_norms.model.initialization import BIASED, FromLatent
from transformer_norms.model.mlp import MLP, GatedMLP
from transformer_norms.model.position import LearnedPositions, Sinusoidal
from transformer_norms.model.sites import NormPlace
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import nothing
from transformer_norms.norms.group_rmsnorm import GroupRMSNorm
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.prmsnorm import PRMSNorm
from transformer_norms.norms.rmsnorm import RMSNorm

# Exactly these classes: a subclass may compute anything.
FOLDED = (LayerNorm, RMSNorm, PRMSNorm, GroupRMSNorm)
# The roles of the matrices that read the norm before a sub-layer.
READERS = {
    "attention": "query_down kv_down rope_key query key value attention_gate".split(),
    "mlp": ["up", "gate"],
}
WRITERS = {"attention": "output", "mlp": "down"}  # the matrix that a sub-layer ends with
# The matrix that writes a latent, and those that read it.
LATENTS = {"q_latent": ("query_down", ("query",)), "kv_latent": ("kv_down", ("key", "value"))}
STAYS = {
    "out": "it is added to the stream, which others read",
    "post": "its output is the stream, which the next skip reads",
    "embed": "its output is the stream, which the first skip reads",
    "q": "no matrix reads it: queries and keys meet in a product",
    "k": "no matrix reads it: queries and keys meet in a product",
    "hidden": "an activation reads it",
    "v": "a norm of heads keeps its parameters",
    "head_norm": "a norm of heads keeps its parameters",
    "connection": "it is part of how streams are read and joined",
    "inside": "it is part of a learned matrix",
}
ROWS = "rows of the embedding and of the head are normed as they are read"


class CannotFold(ValueError):
    """Says why a gain, or a mean, stays with its norm."""


# --------------------------------------------------------------------- the matrices around a norm


def readers(model: Transformer, place: NormPlace) -> list[str]:
    """The names of the matrices that read the norm at a site. Raises CannotFold where others read
    it."""
    last = (len(model.blocks) - 1, "mlp", "post")
    ends = model.final is nothing and (place.block, place.sub_layer, place.site) == last
    if place.site == "final" or ends:
        if model.rows is not nothing:
            raise CannotFold(ROWS)
        joins = isinstance(model.final, nn.Module) and not hasattr(model.final, "norm_place")
        if place.site == "final" and joins:
            raise CannotFold(f"{type(model.final).__name__} may do more with it before the head")
        return ["head"]
    if (site := place.site.partition(" ")[0]) in STAYS:
        raise CannotFold(STAYS[site])
    inside = f"blocks.{place.block}.{place.sub_layer}.f"
    if place.site == "pre":
        kinds = READERS if place.sub_layer == "block" else (place.sub_layer,)
        layer: Any = model.get_submodule(f"blocks.{place.block}")
        skips = (getattr(layer, kind).skip for kind in kinds)
        modules = (m for skip in skips if isinstance(skip, nn.Module) for m in skip.modules())
        if any(isinstance(module, ScaledNorm) for module in modules):
            raise CannotFold("the skip reads it as well")
        return [name for kind in kinds for name in _inputs(model, int(place.block or 0), kind)]
    f: Any = model.get_submodule(inside)
    if place.site in LATENTS:
        reading = LATENTS[place.site][1]
        return [f"{inside}.{name}" for name in reading if getattr(f, name) is not None]
    return [f"{inside}.{WRITERS[place.sub_layer]}"]


def _inputs(model: Transformer, i: int, kind: str) -> list[str]:
    """The matrices that read the input of a sub-layer."""
    f: Any = model.get_submodule(f"blocks.{i}.{kind}.f")
    if kind == "mlp" and type(f) not in (MLP, GatedMLP):
        raise CannotFold(f"{type(f).__name__} reads it, which may not be a matrix")
    if kind == "attention" and type(f.attend).forward not in (Softmax.forward, Sinks.forward):
        raise CannotFold(f"{type(f.attend).__name__} may read it, too")
    linear = (name for name in READERS[kind] if isinstance(getattr(f, name, None), nn.Linear))
    names = [name for name in linear if not isinstance(getattr(f, name), FromLatent)]
    gate = getattr(getattr(f, "values", nothing), "value_gate", nothing)
    names += ["values.value_gate"] * isinstance(gate, nn.Linear)
    return [f"blocks.{i}.{kind}.f.{name}" for name in names]


def gain_and_constant(model: Transformer, path: str) -> tuple[Tensor | None, Tensor | None]:
    """The gain and the constant that the readers of a norm meet: a number for each of their
    columns, or one for all."""
    norm: Any = model.get_submodule(path)
    gain, bias = norm.gain_and_bias(torch.float64)
    whole: Any = model.get_submodule(path.removesuffix(".norm"))
    scale = whole.scale if isinstance(whole, Scaled) else nothing
    return gain, None if bias is None else scale(bias)


def absorb(
    linear: nn.Linear,
    matrix: Float[Tensor, "width width"] | Float[Tensor, " width"],
    constant: Float[Tensor, " width"] | None,
) -> None:
    """W (M x + c) + b = (W M) x + (W c + b). A vector means its diagonal matrix. A
    matrix W that reads the first channels alone meets the first numbers alone."""
    count = linear.in_features
    matrix = matrix[:count]
    if constant is not None:
        moved = linear.weight @ constant[:count]
        if linear.bias is not None:
            linear.bias.add_(moved)
        assert linear.bias is not None or not moved.any()
    if matrix.dim() == 1:
        linear.weight.mul_(matrix)
    else:
        linear.weight.copy_(linear.weight @ matrix)


def centre(module: nn.Linear | nn.Embedding) -> None:
    """Makes what a matrix or a table writes have the mean 0."""
    weight = module.weight if isinstance(module, nn.Linear) else module.weight.t()
    bias = getattr(module, "bias", None)
    for tensor in (weight,) if bias is None else (weight, bias):
        tensor.sub_(tensor.mean(0, keepdim=True))


# ------------------------------------------------------------------------------------- the writers


def writers(model: Transformer, place: NormPlace) -> list[str]:
    """The names of the matrices and tables that alone write a norm's input: that of a norm on the
    stream before a sub-layer or the head, or on a latent. Raises CannotFold for all others."""
    if place.site in ("pre", "final"):
        return stream_writers(model)
    if place.site in LATENTS:
        return [f"blocks.{place.block}.{place.sub_layer}.f.{LATENTS[place.site][0]}"]
    raise CannotFold("it reads neither the stream before a sub-layer nor a latent")


def stream_writers(model: Transformer) -> list[str]:
    """All that writes to the stream. Raises CannotFold where the stream's mean cannot be taken out:
    a writer that is neither matrix nor table keeps a mean, or a reader meets the mean."""
    if model.smear is not nothing:
        raise CannotFold("a gate reads the embedded tokens (architecture.smear)")
    if model.rows is not nothing:
        raise CannotFold(ROWS)
    if model.embed is not nothing:
        raise CannotFold("a norm on the embedded tokens writes to the stream")
    if isinstance(model.position, Sinusoidal):
        raise CannotFold("sinusoidal positions have a mean")
    if isinstance(model.scale, Learned) and model.scale.gain.numel() > 1:
        raise CannotFold("a learned vector multiplies the embedded tokens")
    names = ["embedding"] + ["position.position"] * isinstance(model.position, LearnedPositions)
    for i, block in enumerate(model.blocks):
        if type(block) not in (SerialBlock, ParallelBlock):
            raise CannotFold("a connection joins the streams")
        for kind in WRITERS:
            layer: Any = getattr(block, kind)
            if layer.out is not nothing or layer.post is not nothing:
                raise CannotFold(f"a norm after {kind} writes to the stream")
            parallel = isinstance(block, ParallelBlock)
            pre = layer.pre if not parallel or block.pre is nothing else block.pre
            if not isinstance(_bare(pre), LayerNorm):
                name = "no norm" if pre is nothing else f"a {type(_bare(pre)).__name__}"
                raise CannotFold(f"{kind} of block {i + 1} reads the stream's mean through {name}")
            if any(p.numel() > 1 for part in (layer.skip, layer.branch, layer.enter)
                   if isinstance(part, nn.Module) for p in part.parameters()):  # fmt: skip
                raise CannotFold("a learned vector or matrix multiplies the stream")
            names.append(f"blocks.{i}.{kind}.f.{WRITERS[kind]}")
    if not isinstance(_bare(model.final), LayerNorm):
        raise CannotFold("the head reads the stream's mean")
    return names


def _bare(whole: Any) -> Any:
    """The norm itself, without its scale."""
    return whole.norm if isinstance(whole, Scaled) else whole


# ---------------------------------------------------------------------------- what becomes of norms


@dataclass(frozen=True)
class NormFold:
    """The norms at one site, and what becomes of them: `into` names the matrices that take in their
    gain and bias, `constant` says whether the bias is more than zeros, and `centred` names the
    matrices that are centred. `why` says what stays, and why. `before` and `after` are the settings
    of the norm, as in its YAML, and `word` is how the config names it."""

    place: NormPlace
    paths: tuple[str, ...]
    word: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    into: tuple[str, ...] = ()
    constant: bool = False
    centred: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def moved(self) -> str:
        parts = []
        if self.into:
            parts += ["gain"] * (self.before["gain"] != "none") + ["bias"] * self.before["bias"]
        return ", ".join([*parts, *["centring"] * bool(self.centred)])


def plan_fold(model: Transformer, fold: NormFold) -> NormFold:
    """Decides what can be moved out of the norms at one site."""
    norms: Any = [model.get_submodule(path) for path in fold.paths]
    norm, why = norms[0], []
    if type(norm) not in FOLDED:
        kept = "" if not list(norm.parameters()) else "it has no form without its parameters"
        return replace(fold, why=(kept,) if kept else ())
    after = dict(fold.before)
    if any(parameter is not None for parameter in norm._parameters.values()):
        try:
            into = readers(model, fold.place)
            _, constant = gain_and_constant(model, fold.paths[0])
            without = [name for name in into if name.rpartition(".")[2] not in BIASED]
            if constant is not None and without:
                raise CannotFold(f"{without[0].rpartition('.')[2]} can have no bias")
            moves_constant = constant is not None and bool(constant.any())
            fold = replace(fold, into=tuple(into), constant=moves_constant)
            after |= {"gain": "none", "bias": False}
        except CannotFold as reason:
            why.append(f"its parameters stay: {reason}")
    if type(norm) is LayerNorm:
        try:
            fold = replace(fold, centred=tuple(writers(model, fold.place)))
            after["type"] = "rmsnorm"
        except CannotFold as reason:
            why.append(f"its centring stays: {reason}")
    return replace(fold, after=after, why=tuple(why))


@torch.no_grad()
def move(model: Transformer, source: Transformer, folds: Sequence[NormFold]) -> None:
    """Moves what `folds` say of the norms of `source` into the matrices of `model`, which begins as
    its copy."""
    for fold in folds:
        if fold.into:
            gain, constant = gain_and_constant(source, fold.paths[0])
            for name in fold.into:
                linear: Any = model.get_submodule(name)
                absorb(linear, torch.ones(1).double() if gain is None else gain, constant)
            # Where the config keeps them they are a gain of ones, and no offset or bias.
            for path in fold.paths:
                for name, parameter in model.get_submodule(path).named_parameters():
                    parameter.fill_(name == "gain")
    for name in dict.fromkeys(name for fold in folds for name in fold.centred):
        module: Any = model.get_submodule(name)
        centre(module)
