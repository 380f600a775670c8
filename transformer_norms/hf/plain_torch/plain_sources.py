"""Writes functions and classes of this package as plain torch. A norm is written from the formula
that its file states, whose functions are those of norms/stated.py. All else is copied without
annotations and speed-ups, also a norm without a formula or with running averages."""

import ast
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from textwrap import dedent, fill
from typing import Any

from torch import nn

from transformer_norms.config.chosen_files import option_content
from transformer_norms.model.connections import Connection
from transformer_norms.model.initialization import Einsum, Embedding, Linear, ZeroLinear
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import NORMS, nothing, stated
from transformer_norms.norms.parts.affine import wide

WIDTH = 960  # of a norm that is built to be looked at, which has no other size like it
PACKAGE = __name__.partition(".")[0]
TORCHS: dict[Any, str] = dict.fromkeys((Linear, Einsum, ZeroLinear), "nn.Linear")
TORCHS |= {Embedding: "nn.Embedding", Connection: "nn.Module"}
NAMES = {"l": "block"}  # which ruff and flake8 take for a 1
SAME = ("in_one_layout", "constant")  # functions that return what they are given
FIXED = {"needs_formula()": True, "torch.compiler.is_compiling()": False}  # not a fast way
LEFT_OUT: dict[type, str] = {ast.ClassDef: r"(def )?parts\b|(enter|leave|causal)\b",
                             ast.FunctionDef: r"[\w.]+\.std = "}  # fmt: skip


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def wrapped(document: str, longest: int = 78) -> str:
    """Returns a docstring whose lines are not too long. The formatter of the file indents them."""
    parts = inspect.cleandoc(document).split("\n\n")
    for n, part in enumerate(parts):
        if max(map(len, part.split("\n"))) > longest:
            parts[n] = fill(part.replace("\n", " "), longest, break_on_hyphens=False)
    text = "\n\n".join(parts)
    return text + "\n" * ("\n" in text)


