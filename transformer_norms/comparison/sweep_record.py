"""`sweep-<name>.json`: a sweep's question and every run that it planned, so that a missing run is
noticed. A command that trains a part of the results has a record for this part."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.registration import Registered
from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES, unknown
from transformer_norms.run.folder import Attempts
from transformer_norms.storage.files import make_folder, remove_leftovers, write_json
from transformer_norms.storage.reading import is_there, read_json, read_typed
from transformer_norms.text_tables import show

ORDER = "data.seed"  # the order of the batches; `seed` is then that of the weights
FAILED_AT_START = "failed before the first step"  # a run's state that leaves no folder
MOST_PLANNED = 30_000  # runs: one command plans at most 10,000 to tune, and as many results

Item = TypeVar("Item")
Values = dict[str, Any]  # such as {"placement": "pre", "optimizer.lr": 0.003}
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=_STRICT)
class PlannedRun:
    """One run that a sweep needs: which variant, at which tuned values, of which stage and seed.

    `folder` is its name in the study; a later attempt (`again=true`) ends with -2, -3, ....
    """

    folder: FolderName
    identity: Hash
    stage: Literal["tune", "result"]
    variant: Values
    tuned: Values
    seed: int

    def __str__(self) -> str:
        tuned = [f"{key.rpartition('.')[2]}={value}" for key, value in self.tuned.items()]
        return " ".join(filter(None, [label(self.variant), *tuned, f"s{self.seed}"]))

    @property
    def place(self) -> str:
        """The purpose of the run in the sweep, without the settings that all runs share."""
        return json.dumps([self.stage, self.variant, self.tuned, self.seed], sort_keys=True)

    @property
    def suffix(self) -> str:
        """The part of the folder's name that follows the hash of the run's identity."""
        return self.folder.rpartition(self.identity[:8])[2]

    def attempts(self, folders: Attempts) -> list[Path]:
        """The folders of all attempts at this run, oldest first."""
        return folders.of(self.identity, self.suffix)

    def newest(self, study: Path, folders: Attempts) -> Path:
        """The folder of the newest attempt; if there is none, the folder that it will have."""
        return [study / self.folder, *self.attempts(folders)][-1]


@dataclass(frozen=True, config=_STRICT)
class Tuned:
    """The choice of stage 1 for a variant; `best` is None if the variant failed everywhere.
    `edge` names the keys whose best value is the first or last that was tried."""

    variant: Values
    best: Values | None
    edge: list[str]


@dataclass(frozen=True, config=_STRICT)
class Seen:
    """The seeds of a variant whose results had ended at a look."""

    variant: Values
    seeds: list[int]


@dataclass(frozen=True, config=_STRICT)
class Look:
    """A look at the results: what was seen, and what was decided, the verdict or `hopeless`,
    of each comparison by its name, without those that were left open. `identities` are those of the
    runs that were seen."""

    seen: list[Seen]
    decided: dict[str, str]
    identities: list[Hash]


@dataclass(frozen=True, config=_STRICT)
class Asked:
    """The request of the newest command of a sweep. Without `seeds` it was to add seeds."""

    variants: list[Values]
    seeds: list[int]


@dataclass(frozen=True, config=_STRICT)
class SweepRecord:
    """A sweep: its question, what it varies (`axes`), tunes and repeats, and every run it needs.

    `tune` has the values of each tuned key in the grid that all variants try. `refine` is the
    number of refinements of each variant's best. `most` is the largest number of seeds of a variant
    where seeds are added until it is decided. `looks` are kept with any later command: those at
    other runs count where these are asked for again. `asked` tells what an earlier, wider command
    planned from what is asked now. `unbegun` are the folders of runs that failed before their
    first step, and so left none. `registered` is a question that was written down before its runs.
    `names` has what a report shows in the place of words of labels.
    """

    name: FolderName
    question: str
    axes: list[str]
    baseline: Values
    tune: dict[str, list[Any]]
    tune_seeds: list[int]
    seeds: list[int]
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    runs: Annotated[list[PlannedRun], Field(max_length=MOST_PLANNED)]
    tuned: list[Tuned]
    contrasts: list[str] = field(default_factory=list)
    refine: Annotated[int, Field(ge=0)] = 0
    most: Annotated[int, Field(ge=1)] | None = None
    looks: list[Look] = field(default_factory=list)
    asked: Asked | None = None
    unbegun: list[FolderName] = field(default_factory=list)
    registered: Registered | None = None
    names: dict[str, str] = field(default_factory=dict)
    schema: Literal[1] = 1

    @property
    def own_looks(self) -> list[Look]:
        """The looks at any of its runs."""
        own = {run.identity for run in self.runs}
        return [look for look in self.looks if own & {*look.identities}]

    def write(self, study: Path, part: str = "none") -> Path:
        """Writes `study`/sweep-NAME.json unless it is there already, and returns its path."""
        path = path_of(study, self.name, part)
        value = {"schema": 1, **asdict(self)}
        remove_leftovers(study)
        if not is_there(path) or read_json(path) != json.loads(json.dumps(value)):
            make_folder(study)
            write_json(path, value)
        return path


def path_of(study: Path, name: str, part: str = "none") -> Path:
    """Returns the path of a sweep's record, or of that of a part, such as 3/8. The names sort in
    the order of the parts, after the record without a part."""
    number, _, parts = part.partition("/")
    of = f".part-{number.zfill(len(parts))}-of-{parts}" if parts else ""
    return study / f"sweep-{name}{of}.json"


def read_record(path: Path) -> SweepRecord:
    """Returns the sweep in a file. Raises ConfigError if the file holds no sweep."""
    return read_typed(path, SweepRecord)


def label(variant: Mapping[str, Any], names: Mapping[str, str] = {}) -> str:
    """Returns a variant as `layernorm post depth=16`: the names on axes and equations alone, other
    values with their key. `names` has what is shown in the place of such a word."""
    words = (words_of(key, value)[0] for key, value in variant.items())
    return " ".join(names.get(word, word) for word in words) or "the variant"


def check_names(where: str, names: Mapping[str, str], variants: Iterable[Values]) -> None:
    """Raises ConfigError if a word is in no label, if its name is empty or another word's."""
    words = dict.fromkeys(words_of(*pair)[0] for values in variants for pair in values.items())
    for word, name in names.items():
        if word not in words:
            raise ConfigError(f"{where}: {unknown('word', word, words)}")
        if not (isinstance(name, str) and name.strip()):
            raise ConfigError(f"{where}: {word} has the name {name!r}; a text is wanted")
        same = [one for one in words if names.get(one, one) == name]
        if len(same) > 1:
            raise ConfigError(f"{where}: {' and '.join(same)} would have one name, {name}")


