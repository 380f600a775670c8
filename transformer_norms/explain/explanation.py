"""An explanation as data: sections of facts about a block or about the model.

The text, and the comparison of two configs, show these facts and nothing else.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getdoc
from typing import Any

from torch import nn

from transformer_norms.config.building import build_model
from transformer_norms.config.checks.cautions import unverified, unverified_line
from transformer_norms.config.resolution import HENRYS_SCALE, NORM_KEYS
from transformer_norms.config.tree import AUTO_ARCHITECTURE, Config, chosen_value, flat
from transformer_norms.explain.anatomy import ATTENTION_SCALE, Anatomy, Factor, SubLayerParts
from transformer_norms.kinds import plain, value_at
from transformer_norms.model.architecture import PER_BLOCK, BlockChoices
from transformer_norms.model.assembly import norm_of
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.coefficient import LOW_RANK
from transformer_norms.model.initialization import rule_of
from transformer_norms.model.position import alibi_slopes
from transformer_norms.model.sites import HEAD_SITES
from transformer_norms.model.sizes import OF_BLOCKS
from transformer_norms.norms import NOT_ARGUMENTS
from transformer_norms.text_tables import show
from transformer_norms.training.averages import AVERAGES
from transformer_norms.training.measures import WORDS
from transformer_norms.training.parameter_groups import decay_by_group, factor_of, groups
from transformer_norms.training.probes import measure_start
from transformer_norms.training.schedule import SCHEDULES, shared_steps

Cell = str | int  # a whole number is a count, which adds up where blocks are alike
MEASURED = 20_000_000  # parameters up to which a model is built to measure its start
SIZES = {
    "model.kv_heads": "as many as model.heads",
    "model.head_dim": "model.width / model.heads",
    "trainer.tokens": "trainer.steps x trainer.batch_size x model.context",
    "data.val_tokens": "131,072, or fewer, so that val and test take a tenth of the run at most",
    "model.mlp_width": "4 x model.width, or 8/3 of it where the mlp is gated",
}


@dataclass(frozen=True)
class Fact:
    """The `cells` describe `name`. `block` is None for what belongs to no block."""

    name: str
    cells: tuple[Cell, ...]
    block: int | None = None


@dataclass(frozen=True)
class Section:
    """`heads` are the headings of block, name and cells; an empty heading has no column."""

    title: str
    facts: Sequence[Fact]
    remarks: Sequence[str] = ()
    heads: tuple[str, ...] = ("", "", "")


@dataclass(frozen=True)
class Explanation:
    anatomy: Anatomy
    sections: list[Section]


def explain(config: Config, vocab_size: int, typed: set[str]) -> Explanation:
    """Returns the explanation of a composed config; `typed` are the keys that the user typed."""
    anatomy = Anatomy(config, vocab_size)
    computed = equations, formulas, norms, coefficients, deviations, start, parameters
    sections = [section(anatomy) for section in computed]
    sections += [choices(anatomy, typed), other_choices(anatomy)]
    return Explanation(anatomy, [*sections, sources(anatomy), warnings(anatomy)])


def equations(anatomy: Anatomy) -> Section:
    """The equation of each block, as its placement states it, and what other keys add to it."""
    config, ends = anatomy.config, anatomy.ends()
    facts = [Fact("start", (ends["start"],))]
    for i, block in enumerate(anatomy.blocks):
        facts += [Fact(part, (text,), i) for part, text in anatomy.equations(i).items()]
        part = block["attention"]
        inside = (*_inside_attention(anatomy, part), *anatomy.value_terms(i))
        facts += [Fact("inside attention", (text,), i) for text in inside]
        texts = _per_block(config, part.own, "the mlp")
        facts += [Fact("inside the mlp", (text,), i) for text in texts]
    facts += [Fact(name, (text,)) for name, text in anatomy.connection().items()]
    facts.append(Fact("end", (ends["end"],)))
    tied = ", which is the head as well" if config.architecture.tied else ", W the head"
    name = anatomy.known_name("norm")
    own = "norm(x) is x" if name == "none" else "each time with separate parameters"
    remarks = [f"norm is {name}, {own}; f the sub-layer; E the embedding{tied}"]
    if anatomy.placement.topology == "dual":
        remarks.append("x and r are two streams, to which attention adds and then the mlp")
    if anatomy.joins:
        stated = ", ".join(f"{key}={value}" for key, value in anatomy.placement.connection.items())
        joined = "block" if "block" in anatomy.joins else "sub-layer"
        made = "what the block makes of read(X)" if joined == "block" else "the branch"
        remarks.append(f"X are the streams, u {made}; each {joined} has a connection, {stated}")
    for name, spec in anatomy.placement.learned.items():
        if spec["learn"] == LOW_RANK:
            change, factor = "norm(B A x)" if spec["normed"] else "B A x", spec["init"]
            whole = f"x + {change}" if factor == 1 else f"{factor} * (x + {change})"
            remarks.append(f"{name} * x is {whole}, A a matrix of {spec['rank']} rows")
    if anatomy.adds("start"):
        remarks.append("start is the stream as it entered the block")
    remarks.append(", ".join(f"{key} = {value}" for key, value in anatomy.values.items()))
    return Section("Equations", facts, remarks)


def _inside_attention(anatomy: Anatomy, part: SubLayerParts) -> Iterator[str]:
    """Yields what other keys put inside attention: norms on q, k and v, a stand-in norm, a cap, a
    gate, a bias by distance, a window, a chunk, a temperature."""
    config, norms = anatomy.config, part.norms
    for key, named in (("qk_norm", "qk"), ("v_norm", "v")):
        word = getattr(config, key)
        if word != "none" and named[0] in norms:
            norm = norms[named[0]]
            share = "" if norm.share == "head" else f"@{norm.share}"
            each = ", ".join(f"{site}={norm.name}{share}" for site in named if site in norms)
            yield f"{each} ({key}={word})"
    if config.qk_norm == config.v_norm == "none" and config.qkv != "norm":
        sites = [site for site in HEAD_SITES if site in norms and norms[site].name == config.qkv]
        if sites:
            run = config.choices.norm
            yield f"the norm at {', '.join(sites)} is {config.qkv}, since norm={run}"
    here = part.own
    own = {key: getattr(here.sizes, key) for key in OF_BLOCKS}
    if sizes := [
        f"{key}={size}" for key, size in own.items() if size != getattr(config.model, key)
    ]:
        yield f"{' '.join(sizes)} in these blocks"
    if anatomy.attention_cap:
        yield f"cap={anatomy.attention_cap} (architecture.attention_cap)"
    if (kind := config.attention.type) != "softmax" and (formula := getdoc(ATTENTIONS[kind])):
        yield f"attention={kind}: {re.sub(r' {2,}', ', ', formula.splitlines()[0])}"
    if (gate := config.architecture.attention_gate) != "none":
        each = {"elementwise": "each dimension of each head", "per_head": "each head"}[gate]
        yield (
            f"the heads before W_o are multiplied by sigmoid(W_g x), one gate for {each} "
            f"(architecture.attention_gate={gate})"
        )
    if anatomy.alibi:
        slopes = alibi_slopes(config.model.heads)
        texts = [f"{slope:.3g}" for slope in slopes]
        shown = " ".join(texts if len(texts) <= 4 else (*texts[:2], "...", texts[-1]))
        yield f"logits - slope * (query - key), slopes of the heads {shown} (position=alibi)"
    yield from _per_block(config, here, "attention")
    if (clip := config.trainer.qk_clip) != "none":
        grouped = here.sizes.kv_heads != here.sizes.heads
        shared = here.values_from_keys or part.shares_kv or grouped
        scaled = f"W_q times {clip:g}/S" if shared else f"W_q and W_k times sqrt({clip:g}/S)"
        step = f"after a step in which a head's largest logit is S > {clip:g}"
        yield f"{step}, {scaled} (trainer.qk_clip)"


def _per_block(config: Config, own: BlockChoices, inside: str) -> Iterator[str]:
    """Yields the sentence of each key with a number for each block, where none would be another
    number."""
    for key, declared in PER_BLOCK.items():
        there = declared.inside == inside and (own.source is None or not declared.of_keys)
        if declared.says and there:
            number, (unset,) = getattr(own, key), declared.numbers("none", [own.values])
            if number != unset:
                text = declared.says.format(number=number, own=own, config=config)
                yield f"{text} (architecture.{key})"


def formulas(anatomy: Anatomy) -> Section:
    """The formula, the settings and the learned numbers of each norm in the model."""
    facts = []
    for name in anatomy.norm_names():
        known = anatomy.known_name(name)
        facts.append(Fact(f"{known}(x)", (str(anatomy.norm_file(name).get("formula", "")),)))
        facts.append(Fact(f"{known}'s numbers", (_numbers(anatomy, name),)))
    return Section("Norms", facts)


def _numbers(anatomy: Anatomy, name: str) -> str:
    file, width = anatomy.norm_file(name), anatomy.width
    texts = [f"{key} = {_text(value)}" for key, value in file.items() if key not in NOT_ARGUMENTS]
    norm: Any = norm_of(anatomy.config, name, "attention")(width)  # as it starts
    for own, parameter in norm.named_parameters():
        if parameter.dim() > 1:
            shape = " x ".join(map(str, parameter.shape))
            texts.append(f"{own.removesuffix('.weight')}: a matrix, {shape}, which the init draws")
            continue
        start = float(parameter.detach().flatten()[0])
        many = (
            "one a feature, from" if parameter.numel() > 1 else f"one number, at width {width} from"
        )
        texts.append(f"{own}: {many} {start:.4g}")
    return "; ".join(texts) or "nothing to choose or learn"


def norms(anatomy: Anatomy) -> Section:
    """One fact for each norm, by its site, and the sums of their counts and parameters."""
    facts = []
    for norm, block in anatomy.norms():
        where: tuple[Cell, ...] = norm.site, anatomy.known_name(norm.name), str(norm.width)
        counts = norm.count, norm.count * norm.parameters
        facts.append(Fact(norm.module, (*where, norm.eps, *counts), block))
    total = [sum(int(fact.cells[n]) for fact in facts) for n in (-2, -1)]
    heads = ("where", "module", "site", "norm", "width", "eps", "norms", "parameters")
    every = Fact("all", ("", "", "", "", *total))
    return Section("Where norms are", [*facts, every], heads=heads)


# --------------------------------------------------------------------- what multiplies, and where


def coefficients(anatomy: Anatomy) -> Section:
    """Every factor that multiplies: its formula, its value, and its learned shape."""
    facts = []
    for i, block in enumerate(anatomy.blocks):
        for name, part in block.items():
            facts += [_fact(name, factor, i) for factor in part.factors.values()]
            if name == "attention" and (cap := anatomy.attention_cap):
                facts.append(Fact("attention cap", (cap, cap, "no"), i))
    facts += [_fact("", factor, None) for factor in anatomy.scales.values() if factor]
    if anatomy.logit_cap:
        facts.append(Fact("logit_cap", (anatomy.logit_cap, anatomy.logit_cap, "no")))
    heads = ("where", "what", "formula", "value", "learned")
    return Section("Coefficients", _merge_depths(facts, 1), heads=heads)


def _fact(part: str, factor: Factor, block: int | None) -> Fact:
    own_part = factor.symbol == ATTENTION_SCALE
    name = factor.symbol if own_part else f"{part} {factor.symbol}".strip()
    learned = f"with {factor.rest_of}" if factor.rest_of else factor.learned or "no"
    learned += ", one for both sub-layers" * factor.shared
    learned += f"; {factor.stored}" if factor.stored else ""
    return Fact(name, (factor.formula, f"{factor.value:.4g}", learned), block)


def _merge_depths(facts: list[Fact], place: int) -> list[Fact]:
    """Facts of blocks that differ in the cell at `place` alone each get the list of its values, in
    the order of the blocks, and so become one line of the text."""
    values: dict[tuple[Any, ...], list[str]] = {}

    def key(fact: Fact) -> tuple[Any, ...]:
        return fact.name, fact.cells[:place], fact.cells[place + 1 :]

    for fact in facts:
        values.setdefault(key(fact), []).append(str(fact.cells[place]))
    merged = []
    for fact in facts:
        several = values[key(fact)]
        cell = fact.cells[place] if len(set(several)) == 1 else ", ".join(several)
        merged.append(replace(fact, cells=(*fact.cells[:place], cell, *fact.cells[place + 1 :])))
    return merged


def deviations(anatomy: Anatomy) -> Section:
    """The standard deviation of each weight when it is drawn, and its ratio to Xavier's."""
    config = anatomy.config
    rule, facts = rule_of(config.init), []
    for name, module in anatomy.model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            rows, columns = module.weight.shape
            inside = re.match(r"blocks\.(\d+)\.(\w+)\.", name)
            deviation = rule.deviation(name, module, config.model)
            xavier = (2 / (rows + columns)) ** 0.5
            role = name.rpartition(".")[2]
            ratio = f" ({deviation / xavier:.4g})" if isinstance(module, nn.Linear) else ""
            formula = rule.formula(name, module).text
            cells = (f"{rows} x {columns}", formula, f"{deviation:.4g}{ratio}")
            where = int(inside[1]) if inside else None
            facts.append(Fact(f"{inside[2]} {role}" if inside else role, cells, where))
    remarks = [
        f"init={config.choices.init}; Xavier's is sqrt(2/(fan_in + fan_out)); norms, biases "
        "and coefficients are not drawn"
    ]
    if rule.truncate is not None:
        remarks.append(f"drawn within {rule.truncate:g} deviations of the untruncated normal")
    constraint = anatomy.placement.weight_constraint
    if constraint != "none":
        remarks.append(f"then, and after every step, held at {constraint.replace('_', ' ')}")
    heads = ("where", "weight", "shape", "deviation", "value (of Xavier's)")
    return Section("Initialization", _merge_depths(facts, 2), remarks, heads)


