"""Everything that is to be said of a config, gathered from the model that it builds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformer_norms.explain.anatomy import BlockAnatomy, dissect
from transformer_norms.explain.choices import choices, others
from transformer_norms.explain.equations import block_equations, ends, same
from transformer_norms.explain.facts import Fact, Section
from transformer_norms.explain.numbers import coefficients, deviations, parameters
from transformer_norms.explain.reading import Reader
from transformer_norms.explain.sites import epsilon, norms, norms_in, width_of
from transformer_norms.explain.weightless import build_weightless
from transformer_norms.model.assembly import norm_of
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import NOT_ARGUMENTS

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Explanation:
    config: Config
    blocks: list[BlockAnatomy]
    sections: list[Section]


def explain(config: Config, vocab_size: int, typed: set[str]) -> Explanation:
    """Of a composed config; `typed` are the keys that the user typed."""
    return explain_model(config, build_weightless(config, vocab_size), typed)


def explain_model(config: Config, model: Transformer, typed: set[str]) -> Explanation:
    """Of a model that was built from `config`, and may have been changed since."""
    reader = Reader(config)
    blocks = [dissect(reader, i, block) for i, block in enumerate(model.blocks)]
    return Explanation(
        config,
        blocks,
        [
            _equations(reader, model, blocks),
            _formulas(reader, model),
            norms(reader, model),
            coefficients(reader, model, blocks),
            deviations(config, model),
            parameters(config, model),
            choices(config, typed),
            others(config),
            _sources(config, reader, model),
            _warnings(config),
        ],
    )


def _equations(reader: Reader, model: Transformer, blocks: list[BlockAnatomy]) -> Section:
    """The placement's own; what the model makes instead, where that is another."""
    placement, depth = reader.placement, len(blocks)
    written = ends(reader, model)
    facts = [Fact("start", (written["start"],))]
    for i, block in enumerate(blocks):
        stated = placement.equation(i, depth)
        for part, made in block_equations(block).items():
            facts.append(Fact(part, (stated[part],), i))
            if not same(stated[part], made):
                facts.append(Fact(f"{part}, as built", (made,), i))
    facts.append(Fact("end", (written["end"],)))
    values = ", ".join(f"{key} = {value}" for key, value in reader.values.items())
    legend = (
        f"norm is {reader.shown('norm')}, each time with parameters of its own; f the sub-layer; "
        "E the embedding"
        + (", which is the head as well" if model.head is None else ", W the head")
    )
    return Section("Equations", ("", "", ""), facts, (legend, values))


def _formulas(reader: Reader, model: Transformer) -> Section:
    """Each norm that stands in the model: its formula, its numbers, what it learns."""
    facts = [fact for name in _used(reader, model) for fact in _formula(reader, name)]
    return Section("Norms", ("", "", ""), facts)


def _used(reader: Reader, model: Transformer) -> list[str]:
    """The names of the norms that stand somewhere."""
    there = {reader.name(module, width_of(model, name)) for name, module in norms_in(model)}
    return [name for name in ("norm", *reader.config["norms"]) if name in there]


def _formula(reader: Reader, name: str) -> Iterator[Fact]:
    config = reader.config
    spec = config["norm"] if name == "norm" else config["norms"][name]
    yield Fact(f"{reader.shown(name)}(x)", (str(spec.get("formula", "")),))
    width = config["model"]["width"]
    norm = norm_of(config, name)(width)
    numbers = {key: value for key, value in spec.items() if key not in NOT_ARGUMENTS}
    shown = [f"{key} = {_shown(value)}" for key, value in numbers.items()]
    for own, parameter in norm.named_parameters():
        count, start = parameter.numel(), float(parameter.detach().flatten()[0])
        many = "one a feature, from" if count > 1 else f"one number, at width {width} from"
        shown.append(f"{own}: {many} {start:.4g}")
    if epsilon(norm) and "eps" not in numbers:
        shown.append(f"eps = {epsilon(norm)}")
    yield Fact(
        f"{reader.shown(name)}'s numbers", ("; ".join(shown) or "nothing to choose or learn",)
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sources(config: Config, reader: Reader, model: Transformer) -> Section:
    placement = config["placement"]
    about, facts = config["about"], []
    if about["source"] != "none":
        facts.append(Fact(f"preset={config['choices']['preset']}", (about["source"],)))
    if about["unverified"] != "none":
        facts.append(Fact("not verified", (about["unverified"],)))
    facts += [Fact(f"placement={config['choices']['placement']}", (placement["source"],))]
    if placement.get("unverified"):
        facts.append(Fact("not verified", (placement["unverified"],)))
    for name in _used(reader, model):
        spec = config["norm"] if name == "norm" else config["norms"][name]
        if spec.get("source"):
            facts.append(Fact(f"norm={reader.shown(name)}", (spec["source"],)))
    return Section("Sources", ("", "", ""), facts)


def _warnings(config: Config) -> Section:
    return Section("Warnings", ("", "", ""), [Fact("", (text,)) for text in config["warnings"]])
