"""The memory of one device, by part, at the fullest moment of each phase of a step."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from transformer_norms.plan.rehearsal import Bytes, Sizes, Stage
from transformer_norms.plan.sharing import Layout
from transformer_norms.training.parallel.ranks import BUCKET

GIB = 2**30
# Assumed: the CUDA context and the workspaces of cuBLAS and NCCL; an interpreter with torch.
REST = {"cuda": 1.5 * GIB, "cpu": 0.4 * GIB}
FREE = 0.1  # of a device's memory, which an allocator cannot use
BUFFERS = 3  # of a bucket's size, while ranks add it: what is sent, received and summed


@dataclass(frozen=True)
class Memory:
    """Bytes by part for each phase: `backward` is the forward and the backward pass, `sum` the
    addition of gradients, `update` the optimizer's step. `rest` is there all the time."""

    phases: dict[str, Bytes]
    rest: int

    @cached_property
    def peak(self) -> int:
        return self.rest + max(parts.total() for parts in self.phases.values())

    def fits(self, capacity: float) -> bool:
        return self.peak <= (1 - FREE) * capacity


def memory_of(stage: Stage, layout: Layout) -> Memory:
    """Returns what a device of the layout holds. The stage rehearses one micro-batch."""
    sharded = layout.parallel == "fsdp"
    shards = layout.devices if sharded else 1
    backward = stage.rehearse(layout.sequences, shards=shards, pieces=layout.pieces)
    phases = (_sharded if sharded else _whole)(backward, stage.update, stage.sizes(), layout)
    return Memory(phases, int(REST[stage.config.trainer.device]))


def _whole(passes: Bytes, update: Bytes, sizes: Sizes, layout: Layout) -> dict[str, Bytes]:
    """Every device has the whole model, and each of its replicas gradients of its own."""
    kept = Counter({part: update[part] for part in ("weights", "moments")})
    micro_batch = Counter({part: size for part, size in passes.items() if part not in kept})
    waiting = Counter(gradients=(layout.sets - 1) * sizes.whole)
    backward, added = kept.copy(), kept.copy()
    for _ in range(layout.replicas):
        backward += micro_batch + waiting
        added += Counter(gradients=layout.sets * sizes.whole)
    if layout.devices > 1:
        # The ranks add one set, when the halves of each have been added.
        sent = kept + Counter(gradients=sizes.whole)
        sent["work"] = BUFFERS * max(min(4 * BUCKET, sizes.whole), sizes.tensor)
        added = max(added, sent, key=Counter.total)
    return {"backward": backward, "sum": added, "update": update}


def _sharded(passes: Bytes, update: Bytes, sizes: Sizes, layout: Layout) -> dict[str, Bytes]:
    """Every device has a shard of each weight, gradient and moment, whole what is outside of the
    blocks, and two whole blocks: one is computed while the next is gathered. Before the last of
    several micro-batches, gradients are added up whole."""

    def shard(whole: int) -> int:
        return ceil(whole / layout.devices)

    gathered = sizes.outside + 2 * sizes.block
    shards = Counter({part: shard(size) for part, size in update.items()})
    backward = Counter(passes)
    backward["weights"] = shards["weights"] + gathered
    backward["moments"] = shards["moments"]
    backward["gradients"] += sizes.whole + sizes.block if layout.share > 1 else gathered
    return {"backward": backward, "update": shards}
