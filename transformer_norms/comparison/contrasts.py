"""Contrasts: comparisons of any variants of a study, typed in the words of their labels.

    hybrid - post                                               two variants with each other
    (hybrid - pre) under gpt2 - (hybrid - pre) under xavier     an interaction
    post - pre over model.depth                                 a trend, per doubling of the depth

A term is as many words of one variant's label as no other variant has together. `A under W` adds
the words W to each term of A. A value with blanks, such as a typed equation, is quoted. Where each
term names several variants, with the same values on all other axes, it is their mean: of norms that
are crossed with placements, `post - pre` is the main effect.
"""

import ast
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby

from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import Values, words_of
from transformer_norms.errors import ConfigError
from transformer_norms.names import suggestion, unknown
from transformer_norms.text_tables import listed, printable

LONGEST = 400  # characters
_OPERATORS = {"(": "(", ")": ")", "-": "-", "under": "@", "over": "|"}  # as Python has them
_WRONG = (
    "is not a contrast; a contrast is A - B, (A - B) under V - (A - B) under W, or A - B over KEY"
)
_LISTED = 12  # variants in a message
Words = tuple[str, ...]
Terms = list[tuple[int, Words]]  # +1 or -1, and the words of the variant


@dataclass(frozen=True)
class Contrast:
    """A sum of coefficient x loss over variants, by their names. The coefficients sum to zero.

    `over` is the key of a trend; the contrast is then a slope per doubling of the key's value. One
    that was not `declared` before the runs is only described. `shown` is another text for readers.
    """

    coefficients: Mapping[str, float]
    text: str = ""
    over: str | None = None
    declared: bool = True
    shown: str = ""

    @property
    def pair(self) -> tuple[str, str] | None:
        """The variant and the baseline of a plain difference; None for any other contrast."""
        if not is_pair(self.coefficients.values()):
            return None
        baseline, variant = sorted(self.coefficients, key=self.coefficients.__getitem__)
        return variant, baseline

    @property
    def title(self) -> str:
        return self.shown or self.text

    @property
    def unit(self) -> str:
        return f"nats per doubling of {self.over}" if self.over else "nats"


def is_pair(coefficients: Iterable[float]) -> bool:
    """Whether a sum with these coefficients is a plain difference of two variants."""
    return sorted(coefficients) == [-1, 1]


def find_contrast(text: str, variants: Mapping[str, Values]) -> Contrast:
    """Returns the contrast that `text` states of `variants`, by their names.

    Without `over`, the coefficient of a variant is the sum of sign / (number of variants) over its
    terms. With `over`, and u the log2 of the key's values, each term is taken at each value, times
    (u - mean(u)) / sum((u - mean(u))^2): the least-squares slope of the difference per doubling.

    Raises ConfigError, one line that begins with `text`, if the text is not a contrast, or if one
    of its terms names no variant, or several that the other terms do not match.
    """
    try:
        terms, over = _parse(text)
        coefficients: dict[str, float] = {}
        for fixed, weight in _weights(over, variants) if over else [({}, 1.0)]:
            members = [_variants(words, fixed, variants) for _, words in terms]
            for (sign, words), own in zip(terms, members, strict=True):
                matched = all([*one.values()] == [*own.values()] for one in members)
                if len(own) > 1 and not (matched and len({*own.values()}) == len(own)):
                    named = f"{len(own)} variants, {listed([*own], _LISTED)}"
                    raise ConfigError(f"{' '.join(words)!r} names {named}; add words")
                for name in own:
                    coefficients[name] = coefficients.get(name, 0.0) + sign * weight / len(own)
        used = {name: c for name, c in coefficients.items() if abs(c) > 1e-12}
        if not used:
            raise ConfigError("compares a variant with itself")
    except ConfigError as error:
        raise ConfigError(printable(f"{text[:LONGEST]}: {error}")) from None
    # The keys of which the last term has several values.
    counts = Counter(word.partition("=")[0] for word in {*chain(*own.values())})
    averaged = ", ".join(sorted(key for key, count in counts.items() if count > 1))
    return Contrast(used, text, over, shown=averaged and f"{text} (mean over {averaged})")


def shown_text(text: str, names: Mapping[str, str]) -> str:
    """Returns a contrast with `names` in the place of its words, without their quotation marks."""
    words = r"""'[^']*'|"[^"]*"|[^\s()]+"""
    return re.sub(words, lambda found: names.get(found[0].strip("'\""), found[0]), text)


