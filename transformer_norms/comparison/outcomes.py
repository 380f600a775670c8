"""The outcomes of a variant's runs: the losses of those that trained, and the count of those that
failed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from scipy import special

from transformer_norms.comparison.statistics import FEWEST, LEVEL, deviation, half_interval


@dataclass(frozen=True)
class Share:
    """`count` of `total`, and bounds on the probability of which it is a sample."""

    count: int
    total: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Clopper & Pearson 1934, 95 %, two-sided. If `count` is 0 there is no lower bound, and the
        upper one is the one-sided 1 - 0.05^(1/n)."""
        low, high = 0.0, 1.0
        if self.count:
            low = special.betaincinv(self.count, self.total - self.count + 1, LEVEL / 2)
        if self.count < self.total:
            level = LEVEL / 2 if self.count else LEVEL
            high = special.betaincinv(self.count + 1, self.total - self.count, 1 - level)
        return float(low), float(high)

    def __str__(self) -> str:
        """`2 of 3 (9 to 99 %)`, `0 of 3 (at most 63 %)`, `0 of 0`."""
        low, high = (f"{100 * bound:.0f}" for bound in self.bounds)
        within = f"{low} to {high} %" if self.count else f"at most {high} %"
        return f"{self.count} of {self.total}" + (f" ({within})" if self.total else "")


@dataclass(frozen=True)
class Outcomes:
    """The results of one variant's runs, by seed.

    `losses` has the final loss of each run that trained, and nothing else. `failed` has the reason
    of each run that failed: `diverged`, or `no better than the bigram (2.482)`. `missing` are the
    planned seeds that have not ended.
    """

    losses: Mapping[int, float]
    failed: Mapping[int, str] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()

    @property
    def seeds(self) -> set[int]:
        """All planned seeds."""
        return {*self.losses, *self.failed, *self.missing}

    @property
    def ended(self) -> int:
        return len(self.losses) + len(self.failed)

    @property
    def planned(self) -> int:
        return self.ended + len(self.missing)

    @property
    def mean(self) -> float | None:
        """The mean loss of the runs that trained; None if none did."""
        return fmean(self.losses.values()) if self.losses else None

    @property
    def sd(self) -> float | None:
        """The standard deviation over the runs that trained; None below two."""
        return deviation(list(self.losses.values())) if len(self.losses) > 1 else None

    @property
    def half(self) -> float | None:
        """Half the width of Student's 95 % interval of the mean; None below FEWEST runs."""
        return half_interval(list(self.losses.values())) if len(self.losses) >= FEWEST else None

    @property
    def median(self) -> float | None:
        """The median loss, for which a failed run counts as infinity."""
        values = [*self.losses.values(), *[math.inf] * len(self.failed)]
        return median(values) if values else None

    @property
    def failure(self) -> Share:
        """The share of the ended runs that failed."""
        return Share(len(self.failed), self.ended)

    @property
    def reasons(self) -> str:
        """`2 diverged, 1 no better than the bigram`"""
        counts = Counter(reason.partition(" (")[0] for reason in self.failed.values())
        return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())

    @property
    def failure_text(self) -> str:
        """`3 of 5 (15 to 95 %; 2 diverged, 1 no better than the bigram)`, or as a share has it."""
        return f"{self.failure}"[:-1] + f"; {self.reasons})" if self.failed else f"{self.failure}"


def fisher_p(every: Sequence[Outcomes]) -> float | None:
    """Fisher's exact test of one probability of failure, two-sided; None unless there are two
    variants, each with runs.  Fisher 1935"""
    if len(every) != 2 or not all(one.ended for one in every):
        return None
    from scipy.stats import fisher_exact

    return float(fisher_exact([[len(one.failed), len(one.losses)] for one in every]).pvalue)
