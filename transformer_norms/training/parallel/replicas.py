"""A step in parallel on a CPU: replicas of the model, each with its share of the micro-batches.

Operators that each run on all threads wait for the slowest thread some hundred times a step;
replicas with a thread each wait for one another once. benchmarks/README.md has what that gives.
"""

import copy
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.parallel.ranks import add_in_tree


class Replicas:
    """A loss and copies of it, `count` in all, that compute side by side.

    Their models share weights and buffers, and have separate gradients. They do not see modules
    that are put into the model, or weights that are frozen, after they were made.
    """

    def __init__(self, loss: ModelLoss, count: int) -> None:
        self.count = count
        self.losses = [loss, *(_replica(loss) for _ in range(count - 1))]
        self.parameters = [list(each.model.parameters()) for each in self.losses]
        self.threads = ThreadPoolExecutor(count - 1, "replica") if count > 1 else None

    def run(self, work: Callable[[ModelLoss, int], Tensor], count: int) -> list[Tensor]:
        """Returns work(loss, i) for i below `count`, which each replica computes in a thread of its
        own, the model in this one."""
        graph, training = torch.is_grad_enabled(), self.losses[0].model.training

        def run_one(i: int) -> Tensor:
            loss = self.losses[i]
            if loss.model.training != training:
                loss.model.train(training)
            with torch.set_grad_enabled(graph):  # a new thread does not inherit this
                return work(loss, i)

        if count < 2 or self.threads is None:
            return [run_one(i) for i in range(count)]
        begun = [self.threads.submit(run_one, i) for i in range(1, count)]
        try:
            first = run_one(0)
        finally:  # after an error, too, no replica is still at work
            wait(begun)
        return [first, *(each.result() for each in begun)]

    def gradients(self) -> list[Tensor]:
        """Adds the gradients of all replicas in those of the model, in the tree, and returns
        these."""
        add_in_tree(self.parameters, _move_gradients)
        return [p.grad for p in self.parameters[0] if p.grad is not None]


def _replica(loss: ModelLoss) -> ModelLoss:
    """Returns the same loss for a copy of its model, whose weights and buffers share the memory of
    the model's."""
    memory: dict[int, Any] = {id(buffer): buffer for buffer in loss.model.buffers()}
    for parameter in loss.model.parameters():
        memory[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    replica = copy.copy(loss)
    replica.model = copy.deepcopy(loss.model, memory)
    return replica


def _move_gradients(target: list[nn.Parameter], source: list[nn.Parameter]) -> list[nn.Parameter]:
    """Adds the gradients of `source` to those of `target`, which it returns."""
    add_gradients(target, take_gradients(source))
    return target


def take_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor | None]:
    """Returns the gradients, which the parameters then no longer have."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def add_gradients(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> None:
    """Adds gradients to those that the parameters have, in the memory of either."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
