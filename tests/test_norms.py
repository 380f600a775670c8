"""Norms against torch, their formulas and their invariances; the catalogue's own come with it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.building import _norm
from transformer_norms.config import compose, options, plain
from transformer_norms.placement import Site

WIDTH = 24
LEARNED = [name for name in options("norm") if name != "none"]


def norm_of(name, width=WIDTH):
    norm = _norm(plain(compose([f"norm={name}"])), Site("norm"))(width)
    torch.manual_seed(0)
    for parameter in norm.parameters():
        parameter.data = torch.randn_like(parameter)
    return norm


def torchs(name, norm, x):
    if name == "rmsnorm":
        return F.rms_norm(x, (WIDTH,), norm.gain.to(x.dtype), norm.eps)
    bias = None if norm.bias is None else norm.bias.to(x.dtype)
    return F.layer_norm(x, (WIDTH,), norm.gain.to(x.dtype), bias, norm.eps)


@pytest.mark.parametrize("name", LEARNED)
def test_a_norm_equals_torchs_own_in_float64(name):
    norm, x = norm_of(name).double(), torch.randn(3, 5, WIDTH).double() * 7 + 2
    torch.testing.assert_close(norm(x), torchs(name, norm, x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_of_a_norm_is_that_of_finite_differences(name):
    norm = norm_of(name, 6).double()
    x = torch.randn(2, 3, 6, dtype=torch.double, requires_grad=True)
    names = list(dict(norm.named_parameters()))

    def function(x, *values):
        return torch.func.functional_call(norm, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *norm.parameters()))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(name, dtype):
    norm, x = norm_of(name), (torch.randn(64, WIDTH) * 30).to(dtype)
    expected = torchs(name, norm, x.double()).to(dtype)
    found = norm(x)
    assert found.dtype == dtype
    # One unit in the last place where float32 and float64 fall on two sides of a rounding edge.
    assert (found == expected).float().mean() > 0.999
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)
    assert all(parameter.dtype == torch.float32 for parameter in norm.parameters())


@pytest.mark.parametrize("name", LEARNED)
def test_a_constant_row_of_zeros_stays_finite_with_its_gradient(name):
    norm, x = norm_of(name), torch.zeros(2, WIDTH, requires_grad=True)
    norm(x).sum().backward()
    assert norm(x).isfinite().all()
    assert x.grad.isfinite().all()


LAYER, RMS = norm_of("layernorm").double(), norm_of("rmsnorm").double()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 1e3), st.floats(-50, 50))
def test_layernorm_forgets_scale_and_shift_and_rmsnorm_scale_alone(seed, scale, shift):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
    layer, rms = LAYER, RMS
    torch.testing.assert_close(layer(x * scale + shift), layer(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rms(x * scale), rms(x), rtol=1e-4, atol=1e-4)
    if abs(shift) > 1:
        assert not torch.allclose(rms(x + shift), rms(x), atol=1e-3)


def test_the_norm_none_adds_no_module_and_returns_its_input():
    none, x = norm_of_none(), torch.randn(2, WIDTH)
    assert none(x) is x
    assert not isinstance(none, torch.nn.Module)


def norm_of_none():
    return _norm(plain(compose(["norm=none"])), Site("norm"))(WIDTH)


def test_second_derivatives_are_refused_and_never_silently_wrong():
    norm, x = norm_of("rmsnorm"), torch.randn(2, WIDTH, requires_grad=True)
    (grad,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