# -------------------------------------------------------------------------------------- the grammar


def _parse(text: str) -> tuple[Terms, str | None]:
    """The signed terms of a contrast, and the key of its trend.

    contrast = difference [over KEY];  difference = part {- part};
    part = (WORDS | "(" difference ")") {under WORDS}

    Python has operators of this precedence. So its parser reads the text, with names for words.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"a contrast has at most {LONGEST} characters")
    words: dict[str, Words] = {}
    source: list[str] = []
    for is_operator, tokens in groupby(_tokens(text), _OPERATORS.__contains__):
        if is_operator:
            source += map(_OPERATORS.__getitem__, tokens)
        else:
            source.append(f"words{len(words)}")
            words[source[-1]] = tuple(tokens)
    try:
        tree = ast.parse(" ".join(source), mode="eval").body
    except SyntaxError:
        raise ConfigError(_WRONG) from None
    match tree:
        case ast.BinOp(difference, ast.BitOr(), ast.Name(name)) if len(words[name]) == 1:
            return _terms(difference, words), words[name][0]
    terms = _terms(tree, words)
    if sum(sign for sign, _ in terms) != 0:
        raise ConfigError(_WRONG)
    return terms, None


def _tokens(text: str) -> Iterator[str]:
    """Yields words without their quotation marks, operators and single brackets."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="()")
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        for token in lexer:
            yield from token if {*token} <= {*"()"} else [token]
    except ValueError:
        raise ConfigError("a quotation mark has no second") from None


def _terms(tree: ast.expr, words: Mapping[str, Words]) -> Terms:
    match tree:
        case ast.Name(name):
            return [(1, words[name])]
        case ast.BinOp(left, ast.MatMult(), ast.Name(name)):
            return [(sign, own + words[name]) for sign, own in _terms(left, words)]
        case ast.BinOp(left, ast.Sub(), right):
            terms, taken = _terms(left, words), _terms(right, words)
            # Between two variants, or between two differences.
            if sum(sign for sign, _ in terms) == sum(sign for sign, _ in taken):
                return terms + [(-sign, own) for sign, own in taken]
    raise ConfigError(_WRONG)


# -------------------------------------------------------------------------------- variants by words


def _weights(key: str, variants: Mapping[str, Values]) -> list[tuple[Values, float]]:
    """Each value of a numeric axis, and its coefficient in a slope per doubling."""
    keys = list(dict.fromkeys(key for values in variants.values() for key in values))
    if key not in keys:
        raise ConfigError(f"over {key}: {unknown('axis', key, keys)}")
    values: list[float] = []
    for value in (one[key] for one in variants.values() if key in one):
        if not finite(value) or value <= 0:
            raise ConfigError(f"over {key}: {value} is not a number above zero")
        values += [value] if value not in values else []
    if len(values) < 2:
        raise ConfigError(f"over {key}: has one value, {values[0]}; a trend needs two")
    doublings = [math.log2(value) for value in values]
    mean = math.fsum(doublings) / len(doublings)
    squares = math.fsum((u - mean) ** 2 for u in doublings)
    return [({key: x}, (u - mean) / squares) for x, u in zip(values, doublings, strict=True)]


def _variants(
    words: Words, fixed: Values, variants: Mapping[str, Values]
) -> dict[str, tuple[str, ...]]:
    """The variants that have all of the words and the fixed values, or the only one of them that
    has no other words, each with its other values. They are sorted by these."""
    known = {
        name: [words_of(key, value) for key, value in values.items() if key not in fixed]
        for name, values in variants.items()
        if fixed.items() <= values.items()
    }
    having = [name for name in known if {*words} <= {*chain(*known[name])}]
    rests = {n: tuple(own[-1] for own in known[n] if not {*words} & {*own}) for n in having}
    whole = [name for name in having if not rests[name]]
    if having:
        chosen = whole if len(whole) == 1 else sorted(having, key=rests.__getitem__)
        return {name: rests[name] for name in chosen}
    term = repr(" ".join(words)) + "".join(f" at {key}={value}" for key, value in fixed.items())
    single = [words[0] for each in known.values() for words in each]
    every = {word for each in known.values() for word in chain(*each)}
    strange = [word for word in words if word not in every]
    near = suggestion(strange[0], single) if strange else suggestion(" ".join(words), known)
    raise ConfigError(f"{near}{term} names no variant; there are {listed([*variants], _LISTED)}")
