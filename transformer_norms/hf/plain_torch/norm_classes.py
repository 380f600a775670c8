"""Writes norms as classes of plain torch, from the formula that each norm's file states.

    gain * x / sqrt(mean(x**2) + eps)
    y = self.gain * y / torch.sqrt((y**2).mean(-1, keepdim=True) + 1e-6)

The functions of a formula are those of norms/stated.py. A norm without a formula is copied, and so
is one with running averages, which no formula states.
"""

import ast
import inspect
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from transformer_norms.config.chosen_files import option_content
from transformer_norms.hf.plain_torch.copying import CopiedSources, expression, substituted
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import NORMS, stated
from transformer_norms.norms.parts.affine import wide

WIDTH = 960  # of a norm that is built to be looked at, which has no other size like it


class NormClasses:
    """The classes of the norms of a file, by name, and the text that builds each norm."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.texts, self.copies = config, dict[str, str](), CopiedSources(self)
        self.names: dict[str, str] = {}  # of a class, by its text

    def build(self, norm: nn.Module, width: str) -> str:
        """Returns `RMSNorm(width)` for a norm of the model, of which `width` is the width."""
        name = place_of(norm).norm
        file = self.config.norm if name == "norm" else self.config.norms[name]
        return self._build(type(norm), file, norm, width)

    def maker(self) -> str:
        """Returns what builds the run's norm when it is called with a width."""
        file = self.config.norm
        if file["type"] == "none":
            return "nn.Identity"
        kind = NORMS.maker(file)
        return self._build(kind.func, file, kind(WIDTH), "").partition("(")[0]

    def fixed(self, kind: Any, args: list[ast.expr], settings: Mapping[str, ast.expr]) -> ast.expr:
        """Returns the call that builds a norm which is a part of a connection's formula, whose
        settings are numbers or those of the connection."""
        given = {key: one.value if isinstance(one, ast.Constant) else self.config.placement[
            "connection"][ast.unparse(one)] for key, one in settings.items()}  # fmt: skip
        name = next(name for name, one in NORMS.items() if one is kind)
        file, norm = {**option_content("norm", name), **given}, kind(WIDTH, **given)
        return expression(self._build(kind, file, norm, ast.unparse(args[0])))

    def _build(self, kind: Any, file: Mapping[str, Any], norm: nn.Module, width: str) -> str:
        formula, takes = str(file.get("formula") or ""), parameters(kind)
        settings = {key: file.get(key, one.default) for key, one in takes.items()}
        numbers = {key: one for key, one in settings.items() if type(one) in (int, float)}
        if not formula or [*norm.buffers()]:
            words = [f"{k}={v!r}" for k, v in numbers.items() if v != takes[k].default]
            return f"{self.copies.name(kind)}({', '.join([width, *words])})"
        whole = [one for one in numbers.values() if type(one) is int]
        shapes = dict(NORMS.maker(file)(math.lcm(WIDTH, *whole)).named_parameters())
        own = {name.removesuffix(".weight"): p.detach() for name, p in norm.named_parameters()}
        starts = []
        for (name, p), wide_p in zip(own.items(), shapes.values(), strict=True):
            known, start = {n: str(n) for n in (1, *whole)}, float(p.flatten()[0]) * (p.dim() == 1)
            shape = ", ".join(known.get(n, "width") for n in wide_p.shape)
            filled = {0.0: f"torch.zeros({shape})", 1.0: f"torch.ones({shape})"}
            value = "width**0.5" if name == "gain" else f"{start!r}"  # of ScaleNorm
            tensor = filled.get(start, f"torch.full(({shape},), {value})")
            starts.append(f"self.{name} = nn.Parameter({tensor})")
        named = {name: expression(f"self.{name}") for name in own}
        constants = {
            key: ast.Constant(one) for key, one in {"gain": 1, "bias": 0, **numbers}.items()
        }
        tree = InTorch(self.copies, {"x": expression("y"), **constants, **named}).visit(
            expression(formula)
        )
        body = [f"y = {self.copies.name(wide)}(x)", *_statements(tree), "return y.to(x.dtype)"]
        init = "\n        ".join(["    def __init__(self, width):", "super().__init__()", *starts])
        forward = "\n        ".join(["    def forward(self, x):", *body])
        text = f'class NAME(nn.Module):\n    """{_document(kind, file)}"""\n\n{init}\n\n{forward}'
        if text not in self.names:
            name = f"{'' if own else 'Plain'}{kind.__name__}".replace("PlainL2", "L2")
            alike = [one for one in self.texts if re.fullmatch(rf"{name}\d*", one)]
            self.names[text] = name + (str(len(alike) + 1) if alike else "")
            self.texts[self.names[text]] = text.replace("NAME", self.names[text])
        return f"{self.names[text]}({width})"


def _document(kind: Any, file: Mapping[str, Any]) -> str:
    """Returns the docstring of a norm's class, or where that has another formula, the formula and
    the source of the norm's file."""
    text, formula = kind.__doc__ or "", file["formula"]
    if " ".join(text.split()).startswith(f"{formula} "):
        return text
    return f"{formula}      {file.get('source', '')}".strip()


class InTorch(ast.NodeTransformer):
    """Rewrites a formula: what is `named` for each name, and torch for each function."""

    def __init__(self, copies: CopiedSources, named: Mapping[str, ast.expr]) -> None:
        self.copies, self.named = copies, named

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        return self.named[node.id]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        """Leaves out an absent gain and an absent bias."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and ast.unparse(node.left) == "1":
            return node.right
        return (
            node.left if isinstance(node.op, ast.Add) and ast.unparse(node.right) == "0" else node
        )

    def visit_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        function: Any = FUNCTIONS[ast.unparse(node.func)]
        given = [self.visit(one) for one in node.args]
        if isinstance(function, ast.Lambda):
            names = [one.arg for one in function.args.args]
            return substituted(function.body, dict(zip(names, given, strict=True)))
        if isinstance(function, ast.Name):
            function = expression(self.copies.name(getattr(stated, function.id)))
        return ast.Call(function, given, [])


def _functions() -> dict[str, ast.expr]:
    """Returns the functions of a formula as stated.py writes them."""
    tree: Any = next(node for node in ast.parse(inspect.getsource(stated)).body
                     if isinstance(node, ast.AnnAssign))  # fmt: skip
    pairs = zip(tree.value.keys, tree.value.values, strict=True)
    return {key.value: entry.elts[1] for key, entry in pairs}


def _statements(tree: ast.expr) -> list[str]:
    """Returns `y = ...`, after a statement that names the largest part which occurs twice."""
    texts = Counter(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp))
    whole, repeated = ast.unparse(tree), [text for text, count in texts.items() if count > 1]
    if not repeated:
        return [f"y = {whole}"]
    largest = max(repeated, key=len)
    rest = whole.replace(f"({largest})", "z").replace(largest, "z")
    return [f"z = {largest}", f"y = {rest}"]


FUNCTIONS = _functions()
