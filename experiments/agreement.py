"""Does the order of placements at one scale, a number of steps or a width, hold at another?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from primary import primary_contrasts, primary_rows
from tokens_needed import needed_text

from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.comparison.statistics import LEVEL
from transformer_norms.comparison.verdict import compare
from transformer_norms.report.findings import Findings, asked_comparisons
from transformer_norms.text_tables import markdown_table

SCALES = {  # by study: the key that grows, and a word for its values
    "horizon": ("trainer.steps", "steps"),
    "horizon_pydocs": ("trainer.steps", "steps"),
    "size": ("model.width", "width"),
}
DRAWS = 2000
WINDOWS = 5  # in which training losses are compared: up to a sixteenth of the steps, ... all
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The five placements at one value of the key and one number of steps. `variants` are their
    names in the report, by placement, and `losses` has a row for each placement and a column for
    each seed; None where a run failed or is missing."""

    value: int
    steps: int
    label: str
    variants: Mapping[str, str]
    losses: Array | None

    @property
    def means(self) -> Array:
        assert self.losses is not None
        return self.losses.mean(axis=1)

    @property
    def error(self) -> tuple[float, int]:
        """The standard error of a mean once the mean of its seed is taken away, and its degrees of
        freedom: the residual of placements x seeds."""
        assert self.losses is not None
        rows, columns = self.losses.shape
        rest = self.losses - self.losses.mean(0) - self.means[:, None] + self.losses.mean()
        freedom = (rows - 1) * (columns - 1)
        return float(np.sqrt((rest**2).sum() / freedom / columns)), freedom


def scales_of(name: str, found: Findings) -> list[Scale]:
    """The least first: by the key, and by the steps where a key's value has two numbers of them."""
    key, _ = SCALES[name]
    by_value: dict[tuple[int, int], dict[str, str]] = {}
    for variant in found.study.variants:
        place = variant.values[key], variant.values["trainer.steps"]
        by_value.setdefault(place, {})[variant.values["placement"]] = variant.name
    scales = []
    for (value, steps), names in sorted(by_value.items()):
        outcomes = [found.outcomes[name] for name in names.values()]
        whole = not any(one.failed or one.missing or not one.losses for one in outcomes)
        losses = [[one.losses[seed] for seed in sorted(one.losses)] for one in outcomes]
        label = f"{value:,}" if key == "trainer.steps" else f"{value:,}, {steps:,} steps"
        scales.append(Scale(value, steps, label, names, np.array(losses) if whole else None))
    return scales


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau of the order of two scales' means, and its 95 % interval."""

    tau: float
    low: float
    high: float


def agree(one: Scale, other: Scale) -> Agreement | None:
    """The interval is that of DRAWS draws of the means, each with its error, a t of the residual's
    degrees of freedom. None where a run of either failed."""
    if one.losses is None or other.losses is None:
        return None
    random = np.random.default_rng(0)
    drawn = []
    for scale in (one, other):
        error, freedom = scale.error
        drawn.append(scale.means + error * random.standard_t(freedom, (DRAWS, len(scale.means))))
    low, high = np.quantile(kendall_tau(*drawn), [0.025, 0.975])
    return Agreement(float(kendall_tau(one.means, other.means)), float(low), float(high))


def kendall_tau(one: Array, other: Array) -> Array:
    """The pairs of the last axis that stand in one order in both, less those that do not, over all
    pairs (no two values are equal)."""
    i, j = np.triu_indices(one.shape[-1], 1)
    signs = np.sign(one[..., i] - one[..., j]) * np.sign(other[..., i] - other[..., j])
    return np.asarray(signs.mean(axis=-1))


def answer(name: str, found: Findings) -> str:
    """The words that were decided before the runs."""
    scales, word = scales_of(name, found), SCALES[name][1]
    first, last = scales[0], scales[-1]
    least, most = f"{word} {first.label}", f"{word} {last.label}"
    if reversed_ := _reversed(name, scales, found):
        return f"{least} does not predict {most}: {'; '.join(reversed_)}."
    apart = [one for one in primary_contrasts(found) if one.is_apart]
    failed = [one for one in primary_contrasts(found) if one.value is None]
    agreement = agree(first, last)
    if not apart and not failed and agreement and agreement.low > 0:
        return f"{least} predicts {most}, by the words that were decided before."
    reasons = [f"{one.contrast.text} is told apart from zero" for one in apart]
    reasons += [f"{one.contrast.text} has no value, as runs failed" for one in failed]
    if agreement is not None and agreement.low <= 0:
        reasons.append("the interval of tau reaches zero")
    return f"Neither word is said of {least} and {most}: {'; '.join(reasons)}."


def _reversed(name: str, scales: Sequence[Scale], found: Findings) -> list[str]:
    """The placements that are better than pre-norm at one scale and worse at another, both told
    apart: by the words that were decided before, contrasts and differences are one family."""
    asked = asked_comparisons(found.study, found.outcomes, found.slack)
    comparisons = compare(asked, found.rules)
    lines, word = [], SCALES[name][1]
    for placement in scales[0].variants:
        signs: dict[str, list[str]] = {"better": [], "worse": []}
        for scale in scales:
            c = comparisons.get(scale.variants[placement])
            if c is None or c.difference is None or c.p is None or c.p >= LEVEL:
                continue
            signs["better" if c.difference < 0 else "worse"].append(f"{word} {scale.label}")
        if all(signs.values()):
            places = [f"{sign} at {' and '.join(where)}" for sign, where in signs.items()]
            lines.append(f"{placement} is {', '.join(places)}")
    return lines


