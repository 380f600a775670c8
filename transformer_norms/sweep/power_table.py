"""Says what the seeds of a sweep can find, before it starts: the table of --power, and one line of
the introduction."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from transformer_norms.comparison.moderation import ENOUGH, MOST_WEIGHT, Prior
from transformer_norms.comparison.power import (
    MOST_SEEDS,
    bound_in_sequence,
    difference_in_sequence,
    fewest_seeds,
    noise_of,
    smallest_bound,
    smallest_difference,
)
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import path_of
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import noise_in
from transformer_norms.run.identity import settings_without_seeds
from transformer_norms.sweep.looks import read_findings
from transformer_norms.sweep.planning import Job, Jobs
from transformer_norms.sweep.question import Question, read_request
from transformer_norms.text_tables import narrow_table, wrap_text

_SEEDS = (3, 5, 8, 10, 15, 20)


def read_noise(jobs: Jobs, job: Job) -> Prior | None:
    """The noise of the difference of two runs of one seed: of the sweep's own runs, or of a study
    `noise` beside it, if its runs are like `job`. None if no run tells it."""
    from transformer_norms.run.plan import Plan

    plan = Plan(compose(job.overrides))
    earlier = _earlier_findings(jobs, settings_without_seeds(plan.config, plan.data_identity))
    noises = (noise_of(found.comparisons.values(), found.rules) for found in earlier)
    return next(filter(None, noises), None)


def _unit(question: Question, noise: Prior | None) -> tuple[Prior, float, str]:
    """The noise, the smallest difference that is named, and how a size is written. Where no noise
    is known, its variance is 1, so that sizes are deviations of the differences, and any difference
    is named; a study of ENOUGH comparisons will have a usual variance of its own."""
    if noise:
        return noise, question.effect, "{:.2g} nats"
    weight = MOST_WEIGHT if question.compared >= ENOUGH else 0.0
    return Prior(1.0, weight, "no run"), 0.0, "{:.2f} sd"


def _earlier_findings(jobs: Jobs, settings: dict[str, object]) -> Iterator[Findings]:
    record = path_of(jobs.study, jobs.request.name)
    with suppress(ConfigError):  # its report says what is wrong with it
        if record.is_file():
            yield read_findings(record)
    with suppress(ConfigError):
        if noise := noise_in(jobs.study.parent, settings):
            yield findings(noise, noise)  # which has the prior that it would lend to this sweep


# ------------------------------------------------------------------------- a line before the sweep


def power_lines(question: Question, known: Prior | None) -> list[str]:
    """Says what the question's seeds can find, and whether they reach its `effect` as a bound of
    equivalence; nothing if nothing is compared."""
    seeds, compared = question.most_seeds, question.compared
    if not compared:
        return []
    if seeds < FEWEST:
        return [f"{plural(seeds, 'seed')} and no verdict: {FEWEST} are the fewest"]
    plan = question.until_decided
    noise, effect, size = _unit(question, known)
    difference = difference_in_sequence if plan else smallest_difference
    least = difference(noise, seeds, compared, effect)
    line = f"{plan.first} to {seeds}" if plan else f"{seeds}"
    if math.isinf(least):
        return [f"{line} seeds call nothing better or worse: tests at every look need more"]
    line += f" seeds detect a true difference of {size.format(least)} with 90 % power"
    line += ", without tuning error" * (question.tune is not None)
    if known is None:
        return [f"{line} (sd: standard deviation of paired differences, which no run tells yet)"]
    return [f"{line} (noise measured in {noise.origin}); {_reach(question, noise)}"]


def _reach(question: Question, noise: Prior) -> str:
    """Whether the question's seeds can show that equal variants differ by less than its effect."""
    effect, compared = question.effect, question.compared
    bound = bound_in_sequence if question.until_decided else smallest_bound
    if bound(noise, question.most_seeds, compared) <= effect:
        return f"they show that equal variants are within {effect:g}"
    most = fewest_seeds(lambda n: bound(noise, n, compared), effect) if effect else None
    needed = plural(most, "seed") if most else f"more than {MOST_SEEDS} seeds"
    return f"to show that equal variants are within {effect:g} nats takes {needed}"


# ----------------------------------------------------------------------------- the table of --power


def power_table(arguments: Sequence[str]) -> list[str]:
    """The lines of --power. Raises ConfigError if there is no such sweep."""
    jobs = Jobs(read_request(t for t in arguments if not t.startswith(("hydra/", "hydra."))))
    question = jobs.request.question
    if not question.compared:
        raise ConfigError("--power: this sweep compares nothing: it has one variant")
    job = jobs.make("result", question.variants[0], question.points[0], question.first_seeds[0])
    known = read_noise(jobs, job)
    noise, effect, size = _unit(question, known)
    rows = [
        (
            f"{seeds}",
            size.format(smallest_difference(noise, seeds, question.compared, effect)),
            size.format(smallest_bound(noise, seeds, question.compared)),
            f"{seeds * len(question.variants)}",
        )
        for seeds in sorted({*_SEEDS, max(FEWEST, question.most_seeds)})
    ]
    heading = ("seeds", "detects", "equal within", "runs")
    notes = [
        "detects: the smallest true difference that is detected with 90 % power, after Holm's "
        f"correction for {plural(question.compared, 'comparison')}. equal within: the smallest "
        "bound of equivalence that two equal variants are shown to be within, with 90 % power. "
        "runs: of results" + ", tuning aside" * (question.tune is not None),
        _noise_text(known),
        *(power_lines(question, known) if known or question.until_decided else []),
    ]
    title = f"{jobs.request.name}: {question.question}" if question.question else ""
    lines = [line for note in notes for line in wrap_text(note)]
    return [*wrap_text(title), *narrow_table([heading, *rows]), *lines]


def _noise_text(known: Prior | None) -> str:
    if known is None:
        return (
            "No run tells the noise yet: sd is the standard deviation of the difference of two "
            "runs of one seed."
        )
    deviation = known.variance**0.5
    return (
        f"The difference of two runs of one seed has a standard deviation of {deviation:.2g} nats "
        f"(measured in {known.origin})."
    )
