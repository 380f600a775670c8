"""Looks at a sweep's results, which are read as the report reads them, and adds seeds until each
comparison is decided."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from transformer_norms.comparison.deciding import HOPELESS, Counts, Decisions, verdicts
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import Look, Seen, Values, read_record
from transformer_norms.errors import ConfigError
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import count_looks, read_study
from transformer_norms.report.study import Study
from transformer_norms.sweep.design import seed_order
from transformer_norms.sweep.planning import Job, Pair
from transformer_norms.sweep.question import Question
from transformer_norms.sweep.record_file import RecordFile


def _planned(study: Study) -> dict[str, set[int]]:
    """The seeds of the results of each variant."""
    return {v.name: {member.seed for member in v.results} for v in study.variants}


def read_findings(*records: Path) -> Findings | None:
    """The findings of a sweep's records, by the rules that hold if this look counts. None if the
    runs must not be compared, or cannot be read: the report gives the reason."""
    with suppress(ConfigError):
        study = read_study(records)
        looks = [look for record in records for look in read_record(record).own_looks]
        looks.append(look_at(study, {}))
        return findings(replace(study, looks=count_looks(looks, study.variants)))
    return None


def look_at(study: Study, decisions: Decisions, *, unfinished: bool = False) -> Look:
    """A look at the results of a study, and what was decided. Where the seeds are a list, nothing
    is told of a variant before all of its results have ended, unless the `unfinished` ones count
    too: whoever adds seeds before may have seen the differences so far."""
    told = [
        v
        for v in study.variants
        if v.ended and (unfinished or study.open_ended or all(member.ended for member in v.results))
    ]
    return Look(
        [Seen(v.values, sorted(run.seed for run in v.ended)) for v in told],
        {name: decision for name, decision in decisions.items() if decision},
        sorted({run.summary.identity for v in told for run in v.ended}),
    )


def earlier_look(file: RecordFile, first: Sequence[Job]) -> list[Look]:
    """Returns the look that a person may have had at variants whose results have all ended: by a
    report of a sweep that was stopped. Where this command, whose first jobs are `first`, adds
    seeds, those that have ended count, too."""
    record, request = file.read(), file.request
    if record is None or record.most:
        return []
    if not request.named and not any(job.run in record.runs for job in first):
        return []  # a bare `-m` that has nothing to do with the one before it
    found = read_findings(*file.paths)
    if found is None:
        return []
    unfinished = not {*request.question.first_seeds} <= {*record.seeds}
    look = look_at(found.study, verdicts(found.every), unfinished=unfinished)
    return [look] if look.seen else []


class SeedPlan:
    """The results of variants at their best points, by the names that the study gives the variants.
    Each variant has the first seeds of `order`, as many as its count says. The plan goes on with
    the results that the study's record has planned."""

    def __init__(self, question: Question, best: Sequence[Pair], study: Study) -> None:
        self.question = question
        self.best = {v.name: pair for v in study.variants for pair in best if pair[0] == v.values}
        planned = _planned(study)
        every = sorted({seed for name in self.best for seed in planned[name]})
        length = max(question.most_seeds, len(every))
        self.order = seed_order(length, question.tune.seed, every)

    def counts(self, study: Study) -> Counts:
        """How many seeds of each variant are planned by now, also by another command."""
        planned = _planned(study)
        places = {name: [self.order.index(s) for s in planned[name] if s in self.order]
                  for name in self.best}  # fmt: skip
        return {name: 1 + max(places[name], default=-1) for name in self.best}

    def runs(self, counts: Counts) -> list[tuple[Values, Values, int]]:
        """The variant, point and seed of each result, seed by seed."""
        return [
            (*self.best[name], seed)
            for place, seed in enumerate(self.order)
            for name, count in counts.items()
            if place < count
        ]

    def undecided(self, found: Findings, decisions: Decisions) -> list[list[str]]:
        """The variants of each undecided comparison. A comparison gets no more seeds if one of its
        runs is missing, or if a variant of it is no longer asked about."""
        ready = {name for name in self.best if not found.outcomes[name].missing}
        sides = [[*found.study.asked[n].coefficients] for n in found.every if decisions[n] is None]
        return [own for own in sides if ready.issuperset(own)]

    def lines(self, counts: Counts, decisions: Decisions, found: Findings) -> list[str]:
        """Says how many seeds each variant took, and why."""
        lines = []
        for name, count in counts.items():
            text = plural(count, "seed")
            if name in decisions:  # a baseline has no decision
                text = f"{decisions[name] or 'undecided'} after {text}"
            if decisions.get(name) == HOPELESS:
                text += f", as {self.question.most_seeds} would hardly decide it"
            lines.append(f"{name}: {text}")
        return lines + [f"{text}: {decisions[text] or 'undecided'}" for text in found.contrasts]
