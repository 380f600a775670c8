"""A device `mps` on a machine without one: its tensors are in the memory of the CPU, which computes
them. As on the device, no tensor there is float64, and none is computed with one that is elsewhere
unless that is a single number."""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps")
DEVICE, GRADIENT = torch.Tensor.device.__get__, torch.Tensor.grad.__get__
COPIES = (torch.Tensor.copy_, torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.data.__set__)


class Mapped(torch.Tensor):
    """A tensor that says it is on mps."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            return MPS
        if func is torch._has_compatible_shallow_copy_type:
            return False  # so that a module that moves there gets new parameters
        if func in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist):
            with torch._C.DisableTorchFunctionSubclass():
                return func(args[0].as_subclass(torch.Tensor), *args[1:], **kwargs)
        if func is torch.Tensor.to and leaves_mps(args[1:], kwargs):
            return super().__torch_function__(func, types, args, kwargs).as_subclass(torch.Tensor)
        if func not in COPIES:
            check_together(func, args, kwargs)
        result = super().__torch_function__(func, types, args, here(kwargs))
        if func == GRADIENT and result is not None:
            result = result.as_subclass(cls)
        check_narrow(func, result)
        return result


def check_narrow(func, result):
    for leaf in tree_leaves(result):
        if isinstance(leaf, Mapped) and leaf.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"{func}: mps has no float64")


def check_together(func, args, kwargs):
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Mapped) and leaf.dim():
            raise RuntimeError(f"{func}: a tensor of the CPU, {leaf.shape}, is used on mps")


def leaves_mps(args, kwargs):
    return any(str(value) == "cpu" for value in (*args, *kwargs.values()))


def is_mps(value):
    return isinstance(value, (str, torch.device)) and str(value).startswith("mps")


def here(values):
    """The same arguments, of the device on which the tensors really are."""
    return tree_map(lambda value: "cpu" if is_mps(value) else value, values)


class Factories(TorchFunctionMode):
    """Makes what is asked for on mps, and moves what is sent there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        asked = func is not torch.device and any(map(is_mps, (*args[1:], *kwargs.values())))
        if not asked or func is torch.autocast:
            return func(*args, **kwargs)
        mapped = lambda t: t.as_subclass(Mapped) if isinstance(t, torch.Tensor) else t  # noqa: E731
        result = tree_map(mapped, func(*here(args), **here(kwargs)))
        check_narrow(func, result)
        return result


@contextmanager
def fake_mps():
    """In the `with`, `trainer.device=mps` is such a device. Yields the seeds of its draws."""
    seeds = []
    with pytest.MonkeyPatch.context() as patch, Factories():
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        patch.setattr(torch.mps, "manual_seed", seeds.append)
        yield seeds
