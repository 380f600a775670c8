"""What removing norms cost, for a person: a table, sentences, a figure."""

from collections.abc import Sequence
from math import nan
from statistics import fmean
from typing import Any

import numpy as np

from transformer_norms.analysis.norm_removal.cost import Cost
from transformer_norms.analysis.norm_removal.freezing import STAGES
from transformer_norms.analysis.norm_removal.tuning import (
    AT_ONCE,
    BEFORE,
    FIRST,
    ORDER,
    TUNED,
)
from transformer_norms.report.drawing import FONT, GREY, plain, pyplot, saved, style
from transformer_norms.report.paired_tests import half_interval

_IN_TABLE = (BEFORE, AT_ONCE, *STAGES, TUNED)
LEGEND = (
    "Validation losses in nats per token; at once: all norms frozen at the step of the first, and "
    "nothing tuned after; mlp, attention, final, first token: once these had gone, one by one; "
    "gap: tuned without norms less the control, which was tuned alike with its norms."
)
_IN_TURN = (BEFORE, *STAGES, FIRST, TUNED)
SMOOTH = 15  # steps, of what is drawn of a step's differences


def rows(costs: Sequence[Cost], stages: Sequence[str] = _IN_TABLE) -> list[list[str]]:
    """A heading, and a row a run: the validation loss at each stage, the control's, and the gap."""
    found = [["run", *stages, "control", "gap"]]
    for one in costs:
        losses = [_number(one.removed.get(stage)) for stage in stages]
        gap = "diverged" if one.gap is None else f"{one.gap:+.4f}"
        found.append(
            [f"{one.name} s{one.seed}", *losses, _number(one.control.get(TUNED)), gap]
        )  # fmt: skip
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def gaps(costs: Sequence[Cost]) -> list[str]:
    """Of each variant over its seeds, with Student's 95 % interval; where a run diverged there is
    none, since those that are left are no sample of all."""
    found = []
    for name, own in _by_name(costs).items():
        known = [one.gap for one in own if one.gap is not None]
        seeds = f"{len(own)} seed{'s' * (len(own) > 1)}"
        if len(known) < len(own):
            rest = f"; the others {', '.join(f'{gap:+.3f}' for gap in known)}" if known else ""
            found.append(f"{name}: {len(own) - len(known)} of {seeds} diverged{rest}")
            continue
        mean, half = fmean(known), half_interval(known)
        within = "" if half is None else f"95 % interval {mean - half:+.3f} to {mean + half:+.3f}, "
        found.append(f"{name}: {mean:+.3f} nats against the control ({within}{seeds})")
    return found


def folding(costs: Sequence[Cost]) -> list[str]:
    """How exactly the folded models are what they were folded from; nothing of none."""
    known = [one.rounding for one in costs if one.rounding is not None]
    if not known:
        return []
    return [
        f"folded into the weights: the same logits in float64, to {max(known):.0e} of the largest"
    ]


def _by_name(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {}
    for one in costs:
        found.setdefault(one.name, []).append(one)
    return found


def figure(costs: Sequence[Cost]) -> bytes:
    """An SVG. Left the validation loss at each stage; right how far each step's training loss lies
    above the control's, on the same batch. A thin line a seed, a thick one a variant's mean."""
    plt = pyplot()
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    for place, (name, own) in enumerate(_by_name(costs).items()):
        colour, dashes = style(place + 1)
        _stages(left, own, colour, name)
        _differences(right, own, colour, dashes, name)
    left.set_xticks(range(len(ORDER)), ORDER, rotation=20)
    left.set(ylabel="validation loss, nats per token", xlabel="norms frozen so far")
    right.set(xlabel="step", ylabel=f"training loss - control's, nats\n(mean of {SMOOTH} steps)")
    right.axhline(0, color=GREY, linewidth=0.8)
    spans = {(one.steps.get(AT_ONCE, -1), one.steps.get(FIRST, -1)) for one in costs}
    start, end = next(iter(spans))
    if len(spans) == 1 and 0 <= start < end:  # not of models of other depths
        right.axvspan(start, end, color=GREY, alpha=0.12, linewidth=0)
        right.annotate(
            "norms go", ((start + end) / 2, 0.97), xycoords=("data", "axes fraction"),
            ha="center", va="top", fontsize=FONT, color=GREY,
        )  # fmt: skip
    for axes in (left, right):
        plain(axes)
        axes.legend(fontsize=FONT, frameon=False)
    data = saved(drawn, "svg")
    plt.close(drawn)
    return data


def _stages(axes: Any, own: Sequence[Cost], colour: str, name: str) -> None:
    """Filled while the norms go, in turn; a cross for the control; alone and hollow what all at
    once costs without any tuning."""
    for n, one in enumerate(own):
        for losses, mark, line, words in (
            (one.removed, "o", "-", "norms go"),
            (one.control, "x", "--", "control"),
        ):
            axes.plot(
                [ORDER.index(stage) for stage in _IN_TURN],
                [losses.get(stage, nan) for stage in _IN_TURN],
                mark, linestyle=line, color=colour, markersize=3.5, linewidth=0.9,
                label=None if n else f"{name}, {words}",
            )  # fmt: skip
        axes.plot(
            [ORDER.index(AT_ONCE)], [one.removed.get(AT_ONCE, nan)], "D", color=colour,
            markerfacecolor="none", markersize=4,
        )  # fmt: skip


def _differences(axes: Any, own: Sequence[Cost], colour: str, dashes: Any, name: str) -> None:
    found = []
    for one in own:
        steps = min(len(one.training), len(one.control_training))
        apart = np.array(one.training[:steps]) - np.array(one.control_training[:steps])
        if steps >= SMOOTH:
            found.append(np.convolve(apart, np.ones(SMOOTH) / SMOOTH, "valid"))
            axes.plot(np.arange(len(found[-1])) + SMOOTH, found[-1], color=colour, linewidth=0.4)
    if found:
        mean = np.mean([line[: min(map(len, found))] for line in found], axis=0)
        axes.plot(
            np.arange(len(mean)) + SMOOTH, mean, color=colour, linestyle=dashes, linewidth=1.6,
            label=name,
        )  # fmt: skip
