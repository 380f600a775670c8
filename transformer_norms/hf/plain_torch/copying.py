"""Copies functions and classes of this package as plain torch: their source without annotations and
checks, and without what is there for speed alone. What is known is worked out: `self.q(x)` is x
where the site q is empty, and an `if` on what is absent is left out.
"""

import ast
import inspect
import operator
import sys
from collections import Counter
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import torch

from transformer_norms.formula import Formula
from transformer_norms.model.coefficient import constant
from transformer_norms.model.connections import Connection, in_one_layout
from transformer_norms.model.initialization import Einsum, Embedding, FromLatent, Linear
from transformer_norms.norms import NORMS, nothing
from transformer_norms.norms.parts.analytic import needs_formula
from transformer_norms.norms.parts.division import exact

UNKNOWN = object()
PACKAGE = __name__.partition(".")[0]
SAME = (nothing, in_one_layout, constant)  # return what they are given
FIXED = {needs_formula: True, torch.compiler.is_compiling: False}  # the formula, not a fast way
TORCHS: dict[Any, str] = dict.fromkeys((Linear, FromLatent, Einsum), "nn.Linear")
TORCHS |= {Embedding: "nn.Embedding", Connection: "nn.Module"}
LEFT_OUT = ("parts", "enter", "leave", "causal")  # of a class: what only this package reads
COMPARED: Mapping[type, Any] = {ast.Is: operator.is_, ast.IsNot: operator.is_not,
                                ast.Eq: operator.eq, ast.Gt: operator.gt}  # fmt: skip


def tree_of(thing: Any) -> Any:
    """Returns the syntax tree of a function or class."""
    return ast.parse(dedent(inspect.getsource(thing))).body[0]


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class CopiedSources:
    """The copied functions and classes, each after those that it uses. `norms` has the classes of
    norms."""

    def __init__(self, norms: Any) -> None:
        self.norms, self.texts = norms, dict[str, str]()

    def name(self, thing: Any) -> str:
        """Returns the name of a function or class, which is copied when it is first named."""
        name: str = TORCHS.get(thing) or thing.__name__
        if thing not in TORCHS and name not in self.texts:
            self.texts[name] = ""
            text = ast.unparse(
                Fold(self, vars(sys.modules[thing.__module__])).visit(tree_of(thing))
            )
            del self.texts[name]
            self.texts[name] = text
        return name


class Fold(ast.NodeTransformer):
    """Rewrites a function or class. `names` are the globals of its module, and `facts` the known
    values of its arguments."""

    def __init__(
        self, copies: CopiedSources, names: Mapping[str, Any], facts: Mapping[str, Any] = {}
    ):
        self.copies, self.names, self.facts = copies, names, facts
        self.local = Counter[str]()  # how often each name of a function is assigned
        self.same: dict[str, str] = {}

    def known(self, node: ast.AST) -> Any:
        """Returns the value of an expression, or UNKNOWN."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.facts or name not in self.local:
                return self.facts.get(name, self.names.get(name, UNKNOWN))
            case ast.Attribute(value=base, attr=name) if name != "training":
                owner = self.known(base)
                return UNKNOWN if owner is UNKNOWN else getattr(owner, name, UNKNOWN)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                both = self.known(left), self.known(right)
                known = all(one is not UNKNOWN for one in both)
                return COMPARED[type(op)](*both) if known else UNKNOWN
            case ast.Call(func=function):
                return FIXED.get(self.known(function), UNKNOWN)
        return UNKNOWN

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:  # noqa: N802
        node.decorator_list = []
        node.body = [one for one in node.body if _name(one) not in LEFT_OUT]
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802
        given, names = node.args, [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        every = [*given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
        for one in every:
            one.annotation = None
        if given.kwarg and given.kwarg.arg not in {n.id for n in names}:
            given.kwarg = None
        node.returns, node.decorator_list = None, []
        before = self.local
        self.local = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
        self.local.update({one.arg: 0 for one in every})
        self.generic_visit(node)
        self.local = before
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
        value = node.value
        return value and self.visit(ast.Assign(targets=[node.target], value=value, lineno=0))

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
        """Leaves out `q = q`, `c = x`, for which x is written, and the deviation of a weight."""
        self.generic_visit(node)
        target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
        if self.local[target] == 1 and self.local.get(value) == 0:
            self.same[target] = value
            return None
        return None if target == value or target.endswith(".std") else node

    def visit_Expr(self, node: ast.Expr) -> Any:  # noqa: N802
        self.generic_visit(node)
        return None if isinstance(node.value, ast.Name) else node

    def visit_With(self, node: ast.With) -> Any:  # noqa: N802
        call: Any = node.items[0].context_expr
        if self.known(call.func) is not exact:
            return self.generic_visit(node)
        return [self.visit(one) for one in node.body]

    def visit_If(self, node: ast.If) -> Any:  # noqa: N802
        if isinstance(node.body[0], ast.Raise):  # a check of a setting
            return None
        if (test := self.known(node.test)) is UNKNOWN:
            return self.generic_visit(node)
        kept = [self.visit(one) for one in (node.body if test else node.orelse)]
        return [one for one in kept if one is not None]

    def visit_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        if (test := self.known(node.test)) is UNKNOWN:
            return self.generic_visit(node)
        return self.visit(node.body if test else node.orelse)

    def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802
        function = self.known(node.func)
        if function in SAME:
            return self.visit(node.args[0])
        if isinstance(node.func, ast.Call) and self.known(node.func.func) is Formula:
            return self.visit(node.func.args[0])  # the caller has worked it out
        if isinstance(function, type) and function in NORMS.values():
            settings = {str(word.arg): word.value for word in node.keywords}
            return self.copies.norms.fixed(function, node.args, settings)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        value, node.id = self.known(node), self.same.get(node.id, node.id)
        if node.id in self.facts or value is UNKNOWN or isinstance(node.ctx, ast.Store):
            return node
        if getattr(value, "__module__", "").startswith(PACKAGE):
            return expression(self.copies.name(value))
        plain: Any = value
        return ast.Constant(plain) if isinstance(value, (int, float, str, tuple)) else node


def _name(node: Any) -> str:
    """Returns the name that a statement of a class defines."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
    return getattr(target, "id", getattr(target, "name", ""))


def substituted(tree: ast.AST, given: Mapping[str, ast.expr]) -> Any:
    """Returns a copy of an expression with the given expressions for its names."""

    class Substitute(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
            return given.get(node.id, node)

    return Substitute().visit(expression(ast.unparse(tree)))
