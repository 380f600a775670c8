"""The config of a folded model, in which each site names the norm that is left there."""

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from transformer_norms.analysis.norm_folding import NormFold
from transformer_norms.config.compose import recompose
from transformer_norms.config.overrides import to_dict
from transformer_norms.config.tree import Config
from transformer_norms.kinds import plain
from transformer_norms.model.equation import Reader, canonical
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import SUB_LAYERS, Placement, head_sites, read_placement
from transformer_norms.model.settings import MADE_BY
from transformer_norms.model.sites import (
    HEAD_SITES,
    LATENT_SITES,
    NormPlace,
    Site,
    SubLayerPlan,
    place_of,
)
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import option_files

Content = Mapping[str, Any]
# Keys of a norm's node that say nothing of what it computes.
BESIDE = ("formula", "source", "unverified", "brings", "allow_noncausal")


def content_of(node: Content) -> dict[str, Any]:
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


def _plan(config: Config, place: NormPlace) -> SubLayerPlan:
    """Returns what the equation says of the sub-layer, or of the block, that a site belongs to."""
    assert place.block is not None
    placement = read_placement(config.placement)
    if place.sub_layer == "block":
        return placement.block_plan
    return placement.plans(place.block, config.model.depth)[place.sub_layer]


def _is_unnamed(config: Config, place: NormPlace) -> bool:
    """Whether a norm stands on a latent without an equation that names it."""
    return place.site in LATENT_SITES and place.site not in _plan(config, place).sites


def _by_key(config: Config, place: NormPlace) -> Site | None:
    """Returns what qk_norm and v_norm say of a site."""
    named = head_sites(config.qk_norm, config.v_norm)
    return named.get(place.site) if place.sub_layer == "attention" else None


def expressible(config: Config, folds: Sequence[NormFold]) -> list[NormFold]:
    """The folds without those that no config can say: where one key, or one equation of two
    streams, is for several sites of which some keep what others lose."""
    runs_norm = uniform([fold for fold in folds if _is_runs_norm(config, fold)])
    kept = []
    for fold in folds:
        why = ""
        if _changed(fold) and not (runs_norm and _is_runs_norm(config, fold)):
            chosen = _by_key(config, fold.place) if fold.place.block is not None else None
            key = "v_norm" if fold.place.site == "v" else "qk_norm"
            same = [other for other in folds if _key_of(config, other) == key]
            if chosen and (chosen.share != "head" or not uniform(same)):
                why = f"{key}={getattr(config, key)} says which norm is there, and can say no other"
            elif not chosen and fold.place.block is not None and _has_two_streams(config):
                why = "equations of two streams are not written anew"
            elif _is_unnamed(config, fold.place):
                why = "no equation names it, and the run's norm stands elsewhere too"
        kept.append(fold.stay(why) if why else fold)
    return kept


def _key_of(config: Config, fold: NormFold) -> str:
    """The key that says which norm stands at q, k and v, or an empty text."""
    if fold.place.block is None or _by_key(config, fold.place) is None:
        return ""
    return "v_norm" if fold.place.site == "v" else "qk_norm"


def _has_two_streams(config: Config) -> bool:
    return read_placement(config.placement).topology == "dual"


def _is_runs_norm(config: Config, fold: NormFold) -> bool:
    return fold.word == "norm" and fold.place.site not in HEAD_SITES


def _changed(fold: NormFold) -> bool:
    return fold.after != fold.before


def uniform(folds: Sequence[NormFold]) -> bool:
    """Whether all these norms become one other norm."""
    return bool(folds) and _changed(folds[0]) and all(f.after == folds[0].after for f in folds)


# ---------------------------------------------------------------------------------- names of norms


class Names:
    """A name for each norm that is left. A file's name stands for it where the file has the same
    settings, or the same but for eps; `contents` has them by name."""

    def __init__(self, config: Config) -> None:
        self.contents = {name: content_of(node) for name, node in config.norms.items()}
        files = option_files("norm")
        self.files = {name: content_of(to_dict(OmegaConf.load(files[name]))) for name in files}

    def of(self, content: Content) -> str:
        content = dict(content)
        for name, known in self.contents.items():
            if known == content:
                return name
        without_eps = {**content, "eps": None}
        near = [name for name, file in self.files.items() if {**file, "eps": None} == without_eps]
        same = [name for name in near if self.files[name] == content]
        name = first = (same or near or [f"{content['type']}_folded"])[0]
        count = 1
        while name in self.contents:
            count += 1
            name = f"{first}_{count}"
        self.contents[name] = content
        return name


