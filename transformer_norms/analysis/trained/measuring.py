"""Measures the models of a command one after the other, and puts their rows together."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from transformer_norms.analysis.outcome import Analysis, Outcome, Row
from transformer_norms.analysis.rendering import check_new, write_outcome
from transformer_norms.analysis.trained.over_seeds import compare_numbers
from transformer_norms.analysis.trained.subjects import (
    Load,
    Subject,
    Subjects,
    Unmeasured,
    load_measured,
    read_subjects,
)
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell

# Measures one model. Yields its rows, sentences that the outcome shall end with, and folders that
# it wrote. The tell is called with what is being done, how much of it is done, and how much there
# is.
Measure = Callable[[Any, Tell, Namespace], Iterable[Row | str | Path]]
WRITE_EVERY = 30.0  # seconds: a model that is tuned takes minutes
Said = dict[str, dict[str, None]]  # sentences, and the variants of which each is said


def measure_models(
    analysis: Analysis,
    measure: Measure,
    typed: Namespace,
    tell: Tell,
    load: Load = load_measured,
    writes: Callable[[Path], Path | None] = lambda folder: None,
) -> Outcome:
    """Loads one model after the other, and measures it. Returns the rows of all, with the
    differences of variants.

    `writes` is the new folder that a model of a folder is written into, which is checked before the
    first is loaded. A model for which `measure` raises Unmeasured is left out; ConfigError if none
    is left. The outcome so far is written into the folder `--out` every WRITE_EVERY seconds, and
    where an error or Ctrl-C ends this.
    """
    subjects = read_subjects(typed, tell, load)
    check_new(*filter(None, (writes(subject.folder) for subject in subjects.members)))
    measured, written = _Measured(analysis, subjects), monotonic()
    try:
        for place, subject in enumerate(subjects.members):
            of_all = f" ({place + 1}/{len(subjects.members)})" * (len(subjects.members) > 1)
            tell(f"loading {subject.title}{of_all}", 0, 0)
            loaded = subject.load()
            try:
                found = list(measure(loaded, _titled(tell, subject), typed))
            except Unmeasured as error:
                measured.reasons[place] = str(error)
                continue
            measured.add(subject, found, loaded.text_line)
            if monotonic() - written > WRITE_EVERY:
                write_outcome(measured.outcome(), typed.out)
                written = monotonic()
    except BaseException:
        if measured.rows:
            with suppress(Exception):  # what ended it is said
                write_outcome(measured.outcome(), typed.out)
        raise
    if len(measured.reasons) == len(subjects.members):
        raise ConfigError(f"{subjects.members[0].folder}: {measured.reasons[0]}")
    return measured.outcome()


@dataclass
class _Measured:
    """The rows of the models so far, what is said of them, and why models were left out, by their
    places."""

    analysis: Analysis
    subjects: Subjects
    rows: list[Row] = field(default_factory=list)
    sentences: Said = field(default_factory=dict)
    texts: Said = field(default_factory=dict)  # how much text was read
    origins: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, subject: Subject, found: Iterable[Row | str | Path], text_line: str) -> None:
        for each in found:
            if isinstance(each, str):
                self.sentences.setdefault(each, {})[subject.name] = None
            elif isinstance(each, Path):
                self.saved.append(str(each))
            else:
                self.rows.append({**subject.columns, **each})
        self.texts.setdefault(text_line, {})[subject.name] = None
        self.origins.append(f"{subject.origin}; {text_line}")

    def outcome(self) -> Outcome:
        """The outcome, with the differences of variants."""
        left = self.subjects.without(self.reasons)
        notices = [*left.notices, *_with_names(self.texts, left.names)]
        remarks = [*_with_names(self.sentences, left.names), *self.subjects.notes]
        compared = compare_numbers(left, self.rows, self.analysis.numbers)
        words, saved = left.words, self.saved
        return Outcome(
            self.analysis, self.rows, words, notices, remarks, self.origins, compared, saved
        )


def _titled(tell: Tell, subject: Subject) -> Tell:
    return lambda what, done, total: tell(f"{subject.title}: {what}", done, total)


def _with_names(said: Said, names: Sequence[str]) -> list[str]:
    """The sentences, each after its variants unless it is said of all."""
    return [
        sentence if len(own) == len(names) else f"{', '.join(own)}: {sentence}"
        for sentence, own in said.items()
    ]
