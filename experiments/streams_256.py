"""The words of stream_or_table_256: does what holds at width 128 hold at width 256?"""

from collections import Counter
from dataclasses import replace

import streams
from primary import Primary, primary_contrasts, primary_rows

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.study import Study
from transformer_norms.text_tables import markdown_table

# Words of a contrast at width 256 -> those of the same cell at width 128.
NARROWER = {
    "default=0.0141": "default=0.02",
    "default=0.0396": "default=0.056",
    "embed_scale=1.418": "embed_scale=1",
    "embed_scale=35.46": "embed_scale=25",
    "embed_scale=0.5051": "embed_scale=0.3571",
    "embed_scale=12.63": "embed_scale=8.929",
}
SAME, OTHER = "the same sign, told apart", "the other sign, told apart"
NOT_APART, FAILED = "not told apart", "a run failed"
LEAST, MOST = 0.05, 0.5  # between these the best ratio was expected


def study_text(wide: Findings, narrow: Study) -> str:
    points = streams.points_of(wide)
    parts = [
        _answer(wide, narrow),
        "The difference from pre-norm in each cell, in nats:",
        streams.cells_table(points),
        ratio_answer(points),
        streams.curve_text(points),
    ]
    return "\n\n".join(parts)


def _answer(wide: Findings, narrow: Study) -> str:
    """What became of each contrast, and a table of them beside those of width 128."""
    variants = {variant.name: variant.values for variant in narrow.variants}
    contrasts = [
        find_contrast(narrower(contrast.text), variants) for contrast in wide.study.contrasts
    ]
    own = primary_contrasts(wide)
    before = primary_contrasts(findings(replace(narrow, contrasts=contrasts)))
    words = [word_of(there, here) for there, here in zip(before, own, strict=True)]
    rows = primary_rows(own)
    rows[0] += ["value at width 128", "found"]
    for row, there, word in zip(rows[1:], before, words, strict=True):
        row += [FAILED if there.value is None else f"{there.value:+.3f}", word]
    return f"{counted(words)}\n\n{markdown_table(rows)}"


def narrower(text: str) -> str:
    for wide, narrow in NARROWER.items():
        text = text.replace(wide, narrow)
    return text


def word_of(there: Primary, here: Primary) -> str:
    """`there` is the contrast at width 128, of which the sign alone counts."""
    if there.value is None or here.value is None:
        return FAILED
    if not here.is_apart:
        return NOT_APART
    return SAME if (there.value > 0) == (here.value > 0) else OTHER


def counted(words: list[str]) -> str:
    counts = Counter(words)
    each = "; ".join(f"{word}: {counts[word]}" for word in (SAME, OTHER, NOT_APART, FAILED))
    return f"Of the {len(words)} contrasts that were decided before, beside width 128: {each}."


def ratio_answer(points: list[streams.Point]) -> str:
    """The words for the best ratio that were decided before."""
    least = streams.best_ratio(*streams.fit_curve(points))
    predicts = [one.curve < one.mean for one in streams.curves_left_out(points)]
    confirmed = LEAST <= least <= MOST and all(predicts)
    return (
        f"By the rule that was decided before, a best ratio is {'' if confirmed else 'not '}"
        "confirmed."
    )
