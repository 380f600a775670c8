"""Checks the annotations of the package on every call, jaxtyping's shapes among them.

jaxtyping's import hook writes `@jaxtyping.jaxtyped(typechecker=...)` above every function. That
decorator calls beartype twice a call and costs as much as a small model. Here a function without
shapes has beartype alone, and one with shapes is checked once, its arguments and its result
together, in one scope of names, and only while `shapes_are_checked`.
"""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintParamDefaultViolation
from jaxtyping import _import_hook
from jaxtyping._storage import pop_shape_memo, push_shape_memo

# An int is allowed where a float is annotated.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped
shapes_are_checked = True  # conftest says in which areas


class Loader(_import_hook._JaxtypingLoader):
    """jaxtyping looks for compiled files of its own while it runs a module, and finds none of what
    that imports: torch, scipy and sympy would be compiled anew. Here only while it reads one."""

    exec_module = SourceFileLoader.exec_module

    def get_code(self, fullname: str) -> Any:
        own = partial(_import_hook._optimized_cache_from_source, self._typechecker.get_hash())
        with patch("importlib._bootstrap_external.cache_from_source", own):
            return super().get_code(fullname)


def install(*packages: str) -> None:
    """Checks every module of the packages that is imported from now on."""
    jaxtyping.jaxtyped = decorate
    _import_hook._JaxtypingLoader = Loader
    jaxtyping.install_import_hook(packages, "shape_checker.check")


def decorate(thing: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    if thing is None:
        return partial(decorate, typechecker=typechecker)
    if is_dataclass(thing):
        return _check_constructor(thing, typechecker)
    if not inspect.isfunction(thing):  # a property
        return _jaxtyped(thing, typechecker=typechecker)
    if any(map(_has_shape, thing.__annotations__.values())):
        return _scope(_check_known(thing), thing)
    # beartype writes and compiles a checker for each function that another one makes anew.
    return thing if "<locals>" in thing.__qualname__ else _check_known(thing)


def _check_constructor(owner: Any, typechecker: Callable[..., Any]) -> Any:
    """Checks the arguments of a dataclass as those of a function."""
    try:
        owner.__init__ = decorate(owner.__init__, typechecker=typechecker)
    except BeartypeDecorHintParamDefaultViolation:  # a mark stands for what a factory makes
        return _jaxtyped(owner, typechecker=typechecker)
    return owner


def _scope(function: Callable[..., Any], unchecked: Callable[..., Any]) -> Callable[..., Any]:
    """Gives each call a scope of names. jaxtyping's own binds the arguments to the signature in
    each call, which takes as long as a norm: for sizes that are computed from arguments, and for a
    note in the error. Only what has such sizes, or is a generator, goes the long way."""
    if inspect.isgeneratorfunction(inspect.unwrap(function)) or any(
        "{" in str(kind) for kind in function.__annotations__.values()
    ):
        return _jaxtyped(function, typechecker=None)

    @wraps(function)
    def scoped(*arguments: Any, **named: Any) -> Any:
        if not shapes_are_checked:
            return unchecked(*arguments, **named)
        push_shape_memo({})
        try:
            return function(*arguments, **named)
        finally:
            pop_shape_memo()

    return scoped


def _check_known(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checks a function's annotations, but for names in quotes that are not imported yet, or only
    for a type checker."""
    whole = function.__annotations__
    function.__annotations__ = {
        name: _resolve(annotation, function.__globals__) for name, annotation in whole.items()
    }
    checked = check(function)
    function.__annotations__ = checked.__annotations__ = whole
    return checked


def _resolve(annotation: Any, names: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:
        return Any


def _has_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(annotation)))
