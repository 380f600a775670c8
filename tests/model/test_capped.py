"""Capped attention in half precision and with dropout, and where one kernel of a GPU computes it.
test_patterns compares each way that computes it with its formula."""

from functools import partial

import pytest
import torch
from tiny_models import seeded, with_gradients
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from written_out import by_hand

from transformer_norms.model.attentions import kernels as capped

CAP, SCALE, TIME = 1.3, 0.7, 9
attend = partial(capped.capped_attention, cap=CAP, scale=SCALE)


def of_heads(dtype):
    """Queries, keys and values, whose heads lie side by side in each token."""
    generator = seeded(5)
    every = [torch.randn(2, 3, TIME, 16, generator=generator, dtype=dtype) for _ in range(3)]
    return [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in every]


def test_under_autocast_only_the_products_are_rounded_to_bfloat16():
    inputs = of_heads(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = capped.written_out(*inputs, CAP, SCALE)
    assert found.dtype == torch.bfloat16
    expected, *_ = by_hand(*inputs, cap=CAP, scale=SCALE)
    ones = torch.ones(expected.shape)
    both = [with_gradients(y, inputs, ones) for y in (found.float(), expected)]
    torch.testing.assert_close(*both, rtol=0, atol=0.05)
    assert {x.dtype for x in both[0]} == {torch.float32}


def test_a_gradient_of_the_gradient_is_refused():
    inputs = of_heads(torch.float64)
    y = capped.written_out(*inputs, CAP, SCALE)
    first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


def test_dropout_leaves_out_weights_and_enlarges_the_others():
    q, k, v = of_heads(torch.float64)
    torch.manual_seed(0)
    found = attend(q, k, v, attn_mask=None, dropout_p=0.75, is_causal=True)
    first = found[:, :, 0]  # which sees itself alone
    kept = first.ne(0).any(-1, keepdim=True)
    assert kept.unique().tolist() == [False, True]
    assert torch.equal(first, torch.where(kept, 4 * v[:, :, 0], 0))


@pytest.mark.parametrize(
    ("device", "dims", "dtype", "fits"),
    [
        ("cuda", (16, 16), torch.float32, True),
        ("cuda", (64, 16), torch.bfloat16, True),
        ("cpu", (16, 16), torch.float32, False),
        ("cuda", (8, 16), torch.float32, False),
        ("cuda", (24, 8), torch.float32, False),
        ("cuda", (16, 16), torch.float64, False),
    ],
)
def test_one_kernel_is_for_a_gpu_with_heads_and_numbers_that_it_takes(device, dims, dtype, fits):
    with FakeTensorMode():
        q, v = (torch.empty(1, 1, 4, size, device=device, dtype=dtype) for size in dims)
    assert capped.has_one_kernel(q, v) == fits


def test_where_flops_are_counted_no_kernel_hides_them():
    with FakeTensorMode():
        q = torch.empty(2, 3, TIME, 16, device="cuda")
    with FlopCounterMode(display=False):
        assert not capped.has_one_kernel(q, q)
    with FlopCounterMode(display=False) as counter:
        capped.written_out(*of_heads(torch.float32), CAP, SCALE).sum().backward()
    assert counter.get_total_flops() == 6 * 2 * (2 * 3 * TIME * TIME * 16)  # 2 forward, 4 backward
