"""Where the scatter of a difference comes from: weights, order of the batches, text, tuned rate.

A study crosses the I seeds of the weights with the O seeds of the order. With x_io the difference
at one seed of each, the mean squares of an analysis of variance without replication give the parts:

    var(weights) = (MS_weights - MS_rest) / O    var(order) = (MS_order - MS_rest) / I

and MS_rest is what both change together. Without crossing all three are one part, the seed. With
d_b the mean difference on block b of the B blocks of the held-out text, the mean on another text of
that length scatters by sd(d_b) / sqrt(B), if blocks are independent.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from transformer_norms.comparison.sweep_record import ORDER, grouped, label
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import show

_NOTE = (
    "standard deviations in nats of the difference of two runs: by the weights, by the order, by "
    "what both change together; seed is all three, where they are not crossed. text: of the mean "
    "difference over other texts of this kind and length, if blocks are independent. rate: what "
    "tuning may have missed, on either side. Parts of a handful of seeds are rough"
)


def scatter_notes(findings: Findings) -> list[str]:
    """A line for each variant and its baseline whose runs cross the seeds, or record the losses by
    blocks of the held-out text."""
    groups = grouped(findings.compared, _without_order)
    lines = [line for group in groups for line in _lines(findings, group)]
    return [*lines, _NOTE] if lines else []


def crossed_parts(differences: np.ndarray) -> tuple[float, float, float]:
    """The deviations by weights (rows), by order (columns) and by both together."""
    count, columns = differences.shape
    by_row, by_column = differences.mean(1), differences.mean(0)
    rest = differences - by_row[:, None] - by_column + differences.mean()
    squares = float((rest**2).sum()) / ((count - 1) * (columns - 1))
    weights = float(by_row.var(ddof=1)) - squares / columns
    order = float(by_column.var(ddof=1)) - squares / count
    return math.sqrt(max(0.0, weights)), math.sqrt(max(0.0, order)), math.sqrt(squares)


def _without_order(variant: Variant) -> dict[str, object]:
    return {key: value for key, value in variant.values.items() if key != ORDER}


def _lines(findings: Findings, group: Sequence[Variant]) -> Iterator[str]:
    """The line of variants that differ in the order of their batches alone."""
    pairs = [(variant, findings.study.baseline_of(variant)) for variant in group]
    comparisons = [findings.comparisons[variant.name] for variant in group]
    differences = [dict(zip(c.seeds, c.differences, strict=False)) for c in comparisons]
    common = sorted(set.intersection(*map(set, differences)))  # none where a run failed
    blocks = [
        block
        for pair, seeds in zip(pairs, differences, strict=True)
        for block in _blocks(findings, pair, seeds)
    ]
    if len(common) < 2 or not (blocks or len(group) > 1):
        return
    table = np.array([[one[seed] for one in differences] for seed in common])
    names = ("weights", "order", "together") if len(group) > 1 else ("seed",)
    values = crossed_parts(table) if len(group) > 1 else (float(table.std(ddof=1)),)
    parts = dict(zip(names, values, strict=True))
    alike = len({len(block) for block in blocks}) == 1
    if alike and len(mean := np.mean(blocks, axis=0)) > 1:
        parts["text"] = float(mean.std(ddof=1)) / math.sqrt(len(mean))
    if findings.slack:
        parts["rate at most"] = fmean(max(c.slack) for c in comparisons)
    shown = [f"{name} {show(value, '.4f', 'unknown')}" for name, value in parts.items()]
    name, baseline = (label(_without_order(one)) for one in pairs[0])
    seeds = " x ".join(map(str, table.shape if len(group) > 1 else [len(common)]))
    yield f"{name} - {baseline}, {seeds} seeds: {', '.join(shown)}"


def _blocks(
    findings: Findings, pair: tuple[Variant, Variant], seeds: dict[int, float]
) -> Iterator[np.ndarray]:
    """The differences of a pair by blocks of the text, at each of the seeds that has them."""
    part = "test_blocks" if findings.study.loss == "test_loss" else "val_blocks"
    ours, theirs = (
        {run.seed: getattr(run.summary, part) for run in variant.ended} for variant in pair
    )
    for seed in seeds:
        if ours[seed] and len(ours[seed]) == len(theirs[seed]):
            yield np.subtract(ours[seed], theirs[seed])
