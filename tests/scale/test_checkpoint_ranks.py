"""One format: what any number of ranks saves in shards, any number loads, byte for byte."""

import numpy as np
import pytest
import safetensors.numpy
import torch
from rank_workers import on_ranks
from torch import Tensor, distributed, nn

from transformer_norms.run import checkpoint
from transformer_norms.training.optimizer import Muon
from transformer_norms.training.tensors import (
    load_optimizers,
    load_weights,
    optimizer_tensors,
    stored_tensors,
)

RUN = "0123456789abcdef"
FILES = ("model.safetensors", "optimizer.safetensors")
pytestmark = pytest.mark.nightly


class Model(nn.Module):
    """Its tensors divide evenly among no number of ranks, and some have fewer rows than ranks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=draw))

        self.matrix, self.rows = parameter(7, 5), parameter(2, 7)
        self.tied, self.gain, self.scalar = self.matrix, parameter(5), parameter(1)
        self.register_buffer("running_mean", torch.randn(5, generator=draw))
        self.register_buffer("batches", torch.tensor(seed))
        self.register_buffer("table", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scalar * (x * self.gain + self.running_mean) @ self.tied.T @ self.rows.T

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            Muon([self.matrix], lr=0.1, momentum=0.9, weight_decay=0.0),
            torch.optim.AdamW([self.rows, self.gain, self.scalar], lr=0.1, fused=True),
        ]


def tensors_of(model, optimizers):
    state = optimizer_tensors(model, optimizers)
    return {"model": stored_tensors(model), "optimizer": state}


def load_into(model, optimizers, path):
    saved = checkpoint.verify(path)
    with saved.open("model") as file:
        load_weights(model, file)
    with saved.open("optimizer") as file:
        load_optimizers(model, optimizers, file)


def save(folder, step, tensors):
    return checkpoint.save(folder, RUN, step, tensors, {}, {}, keep=9)


def as_one_process(folder, source, target):
    """Loads one step and saves it as another, and returns what it holds."""
    model = Model(seed=99)
    optimizers = model.optimizers()
    load_into(model, optimizers, source)
    save(folder, target, tensors_of(model, optimizers))
    return model, optimizers


def in_shards(ranks, folder, source, target):
    """The same on ranks, after a forward pass that leaves gathered weights in the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks.count,))
    model = fully_shard(Model(seed=7), mesh=mesh, reshard_after_forward=False)
    optimizers = model.optimizers()
    load_into(model, optimizers, folder / f"step-{source:08d}")
    _check_shards(ranks, folder / f"step-{source:08d}", tensors_of(model, optimizers))
    with torch.no_grad():
        model(torch.ones(3, 5))
    for _ in range(2):  # the second finds the step saved, and gathers for nothing
        tensors = tensors_of(model, optimizers)
        if ranks.rank == 0:
            save(folder, target, tensors)
        else:
            checkpoint.follow(tensors)
        distributed.barrier()


def _check_shards(ranks, path, groups):
    for name, group in zip(FILES, groups.values(), strict=True):
        arrays = safetensors.numpy.load_file(path / name)
        assert arrays.keys() == group.keys()
        for key, tensor in group.items():
            here = tensor.detach()
            if not key.endswith(":step") and key not in ("running_mean", "batches"):
                per_rank = -(-len(arrays[key]) // ranks.count)
                arrays[key] = arrays[key][ranks.rank * per_rank :][:per_rank]
                here = here.to_local()
            assert np.array_equal(here.numpy(), arrays[key]), key


def trained(folder):
    """A checkpoint, as step 1, of one process after two steps."""
    model = Model(seed=0)
    optimizers = model.optimizers()
    for _ in range(2):
        model(torch.ones(3, 5)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    save(folder, 1, tensors_of(model, optimizers))


def same_files(folder, step):
    return all(
        (folder / "step-00000001" / name).read_bytes()
        == (folder / f"step-{step:08d}" / name).read_bytes()
        for name in FILES
    )


def test_one_process_and_2_and_3_ranks_hand_on_one_checkpoint_byte_for_byte(tmp_path):
    trained(tmp_path)
    as_one_process(tmp_path, tmp_path / "step-00000001", 2)
    on_ranks(3, in_shards, tmp_path, 2, 3)
    on_ranks(2, in_shards, tmp_path, 3, 4)
    as_one_process(tmp_path, tmp_path / "step-00000004", 5)
    assert all(same_files(tmp_path, step) for step in (2, 3, 4, 5))
    keys = set(safetensors.numpy.load_file(tmp_path / "step-00000003" / FILES[1]))
    assert keys == {"matrix:momentum"} | {
        f"{name}:{part}"
        for name in ("rows", "gain", "scalar")
        for part in ("step", "exp_avg", "exp_avg_sq")
    }
