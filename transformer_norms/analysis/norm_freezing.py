"""A norm whose length is a number, and how the weights that read it take it in: no norm is left."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.config.building import undrawn
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import Config
from transformer_norms.data import Tokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.files import write_bytes, write_json
from transformer_norms.model.initialization import biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import NORMS
from transformer_norms.norms.affine import wide
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.rmsnorm import RMSNorm
from transformer_norms.run import checkpoint
from transformer_norms.training.trainer import stored_tensors

MOMENTUM = 0.9  # of the average length, from step to step
FREEZABLE = (LayerNorm, RMSNorm)
STAGES = ("mlp", "attention", "final")  # in this order; within a stage from the first block on
# The roles of the matrices that read the norm before a sub-layer or before the head.
READERS = {"attention": ("query", "key", "value"), "mlp": ("up", "gate"), "head": ("head",)}


# --------------------------------------------------------------------- which norms can be removed


class Place(NamedTuple):
    """A norm of a model: the stage in which it is frozen, and its path."""

    stage: str
    path: str


def places(model: Transformer) -> list[Place]:
    """Every norm of the model, in the order of freezing.

    Raises ValueError if a norm stands where no weight can take it in: on the stream itself, on a
    query or key on its way to a product, or inside or behind a sub-layer.
    """
    stages, norms = _stages(model), dict(_norms(model))
    staying = [
        f"{_site(path)} ({type(norm).__name__})"
        for path, norm in norms.items()
        if path not in stages or type(norm) not in FREEZABLE  # a subclass may compute anything
    ]
    if staying:
        raise ValueError(
            f"these norms are not folded here: {', '.join(dict.fromkeys(staying))}; a LayerNorm or "
            "RMSNorm before a sub-layer or before the head is"
        )
    if not norms:
        raise ValueError("there is no norm in it")
    ordered = sorted(norms, key=lambda path: STAGES.index(stages[path]))
    return [Place(stages[path], path) for path in ordered]


def _stages(model: Transformer) -> dict[str, str]:
    """The stage of each path where the plan has a norm before a sub-layer, and of the final norm.

    A norm that both sub-layers of a parallel block read goes with attention.
    """
    placement, depth = Placement(**model.config.placement), model.config.model.depth
    stages = {"final": "final"}
    for i in range(depth):
        for part, plan in {"block": placement.block_plan, **placement.plans(i, depth)}.items():
            if "pre" in plan.sites:
                owner = f"blocks.{i}" if part == "block" else f"blocks.{i}.{part}"
                scaled = ".norm" if plan.sites["pre"].scale != 1 else ""
                stages[f"{owner}.pre{scaled}"] = "attention" if part == "block" else part
    return stages


def norm_sites(model: nn.Module) -> list[str]:
    """The sites of a model's norms, each once."""
    return list(dict.fromkeys(_site(path) for path, _ in _norms(model)))


def _norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    kinds: Any = tuple(kind for kind in NORMS.values() if isinstance(kind, type))
    for path, module in model.named_modules():
        if isinstance(module, kinds):
            yield path, module


def _site(path: str) -> str:
    """`blocks.3.attention.f.q` -> attention.q"""
    return re.sub(r"^blocks\.\d+\.|\.f(?=\.)|\.norm$|\.heads\.\d+", "", path)


# -------------------------------------------------------------------------------------- freezing


class FrozenNorm(nn.Module):
    """gain * (x - mean(x)) / length + bias      LayerNorm; RMSNorm is not centred

    `first` is the length of a sequence's first token, which attention may have made unlike all
    others, and `length` that of the rest. Both are constants: no gradient, no token's own.
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


class Lengths:
    """The average length by which each norm divides, followed while the model trains."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.average: dict[str, Tensor] = {}  # by path: of the first token, of the rest
        self.since_step: dict[str, list[Tensor]] = {}  # the same for each forward pass
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
                self.since_step.setdefault(path, []).append(here)

        return watch

    def step(self) -> None:
        """Takes the passes since the last step, however many, into the averages."""
        for path, passes in self.since_step.items():
            here = torch.stack(passes).mean(0)
            before = self.average.get(path, here)
            self.average[path] = before + (1 - MOMENTUM) * (here - before)
        self.since_step.clear()

    def freeze(self, path: str) -> None:
        """Puts a `FrozenNorm` where the norm was. It keeps the norm's gain and bias."""
        self.hooks.pop(path).remove()
        self._put(self.model, path)

    def frozen_copy(self) -> Transformer:
        """A copy of the model in which every norm is frozen that is not yet."""
        copied = copy.deepcopy(self.model)
        for path in self.hooks:
            self._put(copied, path)
        return copied

    def _put(self, model: nn.Module, path: str) -> None:
        owner, _, name = path.rpartition(".")
        norm, length = model.get_submodule(path), self.average[path]
        assert isinstance(norm, FREEZABLE)
        frozen = FrozenNorm(norm, *length.tolist()).to(length.device)
        setattr(model.get_submodule(owner), name, frozen)


