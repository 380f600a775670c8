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
from transformer_norms.hf.plain_torch.copying import Copies, expression, wrapped
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import NORMS, stated
from transformer_norms.norms.parts.affine import wide

WIDTH = 960  # of a norm that is built to be looked at, which has no other size like it


class NormClasses:
    """The classes of the norms of a file: the name of each text, and the class of each name."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.copies = config, Copies(self)
        self.names, self.classes = dict[str, str](), dict[str, str]()

    def of_model(self, norm: nn.Module, width: str) -> str:
        """Returns `RMSNorm(width)` for a norm of the model, of which `width` is the width."""
        name = place_of(norm).norm
        file = self.config.norm if name == "norm" else self.config.norms[name]
        return self.built(file, norm, width)

    def maker(self) -> str:
        """Returns what builds the run's norm when it is called with a width."""
        norm = NORMS.maker(self.config.norm)(WIDTH)
        if not isinstance(norm, nn.Module):
            return "nn.Identity"
        text = self.built(self.config.norm, norm, "width")
        return f"lambda width: {text}" if "," in text else text.partition("(")[0]

    def inside(self, kind: Any, width: str, settings: Mapping[str, ast.expr]) -> str:
        """Returns what builds a norm inside a connection's formula, whose settings are numbers or
        those of the connection."""
        own = self.config.placement["connection"]
        given = {key: one.value if isinstance(one, ast.Constant) else own[ast.unparse(one)]
                 for key, one in settings.items()}  # fmt: skip
        name = next(name for name, one in NORMS.items() if one is kind)
        return self.built({**option_content("norm", name), **given}, kind(WIDTH, **given), width)

    def built(self, file: Mapping[str, Any], norm: nn.Module, width: str) -> str:
        """Returns what builds a norm of a file's keys."""
        kind: Any = NORMS[file["type"]]
        takes = parameters(kind)
        numbers = {key: file.get(key, one.default) for key, one in takes.items()}
        numbers = {key: one for key, one in numbers.items() if type(one) in (int, float)}
        if not file.get("formula") or [*norm.buffers()]:
            words = [f"{k}={v!r}" for k, v in numbers.items() if v != takes[k].default]
            return f"{self.copies.name(kind)}({', '.join([width, *words])})"
        text = self._text(kind, file, norm, numbers)
        if text not in self.names:
            name = "Plain" * (file.get("gain") == "none") + kind.__name__
            alike = [one for one in self.classes if re.fullmatch(rf"{name}\d*", one)]
            self.names[text] = name = f"{name}{len(alike) + 1 if alike else ''}"
            self.classes[name] = f"class {name}(nn.Module):\n    {text}"
        return f"{self.names[text]}({width})"

    def _text(self, kind: Any, file: Any, norm: nn.Module, numbers: Mapping[str, Any]) -> str:
        """Returns the docstring and the methods of a norm. The docstring is that of its class,
        unless the file states another formula."""
        document, formula = kind.__doc__ or "", file["formula"]
        if not " ".join(document.split()).startswith(f"{formula} "):
            document = f"{formula}      {file.get('source', '')}".strip()
        known = {n: str(n) for n in (1, *numbers.values()) if type(n) is int and n > 0}
        sample = NORMS.maker(file)(width := math.lcm(WIDTH, *known))
        named, lines = {"x": "y", "gain": "1", "bias": "0", **numbers}, []
        for (key, own), one in zip(norm.named_parameters(), sample.parameters(), strict=True):
            name, shape = key.removesuffix(".weight"), [known.get(n, "width") for n in one.shape]
            start = float(own.detach().flatten()[0]) if own.dim() == 1 else 0.0
            of_width = float(one.detach().flatten()[0]) == width**0.5  # as ScaleNorm's
            text = filled(", ".join(shape), start, "width**0.5" if of_width else repr(start))
            lines.append(f"self.{name} = nn.Parameter({text})")
            named[name] = f"self.{name}"
        tree = InTorch(self.copies, {key: expression(str(one)) for key, one in named.items()})
        body = [f"y = {self.copies.name(wide)}(x)", *_statements(tree.visit(expression(formula)))]
        lines = ["", "    def __init__(self, width):", "super().__init__()", *lines, "",
                 "    def forward(self, x):", *body, "return y.to(x.dtype)"]  # fmt: skip
        each = [one if not one or one[0] == " " else f"        {one}" for one in lines]
        return "\n".join([f'"""{wrapped(document)}"""', *each])


def filled(shape: str, start: float, value: str) -> str:
    """Returns the text of a tensor whose numbers are all the `start`, whose text is `value`."""
    made = {0.0: "zeros", 1.0: "ones"}.get(start)
    return f"torch.{made}({shape})" if made else f"torch.full([{shape}], {value})"


class InTorch(ast.NodeTransformer):
    """Rewrites a formula: what is `named` for each name, and torch for each function."""

    def __init__(self, copies: Copies, named: Mapping[str, ast.expr]) -> None:
        self.copies, self.named = copies, named

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
            inside = InTorch(self.copies, dict(zip(names, given, strict=True)))
            return inside.visit(expression(ast.unparse(function.body)))
        if isinstance(function, ast.Name):
            function = expression(self.copies.name(getattr(stated, function.id)))
        return ast.Call(function, given, [])


def _statements(tree: ast.expr) -> list[str]:
    """Returns `y = ...`, after a statement that names the largest part which occurs twice."""
    texts = Counter(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp))
    whole, repeated = ast.unparse(tree), [text for text, count in texts.items() if count > 1]
    if not repeated:
        return [f"y = {whole}"]
    largest = max(repeated, key=len)
    rest = whole.replace(f"({largest})", "z").replace(largest, "z")
    return [f"z = {largest}", f"y = {rest}"]


# The functions of a formula, as stated.py writes them.
_TREE: Any = next(one for one in ast.parse(inspect.getsource(stated)).body
                  if isinstance(one, ast.AnnAssign))  # fmt: skip
FUNCTIONS = {key.value: pair.elts[1]
             for key, pair in zip(_TREE.value.keys, _TREE.value.values, strict=True)}  # fmt: skip
