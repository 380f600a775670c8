"""Little English stories from a grammar, with the exact entropy of what is drawn."""

import math
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from transformer_norms.data.registries import CORPORA
from transformer_norms.data.stories_grammar import END, FRESH, MEMORY, MOODY, SCENES
from transformer_norms.kinds import Positive, Seed

Choices = list[tuple[Any, float]]  # values with their probabilities
Pick = Callable[[Choices], Any]


@CORPORA("stories")
class Stories:
    """Documents drawn from a small grammar in which each text has one derivation only.

    floor = H(document) / E[bytes of a document], in nats per byte, the choice to end included: no
    model can stay below it on average. Names, gender and number recur, so that a model has to look
    back. Byte-identical on every Python: only random() is used, which is specified to stay.
    """

    def __init__(self, *, documents: Positive, grammar_seed: Seed) -> None:
        self.count = documents
        self.grammar_seed = grammar_seed

    @property
    def floor(self) -> float:
        entropy, length = closed_form()
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


def derive(pick: Pick) -> Iterator[str]:
    """The pieces of one story, each choice made by `pick`, in the order of the text."""
    memory: dict[str, dict[str, str]] = {}
    scene = "open"
    while scene != END:
        for literal, name, form in slots(scene):
            yield literal
            if form:
                if name not in memory:
                    memory[name] = pick(_remembered(name))
                yield _form(memory[name], form)
            elif name:
                yield pick(_fresh(name, memory["mood"]["word"]))
        scene = pick(_follows(scene))
        yield "\n" if scene == END else " "


def closed_form() -> tuple[float, float]:
    """Entropy in nats and expected length in bytes of one story.

    Scenes are a Markov chain that ends: with P its transitions, the expected visits v solve
    v = first + P^T v. Choices within a scene are independent of the path, so that both sums are
    linear in v; what is remembered is drawn once a story.
    """
    names = list(SCENES)
    transitions = np.array([[SCENES[a][1].get(b, 0.0) for b in names] for a in names])
    first = np.array([name == "open" for name in names], dtype=float)
    visits = np.linalg.solve(np.eye(len(names)) - transitions.T, first)
    entropy = sum(_entropy(_remembered(name)) for name in MEMORY)
    length = 0.0
    for name, count in zip(names, visits, strict=True):
        inner_entropy, inner_length = _scene(name)
        entropy += count * (inner_entropy + _entropy(_follows(name)))
        length += count * (inner_length + 1)  # a blank, or the newline at the end
    return float(entropy), float(length)


def _scene(scene: str) -> tuple[float, float]:
    """Entropy and expected bytes of what a scene writes, what is remembered being known."""
    entropy = length = 0.0
    for literal, name, form in slots(scene):
        length += _bytes(literal)
        if form:
            length += sum(p * _bytes(_form(option, form)) for option, p in _remembered(name))
        elif name:
            for mood, share in _remembered("mood"):
                words = _fresh(name, mood["word"])
                entropy += share * _entropy(words)
                length += share * sum(p * _bytes(word) for word, p in words)
    return entropy, length


@cache
def slots(scene: str) -> list[tuple[str, str, str]]:
    """A scene's text as (literal, name, form): form is empty for a fresh word, both at the end."""
    parts = re.split(r"(\{\w+\.\w+\}|\[\w+\])", SCENES[scene][0])
    marks = [*parts[1::2], ""]
    found = []
    for literal, mark in zip(parts[0::2], marks, strict=True):
        name, _, form = mark.strip("{}[]").partition(".")
        found.append((literal, name, form))
    return found


def zipf(options: list) -> Choices:
    """The k-th of a list has a probability proportional to 1 / k."""
    total = math.fsum(1 / k for k in range(1, len(options) + 1))  # sum() rounds by version
    return [(option, 1 / k / total) for k, option in enumerate(options, start=1)]


@cache
def _remembered(name: str) -> Choices:
    return zipf(MEMORY[name])


@cache
def _fresh(name: str, mood: str) -> Choices:
    return zipf(FRESH[name] if name in FRESH else MOODY[name][mood])


@cache
def _follows(scene: str) -> Choices:
    return list(SCENES[scene][1].items())


def _form(option: dict[str, str], form: str) -> str:
    word = option[form.lower()]
    return word[0].upper() + word[1:] if form[0].isupper() else word


def _entropy(choices: Choices) -> float:
    return -sum(p * math.log(p) for _, p in choices)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))
