"""Writes attention, mlp, block and model as classes of plain torch, each from a module as it was
built: the class has what this module has, and nothing else. Nothing is computed here. An expression
is a text, and a module of the run turns the text of its input into the text of its output.
"""

import ast
import inspect
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from transformer_norms.hf.plain_torch.copying import expression
from transformer_norms.hf.plain_torch.norm_classes import filled
from transformer_norms.model import coefficient as factors
from transformer_norms.model.attentions.heads import AllHeads, PerHead
from transformer_norms.model.mlp import ACTIVATIONS
from transformer_norms.model.position import ORDERS
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

    `things` has the modules, parameters and parts of the run by the names that they have here. `i`
    is the number of the block that the class is in. The numbers of the class are fields of the
    config, named with the `prefix`.
    """

    def __init__(self, file: Any, i: int | None = None, prefix: str = "") -> None:
        self.file, self.i, self.prefix = file, i, prefix
        self.built, self.things = dict[str, str](), dict[str, Any]()
        self.lines: list[str] = []
        self.given, self.takes = "config", list[str]()

    def finish(self, kind: str, document: str, takes: Sequence[str]) -> "ClassText":
        """Adds the class to the file. Its forward takes those of `takes` that it uses."""
        every = "\n".join([*self.built.values(), *self.lines])
        self.takes = [one for one in takes if re.search(rf"\b{one}\b", every)]
        if re.search(r"\bi\b", every) or (kind == "Block" and self.file.indexed):
            self.given = "config, i" if self.i is not None else "config"
        names = sorted(self.built, key=lambda name: name not in self.things)  # numbers come last
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

    def number(self, name: str, value: Any, text: str = "") -> str:
        """Adds a number, which is a field of the config or a `text` of fields."""
        self.built[name] = text or self.file.number(self.prefix + name, value, self.i)
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
        each = zip(tensor.shape, sizes, strict=False)
        shape = ", ".join("1" if n == 1 else size for n, size in each)
        return self.own(name, tensor, f"nn.Parameter({filled(shape, start, text)})")

    def norm(self, name: str, norm: Any, width: str) -> str:
        return self.own(name, norm, self.file.norms.of_model(norm, width))

    def connection(self, name: str, part: Any, index: str = "") -> str:
        """Adds a connection, or one of its ends, which takes by name what it needs."""
        file, takes, joins = self.file, parameters(type(part)), len(self.file.placement.joins)
        known = {"width": WIDTH, "index": index, "l": "i + 1", "depth": "config.depth",
                 "count": f"{joins} * config.depth" if joins > 1 else "config.depth",
                 "vocab_size": "config.vocab_size"}  # fmt: skip
        if "norm" in takes:
            known["norm"] = file.norms.maker()
        if "activation" in takes:
            known["activation"] = file.copy(ACTIVATIONS[file.config.mlp.activation])
        if "final" in takes:
            final = part.norm is not nothing and file.norms.of_model(part.norm, WIDTH)
            known["final"] = final or "nn.Identity()"
        words = []
        for key, one in takes.items():
            value = file.placement.connection.get(key)
            text = known.get(key) or file.number(f"connection_{key}", value)
            words.append(f"{key}={text}" if one.kind is one.KEYWORD_ONLY else text)
        return self.own(name, part, f"{file.copy(type(part))}({', '.join(words)})")

    def apply(self, name: str, thing: Any, x: str, *sizes: str) -> str:
        """Returns the text of `thing(x)`, where `thing` is the attribute `name`. `sizes` are those of
        x: the features, or the heads and their features."""
        match thing:
            case _ if thing is nothing:
                return x
            case factors.Scaled():
                x = self.apply(name, thing.norm, x, *sizes)
                return self.apply(f"{name}_scale", thing.scale, x, *sizes)
            case factors.OneMinusBranch():
                return f"{x} - {self.apply(name, thing.branch, x, *sizes)}"
            case factors.Times():
                return product(self.number(name, float(thing.value)), x)
            case factors.Learned():
                gain = self.parameter(name, thing.gain, sizes)
                gain = gain if thing.factor == 1 else f"{thing.factor!r} * {gain}"
                used = LEARNED[thing.function].format(gain)
                return f"scale_forward({x}, {used})" if thing.preserves else product(used, x)
            case factors.LowRank():
                rank = self.file.number("rank", thing.left.out_features)
                y = f"{self.linear(f'{name}_left', thing.left, WIDTH, rank)}({x})"
                y = f"{self.linear(f'{name}_right', thing.right, rank, WIDTH)}({y})"
                y = self.apply(f"{name}_norm", thing.norm, y, WIDTH)
                return product(self.number(f"{name}_scale", thing.scale), f"{x} + {y}")
            case AllHeads():
                y = f"{self.norm(name, thing.norm, ' * '.join(sizes))}({x}.flatten(2))"
                return f"{y}.unflatten(2, (-1, self.head_dim))"
            case PerHead():
                self.norm(name, thing.heads[0], HEAD_DIM)
                norms = f"nn.ModuleList({self.built[name]} for _ in range({sizes[0]}))"
                norms = self.own(name, thing.heads, norms)
                return f"torch.stack([f(y) for f, y in zip({norms}, {x}.unbind(2))], 2)"
        return f"{self.norm(name, thing, sizes[-1])}({x})"


def product(factor: str, x: str) -> str:
    return f"{factor} * ({x})" if isinstance(expression(x), ast.BinOp) else f"{factor} * {x}"


def attention_class(file: Any, attention: Any, i: int) -> ClassText:
    own, (rotation,) = ClassText(file, i, "attention_"), attention.turn.args
    own.number("head_dim", None, HEAD_DIM)
    for name, heads in HEADS.items():
        linear = own.linear(name, getattr(attention, name), WIDTH, f"{heads} * {HEAD_DIM}")
        own.lines.append(f"{name[0]} = {linear}(x).unflatten(-1, (-1, self.head_dim))")
    for site, heads in zip("qkv", HEADS.values(), strict=True):
        turns = site != "v" and rotation is not nothing
        first = turns and attention.turn.func is ORDERS["after"]  # the norm comes after it
        x = f"rotate({site}, angles)" if first else site
        x = own.apply(f"{site}_norm", getattr(attention, site), x, heads, HEAD_DIM)
        x = f"rotate({x}, angles)" if turns and not first else x
        x = own.apply("query_scale", attention.scale, x, heads, HEAD_DIM) if site == "q" else x
        own.lines += [f"{site} = {x}"] * (x != site)
    own.lines.append("q, k, v = (t.transpose(1, 2) for t in (q, k, v))")
    if attention.groups > 1:
        groups = own.number("groups", None, f"{HEADS['query']} // {HEADS['key']}")
        own.lines.append(f"k, v = (t.repeat_interleave({groups}, 1) for t in (k, v))")
    scale, cap = own.number("scale", attention.attend.scale), attention.attend.cap
    y = f"F.scaled_dot_product_attention(q, k, v, is_causal=True, scale={scale})"
    if cap is not None:
        y = f"capped_attention(q, k, v, {scale}, {own.number('cap', cap)})"
    own.lines.append(f"y = {y}.transpose(1, 2)")
    y = own.apply("head_norm", attention.head_norm, "y", HEADS["query"], HEAD_DIM)
    y = own.apply("head_scale", attention.head_scale, y, HEADS["query"], HEAD_DIM)
    own.lines += [f"y = {y}"] * (y != "y")
    y = own.apply("ctx_norm", attention.ctx, "y.flatten(2)", OF_HEADS)
    own.lines.append(f"return {own.linear('output', attention.output, OF_HEADS, WIDTH)}({y})")
    return own.finish("Attention", "Causal self-attention.", ["x", "angles"])


def mlp_class(file: Any, mlp: Any, i: int) -> ClassText:
    own, document = ClassText(file, i, "mlp_"), "A network for each token."

    def hidden(name: str) -> str:
        x = f"{own.linear(name, getattr(mlp, name), WIDTH, INNER)}(x)"
        x = own.apply(f"{name}_norm", getattr(mlp, f"{name}_norm"), x, INNER)
        return own.apply(f"{name}_scale", getattr(mlp, f"{name}_scale"), x, INNER)

    y = f"{file.copy(mlp.activation)}({hidden('gate' if mlp.gated else 'up')})"
    if mlp.gated:
        document = "A gated network for each token, Shazeer 2020, arXiv:2002.05202."
        y = product(y, hidden("up"))
    y = own.apply("mid_norm", mlp.mid, y, INNER)
    own.lines = [f"return {own.linear('down', mlp.down, INNER, WIDTH)}({y})"]
    return own.finish("MLP", document, ["x"])


class BlockText(ClassText):
    """A block, whose forward is the arithmetic of its equations, as model/block.py has it."""

    def __init__(self, file: Any, block: Any, i: int) -> None:
        super().__init__(file, i)
        self.block, self.plans = block, file.placement.plans(i, file.config.model.depth)
        topology = file.placement.topology
        if topology == "parallel":
            if (h := self.apply("norm", block.pre, "x", WIDTH)) != "x":
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
        for kind in SUB_LAYERS:
            own, x = getattr(self.block, kind), "x"
            if own.enter is not nothing:
                self.lines.append(f"h = {self.terms(kind, 'enter', own.enter, x)}")
                x = "h"
            h = self.at(kind, "pre", x)
            if NORMED in getattr(own.skip, "names", ()):
                self.lines.append(f"{'h' if x == 'x' else 'normed'} = {h}")
                h = "h" if x == "x" else "normed"
            y = f"{self.terms(kind, 'skip', own.skip, x, h)} + {self.update(kind, h)}"
            self.lines.append(f"x = {self.at(kind, 'post', y)}")
        if re.search(r"\bstart\b", "\n".join(self.lines)):
            self.lines.insert(begin, "start = x")

    def write_streams(self, dual: bool) -> None:
        for n, kind in enumerate(SUB_LAYERS):
            u = self.update(kind, self.at(kind, "pre", "x"))
            if dual:
                self.lines += [f"u = {u}", f"x, r = {self.at(kind, 'post', 'x + u')}, r + u"]
                continue
            connection = getattr(self.block, kind).connection
            own = self.connection(f"{kind}_connection", connection, f"2 * i + {n}")
            self.lines += [f"x = {own}.read(streams)", f"streams = {own}.write(streams, {u})"]
        if dual:
            self.lines = ["x, r = streams", *self.lines, "return x, r"]

    def update(self, kind: str, h: str) -> str:
        """Returns what a sub-layer adds to the stream."""
        part = SUB_LAYERS[kind](self.file, getattr(self.block, kind).f, self.i)
        f = self.own(kind, part, f"{part.name}({part.given})")
        y = self.at(kind, "out", f"{f}({', '.join([h, *part.takes[1:]])})")
        return self.at(kind, "branch", y)

    def terms(self, kind: str, slot: str, thing: Any, x: str, h: str = "") -> str:
        """Returns the sum of earlier streams that a skip, or what a sub-layer reads, is."""
        if not isinstance(thing, factors.WeightedSum):
            return self.at(kind, slot, x)
        texts = {NORMED: h, "start": "x" if kind == "attention" else "start", "x0": "x0"}
        terms = [] if thing.skip is None else [self.at(kind, slot, x, thing.skip)]
        for name in thing.names:
            scale, key = getattr(thing, name), name if slot == "skip" else f"enter.{name}"
            scale = scale.scale if isinstance(scale, factors.ScaledNorm) else scale
            terms.append(self.at(kind, key, texts[name], scale))
        return " + ".join(terms)

    def at(self, kind: str, slot: str, x: str, thing: Any = None) -> str:
        """Returns what the part of a sub-layer at a slot makes of x."""
        own, plan = getattr(self.block, kind), self.plans[kind]
        thing = getattr(own, slot) if thing is None else thing
        slot = "branch" if isinstance(thing, factors.OneMinusBranch) else slot
        key = {"skip": "a", "branch": "b", "enter": "enter.x"}.get(slot, slot)
        name = f"{kind}_{plan.names.get(key, slot.replace('.', '_'))}"
        if slot in SITES and thing is not nothing:
            others = [one for one in SITES if getattr(own, one) is not nothing]
            name = f"{kind}_norm" if len(others) == 1 else f"{kind}_{slot}_norm"
        # A factor that is 1 in this block is written, so that blocks of one equation are alike.
        if isinstance(plan.scales.get(key), str) and thing is nothing:
            thing = factors.Times(1.0)
        if isinstance(plan.scales.get(f"{slot}.scale"), str) and not isinstance(
            thing, factors.Scaled
        ):
            thing = factors.Scaled(thing, factors.Times(1.0))
        return self.apply(name, thing, x, WIDTH)


SUB_LAYERS, SITES = {"attention": attention_class, "mlp": mlp_class}, ("pre", "out", "post")


def model_class(file: Any, model: Any) -> ClassText:
    own, stream, given = ClassText(file), file.stream, file.given
    own.own("embedding", model.embedding, f"nn.Embedding(config.vocab_size, {WIDTH})")
    x = own.apply("row_norm", model.rows, "self.embedding(tokens)", WIDTH)
    scale = partial(own.apply, "embed_scale", model.scale)
    x = scale(x, WIDTH) if model.enter_positions is ORDERS["before"] else x
    if file.config.position.type == "learned":
        text = f"nn.Embedding(config.context, {WIDTH})"
        positions = own.own("positions", model.position.position, text)
        x = f"{x} + {positions}.weight[: tokens.shape[1]]"
    x = scale(x, WIDTH) if model.enter_positions is ORDERS["after"] else x
    own.lines.append(f"x = {own.apply('embedding_norm', model.embed, x, WIDTH)}")
    own.lines += ["x0 = x"] * ("x0" in given)
    if "angles" in given:
        base = file.number("rope_base", file.config.blocks[0].rope_base)
        config = own.number("config", None, "config")
        own.lines.append(f"angles = rotary(x, {base}, {HEAD_DIM})".replace("config", config))
    if model.enter is not nothing:
        enter = getattr(model.enter, "forward", model.enter)
        tokens = ", tokens" * ("tokens" in inspect.signature(enter).parameters)
        own.lines.append(f"streams = {own.connection('enter', model.enter)}(x{tokens})")
    file.blocks = [BlockText(file, block, i) for i, block in enumerate(model.blocks)]
    own.things |= {f"blocks.{i}": block for i, block in enumerate(file.blocks)}
    names = [*dict.fromkeys(block.name for block in file.blocks)]
    i, kind = "i" if file.indexed else "_", names[0]
    each = f"{i} in range(config.depth)"
    if len(names) > 1:
        for n, block in enumerate(file.blocks):
            file.number("kinds", names.index(block.name), n)
        kind, each = f"[{', '.join(names)}][kind]", f"{i}, kind in enumerate(config.kinds)"
    own.built["blocks"] = f"nn.ModuleList({kind}({file.blocks[0].given}) for {each})"
    own.lines.append("for block in self.blocks:")
    own.lines.append(f"    {stream} = block({', '.join([stream, *given])})")
    if model.enter is nothing:
        x = own.apply("final_norm", model.final, "x", WIDTH)
    else:
        x = f"{own.connection('leave', model.final)}(streams)"
    own.lines += [f"x = {x}"] * (x != "x")
    head, bias = "self.embedding", ""
    if model.head is not None:
        head = own.linear("head", model.head, WIDTH, "config.vocab_size")
        bias = "" if model.head.bias is None else f", {head}.bias"
    logits = f"F.linear(x, {own.apply('row_norm', model.rows, f'{head}.weight', WIDTH)}{bias})"
    if model.head is not None and model.rows is nothing:
        logits = f"{head}(x)"
    logits = own.apply("logit_scale", model.logit_scale, logits, "config.vocab_size")
    own.lines.append(f"return {logits}")
    return own.finish("Model", "Tokens in, logits out.", ["tokens"])
