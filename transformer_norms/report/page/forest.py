"""The differences from the baseline as small pictures, a row each on one scale."""

from dataclasses import dataclass
from math import isfinite
from statistics import median

from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant

WIDTH, HEIGHT = 180, 26
_EDGE = 9  # room at either end, for arrows and half a dot
_FAR = 4  # times the median of what variants need: what lies beyond is at the edge


@dataclass(frozen=True)
class Forest:
    """x positions of a row: where zero lies, the band not worth naming, the interval, the mean (not
    of pairs that diverged), a dot for each seed with its words. `beyond`: whether the interval goes
    on to the left, right."""

    zero: float
    band: tuple[float, float]
    mean: float | None
    interval: tuple[float, float] | None
    beyond: tuple[bool, bool]
    seeds: list[tuple[float, str]]
    words: str


@dataclass(frozen=True)
class Scale:
    """`limit` is the difference at either end, in nats per token."""

    limit: float

    def __call__(self, difference: float) -> float:
        inside = max(-1.0, min(1.0, difference / self.limit))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - _EDGE), 1)


def scale(findings: Findings) -> Scale:
    """On which all differences and intervals stand, but for what lies so far out that the others
    would be one."""
    extents = [
        extent for v in findings.study.variants if (extent := _extent(findings, v)) is not None
    ]
    far = _FAR * median(extents) if extents else 0.0
    return Scale(1.1 * max(findings.study.effect, min(far, max(extents, default=0.0))) or 1.0)


def _extent(findings: Findings, variant: Variant) -> float | None:
    """How far from zero anything of a variant lies."""
    compared = findings.comparisons.get(variant.name)
    ends = [compared.low, compared.high, compared.difference] if compared else []
    found = [abs(end) for end in (*ends, *_differences(findings, variant).values()) if end]
    return max(found, default=None)


def forest(findings: Findings, variant: Variant, on: Scale) -> Forest | None:
    """None where there is no difference to show."""
    compared = findings.comparisons.get(variant.name)
    if compared is None or compared.difference is None:
        return None
    effect, limit = findings.study.effect, on.limit
    there = compared.low is not None and compared.high is not None
    low, high = compared.low or 0.0, compared.high or 0.0
    return Forest(
        on(0),
        (on(-effect), on(effect)),
        None if compared.verdict == "diverged" else on(compared.difference),
        (on(low), on(high)) if there else None,
        (there and low < -limit, there and high > limit),
        [(on(d), f"seed {s}: {d:+.4f}") for s, d in _differences(findings, variant).items()],
        f"difference {compared.difference:+.4f} nats"
        + (f", 95 % interval {low:+.4f} to {high:+.4f}" if there else ""),
    )


def _differences(findings: Findings, variant: Variant) -> dict[int, float]:
    """By seed, of the pairs of which neither run diverged."""
    if variant.name not in findings.comparisons or variant.baseline is None:
        return {}
    own, other = findings.outcomes[variant.name], findings.outcomes[variant.baseline]
    lost = own.diverged | other.diverged
    return {
        seed: own.losses[seed] - other.losses[seed]
        for seed in sorted(own.losses.keys() & other.losses.keys() - lost)
        if isfinite(own.losses[seed] - other.losses[seed])
    }
