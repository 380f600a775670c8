"""One format: what any number of ranks saves in shards, any number loads, byte for byte."""

from contextlib import ExitStack

import pytest
from rank_workers import on_ranks
from sharded import batch_of, config_of, in_shards
from torch import distributed

from transformer_norms.run import checkpoint
from transformer_norms.training.parallel.ranks import ALONE

NAMES = ("average", "snapshots", "model", "optimizer")
# Some tensors have fewer rows than ranks: a number at each sub-layer.
TYPED = ("placement=rezero", "optimizer=muon", "architecture.bias=true")
TYPED += ("trainer.average={type: window, count: 2, every: 1}",)


def trainer_on(ranks, *typed):
    return in_shards(ranks, config_of(*TYPED, *typed))


def save(folder, step, trainer):
    state = trainer.state()
    checkpoint.save(folder, "0123456789abcdef", step, trainer.tensors(), state, {}, keep=9)


def hand_on(ranks, folder, source, target):
    """Loads one step and saves it as another, after an evaluation, which gathers weights."""
    trainer = trainer_on(ranks, "seed=7")
    saved = checkpoint.verify(folder / f"step-{source:08d}")
    with ExitStack() as opened:
        files = {name: opened.enter_context(saved.open(name)) for name in NAMES}
        trainer.restore(saved.state, files)
    trainer.evaluate_average([batch_of(3)])
    if ranks.rank == 0:
        save(folder, target, trainer)
    else:
        checkpoint.follow(trainer.tensors())
    if ranks.count > 1:
        distributed.barrier()


@pytest.mark.nightly
def test_one_process_and_2_and_3_ranks_hand_on_one_checkpoint_byte_for_byte(tmp_path):
    trainer = trainer_on(ALONE)
    assert [trainer.train_step() for _ in range(2)] == [None, None]
    save(tmp_path, 1, trainer)
    hand_on(ALONE, tmp_path, 1, 2)
    on_ranks(3, hand_on, tmp_path, 2, 3)
    on_ranks(2, hand_on, tmp_path, 3, 4)
    hand_on(ALONE, tmp_path, 4, 5)
    for name in NAMES:
        files = sorted(tmp_path.glob(f"step-*/{name}.safetensors"))
        assert (len(files), len({file.read_bytes() for file in files})) == (5, 1), name
