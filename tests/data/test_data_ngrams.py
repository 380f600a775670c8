"""N-grams against their formula written with dictionaries; their cache; a run's record of them."""

import math
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from corpora import ready
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.data import ngrams as ngrams_file
from transformer_norms.data.ngrams import NGrams, ngram_facts, spread_stretches
from transformer_norms.run.failure import best_ngram
from transformer_norms.run.summary import Data, Summary


def brute_force(rows, vocabulary, order, history, token):
    """P_order(token | history) of the formula, one token at a time."""
    if order == 0:
        return 1 / vocabulary
    shorter = brute_force(rows, vocabulary, order - 1, history[1:], token)
    after = defaultdict(Counter)
    for row in rows:
        for end in range(order - 1, len(row)):
            after[tuple(row[end - order + 1 : end])][row[end]] += 1
    counts = after[tuple(history)]
    if not counts:
        return shorter
    return (counts[token] + len(counts) * shorter) / (counts.total() + len(counts))


def expected(rows, vocabulary, tokens, place, order):
    order = min(order, place + 1)  # the first tokens have shorter histories
    history = tokens[place - order + 1 : place]
    return brute_force(rows, vocabulary, order, history, tokens[place])


@st.composite
def texts(draw):
    vocabulary = draw(st.integers(1, 4))
    token = st.integers(0, vocabulary - 1)
    length = draw(st.integers(1, 12))
    rows = draw(st.lists(st.lists(token, min_size=length, max_size=length), min_size=1, max_size=3))
    return vocabulary + draw(st.integers(0, 1)), rows, draw(st.lists(token, min_size=2, max_size=9))


@given(texts())
@settings(max_examples=60, deadline=None)
def test_every_probability_is_that_of_the_formula(text):
    vocabulary, rows, tokens = text
    found = [*NGrams(np.array(rows), vocabulary).probabilities(np.array(tokens))]
    assert len(found) == 5
    for order, chances in enumerate(found, start=1):
        wanted = [expected(rows, vocabulary, tokens, place, order) for place in range(len(tokens))]
        assert chances == pytest.approx(wanted, rel=1e-12)


def test_the_losses_are_means_of_the_logarithms_of_all_tokens_but_the_first():
    rows, tokens = [[0, 1, 2, 0, 1, 2, 0, 1, 0, 3]], [0, 1, 2, 2, 0, 4]  # no 4 was counted
    losses = NGrams(np.array(rows), 5).losses(np.array(tokens))
    for order, loss in enumerate(losses, start=1):
        logs = [math.log(expected(rows, 5, tokens, place, order)) for place in range(1, 6)]
        assert loss == pytest.approx(-sum(logs) / 5, rel=1e-12)


def test_ids_of_four_bytes_do_not_collide():
    rows, tokens = [[2**31, 7, 2**31, 2**32 - 1]], [2**31, 7, 2**32 - 1, 2**31]
    found = [*NGrams(np.array(rows, np.uint32), 2**32).probabilities(np.array(tokens, np.uint32))]
    for order, chances in enumerate(found, start=1):
        wanted = [expected(rows, 2**32, tokens, place, order) for place in range(4)]
        assert chances == pytest.approx(wanted, rel=1e-12)


@given(st.integers(2, 300), st.integers(1, 20), st.integers(1, 400))
def test_stretches_are_as_many_tokens_as_a_run_reads_from_everywhere_and_none_twice(
    length, context, windows
):
    context = min(context, length // 2)
    read = windows * context
    rows = spread_stretches(np.arange(length), read, context)
    assert rows.size == min(read, length)
    assert len(set(rows.flat)) == rows.size
    if read < length:
        assert np.array_equal(rows - rows[:, :1], np.tile(np.arange(context), (windows, 1)))
        even = length / windows
        assert np.all(abs(np.diff(rows[:, 0]) - even) < 1)


@pytest.fixture
def tokens():
    return ready()


def count(tokens, read=1000, limit=200):
    lines = []
    return ngram_facts(tokens, read, 10, limit, lines.append, lambda *news: None), lines


def test_the_facts_are_of_the_tokens_that_the_evaluation_reads(tokens):
    some, everything = spread_stretches(tokens.train, 1000, 10), tokens.train[None]
    for read, rows in (1000, some), (10**9, everything):
        facts, ngrams = count(tokens, read)[0], NGrams(rows, 257)
        assert facts["ngram_tokens"] == rows.size
        for part in ("val", "test"):
            assert facts["ngrams"][part] == ngrams.losses(getattr(tokens, part)[:201])
    assert some.size == 1000
    with pytest.MonkeyPatch.context() as patch:  # a very long text is counted in part
        patch.setattr(ngrams_file, "MOST_TOKENS", 500)
        assert count(tokens, read=999)[0]["ngram_tokens"] == 500


def test_they_are_counted_once_for_a_number_of_tokens_and_a_limit(tokens, monkeypatch, tmp_path):
    first, _ = count(tokens)
    others = [count(tokens, read=900)[0], count(tokens, limit=100)[0]]
    assert all(other["ngrams"] != first["ngrams"] for other in others)
    assert len(list((tmp_path / "cache").glob("ngrams-*/"))) == 3
    monkeypatch.setattr(ngrams_file, "NGrams", None)  # none is counted from here on
    assert count(tokens) == (first, [])


def test_a_cache_that_cannot_be_written_costs_only_the_time(tokens, monkeypatch):
    cached = count(tokens)
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", "/sys/cache")
    assert count(tokens) == cached


NGRAM_LOSSES = [3.0, 2.0, 1.0, 1.1, 1.2]


def summary(loss=None, status="finished", **data):
    data = {"ngrams": {"val": NGRAM_LOSSES}} | data
    about = Data(identity={}, fingerprint="f", uniform=4.0, **data)
    return Summary(status=status, identity="0" * 16, data=about, val_loss=loss)


ON_TEST = {"ngrams": {"val": NGRAM_LOSSES, "test": [2.0, 1.0, 1.0, 1.0, 1.0]}}


@pytest.mark.parametrize(
    ("run", "name", "best"),
    [
        *((summary(loss), "val_loss", best) for loss, best in [
            (3.5, 0), (2.996, 0), (2.994, 1), (1.996, 1), (1.05, 2), (0.996, 2), (0.994, 5)
        ]),
        (summary(None, "diverged"), "val_loss", 0),
        (summary(None, "running"), "val_loss", None),
        (summary(2.0, ngrams={}), "val_loss", None),
        (summary(1.5, **ON_TEST), "val_loss", 2),
        (replace(summary(1.5, **ON_TEST), test_loss=1.5), "test_loss", 1),
    ],
)  # fmt: skip
def test_the_best_n_gram_is_the_last_before_the_first_that_a_run_does_not_pass(run, name, best):
    assert best_ngram(run, name) == best


def test_the_lines_of_a_run_are_in_the_order_of_the_n_grams():
    sizes = {"bytes": 30, "tokens": 10}
    assert summary(floor=0.25, val=sizes).data.reference_lines() == {
        "uniform": 4.0, "unigram": 3.0, "bigram": 2.0, "3-gram": 1.0, "4-gram": 1.1, "5-gram": 1.2,
        "entropy floor": 0.75,
    }  # fmt: skip
