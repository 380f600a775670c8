"""The record of a sweep, as its commands write it: what earlier ones planned stays planned."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path

from transformer_norms.comparison.registration import (
    Registered,
    path_of_registration,
    read_registration,
    registration_lines,
)
from transformer_norms.comparison.sweep_record import (
    Asked,
    Look,
    SweepRecord,
    Tuned,
    distinct,
    distinct_looks,
    merge_records,
    path_of,
    read_record,
)
from transformer_norms.errors import Busy, ConfigError
from transformer_norms.run.folder import hold_run
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.files import make_folder
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.storage.reading import is_there, read_text
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.question import Request

# Fields of a record that are those of its question.
_SAME = ("question", "axes", "baseline", "margin", "contrasts", "names")


class RecordFile:
    """sweep-NAME.json in the folder of a study, or the record of a part, for the commands of one
    request. `jobs`, `tuned` and `looks` are what this command has planned, tuned and seen."""

    def __init__(self, study: Path, request: Request) -> None:
        self.study, self.request = study, request
        self.path = path_of(study, request.name, request.part)
        self.jobs: list[Job] = []
        self.tuned: list[Tuned] = []
        self.looks: list[Look] = []
        self.file = path_of_registration(request.study)

    @property
    def paths(self) -> list[Path]:
        """The records that this command goes on with. One without a part goes on with all parts
        that are joined here."""
        parts = f"{self.path.stem}.part-*-of-*.json"  # of which a part has none
        return [*filter(is_there, [self.path]), *sorted(self.study.glob(parts))]

    def read(self) -> SweepRecord | None:
        """Returns what earlier commands of this sweep have planned; None if there is nothing."""
        try:
            records = [read_record(path) for path in self.paths]
            return reduce(merge_records, records) if records else None
        except ConfigError as error:
            raise ConfigError(
                f"{error}; without this file the same command begins another record, which plans "
                "the runs of this command; those that have ended are kept"
            ) from None

    def read_tuned(self, first: Sequence[Job]) -> list[Tuned]:
        """Returns what `--stage tune` has chosen for each variant, where `first` are the jobs of
        its grid. Raises ConfigError if no record here has that."""
        path, variants = path_of(self.study, self.request.name), self.request.question.variants
        record = read_record(path) if is_there(path) else None
        runs, chosen = (record.runs, record.tuned) if record else ([], [])
        tuned = [one for variant in variants for one in chosen if one.variant == variant]
        tried = {run.identity for run in runs} >= {job.run.identity for job in first}
        if len(tuned) < len(variants) or not tried:
            raise ConfigError(
                f"launcher.part={self.request.part}: {path} has not tuned these variants with this "
                "data and these settings; type --stage tune on one machine, and copy its file here"
            )
        return tuned

    def check(self, first: Sequence[Job]) -> None:
        """Refuses a bare `-m` while another command trains runs of another bare one in the study:
        both would write one record, and both reports would be of whoever wrote last.

        Two commands that ask the same share their runs, and may run at once. Raises Busy, and
        ConfigError if the record is damaged.
        """
        record = self.read()
        if record is None or not record.registered:
            self._own_file()  # refuses a damaged registration
        if self.request.named or record is None or self._asks_the_same(record, first):
            return
        for name in dict.fromkeys(run.folder for run in record.runs):
            try:
                with suppress(FileNotFoundError), hold_run(self.study / name):
                    pass
            except Busy as busy:
                raise Busy(f"{busy} for {self.path}; study=NAME keeps two sweeps apart") from None

    def warnings(self, first: Sequence[Job]) -> list[str]:
        """Says what is registered, and names a job that was planned before with other settings."""
        before = self.read() if self.request.named else None
        runs = [*(before.runs if before else ()), *(job.run for job in first)]
        identities = Counter(place for place, _ in {(run.place, run.identity) for run in runs})
        changed = [job for job in first if identities[job.run.place] > 1][:1]
        return self._findings(before, [f"run {run} {run.identity}" for run in runs]) + [
            f"warning: {job} was planned with other settings before; the report will not mix them, "
            "and study=NAME keeps them apart"
            for job in changed
        ]

    def write(self, unbegun: Sequence[Job]) -> None:
        """Writes what this command has planned, tuned and seen so far, with what stays of earlier
        commands. The runs of `unbegun` have failed before their first step."""
        question = self.request.question
        until_decided = question.until_decided
        record = SweepRecord(
            name=self.request.name,
            **{key: getattr(question, key) for key in _SAME},
            tune=question.tune.grid,
            tune_seeds=question.tune.seed,
            refine=question.tune.refine,
            seeds=question.first_seeds,
            most=question.most_seeds if until_decided else None,
            runs=[job.run for job in self.jobs],
            tuned=self.tuned,
            asked=Asked(question.variants, [] if until_decided else question.first_seeds),
            unbegun=[job.run.folder for job in unbegun],
        )
        make_folder(self.study)
        with wait_for_lock(self.study):  # one command at a time reads and writes the record
            looks = self.looks
            if before := self.read():
                # The planned runs of a named sweep stay planned, so that none is lost. A bare `-m`
                # cannot be typed by name: its record is the newest one, unless the same command
                # adds seeds until it is decided. Its looks stay, in case their runs are asked for
                # again.
                adds = record.most is not None and record.most == before.most
                if self.request.named or (adds and self._asks_the_same(before, self.jobs)):
                    record = merge_records(before, record)
                looks = [*before.looks, *looks]
            record = replace(record, registered=self._registered(before))
            still = [name for name in record.unbegun if not (self.study / name).is_dir()]
            joined = [path for path in self.paths if path != self.path]
            record = replace(record, looks=distinct_looks(looks), unbegun=still)
            record.write(self.study, self.request.part)
            for path in joined:  # what they had planned is in this record now
                path.unlink()

    def _own_file(self) -> str:
        """Returns the file that registers this sweep; empty if there is none."""
        try:
            text = read_text(self.file) if self.request.named and is_there(self.file) else ""
            own = text and read_registration(text, str(self.file))[0].sweep == self.request.name
        except ConfigError as error:
            raise ConfigError(f"{error}; move or delete it") from None
        return text if own else ""

    def _findings(self, before: SweepRecord | None, reported: list[str]) -> list[str]:
        """Returns the sentences of a report on the registration, or names a file that is of another
        sweep or study."""
        name, study = self.request.name, self.request.study
        if found := self._registered(before):
            first, *more = registration_lines([(name, found)], reported)
            where = self.path if before and before.registered else self.file
            return [f"{where}: {first}", *more]
        files = {path_of_registration(one): None for one in (study, name) if self.request.named}
        text = f"does not register sweep={name} study={study}, which has no registration"
        return [f"warning: {file} {text}" for file in files if is_there(file)]

    def _registered(self, before: SweepRecord | None) -> Registered | None:
        """Returns the registration as it was first found, with what this command asks."""
        found = before.registered if before else None
        if not found and (text := self._own_file()):
            from transformer_norms.run.machine import git  # imports torch

            clean = git(Path(), "status", "--porcelain", "--", f"{self.file}") == ""
            commit = clean and git(Path(), "log", "-1", "--format=%H", "--", f"{self.file}") or None
            earlier = elsewhere = 0
            for run in self.study.glob("*/summary.json"):
                own = None
                with suppress(ConfigError):
                    own = (summary := read_summary(run.parent)) and summary.commit
                away = commit and git(Path(), "cat-file", "-e", f"{own}") is None
                after = git(Path(), "merge-base", "--is-ancestor", f"{commit}", f"{own}") is None
                elsewhere, earlier = elsewhere + bool(away), earlier + (after and not away)
            found = Registered(text, commit, earlier, [], elsewhere)
        terms = [*found.terms, *self.request.question.terms] if found else []
        return replace(found, terms=distinct(terms)) if found else None

    def _asks_the_same(self, record: SweepRecord, jobs: Sequence[Job]) -> bool:
        """Whether the newest command of a record asked for these variants and settings."""
        asked, variants = record.asked, self.request.question.variants
        return asked is not None and asked.variants == variants and jobs[0].run in record.runs
