"""The tensors that a run saves: their names, how a sharded one is gathered, how they are loaded.

A sharded tensor is torch's DTensor, of which a rank holds some rows. A file holds whole tensors, so
it looks the same however many ranks wrote it or read it.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Optimizers = Sequence[torch.optim.Optimizer]
OpenFile = Any  # of stored tensors, as safetensors.safe_open gives it


# ------------------------------------------------------------------------- names


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns every tensor of the model that a step changes: its parameters, each under its first
    name, and the running statistics of norms that keep some."""
    # Where FSDP holds gathered weights after a forward pass, this call puts the shards back.
    saved = model.state_dict(keep_vars=True)
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in saved}
    return {**dict(model.named_parameters()), **buffers}


def optimizer_tensors(model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    """Returns the optimizers' state as `parameter:part`: moments, and counts of steps."""
    tensors = {
        f"{name}:{part}": value
        for name, parameter in stored_tensors(model).items()
        for optimizer in optimizers
        for part, value in optimizer.state.get(parameter, {}).items()
    }
    assert len(tensors) == sum(len(state) for o in optimizers for state in o.state.values())
    return tensors


# ------------------------------------------------------------------------- whole and sharded


def sharded(tensor: Tensor) -> bool:
    # To name the class DTensor would load torch.distributed.tensor, which takes as long as torch.
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Returns the whole of a sharded tensor, on every rank; a plain one as it is. All ranks must
    call it for the same tensors in the same order."""
    return cast("DTensor", tensor).full_tensor() if sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's shard, in the memory of `tensor`; a plain tensor as it is."""
    return cast("DTensor", tensor).to_local() if sharded(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a whole tensor, which every rank has, in shards where `like` is sharded."""
    if not sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = cast("DTensor", like).device_mesh, cast("DTensor", like).placements
    # Without a source nothing is sent: each rank takes its rows of what it has.
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


# ------------------------------------------------------------------------- reading


@torch.no_grad()
def load_weights(model: nn.Module, file: OpenFile) -> None:
    """Copies every tensor by name; ValueError where names or shapes are not the model's own."""
    tensors, names = stored_tensors(model), set(file.keys())
    if tensors.keys() != names:
        unmatched = sorted(tensors.keys() ^ names)
        raise ValueError(f"the weights are not this model's: {', '.join(unmatched[:3])}")
    for name, tensor in tensors.items():
        value = file.get_tensor(name)
        if value.shape != tensor.shape:
            raise ValueError(f"{name} is {list(value.shape)}, not {list(tensor.shape)}")
        tensor.copy_(shard_like(value.to(tensor.device), tensor))
        del value  # so that its memory is free before the next one is read


def load_optimizers(model: nn.Module, optimizers: Optimizers, file: OpenFile) -> None:
    """Replaces the optimizers' state by the stored one. A moment is sharded like its parameter."""
    parameters = stored_tensors(model)
    states: Mapping[Tensor, dict[str, Any]] = {
        parameter: optimizer.state[parameter]
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for state in states.values():
        state.clear()
    for key in file.keys():  # noqa: SIM118 (an open file is not a mapping)
        name, _, part = key.rpartition(":")
        parameter = parameters[name]
        value = file.get_tensor(key).to(parameter.device)
        # A count of steps is one number, also where the parameter is one number.
        is_moment = part != "step" and value.shape == parameter.shape
        states[parameter][part] = shard_like(value, parameter) if is_moment else value


def is_finite_tensor(tensor: Tensor) -> bool:
    """Whether no number is NaN or an infinity."""
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    # The extremes are NaN if any number is. Unlike isfinite, they take no memory.
    extremes = [extreme.item() for extreme in numbers.aminmax()] if tensor.numel() else []
    return all(map(isfinite, extremes))
