import hashlib
import math
import random
from functools import cache
from statistics import mean, stdev

import pytest

from transformer_norms.data.stories import Stories, derive, entropy_and_length, following, grammar


@cache
def drawn(seed):
    """One story, with log p of its choices added up as they are made."""
    source, surprise = random.Random(seed), [0.0]

    def pick(choices):
        values, weights = zip(*choices, strict=True)
        index = source.choices(range(len(values)), weights)[0]
        surprise[0] -= math.log(weights[index])
        return values[index]

    return "".join(derive(pick)), surprise[0]


def derivations(text):
    """How many sequences of choices spell this text: every one is tried until it disagrees."""

    def count(path):
        steps, written = iter(path), ""

        def pick(choices):
            index = next(steps, None)
            if index is None:
                raise LookupError(len(choices))
            return choices[index][0]

        try:
            for piece in derive(pick):
                written += piece
                if not text.startswith(written):
                    return 0
        except LookupError as stop:
            return sum(count([*path, index]) for index in range(stop.args[0]))
        return int(written == text)

    return count([])


def test_the_corpus_is_the_same_to_the_byte_on_every_python():
    corpus = Stories(documents=50, grammar_seed=7)
    digest = hashlib.sha256("".join(corpus.documents()).encode()).hexdigest()
    assert digest == "4be985aa9a595451f2538af536f64d97be945ad969fc89e07877afe58af78b6d"


def test_more_stories_begin_with_the_same_ones_and_another_seed_tells_others():
    few, more, other = (
        list(Stories(documents=count, grammar_seed=seed).documents())
        for count, seed in ((4, 3), (9, 3), (9, 4))
    )
    assert more[:4] == few
    assert not set(more) & set(other)


@pytest.mark.parametrize("what", ["the surprise", "the length", "the floor"])
def test_entropy_length_and_floor_are_the_means_of_many_drawn_stories(what):
    """Surprise and length both grow with the number of scenes: their difference shows a byte too
    few in each, by the floor."""
    entropy, length = entropy_and_length()
    floor = Stories(documents=1, grammar_seed=0).floor
    over = {
        "the surprise": lambda text, surprise: surprise - entropy,
        "the length": lambda text, surprise: len(text.encode()) - length,
        "the floor": lambda text, surprise: surprise - floor * len(text.encode()),
    }[what]
    over = [over(*drawn(seed)) for seed in range(1500)]
    assert abs(mean(over)) < 4 * stdev(over) / math.sqrt(len(over))


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
    for scene in grammar()["scenes"]:
        assert sum(dict(following(scene)).values()) == pytest.approx(1, abs=1e-12)


def test_no_word_of_a_list_stands_in_it_twice():
    lists = [*grammar()["fresh"].values()]
    lists += [one["options"] for one in grammar()["memory"].values()]
    lists += [words for moods in grammar()["moody"].values() for words in moods.values()]
    assert all(len(set(words)) == len(words) for words in lists)
