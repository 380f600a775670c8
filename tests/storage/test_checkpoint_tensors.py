"""Tensors are written one after the other and read by slices, in safetensors' own format."""

import os
import sys

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from checkpoints import read, save
from new_process import run_python
from safetensors import safe_open
from torch import distributed, nn

from transformer_norms.run import checkpoint
from transformer_norms.run.checkpoint import NonFiniteError, stream_size
from transformer_norms.storage.manifest import DamagedError
from transformer_norms.training.tensors import load_optimizers, load_weights, read_like

WEIGHT = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
GROUPS = {
    "none": {},
    "weights": {"b.weight": WEIGHT, "a.weight": WEIGHT[2:], "tied": WEIGHT, "gain": WEIGHT[0]},
    "not contiguous": {"transposed": WEIGHT.t(), "expanded": WEIGHT[:1].expand(4, 5)},
    "no numbers": {"empty": torch.zeros(0, 3), "a": torch.ones(3), "none": torch.zeros(2, 0)},
    "one number": {"step": torch.tensor(3.0), "gain": torch.tensor([0.5])},
    "wide and narrow": {"b": WEIGHT.bfloat16(), "c": WEIGHT, "d": torch.tensor(1 << 40),
                        "a": torch.ones(3, dtype=torch.uint8)},
    "a name of another alphabet": {"вес.ß": WEIGHT},
    "half precision": {"half": WEIGHT.half(), "odd": torch.ones(1, dtype=torch.bool)},
    "double precision": {"weight": WEIGHT.double()},
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_a_file_has_the_bytes_that_the_library_itself_writes_and_is_read_again(name, tmp_path):
    copies = {key: tensor.clone().contiguous() for key, tensor in GROUPS[name].items()}
    saved = verified(tmp_path, model=GROUPS[name])
    written = (saved.path / "model.safetensors").read_bytes()
    assert written == safetensors.torch.save(copies)
    assert len(written) == stream_size(GROUPS[name])
    torch.testing.assert_close(read(saved, "model"), copies, rtol=0, atol=0)


@pytest.mark.goal("N2")
@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16, torch.half, torch.double])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_named_in_any_precision(dtype, bad, tmp_path):
    tensor = torch.ones(9, dtype=dtype)
    tensor[7] = bad
    with pytest.raises(NonFiniteError, match="gain holds NaN"):
        save(tmp_path, 1, content={"model": {"gain": tensor}})


@pytest.mark.goal("N2")
def test_a_number_that_is_not_finite_in_the_last_tensor_leaves_no_trace(tmp_path):
    save(tmp_path, 1, content={"model": {"a": WEIGHT}})
    before = sorted(tmp_path.rglob("*"))
    bad = {"a": WEIGHT, "z": torch.tensor([1.0, float("nan")])}
    with pytest.raises(NonFiniteError, match="z holds"):
        save(tmp_path, 2, content={"model": {"a": WEIGHT}, "optimizer": bad})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bit_that_flips_between_the_write_and_the_seal_is_seen(tmp_path, monkeypatch):
    def flip(descriptor):
        once.undo()
        os.pwrite(descriptor, b"\x40", os.fstat(descriptor).st_size - 1)

    with monkeypatch.context() as once:
        once.setattr(os, "fsync", flip)
        saved = save(tmp_path, 1, content={"model": {"weight": torch.zeros(9)}})
    with pytest.raises(DamagedError, match="model.safetensors: its bytes are not those that were"):
        checkpoint.verify(saved)


def test_the_files_of_a_checkpoint_have_the_mode_that_the_user_asks_for(tmp_path):
    before = os.umask(0o027)
    saved = save(tmp_path, 1)
    os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in saved.iterdir()} == {"0o640"}


def verified(folder, **content):
    """A checkpoint of groups of tensors, as it is found again."""
    return checkpoint.verify(save(folder, 1, content=content))


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    found = verified(tmp_path, model={"weight": torch.zeros(1 << 16)})
    with pytest.raises(DamagedError, match="model"), found.open("model") as file:  # noqa: PT012
        os.truncate(found.path / "model.safetensors", 300)
        file.get_tensor("weight").sum()


