"""What the studies of widths found together: each rule's best rate and loss at each width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, stdev
from typing import Any

import numpy as np

from transformer_norms.analysis.rendering import svg_bytes
from transformer_norms.report.figures import FONT, line_style, subplots, use_log_axis
from transformer_norms.report.findings import Findings
from transformer_norms.report.tuning_audit import audits

PREFIX = "width_"  # of the names of the studies
APART = 4  # the factor of width over which a best rate should hold


@dataclass(frozen=True)
class Rule:
    """A start with its factors of the rate. By width: the validation loss on the tuning seeds at
    each rate, and the losses of the results."""

    name: str
    tuned: dict[int, Mapping[float, float]]
    results: dict[int, list[float]]

    def best_rate(self, width: int) -> float:
        return best_rate(self.tuned[width])

    def mark(self, width: int) -> str:
        """`at most` or `at least` where the best rate tried is the last one."""
        rates = sorted(self.tuned[width])
        best = self.best_rate(width)
        return "at most " if best == rates[0] else "at least " if best == rates[-1] else ""


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate at the minimum of the parabola in log(rate) through the best rate tried and its two
    neighbours; the best one itself where it is at the edge."""
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda i: losses[rates[i]])
    if at in (0, len(rates) - 1):
        return rates[at]
    near = rates[at - 1 : at + 2]
    square, slope, _ = np.polyfit(np.log(near), [losses[rate] for rate in near], 2)
    return float(np.exp(-slope / (2 * square)))


def rules_of(found: Mapping[str, Findings]) -> list[Rule]:
    """The rules of all studies of widths, in the order of the question."""
    rules: dict[str, Rule] = {}
    studies = {
        int(name.removeprefix(PREFIX)): found[name] for name in found if name.startswith(PREFIX)
    }
    for width, findings in sorted(studies.items()):
        for audit in audits(findings.study):
            variant = audit.variant
            rule = rules.setdefault(variant.name, Rule(variant.name, {}, {}))
            means = audit.means  # a rate at which no run trained has none
            rule.tuned[width] = {rate: means.get(rate, inf) for rate in audit.outcomes}
            rule.results[width] = [run.final_loss("val_loss") for run in variant.ended]
    return list(rules.values())


def rates_table(rules: Sequence[Rule]) -> list[list[str]]:
    """The best rate of each rule at each width, and by which factor it moves where the width
    grows fourfold."""
    widths = sorted(rules[0].tuned)
    pairs = [(width, APART * width) for width in widths if APART * width in widths]
    heading = ["rule", *(f"best rate at {w}" for w in widths), *(f"{a} to {b}" for a, b in pairs)]
    rows = [heading]
    for rule in rules:
        moved = [
            f"{rule.mark(wide)}x {rule.best_rate(wide) / rule.best_rate(narrow):.2f}"
            for narrow, wide in pairs
        ]
        rates = [f"{rule.mark(width)}{rule.best_rate(width):.2g}" for width in widths]
        rows.append([rule.name, *rates, *moved])
    return rows


def losses_table(rules: Sequence[Rule]) -> list[list[str]]:
    """The losses at the best rate tried, on seeds of their own: mean ± standard deviation."""
    widths = sorted(rules[0].results)
    rows = [["rule", *(f"width {width}" for width in widths)]]
    for rule in rules:
        losses = [rule.results[width] for width in widths]
        rows.append([rule.name, *(f"{fmean(own):.4f} ± {stdev(own):.4f}" for own in losses)])
    return rows


def draw_rates(rules: Sequence[Rule]) -> bytes:
    """A panel for each rule: the loss at each rate, a line for each width, and a thin line at the
    best rate of its parabola."""
    drawing, panels = subplots(
        1, len(rules), figsize=(10.0, 3.0), sharey=True, layout="constrained"
    )
    top = max(loss for rule in rules for own in rule.tuned.values() for loss in own.values())
    low = min(loss for rule in rules for own in rule.tuned.values() for loss in own.values())
    for axes, rule in zip(panels, rules, strict=True):
        use_log_axis(axes)
        axes.set_ylim(low - 0.02, min(top, low + 0.5))
        for place, (width, losses) in enumerate(rule.tuned.items()):
            colour, dashes = line_style(place)
            style: dict[str, Any] = {"color": colour, "linewidth": 1.2, "markersize": 3}
            label = f"width {width}"
            axes.plot(
                *zip(*losses.items(), strict=True), "o", linestyle=dashes, label=label, **style
            )
            axes.axvline(rule.best_rate(width), color=colour, linestyle=dashes, linewidth=0.6)
        axes.set_title(rule.name.replace(" ", "\n"), fontsize=FONT)
        axes.set(xlabel="optimizer.lr")
    panels[0].set(ylabel="validation loss, nats per byte")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                   fontsize=FONT, frameon=False)  # fmt: skip
    return svg_bytes(drawing)
