"""A sweep's question: configs/sweep/NAME.yaml with what was typed, or what was typed alone."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked
from yaml import YAMLError

from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Seed
from transformer_norms.names import option_files, unknown
from transformer_norms.overrides import parse, parse_one
from transformer_norms.sweep.record import EFFECT, Values

MOST_RUNS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_COMMANDS = ("launcher", "parallel")  # how a sweep is run, not what its runs are
_BESIDE = "typed beside it is KEY=VALUE or KEY=A,B of a run, seed=0,1,2 too (report: --effect)"
_ONE_VALUE = ("study", "config", "plugins", "tracking", "tracking.mode", "continue_from")
Seeds = Annotated[list[Seed], Field(min_length=1)]
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


@checked(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Question:
    """What a sweep's file says. Stage 1 tunes each variant on seeds of its own, stage 2 runs each
    at its best on `seeds`; without `tune` there is one stage.

    `vary` and `tune` are grids; `together` are whole variants besides the grid's; `fixed` are
    settings of every run; `effect` is the smallest difference worth naming, in nats per token.
    """

    question: str
    baseline: Values
    vary: Grid = field(default_factory=dict)
    together: list[Values] = field(default_factory=list)
    tune: Grid = field(default_factory=dict)
    seeds: Seeds = field(default_factory=lambda: [0])
    fixed: Values = field(default_factory=dict)
    effect: Annotated[float, Field(ge=0, allow_inf_nan=False)] = EFFECT

    @property
    def variants(self) -> list[Values]:
        grid = [dict(zip(self.vary, row, strict=True)) for row in _product(self.vary.values())]
        return _distinct([*(grid if self.vary or not self.together else []), *self.together])

    @property
    def points(self) -> list[Values]:
        """The points of the tuning grid; one empty one where nothing is tuned."""
        grid = {key: values for key, values in self.tune.items() if key != "seed"}
        return _distinct([dict(zip(grid, row, strict=True)) for row in _product(grid.values())])

    @property
    def tuned_keys(self) -> list[str]:
        return [key for key in self.tune if key != "seed"]

    @property
    def tune_seeds(self) -> list[int]:
        return list(self.tune.get("seed", []))

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys([*self.vary, *(key for one in self.together for key in one)]))


@dataclass(frozen=True)
class Asked:
    """A question and its name; `commands` are what was typed of how to run it."""

    name: str
    question: Question
    named: bool  # by sweep=NAME: it can be come back to
    remarks: tuple[str, ...] = ()

    @property
    def study(self) -> str:
        return str(self.question.fixed.get("study", self.name))


def asked(arguments: Iterable[str]) -> Asked:
    """What a command line asks for. ConfigError, one line, where it contradicts itself."""
    typed: dict[str, list[Any]] = {}
    for text in arguments:
        key, values = _values(text)
        if key.split(".")[0] in Question.__dataclass_fields__:
            raise ConfigError(f"{text}: {key} stands in a sweep's file; {_BESIDE}")
        if key in typed and typed[key] != values:
            raise ConfigError(f"{key} is typed twice, the second time as {text}")
        typed[key] = values
    names = typed.pop("sweep", ["none"])
    if len(names) > 1:
        raise ConfigError(f"sweep={','.join(map(str, names))}: one sweep at a time")
    for key in _ONE_VALUE:
        if len(typed.get(key, [])) > 1:
            raise ConfigError(f"{key}: one value for all runs of a sweep; there are {typed[key]}")
    typed = {key: values for key, values in typed.items() if key.split(".")[0] not in _COMMANDS}
    if names == ["none"]:
        return _bare(typed)
    plugins = typed.get("plugins", ["none"])[0]
    question, remarks = _replaced(read_question(str(names[0]), plugins), typed)
    _check(f"sweep={names[0]}", question)
    return Asked(str(names[0]), question, named=True, remarks=tuple(remarks))


def _values(text: str) -> tuple[str, list[Any]]:
    """`norm=a,b` -> "norm", ["a", "b"]"""
    override = parse_one(text)
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, [parse([text])[0].value]
    try:
        found = list(itertools.islice(override.sweep_string_iterator(), MOST_RUNS + 1))
    except HydraException:  # glob and interval
        raise ConfigError(f"{text}: a sweep lists its values, KEY=A,B or KEY=range(0,3)") from None
    if not found:
        raise ConfigError(f"{text}: names no value")
    if len(found) > MOST_RUNS:
        raise ConfigError(f"{text}: is more than {MOST_RUNS} runs; split the study")
    return key, [parse([f"{key}={value}"])[0].value for value in found]


def _bare(typed: Mapping[str, list[Any]]) -> Asked:
    """`-m` without a file: each axis's first value is the baseline."""
    vary = {key: _unlike(values) for key, values in typed.items() if key != "seed"}
    fixed = {key: vary.pop(key)[0] for key in list(vary) if len(vary[key]) == 1}
    with _one_line("-m"):
        question = Question(
            question="",
            baseline={key: values[0] for key, values in vary.items()},
            vary=vary,
            seeds=_unlike(typed.get("seed", [0])),
            fixed=fixed,
        )
    # Never the study's name: the record of a sweep of that name may lie in it.
    return Asked("main", question, named=False)