def start(anatomy: Anatomy) -> Section:
    """Three numbers of the model before it is trained, as they are measured on random tokens."""
    count = sum(parameter.numel() for parameter in anatomy.model.parameters())
    if count > MEASURED:
        line = f"not measured above {MEASURED:,} parameters; a run's summary.json has it (start)"
        return Section("Start", [Fact("", (line,))])
    numbers = measure_start(build_model(anatomy.config, anatomy.model.vocab_size))
    facts = [Fact(word, ("not finite" if n is None else f"{n:.3g}",)) for word, n in
             zip(WORDS, numbers, strict=True)]  # fmt: skip
    remark = (
        "measured on random tokens before training; branch / stream is the mean over sub-layers of "
        "the rms of what one adds over the rms of what it adds to"
    )
    return Section("Start", facts, [remark])


def parameters(anatomy: Anatomy) -> Section:
    """The optimizer's groups of parameters: their counts, learning rates and weight decay."""
    config, model = anatomy.config, anatomy.model
    optimizer = config.optimizer
    decays = decay_by_group(model, optimizer.decay_norms, optimizer.decay_embeddings)
    facts = []
    for name, members in groups(model).items():
        count = sum(parameter.numel() for _, parameter in members)
        factor = optimizer.get("lr_factor", {}).get(name, 1)
        rates = {optimizer.lr * factor_of(model, key, factor) for key, _ in members}
        decay = f"{optimizer.weight_decay:g}" if decays[name] and members else "no"
        rate = ", ".join(f"{rate:.3g}" for rate in sorted(rates, reverse=True))
        facts.append(Fact(name, (len(members), count, rate, decay)))
    tensors, count = (sum(int(fact.cells[n]) for fact in facts) for n in (0, 1))
    facts.append(Fact("all", (tensors, count, "", "")))
    on = "are" if decays["norms"] else "are not"
    remarks = [
        "matrices: weights of sub-layers and inside norms; embeddings: of tokens and of positions; "
        "head: if it is its own; norms: all else that norms and coefficients learn",
        f"norms {on} decayed (optimizer.decay_norms={_text(optimizer.decay_norms)}, "
        f"optimizer={config.choices.optimizer})",
    ]
    if not decays["matrices"]:
        remarks.append("weights are not decayed, since a constraint holds their length")
    if (average := config.trainer.average) != "none":
        formula = (AVERAGES[average.type].__doc__ or average.type).strip().partition("\n")[0]
        remarks.append(f"evaluated, too: {formula} (trainer.average={{{show(average)}}})")
    steps = config.trainer.steps
    for shorter in [one for one in config.trainer.horizons if one < steps][-1:]:
        shared = shared_steps(SCHEDULES.maker(config.schedule), shorter, steps)
        line = f"a branch: begins after step {shared} of the run of trainer.steps={shorter}"
        remarks.append(f"{line}, where that has run; the same result as from step 0")
    heads = ("where", "group", "tensors", "parameters", "peak rate", "weight decay")
    return Section("Parameters, rates and decay", facts, remarks, heads)


