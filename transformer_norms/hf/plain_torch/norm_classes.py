"""Writes norms as classes of plain torch, from the formula that each norm's file states.

    gain * x / sqrt(mean(x**2) + eps)
    y = self.gain * y / torch.sqrt((y**2).mean(-1, keepdim=True) + self.eps)

The functions of a formula are those of norms/stated.py. A norm without a formula is copied, and so
is one with running averages, which no formula states.
"""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Mapping
from textwrap import fill, indent
from typing import Any

from torch import Tensor, nn

from transformer_norms.config.chosen_files import option_content
from transformer_norms.hf.plain_torch.copying import LINE, Copies, expression
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import NORMS, stated
from transformer_norms.norms.parts.affine import Affine, wide

ABSENT = {"gain": 1, "bias": 0}
WIDTH = 12  # of a norm that is built to be looked at


class Norms:
    """The classes of the norms of a file, by name, and the text that builds each norm."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.texts, self.copies = config, dict[str, str](), Copies(self)
        # For a kind of norm and a formula: its class, and the numbers that are its defaults.
        self.made: dict[Any, tuple[str, Mapping[str, Any]]] = {}

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
        text = self._build(NORMS[file["type"]], file, NORMS.maker(file)(WIDTH), "width")
        return text.removesuffix("(width)") if text.endswith("(width)") else f"lambda width: {text}"

    def fixed(self, kind: Any, args: list[ast.expr], settings: Mapping[str, ast.expr]) -> ast.expr:
        """Returns the call that builds a norm which is a part of a connection's formula."""
        known = {key: one.value for key, one in settings.items() if isinstance(one, ast.Constant)}
        file = {
            **option_content("norm", next(name for name, one in NORMS.items() if one is kind)),
            **known,
        }
        call: Any = expression(self._build(kind, file, kind(WIDTH, **known), ast.unparse(args[0])))
        call.keywords += [ast.keyword(k, v) for k, v in settings.items() if k not in known]
        return call

    def _build(self, kind: Any, file: Mapping[str, Any], norm: nn.Module, width: str) -> str:
        takes, formula = parameters(kind), str(file.get("formula") or "")
        own = {name.removesuffix(".weight"): p.detach() for name, p in norm.named_parameters()}
        settings = {name: file.get(name, one.default) for name, one in takes.items()}
        numbers = {k: v for k, v in settings.items() if type(v) in (int, float)}
        if not formula or [*norm.buffers()]:
            name, defaults = self.copies.name(kind), {k: takes[k].default for k in numbers}
        else:
            names = stated.Formula(formula, stated.FUNCTIONS).names
            sizes = {size for p in own.values() if p.dim() > 1 for size in p.shape}
            numbers = {k: v for k, v in numbers.items() if k in names or v in sizes}
            numbers |= {f"{k}_init": float(p.flatten()[0]) for k, p in own.items()
                        if f"{k}_init" in settings}  # fmt: skip
            if (key := (kind, formula, *own)) not in self.made:
                name = (
                    kind.__name__
                    if own or not issubclass(kind, Affine)
                    else f"Plain{kind.__name__}"
                )
                if alike := [one for one in self.texts if re.fullmatch(rf"{name}\d*", one)]:
                    name += str(len(alike) + 1)
                self.made[key], self.texts[name] = (name, numbers), ""
                self.texts[name] = self._class(name, documented(kind, file), file, own, numbers)
            name, defaults = self.made[key]
            width = width if "self, width" in self.texts[name] else ""
        words = [f"{key}={value!r}" for key, value in numbers.items() if defaults[key] != value]
        return f"{name}({', '.join([*filter(None, [width]), *words])})"

    def _class(
        self, name: str, doc: str, file: Any, own: Mapping[str, Tensor], numbers: Any
    ) -> str:
        starts = [f"self.{key} = nn.Parameter({_start(key, p, numbers)})" for key, p in own.items()]
        tree = InTorch(self.copies, {*own, *numbers}).visit(expression(file["formula"]))
        body = [f"y = {self.copies.name(wide)}(x)", *_statements(tree), "return y.to(x.dtype)"]
        kept = [f"self.{key} = {key}" for key in numbers if f"self.{key}" in str(body)]
        takes = [
            "self",
            *["width"] * ("width" in str(starts)),
            *(f"{k}={v!r}" for k, v in numbers.items()),
        ]
        init = "\n    ".join(
            [f"def __init__({', '.join(takes)}):", "super().__init__()", *starts, *kept]
        )
        forward = "\n    ".join(["def forward(self, x):", *body])
        parts = [f'"""{doc}"""', *([init] if starts or kept else []), forward]
        return f"class {name}(nn.Module):\n" + indent("\n\n".join(parts), "    ")


def documented(kind: Any, file: Mapping[str, Any]) -> str:
    """Returns the docstring of a norm's class, or where that has another formula, the formula and
    the source of the norm's file."""
    text, formula, source = inspect.getdoc(kind) or "", file["formula"], str(file.get("source", ""))
    if not " ".join(text.split()).startswith(f"{formula} "):
        text = f"{formula}      {source}".strip()
        text = text if len(text) < LINE else f"{formula}\n\n{source}"
    text = "\n\n".join(part if max(map(len, part.split("\n"))) < LINE else fill(part, LINE)
                       for part in text.split("\n\n"))  # fmt: skip
    return text + "\n" * ("\n" in text)


def _start(name: str, value: Tensor, numbers: Mapping[str, Any]) -> str:
    """Returns the tensor that a parameter of a norm starts as."""
    names = {size: key for key, size in numbers.items() if type(size) is int}
    shape = ", ".join("1" if n == 1 else names.get(n, "width") for n in value.shape)
    start = float(value.flatten()[0])
    if start in (0, 1) and f"{name}_init" not in numbers:
        return f"torch.{'ones' if start else 'zeros'}({shape})"
    return (
        f"torch.full(({shape},), {f'{name}_init' if f'{name}_init' in numbers else 'width**0.5'})"
    )


class InTorch(ast.NodeTransformer):
    """Rewrites a formula: y for x, `self.gain` for gain, and torch for each function."""

    def __init__(self, copies: Copies, own: set[str]) -> None:
        self.copies, self.own = copies, own

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        if node.id in self.own:
            return expression(f"self.{node.id}")
        return expression("y") if node.id == "x" else ast.Constant(ABSENT[node.id])

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


def substituted(tree: ast.AST, given: Mapping[str, ast.expr]) -> Any:
    """Returns a copy of an expression or statement with the given expressions for its names."""

    class Substitute(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
            return given.get(node.id, node)

    copy: Any = ast.parse(ast.unparse(tree)).body[0]
    return Substitute().visit(copy.value if isinstance(tree, ast.expr) else copy)


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