def test_weights_load_by_name_and_shape(tmp_path):
    model, weights = nn.Linear(5, 7), {"weight": WEIGHT, "bias": WEIGHT[:, 0]}
    with verified(tmp_path, model=weights).open("model") as file:
        load_weights(model, file)
        torch.testing.assert_close({**model.state_dict()}, weights, rtol=0, atol=0)
        for wrong, said in [
            (nn.Linear(5, 7, bias=False), "not this model's: bias"),
            (nn.Linear(5, 6), r"weight is \[7, 5\], not \[6, 5\]"),
            (nn.Sequential(nn.Linear(5, 7)), "0.bias, 0.weight, bias"),
        ]:
            with pytest.raises(ValueError, match=said):
                load_weights(wrong, file)


def test_a_moment_has_its_parameters_shape_and_a_count_of_steps_has_none(tmp_path):
    model = nn.ParameterDict({"weight": nn.Parameter(WEIGHT), "gain": nn.Parameter(torch.ones(1))})
    state = {"weight:exp_avg": WEIGHT + 1, "weight:step": torch.tensor(4.0)}
    state |= {"gain:exp_avg": torch.tensor([0.5]), "gain:step": torch.tensor(4.0)}
    optimizer = torch.optim.AdamW(model.values())
    with verified(tmp_path, optimizer=state).open("optimizer") as file:
        load_optimizers(model, [optimizer], file)
    weight, gain = (optimizer.state[model[name]] for name in ("weight", "gain"))
    assert torch.equal(weight["exp_avg"], WEIGHT + 1)
    assert (gain["exp_avg"].tolist(), gain["step"].shape) == ([0.5], ())


@pytest.fixture
def join_ranks():
    """Makes this process one of some ranks that never speak: enough to know what is its own."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def join(rank, world):
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield join
    distributed.destroy_process_group()


@pytest.mark.parametrize(("shape", "world"), [((7, 5), 3), ((4, 2), 3), ((2, 3), 4), ((1,), 2)])
def test_a_rank_reads_its_own_rows_and_no_others(join_ranks, shape, world, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    per_rank = -(-shape[0] // world)  # the last ranks have fewer, or none
    safetensors.numpy.save_file({"weight": numbers}, tmp_path / "one")
    with safe_open(tmp_path / "one", "pt", backend="pread") as file:
        for rank in range(world):
            join_ranks(rank, world)
            mesh = init_device_mesh("cpu", (world,))
            like = distribute_tensor(torch.zeros(shape), mesh, [Shard(0)], src_data_rank=None)
            part = read_like(like, file, "weight")
            expected = numbers[rank * per_rank : (rank + 1) * per_rank]
            assert np.array_equal(part.to_local().numpy(), expected)
            assert (part.shape, part.placements) == (like.shape, like.placements)


MEMORY = """
import sys
from pathlib import Path
import torch
from checkpoints import save
from fresh import highest, reset
from torch import nn
from transformer_norms.run import checkpoint
from transformer_norms.training.tensors import load_weights, stored_tensors

model = nn.ParameterList(torch.ones(5 * 2**20) for _ in range(10))
path = Path(sys.argv[1], "step-00000001")
weights = {"model": stored_tensors(model)}
before = reset()
save(path.parent, 1, content=weights)
print(highest() - before)
before = reset()
with checkpoint.verify(path).open("model") as file:
    load_weights(model, file)
print(highest() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is read from /proc")
def test_saving_and_loading_take_the_memory_of_one_tensor(tmp_path):
    printed = run_python(MEMORY, tmp_path)
    largest = 5 * 2**20 * 4
    assert (tmp_path / "step-00000001" / "model.safetensors").stat().st_size > 10 * largest
    for memory in map(int, printed.split()):  # to save, and to load
        assert memory < 1.2 * largest, printed
