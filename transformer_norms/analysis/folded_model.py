"""A model whose norms were folded into its weights: its config, how it is made and compared."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from transformer_norms.analysis.norm_folding import NormFold, move, plan_fold
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.config.compose import recompose
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.hf.facts import biasable_roles
from transformer_norms.kinds import plain
from transformer_norms.model.initialization import biased
from transformer_norms.model.sites import place_of
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import option_files

EXACT = 1e-9  # of the largest logit: float64's rounding is far below, a wrong fold far above
# Keys of a norm's node that say nothing of what it computes.
NOT_COMPUTED = ("formula", "source", "unverified", "brings", "allow_noncausal")
CENTRING = "its centring stays: norms of the same name keep theirs, or their gain"


@dataclass(frozen=True)
class Folded:
    """A model in float64 that computes what its `source` does, its norms, and by how much the
    logits of the two differ, over the largest logit."""

    source: Transformer
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
    source = copy.deepcopy(model).cpu().double().eval()
    plans = [plan_fold(source, fold) for fold in norm_folds(source)]
    folds = keep_norms_in_config(plans)
    biases = {name.rpartition(".")[2] for fold in folds if fold.constant for name in fold.into}
    folded = empty_model(folded_config(source, folds, biases), source)
    move(folded, source, folds)
    return Folded(source, folded, folds, largest_difference(source, folded, tokens))


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


def check_exact(named: object, rounding: float) -> None:
    """Raises ConfigError if folding has changed what a model computes."""
    if not rounding < EXACT:
        raise ConfigError(
            f"{named}: folding has changed the logits, by {rounding:.0e} of the largest, and "
            "it is not saved; a fault of this program, or of your own class"
        )


def probe_tokens(model: Transformer) -> Int64[Tensor, "batch time"]:
    """Tokens at random, on which a model and what was made of it are compared."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.vocab_size, (4, min(model.context, 64)), generator=generator)


# ---------------------------------------------------------------- the config of a folded model


def content_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a norm that say what it computes."""
    return {key: plain(value) for key, value in node.items() if key not in NOT_COMPUTED}


def norm_folds(model: Transformer) -> list[NormFold]:
    """The norms of a model by site, before anything is moved."""
    norms = [(path, place_of(norm)) for path, norm in model.norms()]
    folds = []
    for own in grouped(norms, lambda one: (one[1].block, one[1].sub_layer, one[1].site)):
        place = own[0][1]
        word = "norm" if place.site == "connection" else place.norm
        node = model.config.norm if word == "norm" else model.config.norms.get(word, {})
        content = content_of(node)
        folds.append(NormFold(place, tuple(path for path, _ in own), word, content, content))
    return folds


def keep_norms_in_config(folds: Sequence[NormFold]) -> list[NormFold]:
    """The folds of a model whose config names one norm for many sites. Where all sites of the run's
    norm become one other norm, that is the run's norm. Elsewhere a norm whose gain and bias were
    moved stays as it is, with a gain of ones and a bias of zeros."""
    own = [fold for fold in folds if fold.word == "norm"]
    alike = all(fold.before != fold.after == own[0].after for fold in own)
    kept = []
    for fold in folds:
        if not (alike and fold.word == "norm"):
            why = (CENTRING,) if fold.centred else ()
            fold = replace(fold, after=fold.before, centred=(), why=(*fold.why, *why))
        kept.append(fold)
    return kept


def folded_config(model: Transformer, folds: Sequence[NormFold], biases: Iterable[str]) -> Config:
    """The config of the model that `move` leaves. `biases` are the roles of the matrices that take
    a constant in."""
    config = model.config
    node = plain(config.chosen)
    choices: dict[str, Any] = {"trainer": {**node["trainer"], "device": "auto"}}
    if changed := [fold.after for fold in folds if fold.after != fold.before]:
        brings = {"brings": plain(config.norm.brings)} if "brings" in config.norm else {}
        choices["norm"] = _name_of(changed[0]), {**changed[0], **brings}
    architecture = dict(node["architecture"])
    names = {name for fold in folds for name in (*fold.into, *fold.centred)}
    if config.architecture.tied and names & {"head", "embedding"}:
        architecture["tied"] = False
    there = biased(config.architecture.bias)
    if added := set(biases) - there:
        architecture["bias"] = sorted(added | there & biasable_roles(config))
    return recompose(config, (), {**choices, "architecture": architecture})


def _name_of(content: Mapping[str, Any]) -> str:
    """The name of a file with the same settings, or the same but for eps."""
    wanted = {**content, "eps": None}
    files = {name: read_config_file(file) for name, file in option_files("norm").items()}
    known = {name: {**content_of(node), "eps": None} for name, node in files.items()}
    return next((name for name in known if known[name] == wanted), f"{content['type']}_folded")
