"""Copies functions and classes of this package as plain torch: their source without annotations,
and without what is there for speed alone."""

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from textwrap import dedent, fill
from typing import Any

from transformer_norms.model.connections import Connection
from transformer_norms.model.initialization import Einsum, Embedding, Linear, ZeroLinear
from transformer_norms.norms import NORMS

PACKAGE = __name__.partition(".")[0]
TORCHS: dict[Any, str] = dict.fromkeys((Linear, Einsum, ZeroLinear), "nn.Linear")
TORCHS |= {Embedding: "nn.Embedding", Connection: "nn.Module"}
SAME = ("in_one_layout", "constant")  # functions that return what they are given
FIXED = {"needs_formula()": True, "torch.compiler.is_compiling()": False}  # not a fast way
LEFT_OUT: dict[type, str] = {  # what only this package reads
    ast.ClassDef: r"(def )?parts\b|(enter|leave|causal)\b",
    ast.FunctionDef: r"[\w.]+\.std = ",
}
LONGEST = 80  # characters of a line of a docstring, before it is indented


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def wrapped(document: str) -> str:
    """Returns a docstring whose lines are not too long. The formatter of the file indents them."""
    parts = inspect.cleandoc(document).split("\n\n")
    for n, part in enumerate(parts):
        if max(map(len, part.split("\n"))) > LONGEST:
            parts[n] = fill(part.replace("\n", " "), LONGEST, break_on_hyphens=False)
    text = "\n\n".join(parts)
    return text + "\n" * ("\n" in text)


class Copies:
    """The texts of the copied functions and classes by name, each after those that it uses. `norms`
    has the classes of norms."""

    def __init__(self, norms: Any) -> None:
        self.norms, self.texts = norms, dict[str, str]()

    def name(self, thing: Any) -> str:
        """Returns the name of a function or class, which is copied when it is first named."""
        name: str = TORCHS.get(thing) or thing.__name__
        if thing not in TORCHS and name not in self.texts:
            self.texts[name] = ""  # it may name itself
            tree = ast.parse(dedent(inspect.getsource(thing)))
            text = ast.unparse(Copy(self, vars(sys.modules[thing.__module__])).visit(tree))
            del self.texts[name]
            self.texts[name] = text
        return name


class Copy(ast.NodeTransformer):
    """Rewrites a function or class. `names` are the globals of its module."""

    def __init__(self, copies: Copies, names: Mapping[str, Any]) -> None:
        self.copies, self.names = copies, names

    def visit_ClassDef(self, node: Any) -> Any:  # noqa: N802
        node.decorator_list = []
        pattern = LEFT_OUT[type(node)]
        node.body = [one for one in node.body if not re.match(pattern, ast.unparse(one))]
        if document := ast.get_docstring(node):
            node.body[0] = ast.Expr(ast.Constant(wrapped(document)))
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: Any) -> Any:  # noqa: N802
        node.returns = None
        return self.visit_ClassDef(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
        value = node.value
        return value and self.visit(ast.Assign(targets=[node.target], value=value, lineno=0))

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
            return expression(self.copies.norms.inside(kind, ast.unparse(node.args[0]), settings))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        value: Any = self.names.get(node.id) if isinstance(node.ctx, ast.Load) else None
        if getattr(value, "__module__", "").startswith(PACKAGE):
            return expression(self.copies.name(value))
        return ast.Constant(value) if isinstance(value, (int, float, str, tuple)) else node
