import hashlib
import math
import random
from functools import cache

import pytest

from transformer_norms.data.stories import (
    FRESH,
    MEMORY,
    MOODY,
    SCENES,
    Stories,
    derive,
    entropy_and_length,
)


def drawn(seed):
    """One story, with log p of its choices added up as they are made."""
    source, surprise = random.Random(seed), [0.0]

    def pick(choices):
        values, weights = zip(*choices, strict=True)
        index = source.choices(range(len(values)), weights)[0]
        surprise[0] -= math.log(weights[index])
        return values[index]

    return "".join(derive(pick)), surprise[0]


@cache
def many():
    return [drawn(seed) for seed in range(1500)]


def derivations(text):
    """How many sequences of choices spell this text: every one is tried until it disagrees."""

    class OpenError(Exception):
        pass

    def attempt(path):
        steps = iter(path)
        written = ""

        def pick(choices):
            index = next(steps, None)
            if index is None:
                raise OpenError(len(choices))
            return choices[index][0]

        for piece in derive(pick):
            written += piece
            if not text.startswith(written):
                return 0
        return int(written == text)

    def count(path):
        try:
            return attempt(path)
        except OpenError as stop:
            return sum(count([*path, index]) for index in range(stop.args[0]))

    return count([])


def test_the_corpus_is_the_same_to_the_byte_on_every_python():
    corpus = Stories(documents=50, grammar_seed=7)
    digest = hashlib.sha256("".join(corpus.documents()).encode()).hexdigest()
    assert digest == "4be985aa9a595451f2538af536f64d97be945ad969fc89e07877afe58af78b6d"


def test_another_seed_tells_other_stories():
    first, second = (Stories(documents=5, grammar_seed=seed).documents() for seed in (0, 1))
    assert not set(first) & set(second)


def test_more_stories_begin_with_the_same_ones():
    few, more = (list(Stories(documents=n, grammar_seed=3).documents()) for n in (4, 9))
    assert more[:4] == few


def test_entropy_and_length_are_what_drawing_many_stories_gives():
    samples = many()
    entropy, length = entropy_and_length()
    for expected, values in (
        (entropy, [surprise for _, surprise in samples]),
        (length, [len(text.encode()) for text, _ in samples]),
    ):
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
        assert abs(mean - expected) < 4 * spread / math.sqrt(len(values))


def test_surprise_and_length_go_together_as_the_floor_says():
    """Both grow with the number of scenes: their difference shows a byte too few in each."""
    floor = Stories(documents=1, grammar_seed=0).floor
    samples = many()
    over = [surprise - floor * len(text.encode()) for text, surprise in samples]
    mean = sum(over) / len(over)
    spread = math.sqrt(sum((v - mean) ** 2 for v in over) / (len(over) - 1))
    assert abs(mean) < 4 * spread / math.sqrt(len(over))


def test_the_corpus_is_drawn_with_the_probabilities_that_the_floor_counts():
    texts = list(Stories(documents=1500, grammar_seed=0).documents())
    total = sum(1 / k for k in range(1, 5))
    for k, mood in enumerate(("brave", "shy", "lazy", "clever"), start=1):
        share = sum(f"was a {mood} " in text for text in texts) / len(texts)
        assert share == pytest.approx(1 / k / total, abs=0.06)


@pytest.mark.parametrize("seed", range(6))
def test_a_text_has_one_derivation_only(seed):
    assert derivations(drawn(seed)[0]) == 1


def test_what_follows_a_scene_has_probabilities_that_sum_to_one():
    for _, follows in SCENES.values():
        assert sum(follows.values()) == pytest.approx(1, abs=1e-12)


def test_no_word_of_a_list_stands_in_it_twice():
    lists = [*FRESH.values(), *(words for moods in MOODY.values() for words in moods.values())]
    lists += [[str(option) for option in options] for options in MEMORY.values()]
    assert all(len(set(words)) == len(words) for words in lists)
