"""Arithmetic in YAML: `(2*N)**0.25`, `1/sqrt(l)`, `i == 0`. Parsed and walked, never run."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "log": math.log}


class Formula:
    """A number as a function of named numbers, e.g. of N (blocks), R = 2N, i, l = i + 1, d, dh, m.

    Numbers, names, + - * / % ** ( ), sqrt, log, and the comparisons < <= == !=. Anything else is
    a ValueError, at parsing.
    """

    def __init__(self, text: str | float) -> None:
        self.text = str(text)
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except SyntaxError:
            raise ValueError(f"'{self.text}' is no formula") from None
        for node in ast.walk(self._tree):
            _refuse_unknown(node, self.text)
        self.names = _names(self._tree)  # once: a deep model asks each formula once a weight

    def __call__(self, values: Mapping[str, float]) -> float:
        unknown = sorted(self.names - values.keys())
        if unknown:
            known = " ".join(sorted(values))
            raise ValueError(f"'{self.text}' names {unknown[0]}; known here are {known}")
        try:
            result = _walk(self._tree, values)
        except (ArithmeticError, ValueError) as error:
            raise ValueError(f"'{self.text}' has no value here: {error}") from None
        if isinstance(result, complex) or not math.isfinite(result):
            raise ValueError(f"'{self.text}' has no finite value here")
        return result


def _names(tree: ast.AST) -> frozenset[str]:
    """Those of numbers: what is called is none."""
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return frozenset(node.id for node in names if id(node) not in calls)


def _refuse_unknown(node: ast.AST, text: str) -> None:
    number = isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)
    call = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and len(node.args) == 1
        and not node.keywords
    )
    comparison = isinstance(node, ast.Compare) and len(node.ops) == 1
    # `load` marks every name that is read: no syntax of its own.
    plain = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load))
    if not (number or call or comparison or plain or type(node) in _OPERATIONS):
        raise ValueError(
            f"'{text}' is no formula: numbers, names, + - * / % **, sqrt, log, < <= == != are all"
        )


def _walk(node: ast.AST, values: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATIONS[type(op)](_walk(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            # A float base keeps 9**9**9 an overflow at once instead of a very long integer.
            return _OPERATIONS[type(op)](float(_walk(left, values)), _walk(right, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATIONS[type(op)](_walk(left, values), _walk(right, values))
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return _FUNCTIONS[name](_walk(argument, values))
    raise AssertionError(f"unreachable: {node}")


def formula_values(sizes: Mapping[str, int]) -> dict[str, float]:
    """What formulas in YAML may name, besides i and l of a block, from a config's `model`."""
    return {
        "N": sizes["depth"],
        "R": 2 * sizes["depth"],
        "d": sizes["width"],
        "H": sizes["heads"],
        "dh": sizes["head_dim"],
        "m": sizes["mlp_width"],
        "L": sizes["context"],
    }
