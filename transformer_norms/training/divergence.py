"""When a run has diverged: one rule, for every variant and every report."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from transformer_norms.kinds import LARGEST, is_finite
from transformer_norms.training.measures import DEVIATIONS, WINDOW
from transformer_norms.training.tensors import is_finite_tensor, local

PATIENCE = 100  # steps above the initial loss, in a row
MARGIN = 1.0  # nats that the final loss may lie above the best


class Divergence:
    """A run has diverged if a loss or gradient is not finite, if an update leaves a weight or a
    moment that is not finite (`Overflowed`), if the training loss is above the initial one for
    PATIENCE steps in a row after the warm-up, or if the final validation loss is not finite or more
    than MARGIN above the best. Losses are cross-entropies in nats, also where a run trains on
    another loss.

    A loss more than DEVIATIONS standard deviations above the mean of the last WINDOW losses is a
    spike: it is counted, and does not stop the run.
    """

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.initial: float | None = None
        self.above = 0
        self.spikes = 0
        self.recent: deque[float] = deque(maxlen=WINDOW)

    def step(self, step: int, loss: float, grad_norm: float) -> str | None:
        """Returns why training must stop at this step (counted from 1), before its update is
        applied, or None."""
        if not is_finite(loss):
            return f"the loss is {loss} at step {step}"
        if not is_finite(grad_norm):
            return f"the gradient's norm is {grad_norm} at step {step}"
        if self.initial is None:
            self.initial = loss
        self._count_spike(loss)
        self.above = self.above + 1 if step > self.warmup and loss > self.initial else 0
        if self.above >= PATIENCE:
            return f"the loss stood above its initial {self.initial:.3f} for {PATIENCE} steps"
        return None

    @property
    def may_stop_soon(self) -> bool:
        """Whether two more steps above the initial loss would stop the run."""
        return self.above + 2 >= PATIENCE

    def limit(self, step: int) -> float:
        """Returns the largest loss at which `step`, counted from 1, gives no reason to stop. Every
        step before it has been judged, or all but the last unless the run `may_stop_soon`."""
        last = step > self.warmup and self.above + 1 >= PATIENCE
        return self.initial if last and self.initial is not None else math.inf

    def end(self, final: float, best: float) -> str | None:
        """Returns why a run that reached its last step has diverged all the same, or None."""
        if not is_finite(final):
            return "the final validation loss is not finite"
        if final > best + MARGIN:
            return (
                f"the final validation loss {final:.3f} is over {MARGIN} above the best, {best:.3f}"
            )
        return None

    def _count_spike(self, loss: float) -> None:
        if len(self.recent) == WINDOW:
            mean = sum(self.recent) / WINDOW
            variance = sum((value - mean) ** 2 for value in self.recent) / WINDOW
            self.spikes += loss > mean + DEVIATIONS * math.sqrt(variance)
        self.recent.append(loss)

    def state(self) -> dict[str, Any]:
        """Returns what the rule remembers. The warm-up follows from the config."""
        remembered = {**vars(self), "recent": list(self.recent)}
        del remembered["warmup"]
        return remembered

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, recent=deque(state["recent"], maxlen=WINDOW))


class Overflowed(Exception):
    """The update of `step`, counted from 1, or an earlier one, left a number that is not finite in
    the tensor `name`. The weights before it are gone."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"{name} is not finite after the update of step {step}")
        self.step, self.name = step, name


def must_skip(numbers: Float[Tensor, " 3"], limit: Tensor) -> Float[Tensor, ""]:
    """Returns 1 where the loss, the cross-entropy and the gradient's norm of a step give a reason
    to stop, and 0 otherwise: the rule of `Divergence.step` on a device. `limit` is from
    `Divergence.limit`."""
    good = (numbers.double().abs() <= LARGEST).all() & (numbers[1].double() <= limit)
    return 1 - good.float()


def find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the first tensor that holds NaN or an infinity, or None. Of a sharded
    tensor it reads this rank's shard."""
    good = (is_finite_tensor(local(tensor.detach())) for tensor in tensors.values())
    return next((name for name, finite in zip(tensors, good, strict=True) if not finite), None)
