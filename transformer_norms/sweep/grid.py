"""The tuning part of a question: which values of which keys are tried, and on which seeds."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.sweep_record import Values, distinct
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Integer, Seed
from transformer_norms.sweep.seeds import check_distinct

MOST_RUNS = 10_000
MOST_OUTWARD = 6  # steps of a variant beyond the grid, while its best is the first or last value
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]
_SETTINGS = ("seed", "refine")  # the keys of `tune` that are not tuned


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tuning:
    """The `tune` of a question. `grid` has the values of each tuned key, `seed` the seeds of
    tuning. Every variant tries the whole grid, and then, `refine` times, two more points for each
    key with steps."""

    grid: Grid
    seed: Annotated[list[Seed], AfterValidator(check_distinct)]
    refine: Annotated[Integer, Field(ge=0, le=8)] = 1

    @property
    def stepped(self) -> list[str]:
        """The keys whose values are steps: a search can go between them and beyond them."""
        return [key for key, values in self.grid.items() if has_steps(values)]

    @property
    def budget(self) -> int:
        """The number of points of every variant, without those of `most_more`."""
        return math.prod(map(len, self.grid.values())) + self.refine * 2 * len(self.stepped)

    @property
    def most_more(self) -> int:
        """The largest number of further points of a variant: steps outward from an edge, and one
        half way to a value that failed."""
        return (MOST_OUTWARD + 1) * len(self.stepped)

    @property
    def more_text(self) -> str:
        """Says what `most_more` may cost; empty if no key has steps."""
        runs = self.most_more * len(self.seed)
        if not runs:
            return ""
        where = "a best at an edge of the grid, or below a value that failed"
        return f"{where}, adds at most {runs} runs of tuning to a variant"

    @property
    def description(self) -> str:
        """The budget in words: `7 points (a grid of 5, then 2 around the best)`."""
        whole = math.prod(map(len, self.grid.values()))
        around = f", then {self.budget - whole} around the best" if self.budget > whole else ""
        return f"{self.budget} points (a grid of {whole}{around})"


NO_TUNING = Tuning({}, [], refine=0)


def read_tuning(tune: Any) -> Any:
    """Returns the `tune` of a file as the fields of `Tuning`, whose keys are tuned and settings."""
    if tune is None or tune == {} or isinstance(tune, Tuning):
        return tune or NO_TUNING
    if not isinstance(tune, Mapping):
        raise ValueError("it should be a group of keys")
    grid = {
        key: distinct(values) if isinstance(values, list) else values
        for key, values in tune.items()
        if key not in _SETTINGS
    }
    if not grid:
        raise ValueError("it names no key; a list of values is wanted, such as optimizer.lr")
    if tune.get("seed", []) == []:
        raise ValueError("seed is missing: seeds that only the tuning sees")
    return {"grid": grid, **{key: tune[key] for key in _SETTINGS if key in tune}}


def has_steps(values: Sequence[Any]) -> bool:
    """Whether a grid can be continued: it has at least two values, all numbers above zero."""
    numbers = [value for value in values if type(value) in (int, float) and value > 0]
    return len(numbers) == len(values) > 1


def product(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Returns each combination of the values once."""
    if math.prod(len(values) for values in grid.values()) > MOST_RUNS:
        raise ConfigError(f"more than {MOST_RUNS} variants; split the study")
    rows = itertools.product(*grid.values())
    return distinct([dict(zip(grid, row, strict=True)) for row in rows])
