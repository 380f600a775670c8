"""The training loop, from the first step of a run to the last.

A step computes the gradients of a batch, checks for divergence, clips, and updates the weights.
Between steps the loop measures, saves, and checks for a signal to stop. It knows a
model, batches, optimizers and a record, and nothing of norms.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import is_finite
from transformer_norms.model.constraint import QKClip
from transformer_norms.model.transformer import Transformer
from transformer_norms.signals import Interrupted, Stopping
from transformer_norms.training.averages import WindowAverage
from transformer_norms.training.divergence import Divergence, Overflowed, find_nonfinite
from transformer_norms.training.evaluation import Evaluation, evaluate
from transformer_norms.training.graphs.ahead import StepsAhead, can_step_ahead, put_rates_on_device
from transformer_norms.training.loss import Batch
from transformer_norms.training.parallel.micro_batches import MicroBatches
from transformer_norms.training.probes import Probe
from transformer_norms.training.schedule import shared_steps
from transformer_norms.training.settings import TrainerSettings
from transformer_norms.training.tensors import (
    OpenFile,
    load_optimizers,
    load_weights,
    optimizer_tensors,
    sharded,
    stored_tensors,
    whole,
)

Windows = Callable[[], Iterable[Batch]]
# The attributes of a trainer that a checkpoint keeps in addition to tensors.
SAVED = (
    "step tokens seconds evaluation_seconds losses clips grad_norm probed chain best final "
    "average_loss blocks"
).split()


class Trainer:
    """Trains `model` for `settings.steps` optimizer steps. Step i, from 0, has the batch
    `batches(i)`, and rates of `schedule(i, steps)` times the peak of each group of parameters.

    What happens in a step depends on the weights, the optimizer's state and the step's number
    alone. So a run that was stopped and resumed gives the same result.
    """

    def __init__(
        self,
        model: Transformer,
        batches: Callable[[int], Batch],
        validation: Windows,
        optimizers: list[torch.optim.Optimizer],
        schedule: Callable[[int, int], float],
        settings: TrainerSettings,
        *,
        micro_batches: MicroBatches,
        warmup: int = 0,
        qk_clip: QKClip | None = None,
        average: WindowAverage | None = None,
    ) -> None:
        self.model, self.batches, self.validation = model, batches, validation
        self.optimizers, self.schedule, self.average = optimizers, schedule, average
        self.peaks = [[group["lr"] for group in o.param_groups] for o in optimizers]
        if settings.device == "cuda":
            put_rates_on_device(optimizers)
        self.settings, self.micro_batches, self.qk_clip = settings, micro_batches, qk_clip
        self.loss, self.ranks = micro_batches.loss, micro_batches.ranks
        self.parameters = list(model.parameters())
        kept = stored_tensors(model)
        self.statistics = [name for name, _ in model.named_buffers() if name in kept]  # of a norm
        self.divergence = Divergence(warmup)
        longer = [steps for steps in settings.horizons if steps > settings.steps]
        # The last step that this run shares with the next longer branch, which begins from there.
        self.branch_at = shared_steps(schedule, settings.steps, longer[0]) if longer else 0
        self.ahead: StepsAhead | None = None  # on a GPU: a step begins before the last is read
        self.step, self.tokens = 0, 0
        self.seconds = self.evaluation_seconds = 0.0  # in training steps, and in evaluations
        self.losses: list[float] = []  # since the last row of the record
        self.clips: list[float] = []  # the factors of qk_clip since then
        self.grad_norm, self.last_loss = 0.0, float("nan")
        self.probed: dict[str, Any] = {}  # what was measured in the last step
        self.chain = ""  # hash of every batch so far: equal chains mean equal data
        self.final = self.best = self.average_loss = float("nan")
        self.blocks: list[float] = []  # of the last evaluation

    def fit(self, record: Any, stopping: Stopping, overflowed: Overflowed | None = None) -> str:
        """Trains to the last step, and writes rows and checkpoints to `record`. Returns how the run
        ended: finished, diverged or preempted.

        Raises Overflowed where the weights or moments to be saved are not finite. That check is
        slow, so it runs only before a save. The caller restores an earlier state and calls `fit`
        with the error. The run then diverges at the step that the error names, with the weights
        before that step, or raises an earlier error.
        """
        self.micro_batches.stopping = stopping
        self.ahead = StepsAhead(self) if overflowed is None and can_step_ahead(self) else None
        finished = False
        while self.measure(record):
            if self._due(self.settings.checkpoint_every):
                self._save(record)
            stopping.has_unsaved_steps = record.saved != self.step
            finished = self.step == self.settings.steps
            if finished or self._must_stop():
                break
            if overflowed is not None and overflowed.step == self.step + 1:
                return self._record_divergence(record, str(overflowed))
            begun = time.perf_counter()
            try:
                reason = self.train_step()
            except Interrupted:
                break
            stopping.has_unsaved_steps = True
            self.seconds += time.perf_counter() - begun
            if reason is not None:
                return self._record_divergence(record, reason)
            if overflowed is not None:
                self._check_finite()
            record.progress(self)
        reason = self.ahead.end() if self.ahead is not None else None
        if finished:
            reason = self.divergence.end(self.final, self.best)
        self._save(record)
        stopping.has_unsaved_steps = False
        if reason is not None:
            return self._record_divergence(record, reason)
        return "finished" if finished else "preempted"

    def train_step(self) -> str | None:
        """Makes one optimizer step, or returns the reason why its update must not be applied.
        Raises Interrupted where a signal cut it short; then it has changed nothing."""
        if self.ahead is not None:
            return self.ahead.step()
        self.set_rates(self.step)
        batch, probe = self.batches(self.step), self.probe(self.step + 1)
        probe.forward(batch, self.loss)
        statistics = self.copy_statistics()
        numbers = self.compute_gradients(batch, self.step, probe, statistics)
        loss, nats, norm = numbers.tolist()
        reason = self.reason_to_stop(self.step + 1, loss, nats, norm)
        if reason is None:
            # A norm below the bound is not clipped, and none is where the bound is 0.
            if 0 < self.settings.clip < 1.001 * norm + 1e-6:
                nn.utils.clip_grads_with_norm_(self.parameters, self.settings.clip, numbers[2])
            with probe.update():
                factors = self.update_weights()
            if self.average is not None:
                self.average.update(self.step + 1)
            self.count_step(batch, probe, loss, norm, factors)
        else:
            self.put_back(statistics)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return reason

    def probe(self, step: int) -> Probe:
        """Returns what measures a step: the first one and every `probe_every`-th, where 0 is
        never."""
        every = self.settings.probe_every
        return Probe(self.model, every > 0 and (step == 1 or step % every == 0))

    def set_rates(self, step: int) -> None:
        rate = self.schedule(step, self.settings.steps)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(peak * rate)
                else:
                    group["lr"] = peak * rate

    def compute_gradients(
        self, batch: Batch, step: int, probe: Probe, statistics: list[Tensor]
    ) -> Float[Tensor, " 3"]:
        """Computes the gradients of a step into `p.grad`. Returns the loss, the cross-entropy and
        the gradient's norm."""
        if self.qk_clip is not None:
            self.qk_clip.forget()
        try:
            total = self.micro_batches.backward(batch, step)
        except Interrupted:
            self.put_back(statistics)
            self.micro_batches.forget_gradients()
            raise
        probe.gradients()
        norm = whole(nn.utils.get_total_norm(p.grad for p in self.parameters if p.grad is not None))
        return torch.stack((*total, norm.to(total.dtype)))

    def reason_to_stop(self, step: int, loss: float, nats: float, norm: float) -> str | None:
        """Returns why the update of a step must not be made, or None. The rule of divergence reads
        the cross-entropy, also where a run trains on another loss."""
        return self.divergence.step(step, nats if is_finite(loss) else loss, norm)

    def update_weights(self, skip: Tensor | None = None) -> Tensor:
        """Returns the factors by which qk_clip scaled heads. All are 1 where `skip` is 1."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.constrain(self.model)
        if self.qk_clip is None:
            return torch.ones(0)
        largest = self.ranks.stack(self.qk_clip.found()).amax(0)
        if skip is not None:
            largest = largest.where(skip == 0, float("-inf"))
        return self.qk_clip.clip(largest)

    def count_step(
        self, batch: Batch, probe: Probe, loss: float, norm: float, factors: Tensor
    ) -> None:
        self.probed = probe.values()
        self.step += 1
        self.tokens += batch[:, 1:].numel()
        self.losses.append(loss)
        self.clips += factors[factors < 1].tolist()
        self.last_loss, self.grad_norm = loss, norm
        self.chain = hashlib.sha256(self.chain.encode() + batch.numpy().tobytes()).hexdigest()

    def copy_statistics(self) -> list[Tensor]:
        return [self.model.get_buffer(name).clone() for name in self.statistics]

    def put_back(self, statistics: list[Tensor]) -> None:
        """Gives running statistics the values that they had before a skipped step."""
        for name, value in zip(self.statistics, statistics, strict=True):
            self.model.get_buffer(name).copy_(value)

    def measure(self, record: Any) -> bool:
        """Writes the row of a step where one is due, and before it the state from which a longer
        branch begins. Returns False where a signal cut it short."""
        if self.step == 0 or record.written >= self.step:
            return True
        if self.step == self.branch_at:  # before its row: the last one of this run has a loss
            self._check_savable()
            record.save_branch(self)
        evaluate = self._due(self.settings.eval_every) or self.step == self.settings.steps
        row: dict[str, Any] = {"step": self.step, "tokens": self.tokens}
        if not (evaluate or self._due(self.settings.log_every)):
            if self.probed:  # in a separate row, which does not end the average of losses
                record.row(row | self.probed)
            return True
        if self.losses:
            row["train/loss"] = sum(self.losses) / len(self.losses)
        if evaluate:
            found = self.evaluate(self.validation())
            averaged = self.evaluate_average(self.validation())
            if found is None or averaged is None:
                return False
            self.blocks = found.blocks
            row |= record.losses("val", found.nats, found.tokens)
            self.final = row["val/loss"] if is_finite(row["val/loss"]) else float("nan")
            row |= {f"val/{name}": loss for name, loss in averaged.items()}
            loss = averaged.get("average_loss", float("nan"))
            self.average_loss = loss if is_finite(loss) else float("nan")
            known = [loss for loss in (self.final, self.best) if loss == loss]
            self.best = min(known, default=float("nan"))
        group = self.optimizers[0].param_groups[0]
        peak = group.get("base_lr", self.peaks[0][0])  # without the factor of a group
        rate = peak * self.schedule(self.step - 1, self.settings.steps)
        row |= {"lr": rate, "grad_norm": self.grad_norm}
        if self.qk_clip is not None:  # how many heads in how many steps, and the strongest
            row |= {
                "qk_clip/heads": len(self.clips),
                "qk_clip/factor": min(self.clips, default=1.0),
            }
            self.clips.clear()
        record.row({**row, "seconds": round(self.seconds, 3), **self.probed})
        self.losses.clear()
        return True

    def evaluate(self, windows: Iterable[Batch]) -> Evaluation | None:
        """Returns the loss of windows of text; None where a signal cut it short."""
        begun = time.perf_counter()
        found = evaluate(self.micro_batches, windows, self._must_stop)
        self.evaluation_seconds += time.perf_counter() - begun
        return found

    def evaluate_average(self, windows: Iterable[Batch]) -> dict[str, float] | None:
        """Returns the loss per token with the average of the weights as `average_loss`, nothing if
        there is no average; None where a signal cut it short."""
        if self.average is None:
            return {}
        with self.average.in_model(self.step):
            found = self.evaluate(windows)
        return None if found is None else {"average_loss": found.nats / found.tokens}

    def _must_stop(self) -> bool:
        return self.ranks.stop(self.micro_batches.stopping.stop_requested)

    def _due(self, every: int) -> bool:
        return every > 0 and self.step > 0 and self.step % every == 0

    def is_read(self, step: int) -> bool:
        """Returns whether this step is logged, evaluated, probed or saved."""
        keys = self.settings
        every = (keys.log_every, keys.eval_every, keys.probe_every, keys.checkpoint_every)
        return step in (1, keys.steps, self.branch_at) or any(
            number and step % number == 0 for number in every
        )

    def _record_divergence(self, record: Any, reason: str) -> str:
        self._save(record)
        record.diverged = reason
        return "diverged"

    def _save(self, record: Any) -> None:
        if record.saved != self.step:
            self._check_savable()
            record.checkpoint(self)

    def _check_savable(self) -> None:
        """Checks that all numbers are finite, and equal on all ranks."""
        self._check_finite()
        if not sharded(self.parameters[0]):
            self.ranks.check_equal(self.parameters)

    def _check_finite(self) -> None:
        """Raises Overflowed, on all ranks, where a number that is to be saved is not finite."""
        all_tensors = {key: t for group in self.tensors().values() for key, t in group.items()}
        for name in self.ranks.gather(find_nonfinite(all_tensors)):
            if name is not None:
                raise Overflowed(self.step, name)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns every number that the next step depends on, by name, and the average."""
        # An average has the model's names, and is finite where the weights were.
        average = {} if self.average is None else self.average.tensors(self.step)
        return {
            **average,
            "model": stored_tensors(self.model),
            "optimizer": optimizer_tensors(self.model, self.optimizers),
        }

    def state(self) -> dict[str, Any]:
        """Returns what else a step depends on. NaN, which is not JSON, is None."""
        own = {name: getattr(self, name) for name in SAVED}
        own = {name: value if value == value else None for name, value in own.items()}
        return {**own, "divergence": self.divergence.state()}

    def restore(self, state: Mapping[str, Any], files: Mapping[str, OpenFile]) -> None:
        """Goes on from a state and tensors that such a trainer has saved."""
        for name in SAVED:
            value = state.get(name)  # older checkpoints have no average_loss
            setattr(self, name, float("nan") if value is None else copy(value))
        self.divergence.restore(state["divergence"])
        load_weights(self.model, files["model"])
        load_optimizers(self.model, self.optimizers, files["optimizer"])
        if self.average is not None:
            self.average.restore(self.step, files)
