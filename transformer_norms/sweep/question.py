"""Reads a sweep's question from configs/sweep/NAME.yaml, and from what was typed with it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.registration import terms_of
from transformer_norms.comparison.sweep_record import ORDER, Values, check_names, distinct, names_of
from transformer_norms.comparison.verdict import MARGIN
from transformer_norms.config.chosen_files import option_content
from transformer_norms.config.overrides import (
    BRANCHES,
    HORIZONS,
    as_typed,
    is_several,
    parse,
    read_several,
)
from transformer_norms.config.plugins import check_plugins, sources
from transformer_norms.config.tree import marked, within
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Mark, Number, as_number
from transformer_norms.names import option_files, unknown
from transformer_norms.storage.loaded_code import hash_loaded
from transformer_norms.sweep.design import (
    MOST_RUNS,
    NO_TUNING,
    Grid,
    Seeds,
    Tuning,
    UntilDecided,
    cross,
    product,
    read_tuning,
    read_typed_seeds,
    seed_order,
)
from transformer_norms.validation import build

TUNE = "tune."  # tune.KEY=A,B is typed, and the same as tune: {KEY: [A, B]} in a file
TUNED_ON = [100, 101]  # the seeds of a tuning that is typed without tune.seed
COMMANDS = ("launcher", "parallel")  # how a sweep is run, not what its runs are
_HOMES = {"seed": "under seeds"} | dict.fromkeys(("sweep", *COMMANDS), "on the command line")
_INSTEAD = {"seeds": "did you mean seed=0,1,2? ", "margin": "the report takes --margin NATS; "}
ONE_VALUE = ("study", "config", "plugins", "tracking", "continue_from")  # and so each of their keys
# Keys that change no result, and so are not a part of what is asked. These two do change it.
_NOT_ASKED = {*marked(Mark.NOT_IN_IDENTITY)} - {"plugins", "continue_from"}


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Question:
    """The content of a sweep's file. Stage 1 tunes each variant on separate seeds. Stage 2 runs
    each variant at its best point on `seeds`, a list or a plan. Without `tune` there is one stage.

    `vary` is a grid. `together` lists whole variants in addition to those of the grid. `fixed`
    are settings of every run. `margin` is the bound of a negligible difference, in nats per token.
    `contrasts` are comparisons in addition to those with the baseline, in the words of
    comparison/contrasts.py. `names` has what a report shows in the place of words of labels.
    """

    question: str
    baseline: Values
    vary: Grid = field(default_factory=dict)
    together: list[Values] = field(default_factory=list)
    tune: Annotated[Tuning, BeforeValidator(read_tuning)] = NO_TUNING
    seeds: Seeds = field(default_factory=lambda: [0])
    fixed: Values = field(default_factory=dict)
    margin: Annotated[Number, Field(gt=0)] = MARGIN
    contrasts: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def variants(self) -> list[Values]:
        grid = product(self.vary) if self.vary or not self.together else []
        return distinct([*grid, *self.together])

    @property
    def until_decided(self) -> UntilDecided | None:
        """The plan that adds seeds; None if the seeds are a list."""
        return self.seeds if isinstance(self.seeds, UntilDecided) else None

    @property
    def first_seeds(self) -> list[int]:
        """The seeds of every variant's results."""
        if isinstance(self.seeds, UntilDecided):
            return seed_order(self.seeds.first, self.tune.seed)
        return self.seeds

    @property
    def most_seeds(self) -> int:
        return self.seeds.most if isinstance(self.seeds, UntilDecided) else len(self.seeds)

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys([*self.vary, *(key for one in self.together for key in one)]))

    @property
    def terms(self) -> list[str]:
        """The parts of what is asked, as they are registered."""
        tune = {**self.tune.grid, "seed": self.tune.seed, "refine": self.tune.refine}
        seeds: list[Any] = [self.seeds] if self.until_decided else self.first_seeds
        plugins = sources(check_plugins(self.fixed.get("plugins", "none")))
        return terms_of(
            question=[self.question], baseline=[self.baseline], variant=self.variants,
            tune=[{key: value} for key, value in tune.items() if self.tune.grid], seed=seeds,
            contrast=self.contrasts, margin=[self.margin],
            plugin=[" ".join(file) for file in hash_loaded(plugins).items()],
            fixed=[{k: v} for k, v in self.fixed.items() if not within(k, _NOT_ASKED)],
        )  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The question of one command line. `name` is the sweep's name, or `main` where no sweep was
    named. `only` is the stage that alone is run, tune or smoke, and `part` is K/N where a command
    trains a part of the results."""

    name: str
    question: Question
    named: bool  # typed as sweep=NAME
    remarks: tuple[str, ...] = ()  # lines to print before the first job
    only: str = ""
    part: str = "none"

    @property
    def study(self) -> str:
        return str(self.question.fixed.get("study", self.name))


def read_request(arguments: Iterable[str]) -> Request:
    """Reads KEY=VALUE and KEY=A,B of a command line; ConfigError if they contradict each other."""
    typed: dict[str, list[Any]] = {}
    for text in arguments:
        key, values = _read_values(text)
        if key.split(".")[0] in Question.__dataclass_fields__ and not key.startswith(TUNE):
            raise ConfigError(
                f"{text}: {_INSTEAD.get(key, '')}{key} is written in a sweep's file; what is typed "
                "with it is KEY=VALUE or KEY=A,B of a run"
            )
        if (key.split(".")[0] in ONE_VALUE or key == BRANCHES) and len(values) > 1:
            raise ConfigError(f"{key}: one value for all runs of a sweep; there are {values}")
        if key in typed and typed[key] != values:
            raise ConfigError(f"{key} is typed twice, the second time as {text}")
        typed[key] = values
    names = typed.pop("sweep", ["none"])
    if len(names) > 1:
        raise ConfigError(f"sweep={','.join(map(str, names))}: one sweep at a time")
    typed = {key: values for key, values in typed.items() if key.split(".")[0] not in COMMANDS}
    if names == ["none"]:
        question, _ = _replace_typed(Question("", {}), typed)
        own = (ORDER, *HORIZONS)  # which each have a baseline
        first = {key: values[0] for key, values in question.vary.items() if key not in own}
        question = replace(question, baseline=first)
        if question.tune.grid:
            check_question("-m", question)
        # Never the study's name: the record of a sweep of that name may lie in the study.
        return Request("main", question, named=False)
    name, plugins = str(names[0]), typed.get("plugins", ["none"])[0]
    question, remarks = _replace_typed(read_question(name, plugins), typed)
    wrong = wrong_contrasts(question)
    question = replace(question, contrasts=[c for c in question.contrasts if c not in wrong])
    check_question(f"sweep={name}", question)
    why = "this contrast is left out, as other variants were typed"
    remarks += [f"{why}: {refusal}" for refusal in wrong.values()]
    return Request(name, question, named=True, remarks=tuple(remarks))


def read_question(name: str, plugins: str = "none") -> Question:
    """Reads configs/sweep/NAME.yaml; ConfigError names the key that is wrong."""
    folder = check_plugins(plugins)
    files = option_files("sweep", folder)
    if name not in files:
        raise ConfigError(f"sweep={name}: {unknown('sweep', name, files)}")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}", name):
        raise ConfigError(f"sweep={name}: a sweep's name has letters, digits, _ . and - only")
    keys = option_content("sweep", name, folder)
    try:
        question = build(Question, "", cross(keys))
    except ValueError as error:
        raise ConfigError(f"sweep={name}: {' '.join(str(error).split())}") from None
    check_question(f"sweep={name}", whole := branch(question))
    for refusal in wrong_contrasts(whole).values():
        raise ConfigError(f"sweep={name}: contrasts: {refusal}")
    check_names(f"sweep={name}: names", whole.names, whole.variants)
    return question


def _read_values(text: str) -> tuple[str, list[Any]]:
    """`norm=a,b` -> "norm", ["a", "b"]"""
    key, parts = read_several(text)
    if parts is None:  # glob and interval
        raise ConfigError(f"{text}: a sweep lists its values, KEY=A,B or KEY=range(0,3)")
    if not parts:
        raise ConfigError(f"{text}: names no value")
    if len(parts) > MOST_RUNS:
        raise ConfigError(f"{text}: is more than {MOST_RUNS} runs; split the study")
    own = key.removeprefix(TUNE)
    return key, [
        part if is_several(pair := f"{own}={part}") else parse([pair])[0].value for part in parts
    ]


def _replace_typed(
    question: Question, typed: Mapping[str, list[Any]]
) -> tuple[Question, list[str]]:
    """Replaces the file's axes, grids, seeds and settings by the typed ones. tune.KEY=A,B tunes a
    key, and one value of a tuned key ends its tuning. Several values of a key that the file does
    not vary are a further axis."""
    remarks = []
    vary, fixed, own = dict(question.vary), dict(question.fixed), question.tune
    tune: Values = {"seed": TUNED_ON}
    if own.grid:
        tune = {**own.grid, "seed": own.seed, "refine": own.refine}
    baseline, seeds, together = dict(question.baseline), question.seeds, question.together
    if typed.keys() & {BRANCHES, *HORIZONS}:
        fixed = {key: value for key, value in fixed.items() if key not in HORIZONS}
    if BRANCHES in typed:
        vary = {key: values for key, values in vary.items() if key not in HORIZONS}
    # The file's own sizes would override the typed model.
    own_sizes = [key for key in fixed if key.startswith("model.") and key not in typed]
    if "model" in typed and own_sizes:
        left_out = " ".join(as_typed(key, fixed.pop(key)) for key in own_sizes)
        name = ",".join(map(str, typed["model"]))
        remarks.append(f"model={name} is in the place of this sweep's {left_out}")
    for key, values in typed.items():
        values = distinct(values)
        if key == "seed":
            seeds = read_typed_seeds(values)
        elif key.startswith(TUNE):
            if (name := key.removeprefix(TUNE)) in typed and name != "seed":
                raise ConfigError(f"{key}: {name} is typed, too; type one of the two")
            tune[name] = values[0] if name == "refine" and len(values) == 1 else values
            fixed.pop(name, None)
        elif key in own.grid and len(values) > 1:
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
    tuning = NO_TUNING
    if not tune.keys() <= {"seed", "refine"} or any(key.startswith(TUNE) for key in typed):
        try:
            tuning = build(Tuning, "tune", read_tuning(tune))
        except ValueError as error:
            way = "type tune.KEY=A,B, tune.seed=A,B and tune.refine=N"
            raise ConfigError(f"{error}; {way}") from None
    question = replace(
        question, vary=vary, fixed=fixed, baseline=baseline, seeds=seeds, together=together,
        tune=tuning,
    )  # fmt: skip
    return branch(question), remarks


def branch(question: Question) -> Question:
    """Makes an axis of the horizons in `trainer.branches`, unless the question sets horizons."""
    branches = question.fixed.get(BRANCHES, "none")
    if branches == "none" or {*HORIZONS} & {*question.axes, *question.fixed}:
        return question
    steps, tokens = HORIZONS
    key, values = steps, branches
    if isinstance(branches, Mapping):
        key, values = tokens, branches.get("tokens")
    values = as_number(values)
    if not (isinstance(values, list) and all(type(one) is int for one in values)):
        return question  # it is refused where a run is composed
    vary = {key: values, **question.vary} if question.vary or not question.together else {}
    together = [{key: value, **one} for value in values for one in question.together]
    return replace(question, vary=vary, together=together)


def named_variants(question: Question) -> dict[str, Values]:
    return dict(zip(names_of(question.variants), question.variants, strict=True))


def wrong_contrasts(question: Question) -> dict[str, ConfigError]:
    """Returns why a contrast is not one between variants of the question, by its text."""
    wrong = {}
    for text in question.contrasts:
        try:
            find_contrast(text, named_variants(question))
        except ConfigError as error:
            wrong[text] = error
    return wrong


def check_question(where: str, question: Question) -> None:
    """Raises ConfigError if the parts of a question contradict each other."""
    tuned = question.tune.grid
    for key in (*question.axes, *tuned, *question.fixed):
        word = key.split(".")[0]
        if home := _HOMES.get(word):
            raise ConfigError(f"{where}: {key} is set {home}, not in vary, together, fixed or tune")
        if word in ONE_VALUE and key not in question.fixed:
            raise ConfigError(f"{where}: {key} has one value for all runs of a sweep, under fixed")
    for key in tuned:
        if key in question.axes:
            raise ConfigError(f"{where}: {key} is both varied and tuned")
    orders = [one[ORDER] for one in question.variants if ORDER in one]
    if orders and question.until_decided:
        raise ConfigError(
            f"{where}: where {ORDER} varies, no word is given that seeds could decide"
        )
    if both := sorted({*question.tune.seed} & {*question.first_seeds, *orders}):
        raise ConfigError(
            f"{where}: seed {both[0]} both tunes and reports; a rate chosen on a seed flatters it"
        )
    for key in question.baseline:
        if key not in question.axes:
            raise ConfigError(f"{where}: baseline.{key}: {unknown('axis', key, question.axes)}")
    if not any(question.baseline.items() <= one.items() for one in question.variants):
        raise ConfigError(f"{where}: no variant has the baseline's values, {question.baseline}")
