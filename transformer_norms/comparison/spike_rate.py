"""How often the loss of a variant spikes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from transformer_norms.comparison.statistics import LEVEL, student_quantile

PER = 10_000  # steps, for which a rate of spikes is given


@dataclass(frozen=True)
class SpikeRate:
    """The spikes of a variant's runs. `counts` has those of each run, and `steps` the steps of each
    run at which a spike can be seen, in the same order."""

    counts: Sequence[int]
    steps: Sequence[int]

    @property
    def value(self) -> float:
        """The spikes in PER steps."""
        return PER * sum(self.counts) / sum(self.steps)

    @property
    def dispersion(self) -> float:
        """How much larger than that of Poisson's law the variance of the counts may be, at least 1:
        Pearson's chi squared / (n - 1), times the squared ratio of Student's quantile to the normal
        one, because n runs measure it badly. One spike measures nothing."""
        runs = len(self.counts)
        if sum(self.counts) < 2 or runs < 2:
            return 1.0
        expected = [self.value * steps / PER for steps in self.steps]
        pairs = zip(self.counts, expected, strict=True)
        squared = math.fsum((count - mean) ** 2 / mean for count, mean in pairs) / (runs - 1)
        ratio = student_quantile(runs - 1, LEVEL) / student_quantile(math.inf, LEVEL)
        return max(1.0, squared * ratio**2)

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the spikes in PER steps, exact where the counts follow Poisson's law
        (Garwood 1936): the quantiles of chi squared / 2. Where they scatter more, it is that of the
        counts divided by `dispersion`, as in a quasi-Poisson model."""
        scale, count = self.dispersion, sum(self.counts)
        low = special.gammaincinv(count / scale, LEVEL / 2) if count else 0.0
        high = special.gammaincinv(count / scale + 1, 1 - LEVEL / 2)
        unit = PER * scale / sum(self.steps)
        return float(low) * unit, float(high) * unit

    def __str__(self) -> str:
        """`1.4 (0.2 to 9.0)`, `0 (at most 2.4)`"""
        low, high = self.bounds
        places = max(0, 1 - math.floor(math.log10(high)))
        if not any(self.counts):
            return f"0 (at most {high:.{places}f})"
        return f"{self.value:.{places}f} ({low:.{places}f} to {high:.{places}f})"
