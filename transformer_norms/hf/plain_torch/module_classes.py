"""Writes attention, mlp and block as classes of plain torch, each from a module as it was built.
The class has what this module has, and nothing else.

The methods of attention and mlp are those of their source, folded (copying.py). The arithmetic of a
block is what its forward computes when it is given texts in the place of tensors.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from transformer_norms.hf.plain_torch.copying import Fold, expression, substituted, tree_of
from transformer_norms.model.attention import Attention
from transformer_norms.model.attentions.heads import ValueMix
from transformer_norms.model.attentions.softmax import Sinks, Softmax
from transformer_norms.model.block import ConnectedBlock, ParallelBlock, StreamBlock, SubLayer
from transformer_norms.model.coefficient import (
    FUNCTIONS,
    Learned,
    LowRank,
    OneMinusBranch,
    Scaled,
    ScaledNorm,
    Times,
    WeightedSum,
)
from transformer_norms.model.connections.two_streams import Dual
from transformer_norms.model.mlp import MLP
from transformer_norms.model.position import ORDERS
from transformer_norms.model.sites import INSIDE
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.matrix import Matrix

SHORT = 45  # characters of a method that is written in the place of its call
WRITTEN = (Attention, MLP, ValueMix, LowRank)  # the modules of a block that become classes
SITES = {site for sites in INSIDE.values() for site in sites} - {"head_norm"}
OF_LEARNED = {
    FUNCTIONS["same"]: "{}",
    FUNCTIONS["absolute"]: "torch.abs({})",
    FUNCTIONS["square"]: "torch.square({})",
    FUNCTIONS["one_minus_silu"]: "(1 - F.silu({}))",
}


class Text(str):
    """The text of an expression, in the place of a tensor."""

    def __add__(self, more: str) -> "Text":
        return Text(f"{self!s} + {more!s}")


class Part:
    """A module as a class: its methods, and the attributes that they use, by the names that they
    have in the class. `i` is the number of the block that it is in."""

    def __init__(self, file: Any, module: nn.Module, i: int | None = None) -> None:
        self.file, self.module, self.i = file, module, i
        self.attributes: dict[str, Any] = {}
        self.parts: dict[str, Part] = {}
        self.methods: dict[str, ast.FunctionDef] = {}
        self.takes: dict[str, list[bool]] = {}  # for a method, which arguments it uses
        self.write()

    def write(self) -> None:
        self.methods = {"forward": self.fold("forward"), **self.methods}

    def fold(self, name: str) -> ast.FunctionDef:
        """Returns a method of the module's class, worked out for this module."""
        function = inspect.unwrap(getattr(type(self.module), name))
        facts, names = {"self": self.module, "cache": None}, vars(sys.modules[function.__module__])
        tree = PartFold(self, names, facts).visit(tree_of(function))
        every = [node for one in tree.body for node in ast.walk(one)]
        used = {node.id for node in every if isinstance(node, ast.Name)}
        takes = [one.arg for one in tree.args.args if one.arg != "self"]
        self.takes[name] = [one in used for one in takes]
        tree.args = signature(["self", *(one for one in takes if one in used)])
        for node in every:
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                value = getattr(self.module, node.attr, None)
                if isinstance(value, (int, float)):
                    self.attributes.setdefault(node.attr, value)
        return tree

    def method(self, name: str, args: list[str]) -> str:
        """Returns the call of another method, or its expression where that is short."""
        tree: Any = self.methods.get(name) or self.fold(name)
        args = [one for one, used in zip(args, self.takes[name], strict=False) if used]
        first = tree.body[0]
        if isinstance(first, ast.Return) and first.value and len(ast.unparse(first)) < SHORT:
            names = [one.arg for one in tree.args.args[1:]]
            given = dict(zip(names, map(expression, args), strict=True))
            return ast.unparse(substituted(first.value, given))
        self.methods[name] = tree
        return f"self.{name}({', '.join(args)})"

    def call(self, name: str, thing: Any, *args: str) -> str:
        """Returns what `thing`, the attribute `name`, makes of its arguments."""
        x = args[0]
        if thing is nothing:
            return x
        if isinstance(thing, Scaled):
            return self.call(f"{name}_scale", thing.scale, self.call(name, thing.norm, x))
        if isinstance(thing, OneMinusBranch):
            return f"{x} - {self.call(name, thing.branch, x)}"
        if isinstance(thing, Times):
            return f"{self.own(name, float(thing.value))} * ({x})"
        if isinstance(thing, Learned):
            factor = "" if thing.factor == 1 else f"{thing.factor!r} * "
            used = OF_LEARNED[thing.function].format(f"{factor}{self.own(name, thing.gain)}")
            if not thing.preserves:
                return f"{used} * ({x})"
            self.file.uses.add("scale_forward")
            return f"scale_forward({x}, {used})"
        own = self.own(name, thing)
        if isinstance(thing, WRITTEN):
            part = self.parts.setdefault(own.removeprefix("self."), Part(self.file, thing, self.i))
            used_args = zip(args, part.takes["forward"], strict=False)
            args = tuple(one for one, used in used_args if used)
        return f"{own}({', '.join(args)})"

    def own(self, name: str, thing: Any) -> str:
        """Returns `self.NAME`. A module or parameter that is used twice has one name."""
        same = [key for key, one in self.attributes.items() if one is thing]
        name = same[0] if same and isinstance(thing, (nn.Module, Tensor)) else name
        self.attributes[name] = thing
        return f"self.{name}"

    def turn(self, function: Any, site: str, x: str, angles: str) -> str:
        """Returns queries or keys, normed and turned, in the order that the model has."""
        (rotation,) = function.args
        norm = partial(self.call, f"{site}_norm", getattr(self.module, site))
        if rotation is nothing:
            return norm(x)
        angles = self.file.angles_of(self, rotation.args[1], angles)
        before = function.func is ORDERS["before"]
        return f"rotate({norm(x)}, {angles})" if before else norm(f"rotate({x}, {angles})")

    def attend(self, *args: str) -> str:
        attend: Any = self.module.attend
        if type(attend) not in (Softmax, Sinks):
            name = self.file.config.choices.attention
            raise ValueError(f"attention={name} is not softmax attention, with or without sinks")
        given = {"scale": attend.scale, **self.file.attending(attend)}
        texts = {key: self.own(key, value) for key, value in given.items()}
        if attend.dropout:
            texts["dropout"] = f"{self.own('dropout', attend.dropout)} if self.training else 0.0"
        if given.keys() == {"scale"}:
            function, texts = "F.scaled_dot_product_attention", {"is_causal": "True", **texts}
            texts |= {"dropout_p": texts.pop("dropout")} if attend.dropout else {}
        else:
            self.file.uses.add(function := "attend")
            self.file.copy(wide)
        return f"{function}({', '.join([*args, *(f'{k}={v}' for k, v in texts.items())])})"

    def text(self) -> str:
        """Returns the class, with the text NAME in the place of its name."""
        lines = ["super().__init__()"]
        for name, thing in sorted(self.attributes.items(), key=lambda pair: _is_plain(pair[1])):
            lines.append(f"self.{name} = {self.file.build(self, name, thing)}")
        init = "\n    ".join(["def __init__(self, config@@):", *lines])
        parts = [
            f'"""{self.file.document(self)}"""',
            init,
            *map(ast.unparse, self.methods.values()),
        ]
        return "class NAME(nn.Module):\n    " + "\n\n".join(parts).replace("\n", "\n    ")

    def tensors(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers by the names that they have in the class."""
        found: dict[str, Tensor] = {}
        for name, thing in self.attributes.items():
            if isinstance(thing, Tensor):
                found[name] = thing
            elif name in self.parts or isinstance(thing, nn.Module):
                inside = self.parts[name].tensors() if name in self.parts else _tensors(thing)
                found |= {f"{name}.{key}": one for key, one in inside.items()}
        return found


class BlockPart(Part):
    """A block, whose forward is the arithmetic of its equations."""

    def write(self) -> None:
        block: Any = self.module
        self.lines: list[str] = []
        if isinstance(block, ParallelBlock):
            if (h := self.call("norm", block.pre, "x")) != "x":
                self.lines.append(f"h = {h}")
            parts = [self.update(kind, "x" if h == "x" else "h") for kind in INSIDE]
            self.lines.append(f"return x + {' + '.join(parts)}")
        elif isinstance(block, StreamBlock):
            self.write_streams()
        elif isinstance(block, ConnectedBlock):
            self.lines.append(f"x = {self.own('connection', block.connection)}.read(streams)")
            self.write_serial()
            self.lines.append("return self.connection.write(streams, x)")
        else:
            self.write_serial()
        self.lines[-1] = re.sub(r"^\w+ =", "return", self.lines[-1])
        text = "\n    ".join(self.lines)
        self.takes["forward"] = []
        self.given = [name for name in ("x0", "angles", "state") if re.search(rf"\b{name}\b", text)]
        self.stream = "streams" if "streams" in text else "x"
        self.methods["forward"] = ast.parse(f"def forward():\n    {text}").body[0]  # type: ignore[assignment]

    def write_serial(self) -> None:
        begin = len(self.lines)
        for kind, start in (("attention", "x"), ("mlp", "start")):
            given = (Text(name) for name in ("x", start, "x0", "angles", "cache", "state"))
            y, h = inspect.unwrap(SubLayer.forward)(self.stub(kind), *given), f"self.{kind}_norm(x)"
            if y.count(h) > 1:
                self.lines.append(f"h = {h}")
                y = y.replace(h, "h")
            self.lines.append(f"x = {y}")
        if re.search(r"\bstart\b", self.lines[-1]):
            self.lines.insert(begin, "start = x")

    def write_streams(self) -> None:
        for kind in INSIDE:
            connection: Any = getattr(self.module, kind).connection
            if isinstance(connection, Dual):
                self.lines.append(f"u = {self.update(kind, 'x')}")
                post = self.call(f"{kind}_norm", connection.sub_layer.post, "x + u")
                self.lines.append(f"x, r = {post}, r + u")
                continue
            own = self.own(f"{kind}_connection", connection)
            self.lines.append(f"x = {own}.read(streams)")
            self.lines.append(f"streams = {own}.write(streams, {self.update(kind, 'x')})")
        if isinstance(connection, Dual):
            self.lines = ["x, r = streams", *self.lines, "return x, r"]

    def update(self, kind: str, x: str) -> str:
        """Returns what a sub-layer adds to the stream."""
        update: Text = self.stub(kind).update(Text(x), *map(Text, ("angles", "cache", "state")))
        return update

    def stub(self, kind: str) -> Any:
        """Returns a stand-in for a sub-layer, whose parts make texts of texts."""
        own: Any = getattr(self.module, kind)
        sites = [name for name in ("pre", "out", "post") if getattr(own, name) is not nothing]
        learned = self.file.plans[self.i][kind].names
        keys = {"skip": "a", "branch": "b", "enter": "enter.x"}
        names = {slot: f"{kind}_{learned.get(key, slot)}" for slot, key in keys.items()}
        for key in ("start", "x0", "normed", "enter.start", "enter.x0"):
            names[key] = f"{kind}_{learned.get(key, key.replace('enter.', 'enter_'))}"
        names |= {name: f"{kind}_{name}_norm" for name in sites} | {"f": kind}
        names |= {sites[0] if len(sites) == 1 else "pre": f"{kind}_norm"} if sites else {}

        def part(slot: str, thing: Any) -> Callable[..., Text]:
            if (kind, slot) in self.file.times:  # a factor that is 1 in this block
                if thing is nothing:
                    thing = Times(1.0)
                elif slot == "pre" and not isinstance(thing, Scaled):
                    thing = Scaled(thing, Times(1.0))
            if isinstance(thing, WeightedSum):
                before = "enter." if slot == "enter" else ""
                terms = {n: part(f"{before}{n}", getattr(thing, n)) for n in thing.names}
                skip = thing.skip and part(slot, thing.skip)
                stand_in = SimpleNamespace(names=thing.names, skip=skip, **terms)
                return partial(inspect.unwrap(WeightedSum.forward), stand_in)
            if isinstance(thing, ScaledNorm):
                pre, scale = part("pre", own.pre), part(slot, thing.scale)
                return lambda x: scale(pre(x))
            key = "branch" if isinstance(thing, OneMinusBranch) else slot
            name = names.get(key, key)
            return lambda *given: Text(self.call(name, thing, *given))

        slots = ("f", "pre", "out", "post", "skip", "branch", "dropout", "enter")
        parts = {slot: part(slot, getattr(own, slot)) for slot in slots}
        stub = SimpleNamespace(**parts)
        stub.update = partial(inspect.unwrap(SubLayer.update), stub)

        def enter(*given: Text) -> Text:
            self.lines.append(f"h = {parts['enter'](*given)}")
            return Text("h")

        stub.enter = parts["enter"] if own.enter is nothing else enter
        return stub


class PartFold(Fold):
    """Works out the calls of what a module has."""

    def __init__(self, part: Part, names: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        super().__init__(part.file.norms.copies, names, facts)
        self.part = part

    def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802
        owner, _, name = ast.unparse(node.func).partition(".")
        if owner != "self" or not hasattr(self.part.module, name):
            return super().visit_Call(node)
        thing = getattr(self.part.module, name)
        if name == "turn":
            site, x, angles = (ast.unparse(self.visit(one)) for one in node.args)
            return expression(self.part.turn(thing, site.removeprefix("self."), x, angles))
        args = [ast.unparse(self.visit(one)) for one in node.args]
        if inspect.ismethod(thing):
            return expression(self.part.method(name, args))
        if name == "attend":
            return expression(self.part.attend(*args[:3]))
        if inspect.isfunction(thing) and thing is not nothing:  # an activation
            return expression(f"{self.copies.name(thing)}({args[0]})")
        return expression(self.part.call(f"{name}_norm" if name in SITES else name, thing, *args))


def signature(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _is_plain(thing: Any) -> bool:
    return not isinstance(thing, (nn.Module, Tensor))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a copied module. A matrix inside a norm is a parameter
    of the written norm."""
    matrices = {f"{name}.weight" for name, one in module.named_modules() if isinstance(one, Matrix)}
    state = module.state_dict(keep_vars=True).items()
    return {name.removesuffix(".weight") if name in matrices else name: one for name, one in state}
