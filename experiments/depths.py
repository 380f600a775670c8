"""What depth changes for each placement: its loss at its own rate, and the rates at which it
trains."""

from collections.abc import Mapping
from typing import Any

from transformer_norms.analysis.rendering import svg_bytes
from transformer_norms.report.figures import FONT, line_style, subplots
from transformer_norms.report.findings import Findings
from transformer_norms.report.tuning_audit import Audit, audits
from transformer_norms.text_tables import markdown_table

BOTTOM, TOP = 1.8, 2.1  # nats of the trials that are drawn
RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)
Audits = Mapping[str, Mapping[int, Audit]]  # by placement and depth


def audits_of(found: Findings) -> Audits:
    own: dict[str, dict[int, Audit]] = {}
    for audit in audits(found.study):
        values = audit.variant.values
        own.setdefault(values["placement"], {})[values["model.depth"]] = audit
    return own


def depths_text(found: Findings) -> str:
    """The mean losses, and of the rates the chosen one and the lowest above it that failed."""
    own = audits_of(found)
    depths = sorted({depth for by_depth in own.values() for depth in by_depth})
    losses = [["placement", *(f"{depth} blocks" for depth in depths)]]
    rates = [losses[0]]
    for placement, by_depth in own.items():
        results = [found.outcomes[by_depth[depth].variant.name] for depth in depths]
        losses += [[placement, *("" if o.mean is None else f"{o.mean:.4f}" for o in results)]]
        rates += [[placement, *(_rates(by_depth[depth]) for depth in depths)]]
    return (
        f"Mean losses:\n\n{markdown_table(losses)}\n\nThe chosen rate, and the lowest rate above "
        f"it at which the trial failed (one seed):\n\n{markdown_table(rates)}"
    )


def failing(audit: Audit) -> float | None:
    """The lowest rate above the chosen one at which a trial failed."""
    failed = [rate for rate in audit.outcomes if rate not in audit.training]
    return min((rate for rate in failed if rate > (audit.chosen or 0)), default=None)


def _rates(audit: Audit) -> str:
    fails = failing(audit)
    highest = max(audit.outcomes)
    beyond = f"fails at {fails:.2g}" if fails else f"none fails up to {highest:.2g}"
    return f"{audit.chosen:.2g}, {beyond}" if audit.chosen else beyond


def draw(found: Findings) -> bytes:
    """The mean loss of each placement over depth, hollow where some runs failed. Beside it, with
    the fewest and with the most blocks, the loss of its trials at each rate, and a cross on the
    frame at the lowest one that failed."""
    own = audits_of(found)
    depths = sorted({depth for by_depth in own.values() for depth in by_depth})
    figure, panels = subplots(1, 3, figsize=(9.0, 3.4), layout="constrained")
    for place, (placement, by_depth) in enumerate(own.items()):
        colour, dashes = line_style(place)
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.2}
        style["markersize"] = 3
        results = {depth: found.outcomes[by_depth[depth].variant.name] for depth in depths}
        shown = {depth: one.mean for depth, one in results.items() if one.mean is not None}
        panels[0].plot(*zip(*shown.items(), strict=True), "o", label=placement, **style)
        hollow = {depth: mean for depth, mean in shown.items() if results[depth].failed}
        panels[0].plot(hollow.keys(), hollow.values(), "o", color=colour, mfc="white", ms=5)
        for axes, depth in zip(panels[1:], (depths[0], depths[-1]), strict=True):
            audit = by_depth[depth]
            axes.plot(*zip(*sorted(audit.means.items()), strict=True), "o", **style)
            if fails := failing(audit):
                axes.plot(fails, TOP, "x", color=colour, markersize=5, clip_on=False)
    panels[0].set_xscale("log", base=2)
    panels[0].set_xticks(depths, [str(depth) for depth in depths])
    panels[0].set_xlabel("blocks")
    panels[0].set_ylabel("validation loss, nats per byte")
    for axes, depth in zip(panels[1:], (depths[0], depths[-1]), strict=True):
        axes.set_ylim(BOTTOM, TOP)
        axes.set_xscale("log")
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axes.minorticks_off()
        axes.set_xlabel(f"learning rate, {depth} blocks, tuning seed")
    figure.legend(loc="outside lower center", ncols=8, fontsize=FONT, frameon=False)
    return svg_bytes(figure)
