"""Says what the seeds of a sweep can find, before it starts: the table of --power, and one line of
the introduction."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.power import (
    MOST_SEEDS,
    fewest_seeds,
    smallest_bound,
    smallest_difference,
)
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.shrinkage import Spread, weight_of
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import ORDER, baseline_of, path_of
from transformer_norms.errors import ConfigError
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import noise_in
from transformer_norms.run.identity import settings_without_seeds
from transformer_norms.sweep.looks import read_findings
from transformer_norms.sweep.planning import Job, Jobs
from transformer_norms.sweep.question import Question, named_variants, read_request
from transformer_norms.text_tables import narrow_table, wrap_text

_SEEDS = (3, 5, 8, 10, 15, 20)


def read_noise(jobs: Jobs, job: Job) -> Spread | None:
    """The noise of the difference of two runs of one seed, with the weight that the usual variance
    will have in this sweep. The sweep's own runs tell it, or else a study `noise` in the same
    folder whose runs are like `job`. None if no run tells it."""
    settings = settings_without_seeds(job.config, job.plan.data_identity)
    for found in _earlier_findings(jobs, settings):
        own = (c.spread for c in found.comparisons.values() if c.spread)
        if measured := found.rules.usual or next(own, None):
            return measured._replace(freedom=weight_of(count_pairs(jobs.request.question)))
    return None


def count_pairs(question: Question) -> int:
    """Returns the number of variants that are compared with their baselines."""
    variants = question.variants
    baselines = [baseline_of(one, question.baseline, variants) for one in variants]
    return sum(base not in (None, one) for one, base in zip(variants, baselines, strict=True))


def count_comparisons(question: Question) -> int:
    """Returns the number of comparisons that are judged together: of contrasts, or, without any,
    of variants with their baselines. Where seeds are crossed, these are described."""
    return 0 if ORDER in question.axes else len(question.contrasts) or count_pairs(question)


def _unit(question: Question, known: Spread | None) -> tuple[Spread, str]:
    """The noise of the comparison that varies most, and how a size is written. The variance of a
    comparison is in proportion to the sum of its squared coefficients, which is 2 for two variants.
    Where no noise is known, the variance of a pair is 1, so that sizes are deviations of its
    differences."""
    noise = known or Spread(1.0, weight_of(count_pairs(question)))
    size = "{:.2g} nats" if known else "{:.2f} sd"
    named = named_variants(question)
    contrasts = [find_contrast(text, named).coefficients for text in question.contrasts]
    squares = max((sum(c**2 for c in one.values()) for one in contrasts), default=2.0)
    return noise._replace(variance=noise.variance * squares / 2), size


def _earlier_findings(jobs: Jobs, settings: dict[str, object]) -> Iterator[Findings]:
    record = path_of(jobs.study, jobs.request.name)
    if record.is_file() and (found := read_findings(record)):
        yield found
    with suppress(ConfigError):
        if noise := noise_in(jobs.study.parent, settings):
            yield findings(noise)


# ------------------------------------------------------------------------- a line before the sweep


def power_lines(question: Question, known: Spread | None) -> list[str]:
    """Says what the question's seeds can find, and whether they can show that equal variants are
    equivalent within its `margin`; nothing if nothing is compared."""
    seeds, margin, plan = question.most_seeds, question.margin, question.until_decided
    compared = count_comparisons(question)
    if not compared:
        return []
    if seeds < FEWEST:
        return [f"{plural(seeds, 'seed')} and no verdict: {FEWEST} are the fewest"]
    noise, size = _unit(question, known)
    least = smallest_difference(noise, seeds, compared, bool(plan))
    line = f"{plan.first} to {seeds}" if plan else f"{seeds}"
    if math.isinf(least):
        return [f"{line} seeds call nothing better or worse: tests at every look need more"]
    line += f" seeds detect a true difference of {size.format(least)} with 90 % power"
    line += ", without tuning error" * bool(question.tune.grid)
    if known is None:
        return [f"{line} (sd: standard deviation of paired differences, which no run tells yet)"]
    bound = partial(smallest_bound, noise, compared=compared, in_sequence=bool(plan))
    if bound(seeds) <= margin:
        return [f"{line}; they show that equal variants are equivalent within {margin:g}"]
    most = fewest_seeds(bound, margin)
    needed = plural(most, "seed") if most else f"more than {MOST_SEEDS} seeds"
    takes = f"to show that equal variants are equivalent within {margin:g} nats takes {needed}"
    return [f"{line}; {takes}"]


# ----------------------------------------------------------------------------- the table of --power


def power_table(arguments: Sequence[str]) -> list[str]:
    """The lines of --power. Raises ConfigError if there is no such sweep."""
    jobs = Jobs(read_request(arguments))
    question = jobs.request.question
    if not (compared := count_comparisons(question)):
        alone = (
            "it has one variant"
            if len(question.variants) < 2
            else ("its variants differ in their horizon alone")
        )
        raise ConfigError(f"--power: this sweep compares nothing: {alone}")
    job = jobs.make(
        "result", question.variants[0], question.tune.points[0], question.first_seeds[0]
    )
    known = read_noise(jobs, job)
    noise, size = _unit(question, known)
    rows: list[tuple[str, ...]] = [("seeds", "detects", "equal within", "runs")]
    for seeds in sorted({*_SEEDS, max(FEWEST, question.most_seeds)}):
        sizes = (f(noise, seeds, compared, False) for f in (smallest_difference, smallest_bound))
        rows.append((f"{seeds}", *map(size.format, sizes), f"{seeds * len(question.variants)}"))
    notes = [
        "detects: the smallest true difference that is detected with 90 % power, where "
        f"{plural(compared, 'comparison')} are judged together. equal within: the "
        "smallest margin that two equal variants are shown to be within, with 90 % power. "
        "runs: of results" + ", tuning aside" * bool(question.tune.grid),
        "No run tells the noise yet: sd is the standard deviation of the difference of two runs of "
        "one seed."
        if known is None
        else "The difference of two runs of one seed has a standard deviation of "
        f"{known.sd:.2g} nats.",
        *(power_lines(question, known) if known or question.until_decided else []),
    ]
    title = f"{jobs.request.name}: {question.question}" if question.question else ""
    lines = [line for note in notes for line in wrap_text(note)]
    return [*wrap_text(title), *narrow_table(rows), *lines]
