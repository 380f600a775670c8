"""The primary contrasts of a study: those that were declared before it ran. They are its family."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.comparison.statistics import LEVEL
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.findings import Findings


@dataclass(frozen=True)
class Primary:
    """A contrast and what became of it: None where its variants have no results."""

    contrast: Contrast
    comparison: Comparison | None

    @property
    def p(self) -> float | None:
        """Times the contrasts of the family; None where a run failed, or of one that was asked for
        when the results had been seen."""
        return self.comparison.p if self.comparison else None

    @property
    def value(self) -> float | None:
        return self.comparison.difference if self.comparison else None

    @property
    def is_apart(self) -> bool:
        """Whether it is told apart from zero."""
        return self.p is not None and self.p < LEVEL


def primary_contrasts(found: Findings) -> list[Primary]:
    """The contrasts of a study, in the order in which they were declared."""
    return [Primary(each, found.contrasts.get(each.text)) for each in found.study.contrasts]


def primary_rows(
    primaries: Sequence[Primary], heading: str = "primary contrast"
) -> list[list[str]]:
    """A table: the contrast, its value in nats with its interval, and p."""
    rows = [[heading, "value", "95 % interval", f"p (times {len(primaries)})"]]
    for one in primaries:
        value, interval = "a run failed", ""
        if one.comparison is not None and one.value is not None:
            value, interval = difference_and_interval(one.comparison)
            value = f"{'' if value.startswith('-') else '+'}{value}"
        p = "" if one.p is None else "below 0.001" if one.p < 0.001 else f"{one.p:.3f}"
        rows.append([one.contrast.text, value, interval.removeprefix("95 % interval "), p])
    if all(one.p is None for one in primaries):
        rows = [row[:-1] for row in rows]
    return rows
