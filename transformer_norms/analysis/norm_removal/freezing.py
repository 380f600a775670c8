"""A norm whose length is a number: what it was on average, and no longer each token's own."""

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import NORMS
from transformer_norms.norms.affine import wide
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.rmsnorm import RMSNorm

MOMENTUM = 0.9  # of the average length, from step to step
FREEZABLE = (LayerNorm, RMSNorm)
STAGES = ("mlp", "attention", "final")  # in this order, the blocks of a stage from the first on
# Those that the matrices which read them take in. A norm on the stream itself, or on a query or key
# on its way to a product with another, cannot go; norms inside f or behind it could, and stay.
_SITES = {
    "mlp": re.compile(r"blocks\.\d+\.mlp\.pre(\.norm)?"),
    "attention": re.compile(r"blocks\.\d+\.(attention\.)?pre(\.norm)?"),  # of parallel blocks both
    "final": re.compile(r"final"),
}


class FrozenNorm(nn.Module):
    """gain * (x - mean(x)) / length + bias      LayerNorm; RMSNorm is not centred

    `first` is the length of a sequence's first token, which attention may have made unlike all
    others, and `length` that of the rest, both as constants: no gradient, no token's own.
    """

    first: Tensor
    length: Tensor

    def __init__(self, norm: LayerNorm | RMSNorm, first: float, length: float) -> None:
        super().__init__()
        self.norm, self.centred = norm, isinstance(norm, LayerNorm)
        self.width = norm.width if isinstance(norm, LayerNorm) else norm.length.first
        self.register_buffer("first", torch.tensor(first, dtype=torch.float64))
        self.register_buffer("length", torch.tensor(length, dtype=torch.float64))

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        y = wide(x)
        gain, bias = self.norm.gain_and_bias(y.dtype)
        y = y - y.mean(-1, keepdim=True) if self.centred else y
        at_start = torch.arange(x.shape[1], device=x.device)[:, None] == 0
        y = y / torch.where(at_start, self.first, self.length).to(y.dtype)
        y = y if gain is None else y * gain
        return (y if bias is None else y + bias).to(x.dtype)


class Place(NamedTuple):
    """A norm of a model: its path, and the stage in which it is frozen."""

    stage: str
    path: str


def places(model: Transformer) -> list[Place]:
    """Every norm, in the order of freezing. ValueError where one is not to be removed."""
    found, staying = [], []
    for path, module in _norms(model):
        stage = next((name for name, site in _SITES.items() if site.fullmatch(path)), None)
        if stage is None or type(module) not in FREEZABLE:  # a subclass may compute anything
            staying.append(f"{_site(path)} ({type(module).__name__})")
        else:
            found.append(Place(stage, path))
    if staying:
        raise ValueError(
            f"these norms are not folded here: {', '.join(dict.fromkeys(staying))}; a LayerNorm or "
            "RMSNorm before a sub-layer or before the head is"
        )
    if not found:
        raise ValueError("there is no norm in it")
    return sorted(found, key=lambda place: STAGES.index(place.stage))


def biased(model: Transformer) -> bool:
    """Whether a norm has a bias, which the matrices that read it are to take in."""
    return any(getattr(norm, "bias", None) is not None for _, norm in _norms(model))


def norms_of(model: nn.Module) -> list[str]:
    """The sites of a model's norms."""
    return list(dict.fromkeys(_site(path) for path, _ in _norms(model)))


def _norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    kinds: Any = tuple(kind for kind in NORMS.values() if isinstance(kind, type))
    for path, module in model.named_modules():
        if isinstance(module, kinds):
            yield path, module


def _site(path: str) -> str:
    """`blocks.3.attention.f.q` -> attention.q"""
    return re.sub(r"^blocks\.\d+\.|\.f(?=\.)|\.norm$|\.heads\.\d+", "", path)


class Lengths:
    """The average length by which each norm divides, followed while the model trains."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.average: dict[str, Tensor] = {}  # of a path: of the first token, of the rest
        self.seen: dict[str, list[Tensor]] = {}  # since the last step
        self.hooks = {
            path: module.register_forward_pre_hook(self._watcher(path))
            for path, module in _norms(model)
        }

    def _watcher(self, path: str) -> Any:
        @torch.no_grad()
        def watch(norm: nn.Module, given: tuple[Tensor]) -> None:
            if self.model.training:
                each = length_of(norm, given[0])
                rest = each[:, 1:] if each.shape[1] > 1 else each
                here = torch.stack((each[:, 0].mean(), rest.mean()))
                self.seen.setdefault(path, []).append(here)

        return watch

    def step(self) -> None:
        """A step has been made, in however many passes."""
        for path, passes in self.seen.items():
            here = torch.stack(passes).mean(0)
            before = self.average.get(path, here)
            self.average[path] = before + (1 - MOMENTUM) * (here - before)
        self.seen.clear()

    def freeze(self, path: str) -> None:
        """Puts a `FrozenNorm` where the norm was; it keeps the norm's gain and bias."""
        self.hooks.pop(path).remove()
        self.put(self.model, path)

    def all_at_once(self) -> Transformer:
        """A copy of the model in which every norm is frozen that is not yet."""
        copied = copy.deepcopy(self.model)
        for path in self.hooks:
            self.put(copied, path)
        return copied

    def put(self, model: nn.Module, path: str) -> None:
        owner, _, name = path.rpartition(".")
        norm, length = model.get_submodule(path), self.average[path]
        assert isinstance(norm, FREEZABLE)
        frozen = FrozenNorm(norm, *length.tolist()).to(length.device)
        setattr(model.get_submodule(owner), name, frozen)


def length_of(norm: nn.Module, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time"]:
    """sqrt(var(x) + eps) of a LayerNorm, sqrt(mean(x**2) + eps) of an RMSNorm"""
    x = wide(x)
    if isinstance(norm, LayerNorm):
        return (x.var(-1, correction=0) + norm.eps).sqrt()
    assert isinstance(norm, RMSNorm)
    return 1 / norm.length.inverse(x.square().sum(-1))


def one_length(model: nn.Module) -> None:
    """The first token is divided as all others are."""
    for module in model.modules():
        if isinstance(module, FrozenNorm):
            module.first.copy_(module.length)
