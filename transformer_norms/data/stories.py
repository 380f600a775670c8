"""Little English stories of a grammar (stories.yaml), with the exact entropy of what is drawn."""

import math
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.data.documents import CORPORA
from transformer_norms.kinds import Positive, Seed
from transformer_norms.storage.reading import read_yaml

Choices = list[tuple[Any, float]]  # values with their probabilities
Pick = Callable[[Choices], Any]
END = "end"
_SLOT = re.compile(r"([^{\[]*)(?:[{\[](\w+)\.?(\w*)[}\]]|$)")  # a literal, {name.form} or [name]


@CORPORA("stories")
class Stories:
    """Documents drawn from a small grammar in which each text has one derivation only.

    floor = H(document) / E[bytes of a document], in nats per byte, the choice to end included. No
    model can stay below it on average. Names, gender and number recur, so that a model has to look
    back. The text is the same on every Python: only random() is used, whose values never change.
    """

    def __init__(self, *, documents: Positive, grammar_seed: Seed) -> None:
        self.count = documents
        self.grammar_seed = grammar_seed

    @property
    def floor(self) -> float:
        entropy, length = entropy_and_length()
        return entropy / length

    def identity(self) -> dict:
        return {"type": "stories", "documents": self.count, "grammar_seed": self.grammar_seed}

    def documents(self) -> Iterator[str]:
        uniform = random.Random(self.grammar_seed).random

        def pick(choices: Choices) -> Any:
            left = uniform()
            for value, probability in choices:
                left -= probability
                if left < 0:
                    return value
            return choices[-1][0]  # the probabilities may fall short of 1 by a rounding

        for _ in range(self.count):
            yield "".join(derive(pick))


@cache
def grammar() -> dict[str, dict[str, Any]]:
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def derive(pick: Pick) -> Iterator[str]:
    """The pieces of one story, each choice made by `pick`, in the order of the text."""
    memory: dict[str, dict[str, str]] = {}
    scene = "open"
    while scene != END:
        for literal, name, form in slots(scene):
            yield literal
            if form:
                if name not in memory:
                    memory[name] = pick(_memories(name))
                yield _inflect(memory[name], form)
            elif name:
                yield pick(_words(name, memory["mood"]["word"]))
        scene = pick(following(scene))
        yield "\n" if scene == END else " "


@cache
def entropy_and_length() -> tuple[float, float]:
    """Entropy in nats and expected length in bytes of one story.

    Scenes are a Markov chain that ends: with P its transitions, the expected visits v solve
    v = first + P^T v. Choices within a scene are independent of the path, so that both sums are
    linear in v. A story's memory is drawn once.
    """
    names = list(grammar()["scenes"])
    transitions = np.array([[dict(following(a)).get(b, 0.0) for b in names] for a in names])
    first = np.array([name == "open" for name in names], dtype=float)
    visits = np.linalg.solve(np.eye(len(names)) - transitions.T, first)
    entropy = sum(_entropy(_memories(name)) for name in grammar()["memory"])
    length = 0.0
    for name, count in zip(names, visits, strict=True):
        inner_entropy, inner_length = _scene_moments(name)
        entropy += count * (inner_entropy + _entropy(following(name)))
        length += count * (inner_length + 1)  # a blank, or the newline at the end
    return float(entropy), float(length)


def _scene_moments(scene: str) -> tuple[float, float]:
    """Entropy and expected bytes of a scene's text, given what the story remembers."""
    entropy = length = 0.0
    for literal, name, form in slots(scene):
        length += len(literal)
        if form:
            length += sum(p * len(_inflect(option, form)) for option, p in _memories(name))
        elif name:
            for mood, share in _memories("mood"):
                words = _words(name, mood["word"])
                entropy += share * _entropy(words)
                length += share * sum(p * len(word) for word, p in words)
    return entropy, length


@cache
def slots(scene: str) -> list[tuple[str, str, str]]:
    """A scene's text as (literal, name, form). A word has no form; the end has no name."""
    return _SLOT.findall(grammar()["scenes"][scene]["text"])


@cache
def following(scene: str) -> Choices:
    """Returns the choices that may follow a scene."""
    return [*grammar()["scenes"][scene]["then"].items()]


def zipf(options: list) -> Choices:
    """Gives the k-th option a probability proportional to 1 / k."""
    total = math.fsum(1 / k for k in range(1, len(options) + 1))  # sum() rounds by version
    return [(option, 1 / k / total) for k, option in enumerate(options, start=1)]


@cache
def _memories(name: str) -> Choices:
    forms, options = grammar()["memory"][name].values()
    options = [option.split(" | ") for option in options]
    return zipf([dict(zip(forms.split(" | "), option, strict=True)) for option in options])


@cache
def _words(name: str, mood: str) -> Choices:
    fresh, moody = grammar()["fresh"], grammar()["moody"]
    return zipf(fresh[name] if name in fresh else moody[name][mood])


def _inflect(option: dict[str, str], form: str) -> str:
    word = option[form.lower()]
    return word[0].upper() + word[1:] if form[0].isupper() else word


def _entropy(choices: Choices) -> float:
    return -sum(p * math.log(p) for _, p in choices)
