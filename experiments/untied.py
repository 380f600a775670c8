"""The words of untied_stream: is it the size of the stream, or the rate of the tokens?"""

from collections.abc import Sequence

from primary import Primary, primary_contrasts

from transformer_norms.report.findings import Findings

FACTOR = "architecture.embed_scale"
ENOUGH = 2  # of the three contrasts of one kind
SIZE = "It is the size of the stream, by the words that were decided before"
RATE = "It is the rate of the tokens, by the words that were decided before"
UNDECIDED = "By the words that were decided before, it is both, or not told apart"


def answer(found: Findings) -> str:
    """What was decided before the runs, and what it rests on."""
    size, rate = _kinds(found)
    word = UNDECIDED
    if _below(size) >= ENOUGH and not _apart(rate):
        word = SIZE
    elif _below(rate) >= ENOUGH and not _apart(size):
        word = RATE
    return (
        f"{word}. Told apart from zero are {_counted(size)} contrasts of the size, and "
        f"{_counted(rate)} of the factor."
    )


def _kinds(found: Findings) -> tuple[list[Primary], list[Primary]]:
    """The contrasts at one factor on the tokens, in which the size of the stream changes, and those
    between two factors, in which it stays."""
    kinds: tuple[list[Primary], list[Primary]] = [], []
    for one in primary_contrasts(found):
        factors = {found.study.variant(name).values[FACTOR] for name in one.contrast.coefficients}
        kinds[len(factors) - 1].append(one)
    return kinds


def _apart(primaries: Sequence[Primary]) -> int:
    return sum(one.is_apart for one in primaries)


def _below(primaries: Sequence[Primary]) -> int:
    return sum(one.is_apart and one.value is not None and one.value < 0 for one in primaries)


def _counted(primaries: Sequence[Primary]) -> str:
    return f"{_apart(primaries)} of {len(primaries)} ({_below(primaries)} below it)"
