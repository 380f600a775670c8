"""`parallel=fsdp`: weights, gradients and moments cut into shards, one for each rank, by FSDP2.

A rank holds its shard of every parameter, and the whole of one block while it computes that block.
Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import nothing
from transformer_norms.signals import Interrupted
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.parallel.micro_batches import MicroBatches, seed_dropout
from transformer_norms.training.parallel.ranks import Ranks, add_in_tree
from transformer_norms.training.tensors import sharded

Parts = Sequence[Tensor]
Matrices = Float[Tensor, "count rows columns"]
Rows = Float[Tensor, "count shard columns"]


def map_whole(function: Callable[[Matrices], Matrices], shards: Rows, like: Tensor) -> Rows:
    """Returns this rank's rows of function(matrices), from its rows of the matrices, which are cut
    as `like` is. Each rank computes the function for its share of the matrices.

    Two exchanges move what a reduction and a gathering of all matrices would, and no rank computes
    what another one does.
    """
    if not sharded(like):
        return function(shards)
    shard: Any = like
    group, height = shard.device_mesh.get_group(), len(like)
    rank, ranks = group.rank(), group.size()
    counts = [len(share) for share in torch.arange(len(shards)).tensor_split(ranks)]
    longest = -(-height // ranks)  # of a shard; the last ones may have fewer rows, or none
    rows = [min(longest, max(0, height - longest * each)) for each in range(ranks)]
    sent = [(count, rows[rank]) for count in counts]  # to each rank its share of the matrices
    received = [(counts[rank], each) for each in rows]  # from each rank its rows of them
    own = torch.cat(_exchange(shards.split(counts), received, group), dim=1)
    mapped = function(own).split(rows, dim=1)
    return torch.cat(_exchange(mapped, sent, group))


def _exchange(parts: Parts, shapes: Sequence[tuple[int, int]], group: Any) -> list[Tensor]:
    """Sends parts[i] to rank i. Returns what came from each rank, [count, rows, columns]."""
    from torch.distributed import all_to_all_single

    columns = parts[0].shape[-1]
    sizes = [count * rows * columns for count, rows in shapes]
    flat = torch.cat([part.reshape(-1) for part in parts])
    received = flat.new_empty(sum(sizes))
    all_to_all_single(received, flat, sizes, [part.numel() for part in parts], group=group)
    pairs = zip(received.split(sizes), shapes, strict=True)
    return [part.view(*shape, columns) for part, shape in pairs]


def sharder(parallel: str, device: str, ranks: Ranks) -> Callable[[Any], Any]:
    """Returns what cuts the parameters of a block, or of a model whose blocks are cut, into a shard
    for each rank, on `device`. Buffers stay whole. It is `nothing` unless parallel=fsdp has several
    ranks.

    It is applied to each block as soon as the block is built, so that a rank holds one whole block
    at most. A block's weights have no values then, and its gains, biases and buffers are what their
    class says.
    """
    if parallel != "fsdp" or ranks.count == 1:
        return nothing
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (ranks.count,))
    # autocast computes in bf16, so that gains stay float32.
    policy = fsdp.MixedPrecisionPolicy(cast_forward_inputs=False)

    def shard(module: nn.Module) -> nn.Module:
        cut = fsdp.fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        cut.set_force_sum_reduction_for_comms(True)  # gloo has no mean
        cut.set_gradient_divide_factor(1.0)
        if isinstance(module, Transformer):
            for method in ("states", "logits"):
                fsdp.register_fsdp_forward_method(module, method)
        return module

    return shard


@contextmanager
def outer_weights(model: Any) -> Iterator[None]:
    """Keeps the weights outside of the blocks whole meanwhile: else every piece of a loss would
    gather those of the head. Afterwards they are shards again."""
    model.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        model.set_reshard_after_forward(True, recurse=False)
        model.reshard()


class ShardedLoss(ModelLoss):
    """The loss of a sharded model on this rank's share of a batch.

    `last` says that the next backward pass is the last one of a step. After it the gradients are
    summed over the ranks, and are shards. Before it each rank adds up its own, whole.
    """

    last = True
    keeps_casts = False

    def sum(self, batch: Batch) -> Tensor:
        with outer_weights(self.model):
            return super().sum(batch)

    def backward(self, batch: Batch, parts: int) -> Tensor:
        with outer_weights(self.model):
            return super().backward(batch, parts)

    def _piece_backward(self, *piece: Any) -> tuple[Tensor, Tensor]:
        model: Any = self.model
        model.set_requires_gradient_sync(False)
        model.set_reshard_after_backward(False, recurse=False)
        try:
            return super()._piece_backward(*piece)
        finally:
            model.set_reshard_after_backward(True, recurse=False)
            model.set_requires_gradient_sync(self.last)


class ShardedMicroBatches(MicroBatches):
    """The micro-batches of a step of a sharded model. Each rank computes its own one after the
    other. Sums over ranks are in the order of the backend, so that they equal those of one process
    to rounding."""

    def backward(self, batch: Batch, step: int) -> Tensor:
        loss: Any = self.loss
        own = self.own(batch)
        losses: list[Tensor] = []
        for i, (first, part) in enumerate(own, 1):
            self._check_signals()
            loss.last = i == len(own)
            seed_dropout(self.seed, step, first)
            losses.append(loss.backward(part, self.count))
        total = add_in_tree(losses, torch.add)
        self.ranks.add([total])
        return total

    def _check_signals(self) -> None:
        """Raises Interrupted on all ranks where a signal has come to any: they compute each
        micro-batch together, and so stop together."""
        if self.interruptible and self.ranks.any(self.stopping.stop_requested):
            raise Interrupted
