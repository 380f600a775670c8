"""Shapes and kinds are checked while tests run: a wrong one ends the call that has it."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from shape_checker import check, decorate
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
    checked = decorate(typechecker=check)
    x = torch.zeros(2, 4)
    assert checked(add)(x, torch.zeros(4)).shape == (2, 4)
    with pytest.raises(BeartypeCallHintViolation):
        checked(add)(x, torch.zeros(1))  # torch would broadcast it
    with pytest.raises(BeartypeCallHintViolation):
        checked(mean)(x)