def read_question(name: str, plugins: str = "none") -> Question:
    """configs/sweep/NAME.yaml; ConfigError names the key that is wrong."""
    from transformer_norms.plugins import check

    files = option_files("sweep", check(plugins))
    if name not in files:
        raise ConfigError(f"sweep={name}: {unknown('sweep', name, files)}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"sweep={name}: a sweep's name has letters, digits, _ . and - only")
    with _one_line(f"sweep={name}"):
        content = OmegaConf.to_container(OmegaConf.load(files[name]))
        if not isinstance(content, dict):
            raise ValueError("a list is not allowed; it should be keys")
        question = Question(**{str(key): value for key, value in content.items()})
    _check(f"sweep={name}", question)
    return question


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """What is wrong with a question as a ConfigError that names the key."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][0] == "seeds" and len(first["loc"]) > 1:  # typed as seed=0,1,2
            line = f"seed={first['input']} is not allowed; {first['msg'].lower()}"
            raise ConfigError(line) from None
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {key}: {_plainly(first, key)}") from None
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}") from None


def _plainly(error: Any, key: str) -> str:
    if error["type"] == "unexpected_keyword_argument":
        return unknown("key", key, Question.__dataclass_fields__)
    if error["type"] in ("missing", "missing_argument"):
        return "is missing"
    return f"{error['input']!r} is not allowed; {error['msg'].lower()}"


def _check(where: str, question: Question) -> None:
    """ConfigError where the parts of a question contradict each other."""
    keys = [*question.axes, *question.fixed, *question.tuned_keys]
    for key in ["seed", *(key for key in keys if key.split(".")[0] in (*_COMMANDS, "sweep"))]:
        if key in keys:
            home = "under seeds" if key == "seed" else "on the command line"
            raise ConfigError(f"{where}: {key} stands {home}, not in vary, together, fixed or tune")
    for key in _ONE_VALUE:
        if key in (*question.axes, *question.tuned_keys):
            raise ConfigError(f"{where}: {key} has one value for all runs of a sweep, under fixed")
    for key in question.tuned_keys:
        if key in question.axes:
            raise ConfigError(f"{where}: {key} is both varied and tuned")
    if question.tune and not question.tune_seeds:
        raise ConfigError(f"{where}: tune.seed is missing: seeds that only the tuning sees")
    both = sorted(set(question.tune_seeds) & set(question.seeds))
    if both:
        raise ConfigError(
            f"{where}: seed {both[0]} both tunes and reports; a rate chosen on a seed flatters it"
        )
    for key in question.baseline:
        if key not in question.axes:
            raise ConfigError(f"{where}: baseline.{key}: {unknown('axis', key, question.axes)}")
    if not any(question.baseline.items() <= one.items() for one in question.variants):
        raise ConfigError(f"{where}: no variant has the baseline's values, {question.baseline}")


def _replaced(question: Question, typed: Mapping[str, list[Any]]) -> tuple[Question, list[str]]:
    """The file's question with what was typed in its place: a typed axis, grid, seeds or setting is
    the one that counts, and several values of another key are a further axis."""
    remarks = []
    vary, tune, fixed = dict(question.vary), dict(question.tune), dict(question.fixed)
    baseline, seeds, together = dict(question.baseline), question.seeds, question.together
    for key, values in typed.items():
        values = _unlike(values)
        if key == "seed":
            seeds = values
        elif key in tune and len(values) > 1:
            tune[key] = values
        elif key in vary or len(values) > 1:
            vary[key] = values
            fixed.pop(key, None)
            together = [one for one in together if one.get(key, values[0]) in values]
            if key in baseline and baseline[key] not in values:
                baseline[key] = values[0]
                remarks.append(f"{key}={values[0]} is the baseline, since {key} was typed")
        elif any(key in one for one in together):
            raise ConfigError(f"{key}={values[0]}: this sweep's variants set {key} themselves")
        else:
            fixed[key] = values[0]
            tune.pop(key, None)
    if list(tune) == ["seed"]:  # its rates were typed: there is nothing left to tune
        tune = {}
    with _one_line("sweep"):
        found = replace(
            question, vary=vary, tune=tune, fixed=fixed, baseline=baseline, seeds=seeds,
            together=together,
        )  # fmt: skip
    return found, remarks


def _product(grids: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    grids = list(grids)
    if math.prod(len(values) for values in grids) > MOST_RUNS:
        raise ConfigError(f"more than {MOST_RUNS} variants; split the study")
    return list(itertools.product(*grids))


def _unlike(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _distinct(values: list[Values]) -> list[Values]:
    return _unlike(values)