def words_of(key: str, value: Any) -> tuple[str, ...]:
    """Returns the words that name a value: that of the label first, such as `depth=16`, then the
    word with the short key and the word with the whole key, `model.depth=16`."""
    text = show(value)
    alone = key in AXES or key == "placement.equation"
    short = key if key == ORDER else key.rpartition(".")[2]  # not to be taken for `seed`
    words = (f"{short}={text}", f"{key}={text}")
    return (text, *words) if alone else words


def names_of(variants: Sequence[Values], names: Mapping[str, str] = {}) -> list[str]:
    """Returns the name of each variant: its label, or its whole keys if the label names two."""
    labels = [label(values, names) for values in variants]
    return [
        name if labels.count(name) == 1 else " ".join(f"{k}={v}" for k, v in values.items())
        for name, values in zip(labels, variants, strict=True)
    ]


def baseline_of(variant: Values, baseline: Values, variants: list[Values]) -> Values | None:
    """Returns the variant that another is compared with: the same values with the baseline's in
    their places. If no such variant was planned, it is the only one that has all of the baseline's
    values. If several have them, it is the only one whose other values are those of the variant."""
    wanted = {**variant, **baseline}
    if wanted in variants:
        return wanted
    having = [v for v in variants if baseline.items() <= v.items()]
    within = having if len(having) == 1 else [v for v in having if v.items() <= wanted.items()]
    return within[0] if len(within) == 1 else None


def merge_records(before: SweepRecord, now: SweepRecord) -> SweepRecord:
    """Returns `now` with all that was planned before it."""
    both: dict[str, Any] = {
        name: distinct([*getattr(before, name), *getattr(now, name)])
        for name in ("axes", "tune_seeds", "seeds", "contrasts", "unbegun")
    }
    # The readable part of a folder's name may have changed since the run was planned; the hash of
    # its identity says that it is the same.
    runs = distinct([*before.runs, *now.runs], lambda run: [run.identity, run.suffix, run.place])
    if len(runs) > MOST_PLANNED:
        raise ConfigError(f"more than {MOST_PLANNED} runs in one study; study=NAME begins another")
    tune = {key: distinct([*before.tune.get(key, []), *now.tune[key]]) for key in now.tune}
    variants = [tuned.variant for tuned in now.tuned]
    return replace(
        now,
        runs=runs,
        tune={**before.tune, **tune},
        most=now.most or before.most,  # tests that seeds were added under stay those of a sequence
        tuned=[*(old for old in before.tuned if old.variant not in variants), *now.tuned],
        looks=distinct_looks([*before.looks, *now.looks]),
        registered=now.registered or before.registered,
        **both,
    )


def distinct_looks(looks: Sequence[Look]) -> list[Look]:
    """Returns the looks that saw other seeds, or other runs of the same seeds, than each before."""
    return distinct(looks, lambda look: [look.seen, look.identities])


def distinct(items: Iterable[Item], key: Callable[[Item], Any] = lambda item: item) -> list[Item]:
    """Returns the first item of each key, in order."""
    return [first for first, *_ in grouped(items, key)]


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> list[list[Item]]:
    """Returns the items of each key, in order. Keys may be settings, which no set holds."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(json.dumps(key(item), sort_keys=True, default=str), []).append(item)
    return list(groups.values())