def length_of(norm: nn.Module, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time"]:
    """sqrt(var(x) + eps) for a LayerNorm, sqrt(mean(x**2) + eps) for an RMSNorm"""
    x = wide(x)
    if isinstance(norm, LayerNorm):
        return (x.var(-1, correction=0) + norm.eps).sqrt()
    assert isinstance(norm, RMSNorm)
    return 1 / norm.length.inverse(x.square().sum(-1))


def unify_lengths(model: nn.Module) -> None:
    """Makes every frozen norm divide a sequence's first token as it divides the others."""
    for module in model.modules():
        if isinstance(module, FrozenNorm):
            module.first.copy_(module.length)


# --------------------------------------------------------------------------------------- folding


def compose_normless(file: Path, model: Transformer, plugins: str = "none") -> Config:
    """The config of the folded model: that in `file`, without norms, with a head of its own.

    Each matrix that reads a norm has a bias where a norm of `model` has one. Raises ConfigError if
    the placement names a norm, which would stay.
    """
    own = [f"config={file}", f"plugins={plugins}"]
    roles = biased(model.config.architecture.bias)
    if any(getattr(norm, "bias", None) is not None for _, norm in _norms(model)):
        roles |= {role for readers in READERS.values() for role in readers}
    if not MLPS[model.config.mlp.type].gated:
        roles -= {"gate"}
    bias = f"[{','.join(sorted(roles))}]" if roles else "false"
    changed = ["norm=none", "final_norm=none", "architecture.tied=false"]
    config = compose([*own, *changed, f"architecture.bias={bias}"])
    if staying := norm_sites(undrawn(config, model.vocab_size)):
        raise ConfigError(f"{file}: its placement names norms of its own: {', '.join(staying)}")
    return config


@torch.no_grad()
def fold_norms(model: Transformer, config: Config) -> Transformer:
    """A model of `config` (of `compose_normless`) that computes what `model` does, in float64.

    All norms of `model` are frozen and divide the first token as all others. A frozen norm is
    x -> M x + c, and W (M x + c) + b = (W M) x + (W c + b). A constant that multiplies the norm's
    output stays where it is; c has met it already.
    """
    model = copy.deepcopy(model).double().cpu()
    folded = undrawn(config, model.vocab_size).double()
    known = dict(model.named_parameters())
    known.setdefault("head.weight", known["embedding.weight"])
    for name, parameter in folded.named_parameters():
        assert name in known or name.endswith(".bias")
        parameter.copy_(known.get(name, torch.zeros_like(parameter)))
    for path, frozen in model.named_modules():
        if isinstance(frozen, FrozenNorm):
            matrix, constant = _affine(frozen, model.get_submodule(path.removesuffix(".norm")))
            for linear in _readers(folded, path):
                moved = linear.weight @ constant
                if linear.bias is not None:
                    linear.bias.add_(moved)
                assert linear.bias is not None or not moved.any()
                linear.weight.copy_(linear.weight @ matrix)
    return folded.eval()


def _affine(frozen: FrozenNorm, site: nn.Module) -> tuple[Tensor, Tensor]:
    """M of the frozen norm and c of the whole site, read off what they make of unit vectors."""
    assert torch.equal(frozen.first, frozen.length)
    zeros = torch.zeros(1, 1, frozen.width, dtype=torch.float64)
    units = torch.eye(frozen.width, dtype=torch.float64)[None]
    return (frozen(units) - frozen(zeros))[0].mT, site(zeros)[0, 0]


def _readers(model: Transformer, path: str) -> Iterator[nn.Linear]:
    """The matrices that read the norm at `path`: of the head, of one sub-layer, or of both where a
    parallel block has one norm."""
    if path == "final":
        assert isinstance(model.head, nn.Linear)
        yield model.head
        return
    _, i, first, *_ = path.split(".")
    for name in ("attention", "mlp") if first == "pre" else (first,):
        f = model.get_submodule(f"blocks.{i}.{name}.f")
        yield from (getattr(f, role) for role in READERS[name] if hasattr(f, role))


def save_folded(
    model: Transformer, config: Config, tokenizer: Tokenizer, step: int, run: str, folder: Path
) -> None:
    """Writes a new folder that `load` and sampling read. `run` names the run that was folded."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "config.yaml", to_yaml(config).encode())
    write_json(folder / "tokenizer.json", tokenizer.save())
    tensors = {"model": {name: tensor.float() for name, tensor in stored_tensors(model).items()}}
    extra = {"folded_from": run}
    checkpoint.save(folder / "checkpoints", step, tensors, {}, extra, keep=1)
