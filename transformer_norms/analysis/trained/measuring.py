"""Measures the models that were typed one after the other, and compares variants over seeds.

A word names a run, a study of runs, a model that an analysis saved, or a folder that transformers
wrote. Runs are grouped by variant and paired by seed, as in a report.
"""

import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_norms.analysis.outcome import (
    DIVERGED,
    MODEL,
    SEED,
    Analysis,
    Numbers,
    Outcome,
    Row,
    Rows,
    csv_of,
    ended,
    of_kind,
    shared,
)
from transformer_norms.analysis.rendering import files
from transformer_norms.analysis.trained.subjects import Unmeasured, is_checkpoint
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sweep_record import Values, grouped, label
from transformer_norms.comparison.verdict import Comparison, Rules, compare, pair
from transformer_norms.config.finding import CONFIG, find_study
from transformer_norms.config.overrides import parse
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell
from transformer_norms.report.gathering import read_study
from transformer_norms.report.study import Study
from transformer_norms.report.writing import write_files
from transformer_norms.storage.reading import is_there

# Measures one model. Yields its rows, sentences that the outcome shall end with, and folders that
# it wrote. The tell is called with what is being done, how much of it is done, and how much there
# is.
Measure = Callable[[Any, Tell, Namespace], Iterable[Row | str | Path]]
# Reads the model of a folder, with typed KEY=VALUE, and its text, which may be a file.
Load = Callable[[Path, Sequence[str], Path | None], Any]
Said = defaultdict[str, list[str]]  # sentences, and the variants of which each is said


# ---------------------------------------------------------------------------------- the typed words


@dataclass(frozen=True)
class Subject:
    """One model. `name` is its variant's; `seed` is None where there is one model of a kind.
    `origin` says where it comes from."""

    name: str
    seed: int | None
    folder: Path
    origin: str

    @property
    def title(self) -> str:
        return self.name if self.seed is None else f"{self.name} s{self.seed}"

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of each row that is measured of the model."""
        seed = {} if self.seed is None else {SEED: self.seed}
        return {"kind": "model", MODEL: self.name, **seed}


@dataclass
class Subjects:
    """All models of a command, variant by variant. `missing` has the reason for each seed of a
    variant that has no numbers. `study` is None where no word named a run."""

    members: list[Subject]
    study: Study | None = None
    missing: dict[str, dict[int | None, str]] = field(default_factory=dict)

    def leave_out(self, subject: Subject, why: str) -> None:
        self.members.remove(subject)
        self.missing.setdefault(subject.name, {})[subject.seed] = why

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(subject.name for subject in self.members))

    @property
    def baselines(self) -> dict[str, str]:
        """The variant that each compared variant is compared with."""
        variants = self.study.variants if self.study else []
        pairs = {v.name: v.baseline for v in variants if v.compared and v.baseline}
        return {a: b for a, b in pairs.items() if a in self.names and b in self.names}

    @property
    def left_out(self) -> list[str]:
        """A line for each variant and reason, with the seeds that have no numbers."""
        lines = []
        for name, reasons in self.missing.items():
            for own in grouped(reasons.items(), lambda one: one[1]):
                seeds = ", ".join(str(seed) for seed, _ in own if seed is not None)
                which = f" (seed{'s' * (len(own) > 1)} {seeds})" if seeds else ""
                lines.append(f"LEFT OUT: {name}{which}: {own[0][1]}")
        return lines

    @property
    def notes(self) -> list[str]:
        """Lines on the runs that the study left out, and the reason if it compares nothing."""
        if self.study is None:
            return []
        unasked = [self.study.unasked] if self.study.unasked and len(self.names) > 1 else []
        return [*self.study.damaged, *unasked, *self.study.left_out]

    @property
    def words(self) -> str:
        """The one model, or the number of models."""
        return self.members[0].title if len(self.members) == 1 else f"{len(self.members)} models"


def read_subjects(typed: Namespace, tell: Tell) -> Subjects:
    """Returns the models that were typed. Reads no weights, but all that can be wrong before."""
    keys = typed_keys(typed)
    words = list(dict.fromkeys(word for word in typed.where if word not in keys))
    if not words:
        raise ConfigError("name at least one run, study or folder of transformers")
    alone, places = list[Subject](), []
    for word in words:
        folder = Path(os.path.expanduser(word))
        saved = (folder / CONFIG).is_file() and not is_there(folder / "summary.json")
        has_text = typed.text is not None or any(key.startswith("data") for key in keys)
        if is_checkpoint(folder) and not has_text:
            raise ConfigError(
                f"{folder}: has no text; type --text FILE, or a corpus such as data=pydocs"
            )
        if saved or is_checkpoint(folder):
            name = folder.resolve().name
            origin = "saved by an analysis" if saved else "a folder of transformers"
            if any(name == other.name for other in alone):
                raise ConfigError(f"{name}: two folders have this name; rename one of them")
            alone.append(Subject(name, None, folder, f"{name}: {origin}"))
        else:
            places.append(find_study(word))
    if not places:
        return Subjects(alone)
    return _subjects_of(read_study(places, _baseline(typed.baseline), tell=tell), alone)


def typed_keys(typed: Namespace) -> list[str]:
    """The words KEY=VALUE, which name no folder."""
    return [word for word in typed.where if "=" in word and not Path(word).exists()]


def _baseline(typed: Sequence[str] | None) -> Values | None:
    if typed is None:
        return None
    return {pair.key: pair.value for pair in ([] if list(typed) == ["none"] else parse(typed))}


def _subjects_of(study: Study, alone: Sequence[Subject]) -> Subjects:
    """The finished runs of a study, and then the models that are not runs."""
    subjects = Subjects([], study)
    for variant in study.variants:
        for member in variant.results:
            if member.run is not None and member.status == "finished":
                choices = {axis: member.run.choice(axis) for axis in ("norm", "placement")}
                unnamed = not variant.values or variant.name == label({})
                name, summary = label(choices) if unnamed else variant.name, member.run.summary
                origin = (
                    f"{member.folder.resolve().name}: identity {summary.identity}, commit "
                    f"{summary.commit}, torch {summary.versions.get('torch')}"
                )
                subjects.members.append(Subject(name, member.seed, member.folder, origin))
            elif member.ended:
                subjects.missing.setdefault(variant.name, {})[member.seed] = member.status
    subjects.members += alone
    if not subjects.members:
        states = sorted({member.status for v in study.variants for member in v.results})
        raise ConfigError(f"{study.home}: no run in it is finished; runs are {', '.join(states)}")
    return subjects


# ------------------------------------------------------------------------------ one after the other


def measure_models(
    analysis: Analysis,
    measure: Measure,
    typed: Namespace,
    tell: Tell,
    subjects: Subjects,
    load: Load,
) -> Outcome:
    """Loads one model after the other, and measures it. Returns the rows of all, with the
    differences of variants. The rows so far are written into the folder `--out` after each model,
    and the other files, too, where an error or Ctrl-C ends this.

    A model for which `measure` raises Unmeasured is left out; ConfigError if none is left.
    """
    rows, saved, origins, members = list[Row](), list[str](), list[str](), [*subjects.members]
    sentences, texts = Said(list), Said(list)  # texts: how much text was read

    def outcome() -> Outcome:
        return Outcome(
            analysis,
            rows,
            subjects.words,
            notices=[*subjects.left_out, *_with_names(texts, subjects.names)],
            remarks=[*_with_names(sentences, subjects.names), *subjects.notes],
            origins=origins,
            comparisons=compare_numbers(subjects, rows, analysis.numbers),
            saved=saved,
        )

    with _write_at_a_stop(typed.out, outcome):
        for place, subject in enumerate(members, start=1):
            of_all = f" ({place}/{len(members)})" * (len(members) > 1)
            tell(f"loading {subject.title}{of_all}", 0, 0)
            loaded = load(subject.folder, typed_keys(typed), typed.text)
            try:
                found = list(measure(loaded, _titled(tell, subject), typed))
            except Unmeasured as error:
                subjects.leave_out(subject, str(error))
                if not subjects.members:
                    raise ConfigError(f"{subject.folder}: {error}") from None
                continue
            rows += [{**subject.columns, **one} for one in found if isinstance(one, Mapping)]
            saved += [str(one) for one in found if isinstance(one, Path)]
            origins.append(f"{subject.origin}; {loaded.text_line}")
            texts[loaded.text_line].append(subject.name)
            for sentence in (one for one in found if isinstance(one, str)):
                sentences[sentence].append(subject.name)
            if typed.out:
                write_files(typed.out, {f"{analysis.name}.csv": csv_of(rows)})
    return outcome()


@contextmanager
def _write_at_a_stop(out: Path | None, outcome: Callable[[], Outcome]) -> Iterator[None]:
    """Writes the outcome of the models that are done into `out` where an error or Ctrl-C comes."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error itself is told
            if out and (so_far := outcome()).rows:
                write_files(out, files(so_far))
        raise


