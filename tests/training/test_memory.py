"""What takes less memory or time than the plain way gives what the plain way gives."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trainers import losses, trainer_of

from transformer_norms.training import loss as loss_module

VOCABULARY, TOKENS = 31, 4 * 16


def in_pieces_of(tokens, monkeypatch):
    monkeypatch.setattr(loss_module, "LOGITS", tokens * VOCABULARY + VOCABULARY - 1)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that anything inside computes."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


HEADS = [
    ["architecture.tied=true"],
    ["architecture.tied=false", "architecture.bias=true", "architecture.logit_cap=3"],
    ["embed=fixnorm", "architecture.logit_scale=0.5"],
]


@pytest.mark.parametrize("pieces", [1, 2, 5, TOKENS])
@pytest.mark.parametrize("typed", [*HEADS, ["placement=residual_dual", "trainer.accumulation=2"]])
def test_the_loss_and_its_gradients_are_those_of_all_logits_at_once(typed, pieces, monkeypatch):
    trainer = trainer_of("trainer.precision=fp64", *typed)
    in_pieces_of(-(-TOKENS // pieces), monkeypatch)
    batch, parts = trainer.batches(0), trainer.settings.accumulation
    logits = trainer.model(batch[:, :-1])
    whole = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    wanted = torch.autograd.grad(whole, trainer.parameters)
    assert trainer.loss(batch).item() == pytest.approx(whole.item(), rel=1e-13)
    assert trainer.loss.sum(batch).item() == pytest.approx(TOKENS * whole.item(), rel=1e-13)
    total = sum(trainer.loss.backward(part, parts)[0].item() for part in batch.chunk(parts))
    assert total == pytest.approx(whole.item(), rel=1e-13)
    found = [parameter.grad for parameter in trainer.parameters]
    torch.testing.assert_close(found, [*wanted], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("typed", HEADS)
def test_a_head_whose_rows_are_filled_up_has_the_same_gradients(typed, precision, monkeypatch):
    trainer = trainer_of(f"trainer.precision={precision}", *typed)
    dtype, near = (torch.float64, 1e-14) if precision == "fp64" else (torch.float32, 1e-8)
    batch, found = trainer.batches(0), []
    for aligned in (1, 64):
        monkeypatch.setitem(loss_module.ALIGNED, "cpu", aligned)
        assert trainer.model.logits(torch.zeros(3, 64).to(dtype), aligned).shape == (3, VOCABULARY)
        total = trainer.loss.backward(batch, 1)
        found.append([total, trainer.loss.sum(batch), *(p.grad for p in trainer.parameters)])
        trainer.model.zero_grad(set_to_none=True)
    # On most processors they have the same bits.
    torch.testing.assert_close(*found, rtol=100 * near, atol=near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nats_are_torchs_to_the_digit_and_their_gradient_to_rounding(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator).mul(8).to(dtype).float()
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    wanted = F.cross_entropy(logits.requires_grad_(), targets, reduction="sum")
    share = torch.tensor(1.0) / 3 / TOKENS
    (wanted * share).backward()
    given = logits.to(dtype), targets, share, torch.full_like(logits, float("nan"))
    loss, nats, gradient = loss_module.CrossEntropy().gradient(*given)
    assert torch.equal(loss, wanted)
    assert torch.equal(nats, wanted)
    torch.testing.assert_close(gradient, logits.grad, rtol=0, atol=2e-7 * share.item())


def test_a_batchs_logits_never_exist_at_once(monkeypatch):
    for tokens, numbers in ((TOKENS, TOKENS * VOCABULARY), (5, TOKENS * 4)):  # 4: the stream's
        trainer = trainer_of("model.width=4", "model.heads=1", "model.mlp_width=4")
        in_pieces_of(tokens, monkeypatch)
        with Largest() as largest:
            losses(trainer, 1)
            trainer.evaluate([trainer.batches(0)])
        assert largest.numbers == numbers


@pytest.mark.parametrize("share", [0.9, 1.05, 1.2])
def test_gradients_are_clipped_where_torch_would_change_them(share):
    """Down to clips that are not far from what torch adds to the norm it divides by."""
    trainer = trainer_of("trainer.precision=fp64")
    backward, norm, found = trainer.loss.backward, 1e-5, []

    def copy_gradients(*_):
        found.append([parameter.grad.clone() for parameter in trainer.parameters])

    def small(batch, parts):
        total = backward(batch, parts)
        scale = norm / torch.nn.utils.get_total_norm([p.grad for p in trainer.parameters])
        torch._foreach_mul_([p.grad for p in trainer.parameters], scale)
        copy_gradients()
        return total

    trainer.loss.backward = small
    trainer.settings = replace(trainer.settings, clip=share * norm)
    trainer.optimizers[0].register_step_pre_hook(copy_gradients)
    losses(trainer, 1)
    whole, clipped = found
    wanted = [gradient * min(1.0, share * norm / (norm + 1e-6)) for gradient in whole]
    torch.testing.assert_close(clipped, wanted, rtol=1e-9, atol=0)


RECOMPUTE = "trainer.activation_checkpointing"
RECOMPUTED = [
    ["norm=layernorm", "placement=post"],
    ["norm=batchnorm", "norm.allow_noncausal=true"],
    ["placement=residual_dual", "trainer.accumulation=2"],
    ["model.dropout=0.2", "trainer.precision=bf16"],
    ["placement=parallel"],
    ["placement=mhc", "architecture.kv_rank=10", "architecture.rope_dim=4"],
]


@pytest.mark.goal("A4")
@pytest.mark.parametrize("typed", RECOMPUTED)
def test_activation_checkpointing_changes_no_digit(typed):
    plain, again = (trainer_of(f"{RECOMPUTE}={on}", *typed) for on in ("false", "true"))
    assert losses(plain, 4) == losses(again, 4)
    torch.testing.assert_close(plain.tensors(), again.tensors(), rtol=0, atol=0)


def test_activation_checkpointing_keeps_for_each_further_block_its_input_alone():
    def kept(depth, on):
        trainer, sizes = trainer_of(f"model.depth={depth}", f"{RECOMPUTE}={on}"), {}

        def keep(tensor):
            sizes.setdefault(tensor.data_ptr(), tensor.numel())
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = trainer.loss(trainer.batches(0))
        assert loss.grad_fn is not None
        return sum(sizes.values()) - sum(sizes.get(p.data_ptr(), 0) for p in trainer.parameters)

    width = trainer_of().model.embedding.weight.shape[1]
    assert kept(6, "true") - kept(5, "true") <= TOKENS * width
    assert kept(6, "false") - kept(5, "false") > 10 * TOKENS * width