def folded_config(model: Transformer, folds: Sequence[NormFold], biases: Iterable[str]) -> Config:
    """The config of the model that `move` leaves. `biases` are the roles of the matrices that take
    a constant in."""
    config, names = model.config, Names(model.config)
    node = plain(config.chosen)
    choices: dict[str, Any] = {"trainer": {**node["trainer"], "device": "auto"}}
    own = [fold for fold in folds if _is_runs_norm(config, fold)]
    renamed = [fold for fold in folds if _changed(fold)]
    if uniform(own):
        renamed = [fold for fold in renamed if fold not in own]
        choices["norm"] = _runs_norm(config, own[0], names)
    in_equations: dict[tuple[int, str, str], str] = {}
    for fold in renamed:
        place, name = fold.place, names.of(fold.after)
        if place.block is None:
            choices[{"final": "final_norm"}.get(place.site, place.site)] = name
        elif key := _key_of(config, fold):
            choices[key] = name
        else:
            in_equations[place.block, place.sub_layer, place.site] = name
    if in_equations:
        choices["placement"] = _placement(config, in_equations)
    choices["architecture"] = _architecture(config, folds, biases, node["architecture"])
    return recompose(config, (), choices, names.contents)


def _runs_norm(config: Config, fold: NormFold, names: Names) -> tuple[str, dict[str, Any]]:
    """The name and the node of the run's norm where all that stand for it become one. Norms on q, k
    and v stay what they are."""
    brings = plain(config.norm.get("brings", {}))
    before = config.choices["norm"]
    placement = read_placement(config.placement)
    heads = [site for name, site in placement.sites() if name in HEAD_SITES]
    heads += head_sites(config.qk_norm, config.v_norm).values()
    if config.qkv == "norm" and any(site.norm == "norm" for site in heads):
        names.contents.setdefault(before, content_of(config.norm))
        brings["qkv"] = before
    name = names.of(fold.after)
    return name, {**fold.after, **({"brings": brings} if brings else {})}


def _placement(
    config: Config, names: Mapping[tuple[int, str, str], str]
) -> tuple[str, dict[str, Any]]:
    node = plain(config.chosen["placement"])
    text = _renamed(read_placement(config.placement), config.model.depth, names)
    node = {**node, **text}
    if not node["where"]:
        del node["where"]
    equation = node["equation"]
    if isinstance(equation, dict):
        return ", ".join(f"{part}: {canonical(each)}" for part, each in equation.items()), node
    return canonical(equation), node


def _architecture(
    config: Config, folds: Sequence[NormFold], biases: Iterable[str], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    own = {"head", "embedding"}
    names = {name for fold in folds for name in (*fold.into, *fold.centred)}
    architecture = dict(chosen)
    if config.architecture.tied and names & own:
        architecture["tied"] = False
    if added := set(biases) - biased(config.architecture.bias):
        there = biased(config.architecture.bias)
        architecture["bias"] = sorted(added | there & _roles_there(config))
    return architecture


def _roles_there(config: Config) -> set[str]:
    left = {"gate"} if not MLPS[config.mlp.type].gated else set()
    left |= {role for role, key in MADE_BY.items() if getattr(config.architecture, key) == "none"}
    return set(BIASED) - left


# ------------------------------------------------------------------- equations with other norms


def _renamed(
    placement: Placement, depth: int, names: Mapping[tuple[int, str, str], str]
) -> dict[str, Any]:
    """The equations, and `where`, of the same placement with other norms: `names` has a norm by
    block, kind of sub-layer (or `block`) and site. Two streams are not renamed."""
    groups: dict[str, list[int]] = {}
    for i in range(depth):
        groups.setdefault(json.dumps(_renamed_block(placement, i, depth, names)), []).append(i)
    usual = max(groups, key=lambda text: len(groups[text]))
    where = [
        {"blocks": " + ".join(f"(i == {i})" for i in blocks), "equation": json.loads(text)}
        for text, blocks in groups.items()
        if text != usual
    ]
    return {"equation": json.loads(usual), "where": where}


def _renamed_block(
    placement: Placement, i: int, depth: int, names: Mapping[tuple[int, str, str], str]
) -> str | dict[str, str]:
    texts: dict[str, str] = {}
    topology = placement.topology
    read = "serial" if topology == "blocks" else topology
    for part, text in placement.equation(i, depth).items():
        if (topology, part) == ("blocks", "block"):
            texts[part] = text
            continue
        nodes: dict[ast.Name, str] = {}
        for kind in (part, *SUB_LAYERS) if topology == "parallel" else (part,):
            reader = Reader(text, placement.learned, kind, SUB_LAYERS)
            getattr(reader, f"read_{read}")()
            sites = reader.written.items()
            nodes |= {n: names[i, kind, site] for site, n in sites if (i, kind, site) in names}
        texts[part] = replace_names(reader.text, nodes)
    first, *others = texts.values()
    return first if all(text == first for text in others) else texts


def replace_names(text: str, names: Mapping[ast.Name, str]) -> str:
    """The text with other names in the place of those that were read in it."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for node in sorted(names, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        start, end = line[: node.col_offset], line[node.end_col_offset :]
        lines[node.lineno - 1] = start + names[node].encode() + end
    return b"".join(lines).decode()
