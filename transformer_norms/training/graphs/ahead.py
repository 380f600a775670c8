"""Steps on a GPU, each of which begins before the GPU has ended the one before it.

A GPU waits while the processor reads a number from it and then gives it the next work. So the
numbers of a step are read when the next step has begun. The GPU itself decides whether an update
must not be made, and after such a step no later one changes anything.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.norms import nothing
from transformer_norms.training.divergence import must_skip
from transformer_norms.training.graphs.capture import StepGraph, can_capture
from transformer_norms.training.loss import Batch, page_lock
from transformer_norms.training.optimizer import keep_where
from transformer_norms.training.probes import Probe

Trainer = Any  # of trainer.py, which imports this file


def can_step_ahead(trainer: Trainer) -> bool:
    """Returns whether the device is a GPU, and every part of an update can be left out by it."""
    return (
        trainer.settings.device == "cuda"
        and not trainer.loss.compilation.sharded
        and all(map(skips_on_device, trainer.optimizers))
    )


def put_rates_on_device(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Makes tensors of the rates on a GPU, in float32: a captured step reads the same memory."""
    for optimizer in filter(skips_on_device, optimizers):
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.full((), group["lr"], dtype=torch.float32, device=device)


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether a step leaves everything as it is where the optimizer's `found_inf`, a tensor
    on the device, is 1. torch's fused optimizers do."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class StepsAhead:
    """`step()` begins with a step of a trainer, and ends the one before."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.started: Started | None = None  # the step whose numbers were not read
        device = trainer.settings.device
        # In locked memory. The next batch is read while the GPU computes.
        self.batch_of = lru_cache(2)(lambda step: page_lock(trainer.batches(step), device))
        self.skip = torch.zeros((), device=device)  # 1 from the first update that is not made on
        self.limit = torch.full((), math.inf, dtype=torch.float64, device=device)  # of a loss
        self.constrained = [] if trainer.model.constrain is nothing else trainer.parameters
        for optimizer in trainer.optimizers:
            optimizer.found_inf = self.skip
        self.graph = StepGraph(self.advance, trainer) if can_capture(trainer) else None

    def step(self) -> str | None:
        """Begins with a step. Returns the reason why the update of the one before was not made. It
        ends its own step, too, if anything reads the numbers or the weights after it."""
        trainer, divergence = self.trainer, self.trainer.divergence
        if divergence.may_stop_soon and (reason := self.end()) is not None:
            return reason
        number = trainer.step + (self.started is not None)
        trainer.set_rates(number)
        batch, probe = self.batch_of(number), trainer.probe(number + 1)
        probe.forward(batch, trainer.loss)
        self.limit.fill_(divergence.limit(number + 1))
        advance = self.advance
        if self.graph is not None and not probe.due:
            advance = self.graph
        given = advance(batch, number, probe)
        if trainer.average is not None:  # outside of the graph: its share depends on the step
            trainer.average.update(number + 1, self.skip)
        before, self.started = self.started, Started(number, batch, probe, *given)
        if number + 1 < trainer.settings.steps:
            self.batch_of(number + 1)
        reason = self._end(before)
        if reason is not None:
            self.started = None
        return self.end() if reason is None and trainer.is_read(number + 1) else reason

    def end(self) -> str | None:
        """Waits for the step that has begun, if there is one. Returns the reason why its update was
        not made, or None."""
        started, self.started = self.started, None
        return self._end(started)

    def advance(self, batch: Batch, number: int, probe: Probe) -> tuple[Tensor, Tensor]:
        """Gives the device all the work of a step. Returns the loss, the cross-entropy and the
        gradient's norm, and the factors of qk_clip."""
        trainer = self.trainer
        statistics = trainer.copy_statistics()
        numbers = trainer.compute_gradients(batch, number, probe, statistics)
        self.skip.copy_(torch.maximum(self.skip, must_skip(numbers, self.limit)))
        if trainer.settings.clip > 0:  # by one, where the norm is small
            nn.utils.clip_grads_with_norm_(trainer.parameters, trainer.settings.clip, numbers[2])
        with probe.update(), keep_where(self.skip, self.constrained):
            factors = trainer.update_weights(self.skip)
        kept = [torch.where(self.skip > 0, value, now) for value, now in
                zip(statistics, trainer.copy_statistics(), strict=True)]  # fmt: skip
        trainer.put_back(kept)
        for optimizer in trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return numbers, factors

    def _end(self, started: "Started | None") -> str | None:
        if started is None:
            return None
        numbers, factors = started.read()
        loss, nats, norm = numbers.tolist()
        reason: str | None = self.trainer.reason_to_stop(started.number + 1, loss, nats, norm)
        if reason is None:
            self.trainer.count_step(started.batch, started.probe, loss, norm, factors)
        return reason


class Started:
    """A step that has begun, and its numbers on the device. A copy of them begins at once, and
    `read` waits for it alone: not for what the device was given to do after it."""

    def __init__(
        self, number: int, batch: Batch, probe: Probe, numbers: Tensor, factors: Tensor
    ) -> None:
        self.number, self.batch, self.probe = number, batch, probe
        self.copies, self.copied = (numbers, factors), None
        if numbers.device.type == "cuda":
            self.copies = copy_to_host(numbers), copy_to_host(factors)
            self.copied = torch.cuda.Event()
            self.copied.record()

    def read(self) -> tuple[Tensor, Tensor]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.copies


def copy_to_host(tensor: Tensor) -> Tensor:
    """Begins to copy a tensor, which is not there yet."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)
