"""Frozen norms as part of the weights that read them: the same function without a norm."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from transformer_norms.analysis.norm_removal.freezing import FrozenNorm, biased, norms_of
from transformer_norms.config.building import undrawn
from transformer_norms.config.compose import compose, plain
from transformer_norms.data import Tokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.files import write_bytes, write_json
from transformer_norms.model.initialization import biased as roles_of
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.transformer import Transformer
from transformer_norms.run import checkpoint
from transformer_norms.training.trainer import stored

# The roles of the matrices that read what a norm before a sub-layer or before the head gives.
READERS = {"attention": ("query", "key", "value"), "mlp": ("up", "gate"), "head": ("head",)}


def normless(file: Path, model: Transformer, plugins: str = "none") -> DictConfig:
    """The config of the folded model: that in `file` without norms, with a head of its own, and
    with a bias at each matrix that reads a norm, where norms of `model` have one. ConfigError
    where a norm would stay, one that the placement names."""
    own = [f"config={file}", f"plugins={plugins}"]
    before = compose(own)
    roles = roles_of(before.architecture.bias)
    if biased(model):
        roles |= {role for readers in READERS.values() for role in readers}
    if not MLPS[before.mlp.type].gated:
        roles -= {"gate"}
    bias = f"[{','.join(sorted(roles))}]" if roles else "false"
    changed = ["norm=none", "final_norm=none", "architecture.tied=false"]
    config = compose([*own, *changed, f"architecture.bias={bias}"])
    if staying := norms_of(undrawn(config, model.vocab_size)):
        raise ConfigError(f"{file}: its placement names norms of its own: {', '.join(staying)}")
    return config


@torch.no_grad()
def folded(model: Transformer, config: Mapping[str, Any]) -> Transformer:
    """A model of `config` (of `normless`) that computes what `model` does, all of whose norms are
    frozen and whose first token is divided as all others are. In float64, as the folding is.

    A frozen norm is x -> M x + c, and W (M x + c) + b = (W M) x + (W c + b). A constant that
    multiplies the norm's output stays where it is; c has met it already.
    """
    model = copy.deepcopy(model).double().cpu()
    found = undrawn(plain(config), model.vocab_size).double()
    known = dict(model.named_parameters())
    known.setdefault("head.weight", known["embedding.weight"])
    for name, parameter in found.named_parameters():
        assert name in known or name.endswith(".bias")
        parameter.copy_(known.get(name, torch.zeros_like(parameter)))
    for path, frozen in model.named_modules():
        if isinstance(frozen, FrozenNorm):
            site = model.get_submodule(path.removesuffix(".norm"))
            for linear in _readers(found, path):
                _take_in(linear, *_affine(frozen, site))
    return found.eval()


def _affine(frozen: FrozenNorm, site: nn.Module) -> tuple[Tensor, Tensor]:
    """M of the frozen norm and c of the whole site, read off what they make of unit vectors."""
    width = frozen.width
    assert torch.equal(frozen.first, frozen.length)
    zeros = torch.zeros(1, 1, width, dtype=torch.float64)
    units = torch.eye(width, dtype=torch.float64)[None]
    return (frozen(units) - frozen(zeros))[0].mT, site(zeros)[0, 0]


def _take_in(linear: nn.Linear, matrix: Tensor, constant: Tensor) -> None:
    moved = linear.weight @ constant
    if linear.bias is not None:
        linear.bias.add_(moved)
    else:
        assert not moved.any()
    linear.weight.copy_(linear.weight @ matrix)


def _readers(model: Transformer, path: str) -> Iterator[nn.Linear]:
    """The matrices that read the norm at `path`: those of the head, of one sub-layer, or, where a
    parallel block has one norm for both, of two."""
    if path == "final":
        assert isinstance(model.head, nn.Linear)
        yield model.head
        return
    _, i, first, *_ = path.split(".")
    for name in ("attention", "mlp") if first == "pre" else (first,):
        f = model.get_submodule(f"blocks.{i}.{name}.f")
        yield from (getattr(f, role) for role in READERS[name] if hasattr(f, role))


def save(
    model: Transformer, config: DictConfig, tokenizer: Tokenizer, step: int, run: str, folder: Path
) -> None:
    """As a new folder that `load` and sampling read; `run` is the name of that it comes from."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "config.yaml", OmegaConf.to_yaml(config).encode())
    write_json(folder / "tokenizer.json", tokenizer.save())
    tensors = {"model": {name: t.float() for name, t in stored(model).items()}}
    extra = {"folded_from": run}
    checkpoint.save(folder / "checkpoints", step, tensors, {}, extra, keep=1)
