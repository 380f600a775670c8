"""Checks the annotations of the package on every call, jaxtyping's shapes among them.

jaxtyping's import hook writes `@jaxtyping.jaxtyped(typechecker=...)` above every function. That
decorator calls beartype twice a call and costs as much as a small model. Here a function without
shapes has beartype alone, and one with shapes is checked once, its arguments and its result
together, in one scope of names.
"""

import inspect
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _import_hook

# An int is allowed where a float is annotated.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


class Loader(_import_hook._JaxtypingLoader):
    """jaxtyping looks for compiled files of its own while it runs a module, and finds none of what
    that imports: torch, scipy and sympy would be compiled anew. Here only while it reads one."""

    exec_module = SourceFileLoader.exec_module

    def get_code(self, fullname: str) -> Any:
        own = partial(_import_hook._optimized_cache_from_source, self._typechecker.get_hash())
        with patch("importlib._bootstrap_external.cache_from_source", own):
            return super().get_code(fullname)


def install(package: str) -> None:
    """Checks every module of the package that is imported from now on."""
    jaxtyping.jaxtyped = decorate
    _import_hook._JaxtypingLoader = Loader
    jaxtyping.install_import_hook(package, "shape_checker.check")


def decorate(thing: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    if thing is None:
        return partial(decorate, typechecker=typechecker)
    if not inspect.isfunction(thing):  # a dataclass, whose constructor is checked; a property
        return _jaxtyped(thing, typechecker=typechecker)
    if any(map(_has_shape, thing.__annotations__.values())):
        return _jaxtyped(_check_known(thing), typechecker=None)
    # beartype writes and compiles a checker for each function that another one makes anew.
    return thing if "<locals>" in thing.__qualname__ else _check_known(thing)


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
