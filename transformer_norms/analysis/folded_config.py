"""The config of a folded model: what becomes of its norms, its head and its biases."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformer_norms.analysis.norm_folding import NormFold
from transformer_norms.config.compose import recompose
from transformer_norms.config.option_content import read_config_file
from transformer_norms.config.tree import Config
from transformer_norms.kinds import plain
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.settings import MADE_BY
from transformer_norms.model.sites import NormPlace, place_of
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import option_files

# Keys of a norm's node that say nothing of what it computes.
BESIDE = ("formula", "source", "unverified", "brings", "allow_noncausal")
CENTRING = "its centring stays: norms of the same name keep theirs, or their gain"


def content_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a norm that say what it computes."""
    return {key: plain(value) for key, value in node.items() if key not in BESIDE}


def norm_folds(model: Transformer) -> list[NormFold]:
    """The norms of a model by site, before anything is moved."""
    at: dict[tuple[int | None, str, str], list[tuple[str, NormPlace]]] = {}
    for path, norm in model.norms():
        place = place_of(norm)
        at.setdefault((place.block, place.sub_layer, place.site), []).append((path, place))
    folds = []
    for own in at.values():
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
        architecture["bias"] = sorted(added | there & _roles_there(config))
    return recompose(config, (), {**choices, "architecture": architecture})


def _name_of(content: Mapping[str, Any]) -> str:
    """The name of a file with the same settings, or the same but for eps."""
    wanted = {**content, "eps": None}
    files = {name: read_config_file(file) for name, file in option_files("norm").items()}
    known = {name: {**content_of(node), "eps": None} for name, node in files.items()}
    return next((name for name in known if known[name] == wanted), f"{content['type']}_folded")


def _roles_there(config: Config) -> set[str]:
    left = {"gate"} if not MLPS[config.mlp.type].gated else set()
    left |= {role for role, key in MADE_BY.items() if getattr(config.architecture, key) == "none"}
    return set(BIASED) - left
