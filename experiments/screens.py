"""The screens: which placements or norms are worth a closer look?"""

from collections.abc import Mapping

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
LOWEST, APART = 6, 4  # placements that are run again for their difference, and for their gap
Screened = dict[str, dict[str, Variant]]  # by placement or norm, by optimizer


def screen_text(study: str, screens: Mapping[str, Findings]) -> str:
    """The differences from the baseline with each optimizer, the lowest with AdamW first. Below the
    screen of own starts, what both screens choose."""
    found, axis = screens[study], SCREENS[study]
    screened = variants_of(found, axis)
    base = next(name for name, own in screened.items() if not own["adamw"].compared)

    def lowest_first(name: str) -> float:
        value = difference(found, screened[name]["adamw"])
        return float("inf") if value is None else value

    rows = [[axis, *OPTIMIZERS.values()]]
    rows.append([f"{base} itself", *(_mean_text(found, screened[base][o]) for o in OPTIMIZERS)])
    for name in sorted({*screened} - {base}, key=lambda name: (lowest_first(name), name)):
        rows.append([name, *(_difference_text(found, screened[name][o]) for o in OPTIMIZERS)])
    text = (
        f"The difference from {base} in nats, with its 95 % interval, and the report's verdict "
        "where it names a difference (Holm's correction is over all "
        f"{found.compared_together} comparisons):\n\n{markdown_table(rows)}"
    )
    if study == "placements_screen_own":
        chosen = ", ".join(choose_placements([screens["placements_screen"], found]))
        text += f"\n\nBy the rule that was decided before, these are run again: {chosen}."
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


def choose_placements(screens: list[Findings]) -> list[str]:
    """The LOWEST placements by their difference with AdamW, at the better of their starts, and of
    the rest the APART ones with the largest gap between two of their differences (two optimizers,
    one or two starts). A placement with a failed run is not chosen."""
    values: dict[str, dict[str, list[float | None]]] = {}
    for found in screens:
        for placement, own in variants_of(found, "placement").items():
            for optimizer, variant in own.items():
                if variant.compared:
                    here = values.setdefault(placement, {name: [] for name in OPTIMIZERS})
                    here[optimizer].append(difference(found, variant))
    whole = {
        placement: {name: [v for v in here if v is not None] for name, here in own.items()}
        for placement, own in values.items()
        if not any(None in here for here in own.values())
    }
    lowest = sorted(whole, key=lambda placement: min(whole[placement]["adamw"]))[:LOWEST]
    rest = sorted({*whole} - {*lowest}, key=lambda placement: (-_gap(whole[placement]), placement))
    return [*lowest, *rest[:APART]]


def _gap(values: Mapping[str, list[float]]) -> float:
    every = [value for here in values.values() for value in here]
    return max(every) - min(every)


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
