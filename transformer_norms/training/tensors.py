"""The tensors that a run saves: their names, how a sharded one is gathered, how slices are read.

A sharded tensor is torch's DTensor, of which a rank holds some rows. A file holds whole tensors, so
it looks the same however many ranks wrote it or read it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Optimizers = Sequence[torch.optim.Optimizer]
Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class OpenFile(Protocol):
    """Stored tensors, as safetensors.safe_open gives them. A slice is read when it is indexed."""

    def keys(self) -> Iterable[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> Any: ...


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
        shape = file.get_slice(name).get_shape()
        if list(shape) != list(tensor.shape):
            raise ValueError(f"{name} is {shape}, not {list(tensor.shape)}")
        tensor.copy_(read_like(tensor, file, name))


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
        # A count of steps is one number, also where the parameter is one number.
        if part != "step" and list(file.get_slice(key).get_shape()) == list(parameter.shape):
            states[parameter][part] = read_like(parameter, file, key)
        else:
            states[parameter][part] = file.get_tensor(key).to(parameter.device)


def double(tensor: Tensor) -> Tensor:
    """Returns a tensor in float64: where it is, or on the CPU if its device has none (mps)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def move_model(model: Model, device: str) -> Model:
    """Moves a model to a device, in float32 where that has no float64: a table may be float64."""
    return (model.float() if device == "mps" else model).to(device)


def is_finite_tensor(tensor: Tensor) -> bool:
    """Whether no number is NaN or an infinity."""
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    # The extremes are NaN if any number is. Unlike isfinite, they take no memory.
    extremes = [extreme.item() for extreme in numbers.aminmax()] if tensor.numel() else []
    return all(map(isfinite, extremes))


def read_like(tensor: Tensor, file: OpenFile, name: str) -> Tensor:
    """Returns the stored tensor `name` with the shape and device of `tensor`, and sharded like it:
    then only the rows of this rank are read."""
    if not sharded(tensor):
        return file.get_tensor(name).to(tensor.device)
    from torch.distributed.tensor import DTensor

    mesh, placements = cast(DTensor, tensor).device_mesh, cast(DTensor, tensor).placements
    shape, first = local(tensor).shape, mesh.get_local_rank() * -(-len(tensor) // mesh.size())
    source = file.get_slice(name)
    # The last ranks have no row where there are fewer rows than ranks. An open file slices none.
    rows = source[first : first + shape[0]] if shape[0] else source[0:1][:0]
    assert rows.shape == shape, "tensors are sharded by rows"
    return DTensor.from_local(
        rows.to(tensor.device), mesh, placements,
        run_check=False, shape=tensor.shape, stride=tensor.stride(),
    )  # fmt: skip
