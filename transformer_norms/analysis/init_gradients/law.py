"""How the last gradient changes with depth: c N^s fitted for each seed, and what bounds it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import Any

from transformer_norms.analysis.init_gradients.asking import Setting
from transformer_norms.analysis.init_gradients.measuring import Row
from transformer_norms.model.placement import Placement
from transformer_norms.model.sites import Site, SubLayerPlan
from transformer_norms.report.paired_tests import half_interval

_SMALL = 1e-3  # of an eps, beside the mean square of 1 with which the stream begins


@dataclass(frozen=True)
class Law:
    """c N^s. `slopes` are the s of the seeds, `factor` is the geometric mean of their c; `misfit`
    the largest factor, either way, between the seeds' geometric mean at a depth and this."""

    slopes: tuple[float, ...]
    factor: float
    misfit: float

    @property
    def slope(self) -> float:
        return fmean(self.slopes)

    @property
    def half(self) -> float | None:
        """Half of Student's 95 % interval of the mean slope; None of one seed."""
        return half_interval(self.slopes)

    def __call__(self, depth: float) -> float:
        return self.factor * depth**self.slope


def law(values: Sequence[Mapping[int, float]]) -> Law | None:
    """Of the values by depth of each seed: log(value) on log(depth), least squares. None where a
    value has no logarithm, being zero or not finite."""
    if not all(0 < value < math.inf for own in values for value in own.values()):
        return None
    x = {depth: math.log(depth) for depth in values[0]}
    y = [{depth: math.log(value) for depth, value in own.items()} for own in values]
    lines = [linear_regression([*x.values()], [own[depth] for depth in x]) for own in y]
    slope, intercept = (fmean(numbers) for numbers in zip(*lines, strict=True))
    off = (fmean(own[depth] for own in y) - slope * at - intercept for depth, at in x.items())
    misfit = math.exp(max(map(abs, off)))
    return Law(tuple(line.slope for line in lines), math.exp(intercept), misfit)


@dataclass(frozen=True)
class Variant:
    """All that was measured of one variant, and the power of N that bounds its last gradient."""

    name: str
    rows: Sequence[Row]
    bound: float | None

    @property
    def law(self) -> Law | None:
        """Of |dL/dW_down| in the last block."""
        seeds = dict.fromkeys(row.seed for row in self.rows)
        return law([{r.depth: r.down for r in self.last if r.seed == seed} for seed in seeds])

    @property
    def last(self) -> list[Row]:
        """Those of the last blocks."""
        return [row for row in self.rows if row.block == row.depth]

    def model(self, depth: int) -> list[Row]:
        """Those of all blocks of a depth."""
        return [row for row in self.rows if row.depth == depth]

    def by_block(
        self, depth: int, mean: Callable[[Sequence[float]], float], value: Callable[[Row], float]
    ) -> list[float]:
        """The mean over seeds in each block of a depth."""
        rows = self.model(depth)
        blocks = range(1, depth + 1)
        return [mean([value(row) for row in rows if row.block == block]) for block in blocks]


def variants(setting: Setting, rows: Sequence[Row]) -> list[Variant]:
    return [
        Variant(
            name,
            [row for row in rows if row.variant == name],
            bound(configs[0]) if setting.xiong else None,
        )
        for name, configs in setting.variants.items()
    ]


def bound(config: Mapping[str, Any]) -> float | None:
    """The power of N beyond which the last gradient does not grow, as Xiong et al. 2020
    (arXiv:2002.04745) prove under their suppositions: post O(d sqrt(ln d)); pre, with a norm at
    the end, O(d sqrt(ln d / N)). Their norm is LayerNorm; that it holds of RMSNorm is our reading.
    """
    placement, norm = Placement(**config["placement"]), config["norm"]
    series = placement.topology == "serial" and not placement.where
    small = norm["type"] in ("layernorm", "rmsnorm") and norm["eps"] <= _SMALL
    if not (series and small):
        return None
    pre, post = (SubLayerPlan(sites={name: Site("norm")}) for name in ("pre", "post"))
    plans = list(placement.plans(0, 1).values())
    if plans == [post, post]:
        return 0.0
    return -0.5 if plans == [pre, pre] and config["final_norm"] == "norm" else None


def bounds(block: int) -> tuple[float, float]:
    """Of the mean square of pre's stream after block l, from 1, under the same suppositions:
    (1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d"""
    return 1 + block / 2, 1 + 3 * block / 2


def geometric(values: Sequence[float]) -> float:
    """The geometric mean; 0 where a value is."""
    return 0.0 if 0 in values else math.exp(fmean(map(math.log, values)))
