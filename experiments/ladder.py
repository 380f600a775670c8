"""The ladder: one law for the loss of all placements over compute, and the compute that each saves.

L = E + A C^-a, with one E and one a for all placements and an A for each. Two placements of one
loss then need compute in the ratio (A / A')^(1/a), at every loss.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import optimize, stats

from transformer_norms.analysis.rendering import svg_bytes
from transformer_norms.report.figures import FONT, line_style, subplots, use_log_axis
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons.prices import horizon_of
from transformer_norms.text_tables import markdown_table

UNIT = 1e12  # of compute: 1 TFLOP
BASELINE = "pre"
STEEPEST = 2.0  # the largest a that is sought
Laws = Mapping[int, "Law"]  # by seed


@dataclass(frozen=True)
class Point:
    """A run: its placement and seed, its FLOPs in UNIT, its validation loss in nats per token."""

    placement: str
    seed: int
    compute: float
    loss: float


@dataclass(frozen=True)
class Law:
    """`floor` is E in nats, `exponent` a, and `scales` has A of each placement, in nats at UNIT."""

    floor: float
    exponent: float
    scales: Mapping[str, float]

    def loss(self, placement: str, compute: float) -> float:
        return self.floor + self.scales[placement] * compute**-self.exponent

    def saved(self, placement: str) -> float:
        """log of the compute of the baseline over that of `placement`, at one loss."""
        ratio = self.scales[BASELINE] / self.scales[placement]
        return float(np.log(ratio)) / self.exponent

    def saved_by(self, point: Point) -> float:
        """The same from the point's own loss: of the compute in which the baseline's law has it."""
        needed = (self.scales[BASELINE] / (point.loss - self.floor)) ** (1 / self.exponent)
        return float(np.log(needed / point.compute))


@dataclass(frozen=True)
class Estimate:
    """The mean over the seeds, and its 95 % interval by Student's t."""

    value: float
    low: float
    high: float


def fit(points: Sequence[Point]) -> Law:
    """Least squares in nats. At a given a the rest is linear."""
    names = list(dict.fromkeys(point.placement for point in points))
    losses = np.array([point.loss for point in points])
    own = np.array([[point.placement == name for name in names] for point in points])
    computes = np.array([point.compute for point in points])

    def solve(a: float) -> tuple[float, np.ndarray]:
        design = np.column_stack([np.ones(len(points)), own * computes[:, None] ** -a])
        found = np.linalg.lstsq(design, losses, rcond=None)[0]
        return float(np.square(design @ found - losses).sum()), found

    # Where a is small E and A are nearly one; the bound keeps them apart.
    best = optimize.minimize_scalar(
        lambda a: solve(a)[0], bounds=(0.01, STEEPEST), method="bounded", options={"xatol": 1e-9}
    )
    _, (floor, *scales) = solve(best.x)
    return Law(float(floor), float(best.x), dict(zip(names, map(float, scales), strict=True)))


def laws_of(points: Sequence[Point]) -> Laws:
    """A law for each seed, so that what is fitted has independent repetitions."""
    seeds = sorted({point.seed for point in points})
    return {seed: fit([point for point in points if point.seed == seed]) for seed in seeds}


def estimate(values: Iterable[float], extra: float = 0) -> Estimate:
    """`extra` is the variance that one value has besides."""
    numbers = list(values)
    mean, count = fmean(numbers), len(numbers)
    spread = np.sqrt((np.var(numbers, ddof=1) + extra) / count)
    half = float(stats.t.ppf(0.975, count - 1) * spread)
    return Estimate(mean, mean - half, mean + half)


def predicted(laws: Laws, points: Sequence[Point], placement: str, compute: float) -> Estimate:
    """The mean loss of as many runs as there are seeds, at another compute: their scatter about the
    law is that of the fitted runs."""
    misses = [
        point.loss - laws[point.seed].loss(point.placement, point.compute) for point in points
    ]
    fitted = len(laws) * (2 + len({point.placement for point in points}))
    scatter = float(np.square(misses).sum()) / (len(points) - fitted)
    return estimate((law.loss(placement, compute) for law in laws.values()), scatter)


def slope(laws: Laws, points: Sequence[Point], placement: str) -> Estimate:
    """How much the log of the compute saved grows for each doubling of compute."""

    def of_seed(seed: int) -> float:
        own = [p for p in points if (p.seed, p.placement) == (seed, placement)]
        doublings = [np.log2(point.compute) for point in own]
        return float(np.polyfit(doublings, [laws[seed].saved_by(point) for point in own], 1)[0])

    return estimate(map(of_seed, laws))


