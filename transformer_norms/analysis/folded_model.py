"""A model whose norms were folded into its weights: how it is made, compared, and saved."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from transformer_norms.analysis.folded_config import (
    folded_config,
    keep_norms_in_config,
    norm_folds,
)
from transformer_norms.analysis.norm_folding import (
    NormFold,
    gain_and_constant,
    move,
    plan_fold,
)
from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import Config
from transformer_norms.data import Tokenizer
from transformer_norms.model.transformer import Transformer
from transformer_norms.run import checkpoint
from transformer_norms.run.identity import run_hash
from transformer_norms.storage.files import make_folder, write_bytes, write_json
from transformer_norms.training.tensors import stored_tensors

EXACT = 1e-9  # of the largest logit: float64's rounding is far below, a wrong fold far above


@dataclass(frozen=True)
class Folded:
    """A model in float64 that computes what another one does, its norms, and by how much the logits
    of the two differ, over the largest logit."""

    model: Transformer
    folds: list[NormFold]
    rounding: float

    @property
    def config(self) -> Config:
        config: Config = self.model.config
        return config


@torch.no_grad()
def fold_gains(model: Transformer, tokens: Tensor) -> Folded:
    """Moves all gains, biases and centrings that can be moved exactly. The models are compared on
    `tokens`."""
    source = copy.deepcopy(model).double().cpu().eval()
    plans = [plan_fold(source, fold) for fold in norm_folds(source)]
    folds = keep_norms_in_config(plans)
    folded = empty_model(folded_config(source, folds, _biases(source, folds)), source)
    move(folded, source, folds)
    return Folded(folded, folds, largest_difference(source, folded, tokens))


def _biases(model: Transformer, folds: list[NormFold]) -> set[str]:
    """The roles of the matrices that take in more than zeros."""
    roles: set[str] = set()
    for fold in folds:
        if fold.into:
            _, constant = gain_and_constant(model, fold.place, fold.paths)
            if constant is not None and bool(constant.any()):
                roles |= {name.rpartition(".")[2] for name in fold.into}
    return roles


@torch.no_grad()
def empty_model(config: Config, source: Transformer) -> Transformer:
    """A model of `config` in float64 with all that it has in common with `source`. A head of its
    own begins as the embedding, and a bias that `source` lacks as zeros."""
    model = build_uninitialized(config, source.vocab_size).double().eval()
    known: dict[str, Any] = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    known.setdefault("head.weight", known["embedding.weight"])
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert name in known or name.endswith(".bias"), name
        tensor.copy_(known.get(name, torch.zeros_like(tensor)))
    return model


@torch.no_grad()
def largest_difference(before: nn.Module, after: nn.Module, tokens: Tensor) -> float:
    """The largest difference between the logits of two models, over the largest of the first."""
    expected, logits = (model(tokens).double() for model in (before, after))
    return float((expected - logits).abs().max() / expected.abs().max())


def probe_tokens(model: Transformer) -> Int64[Tensor, "batch time"]:
    """Tokens at random, on which a model and what was made of it are compared."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.vocab_size, (4, min(model.context, 64)), generator=generator)


def stored_dtype(config: Config) -> torch.dtype:
    """The dtype in which the weights of a model are saved."""
    return torch.float64 if config.trainer.precision == "fp64" else torch.float32


def save_model(
    folder: Path,
    model: Transformer,
    config: Config,
    words: Tokenizer,
    step: int,
    data_identity: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> None:
    """Writes the model of a config into a new folder that `load`, sampling and analyses read.
    `extra` says what it was made of."""
    make_folder(folder)
    write_bytes(folder / "config.yaml", to_yaml(config).encode())
    write_json(folder / "tokenizer.json", words.save())
    dtype = stored_dtype(config)
    tensors = {name: tensor.to(dtype) for name, tensor in stored_tensors(model).items()}
    identity = run_hash(config, data_identity)
    checkpoint.save(folder / "checkpoints", identity, step, {"model": tensors}, {}, extra, keep=1)
