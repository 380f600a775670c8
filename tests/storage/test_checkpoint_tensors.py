"""Tensors are saved and loaded as they are, in the memory of one of them."""

import os
import sys

import pytest
import torch
from checkpoints import read, save
from new_process import run_python
from torch import nn

from transformer_norms.run import checkpoint
from transformer_norms.run.checkpoint import NonFiniteError
from transformer_norms.storage.manifest import DamagedError
from transformer_norms.training.tensors import load_optimizers, load_weights

WEIGHT = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
GROUPS = {
    "none": {},
    "weights": {"b.weight": WEIGHT, "a.weight": WEIGHT[2:].clone(), "gain": WEIGHT[0].clone()},
    "not contiguous": {"transposed": WEIGHT.t(), "expanded": WEIGHT[:1].expand(4, 5)},
    "no numbers": {"empty": torch.zeros(0, 3), "a": torch.ones(3), "none": torch.zeros(2, 0)},
    "one number": {"step": torch.tensor(3.0), "gain": torch.tensor([0.5])},
    "wide and narrow": {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": WEIGHT.bfloat16(),
        "c": WEIGHT,
        "d": torch.tensor(1 << 40),
    },
    "a name of another alphabet": {"вес.ß": WEIGHT},
    "half precision": {"half": WEIGHT.half(), "odd": torch.ones(1, dtype=torch.bool)},
    "double precision": {"weight": WEIGHT.double()},
}


@pytest.mark.parametrize("name", GROUPS)
def test_what_is_saved_is_read_again_bit_by_bit(name, tmp_path):
    found = read(verified(tmp_path, model=GROUPS[name]), "model")
    assert found.keys() == GROUPS[name].keys()
    for key, tensor in GROUPS[name].items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor)


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


# --------------------------------------------------------------- reading


def verified(folder, **content):
    """A checkpoint of groups of tensors, as it is found again."""
    return checkpoint.verify(save(folder, 1, content=content))


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    found = verified(tmp_path, model={"weight": torch.zeros(1 << 16)})

    def read():
        with found.open("model") as file:
            os.truncate(found.path / "model.safetensors", 300)
            file.get_tensor("weight").sum()

    with pytest.raises(DamagedError, match="model.safetensors"):
        read()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(5, 7), None),
        (nn.Linear(5, 7, bias=False), "not this model's: bias"),
        (nn.Linear(5, 6), r"weight is \[7, 5\], not \[6, 5\]"),
        (nn.Sequential(nn.Linear(5, 7)), "0.bias, 0.weight, bias"),
    ],
)
def test_weights_load_by_name_and_shape(tmp_path, model, said):
    saved = verified(tmp_path, model={"weight": WEIGHT, "bias": WEIGHT[:, 0]})
    with saved.open("model") as file:
        if said:
            with pytest.raises(ValueError, match=said):
                load_weights(model, file)
        else:
            load_weights(model, file)
            assert torch.equal(model.weight, WEIGHT)
            assert torch.equal(model.bias, WEIGHT[:, 0])


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


# --------------------------------------------------------------- memory

MEMORY = """
import sys
from pathlib import Path
import torch
from checkpoints import read, save
from torch import nn
from transformer_norms.run import checkpoint
from transformer_norms.training.tensors import load_weights, stored_tensors

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def more_memory(act):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = peak()
    act()
    print(peak() - before)

def load():
    with checkpoint.verify(path).open("model") as file:
        load_weights(model, file)

model = nn.ParameterList(torch.ones(5 * 2**20) for _ in range(10))
path = Path(sys.argv[1], "step-00000001")
weights = {"model": stored_tensors(model)}
more_memory(lambda: save(path.parent, 1, content=weights))
more_memory(load)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is read from /proc")
def test_saving_and_loading_take_the_memory_of_one_tensor(tmp_path):
    printed = run_python(MEMORY, tmp_path)
    largest = 5 * 2**20 * 4
    assert (tmp_path / "step-00000001" / "model.safetensors").stat().st_size > 10 * largest
    saving, loading = map(int, printed.split())
    assert saving < 1.2 * largest, saving / largest
    assert loading < 1.2 * largest, loading / largest
