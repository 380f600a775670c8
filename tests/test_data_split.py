import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.data.split import (
    content_number,
    repeated_share,
    split_by_hash,
    split_by_tail,
)


def numbered(count):
    return [f"document {number}" for number in range(count)]


def test_the_number_of_a_document_is_its_sha256_as_a_fraction():
    digest = hashlib.sha256("é".encode()).hexdigest()
    assert content_number("é") == pytest.approx(int(digest, 16) / 2**256, abs=2**-52)


def test_hash_sends_the_lowest_numbers_to_test_and_the_next_to_val():
    parts = split_by_hash(numbered(2000), 0.05)
    assert all(content_number(text) < 0.05 for text in parts.test)
    assert all(0.05 <= content_number(text) < 0.1 for text in parts.val)
    assert all(content_number(text) >= 0.1 for text in parts.train)
    assert sorted(parts.train + parts.val + parts.test) == sorted(numbered(2000))
    assert len(parts.val) == pytest.approx(100, abs=40)
    assert parts.separated


def test_no_document_stands_in_two_parts_even_if_it_comes_many_times():
    parts = split_by_hash(numbered(300) * 3, 0.1)
    train, val, test = set(parts.train), set(parts.val), set(parts.test)
    assert min(len(train), len(val), len(test)) > 0
    assert len(train | val | test) == len(train) + len(val) + len(test)


def test_the_order_of_reading_does_not_matter_to_a_hash_split():
    shuffled = numbered(200)
    random.Random(0).shuffle(shuffled)
    assert split_by_hash(shuffled, 0.1) == split_by_hash(numbered(200), 0.1)


def test_adding_documents_moves_none():
    few, more = split_by_hash(numbered(150), 0.1), split_by_hash(numbered(400), 0.1)
    assert set(few.val) <= set(more.val)
    assert set(few.train) <= set(more.train)


def test_fewer_than_a_hundred_documents_are_split_by_position_and_one_line_says_so():
    texts = ["é" * 600, "b" * 400]
    parts = split_by_hash(texts, 0.05)
    assert (parts.rule, parts.separated) == ("position", False)
    assert [len(part[0]) for part in (parts.train, parts.val, parts.test)] == [900, 50, 50]
    assert parts.train[0] + parts.val[0] + parts.test[0] == "".join(texts)
    assert "position" in parts.note
    assert "\n" not in parts.note
    assert split_by_hash(numbered(99), 0.05).rule == "position"
    assert split_by_hash(numbered(100), 0.05).rule == "hash"


@given(st.integers(1, 10**6))
@settings(max_examples=200)
def test_tail_cuts_where_nanogpt_cuts(n):
    text = "x" * n
    parts = split_by_tail([text[: n // 3], text[n // 3 :]], 0.1)
    assert parts.train == [text[: int(n * 0.9)]]
    assert parts.val == [text[int(n * 0.9) :]]
    assert (parts.test, parts.separated) == ([], False)


@given(st.text(min_size=1), st.floats(0.01, 0.4), st.floats(0.01, 0.4))
def test_a_test_part_of_the_tail_split_is_the_end_of_train_and_leaves_val_as_it_is(
    text, val_fraction, test_fraction
):
    without, parts = (split_by_tail([text], val_fraction, share) for share in (0, test_fraction))
    assert parts.val == without.val
    assert parts.train[0] + parts.test[0] == without.train[0]
    assert abs(len(parts.test[0]) - test_fraction * len(text)) < 1 + 1e-9
    assert (parts.rule, parts.separated) == ("tail", False)


def test_near_copies_across_train_and_val_are_counted():
    val = ["One  two\nthree", "four", "five", "six"]
    assert repeated_share(["one two three", "FOUR", "seven"], val) == 0.5