# ---------------------------------------------------------------------------------- who chose what


def choices(anatomy: Anatomy, typed: set[str]) -> Section:
    """The value of every key that may be auto, and who chose it."""
    config = anatomy.config
    factors = [f"optimizer.lr_factor.{group}" for group in config.optimizer.get("lr_factor", {})]
    keys = ("init", *NORM_KEYS, *AUTO_ARCHITECTURE, *factors, *SIZES)
    facts = [Fact(key, (_text(_value(config, key)), _chooser(anatomy, key, typed))) for key in keys]
    facts += [Fact(key, (_text(value_at(config, key)), reason)) for key, reason in _horizon(config)]
    return Section("What auto became", facts, heads=("where", "key", "value", "chosen by"))


def _horizon(config: Config) -> Iterator[tuple[str, str]]:
    """Yields the keys that were given in other units than the run has, and what gave them."""
    chosen = config.chosen
    if chosen.trainer.tokens != "auto":
        yield "trainer.steps", f"trainer.tokens={chosen.trainer.tokens:.6g}"
    warmup = chosen.schedule.get("warmup")
    if warmup != config.schedule.get("warmup"):
        yield "schedule.warmup", f"{warmup:g} of trainer.steps={config.trainer.steps}"


def _value(config: Config, key: str) -> Any:
    return config.choices.init if key == "init" else value_at(config, key)


