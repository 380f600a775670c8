"""Writes tensors as safetensors, one at a time: safetensors' own writer wants all of them at once.

A file is 8 bytes with the length of the header, the header (JSON: dtype, shape and place of each
tensor) and the bytes of the tensors: https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Iterator, Mapping

import torch
from safetensors import TensorSpec
from torch import Tensor

from transformer_norms.training.tensors import is_finite_tensor, whole

Tensors = Mapping[str, Tensor]  # a sharded one is gathered when it is written


class NonFiniteError(ValueError):
    """A tensor that was to be saved holds NaN or an infinity."""


def stream_size(tensors: Tensors) -> int:
    """Returns the bytes of the file. It is known from the shapes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def stream(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the file, with one whole tensor in memory at a time.

    Raises NonFiniteError when it comes to a tensor that holds NaN or an infinity.
    """
    yield _header(tensors)
    for name, tensor in _in_order(tensors):
        yield _finite_bytes(name, whole(tensor.detach()).cpu().contiguous())


def gather(tensors: Tensors) -> None:
    """Gathers what `stream` gathers. Every rank that does not write must call it meanwhile."""
    for _, tensor in _in_order(tensors):
        whole(tensor.detach())


def _in_order(tensors: Tensors) -> list[tuple[str, Tensor]]:
    """Returns wide types first, so that every tensor begins at a multiple of its item's size."""
    return sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))


def _header(tensors: Tensors) -> bytes:
    places, end = {}, 0
    for name, tensor in _in_order(tensors):
        start, end = end, end + tensor.nbytes
        dtype = _stored_dtype(tensor)
        places[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(places, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _stored_dtype(tensor: Tensor) -> str:
    """Returns safetensors' name of a tensor's type: F32, BF16, .."""
    name = str(tensor.dtype).removeprefix("torch.")
    return str(TensorSpec(dtype=name, shape=[], data_ptr=0, data_len=0).dtype)


def _finite_bytes(name: str, tensor: Tensor) -> memoryview:
    """Returns the tensor's own memory after it was checked."""
    if not is_finite_tensor(tensor):
        raise NonFiniteError(f"{name} holds NaN or an infinity; it is not saved")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
