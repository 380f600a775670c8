"""Capped attention in half precision and with dropout, and where one kernel of a GPU computes it.
test_patterns compares each way that computes it with its formula."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms.model.attentions import kernels as capped

CAP, SCALE, TIME = 1.3, 0.7, 9
attend = partial(capped.capped_attention, cap=CAP, scale=SCALE)


def formula(q, k, v, cap=CAP, scale=SCALE):
    logits = cap * torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) * scale / cap)
    seen = torch.arange(k.shape[2]) <= torch.arange(q.shape[2])[:, None]
    weights = torch.where(seen, logits, float("-inf")).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def of_heads(dtype, count=3):
    generator = torch.Generator().manual_seed(5)
    shape = (2, 3, TIME, 16)
    drawn = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(count)]
    return [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in drawn]


def test_under_autocast_only_the_products_are_rounded_to_bfloat16():
    inputs = of_heads(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = capped.written_out(*inputs, CAP, SCALE)
    assert found.dtype == torch.bfloat16
    gradients = (torch.autograd.grad(y.float().sum(), inputs) for y in (found, formula(*inputs)))
    torch.testing.assert_close(found.float(), formula(*inputs), rtol=0, atol=0.05)
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.05)


def test_a_gradient_of_the_gradient_is_refused():
    inputs = of_heads(torch.float64)
    y = capped.written_out(*inputs, CAP, SCALE)
    first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


def test_dropout_leaves_out_weights_and_enlarges_the_others():
    q, k, v = of_heads(torch.float64)
    torch.manual_seed(0)
    first = attend(q, k, v, attn_mask=None, dropout_p=0.75, is_causal=True)[
        :, :, 0
    ]  # sees itself alone
    kept = first.ne(0).any(-1, keepdim=True)
    assert kept.any()
    assert not kept.all()
    assert torch.equal(first, torch.where(kept, 4 * v[:, :, 0], 0))


def test_one_kernel_is_for_a_gpu_with_heads_and_numbers_that_it_takes():
    def fits(device, head_dim, dtype, value_dim=16):
        with FakeTensorMode():
            q, v = (
                torch.empty(1, 1, 4, size, device=device, dtype=dtype)
                for size in (head_dim, value_dim)
            )
        return capped.has_one_kernel(q, v)

    assert fits("cuda", 16, torch.float32)
    assert fits("cuda", 64, torch.bfloat16)
    assert not fits("cpu", 16, torch.float32)
    assert not fits("cuda", 8, torch.float32)
    assert not fits("cuda", 24, torch.float32, value_dim=8)
    assert not fits("cuda", 16, torch.float64)


def test_where_flops_are_counted_no_kernel_hides_them():
    with FakeTensorMode():
        q = torch.empty(2, 3, TIME, 16, device="cuda")
    with FlopCounterMode(display=False):
        assert not capped.has_one_kernel(q, q)
    with FlopCounterMode(display=False) as counter:
        capped.written_out(*of_heads(torch.float32), CAP, SCALE).sum().backward()
    assert counter.get_total_flops() == 6 * 2 * (2 * 3 * TIME * TIME * 16)  # 2 forward, 4 backward
