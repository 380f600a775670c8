"""A norm's formula, as its YAML states it, compared with what its class computes."""

import inspect
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from traceback import walk_tb
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_norms.errors import ConfigError
from transformer_norms.formula import Formula, Functions
from transformer_norms.kinds import plain
from transformer_norms.norms import NORMS

WIDTH = 12
SIZES = (1.0, 1e-3, 30.0)  # of tokens: small ones show an eps, large ones a bound
TOLERANCE = 1e-5  # of the largest number; a class may compute in float32


def first(x: Tensor, share: float) -> Tensor:
    """The first coordinates: int(share * width) of them, and at least one."""
    return x[..., : max(1, int(share * x.shape[-1]))]


def group_mean(x: Tensor, groups: int) -> Tensor:
    """The mean of the part of the features that a feature lies in, for each feature."""
    parts = x.unflatten(-1, (groups, -1))
    return parts.mean(-1, keepdim=True).expand_as(parts).flatten(-2)


FUNCTIONS: Functions = {
    "mean": (1, lambda x: x.mean(-1, keepdim=True)),
    "var": (1, lambda x: x.var(-1, keepdim=True, correction=0)),
    "sum": (1, lambda x: x.sum(-1, keepdim=True)),
    "norm": (1, lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    "batch_mean": (1, lambda x: x.flatten(0, -2).mean(0)),
    "batch_var": (1, lambda x: x.flatten(0, -2).var(0, correction=0)),
    "first": (2, first),
    "group_mean": (2, group_mean),
    "product": (2, lambda matrix, x: F.linear(x, matrix)),
    "sqrt": (1, torch.sqrt),
    "log": (1, torch.log),
    "exp": (1, torch.exp),
    "abs": (1, torch.abs),
    "sign": (1, torch.sign),
    "tanh": (1, torch.tanh),
    "sigmoid": (1, torch.sigmoid),
    "silu": (1, F.silu),
    "erf": (1, torch.erf),
    "max": (2, lambda x, bound: torch.clamp(x, min=bound)),
    "min": (2, lambda x, bound: torch.clamp(x, max=bound)),
}


def check_formula(kind: str, formula: str, settings: Mapping[str, Any]) -> None:
    """ValueError where the class `kind`, built with `settings`, does not compute `formula`.

    Both are worked out on random tokens of several sizes, with random parameters.
    """
    _check(kind, formula, json.dumps(plain(settings), sort_keys=True))


def check_width(kind: str, width: int, settings: Mapping[str, Any]) -> None:
    """ValueError where the class `kind`, with `settings`, cannot be built at a width."""
    _build(NORMS[kind], width, json.dumps(plain(settings), sort_keys=True))


def is_fault(error: BaseException) -> bool:
    """Returns whether an error comes out of a norm's forward pass: then it is not a refusal."""
    return any(frame.f_code.co_name == "forward" for frame, _ in walk_tb(error.__traceback__))


@cache
def _build(kind: Any, width: int, settings_json: str) -> Any:
    x = torch.ones(2, 3, width)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        norm = kind(width, **json.loads(settings_json))
        if (shape := norm(x).shape) != x.shape:
            raise ValueError(f"{kind.__name__} returns {list(shape)} for x of {list(x.shape)}")
    return norm


def _build_somewhere(kind: str, settings_json: str) -> tuple[Any, int]:
    """Returns the norm and its width. A norm that has groups, say, needs a multiple of them."""
    settings = json.loads(settings_json)
    whole = [value for value in settings.values() if type(value) is int and value > 0]
    for number in (1, *whole):
        width = math.lcm(WIDTH, number)
        with suppress(ValueError):
            return _build(NORMS[kind], width, settings_json), width
    return _build(NORMS[kind], WIDTH, settings_json), WIDTH


@cache
def _check(kind: str, formula: str, settings_json: str) -> None:
    settings = json.loads(settings_json)
    stated, generator = Formula(formula, FUNCTIONS), torch.Generator().manual_seed(0)
    norm, width = _build_somewhere(kind, settings_json)
    if not isinstance(norm, torch.nn.Module):  # the norm that computes nothing
        norm = torch.nn.Identity()
    for name in sorted(stated.names):
        if name not in settings and type(getattr(norm, name, None)) is Tensor:
            raise ConfigError(f"{kind}.{name} is a plain tensor, which nothing trains: write "
                              f"self.{name} = nn.Parameter(...)")  # fmt: skip
    norm = norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        for size in SIZES:
            x = size * torch.randn(2, 3, width, generator=generator, dtype=torch.float64)
            computed = norm(x)
            expected = torch.as_tensor(stated({**values_of(norm, settings), "x": x}))
            distance = (computed - expected).abs().max()
            if not distance <= TOLERANCE * expected.abs().max():
                at = (computed - expected).abs().flatten().argmax()
                here, there = (y.expand_as(x).flatten()[at] for y in (computed, expected))
                raise ValueError(
                    f"'{formula}' is not what the norm {kind} computes: on a random token it is "
                    f"{there:.4g} where the class gives {here:.4g}"
                )


def values_of(norm: torch.nn.Module, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a formula may use besides x: the norm's numbers, where its file leaves one out
    the default of its class, its parameters and its matrices. A gain that is kept as an offset is
    1 + offset; a gain that is absent is 1 and a bias that is absent 0."""
    arguments = inspect.signature(type(norm)).parameters.values()
    values = {**{one.name: one.default for one in arguments}, **settings}
    numbers = {key: value for key, value in values.items() if type(value) in (int, float)}
    named = norm.named_parameters()
    parameters = {name.removesuffix(".weight"): p.detach() for name, p in named}
    gain = 1 + parameters["offset"] if "offset" in parameters else 1.0
    return {"gain": gain, "bias": 0.0, **numbers, **parameters}
