"""The screens: which placements or norms are worth a closer look?"""

from claims import OPPOSITE

from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import markdown_table

SCREENS = {  # by study, what is screened; each with both optimizers
    "placements_screen": "placement",
    "placements_screen_own": "placement",
    "norms_screen": "norm",
}
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
CHOOSES = "placements_screen"  # one start for all, so that each placement has as many values
LOWEST, APART = 6, 4  # placements that are run again for their difference, and for their gap
Screened = dict[str, dict[str, Variant]]  # by placement or norm, by optimizer


def screen_text(study: str, found: Findings) -> str:
    """The differences from the baseline with each optimizer, the lowest with AdamW first. Below the
    screen that CHOOSES, what is run again."""
    screened = variants_of(found, SCREENS[study])
    base = next(name for name, own in screened.items() if not own["adamw"].compared)

    def lowest_first(name: str) -> float:
        value = difference(found, screened[name]["adamw"])
        return float("inf") if value is None else value

    rows = [[SCREENS[study], *OPTIMIZERS.values()]]
    rows.append([f"{base} itself", *(_mean_text(found, screened[base][o]) for o in OPTIMIZERS)])
    for name in sorted({*screened} - {base}, key=lambda name: (lowest_first(name), name)):
        rows.append([name, *(_difference_text(found, screened[name][o]) for o in OPTIMIZERS)])
    text = (
        f"The difference from {base} in nats, with its 95 % interval, and the report's verdict "
        f"where it names a difference, of all {found.compared_together} comparisons at once:"
        f"\n\n{markdown_table(rows)}"
    )
    if study == CHOOSES:
        text += "\n\nBy the rule that was decided before, these are run again: "
        text += f"{', '.join(choose_placements(found))}."
    return text


def variants_of(found: Findings, axis: str) -> Screened:
    screened: Screened = {}
    for variant in found.study.variants:
        screened.setdefault(variant.values[axis], {})[variant.values["optimizer"]] = variant
    return screened


def difference(found: Findings, variant: Variant) -> float | None:
    """From the baseline of its optimizer. None where a run of either failed."""
    c = found.comparisons.get(variant.name)
    return None if c is None or c.verdict == "failed" else c.difference


def choose_placements(found: Findings) -> list[str]:
    """The LOWEST placements by their difference with AdamW and, of the rest, the APART ones whose
    differences with the two optimizers are furthest apart. A value that a failed run takes away
    leaves out what needs it, and nothing else."""
    values = {
        placement: [difference(found, own[optimizer]) for optimizer in OPTIMIZERS]
        for placement, own in variants_of(found, "placement").items()
        if own["adamw"].compared
    }
    with_adamw = {name: adamw for name, (adamw, _) in values.items() if adamw is not None}
    lowest = sorted(with_adamw, key=lambda name: (with_adamw[name], name))[:LOWEST]
    gaps = {
        name: abs(adamw - muon)
        for name, (adamw, muon) in values.items()
        if name not in lowest and adamw is not None and muon is not None
    }
    return [*lowest, *sorted(gaps, key=lambda name: (-gaps[name], name))[:APART]]


def _mean_text(found: Findings, variant: Variant) -> str:
    mean = found.outcomes[variant.name].mean
    return "failed" if mean is None else f"{mean:.3f}, passes the {found.passed(variant.name)}"


def _difference_text(found: Findings, variant: Variant) -> str:
    outcomes = found.outcomes[variant.name]
    if outcomes.failed:
        return f"failed in {outcomes.failure_text}"
    c = found.comparisons.get(variant.name)
    if variant.lost:
        return "failed at every rate"
    if c is None or c.difference is None:
        return "the baseline failed"
    value, interval = difference_and_interval(c)
    word = f" {c.verdict}" if c.verdict in OPPOSITE else ""
    return f"{value} ({interval.removeprefix('95 % interval ')}){word}"
