"""Every norm: one class in one file here, one YAML in configs/norm.

    from transformer_norms.norms import RMSNorm
    y = RMSNorm(64)(x)

A norm is built as `norm(width)`, acts on the last axis, and keeps shape and dtype. Its docstring is
its formula and its paper. The arithmetic is float32 at least, for any input, and
gains are kept in float32: the result is rounded once, at the end. A run takes the settings of a
norm from its YAML. The defaults of a class are the values of the YAML that has the norm's name.

A YAML's `formula` names x, the parameters and numbers of its norm, and functions:
    mean var sum norm        of a token's coordinates; var is the mean of (x - mean(x))**2
    first(x, share)          the first coordinates, int(share * width) of them and at least one
    group_mean(x, groups)    the mean over the part, one of so many equal ones, of each coordinate
    product(matrix, x)       of a matrix that the norm learns
    batch_mean batch_var     of a coordinate over all tokens
    sqrt log exp abs sign tanh sigmoid silu erf     of each number
    max(x, bound) min(x, bound)                     of each number and a bound
Whoever chooses the norm has its formula compared with its class first (stated.py).
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from transformer_norms.names import Registry
from transformer_norms.validation import check

T = TypeVar("T")
Place = str  # where a norm is: embed, attention, mlp, block or final
Layer = Callable[..., Tensor]  # at a site: a module, or `nothing`


class Norms(Registry):
    """The norms by name. A class checks its settings when it is built, and its repr shows them."""

    def __call__(self, name: str, **facts: Any) -> Callable[[Any], Any]:
        register = super().__call__(name, **facts)

        # A class of torch has other users, for whom it stays as it is.
        def register_checked(norm: Any) -> Any:
            own = inspect.isclass(norm) and not norm.__module__.startswith("torch.")
            return register(_checked(norm) if own else norm)

        return register_checked


def _checked(norm: Any) -> Any:
    build, takes = norm.__init__, inspect.signature(norm)

    @wraps(build)
    def build_checked(self: Any, *arguments: Any, **settings: Any) -> None:
        own = {key: value for key, value in settings.items() if key not in _SUPPLIED}
        by_position = list(takes.parameters)[: len(arguments)]
        check(norm.__name__, own, norm, supplied=(*_SUPPLIED, *by_position))
        build(self, *arguments, **settings)
        bound = takes.bind(*arguments, **settings)
        bound.apply_defaults()
        self._shown = ", ".join(f"{key}={value!r}" for key, value in bound.arguments.items())

    norm.__init__ = build_checked
    if "extra_repr" not in vars(norm):
        norm.extra_repr = lambda self: getattr(self, "_shown", "")
    return norm


_SUPPLIED = ("width", "place")  # by the builder of a model
NORMS = Norms("norm")
# Keys of a norm's YAML that are not arguments of its class. `formula` is compared with the class.
NOT_ARGUMENTS = ("type", "formula", "source", "unverified", "brings")


def nothing(x: T, *_: Any) -> T:
    """x itself: an empty site. It is a function, so it is absent from the module tree."""
    return x


@NORMS("none")
def none(width: int) -> Any:
    """x                                      no normalization, no parameters"""
    return nothing


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
# A class is found by its name, and a new one is named in no list.
globals().update({norm.__name__: norm for norm in NORMS.values()})
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
