"""Little English stories from a grammar, with the exact entropy of what is drawn.

The grammar is at the end. It is data: changing a letter changes the corpus.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from transformer_norms.data.documents import CORPORA
from transformer_norms.kinds import Positive, Seed

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
        scene = pick([*SCENES[scene][1].items()])
        yield "\n" if scene == END else " "


@cache
def entropy_and_length() -> tuple[float, float]:
    """Entropy in nats and expected length in bytes of one story.

    Scenes are a Markov chain that ends: with P its transitions, the expected visits v solve
    v = first + P^T v. Choices within a scene are independent of the path, so that both sums are
    linear in v. What a story remembers is drawn once.
    """
    names = list(SCENES)
    transitions = np.array([[SCENES[a][1].get(b, 0.0) for b in names] for a in names])
    first = np.array([name == "open" for name in names], dtype=float)
    visits = np.linalg.solve(np.eye(len(names)) - transitions.T, first)
    entropy = sum(_entropy(_memories(name)) for name in MEMORY)
    length = 0.0
    for name, count in zip(names, visits, strict=True):
        inner_entropy, inner_length = _scene_moments(name)
        entropy += count * (inner_entropy + _entropy([*SCENES[name][1].items()]))
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
    return _SLOT.findall(SCENES[scene][0])


def zipf(options: list) -> Choices:
    """Gives the k-th option a probability proportional to 1 / k."""
    total = math.fsum(1 / k for k in range(1, len(options) + 1))  # sum() rounds by version
    return [(option, 1 / k / total) for k, option in enumerate(options, start=1)]


@cache
def _memories(name: str) -> Choices:
    return zipf(MEMORY[name])


@cache
def _words(name: str, mood: str) -> Choices:
    return zipf(FRESH[name] if name in FRESH else MOODY[name][mood])


def _inflect(option: dict[str, str], form: str) -> str:
    word = option[form.lower()]
    return word[0].upper() + word[1:] if form[0].isupper() else word


def _entropy(choices: Choices) -> float:
    return -sum(p * math.log(p) for _, p in choices)


# The grammar. Words are listed in order of frequency: the k-th has a probability proportional to
# 1/k. All of it is ASCII, in which a character is a byte.


def _rows(keys: str, *words: str) -> list[dict[str, str]]:
    return [dict(zip(keys.split(), word.split("|"), strict=True)) for word in words]


def _people(child: str, forms: str, names: str) -> list[dict[str, str]]:
    words = (f"{name}|{child}|{forms}" for name in names.split())
    return _rows("name child he him his", *words)


def _interleave(first: list, second: list) -> list:
    return [item for pair in zip(first, second, strict=True) for item in pair]


GIRL, BOY = "she|her|her", "he|him|his"

# Each is drawn once a story, at the first mention, and recalled afterwards.
MEMORY: dict[str, list[dict[str, str]]] = {
    "hero": _interleave(
        _people("girl", GIRL, "Anna Mia Clara Ruth Ella Nora Ida Greta Lucy Vera Judith Margaret"),
        _people("boy", BOY, "Tom Ben Peter Max Jonas Oscar Felix Hugo Leo Walter Samuel Frederick"),
    ),
    "friend": _interleave(
        _people("girl", GIRL, "Lily Rosa Emma Alice Sarah Molly Hanna Sophie Elena Charlotte"),
        _people("boy", BOY, "Jack Paul Simon David Henry Anton Robin Martin Victor Benjamin"),
    ),
    "mood": _rows("word", "brave", "shy", "lazy", "clever"),
    "pet": _rows(
        "kind said sound",
        "dog|barked|Woof",
        "cat|purred|Meow",
        "duck|called|Quack",
        "goat|cried|Meh",
        "frog|croaked|Ribbit",
        "mouse|whispered|Peep",
        "crow|shouted|Caw",
        "donkey|brayed|Hee-haw",
    ),
    "called": _rows("name", *"Biscuit Pepper Snow Button Captain Shadow Turnip Whistle".split()),
    "thing": _rows(
        "a noun it is was",
        "a kite|kite|it|is|was",
        "two drums|drums|them|are|were",
        "a boat|boat|it|is|was",
        "skates|skates|them|are|were",
        "an old map|old map|it|is|was",
        "nine marbles|marbles|them|are|were",
        "a lantern|lantern|it|is|was",
        "paints|paints|them|are|were",
        "an umbrella|umbrella|it|is|was",
        "seven seashells|seashells|them|are|were",
        "a tin trumpet|tin trumpet|it|is|was",
        "yellow boots|yellow boots|them|are|were",
    ),
    "spot": _rows(
        "where",
        *(
            "under the bed|behind the clock|in a blue box|on top of the shelf|beside the stove|"
            "in the apple barrel|between two pillows|near the cellar door"
        ).split("|"),
    ),
    "home": _rows(
        "name",
        *"Millbrook Oakham Redhill Ferndale Stonebridge Elmstead Brightwater Kingsley".split(),
    ),
    "food": _rows(
        "name",
        *"bread plums honey soup pancakes cherries cheese dumplings gingerbread".split(),
    ),
}


# Each is drawn anew at each mention.
FRESH: dict[str, list[str]] = {
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "weather": "sunny rainy windy cold foggy mild stormy snowy".split(),
    "place": (
        "river|market|old mill|forest|harbour|school|meadow|bakery|church tower|windmill|"
        "railway|lake"
    ).split("|"),
    "searched": (
        "in the garden|behind the barn|along the river|under the stairs|in the hay|up in the attic|"
        "below the bridge|among the roses|inside the old mill"
    ).split("|"),
    "gift": (
        "a feather|a whistle|a ribbon|an acorn|a smooth stone|a paper star|a brass button"
    ).split("|"),
    "move": (
        "sniffed the ground|ran ahead|turned round|looked up|scratched at a door|sat down"
    ).split("|"),
}

# Each is drawn anew too, from the list of the hero's mood.
MOODY: dict[str, dict[str, list[str]]] = {
    "felt": {
        "brave": ["ready for anything", "strong", "happy", "hungry"],
        "shy": ["a little afraid", "quiet", "happy", "lonely"],
        "lazy": ["tired", "sleepy", "hungry", "quiet"],
        "clever": ["curious", "happy", "full of plans", "lonely"],
    },
    "act": {
        "brave": ["climbed a tree", "swam to the other side", "sang aloud", "chased the geese"],
        "shy": ["watched the birds", "hid from the geese", "hummed a song", "drew a picture"],
        "lazy": ["slept in the sun", "watched the birds", "counted clouds", "ate an apple"],
        "clever": ["built a dam", "counted the birds", "read a book", "drew a picture"],
    },
}

# The opening names all that is remembered, so that a text tells how it was drawn.
_OPENING = (
    "{hero.name} was a {mood.word} {hero.child} from {home.name} who had {thing.a} and a "
    "{pet.kind} called {called.name}. At night {hero.he} kept the {thing.noun} {spot.where}. "
    "{hero.His} best friend was {friend.name}, a {friend.child} who loved {food.name}."
)

# {memory.form}, with a capital form for a capital letter, and [fresh]; then what may follow.
SCENES: dict[str, tuple[str, dict[str, float]]] = {
    "open": (_OPENING, {"morning": 0.6, "meet": 0.25, "speech": 0.15}),
    "morning": (
        "One [weather] [day] {hero.name} felt [felt].",
        {"walk": 0.5, "act": 0.3, "lost": 0.2},
    ),
    "walk": (
        "{hero.He} walked to the [place] with {called.name}.",
        {"act": 0.5, "meet": 0.3, "speech": 0.2},
    ),
    "act": (
        "At the [place] {hero.he} [act].",
        {"morning": 0.15, "meet": 0.25, "speech": 0.2, "lost": 0.3, "home": 0.1},
    ),
    "meet": (
        "{friend.name} came by, and {friend.he} brought {food.name}.",
        {"ask": 0.4, "share": 0.4, "lost": 0.2},
    ),
    "ask": (
        '"Where {thing.is} your {thing.noun}?" {friend.he} asked {hero.him}.',
        {"show": 0.5, "lost": 0.5},
    ),
    "show": (
        '"Here {thing.is} my {thing.noun}," said {hero.name}.',
        {"share": 0.5, "act": 0.3, "home": 0.2},
    ),
    "share": (
        "{hero.name} and {friend.name} gave {called.name} [gift].",
        {"act": 0.3, "speech": 0.2, "home": 0.3, "lost": 0.2},
    ),
    "speech": (
        '"{pet.sound}!" {pet.said} {called.name}.',
        {"walk": 0.3, "act": 0.3, "meet": 0.2, "home": 0.2},
    ),
    "lost": (
        "But then {hero.his} {thing.noun} {thing.was} gone!",
        {"search": 0.8, "found": 0.2},
    ),
    "search": (
        "{hero.He} looked [searched], but the {thing.noun} {thing.was} not there.",
        {"search": 0.45, "hint": 0.25, "found": 0.3},
    ),
    "hint": (
        "The {pet.kind} [move].",
        {"search": 0.4, "found": 0.6},
    ),
    "found": (
        "At last {friend.name} looked {spot.where}, and there {thing.was} the {thing.noun}.",
        {"share": 0.4, "home": 0.6},
    ),
    "home": (
        "In the evening {called.name} led {hero.him} home to {home.name}.",
        {END: 0.6, "morning": 0.4},
    ),
}
