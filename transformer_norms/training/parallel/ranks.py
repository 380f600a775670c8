"""The processes that train one run together: torch.distributed, as far as a run needs it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as distributed
from torch import Tensor

from transformer_norms import processes
from transformer_norms.errors import ConfigError, LostRank
from transformer_norms.progress import say
from transformer_norms.signals import Preempted

T = TypeVar("T")
# A backend says one of these of a rank that is gone.
LOST = ("Connection ", "roken pipe", "imed out")
BUCKET = 1 << 24  # numbers that are sent at a time: 64 MiB in float32


def add_in_tree(parts: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Returns the sum of the parts: that of the first half plus that of the second half, each added
    likewise. Whoever holds 1/2, 1/4, .. of the parts in order holds a branch of this tree, so that
    the sum has the same bits however many hold them."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return add(add_in_tree(parts[:half], add), add_in_tree(parts[half:], add))


class Ranks:
    """`count` processes, of which this one is number `rank`. Every method is called by all of them
    in the same order, and returns the same on all. `Ranks()` is a process alone, for which each
    method returns at once."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.parent = os.getppid()

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder and talks to the user."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, added in the tree.

        Each rank adds the slice of every rank that is its own to add, and all exchange the sums: as
        many bytes as a ring's, in an order that does not depend on the number of ranks.
        """
        if self.count == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            size = flat.numel()
            flat = torch.nn.functional.pad(flat, (0, -size % self.count))
            slices = torch.empty_like(flat)
            with self.together():
                distributed.all_to_all_single(slices, flat)
                own = add_in_tree(slices.chunk(self.count), torch.add)
                distributed.all_gather(list(flat.chunk(self.count)), own)
            sums = flat[:size].split([tensor.numel() for tensor in bucket])
            for tensor, total in zip(bucket, sums, strict=True):
                tensor.copy_(total.view_as(tensor))

    def stack(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, in their order, along a new first axis."""
        if self.count == 1:
            return tensor[None]
        stacked = tensor.new_empty(self.count, *tensor.shape)
        with self.together():
            distributed.all_gather(list(stacked), tensor.contiguous())
        return stacked

    def check_equal(self, weights: Iterable[Tensor]) -> None:
        """Raises RuntimeError unless all ranks hold the same whole weights, bit by bit."""
        if self.count == 1:
            return
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = (weight.detach().view(integers[weight.element_size()]) for weight in weights)
        sums = self.stack(torch.stack([each.sum(dtype=torch.int64) for each in bits]))
        for rank, own in enumerate(sums):
            if not torch.equal(own, sums[0]):
                raise RuntimeError(f"rank {rank} has another weight than rank 0")

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank."""
        return flag if self.count == 1 else bool(self.stack(torch.tensor(flag)).any())

    def stop(self, asked: bool) -> bool:
        """Returns whether any rank was asked to stop, or has outlived the torchrun that started it:
        nobody could stop it later."""
        return self.any(asked or (self.count > 1 and os.getppid() != self.parent))

    def gather(self, value: T) -> list[T]:
        """Returns the value of each rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with self.together():
            distributed.all_gather_object(values, value)
        return cast(list[T], values)

    def on_first(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns on rank 0, the only one that calls it. Its error there
        is raised on all."""
        if self.count == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = work()
            except (Exception, Preempted) as error:
                outcome[1] = error
        with self.together():
            distributed.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return cast(T, outcome[0])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Encloses what the ranks do together. Raises LostRank where one of them has ended."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not any(words in str(error) for words in LOST):
                raise
            raise LostRank(
                "another process of this run has ended or does not answer; the same command goes "
                "on from the last checkpoint"
            ) from error

    def leave(self) -> None:
        """Ends what `join` began, once all have come here."""
        if self.count > 1:
            with self.together():
                distributed.barrier()
            distributed.destroy_process_group()


ALONE = Ranks()


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Returns the tensors in order, in groups of one dtype and of BUCKET numbers or one tensor."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        full = size + tensor.numel() > BUCKET
        if full or not buckets or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel()
    return buckets


@contextmanager
def _output_on_stderr() -> Iterator[None]:
    """Meanwhile what a library prints goes to stderr: stdout has the line of JSON alone."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def join(parallel: str, device: str) -> Ranks:
    """Returns the ranks of this process, once all of them are there. On a GPU, each process takes
    that of its number on the machine. Raises ConfigError where a machine has more processes than
    GPUs."""
    count = processes.count()
    if count == 1:
        if parallel != "none":
            say(f"parallel={parallel}: in one process; torchrun --nproc-per-node N starts more")
        return ALONE
    if device == "cuda":
        gpus, here = torch.cuda.device_count(), processes.local_count()
        if here > gpus:
            raise ConfigError(
                f"parallel={parallel}: torchrun started {here} processes on a machine of {gpus} "
                f"GPUs; it should be --nproc-per-node {gpus}"
            )
        torch.cuda.set_device(processes.local_rank())
    with _output_on_stderr():  # gloo of torch 2.8 says there who is connected
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    return Ranks(processes.rank(), count)
