"""Checkpoints made up for tests: a few small tensors, which are a function of the step."""

import pytest
import torch

from transformer_norms.run import checkpoint

RUN = "0123456789abcdef"


def tensors(step):
    draw = torch.Generator().manual_seed(step)
    weight = torch.randn(40, 64, generator=draw)
    model = {"weight": weight, "tied": weight.clone(), "half": weight.bfloat16()}
    average = torch.rand(40, 64, generator=draw).double()
    return {
        "model": {**model, "steps": torch.tensor(step)},
        "optimizer": {"weight.average": average},
    }


def save(folder, step, keep=9, content=None):
    content = tensors(step) if content is None else content
    extra = {"data": "c0ffee", "chain": f"{step:x}"}
    return checkpoint.save(folder, RUN, step, content, {"step": step, "best": 1.5}, extra, keep)


def newest(folder, warn=pytest.fail):
    """The step of the newest checkpoint that verifies, whose every tensor is compared."""
    found = checkpoint.newest(folder, RUN, warn, ("model", "optimizer"))
    assert found is not None
    for name, group in tensors(found.step).items():
        loaded = read(found, name)
        assert loaded.keys() == group.keys()
        for key, tensor in group.items():
            assert loaded[key].dtype == tensor.dtype
            assert torch.equal(loaded[key], tensor)
    return found.step


def read(found, name):
    with found.open(name) as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
