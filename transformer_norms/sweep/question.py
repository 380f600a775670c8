"""A sweep's question: what configs/sweep/NAME.yaml says."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from yaml import YAMLError

from transformer_norms.config.plugins import check as plugin_folder
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Seed
from transformer_norms.names import option_files, unknown
from transformer_norms.run.sweep_record import EFFECT, Values

MOST_RUNS = 10_000
COMMANDS = ("launcher", "parallel")  # how a sweep is run, not what its runs are
ONE_VALUE = ("study", "config", "plugins", "tracking", "tracking.mode", "continue_from")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
Seeds = Annotated[list[Seed], Field(min_length=1)]
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
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
        return distinct([*(grid if self.vary or not self.together else []), *self.together])

    @property
    def points(self) -> list[Values]:
        """The points of the tuning grid; one empty one where nothing is tuned."""
        grid = {key: values for key, values in self.tune.items() if key != "seed"}
        return distinct([dict(zip(grid, row, strict=True)) for row in _product(grid.values())])

    @property
    def tuned_keys(self) -> list[str]:
        return [key for key in self.tune if key != "seed"]

    @property
    def tune_seeds(self) -> list[int]:
        return list(self.tune.get("seed", []))

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys([*self.vary, *(key for one in self.together for key in one)]))


def read_question(name: str, plugins: str = "none") -> Question:
    """configs/sweep/NAME.yaml; ConfigError names the key that is wrong."""
    files = option_files("sweep", plugin_folder(plugins))
    if name not in files:
        raise ConfigError(f"sweep={name}: {unknown('sweep', name, files)}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"sweep={name}: a sweep's name has letters, digits, _ . and - only")
    with one_line(f"sweep={name}"):
        content = OmegaConf.to_container(OmegaConf.load(files[name]))
        if not isinstance(content, dict):
            raise ValueError("a list is not allowed; it should be keys")
        question = Question(**{str(key): value for key, value in content.items()})
    check(f"sweep={name}", question)
    return question


@contextmanager
def one_line(where: str) -> Iterator[None]:
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


def check(where: str, question: Question) -> None:
    """ConfigError where the parts of a question contradict each other."""
    keys = [*question.axes, *question.fixed, *question.tuned_keys]
    for key in ["seed", *(key for key in keys if key.split(".")[0] in (*COMMANDS, "sweep"))]:
        if key in keys:
            home = "under seeds" if key == "seed" else "on the command line"
            raise ConfigError(f"{where}: {key} stands {home}, not in vary, together, fixed or tune")
    for key in ONE_VALUE:
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


def _product(grids: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    grids = list(grids)
    if math.prod(len(values) for values in grids) > MOST_RUNS:
        raise ConfigError(f"more than {MOST_RUNS} variants; split the study")
    return list(itertools.product(*grids))


def distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once, in order; they may be groups of keys, which no set holds."""
    return list(
        {
            json.dumps(value, sort_keys=True, default=str): value for value in reversed(values)
        }.values()
    )[::-1]
