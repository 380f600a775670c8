"""The words of untied_stream: is it the size of the stream, or the rate of the tokens? And what
does a head of its own change?"""

from collections.abc import Sequence
from dataclasses import replace

from primary import Primary, primary_contrasts, primary_rows

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.sweep_record import names_of
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering.grouping import values_on
from transformer_norms.report.study import Study
from transformer_norms.text_tables import markdown_table

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
        f"{word}. {_counted(size)} contrasts of the size and {_counted(rate)} of the factor are "
        "told apart from zero."
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
    return f"{_apart(primaries)} of {len(primaries)}"


def head_text(tied: Study, untied: Study) -> str:
    """Asked when the results had been seen, of the runs of stream_or_table and untied_stream: no
    answer that was decided rests on it."""
    both = _merge(tied, untied)
    variants = {variant.name: variant.values for variant in both.variants}
    texts = [
        f"({x} - pre) under tied=false embedding=0.02 embed_scale={factor} - "
        f"({x} - pre) under tied=true default=0.02 embed_scale={factor}"
        for x in ("post", "sandwich", "hybrid")
        for factor in (1, 25)
    ]
    contrasts = [replace(find_contrast(text, variants), declared=False) for text in texts]
    found = findings(replace(both, contrasts=contrasts))
    return (
        "Asked when the results had been seen, with the runs of stream_or_table: does a head of "
        "its own change the difference from pre-norm? Weights of 0.02 and the same seeds in both:"
        f"\n\n{markdown_table(primary_rows(primary_contrasts(found), 'contrast'))}"
    )


def _merge(first: Study, second: Study) -> Study:
    """One study of the variants of both, named by their values on the axes of both."""
    axes = list(dict.fromkeys([*first.axes, *second.axes]))
    pairs = [(study.home, variant) for study in (first, second) for variant in study.variants]
    values = [values_on(variant.ended[0], axes) for _, variant in pairs]
    named = zip(pairs, names_of(values), strict=True)
    names = {(home, variant.name): name for (home, variant), name in named}
    variants = [
        replace(
            variant,
            name=names[home, variant.name],
            values=own,
            baseline=names[home, variant.baseline],
        )
        for (home, variant), own in zip(pairs, values, strict=True)
    ]
    order = list(dict.fromkeys([*first.order, *second.order]))
    return replace(first, axes=axes, variants=variants, order=order)
