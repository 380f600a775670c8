"""Runs that differ in seed and learning rate alone, whose gradients are computed as one.

Each run keeps a trainer, in a separate thread. Only the gradients of a micro-batch are computed for
all runs together, by torch.func.vmap over their models. They differ from a lone run's in rounding.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import get_total_norm

from transformer_norms.errors import describe_error
from transformer_norms.training.loss import Batch, ModelLoss, move_batch
from transformer_norms.training.parallel.replicas import add_gradients, take_gradients
from transformer_norms.training.tensors import stored_tensors

MOST_FAILURES = 3  # of computing together, until each run computes by itself
ROUNDING = 0.03  # of a gradient, in bfloat16
Work = Callable[[], Any]
Part = tuple["StackedLoss", Batch, int]  # a micro-batch of a run, and how many its step has


class Stack:
    """Runs in threads that take turns: each works until it needs gradients, and waits. Once all
    that have not ended wait, one of them computes the gradients of all.

    So no two runs work at once, since a library may keep state for the whole process. They need not
    be at the same step. Where a `compiler` compiles the computation, the models of runs that
    have ended are computed on, so that nothing is compiled again for fewer runs. `names` are those
    of the runs.
    """

    def __init__(
        self, compiler: Callable[[Any], Any] | None = None, names: Sequence[str] = ()
    ) -> None:
        self.compiler, self.names = compiler, names
        self.turn = threading.Condition()
        self.living = self.failures = 0
        self.reason = ""  # of the last failure
        self.waiting: dict[int, Part] = {}  # by the place of the run
        self.results: dict[int, Tensor | None] = {}
        self.losses: dict[int, StackedLoss] = {}  # whose weights are slices of `weights`
        self.parameters: dict[int, list[nn.Parameter]] = {}
        self.weights: dict[str, nn.Parameter] = {}
        self.means: Any = None  # the function of the weights and batches of all

    def run(self, works: Sequence[Work], look: Work = lambda: None) -> list[Future[Any]]:
        """Does the work of each run in a thread, and returns what each returned or raised. `look`
        is called in this thread again and again meanwhile."""
        self.living = len(works)
        with ThreadPoolExecutor(len(works), "stacked") as threads:
            begun = [threads.submit(self._take_part, work) for work in works]
            while wait(begun, 0.1).not_done:
                look()
        return begun

    def _take_part(self, work: Work) -> Any:
        with self.turn:
            try:
                return work()
            finally:
                self.living -= 1
                self.turn.notify_all()

    def backward(self, part: Part) -> Tensor | None:
        """Waits for the other runs. Adds the gradients of the part to those of its model, and
        returns what ModelLoss.backward returns; None where that has to be called instead."""
        place = part[0].place
        self.waiting[place] = part
        while place not in self.results:
            if len(self.waiting) < self.living:
                self.turn.wait()
                continue
            parts, self.waiting = dict(sorted(self.waiting.items())), {}
            self.results = dict.fromkeys(parts)
            if self.failures < MOST_FAILURES:
                try:
                    self.results |= self.gradients(parts)
                except BaseException as error:  # the run to blame will fail as it would alone
                    take_gradients(self.weights.values())
                    self.failures, self.reason = self.failures + 1, describe_error(error)
            self.turn.notify_all()
        return self.results.pop(place)

    def gradients(self, parts: Mapping[int, Part]) -> dict[int, Tensor]:
        """Adds the gradients of these parts, by place, to those of their models. Returns for each
        its loss and its cross-entropy, divided by the number of its step's parts."""
        present = {place: loss for place, (loss, _, _) in parts.items()}
        losses = {**self.losses, **present} if self.compiler else present
        if losses != self.losses:
            self._bind(losses)
        filling = next(iter(parts.values()))
        batches = torch.stack([parts.get(place, filling)[1] for place in losses])
        batches = move_batch(batches.flatten(0, 1), filling[0].device).view_as(batches)
        means = self.means(self.weights, batches)  # [runs, 2]
        shares = [1 / parts[place][2] if place in parts else 0.0 for place in losses]
        divided = means * means.new_tensor(shares)[:, None]
        divided[:, 0].sum().backward()
        stacks = take_gradients(self.weights.values())
        for k, place in enumerate(losses):
            if place in parts:
                own = [None if stacked is None else stacked[k] for stacked in stacks]
                add_gradients(self.parameters[place], own)
        return {i: row for i, row in zip(losses, divided.detach(), strict=True) if i in parts}

    def _bind(self, losses: dict[int, "StackedLoss"]) -> None:
        """Moves the weights of these models into slices of tensors [runs, ...]."""
        first, self.weights = next(iter(losses.values())), {}
        self.parameters = {i: list(loss.model.parameters()) for i, loss in losses.items()}
        names = [name for name, _ in first.model.named_parameters()]
        if averages := stored_tensors(first.model).keys() - {*names}:
            raise ValueError(f"each run moves {min(averages)} in its own way")
        for name, *own in zip(names, *self.parameters.values(), strict=True):
            stacked = torch.stack([parameter.detach() for parameter in own])
            for parameter, data in zip(own, stacked.unbind(), strict=True):
                parameter.data = data
            self.weights[name] = nn.Parameter(stacked, own[0].requires_grad)
        if self.means is None:  # the modules of any of the models do
            means = torch.func.vmap(first.means)
            self.means = self.compiler(means) if self.compiler else means
        self.losses = losses


class StackedLoss(ModelLoss):
    """The loss of the model at a place of a stack, which computes gradients with the others."""

    def __init__(self, *given: Any, stack: Stack, place: int, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.stack, self.place, self.begun = stack, place, False

    @property
    def record(self) -> dict[str, Any] | None:
        """Returns what the summary says, or None where each run computes by itself."""
        names = [*self.stack.names]
        record = {"members": len(names), "place": self.place, "runs": names}
        return record if self.stack.failures < MOST_FAILURES else None

    def backward(self, batch: Batch, parts: int) -> Tensor:
        found = self.stack.backward((self, batch, parts))
        if self.begun or found is None:
            return super().backward(batch, parts) if found is None else found
        # The first time it is computed both ways: a module of a plugin may draw numbers or keep
        # state, which vmap does not see.
        self.begun, own = True, list(self.model.parameters())
        together = take_gradients(own)
        alone = super().backward(batch, parts)
        gradients = take_gradients(own)
        if _differ(gradients, together):
            self.stack.failures, self.stack.reason = MOST_FAILURES, "it gives other gradients"
            found, together = alone, gradients
        add_gradients(own, together)
        return found

    def means(self, weights: Mapping[str, Tensor], batch: Tensor) -> Tensor:
        """Returns the mean loss and the mean cross-entropy of the model with other weights."""
        inputs, targets = batch[:, :-1], batch[:, 1:].flatten()
        with self._autocast():  # a module that two blocks share must not have its weights put twice
            logits = functional_call(self.model, dict(weights), (inputs,), tie_weights=False)
        wide = logits.flatten(0, 1).to(self._dtype(logits))
        loss = self.criterion(wide, targets) / targets.numel()
        return torch.stack((loss, F.cross_entropy(wide.detach(), targets)))


def _differ(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """Whether gradients differ by more than rounding."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    distance, norm = get_total_norm([a - b for a, b in pairs]), get_total_norm(a for a, _ in pairs)
    unpaired = any((a is None) != (b is None) for a, b in zip(one, other, strict=True))
    return unpaired or bool(distance > ROUNDING * norm)  # which NaN is not
