import random
from itertools import accumulate

import pytest
from corpora import Listed
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.data import split as split_file
from transformer_norms.data.split import LowestTexts, ReadTexts, Work, read_corpus, split_corpus
from transformer_norms.errors import InputError
from transformer_norms.progress import tell_nobody


def numbered(count):
    return [f"document {number}" for number in range(count)]


def parts_of(texts, split, val_fraction, test_fraction=0):
    made = split_corpus(ReadTexts(texts), split, val_fraction, test_fraction)
    parts = {"train": [], "val": [], "test": []}
    for placed in sorted(text for work in made.work() for text in work.placed()):
        parts[placed.part].append(placed.text)
    return parts, made


@pytest.mark.goal("T5")
def test_no_document_stands_in_two_parts_even_if_it_comes_many_times(measured):
    parts, _ = parts_of(numbered(300) * 3, "hash", 0.1)
    train, val, test = (set(part) for part in parts.values())
    assert min(len(train), len(val), len(test)) > 0
    assert len(train | val | test) == len(train) + len(val) + len(test)
    assert sum(map(len, parts.values())) == 900  # and none is left out
    shared = len(train & val) + len(train & test) + len(val & test)
    measured(f"{shared} of {len(train | val | test)} documents shared, {len(val)} in val")


@pytest.mark.goal("T8")
def test_the_order_of_reading_does_not_matter_to_a_hash_split():
    shuffled = numbered(200)
    random.Random(0).shuffle(shuffled)
    first, second = (Work(ReadTexts(texts), "", 0.1) for texts in (shuffled, numbered(200)))
    assert first.placed() == second.placed()


def test_fewer_than_a_hundred_documents_are_split_by_position_and_one_line_says_so():
    texts = ["é" * 600, "b" * 400]
    parts, split = parts_of(texts, "hash", 0.05)
    assert (split.rule, split.separated) == ("position", False)
    assert [len(part[0]) for part in parts.values()] == [900, 50, 50]
    assert "".join(sum(parts.values(), [])) == "".join(texts)
    assert ("position" in split.note, "\n" in split.note) == (True, False)
    for some, rule in (99, "position"), (100, "hash"):
        for empty in [], [""]:
            assert parts_of([*numbered(some), *empty], "hash", 0.05)[1].rule == rule


@given(st.integers(10, 10**6))
@settings(max_examples=200)
def test_tail_cuts_where_nanogpt_cuts(n):
    text = "x" * n
    parts, split = parts_of([text[: n // 3], text[n // 3 :]], "tail", 0.1)
    assert parts["train"] == [text[: int(n * 0.9)]]
    assert parts["val"] == [text[int(n * 0.9) :]]
    assert (parts["test"], split.rule, split.separated) == ([], "tail", False)


@given(st.text(min_size=1), st.floats(0.01, 0.4), st.floats(0.01, 0.4))
def test_a_test_part_of_the_tail_split_is_the_end_of_train_and_leaves_val_as_it_is(
    text, val_fraction, test_fraction
):
    without, parts = (
        ["".join(texts) for texts in parts_of([text], "tail", val_fraction, share)[0].values()]
        for share in (0, test_fraction)
    )
    train, val, test = parts
    assert [train + test, val, ""] == without
    assert abs(len(test) - test_fraction * len(text)) < 1 + 1e-9


@pytest.mark.parametrize("split", ["tail", "hash"])
def test_running_text_is_read_whole_up_to_a_length_and_documents_in_slices(monkeypatch, split):
    monkeypatch.setattr(split_file, "MOST_CHARACTERS", 10)
    monkeypatch.setattr(split_file, "MOST_RUNNING", 2000)
    whole = read_corpus(Listed(["x" * 500, "", "y" * 500]), split, tell_nobody)
    assert whole.texts == ["x" * 500, "y" * 500]
    documents = Listed(numbered(200))
    if split == "hash":
        assert read_corpus(documents, split, tell_nobody) is None
        documents = Listed(["x" * 2001])
    with pytest.raises(InputError, match="running text has 2,000 characters at most"):
        read_corpus(documents, split, tell_nobody)


def test_the_sample_of_train_is_the_texts_of_lowest_number_in_whatever_order_they_come(monkeypatch):
    monkeypatch.setattr(split_file, "MOST_LEARNED", 1000)
    texts = [(number, "x" * (1 + number % 7)) for number in range(2000)]
    lengths = accumulate(len(text) for _, text in texts)
    expected = [text for (_, text), length in zip(texts, lengths, strict=True) if length <= 1000]
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        lowest = LowestTexts()
        for at in range(0, len(texts), 50):
            lowest.add([text for text in texts[at : at + 50] if text[0] < lowest.below])
        assert (lowest.texts(), lowest.left_out) == (expected, True)
        assert lowest.below < 2000
    few = LowestTexts()
    few.add([(2, "b"), (1, "a")])
    assert (few.texts(), few.left_out) == (["a", "b"], False)
