"""Averages of the trained weights along a run, registered in AVERAGES. No step depends on them.

Running statistics of a norm are not averaged: those of the model go with it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from transformer_norms.kinds import Momentum, Positive
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import Registry
from transformer_norms.training.tensors import OpenFile, local, read_like, stored_tensors

AVERAGES = Registry("average")


@AVERAGES("window")
class WindowAverage:
    """The mean of the weights after the last `count` multiples of `every` steps
    LAWA, Kaddour 2022, arXiv:2209.14981

    Before the first multiple it is the weights. Steps count from 1."""

    def __init__(self, model: Transformer, *, count: Positive, every: Positive) -> None:
        self.model, self.every = model, every
        self.parameters = dict(model.named_parameters())  # tied weights once
        named = self.parameters.items()
        self.copies = [{name: p.detach().clone() for name, p in named} for _ in range(count)]

    def share(self, step: int) -> float:
        """Returns how far a copy moves towards the weights after a step: 1 is all the way."""
        return 1.0

    @torch.no_grad()
    def update(self, step: int, skip: Tensor | None = None) -> None:
        """Follows the weights after a step, but where `skip`, a tensor on the device, is 1."""
        if step % self.every:
            return
        made = 1 if skip is None else (1 - skip).to(self.model.embedding.weight.dtype)
        share = self.share(step) * made  # at 0 and 1 lerp returns one end exactly
        for name, tensor in self.copies[(step // self.every - 1) % len(self.copies)].items():
            local(tensor).lerp_(local(self.parameters[name]), share)

    def mean(self, name: str, step: int) -> Tensor:
        """Returns the average of a parameter after a step."""
        taken = [copy[name] for copy in self.copies[: step // self.every]]
        several = taken or [self.parameters[name].detach()]
        return sum(several[1:], several[0]) / len(several)

    @contextmanager
    def in_model(self, step: int) -> Iterator[None]:
        """Inside it the model has the average after a step; afterwards its weights, bit by bit. The
        constraint of a model holds for its average: each mean of nGPT's vectors of length 1, which
        is shorter, is divided by its length. The result is not the mean of the weights."""
        parameters = {name: parameter.detach() for name, parameter in self.parameters.items()}
        weights = {name: parameter.clone() for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.copy_(self.mean(name, step))
            self.model.constrain(self.model)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])

    def tensors(self, step: int) -> dict[str, dict[str, Tensor]]:
        """Returns what a checkpoint keeps: the average before a constraint, and several copies."""
        means = {name: self.mean(name, step) for name in self.parameters}
        snapshots = {"snapshots": self._taken(step)} if len(self.copies) > 1 else {}
        return {"average": stored_tensors(self.model) | means, **snapshots}

    def restore(self, step: int, files: Mapping[str, OpenFile]) -> None:
        """Reads what a checkpoint keeps after a step."""
        file = files.get("snapshots", files["average"])
        for name, tensor in self._taken(step).items():
            tensor.copy_(read_like(tensor, file, name))

    def _taken(self, step: int) -> dict[str, Tensor]:
        """Returns the copies that steps have moved so far, by names in a checkpoint."""
        return {
            f"{place}:{name}" if len(self.copies) > 1 else name: tensor
            for place, copy in enumerate(self.copies[: step // self.every])
            for name, tensor in copy.items()
        }


@AVERAGES("ema")
class MovingAverage(WindowAverage):
    """d * average + (1 - d) * weights after step t, d = min(decay, (1 + t) / (10 + t))
    TensorFlow, tf.train.ExponentialMovingAverage with num_updates

    It begins as the initial weights, which the lower d of early steps forgets."""

    def __init__(self, model: Transformer, *, decay: Momentum) -> None:
        super().__init__(model, count=1, every=1)
        self.decay = decay

    def share(self, step: int) -> float:
        return 1 - min(self.decay, (1 + step) / (10 + step))