def study_text(name: str, found: Findings) -> str:
    scales = scales_of(name, found)
    parts = [
        answer(name, found),
        markdown_table(primary_rows(primary_contrasts(found))),
        "The difference from pre-norm in nats, with its 95 % interval; the n-gram that pre passes:",
        markdown_table(_differences(name, scales, found)),
        f"Kendall's tau of the orders of the means, with the 95 % interval of {DRAWS:,} draws:",
        markdown_table(_taus(scales)),
    ]
    by_steps = SCALES[name][0] == "trainer.steps"
    parts += [needed_text(found)] if by_steps else []
    if by_steps and len(rows := training_rows(scales[-1], found)) > 1:
        parts += [
            "Asked when the results had been seen: inside the runs of "
            f"{scales[-1].steps:,} steps, the difference in training loss of the placements that "
            "train at pre-norm's rate, in nats, with its standard error over the seeds; and by how "
            "many steps they reach that loss later, below zero earlier:",
            markdown_table(rows),
        ]
    return "\n\n".join(parts)


def training_rows(scale: Scale, found: Findings) -> list[list[str]]:
    """A table: X - pre of the mean training loss from five sixths of a step to that step, at the
    last step, at half of it, and so on, of each X that has the tuned values of pre-norm; and the
    steps by which X reaches its mean loss there later than pre. The headings alone where there is
    no such X, or where a run failed."""
    chosen = {
        placement: tuned.best if (tuned := found.study.variant(name).tuned) else None
        for placement, name in scale.variants.items()
    }
    alike = [p for p in chosen if p != "pre" and chosen[p] == chosen["pre"]]
    headings = [heading for p in alike for heading in (f"{p} - pre", f"{p} later by")]
    rows = [["steps", *headings]]
    if not alike or scale.losses is None:  # the losses of a run that failed may end early
        return rows
    losses = {p: _training_losses(found, scale.variants[p]) for p in ("pre", *alike)}
    for last in (scale.steps // 2**k for k in reversed(range(WINDOWS))):
        cells = []
        for placement in alike:
            pairs = [
                _mean_before(own, last) - _mean_before(losses["pre"][seed], last)
                for seed, own in losses[placement].items()
            ]
            error = stdev(pairs) / len(pairs) ** 0.5
            later = _steps_later(_mean_curve(losses[placement]), _mean_curve(losses["pre"]), last)
            cells += [f"{fmean(pairs):+.3f} ± {error:.3f}", f"{later:+,}"]
        rows.append([f"{last * 5 // 6:,} to {last:,}", *cells])
    return rows


def _steps_later(one: Mapping[int, float], other: Mapping[int, float], last: int) -> int:
    """The steps by which `one` reaches the mean loss before `last` later than `other`, below zero
    where it is `other` that reaches its own later."""
    if _mean_before(one, last) < _mean_before(other, last):
        return -_steps_later(other, one, last)
    reached = (step for step in other if _mean_before(other, step) <= _mean_before(one, last))
    return last - min(reached, default=last)


def _training_losses(found: Findings, name: str) -> dict[int, dict[int, float]]:
    """The training loss by step, by seed, of the runs of a variant."""
    return {
        run.seed: {row["step"]: row["train/loss"] for row in run.metrics() if "train/loss" in row}
        for run in found.study.variant(name).ended
    }


def _mean_curve(losses: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """The mean over the seeds at each step that all have."""
    steps = set.intersection(*({*own} for own in losses.values()))
    return {step: fmean(own[step] for own in losses.values()) for step in sorted(steps)}


def _mean_before(losses: Mapping[int, float], last: int) -> float:
    """Over the last sixth of the steps until `last`."""
    return fmean(loss for step, loss in losses.items() if last * 5 // 6 < step <= last)


def _differences(name: str, scales: Sequence[Scale], found: Findings) -> list[list[str]]:
    rows = [[SCALES[name][1], *(f"{p} - pre" for p in scales[0].variants if p != "pre"), "passed"]]
    for scale in scales:
        cells = []
        for placement, variant in scale.variants.items():
            if placement == "pre":
                continue
            c = found.comparisons.get(variant)
            text = "a run failed"
            if c is not None and c.difference is not None:
                difference, interval = difference_and_interval(c)
                text = f"{difference} ({interval.removeprefix('95 % interval ')})"
            cells.append(text)
        passed = found.passed(scale.variants["pre"]) or ""
        rows.append([scale.label, *cells, passed])
    return rows


def _taus(scales: Sequence[Scale]) -> list[list[str]]:
    rows = [["from", "to", "tau", "95 % interval"]]
    for one, other in combinations(scales, 2):
        found = agree(one, other)
        cells = ["a run failed", ""]
        if found is not None:
            cells = [f"{found.tau:+.2f}", f"{found.low:+.2f} to {found.high:+.2f}"]
        rows.append([one.label, other.label, *cells])
    return rows
