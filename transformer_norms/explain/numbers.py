"""What multiplies, what is drawn and what is decayed, as numbers for this depth and size."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from transformer_norms.explain.anatomy import Anatomy, BlockAnatomy, constant_scale
from transformer_norms.explain.facts import Fact, Section
from transformer_norms.explain.reading import Factor, Reader
from transformer_norms.formula import formula_values
from transformer_norms.model.initialization import InitRule
from transformer_norms.model.sites import REST_OF_B
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.optimizer import decayed, groups

Config = Mapping[str, Any]


def coefficients(reader: Reader, model: Transformer, blocks: list[BlockAnatomy]) -> Section:
    """Everything that multiplies: where its number comes from, the number, what is learned."""
    facts = []
    for i, block in enumerate(blocks):
        for site, standing in block.sites.items():
            if standing.scale is not None:
                facts.append(_fact(f"block {site} scale", standing.scale, i))
        for of in block.parts.values():
            facts += _of_sub_layer(of, i)
        facts += _of_attention(
            reader, model.get_submodule(f"blocks.{i}.attention.f"), block.parts["attention"], i
        )
    architecture = reader.config["architecture"]
    for symbol, thing in (("embed_scale", model.scale), ("logit_scale", model.logit_scale)):
        factor = reader.factor(symbol, thing, architecture[symbol], reader.values)
        if factor is not None:
            facts.append(_fact(symbol, factor, None))
    cap = getattr(model.cap, "cap", None)
    if cap is not None:
        facts.append(Fact("logit_cap", (f"{cap:g}", f"{cap:g}", "no")))
    heads = ("where", "what", "formula", "value", "learned")
    return Section("Coefficients", heads, along_depth(facts, 1))


def along_depth(facts: list[Fact], place: int) -> list[Fact]:
    """Where blocks differ in nothing but the cell at `place`, each says all of it, in their order:
    one line for the whole depth."""
    values: dict[tuple[Any, ...], list[str]] = {}

    def key(fact: Fact) -> tuple[Any, ...]:
        return fact.name, fact.cells[:place], fact.cells[place + 1 :]

    for fact in facts:
        values.setdefault(key(fact), []).append(str(fact.cells[place]))
    found = []
    for fact in facts:
        several = values[key(fact)]
        cell = fact.cells[place] if len(set(several)) == 1 else ", ".join(several)
        found.append(replace(fact, cells=(*fact.cells[:place], cell, *fact.cells[place + 1 :])))
    return found


def _of_sub_layer(of: Anatomy, i: int) -> Iterator[Fact]:
    for symbol, factor in of.factors.items():
        if symbol != "attention_scale":
            note = ", one for both sub-layers" if symbol == "b" and of.shared_b else ""
            yield _fact(f"{of.name} {symbol}", factor, i, note)
    for standing in of.sites.values():
        if standing.scale is not None:
            yield _fact(f"{of.name} {standing.scale.symbol}", standing.scale, i)


def _of_attention(reader: Reader, f: Any, of: Anatomy, i: int) -> Iterator[Fact]:
    learned, constant = of.factors.get("attention_scale"), constant_scale(f)
    if constant is not None:
        written = reader.config["architecture"]["attention_scale"]
        yield _fact("attention scale", reader.constant("scale", constant, written), i)
    elif learned is not None:
        yield _fact("attention scale", learned, i)
    if of.cap is not None:
        yield Fact("attention cap", (f"{of.cap:g}", f"{of.cap:g}", "no"), i)


def _fact(name: str, factor: Factor, block: int | None, note: str = "") -> Fact:
    learned = f"{factor.learned}{note}" if factor.learned else "no"
    learned = "with b" if factor.formula == REST_OF_B else learned
    kept = f"; {factor.kept}" if factor.kept else ""
    return Fact(name, (factor.formula, number(factor.value), learned + kept), block)


def number(value: float) -> str:
    return f"{value:.4g}"


def deviations(config: Config, model: nn.Module) -> Section:
    """The standard deviation that each weight is drawn with, and as a share of Xavier's."""
    rule, values = InitRule(**config["init"]), formula_values(config["model"])
    facts = []
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            rows, columns = module.weight.shape
            inside = re.match(r"blocks\.(\d+)\.(\w+)\.", name)
            deviation = rule.deviation(name, module, values)
            xavier = (2 / (rows + columns)) ** 0.5
            role = name.rpartition(".")[2]
            ratio = f" ({number(deviation / xavier)})" if isinstance(module, nn.Linear) else ""
            cells = (f"{rows} x {columns}", rule.formula(name).text, f"{number(deviation)}{ratio}")
            where = int(inside[1]) if inside else None
            facts.append(Fact(f"{inside[2]} {role}" if inside else role, cells, where))
    remarks = [
        f"init={config['choices']['init']}; Xavier's is sqrt(2/(fan_in + fan_out)); norms, biases "
        "and coefficients are not drawn"
    ]
    if rule.truncate is not None:
        remarks.append(f"drawn within {rule.truncate:g} deviations of the untruncated normal")
    constraint = config["placement"].get("weight_constraint", "none")
    if constraint != "none":
        remarks.append(f"then, and after every step, held at {constraint.replace('_', ' ')}")
    heads = ("where", "weight", "shape", "deviation", "value (of Xavier's)")
    return Section("Initialization", heads, along_depth(facts, 2), remarks)


def parameters(config: Config, model: nn.Module) -> Section:
    """The optimizer's groups: how many numbers each has, and what decays it."""
    optimizer = config["optimizer"]
    decays = decayed(model, optimizer["decay_norms"])
    facts = []
    for name, members in groups(model).items():
        count = sum(parameter.numel() for _, parameter in members)
        decay = f"{optimizer['weight_decay']:g}" if decays[name] and members else "no"
        facts.append(Fact(name, (len(members), count, decay)))
    tensors, count = (sum(int(fact.cells[n]) for fact in facts) for n in (0, 1))
    facts.append(Fact("all", (tensors, count, "")))
    on = "are" if decays["norms"] else "are not"
    remarks = [
        "matrices: weights inside blocks; tables: embeddings, positions, head; "
        "norms: all that norms and coefficients learn",
        f"norms {on} decayed (optimizer.decay_norms={str(optimizer['decay_norms']).lower()}, "
        f"optimizer={config['choices']['optimizer']})",
    ]
    if not decays["matrices"]:
        remarks.append("weights are not decayed, since a constraint holds their length")
    heads = ("where", "group", "tensors", "parameters", "weight decay")
    return Section("Parameters and decay", heads, facts, remarks)