class PlainSources:
    """The functions and classes of a file by name: the `norms`, with their functions, and all else
    that is `copied`, each after those that it uses. `names` has the name of each text of a norm."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.copied = config, dict[str, str]()
        self.names, self.norms = dict[str, str](), dict[str, str]()

    def copy(self, thing: Any) -> str:
        """Returns the name of a function or class, which is copied when it is first named."""
        name: str = TORCHS.get(thing) or thing.__name__
        kept = self.norms if ".norms." in thing.__module__ else self.copied
        if thing not in TORCHS and name not in kept:
            kept[name] = ""  # it may name itself
            tree = ast.parse(dedent(inspect.getsource(thing)))
            copy = Copy(self, vars(sys.modules[thing.__module__]))
            kept[name] = ast.unparse(copy.visit(tree)) + kept.pop(name)
        return name

    def norm(self, norm: Any, width: str) -> str:
        """Returns `RMSNorm(width)` for a norm of the model, of which `width` is the width."""
        name = place_of(norm).norm if norm is not nothing else "norm"
        file = self.config.norm if name == "norm" else self.config.norms[name]
        return self.built_norm(file, norm, width)

    def norm_maker(self) -> str:
        """Returns what builds the run's norm when it is called with a width."""
        text = self.built_norm(self.config.norm, NORMS.maker(self.config.norm)(WIDTH), "width")
        return f"lambda width: {text}" if "," in text else text.partition("(")[0]

    def inside_norm(self, kind: Any, width: str, settings: Mapping[str, ast.expr]) -> str:
        """Returns what builds a norm inside a connection's formula, whose settings are numbers or
        those of the connection."""
        own = self.config.placement["connection"]
        keys = {key: one.value if isinstance(one, ast.Constant) else own[ast.unparse(one)]
                 for key, one in settings.items()}  # fmt: skip
        name = next(name for name, one in NORMS.items() if one is kind)
        return self.built_norm({**option_content("norm", name), **keys}, kind(WIDTH, **keys), width)

    def built_norm(self, file: Mapping[str, Any], norm: Any, width: str) -> str:
        """Returns what builds a norm of a file's keys."""
        if norm is nothing:
            return "nn.Identity()"
        kind: Any = NORMS[file["type"]]
        takes = parameters(kind)
        settings = {key: file.get(key, one.default) for key, one in takes.items()}
        numbers = {key: one for key, one in settings.items() if type(one) in (int, float)}
        if not file.get("formula") or [*norm.buffers()]:
            words = [f"{k}={v!r}" for k, v in numbers.items() if v != takes[k].default]
            return f"{self.copy(kind)}({', '.join([width, *words])})"
        text = self._text(kind, file, norm, numbers)
        if text not in self.names:
            name = "Plain" * (file.get("gain") == "none") + kind.__name__
            alike = [one for one in self.norms if re.fullmatch(rf"{name}\d*", one)]
            self.names[text] = name = f"{name}{len(alike) + 1 if alike else ''}"
            self.norms[name] = f"class {name}(nn.Module):\n    {text}"
        return f"{self.names[text]}({width})"

    def _text(self, kind: Any, file: Any, norm: nn.Module, numbers: Mapping[str, Any]) -> str:
        """Returns the docstring, with the formula that the file states, and the methods."""
        document, formula = kind.__doc__ or "", file["formula"]
        if not " ".join(document.split()).startswith(f"{formula} "):
            document = f"{formula}      {file.get('source', '')}".strip()
        document = document.replace("gain * ", "", file.get("gain") == "none")
        document = document.replace(" + bias", "", file.get("bias") is False)
        known = {n: str(n) for n in (1, *numbers.values()) if type(n) is int and n > 0}
        sample = NORMS.maker(file)(width := math.lcm(WIDTH, *known))
        named, inits = {"x": "y", "gain": "1", "bias": "0", **numbers}, []
        for (key, own), one in zip(norm.named_parameters(), sample.parameters(), strict=True):
            shape = ", ".join(known.get(n, "width") for n in one.shape)
            start = float(own.detach().flatten()[0]) if own.dim() == 1 else 0.0
            of_width = math.isclose(float(one.detach().flatten()[0]), width**0.5, rel_tol=1e-7)
            text = filled(shape, start, "width**0.5" if of_width else repr(start))
            named[key.removesuffix(".weight")] = f"self.{key.removesuffix('.weight')}"
            inits.append(f"        self.{key.removesuffix('.weight')} = nn.Parameter({text})")
        tree = InTorch(self, {key: expression(str(one)) for key, one in named.items()})
        body = [f"y = {self.copy(wide)}(x)", *_statements(tree.visit(expression(formula)))]
        return "\n".join(
            [f'"""{wrapped(document)}"""', "", "    def __init__(self, width):",
             "        super().__init__()", *inits, "", "    def forward(self, x):",
             *(f"        {line}" for line in [*body, "return y.to(x.dtype)"])])  # fmt: skip


