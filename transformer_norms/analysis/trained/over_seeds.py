"""The differences of variants over paired seeds.

Intervals and tests are those of comparison/: Student's on the differences of pairs, and p times the
differences of one command. A variant with a run that did not finish has no difference, since the
runs that are left are not a sample of all.
"""

from transformer_norms.analysis.outcome import (
    DIVERGED,
    MODEL,
    SEED,
    Numbers,
    Rows,
    ended,
    of_kind,
    shared,
)
from transformer_norms.analysis.trained.subjects import Subjects
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.verdict import Comparison, Rules, Sides, compare, pair


def compare_numbers(
    subjects: Subjects, rows: Rows, numbers: Numbers
) -> dict[tuple[str, str, str], Comparison]:
    """Compares each number that is `compared` of each variant with its baseline's, by (variant,
    baseline, number). All are tested together."""
    asked: dict[str, Sides] = {}
    places: dict[str, tuple[str, str, str]] = {}
    keys = [key for key, number in shared(numbers, rows).items() if number.compared]
    variants = {row[MODEL] for row in ended(rows)}
    for variant, baseline in subjects.baselines.items():
        for key in keys if {variant, baseline} <= variants else ():
            name = f"{variant}: {key}"
            one, two = (_outcomes(subjects, rows, side, key) for side in (variant, baseline))
            asked[name], places[name] = pair(one, two), (variant, baseline, key)
    study = subjects.study
    if study is None or not asked:
        return {}
    found = compare(asked, Rules(margin=0.0, looks=study.held_looks, order=study.order))
    return {places[name]: comparison for name, comparison in found.items()}


def _outcomes(subjects: Subjects, rows: Rows, name: str, key: str) -> Outcomes:
    own = [row for row in of_kind(rows, MODEL) if row[MODEL] == name and SEED in row]
    failed = {row[SEED]: f"diverged ({row[DIVERGED]})" for row in own if row.get(DIVERGED)}
    values = {row[SEED]: row[key] for row in own if row[SEED] not in failed}
    missing = {**subjects.missing.get(name, {}), **failed}
    study = subjects.study
    results = study.variant(name).results if study else []
    return Outcomes(values, missing, frozenset(run.seed for run in results if not run.ended))
