"""What is measured inside a model while it trains: the names of the keys, and what they mean.

A row of metrics.jsonl has them as `probe/MEASURE/BLOCK`, or `probe/MEASURE/PART/BLOCK` where a
block has several: `probe/stream_rms/3`, `probe/gradient_norm/attention.query/3`. Blocks count from
0. What stands outside them has its name in the block's place: `probe/stream_rms/embedding`, which
is what enters the first block. A block with two streams has the parts x and r.

All are of the weights that a step begins with, but for the change that it makes. Of the stream and
of attention they are taken on the first sequences of its batch, in evaluation mode.
"""

from typing import NamedTuple

PREFIX = "probe"


class Measure(NamedTuple):
    """`title` is short enough for an axis; `meaning` says what is computed, in which unit."""

    title: str
    meaning: str
    log: bool = False  # whether it spans decades, for an axis


MEASURES = {
    "stream_rms": Measure(
        "stream, rms", "sqrt(mean(x^2)) over the features and tokens of what leaves a block", True
    ),
    "stream_mean": Measure("stream, mean", "mean(x), likewise"),
    "stream_largest": Measure(
        "stream, largest / rms", "max |x| / sqrt(mean(x^2)), likewise: massive activations", True
    ),
    "stream_kurtosis": Measure(
        "stream, kurtosis", "mean((x - mean)^4) / var^2, likewise; 3 where x is Gaussian", True
    ),
    "branch_over_stream": Measure(
        "branch / stream",
        "rms of what a sub-layer adds, over the rms of what it is added to, "
        "each with its coefficient; of two streams, x",
        True,
    ),
    "gradient_norm": Measure(
        "gradient, norm", "Euclidean norm of a matrix's gradient, before clipping", True
    ),
    "update_over_weight": Measure(
        "update / weight",
        "norm of what a step changes a matrix by, over the matrix's; what a constraint on the "
        "weights changes is in it",
        True,
    ),
    "attention_entropy": Measure(
        "attention, entropy",
        "of a query's softmax weights, mean over heads and queries, in nats: uniform attention has "
        "mean(ln t), attention to one token 0",
    ),
    "attention_logit": Measure(
        "attention, largest logit",
        "max of what the softmax reads, scaled and capped, over heads, queries and keys",
    ),
    "gain_spread": Measure(
        "gains, spread", "standard deviation of a norm's gains, one for a feature"
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
    """None for a key that is no probe's."""
    prefix, *rest = key.split("/")
    if prefix != PREFIX or len(rest) not in (2, 3) or not all(rest):
        return None
    measure, *middle, last = rest
    if last.isdecimal() and last.isascii() and len(last) < 6:
        return Place(measure, middle[0] if middle else "", int(last))
    return None if middle else Place(measure, last, None)
