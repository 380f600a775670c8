"""Every norm: one class in one file here, one YAML in configs/norm.

A norm is built as `norm(width)`, acts on the last axis, and keeps shape and dtype. Its docstring is
its formula and its paper. Statistics are computed in float32 at least, whatever the input's dtype,
and gains are kept in float32: the result is rounded once, at the end.
"""

import importlib
import pkgutil
from typing import Any, TypeVar

from transformer_norms.registry import Registry

T = TypeVar("T")

NORMS = Registry("norm")


def nothing(x: T, *_: Any) -> T:
    """What stands in an empty site: x itself. A function, so absent from the module tree."""
    return x


@NORMS("none")
def none(width: int) -> Any:
    """x                                      no normalization, no parameters"""
    return nothing


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
