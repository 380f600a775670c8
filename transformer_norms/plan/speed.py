"""The time of a step: its FLOPs at an assumed utilisation, and what devices send to each other."""

from dataclasses import dataclass

from transformer_norms.plan.rehearsal import Sizes
from transformer_norms.plan.sharing import Layout
from transformer_norms.training.accelerators import Accelerator

DAY = 86400


@dataclass(frozen=True)
class Cluster:
    """`count` accelerators of one machine. `peak` is in FLOP/s of one of them, `utilisation` the
    share of it that is assumed to be made use of."""

    accelerator: Accelerator
    count: int
    peak: float
    utilisation: float

    def ring(self, size: float) -> float:
        """Returns the seconds in which a ring gathers or scatters so many bytes."""
        return size * (self.count - 1) / self.count / self.accelerator.link


@dataclass(frozen=True)
class Speed:
    """Seconds of a step: `arithmetic`, and `exchange` of gradients and weights. Under fsdp both go
    on at once; under ddp one follows the other."""

    arithmetic: float
    exchange: float
    overlaps: bool

    @property
    def step(self) -> float:
        if self.overlaps:
            return max(self.arithmetic, self.exchange)
        return self.arithmetic + self.exchange


def speed_of(cluster: Cluster, layout: Layout, flops: float, sizes: Sizes) -> Speed:
    """Returns the time of a step of so many FLOPs, of all devices together."""
    arithmetic = flops / (cluster.count * cluster.peak * cluster.utilisation)
    if layout.devices == 1:
        return Speed(arithmetic, 0.0, overlaps=False)
    if layout.parallel == "ddp":
        return Speed(arithmetic, 2 * cluster.ring(sizes.whole), overlaps=False)
    # Blocks are gathered for the forward and for the backward pass of each micro-batch; gradients
    # are scattered once.
    gathered = 2 * (sizes.whole - sizes.outside) + sizes.outside
    exchange = layout.share * cluster.ring(gathered) + cluster.ring(sizes.whole)
    return Speed(arithmetic, exchange, overlaps=True)
