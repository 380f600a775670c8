"""Averages of the weights along a run: evaluated with the weights, saved and exported. No step
depends on them.

An average is a class of a model and its settings, registered in AVERAGES. It follows the weights
that are trained. Running statistics of a norm are not averaged: it has those of the model.
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
AVERAGE, SNAPSHOTS = "average", "snapshots"  # groups of tensors in a checkpoint
Copy = list[Tensor]  # of every parameter, sharded like it


@AVERAGES("window")
class WindowAverage:
    """The mean of the weights after the last `count` multiples of `every` steps
    LAWA, Kaddour 2022, arXiv:2209.14981

    Before the first multiple it is the weights. Steps count from 1. Which copy a step changes, and
    how far, depends on its number alone.
    """

    def __init__(self, model: Transformer, *, count: Positive, every: Positive) -> None:
        self.model, self.every = model, every
        self.parameters = dict(model.named_parameters())  # tied weights once
        self.copies: list[Copy] = [
            [parameter.detach().clone() for parameter in self.parameters.values()]
            for _ in range(count)
        ]

    def share(self, step: int) -> float:
        """Returns how far a copy moves towards the weights after a step: 1 is all the way."""
        return 1.0

    @torch.no_grad()
    def update(self, step: int, skip: Tensor | None = None) -> None:
        """Follows the weights after a step. Where `skip`, a tensor on the device, is 1, the step
        has changed no weight, and no copy changes."""
        if step % self.every:
            return
        copy, share = self.copies[(step // self.every - 1) % len(self.copies)], self.share(step)
        # With a share of 0 or 1, lerp returns one end exactly.
        made = share if skip is None else share * (1 - skip).to(copy[0].dtype)
        for tensor, parameter in zip(copy, self.parameters.values(), strict=True):
            local(tensor).lerp_(local(parameter), made)

    @contextmanager
    def in_model(self, step: int) -> Iterator[None]:
        """Inside it the model has the average after a step; afterwards its weights, bit by bit.

        The constraint of a model applies to the average, too. nGPT's vectors have length 1: a mean
        of them is shorter, and is divided by its length. That is no longer the mean of the weights.
        """
        parameters = [parameter.detach() for parameter in self.parameters.values()]
        weights = [parameter.clone() for parameter in parameters]
        try:
            for parameter, mean in zip(parameters, self._means(step), strict=True):
                parameter.copy_(mean)
            self.model.constrain(self.model)
            yield
        finally:
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)

    def tensors(self, step: int) -> dict[str, dict[str, Tensor]]:
        """Returns what a checkpoint keeps after a step: the average by the names of the model's
        tensors, before a constraint, and the copies unless the average is the only one."""
        means = zip(self.parameters, self._means(step), strict=True)
        average = {AVERAGE: stored_tensors(self.model) | dict(means)}
        return average | ({SNAPSHOTS: self._taken(step)} if len(self.copies) > 1 else {})

    def restore(self, step: int, files: Mapping[str, OpenFile]) -> None:
        """Reads what a checkpoint keeps after a step."""
        file = files.get(SNAPSHOTS, files[AVERAGE])
        for name, tensor in self._taken(step).items():
            tensor.copy_(read_like(tensor, file, name))

    def _taken(self, step: int) -> dict[str, Tensor]:
        """Returns the tensors of the copies that have followed a step so far, by their names in a
        checkpoint."""
        taken = self.copies[: step // self.every]
        return {
            f"{place}:{name}" if len(self.copies) > 1 else name: tensor
            for place, copy in enumerate(taken)
            for name, tensor in zip(self.parameters, copy, strict=True)
        }

    def _means(self, step: int) -> Iterator[Tensor]:
        """Yields the average of each parameter."""
        weights = [parameter.detach() for parameter in self.parameters.values()]
        for several in zip(*(self.copies[: step // self.every] or [weights]), strict=True):
            yield sum(several[1:], several[0]) / len(several)


@AVERAGES("ema")
class MovingAverage(WindowAverage):
    """d * average + (1 - d) * weights after step t, d = min(decay, (1 + t) / (10 + t))
    TensorFlow, tf.train.ExponentialMovingAverage with num_updates

    It begins as the initial weights, which the lower d of early steps forgets.
    """

    def __init__(self, model: Transformer, *, decay: Momentum) -> None:
        super().__init__(model, count=1, every=1)
        self.decay = decay

    def share(self, step: int) -> float:
        return 1 - min(self.decay, (1 + step) / (10 + step))
