"""Writes attention, mlp, block and model as classes of plain torch, each with what a module of the
run has. Nothing is computed: a module turns the text of its input into the text of its output."""

import ast
import inspect
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from transformer_norms.hf.plain_torch.plain_sources import expression, filled
from transformer_norms.model import coefficient as factors
from transformer_norms.model.attentions.heads import AllHeads, PerHead
from transformer_norms.model.mlp import ACTIVATIONS
from transformer_norms.model.sites import NORMED
from transformer_norms.names import parameters
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.matrix import Matrix

WIDTH, HEAD_DIM, INNER = "config.width", "config.head_dim", "config.mlp_width"
HEADS = {"query": "config.heads", "key": "config.kv_heads", "value": "config.kv_heads"}
OF_HEADS = f"{HEADS['query']} * {HEAD_DIM}"
# A learned factor as it is used, by the function of its parameter.
LEARNED = {factors.FUNCTIONS[name]: text for name, text in (
    ("same", "{}"), ("absolute", "torch.abs({})"), ("square", "torch.square({})"),
    ("one_minus_silu", "(1 - F.silu({}))"))}  # fmt: skip


class ClassText:
    """A class of the file: the texts that build its attributes, and the statements of its forward.

    `things` has the modules, parameters and parts of the run by their names here. `i` is the number
    of its block. Its numbers are fields of the config, whose names begin with the `prefix`.
    """

    def __init__(self, file: Any, i: Any = None, prefix: str = "") -> None:
        self.file, self.i, self.prefix = file, i, prefix
        self.built, self.things = dict[str, str](), dict[str, Any]()
        self.lines: list[str] = []

    def finish(self, kind: str, document: str, takes: Sequence[str]) -> "ClassText":
        """Adds the class to the file. Its forward takes those of `takes` that it uses."""
        every = "\n".join([*self.built.values(), *self.lines])
        self.takes = [one for one in takes if re.search(rf"\b{one}\b", every)]
        self.given = "config, i" if self.i is not None and re.search(r"\bi\b", every) else "config"
        names = sorted(self.built, key=lambda name: self.built[name].startswith("config"))
        lines = [f"def __init__(self, {self.given}):", "    super().__init__()"]
        lines += [f"    self.{name} = {self.built[name]}" for name in names]
        lines += ["", f"def forward(self, {', '.join(self.takes)}):"]
        text = "\n".join(f"    {line}" for line in [*lines, *(f"    {one}" for one in self.lines)])
        kinds, key = [one for one, *_ in self.file.classes], (kind, document, text)
        new = f"{kind}{kinds.count(kind) + 1 if kind in kinds else ''}"
        self.name, blocks = self.file.classes.setdefault(key, (new, []))
        blocks.append(self.i)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers by the names that they have in the class. A matrix
        inside a norm is a parameter of the written norm."""
        found: dict[str, Tensor] = {}
        for name, thing in self.things.items():
            if isinstance(thing, Tensor):
                found[name] = thing
            elif isinstance(thing, ClassText):
                found |= {f"{name}.{key}": one for key, one in thing.tensors().items()}
            elif isinstance(thing, nn.Module):
                inner = {key for key, one in thing.named_modules() if isinstance(one, Matrix)}
                for key, one in thing.state_dict(keep_vars=True).items():
                    owner = key.rpartition(".")[0]
                    found[f"{name}.{owner if owner in inner else key}"] = one
        return found

    def own(self, name: str, thing: Any, text: str) -> str:
        """Adds an attribute, and returns `self.NAME`."""
        self.things[name], self.built[name] = thing, text
        return f"self.{name}"

    def number(self, name: str, value: Any) -> str:
        """Adds a number, which is a field of the config."""
        self.built[name] = self.file.number(self.prefix + name, value, self.i)
        return f"self.{name}"

    def linear(self, name: str, linear: Any, reads: str, writes: str) -> str:
        bias = linear.bias is not None
        return self.own(name, linear, f"nn.Linear({reads}, {writes}, bias={bias})")

    def parameter(self, name: str, tensor: Tensor, sizes: Sequence[str]) -> str:
        """Adds a parameter. One that is used twice has one name."""
        name = next((key for key, one in self.things.items() if one is tensor), name)
        start, text = float(f"{float(tensor.detach().flatten()[0]):.7g}"), ""
        if start not in (0, 1):
            text = self.file.number(f"{self.prefix}{name}_start", start, self.i)
        shape = ", ".join("1" if n == 1 else s for n, s in zip(tensor.shape, sizes, strict=False))
        return self.own(name, tensor, f"nn.Parameter({filled(shape, start, text)})")

    def connection(self, name: str, part: Any, index: str = "") -> str:
        """Adds a connection, or one of its ends, which takes by name what it needs."""
        file, takes, joins = self.file, parameters(part.__class__), len(self.file.placement.joins)
        texts = {"width": WIDTH, "index": index, "l": "i + 1", "depth": "config.depth",
                 "count": f"{joins} * config.depth".removeprefix("1 * "),
                 "vocab_size": "config.vocab_size"}  # fmt: skip
        texts |= {key: file.number(f"connection_{key}", file.placement.connection[key])
                  for key in takes if key in file.placement.connection}  # fmt: skip
        if "norm" in takes:
            texts["norm"] = file.sources.norm_maker()
        if "activation" in takes:
            texts["activation"] = file.sources.copy(ACTIVATIONS[file.config.mlp.activation])
        if "final" in takes:
            texts["final"] = file.sources.norm(part.norm, WIDTH)
        words = [f"{key}=" * (one.kind is one.KEYWORD_ONLY) + texts[key]
                 for key, one in takes.items()]  # fmt: skip
        return self.own(name, part, f"{file.sources.copy(type(part))}({', '.join(words)})")

    def apply(self, name: str, thing: Any, x: str, sizes: Sequence[str] = (WIDTH,)) -> str:
        """Returns the text of `thing(x)`, where `thing` is the attribute `name`. `sizes` are those
        of x: the features, or the heads and their features."""
        match thing:
            case _ if thing is nothing:
                return x
            case factors.Scaled():
                x = self.apply(name, thing.norm, x, sizes)
                scale = factors.Times(1.0) if thing.scale is nothing else thing.scale
                return self.apply(f"{name}_scale", scale, x, sizes)  # also 1 in this block
            case factors.OneMinusBranch():
                return f"{x} - {self.apply(name, thing.branch, x, sizes)}"
            case factors.Times():
                return product(self.number(name, float(thing.value)), x)
            case factors.Learned():
                gain = self.parameter(name, thing.gain, sizes)
                if thing.factor != 1:
                    gain = f"{self.number(f'{name}_factor', float(thing.factor))} * {gain}"
                used = LEARNED[thing.function].format(gain)
                return f"scale_forward({x}, {used})" if thing.preserves else product(used, x)
            case factors.LowRank():
                rank = self.file.number("rank", thing.left.out_features)
                y = f"{self.linear(f'{name}_left', thing.left, WIDTH, rank)}({x})"
                y = f"{self.linear(f'{name}_right', thing.right, rank, WIDTH)}({y})"
                y = self.apply(f"{name}_norm", thing.norm, y)
                return product(self.number(f"{name}_scale", thing.scale), f"{x} + {y}")
            case AllHeads():
                norm = self.file.sources.norm(thing.norm, " * ".join(sizes))
                y = f"{self.own(name, thing.norm, norm)}({x}.flatten(2))"
                return f"{y}.unflatten(2, (-1, self.head_dim))"
            case PerHead():
                norm = self.file.sources.norm(thing.heads[0], HEAD_DIM)
                norm = f"nn.ModuleList({norm} for _ in range({sizes[0]}))"
                each = f"zip({self.own(name, thing.heads, norm)}, {x}.unbind(2), strict=True)"
                return f"torch.stack([norm(y) for norm, y in {each}], 2)"
        return f"{self.own(name, thing, self.file.sources.norm(thing, sizes[-1]))}({x})"


def product(factor: str, x: str) -> str:
    return f"{factor} * ({x})" if isinstance(expression(x), ast.BinOp) else f"{factor} * {x}"


def attention_class(file: Any, attention: Any, i: int) -> ClassText:
    own, (rotation,) = ClassText(file, i, "attention_"), attention.turn.args
    own.built["head_dim"] = HEAD_DIM
    order, rotate = inspect.unwrap(attention.turn.func), "rotate({}, {})".format
    for name, heads in HEADS.items():
        linear = own.linear(name, getattr(attention, name), WIDTH, f"{heads} * {HEAD_DIM}")
        own.lines.append(f"{(site := name[0])} = {linear}(x).unflatten(-1, (-1, self.head_dim))")
        sizes, turns = (heads, HEAD_DIM), site != "v" and rotation is not nothing
        norm = partial(own.apply, f"{site}_norm", getattr(attention, site), sizes=sizes)
        x = order(rotate if turns else nothing, norm, site, "angles")
        x = own.apply("query_scale", attention.scale, x, sizes) if site == "q" else x
        own.lines += [f"{site} = {x}"] * (x != site)
    own.lines.append("q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # batch, heads, time, dims")
    if attention.groups > 1:
        own.built["groups"] = f"{HEADS['query']} // {HEADS['key']}"
        own.lines.append("k, v = (t.repeat_interleave(self.groups, 1) for t in (k, v))")
    scale, cap = own.number("scale", attention.attend.scale), attention.attend.cap
    y = f"F.scaled_dot_product_attention(q, k, v, is_causal=True, scale={scale})"
    if cap is not None:
        y = f"capped_attention(q, k, v, {scale}, {own.number('cap', cap)})"
    own.lines += [f"y = {y}", "y = y.transpose(1, 2)"]
    y = own.apply("head_norm", attention.head_norm, "y", (HEADS["query"], HEAD_DIM))
    y = own.apply("head_scale", attention.head_scale, y, (HEADS["query"], HEAD_DIM))
    own.lines += [f"y = {y}"] * (y != "y")
    y = own.apply("ctx_norm", attention.ctx, "y.flatten(2)", [OF_HEADS])
    own.lines.append(f"return {own.linear('output', attention.output, OF_HEADS, WIDTH)}({y})")
    return own.finish("Attention", "Causal self-attention.", ["x", "angles"])


def mlp_class(file: Any, mlp: Any, i: int) -> ClassText:
    own = ClassText(file, i, "mlp_")

    def hidden(name: str) -> str:
        x = f"{own.linear(name, getattr(mlp, name), WIDTH, INNER)}(x)"
        x = own.apply(f"{name}_norm", getattr(mlp, f"{name}_norm"), x, [INNER])
        return own.apply(f"{name}_scale", getattr(mlp, f"{name}_scale"), x, [INNER])

    y = f"{file.sources.copy(mlp.activation)}({hidden('gate' if mlp.gated else 'up')})"
    y = product(y, hidden("up")) if mlp.gated else y
    y = own.apply("mid_norm", mlp.mid, y, [INNER])
    own.lines = [f"return {own.linear('down', mlp.down, INNER, WIDTH)}({y})"]
    return own.finish("MLP", f"The {'gated ' * mlp.gated}feed-forward network.", ["x"])


class BlockText(ClassText):
    """A block, whose forward is the arithmetic of its equations, as model/block.py has it."""

    def __init__(self, file: Any, block: Any, i: int) -> None:
        super().__init__(file, i)
        self.block, self.plans = block, file.placement.plans(i, file.config.model.depth)
        topology = file.placement.topology
        if topology == "parallel":
            if (h := self.apply("norm", block.pre, "x")) != "x":
                self.lines, h = [f"h = {h}"], "h"
            updates = [self.update(kind, self.at(kind, "pre", h)) for kind in SUB_LAYERS]
            self.lines.append(f"return x + {' + '.join(updates)}")
        elif topology == "serial":
            self.write_serial()
        elif topology == "blocks":
            connection = self.connection("connection", block.connection, "i")
            self.lines.append(f"x = {connection}.read(streams)")
            self.write_serial()
            self.lines.append(f"return {connection}.write(streams, x)")
        else:
            self.write_streams(topology == "dual")
        self.lines[-1] = re.sub(r"^(x|streams) =", "return", self.lines[-1])
        self.finish("Block", file.document(i), [file.stream, *file.given])

    def write_serial(self) -> None:
        begin = len(self.lines)
        for kind, start in zip(SUB_LAYERS, ("x", "start"), strict=True):
            own, x, self.earlier = getattr(self.block, kind), "x", {"start": start, "x0": "x0"}
            if own.enter is not nothing:
                self.lines.append(f"h = {self.at(kind, 'enter', 'x')}")
                x = "h"
            h = self.at(kind, "pre", x)
            if NORMED in getattr(own.skip, "names", ()):
                self.lines.append(f"{'h' if x == 'x' else 'normed'} = {h}")
                h = "h" if x == "x" else "normed"
            self.earlier[NORMED] = h
            convex = isinstance(own.skip, factors.OneMinusBranch)
            less = f" - {x}" * (convex and isinstance(own.branch, factors.Times | factors.Learned))
            skip = x if less else self.at(kind, "skip", x)
            y = f"{skip} + {self.update(kind, h, less)}"
            self.lines.append(f"x = {self.at(kind, 'post', y)}")
        uses = re.search(r"\bstart\b", "\n".join(self.lines))
        self.lines[begin:begin] = ["start = x"] * bool(uses)

    def write_streams(self, dual: bool) -> None:
        for n, kind in enumerate(SUB_LAYERS):
            u = self.update(kind, self.at(kind, "pre", "x"))
            if dual:
                self.lines += [f"u = {u}", f"x, r = {self.at(kind, 'post', 'x + u')}, r + u"]
                continue
            connection = getattr(self.block, kind).connection
            own = self.connection(f"{kind}_connection", connection, f"2 * i{' + 1' * n}")
            self.lines += [f"x = {own}.read(streams)", f"streams = {own}.write(streams, {u})"]
        if dual:
            self.lines = ["x, r = streams", *self.lines, "return x, r"]

    def update(self, kind: str, h: str, less: str = "") -> str:
        """Returns what a sub-layer adds to the stream, with `less` inside its factor."""
        part = SUB_LAYERS[kind](self.file, getattr(self.block, kind).f, self.i)
        f = self.own(kind, part, f"{part.name}({part.given})")
        y = self.at(kind, "out", f"{f}({', '.join([h, *part.takes[1:]])})")
        return self.at(kind, "branch", y + less)

    def at(self, kind: str, slot: str, x: str, thing: Any = None) -> str:
        """Returns what the part of a sub-layer at a slot makes of x."""
        own, plan = getattr(self.block, kind), self.plans[kind]
        thing = getattr(own, slot) if thing is None else thing
        if isinstance(thing, factors.WeightedSum):
            terms = [] if thing.skip is None else [self.at(kind, slot, x, thing.skip)]
            for term in thing.names:
                scale, key = getattr(thing, term), "enter." * (slot == "enter") + term
                scale = scale.scale if isinstance(scale, factors.ScaledNorm) else scale
                terms.append(self.at(kind, key, self.earlier[term], scale))
            return " + ".join(terms)
        slot = "branch" if isinstance(thing, factors.OneMinusBranch) else slot
        key = {"skip": "a", "branch": "b", "enter": "enter.x"}.get(slot, slot)
        name = f"{kind}_{plan.names.get(key, slot.replace('.', '_'))}"
        if slot in SITES and thing is not nothing:
            others = [one for one in SITES if getattr(own, one) is not nothing]
            name = f"{kind}_norm" if len(others) == 1 else f"{kind}_{slot}_norm"
        # A factor that is 1 in this block is written, so that blocks of one equation are alike.
        if isinstance(plan.scales.get(key), str) and thing is nothing:
            thing = factors.Times(1.0)
        return self.apply(name, thing, x)


SUB_LAYERS, SITES = {"attention": attention_class, "mlp": mlp_class}, ("pre", "out", "post")


def model_class(file: Any, model: Any) -> tuple[ClassText, list[BlockText]]:
    """Writes all classes. Returns that of the model, and those of its blocks."""
    own, stream, given = ClassText(file), file.stream, file.given
    own.own("embedding", model.embedding, f"nn.Embedding(config.vocab_size, {WIDTH})")
    x, add = own.apply("row_norm", model.rows, "self.embedding(tokens)"), "{} + {}".format
    positions = "self.positions.weight[: tokens.shape[1]]"
    if file.config.position.type == "learned":
        own.own("positions", model.position.position, f"nn.Embedding(config.context, {WIDTH})")
    scale, learned = partial(own.apply, "embed_scale", model.scale), "positions" in own.built
    x = inspect.unwrap(model.enter_positions)(add if learned else nothing, scale, x, positions)
    own.lines.append(f"x = {own.apply('embedding_norm', model.embed, x)}")
    own.lines += ["x0 = x"] * ("x0" in given)
    if "angles" in given:
        base = file.number("rope_base", file.config.blocks[0].rope_base)
        own.built["config"] = "config"
        own.lines.append(f"angles = rotary(x, self.{base}, self.{HEAD_DIM})")
    if model.enter is not nothing:
        own.lines.append(f"streams = {own.connection('enter', model.enter)}(x, tokens)")
    blocks = [BlockText(file, block, i) for i, block in enumerate(model.blocks)]
    own.things |= {f"blocks.{i}": block for i, block in enumerate(blocks)}
    each = [f"{block.name}({block.given})" for block in blocks]
    text = f"{each[0]} for {'i' if ', i' in each[0] else '_'} in range(config.depth)"
    if len({*each}) > 1:
        each = [one.replace(", i", f", {i}") for i, one in enumerate(each)]
        text = f"[{', '.join(each)}]"
    own.built["blocks"] = f"nn.ModuleList({text})"
    call = f"    {stream} = block({', '.join([stream, *given])})"
    own.lines += ["for block in self.blocks:", call]
    leave = own.connection("leave", model.final) if stream == "streams" else ""
    x = f"{leave}(streams)" if leave else own.apply("final_norm", model.final, "x")
    own.lines += [f"x = {x}"] * (x != "x")
    head, bias = "self.embedding", ""
    if model.head is not None:
        head = own.linear("head", model.head, WIDTH, "config.vocab_size")
        bias = "" if model.head.bias is None else f", {head}.bias"
    logits = f"F.linear(x, {own.apply('row_norm', model.rows, f'{head}.weight')}{bias})"
    logits = f"{head}(x)" if model.head is not None and model.rows is nothing else logits
    logits = own.apply("logit_scale", model.logit_scale, logits, ["config.vocab_size"])
    own.lines.append(f"return {logits}")
    return own.finish("Model", "[batch, time] -> [batch, time, vocab_size]", ["tokens"]), blocks