def _titled(tell: Tell, subject: Subject) -> Tell:
    return lambda what, done, total: tell(f"{subject.title}: {what}", done, total)


def _with_names(said: Said, names: Sequence[str]) -> list[str]:
    """The sentences, each after its variants unless it is said of all."""
    return [
        sentence if {*own} == {*names} else f"{', '.join(dict.fromkeys(own))}: {sentence}"
        for sentence, own in said.items()
    ]


# --------------------------------------------------------------------------------------- over seeds


def compare_numbers(
    subjects: Subjects, rows: Rows, numbers: Numbers
) -> dict[tuple[str, str, str], Comparison]:
    """Compares each number that is `compared` of each variant with its baseline's, by (variant,
    baseline, number). All are tested together.

    Intervals and tests are those of comparison/: Student's on the differences of pairs. A variant
    with a run that did not finish has no difference, since the runs that are left are not a sample
    of all.
    """
    keys = [key for key, number in shared(numbers, rows).items() if number.compared]
    variants, study = {row[MODEL] for row in ended(rows)}, subjects.study
    places = {
        f"{variant}: {key}": (variant, baseline, key)
        for variant, baseline in subjects.baselines.items()
        for key in (keys if {variant, baseline} <= variants else ())
    }
    if study is None or not places:
        return {}
    asked = {
        name: pair(_outcomes(subjects, rows, one, key), _outcomes(subjects, rows, two, key))
        for name, (one, two, key) in places.items()
    }
    rules = Rules(margin=0.0, looks=study.held_looks, order=study.order)
    return {places[name]: found for name, found in compare(asked, rules).items()}


def _outcomes(subjects: Subjects, rows: Rows, name: str, key: str) -> Outcomes:
    own = [row for row in of_kind(rows, MODEL) if row[MODEL] == name and SEED in row]
    failed = {row[SEED]: f"diverged ({row[DIVERGED]})" for row in own if row.get(DIVERGED)}
    values = {row[SEED]: row[key] for row in own if row[SEED] not in failed}
    missing = {
        seed: why for seed, why in subjects.missing.get(name, {}).items() if seed is not None
    }
    results = subjects.study.variant(name).results if subjects.study else []
    waiting = frozenset(run.seed for run in results if not run.ended)
    return Outcomes(values, {**missing, **failed}, waiting)
