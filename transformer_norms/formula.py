"""Arithmetic in YAML: `(2*N)**0.25`, `1/sqrt(l)`, `i == 0`. Parsed and walked, never run."""

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
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
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# The functions that may be called: name -> (number of arguments, function).
Functions = Mapping[str, tuple[int, Callable[..., Any]]]
OF_NUMBERS: Functions = {"sqrt": (1, math.sqrt), "log": (1, math.log), "abs": (1, abs)}


class Formula:
    """A formula of named values, which is called with them.

    The values are numbers such as N (blocks), R = 2N, i, l = i + 1, d, dh, m, H (heads), L
    (context). A norm's formula has tokens among its values, and `functions` of tokens.

    A formula holds numbers, names, + - * / % ** ( ), the functions, and the comparisons
    < <= > >= == !=. Anything else is refused by a ValueError when it is parsed.
    """

    def __init__(self, text: str | float, functions: Functions = OF_NUMBERS) -> None:
        self.text, self.functions = str(text), functions
        self._tree, self.names = _read(
            self.text, tuple((name, count) for name, (count, _) in functions.items())
        )

    def __call__(self, values: Mapping[str, Any]) -> Any:
        unknown = sorted(self.names - values.keys())
        if unknown:
            known = " ".join(sorted(values))
            raise ValueError(f"'{self.text}' names {unknown[0]}; known here are {known}")
        try:
            result = self._walk(self._tree, values)
        except (ArithmeticError, ValueError) as error:
            raise ValueError(f"'{self.text}' has no value here: {error}") from None
        if isinstance(result, complex) or (
            isinstance(result, (int, float)) and not math.isfinite(result)
        ):
            raise ValueError(f"'{self.text}' has no finite value here")
        return result

    def _walk(self, node: ast.AST, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.UnaryOp(op=op, operand=operand):
                return _OPERATIONS[type(op)](self._walk(operand, values))
            case ast.BinOp(left=left, op=op, right=right):
                base = self._walk(left, values)
                # A float base keeps 9**9**9 an overflow at once instead of a very long integer.
                base = float(base) if isinstance(base, int) else base
                return _OPERATIONS[type(op)](base, self._walk(right, values))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _OPERATIONS[type(op)](self._walk(left, values), self._walk(right, values))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                _, function = self.functions[name]
                return function(*(self._walk(argument, values) for argument in arguments))
        raise AssertionError(f"unreachable: {node}")


@lru_cache(maxsize=256)
def _read(text: str, arguments: tuple[tuple[str, int], ...]) -> tuple[ast.expr, frozenset[str]]:
    """Returns the tree of a formula and the names of its values. `arguments` is how many each
    function takes. A deep model states the same few formulas once a weight."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        why = "write abs(x) for |x|" if "|" in text else error.msg
        raise ValueError(f"'{text}' is not a formula: {why}") from None
    for node in ast.walk(tree):
        _refuse_unknown(node, text, dict(arguments))
    return tree, _names(tree)


def _refuse_unknown(node: ast.AST, text: str, arguments: Mapping[str, int]) -> None:
    number = isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)
    comparison = isinstance(node, ast.Compare) and len(node.ops) == 1
    # `load` marks every name that is read: not a separate syntax.
    plain = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load))
    call = False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        call = arguments.get(node.func.id) == len(node.args)
    if not (number or call or comparison or plain or type(node) in _OPERATIONS):
        raise ValueError(
            f"'{text}' is not a formula: numbers, names, + - * / % **, < <= > >= == !=, "
            f"{', '.join(arguments)} are all"
        )


def is_formula(tree: ast.AST, names: Collection[str]) -> bool:
    """Returns whether a parsed text is a formula of numbers and of values with these names."""
    try:
        for node in ast.walk(tree):
            _refuse_unknown(node, "", {name: count for name, (count, _) in OF_NUMBERS.items()})
    except ValueError:
        return False
    return _names(tree) <= {*names}


def _names(tree: ast.AST) -> frozenset[str]:
    """The names of values; the names of functions are left out."""
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return frozenset(node.id for node in names if id(node) not in calls)


_NEEDS_NO_BRACKETS = re.compile(r"[\w.]+(\(\w+\))?")  # 0.02, d, sqrt(d)


def substitute(name: str, formula: str | float, text: str | float) -> str | float:
    """Writes a formula in the place of a name in another formula: `default/sqrt(N)` becomes
    `0.02/sqrt(N)`."""
    if not isinstance(text, str) or text == name:
        return formula if text == name else text
    return re.sub(rf"\b{name}\b", lambda _: _in_brackets(formula), text)


def quotient(*formulas: str | float) -> str:
    """Returns the first formula divided by the others, as a formula: `0.5/sqrt(d)`."""
    first, *others = map(_in_brackets, formulas)
    return "/".join([first, *(other for other in others if other not in ("1", "1.0"))])


def _in_brackets(formula: str | float) -> str:
    text = str(formula)
    return text if _NEEDS_NO_BRACKETS.fullmatch(text) else f"({text})"
