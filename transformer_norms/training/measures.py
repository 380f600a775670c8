"""The measures taken inside a model while it trains: the names of the keys, and their meaning.

A row of metrics.jsonl has them as `probe/MEASURE/BLOCK`, or `probe/MEASURE/PART/BLOCK` where a
block has several: `probe/stream_rms/3`, `probe/gradient_norm/attention.query/3`. Blocks count from
0. A place outside them has its name instead of a number: `probe/stream_rms/embedding`, which is
what enters the first block. A block with two streams has the parts x and r.

All are of the weights that a step begins with, but for the change that it makes. Of the stream and
of attention they are taken on the first sequences of its batch, in evaluation mode.
"""

from typing import NamedTuple

PREFIX = "probe"
WINDOW, DEVIATIONS = 128, 6.0  # of a spike: the losses before it, and how far it lies above them


class Measure(NamedTuple):
    """`title` is short enough for an axis; `meaning` says what is computed, in which unit."""

    title: str
    meaning: str
    log: bool = False  # whether it spans decades, for an axis


MEASURES = {
    "stream_rms": Measure(
        "stream, rms",
        "sqrt(mean(x^2)) of the residual stream x as it leaves a block, over features and tokens",
        True,
    ),
    "stream_mean": Measure(
        "stream, mean", "mean of the residual stream as it leaves a block, over features and tokens"
    ),
    "stream_drift": Measure(
        "stream, mean / rms of a token",
        "a token's mean over features divided by its rms, as a root mean square over tokens: the "
        "cosine of the stream x and the all-ones vector; chance is 1/sqrt(width)",
        True,
    ),
    "stream_largest": Measure(
        "stream, largest / rms",
        "max |x| / sqrt(mean(x^2)) of the residual stream x as it leaves a block: large where "
        "activations are massive",
        True,
    ),
    "stream_kurtosis": Measure(
        "stream, kurtosis",
        "mean((x - mean)^4) / var^2 of the residual stream x as it leaves a block; 3 for a "
        "Gaussian, more where few entries are large",
        True,
    ),
    "branch_over_stream": Measure(
        "branch / stream",
        "rms of what a sub-layer adds over the rms of what it is added to, both as they meet in "
        "the sum; in a block of two streams, of the normed one",
        True,
    ),
    "gradient_norm": Measure(
        "gradient, norm", "Euclidean norm of a matrix's gradient, before clipping", True
    ),
    "update_over_weight": Measure(
        "update / weight",
        "Euclidean norm of what one optimizer step changes a matrix by, over the matrix's own; it "
        "falls with the learning rate",
        True,
    ),
    "attention_entropy": Measure(
        "attention, entropy",
        "of a query's attention weights, in nats, mean over heads and (at most 256) queries; 0 "
        "where all of it goes to one token, mean(ln t) where it is spread evenly over the t tokens "
        "so far",
    ),
    "attention_logit": Measure(
        "attention, largest logit",
        "the largest number that a softmax of attention reads, over heads, (at most 256) queries "
        "and keys",
    ),
    "gain_spread": Measure(
        "gains, spread", "standard deviation over features of a norm's learned gains"
    ),
}


class Place(NamedTuple):
    """Where a probe's number comes from. `part` is empty where a block has one; `block` is None
    outside the blocks."""

    measure: str
    part: str
    block: int | None


def key_of(place: Place) -> str:
    ends = [place.part, "" if place.block is None else str(place.block)]
    return "/".join([PREFIX, place.measure, *filter(None, ends)])


def place_of(key: str) -> Place | None:
    """Returns None for a key that is not a probe's."""
    prefix, *rest = key.split("/")
    if prefix != PREFIX or len(rest) not in (2, 3) or not all(rest):
        return None
    measure, *middle, last = rest
    if last.isdecimal() and last.isascii() and len(last) < 6:
        return Place(measure, middle[0] if middle else "", int(last))
    return None if middle else Place(measure, last, None)


# ------------------------------------------------------------------------- an untrained model

FACTOR = 3.0  # starts that differ by more in one number are not comparable


class Start(NamedTuple):
    """`stream` is the rms of what enters the first block. `branch` is the rms of what a sub-layer
    adds over the rms of what it is added to, mean over all sub-layers. `logits` is the standard
    deviation of the logits over the vocabulary, mean over tokens. None is a number that is
    not finite."""

    stream: float | None
    branch: float | None
    logits: float | None


# The words for the three numbers, in tables.
WORDS = ("rms entering block 1", "branch / stream", "deviation of the logits")


def differing_numbers(one: Start, other: Start) -> list[str]:
    """Returns, in words, the numbers in which two starts differ by more than FACTOR."""
    return [
        f"{word} {_text(a)} ({_text(b)})"
        for word, a, b in zip(WORDS, one, other, strict=True)
        if a is None or b is None or max(a, b) > FACTOR * min(a, b)
    ]


def start_text(start: Start) -> str:
    """`rms entering block 1 0.0201, branch / stream 0.337, ...`"""
    return ", ".join(f"{word} {_text(n)}" for word, n in zip(WORDS, start, strict=True))


def _text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
