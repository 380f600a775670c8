"""What stands in a built model, by name: its norms and the numbers that multiply.

The model is read. The config lends a name or a formula only where the model agrees with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from transformer_norms.formula import Formula, formula_values
from transformer_norms.model.assembly import norm_of
from transformer_norms.model.attention import AllHeads, PerHead
from transformer_norms.model.block import Join
from transformer_norms.model.coefficient import (
    FUNCTIONS,
    Adding,
    Learned,
    Rest,
    Scaled,
    Times,
)
from transformer_norms.model.placement import Placement
from transformer_norms.model.sites import REST_OF_B
from transformer_norms.norms import nothing

Config = Mapping[str, Any]
Values = Mapping[str, float]


@dataclass(frozen=True)
class Factor:
    """`value` is what is multiplied by at the start, `formula` where it comes from."""

    symbol: str
    formula: str
    value: float
    learned: str = ""  # what of it is learned, as "vector of 128"; a constant otherwise
    kept: str = ""  # how it is stored, where that is not as it is used

    @property
    def varies(self) -> bool:
        """Whether blocks differ in it."""
        return self.formula != REST_OF_B and bool(Formula(self.formula).names & {"i", "l"})


@dataclass(frozen=True)
class Standing:
    """A norm at its site; `name` is `norm` for the run's own."""

    site: str
    name: str
    share: str = ""  # of heads: one for all side by side (full), one for each (per_head)
    scale: Factor | None = None


class Reader:
    """Names what the built model of a config holds."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.values: Values = formula_values(config["model"])
        self.placement = Placement(**config["placement"])
        self.built: dict[tuple[str, int], Any] = {}

    def inside(self, i: int) -> Values:
        """What formulas of block i may name."""
        return {**self.values, "i": i, "l": i + 1}

    def standing(
        self,
        site: str,
        module: Any,
        width: int,
        spec: Any = 1,
        values: Values | None = None,
        full: int = 0,
    ) -> Standing | None:
        """The norm in `module`, which acts on `width` features, or on `full` where it spans all
        heads; None where there is nothing. `spec` is its scale in the config.
        """
        share, scaled = "", isinstance(module, Scaled)
        times = module.scale if scaled else nothing
        scale = self.factor(f"{site} scale", times, spec, values or self.values)
        module = module.norm if scaled else module
        if isinstance(module, Join):
            module = module.norm
        if isinstance(module, AllHeads):
            module, share, width = module.norm, "full", full
        elif isinstance(module, PerHead):
            module, share = module.heads[0], "per_head"
        if module is nothing:
            return None
        return Standing(site, self.name(module, width), share, scale)

    def name(self, norm: Any, width: int) -> str:
        """`norm`, or the name of another that the config holds, or the class's."""
        for name in ("norm", *self.config["norms"]):
            if (name, width) not in self.built:
                self.built[name, width] = norm_of(self.config, name)(width)
            like = self.built[name, width]
            if isinstance(like, nn.Module) and _alike(norm, like):
                return name
        return type(norm).__name__

    def shown(self, name: str) -> str:
        """The name that the user knows: `norm` is the run's."""
        return self.config["choices"]["norm"] if name == "norm" else name

    def factor(self, symbol: str, thing: Any, spec: Any, values: Values) -> Factor | None:
        """What multiplies there, or None for nothing."""
        if isinstance(thing, Adding):
            thing = thing.skip
        if thing is nothing:  # as well where the config's formula is 1 here: 1/sqrt(l) at l = 1
            one = not isinstance(spec, (int, float, Mapping)) and _formula(spec, 1, values)
            return Factor(symbol, spec, 1.0) if one == spec else None
        if isinstance(thing, Rest):
            branch = self.factor("b", thing.branch, 1, values)
            return Factor(symbol, REST_OF_B, 1 - (branch.value if branch else 1))
        value, learned, kept = _number(thing)
        written = spec["init"] if isinstance(spec, Mapping) else spec
        return Factor(symbol, _formula(written, value, values), value, learned, kept)

    def constant(self, symbol: str, value: float, spec: Any) -> Factor:
        """A number that the model holds, under the config's formula where that gives it."""
        return Factor(symbol, _formula(spec, value, self.values), value)


def _formula(written: Any, value: float, values: Values) -> str:
    """The config's formula where it gives the number that the model has."""
    try:
        agrees = math.isclose(Formula(written)(values), value, rel_tol=1e-6, abs_tol=1e-12)
    except ValueError:
        agrees = False
    return str(written) if agrees else f"{value:.6g}"


def _number(thing: Any) -> tuple[float, str, str]:
    if isinstance(thing, Times):
        return float(thing.value), "", ""
    assert isinstance(thing, Learned), thing
    shape, function = tuple(thing.gain.shape), _name_of(thing.function)
    with torch.no_grad():
        value = float(thing.used().flatten()[0])
        stored = float(thing.gain.flatten()[0])
    kept = ""
    if thing.factor != 1 or function != "same":
        inner = "stored" if thing.factor == 1 else f"{thing.factor:.4g} * stored"
        outer = inner if function == "same" else f"{function}({inner})"
        kept = f"{outer}, stored from {stored:.4g}"
    return value, _shape(shape), kept


def _name_of(function: Any) -> str:
    return next(name for name, known in FUNCTIONS.items() if known is function)


def _shape(shape: tuple[int, ...]) -> str:
    match shape:
        case ():
            return "scalar"
        case (width,):
            return f"vector of {width}"
        case (heads, 1):
            return f"one for each of {heads} heads"
    return " x ".join(str(size) for size in shape)


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Of one class, with the same numbers in it and the same start."""
    mine, theirs = one.state_dict(), other.state_dict()
    return (
        type(one) is type(other)
        and _numbers(one) == _numbers(other)
        and mine.keys() == theirs.keys()
        and all(
            mine[key].shape == theirs[key].shape
            and (mine[key].is_meta or torch.equal(mine[key].cpu(), theirs[key].cpu()))
            for key in mine
        )
    )


def _numbers(norm: nn.Module) -> dict[str, Any]:
    """Its own constants, `training` aside."""
    return {
        key: value
        for key, value in vars(norm).items()
        if not key.startswith("_") and key != "training"
    }
