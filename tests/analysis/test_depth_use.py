"""The worth of each block: by hand, planted, and left out where it cannot be measured."""

import copy
import math

import numpy as np
import pytest
import torch
from analyses.depth_use import ANALYSIS, measure
from untrained import DEPTH, model_and_text, sequences, streams_by_hand

from transformer_norms.analysis.trained.subjects import Loaded, Unmeasured
from transformer_norms.progress import tell_nobody

CASES = [
    ("pre", []),
    ("post", ["architecture.tied=false"]),
    ("parallel", []),
    ("residual_dual", []),
    ("deepnorm", ["position=learned"]),
]


def angle(x, y):
    return math.acos(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) / math.pi


def losses_with_zero_matrices(loaded):
    """The loss with each block's last matrices at zero in turn: its sub-layers then add nothing."""
    losses, kept = [], copy.deepcopy(loaded.model.state_dict())
    for block in loaded.model.blocks:
        for matrix in (block.attention.f.output, block.mlp.f.down):
            for parameter in matrix.parameters():
                parameter.data.zero_()
        losses.append(loaded.evaluate())
        loaded.model.load_state_dict(kept)
    return losses


def first_stream(x):
    return x[0] if isinstance(x, list) else x


@pytest.mark.parametrize(("placement", "typed"), CASES)
def test_all_numbers_are_those_by_hand(placement, typed):
    loaded = model_and_text(*typed, placement=placement)
    depth = measure(loaded, tell_nobody)
    texts = sequences(loaded)
    streams = [[first_stream(x) for x in streams_by_hand(loaded, text)[0]] for text in texts]
    for i in range(DEPTH + 1):
        for j in range(i + 1, DEPTH + 1):
            ends = [angle(x[i][-1], x[j][-1]) for x in streams]
            every = [angle(a, b) for x in streams for a, b in zip(x[i], x[j], strict=True)]
            assert depth.angles[i, j] == pytest.approx(np.mean(ends), abs=1e-9)
            assert depth.of_all[i, j] == pytest.approx(np.mean(every), abs=1e-9)
    for i in range(DEPTH):
        before, after = (np.concatenate([x[n] for x in streams]) for n in (i, i + 1))
        change = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
        assert depth.update[i] == pytest.approx(change.mean())
        assert depth.rms[i] == pytest.approx((after**2).mean() ** 0.5)
        nats = [streams_by_hand(loaded, text, without=i)[1] for text in texts]
        assert depth.without[i] == pytest.approx(sum(nats) / 19, abs=1e-12)
    assert depth.muted == pytest.approx(losses_with_zero_matrices(loaded), abs=1e-12)
    assert depth.loss == pytest.approx(sum(streams_by_hand(loaded, t)[1] for t in texts) / 19)
    turns = [depth.angles[i, i + 1] for i in range(DEPTH)]
    assert depth.numbers["angle"] == pytest.approx((turns[1] + turns[2]) / 2)
    assert depth.numbers["ratio"] == pytest.approx((turns[1] + turns[2]) / 2 / turns[0])
    assert depth.numbers["rise"] == pytest.approx(depth.without[1:].mean() - depth.loss)
    assert depth.numbers["update"] == pytest.approx(depth.update[1:].mean())


def test_a_muted_block_of_hybrid_norm_does_what_its_norm_on_the_stream_does():
    loaded = model_and_text(placement="hybrid")
    depth = measure(loaded, tell_nobody)
    streams = [streams_by_hand(loaded, text)[0] for text in sequences(loaded)]
    for i, block in enumerate(loaded.model.blocks):
        pairs = [(x[i], block.attention.post(torch.from_numpy(x[i])).detach().numpy())
                 for x in streams]  # fmt: skip
        x, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
        change = np.linalg.norm(y - x, axis=1) / np.linalg.norm(x, axis=1)
        assert depth.muted_update[i] == pytest.approx(change.mean())
        turns = [angle(x[-1], y[-1]) for x, y in pairs]
        assert depth.muted_turns[i] == pytest.approx(np.mean(turns), abs=1e-9)
    assert min(abs(depth.muted - depth.without)) > 1e-4
    numbers = [depth.numbers[f"{key}_muted"] for key in ("angle", "update", "rise")]
    for found, own in zip(
        numbers, (depth.muted_turns, depth.muted_update, depth.muted - depth.loss), strict=True
    ):
        assert found == pytest.approx((own[1] + own[2]) / 2)


@pytest.mark.parametrize(
    "typed", [["architecture.value_residual=0.5"], ['architecture.kv_from_block="i - (i % 2)"']]
)
def test_a_block_that_keeps_something_for_later_ones_is_muted_and_not_left_out(typed):
    loaded = model_and_text(*typed, placement="pre")
    depth = measure(loaded, tell_nobody)
    muted = losses_with_zero_matrices(loaded)  # before each sub-layer it is the loss without them
    assert depth.muted == pytest.approx(muted, abs=1e-12)
    assert np.isnan(depth.without[0])
    assert depth.without[1:] == pytest.approx(muted[1:], abs=1e-12)
    assert depth.numbers["rise"] == pytest.approx(np.mean(muted[1:]) - depth.loss)
    (note,) = depth.notes
    assert note.startswith("block 1 cannot be left out, only muted: later blocks use")
    row = ANALYSIS.views[0].table([*depth.rows]).cells[1]
    assert row[0] == "1"
    assert row[-2:] == ["", ""]


def test_the_model_has_all_its_blocks_again_also_after_a_failure(monkeypatch):
    loaded = model_and_text(placement="post")
    blocks = loaded.model.blocks
    evaluate, calls = Loaded.evaluate, []

    def failing(self, *given):
        calls.append(len(self.model.blocks))
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return evaluate(self, *given)

    monkeypatch.setattr(Loaded, "evaluate", failing)
    with pytest.raises(RuntimeError):
        measure(loaded, tell_nobody)
    assert loaded.model.blocks is blocks
    assert calls == [DEPTH, DEPTH, DEPTH - 1]
    assert not any("update" in vars(block.attention) | vars(block.mlp) for block in blocks)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in blocks)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("gemma4_inputs", "take their inputs in turn"),
        ("mhc", "hand on several streams at once, and depth is measured of one"),
    ],
)
def test_a_model_whose_blocks_cannot_be_left_out_is_refused(placement, said):
    with pytest.raises(Unmeasured, match=said):
        measure(model_and_text(placement=placement), tell_nobody)


def test_the_deeper_half_of_two_blocks_is_one():
    loaded = model_and_text(placement="pre")
    loaded.model.blocks = loaded.model.blocks[:2]
    assert measure(loaded, tell_nobody).notes == ["of two blocks, the deeper half is block 2 alone"]