def _chooser(anatomy: Anatomy, key: str, typed: set[str]) -> str:
    """Who chose a key's value: the user, else the preset, the placement, the norm, or a rule."""
    config = anatomy.config
    word, value = chosen_value(config.chosen, key), _value(config, key)
    short = key.rpartition(".")[2]
    if word not in ("auto", value) and word != "always":
        sites = "v norm" if key == "v_norm" else "q and k norms"
        return f"the placement's own {sites}, before the preset's {word}"
    if word != "auto":
        return _by_hand(config, key, typed) + (": always" if word == "always" else "")
    if key.startswith("optimizer.") and short in config.init.get("lr_factor", {}):
        return f"init={config.choices.init}, whose rates these are"
    if config.embed == "fixnorm" and short == "embed_scale":
        return "embed=fixnorm, whose paper scales so"
    brought = {
        "placement": anatomy.placement.brings,
        "norm": config.norm.get("brings", {}),
        "init": config.init.get("brings", {}),
    }
    for axis, brings in brought.items():
        if value in (brings.get(short), brings.get(f"tied_{short}")):
            return f"{axis}={config.choices[axis]}, which brings it"
    if key == "final_norm":
        if anatomy.placement.ends_normed(anatomy.depth):
            return "auto: the last block ends in a norm, so that none is wanted before the head"
        return "auto: the stream leaves the last block without a norm"
    if short == "attention_scale" and value == HENRYS_SCALE:
        return "auto: queries and keys have length 1, and want a learned scale"
    return f"auto: {SIZES.get(key, 'the default')}"


