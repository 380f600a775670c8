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
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the spikes in PER steps, exact where the counts follow Poisson's law
        (Garwood 1936): the quantiles of chi squared / 2. Where they scatter more, it is that of the
        counts divided by `scale`, as in a quasi-Poisson model: Pearson's chi squared / (n - 1),
        times the squared ratio of Student's quantile to the normal one, as n runs measure it badly.
        """
        runs, count, steps = len(self.counts), sum(self.counts), sum(self.steps)
        scale = 1.0
        if count > 1 and runs > 1:  # one spike measures nothing
            expected = [count * of_run / steps for of_run in self.steps]
            pairs = zip(self.counts, expected, strict=True)
            squared = math.fsum((one - mean) ** 2 / mean for one, mean in pairs) / (runs - 1)
            ratio = student_quantile(runs - 1, LEVEL) / student_quantile(math.inf, LEVEL)
            scale = max(1.0, squared * ratio**2)
        low = special.gammaincinv(count / scale, LEVEL / 2) if count else 0.0
        high = special.gammaincinv(count / scale + 1, 1 - LEVEL / 2)
        unit = PER * scale / steps
        return float(low) * unit, min(PER, float(high) * unit)

    def __str__(self) -> str:
        """`1.4 (0.2 to 9.0)`, `0 (at most 2.4)`"""
        low, high = self.bounds
        places = max(0, 1 - math.floor(math.log10(high)))
        if not any(self.counts):
            return f"0 (at most {high:.{places}f})"
        value = PER * sum(self.counts) / sum(self.steps)
        return f"{value:.{places}f} ({low:.{places}f} to {high:.{places}f})"
