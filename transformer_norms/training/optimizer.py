"""AdamW, and Muon for hidden matrices with AdamW for everything else.

An optimizer is a function of the model and its settings, registered in OPTIMIZERS, that returns
torch's optimizers. One whose step needs all threads is registered with `all_threads=True`: replicas
would slow its step more than they help.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Flag, Momentum, Nonnegative, Rate
from transformer_norms.names import Registry
from transformer_norms.training.parallel.sharding import map_whole
from transformer_norms.training.parameter_groups import (
    LearningRateFactors,
    decay_by_group,
    divide_parameters,
)
from transformer_norms.training.settings import GROUPS
from transformer_norms.training.tensors import local

OPTIMIZERS = Registry("optimizer")
Betas = Annotated[tuple[Momentum, ...], Field(min_length=2, max_length=2)]


@OPTIMIZERS("adamw")
def adamw(
    model: nn.Module,
    *,
    lr: Rate,
    betas: Betas,
    eps: Epsilon,
    weight_decay: Nonnegative,
    decay_norms: Flag,
    decay_embeddings: Flag,
    lr_factor: LearningRateFactors,
) -> list[torch.optim.Optimizer]:
    """Loshchilov & Hutter 2017, arXiv:1711.05101"""
    decays = decay_by_group(model, decay_norms, decay_embeddings)
    parameters = divide_parameters(model, GROUPS, decays, lr, weight_decay, lr_factor)
    return [_adamw(parameters, lr, betas, eps)]


@OPTIMIZERS("muon", all_threads=True)
def muon(
    model: nn.Module,
    *,
    lr: Rate,
    momentum: Momentum,
    betas: Betas,
    eps: Epsilon,
    weight_decay: Nonnegative,
    decay_norms: Flag,
    decay_embeddings: Flag,
    lr_factor: LearningRateFactors,
) -> list[torch.optim.Optimizer]:
    """Muon for every matrix but embeddings and head, AdamW with the same rate for all else."""
    decays = decay_by_group(model, decay_norms, decay_embeddings)
    matrices = divide_parameters(model, GROUPS[:1], decays, lr, weight_decay, lr_factor)
    rest = divide_parameters(model, GROUPS[1:], decays, lr, weight_decay, lr_factor)
    return [Muon(matrices, lr, momentum, weight_decay), _adamw(rest, lr, betas, eps)]


@contextmanager
def keep_where(skip: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the tensors after the `with` if `skip` is 1, without waiting for a GPU."""
    before = [] if skip is None else [tensor.clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=False):
            tensor.copy_(torch.where(cast(Tensor, skip) > 0, value, tensor))


def _adamw(
    parameters: list[dict[str, Any]], lr: float, betas: tuple[float, ...], eps: float
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True)


class Muon(torch.optim.Optimizer):
    """w <- (1 - lr * decay) w - lr * 0.2 sqrt(max(rows, columns)) * orthogonal(momentum)

    Jordan et al. 2024; decay and the factor: Liu et al. 2025 (Moonlight), arXiv:2502.16982. The
    factor gives updates AdamW's size, so that both share one rate. The momentum is Nesterov's.
    """

    _step_supports_amp_scaling = True  # as torch's fused optimizers, which read `found_inf`
    found_inf: Tensor | None = None  # 1 makes the step leave everything as it is (graphs/ahead.py)

    def __init__(
        self,
        params: Iterable[nn.Parameter] | list[dict[str, Any]],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
                    if not self.state[parameter]:
                        self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            for alike in by_shape.values():
                buffers = [local(self.state[parameter]["momentum"]) for parameter in alike]
                with keep_where(self.found_inf, [*map(local, alike), *buffers]):
                    self._update(group, alike, buffers)

    def _update(
        self, group: dict[str, Any], parameters: list[nn.Parameter], buffers: list[Tensor]
    ) -> None:
        # One product for all of one shape. `local` is this rank's shard of a sharded parameter.
        gradients = torch.stack([local(cast(Tensor, p.grad)) for p in parameters])
        for buffer, gradient in zip(buffers, gradients, strict=True):
            buffer.lerp_(gradient, 1 - group["momentum"])
        gradients.lerp_(torch.stack(buffers), group["momentum"])
        update = map_whole(orthogonal, gradients, parameters[0])
        rate = group["lr"] * 0.2 * max(parameters[0].shape) ** 0.5
        for parameter, direction in zip(parameters, update, strict=True):
            weight = local(parameter)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            if isinstance(rate, Tensor):
                weight.addcmul_(direction, rate.to(weight.dtype), value=-1)
            else:
                weight.add_(direction, alpha=-rate)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Each matrix [.., rows, columns] with its singular values brought near 1, by Newton-Schulz
    iteration with Jordan's quintic: X <- aX + b(XX')X + c(XX')^2 X. In bfloat16 on a CUDA GPU,
    where that is enough; in float32 elsewhere, since a CPU is slow in bfloat16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)
