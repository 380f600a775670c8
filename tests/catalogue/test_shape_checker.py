"""Shapes and kinds are checked while tests run: a wrong one ends the call that has it."""

from importlib import import_module

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from shape_checker import Loader, check, decorate
from torch import Tensor

from transformer_norms.comparison.sweep_record import label
from transformer_norms.norms import NORMS


def add(x: Float[Tensor, "batch width"], y: Float[Tensor, "width"]) -> Float[Tensor, "batch width"]:  # noqa: F821
    return x + y


def mean(x: Float[Tensor, "batch width"]) -> Float[Tensor, "batch"]:  # noqa: F821
    return x.mean(0)


def test_the_package_is_checked():
    norm = NORMS["rmsnorm"](4, eps=1e-6, gain="learned", bias=False)
    with pytest.raises(BeartypeCallHintViolation):
        norm(torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(BeartypeCallHintViolation):
        label(["not", "a", "mapping"])


def test_a_name_is_one_size_in_all_arguments_and_in_the_result():
    checked, x = decorate(typechecker=check), torch.zeros(2, 4)
    assert checked(add)(x, torch.zeros(4)).shape == (2, 4)
    for function, given in ((add, (x, torch.zeros(1))), (mean, (x,))):  # torch broadcasts the first
        with pytest.raises(BeartypeCallHintViolation):
            checked(function)(*given)


def test_what_a_checked_module_imports_is_compiled_as_it_always_is(tmp_path, monkeypatch):
    (tmp_path / "checked_here.py").write_text("import imported_there")
    (tmp_path / "imported_there.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("checked_here", "shape_checker.check"):
        module = import_module("checked_here")
    assert isinstance(module.__loader__, Loader)
    assert "jaxtyping" not in module.imported_there.__cached__
