"""Runs that differ in seed and learning rate alone, whose gradients are computed as one.

Each run keeps a trainer of its own, in a thread of its own, and all that a trainer does. Only the
gradients of a micro-batch are computed for all runs together, by torch.func.vmap over their models:
a small model uses a GPU for a tenth of the time. The last digits differ from those of a lone run.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from transformer_norms.errors import describe_error
from transformer_norms.norms import nothing
from transformer_norms.training.loss import Batch, ModelLoss, move_batch
from transformer_norms.training.parallel.replicas import add_gradients, take_gradients
from transformer_norms.training.stopping import Stopping

MOST_FAILURES = 3  # of computing together, until each run computes by itself
ROUNDING = 0.1  # of a gradient, in bfloat16
_LOOK_EVERY = 0.1  # seconds


class Part(NamedTuple):
    """The micro-batch of one run, of which its step has `parts`."""

    loss: "StackedLoss"
    batch: Batch
    parts: int


class Stack:
    """Runs in threads that take turns: each works until it needs gradients, and waits. Once all
    that have not ended wait, one of them computes the gradients of all.

    So the runs share no moment of work, whatever a library keeps for the whole process. The runs
    need not be at the same step. `compiler` compiles the computation. With `fixed` the models of
    runs that have ended are computed on, so that their number stays and nothing compiles again.
    """

    def __init__(self, *, fixed: bool = False, compiler: Callable[[Any], Any] = nothing) -> None:
        self.fixed, self.compiler = fixed, compiler
        self.turn = threading.Condition()
        self.living = self.failures = 0
        self.reason = ""  # of the last failure
        self.waiting: dict[int, Part] = {}  # by the place of the run
        self.results: dict[int, Tensor | None] = {}
        self.losses: dict[int, StackedLoss] = {}  # whose weights are slices of `weights`
        self.parameters: dict[int, list[nn.Parameter]] = {}
        self.weights: dict[str, nn.Parameter] = {}
        self.means: Callable[..., Tensor] | None = None

    def run(
        self, works: Sequence[Callable[[], Any]], look: Callable[[], None] = lambda: None
    ) -> list[Future[Any]]:
        """Does the work of each run in a thread, and returns what each returned or raised. `look`
        is called in this thread again and again meanwhile."""
        self.living = len(works)
        with ThreadPoolExecutor(len(works), "stacked") as threads:
            begun = [threads.submit(self._take_part, work) for work in works]
            while wait(begun, _LOOK_EVERY).not_done:
                look()
        return begun

    def _take_part(self, work: Callable[[], Any]) -> Any:
        with self.turn:
            try:
                return work()
            finally:
                self.living -= 1
                self.turn.notify_all()

    def backward(self, part: Part) -> Tensor | None:
        """Waits for the other runs. Adds the gradients of the part to those of its model, and
        returns what ModelLoss.backward returns; None where that has to be called instead."""
        place = part.loss.place
        self.waiting[place] = part
        while place not in self.results:
            if len(self.waiting) < self.living:
                self.turn.wait()
                continue
            parts, self.waiting = dict(sorted(self.waiting.items())), {}
            for shape in {part.batch.shape for part in parts.values()}:
                alike = {i: part for i, part in parts.items() if part.batch.shape == shape}
                self.results |= self._try(alike)
            self.turn.notify_all()
        return self.results.pop(place)

    def _try(self, parts: Mapping[int, Part]) -> Mapping[int, Tensor | None]:
        """Computes together. After an error each run computes by itself: the one that is to blame
        then fails as it would alone."""
        if self.failures < MOST_FAILURES:
            try:
                return self.gradients(parts)
            except Exception as error:
                take_gradients(self.weights.values())
                self.failures, self.reason = self.failures + 1, describe_error(error)
        return dict.fromkeys(parts)

    def gradients(self, parts: Mapping[int, Part]) -> dict[int, Tensor]:
        """Adds the gradients of these parts, by place, to those of their models. Returns for each
        its loss and its cross-entropy, divided by `parts`."""
        present = {place: part.loss for place, part in parts.items()}
        losses = {**self.losses, **present} if self.fixed else present
        if losses != self.losses:
            self._bind(losses)
        assert self.means is not None
        filling = next(iter(parts.values()))
        each = [parts.get(place, filling) for place in self.losses]
        batches = move_batch(torch.cat([part.batch for part in each]), filling.loss.device)
        means = self.means(self.weights, batches.unflatten(0, (len(each), -1)))  # [runs, 2]
        shares = [1 / parts[i].parts if i in parts else 0.0 for i in self.losses]
        divided = means * means.new_tensor(shares)[:, None]
        divided[:, 0].sum().backward()
        stacks = take_gradients(self.weights.values())
        for k, place in enumerate(self.losses):
            if place in parts:
                own = [None if stacked is None else stacked[k] for stacked in stacks]
                add_gradients(self.parameters[place], own)
        return {i: row for i, row in zip(self.losses, divided.detach(), strict=True) if i in parts}

    def _bind(self, losses: dict[int, "StackedLoss"]) -> None:
        """Moves the weights of these models into slices of tensors [runs, ...]."""
        self.losses, self.weights = losses, {}
        self.parameters = {i: list(loss.model.parameters()) for i, loss in losses.items()}
        names = [name for name, _ in next(iter(losses.values())).model.named_parameters()]
        for name, *own in zip(names, *self.parameters.values(), strict=True):
            stacked = torch.stack([parameter.detach() for parameter in own])
            for parameter, data in zip(own, stacked.unbind(), strict=True):
                parameter.data = data
            self.weights[name] = nn.Parameter(stacked, own[0].requires_grad)
        if self.means is None:  # of which model the modules are is all the same
            means = next(iter(losses.values())).means
            self.means = self.compiler(torch.func.vmap(means))


class StackedLoss(ModelLoss):
    """The loss of the model at a place of a stack, which computes gradients with the others."""

    def __init__(self, *given: Any, stack: Stack, place: int, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.stack, self.place, self.begun = stack, place, False

    def backward(self, batch: Batch, parts: int) -> Tensor:
        found = self.stack.backward(Part(self, batch, parts))
        if self.begun or found is None:
            return super().backward(batch, parts) if found is None else found
        # The first time it is computed both ways: a module of a plugin may draw numbers or keep
        # state, which vmap does not see.
        self.begun, own = True, list(self.model.parameters())
        together = take_gradients(own)
        alone = super().backward(batch, parts)
        gradients = take_gradients(own)
        if _differ([alone, *gradients], [found, *together]):
            self.stack.failures, self.stack.reason = MOST_FAILURES, "it gives other gradients"
            found, together = alone, gradients
        add_gradients(own, together)
        return found

    def means(self, weights: Mapping[str, Tensor], batch: Tensor) -> Tensor:
        """Returns the mean loss and the mean cross-entropy of the model with other weights."""
        with self._autocast():
            logits = functional_call(self.model, dict(weights), (batch[:, :-1],)).flatten(0, 1)
        wide, targets = logits.to(self._dtype(logits)), batch[:, 1:].flatten()
        loss = self.criterion(wide, targets) / targets.numel()
        return torch.stack((loss, F.cross_entropy(wide.detach(), targets)))


@dataclass(frozen=True)
class Member:
    """The place of a run in a stack of the runs with these names. `stopping` stops this run."""

    stack: Stack
    place: int
    names: Sequence[str]
    stopping: Stopping

    @property
    def loss(self) -> Callable[..., ModelLoss]:
        return partial(StackedLoss, stack=self.stack, place=self.place)

    @property
    def record(self) -> dict[str, Any] | None:
        if self.stack.failures >= MOST_FAILURES:
            return None
        others = [name for place, name in enumerate(self.names) if place != self.place]
        return {"members": len(self.names), "place": self.place, "with": others}


def _differ(alone: Sequence[Tensor | None], together: Sequence[Tensor | None]) -> bool:
    """Whether tensors differ by more than rounding. A norm of nothing but rounding is that of a
    gradient that is zero."""
    pairs = [*zip(alone, together, strict=True)]
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    norms = torch.stack([one.norm().double() for one, _ in known])
    distances = torch.stack([(one - other).norm().double() for one, other in known])
    far = distances > ROUNDING * (norms + ROUNDING * norms.norm())  # which NaN is not
    return bool(far.any()) or any((one is None) != (other is None) for one, other in pairs)