class Copy(ast.NodeTransformer):
    """Rewrites a function or class. `names` are the globals of its module."""

    def __init__(self, sources: "PlainSources", names: Mapping[str, Any]) -> None:
        self.sources, self.names = sources, names

    def visit_ClassDef(self, node: Any) -> Any:  # noqa: N802
        node.decorator_list, node.returns = [], None
        pattern = LEFT_OUT[type(node)]
        node.body = [one for one in node.body if not re.match(pattern, ast.unparse(one))]
        if document := ast.get_docstring(node):
            longest = 78 if isinstance(node, ast.ClassDef) else 74  # before it is indented
            node.body[0] = ast.Expr(ast.Constant(wrapped(document, longest)))
        return self.generic_visit(node)

    visit_FunctionDef = visit_ClassDef  # noqa: N815

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg, node.annotation = NAMES.get(node.arg, node.arg), None
        return node

    def visit_Assign(self, node: Any) -> Any:  # noqa: N802
        """Writes `self.a, self.b = a, b` as two statements, and a tuple without brackets."""
        match self.generic_visit(node):
            case ast.Assign([ast.Tuple([ast.Attribute(), *_] as names)], ast.Tuple(values)):
                return [ast.Assign([a], b, lineno=0) for a, b in zip(names, values, strict=True)]
            case ast.Assign(value=ast.Tuple([_, _, *_])) | ast.Return(ast.Tuple([_, _, *_])):
                node.value = ast.Name(", ".join(map(ast.unparse, node.value.elts)))
        return node

    visit_Return = visit_Assign  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
        return node.value and self.visit(ast.Assign([node.target], node.value, lineno=0))

    def visit_With(self, node: ast.With) -> Any:  # noqa: N802
        if not ast.unparse(node.items[0]).startswith("exact("):
            return self.generic_visit(node)
        return [self.visit(one) for one in node.body]

    def visit_If(self, node: Any) -> Any:  # noqa: N802
        known = FIXED.get(ast.unparse(node.test))
        if known is None:
            return self.generic_visit(node)
        chosen = node.body if known else node.orelse
        return [*map(self.visit, chosen)] if isinstance(chosen, list) else self.visit(chosen)

    visit_IfExp = visit_If  # noqa: N815

    def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802
        name = ast.unparse(node.func)
        if name in SAME:
            return self.visit(node.args[0])
        if (kind := self.names.get(name)) in NORMS.values():
            settings = {str(word.arg): word.value for word in node.keywords}
            return expression(self.sources.inside_norm(kind, ast.unparse(node.args[0]), settings))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        node.id = NAMES.get(node.id, node.id)
        value: Any = self.names.get(node.id) if isinstance(node.ctx, ast.Load) else None
        if getattr(value, "__module__", "").startswith(PACKAGE):
            return expression(self.sources.copy(value))
        return expression(repr(value)) if isinstance(value, (int, float, str, tuple)) else node


def filled(shape: str, start: float, value: str) -> str:
    """Returns the text of a tensor whose numbers are all the `start`, whose text is `value`."""
    made = {0.0: "zeros", 1.0: "ones"}.get(start)
    return f"torch.{made}({shape})" if made else f"{value} * torch.ones({shape})"


class InTorch(ast.NodeTransformer):
    """Rewrites a formula: what is `named` for each name, and torch for each function."""

    def __init__(self, sources: PlainSources, named: Mapping[str, ast.expr]) -> None:
        self.sources, self.named = sources, named

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        return self.named.get(node.id, node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        """Leaves out an absent gain and an absent bias."""
        match self.generic_visit(node):
            case ast.BinOp(left=ast.Constant(value=1), op=ast.Mult(), right=rest):
                return rest
            case ast.BinOp(left=rest, op=ast.Add(), right=ast.Constant(value=0)):
                return rest
        return node

    def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function: Any = FUNCTIONS.get(ast.unparse(node.func))
        if function is None:  # in what stated.py writes
            return self.generic_visit(node)
        given = [self.visit(one) for one in node.args]
        if isinstance(function, ast.Lambda):
            names = [one.arg for one in function.args.args]
            inside = InTorch(self.sources, dict(zip(names, given, strict=True)))
            return inside.visit(expression(ast.unparse(function.body)))
        if isinstance(function, ast.Name):
            function = expression(self.sources.copy(getattr(stated, function.id)))
        return ast.Call(function, given, [])


def _statements(tree: ast.expr) -> list[str]:
    """Returns `y = ...`, after a statement that names the largest part which occurs twice."""
    whole, nodes = ast.unparse(tree), [one for one in ast.walk(tree) if isinstance(one, ast.BinOp)]
    counts = Counter(map(ast.unparse, nodes))
    largest = max((text for text, count in counts.items() if count > 1), key=len, default="")
    rest = whole.replace(f"({largest})", "z").replace(largest, "z") if largest else whole
    return [*[f"z = {largest}"] * bool(largest), f"y = {rest}"]


# The functions of a formula, as stated.py writes them.
_TREES: Any = ast.parse(inspect.getsource(stated)).body
FUNCTIONS = {key.value: pair.elts[1] for one in _TREES if hasattr(one, "annotation")
             for key, pair in zip(one.value.keys, one.value.values, strict=True)}  # fmt: skip
