"""What a command line asks for: a sweep's question with what was typed, or what was typed alone."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hydra.errors import HydraException

from transformer_norms.config.overrides import as_typed, parse, parse_one
from transformer_norms.errors import ConfigError
from transformer_norms.sweep.question import (
    COMMANDS,
    MOST_RUNS,
    ONE_VALUE,
    Question,
    check,
    distinct,
    one_line,
    read_question,
)

_BESIDE = "typed beside it is KEY=VALUE or KEY=A,B of a run, seed=0,1,2 too (report: --effect)"


@dataclass(frozen=True)
class Asked:
    """A question and its name; `remarks` are to be said before it is asked."""

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
    for key in ONE_VALUE:
        if len(typed.get(key, [])) > 1:
            raise ConfigError(f"{key}: one value for all runs of a sweep; there are {typed[key]}")
    typed = {key: values for key, values in typed.items() if key.split(".")[0] not in COMMANDS}
    if names == ["none"]:
        return _bare(typed)
    plugins = typed.get("plugins", ["none"])[0]
    question, remarks = _replaced(read_question(str(names[0]), plugins), typed)
    check(f"sweep={names[0]}", question)
    return Asked(str(names[0]), question, named=True, remarks=tuple(remarks))


def settings(arguments: Iterable[str]) -> list[str]:
    """What a sweep's file fixes besides what was typed, as one would type it."""
    arguments = list(arguments)
    known = {text.partition("=")[0] for text in arguments}
    fixed = asked(arguments).question.fixed
    return [as_typed(key, value) for key, value in fixed.items() if key not in known]


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
    vary = {key: distinct(values) for key, values in typed.items() if key != "seed"}
    fixed = {key: vary.pop(key)[0] for key in list(vary) if len(vary[key]) == 1}
    with one_line("-m"):
        question = Question(
            question="",
            baseline={key: values[0] for key, values in vary.items()},
            vary=vary,
            seeds=distinct(typed.get("seed", [0])),
            fixed=fixed,
        )
    # Never the study's name: the record of a sweep of that name may lie in it.
    return Asked("main", question, named=False)


def _replaced(question: Question, typed: Mapping[str, list[Any]]) -> tuple[Question, list[str]]:
    """The file's question with what was typed in its place: a typed axis, grid, seeds or setting is
    the one that counts, and several values of another key are a further axis."""
    remarks = []
    vary, tune, fixed = dict(question.vary), dict(question.tune), dict(question.fixed)
    baseline, seeds, together = dict(question.baseline), question.seeds, question.together
    for key, values in typed.items():
        values = distinct(values)
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
    with one_line("sweep"):
        found = replace(
            question, vary=vary, tune=tune, fixed=fixed, baseline=baseline, seeds=seeds,
            together=together,
        )  # fmt: skip
    return found, remarks