def points_of(studies: Iterable[Findings]) -> tuple[list[Point], list[str]]:
    """The results of the ladder's studies, and the placements of which a run failed or is missing:
    these have no points, since the seeds that are left would be a choice."""
    pairs = [(found, variant) for found in studies for variant in found.study.variants]
    outcomes = [(v.values["placement"], v, found.outcomes[v.name]) for found, v in pairs]
    lost = {p: None for p, _, one in outcomes if one.failed or one.missing or not one.losses}
    points = [
        Point(placement, seed, variant.flops_per_token * tokens / UNIT, loss)
        for placement, variant, one in outcomes
        if placement not in lost and variant.flops_per_token and (tokens := horizon_of(variant))
        for seed, loss in one.losses.items()
    ]
    return points, [*lost]


def study_text(points: Sequence[Point], lost: Sequence[str] = ()) -> str:
    """The law, what each placement saves and whether that changes with compute; and the largest
    size, predicted from the others and measured. `lost` has no points."""
    largest = max(point.compute for point in points)
    smaller = [point for point in points if point.compute < largest / 2]
    laws, before = laws_of(points), laws_of(smaller)
    placements = list(dict.fromkeys(point.placement for point in points))
    rows = [["placement", "A", "compute saved against pre", "its change for each doubling"]]
    scores = [["placement", "predicted", "95 % interval", "measured", "inside"]]
    for name in placements:
        scale = estimate(law.scales[name] for law in laws.values())
        if name == BASELINE:
            rows += [[name, f"{scale.value:.3f}", "", ""]]
        else:
            saved = estimate(law.saved(name) for law in laws.values())
            change = slope(laws, points, name)
            cells = [_shown(saved, _percent), _shown(change, "{:+.3f}".format)]
            rows += [[name, f"{scale.value:.3f}", *cells]]
        own = [p for p in points if p.placement == name and p.compute > largest / 2]
        guess = predicted(before, smaller, name, fmean(point.compute for point in own))
        found = fmean(point.loss for point in own)
        inside = "yes" if guess.low <= found <= guess.high else "no"
        interval = f"{guess.low:.4f} to {guess.high:.4f}"
        scores += [[name, f"{guess.value:.4f}", interval, f"{found:.4f}", inside]]
    floor = estimate(law.floor for law in laws.values())
    exponent = estimate(law.exponent for law in laws.values())
    return (
        f"L = E + A C^-a, C in TFLOP: E is {_shown(floor, '{:.3f}'.format)} nats per token and a "
        f"{_shown(exponent, '{:.3f}'.format)}; a fit for each seed, and 95 % intervals over "
        f"{len(laws)} seeds. The change is that of log(compute of pre / own compute).\n\n"
        f"{markdown_table(rows)}\n\nThe largest size, from the law of the others:\n\n"
        f"{markdown_table(scores)}"
        + (f"\n\nWithout a law, as a run failed or is missing: {', '.join(lost)}." if lost else "")
    )


def draw(points: Sequence[Point]) -> bytes:
    """The mean loss of each placement over compute, and its law."""
    laws = laws_of(points)
    figure, axes = subplots(figsize=(6.0, 4.0), layout="constrained")
    sizes = sorted({point.compute for point in points})
    curve = np.geomspace(sizes[0], sizes[-1], 100)
    for place, name in enumerate(dict.fromkeys(point.placement for point in points)):
        colour, dashes = line_style(place)
        means = [fmean(law.loss(name, x) for law in laws.values()) for x in curve]
        axes.plot(curve, means, color=colour, linestyle=dashes, linewidth=1, label=name)
        own: dict[float, list[float]] = {}
        for point in points:
            if point.placement == name:
                own.setdefault(point.compute, []).append(point.loss)
        axes.plot(list(own), [fmean(losses) for losses in own.values()], "o", color=colour, ms=3)
    use_log_axis(axes)
    axes.set_xlabel("TFLOP of training")
    axes.set_ylabel("validation loss, nats per token")
    axes.legend(fontsize=FONT, frameon=False)
    return svg_bytes(figure)


def _shown(one: Estimate, show: Callable[[float], str]) -> str:
    return f"{show(one.value)} ({show(one.low)} to {show(one.high)})"


def _percent(log_ratio: float) -> str:
    """The share of the baseline's compute that is saved."""
    return f"{100 * (1 - np.exp(-log_ratio)):.0f} %"
