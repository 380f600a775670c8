from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.data.batches import Batches, held_out_bytes, windows
from transformer_norms.training.parallel.micro_batches import MicroBatches
from transformer_norms.training.parallel.ranks import Ranks

sizes = st.integers(1, 12)
laws = settings(max_examples=60, deadline=None)
IN_FULL = pytest.param(2000, marks=pytest.mark.nightly)


@pytest.mark.goal("T7")
@given(
    context=sizes, batch=st.integers(1, 9), extra=st.integers(0, 80), seed=st.integers(0, 2**63 - 1)
)
@laws
def test_each_window_comes_once_an_epoch_and_windows_do_not_overlap(context, batch, extra, seed):
    tokens = np.arange(2 * context + extra)
    batches = Batches(tokens, context, batch, seed)
    per_epoch = (len(tokens) - context) // context
    steps = -(-3 * per_epoch // batch)
    rows = torch.cat([batches(step) for step in range(steps)])[: 3 * per_epoch]
    assert rows.dtype == torch.int64
    assert rows.shape == (3 * per_epoch, context + 1)
    # Tokens are their own positions here, so that a window is a run of successive numbers.
    assert torch.equal(rows, rows[:, :1] + torch.arange(context + 1))
    for epoch in rows.split(per_epoch):
        starts = sorted(epoch[:, 0].tolist())
        assert 0 <= starts[0] < context
        assert starts == [starts[0] + context * place for place in range(per_epoch)]


@pytest.mark.goal("T7")
@given(context=sizes, batch=sizes, step=st.integers(0, 10**9), seed=st.integers(0, 2**40))
@laws
def test_a_batch_is_a_function_of_seed_and_step_alone(context, batch, step, seed):
    tokens = np.random.default_rng(0).integers(0, 2**16, 200).astype(np.uint16)
    used, single = Batches(tokens, context, batch, seed), Batches(tokens, context, 1, seed)
    for earlier in (step + 3, 0, step // 2):
        used(earlier)
    # Nor does the size of a batch change the order of the samples.
    rows = [single(row) for row in range(step * batch, (step + 1) * batch)]
    assert torch.equal(used(step), torch.cat(rows))


@st.composite
def courses(draw):
    """A text, a batch and the ranks that share it, and the steps at which a run was resumed."""
    context, ranks = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    tokens = draw(st.integers(2 * context, 90))
    batch = ranks * draw(st.integers(1, 5))
    steps = -(-draw(st.integers(1, 3)) * ((tokens - context) // context) // batch)
    return tokens, context, batch, ranks, steps, draw(st.sets(st.integers(0, steps), max_size=5))


def read_by_ranks(batches, ranks, steps):
    for step in steps:
        for rank in range(ranks):
            share = SimpleNamespace(count=ranks, ranks=Ranks(rank, ranks))
            for _, part in MicroBatches.own(share, batches(step)):
                yield from part[:, 0].tolist()


@pytest.mark.goal("T7")
@pytest.mark.parametrize("examples", [60, IN_FULL])
def test_ranks_and_resumes_read_each_sequence_once_an_epoch(examples, measured):
    @given(courses())
    @settings(max_examples=examples, deadline=None)
    def hold(course):
        tokens, context, batch, ranks, steps, resumes = course
        found, begun = [], 0
        for end in sorted({*resumes, steps}):
            batches = Batches(np.arange(tokens), context, batch, 5)  # a process of its own
            found += read_by_ranks(batches, ranks, range(begun, end))
            begun = end
        size = batches.windows_per_epoch
        for epoch in range(len(found) // size):
            read = sorted(found[epoch * size : (epoch + 1) * size])
            assert read == list(range(read[0], read[0] + size * context, context))
        assert found == list(read_by_ranks(batches, 1, range(steps)))

    hold()
    measured(f"{examples} courses with 1 to 4 ranks and up to 5 resumes")


def test_epochs_and_seeds_differ_in_order_and_in_where_the_cutting_begins():
    tokens = np.arange(10_000)
    first = Batches(tokens, 16, 624, 0)
    assert first.windows_per_epoch == 624
    assert not torch.equal(first(0), first(1))
    assert not torch.equal(first(0), Batches(tokens, 16, 624, 1)(0))
    assert len({int(first(step).min()) for step in range(12)}) > 4


def test_large_ids_survive_the_way_to_a_tensor_and_too_few_tokens_are_refused():
    tokens = np.full(7, 2**32 - 1, np.uint32)
    assert int(Batches(tokens, 2, 1, 0)(0).max()) == 2**32 - 1
    with pytest.raises(ValueError, match="too few"):
        Batches(tokens, 4, 1, 0)


@pytest.mark.goal("T8")
@given(n=st.integers(0, 90), context=sizes, limit=st.integers(0, 100), batch=sizes)
@laws
def test_windows_predict_each_token_once_and_in_order(n, context, limit, batch):
    tokens, lengths = np.arange(n), np.random.default_rng(1).integers(0, 9, 90)
    seen = list(windows(tokens, context, limit, batch))
    predicted = [token for rows in seen for row in rows for token in row[1:].tolist()]
    assert predicted == list(range(1, max(min(limit, n - 1), 0) + 1))
    assert held_out_bytes(tokens, limit, lengths) == sum(int(lengths[one]) for one in predicted)
    for rows in seen:
        assert (rows.shape[0] <= batch, rows.shape[1] <= context + 1) == (True, True)
        assert torch.equal(rows[:, 1:], rows[:, :-1] + 1)
