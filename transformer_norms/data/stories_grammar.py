"""The words and scenes of `data=stories`. Data, and no code: changing a letter changes the corpus.

A word list is in order of frequency: the k-th of a list has a probability proportional to 1/k.
"""

END = "end"


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split("|")


def _forms(keys: str, *words: str) -> list[dict[str, str]]:
    return [dict(zip(keys.split(), word.split("|"), strict=True)) for word in words]


def _people(child: str, forms: str, names: str) -> list[dict[str, str]]:
    keys = "name child he him his"
    return [_forms(keys, f"{name}|{child}|{forms}")[0] for name in names.split()]


def _alternating(first: list, second: list) -> list:
    return [one for pair in zip(first, second, strict=True) for one in pair]


GIRL, BOY = "she|her|her", "he|him|his"

# Drawn once a story, at the first mention, and recalled afterwards: names, gender, number, places.
MEMORY: dict[str, list[dict[str, str]]] = {
    "hero": _alternating(
        _people("girl", GIRL, "Anna Mia Clara Ruth Ella Nora Ida Greta Lucy Vera Judith Margaret"),
        _people("boy", BOY, "Tom Ben Peter Max Jonas Oscar Felix Hugo Leo Walter Samuel Frederick"),
    ),
    "friend": _alternating(
        _people("girl", GIRL, "Lily Rosa Emma Alice Sarah Molly Hanna Sophie Elena Charlotte"),
        _people("boy", BOY, "Jack Paul Simon David Henry Anton Robin Martin Victor Benjamin"),
    ),
    "mood": _forms("word", "brave", "shy", "lazy", "clever"),
    "pet": _forms(
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
    "called": _forms("name", *_words("Biscuit Pepper Snow Button Captain Shadow Turnip Whistle")),
    "thing": _forms(
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
    "spot": _forms(
        "where",
        "under the bed",
        "behind the clock",
        "in a blue box",
        "on top of the shelf",
        "beside the stove",
        "in the apple barrel",
        "between two pillows",
        "near the cellar door",
    ),
    "home": _forms(
        "name",
        *_words("Millbrook Oakham Redhill Ferndale Stonebridge Elmstead Brightwater Kingsley"),
    ),
    "food": _forms(
        "name",
        *_words("bread plums honey soup pancakes cherries cheese dumplings gingerbread"),
    ),
}

_SEARCHED = _phrases(
    "in the garden|behind the barn|along the river|under the stairs|in the hay|up in the attic|"
    "below the bridge|among the roses|inside the old mill"
)
_PLACES = _phrases(
    "river|market|old mill|forest|harbour|school|meadow|bakery|church tower|windmill|railway|lake"
)
_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_WEATHER = _words("sunny rainy windy cold foggy mild stormy snowy")
_GIFTS = _phrases(
    "a feather|a whistle|a ribbon|an acorn|a smooth stone|a paper star|a brass button"
)
_MOVES = _phrases(
    "sniffed the ground|ran ahead|turned round|looked up|scratched at a door|sat down"
)

# Drawn anew at each mention.
FRESH: dict[str, list[str]] = {
    "day": _DAYS,
    "weather": _WEATHER,
    "place": _PLACES,
    "searched": _SEARCHED,
    "gift": _GIFTS,
    "move": _MOVES,
}

# Drawn anew too, from the list of the hero's mood.
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

# It names all that is remembered, so that a text tells how it was drawn.
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
