"""The primary contrasts of a study: those that were declared before it ran, as one family."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.comparison.statistics import LEVEL, holm
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.findings import Findings


@dataclass(frozen=True)
class Primary:
    """A declared contrast. `p` is after Holm's correction over the declared contrasts alone; None
    where a run of it failed, or where its variants have no results."""

    contrast: Contrast
    comparison: Comparison | None
    p: float | None

    @property
    def value(self) -> float | None:
        return self.comparison.difference if self.comparison and self.p is not None else None

    @property
    def is_apart(self) -> bool:
        """Whether it is told apart from zero."""
        return self.p is not None and self.p < LEVEL


def primary_contrasts(found: Findings) -> list[Primary]:
    """The contrasts of a study, in the order in which they were declared. One without a p counts in
    the correction as if its p were 1."""
    known = [found.contrasts.get(contrast.text) for contrast in found.study.contrasts]
    raw = {
        contrast.text: 1.0 if c is None or c.p is None else c.p
        for contrast, c in zip(found.study.contrasts, known, strict=True)
    }
    corrected = holm(raw)
    return [
        Primary(contrast, c, None if c is None or c.p is None else corrected[contrast.text])
        for contrast, c in zip(found.study.contrasts, known, strict=True)
    ]


def primary_rows(
    primaries: Sequence[Primary], heading: str = "primary contrast"
) -> list[list[str]]:
    """A table: the contrast, its value in nats with its interval, and p."""
    rows = [[heading, "value", "95 % interval", f"p (Holm over {len(primaries)})"]]
    for one in primaries:
        value, interval = "a run failed", ""
        if one.value is not None:
            assert one.comparison is not None
            value, interval = difference_and_interval(one.comparison)
            value = f"{'' if value.startswith('-') else '+'}{value}"
        p = "" if one.p is None else "below 0.001" if one.p < 0.001 else f"{one.p:.3f}"
        rows.append([one.contrast.text, value, interval.removeprefix("95 % interval "), p])
    return rows