def _by_hand(config: Config, key: str, typed: set[str]) -> str:
    if key in typed:
        return "you typed it"
    axis = key.partition(".")[0]
    if axis not in ("model", "data", "optimizer"):
        axis = "recipe" if axis == "trainer" else "preset"
    return "the saved run" if "config" in typed else f"{axis}={config.choices[axis]}"


def other_choices(anatomy: Anatomy) -> Section:
    """The choices that no other section shows: sizes, positions, mlp, biases."""
    config = anatomy.config
    rotary, facts = config.position.type == "rope", []
    for node in ("model", "attention", "mlp", "position", "architecture"):
        values = plain(getattr(config, node))
        for key, value in (flat(values) if node == "position" else values).items():
            name = f"{node}.{key}"
            if name not in (*SIZES, *AUTO_ARCHITECTURE) and (rotary or "rope_" not in key):
                facts.append(Fact(name, (_text(value),)))
    if rotary:
        for i, base in enumerate(own.rope_base for own in config.blocks):
            facts.append(Fact("rotary base", (f"{base:g}" if base else "0: not rotated",), i))
    return Section("Other choices", facts, heads=("where", "key", "value"))


def sources(anatomy: Anatomy) -> Section:
    """Where each choice is published, and what of it could not be verified."""
    config, placement = anatomy.config, anatomy.placement
    about, named = config.about, config.choices
    texts = {
        f"recipe={named.recipe}": about.recipe_source,
        f"preset={named.preset}": about.source,
        f"placement={named.placement}": placement.source,
        f"init={named.init}": config.init.get("source", ""),
        f"attention={named.attention}": config.attention.get("source", ""),
    }
    for name in anatomy.norm_names():
        texts[f"norm={anatomy.known_name(name)}"] = anatomy.norm_file(name).get("source", "")
    doubts = unverified(config, placement)
    facts = []
    for choice in dict.fromkeys([*texts, *doubts]):
        for name, text in ((choice, texts.get(choice)), ("not verified", doubts.get(choice))):
            facts += [Fact(name, (text,))] if text not in (None, "", "none") else []
    return Section("Sources", facts)


def warnings(anatomy: Anatomy) -> Section:
    """The warnings, without those that the sources have at their full length."""
    doubts = unverified(anatomy.config, anatomy.placement).items()
    whole = {unverified_line(choice, text) for choice, text in doubts}
    lines = [line for line in anatomy.config.warnings if line not in whole]
    return Section("Warnings", [Fact("", (line,)) for line in lines])


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "learn" not in value:
        return ", ".join(f"{_text(each)} at {place}" for place, each in value.items())
    if isinstance(value, Mapping):
        more = "".join(f", {k} {v}" for k, v in value.items() if k not in ("learn", "init"))
        return f"a learned {value['learn']} from {value['init']}{more}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
