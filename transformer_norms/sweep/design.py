"""The design of a sweep: grids of values, which of them are tuned, and the seeds, which are a list
or a plan that adds seeds until each comparison is decided."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import ORDER, Values, distinct
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Integer, Seed
from transformer_norms.text_tables import show
from transformer_norms.validation import build, check

MOST_RUNS = 10_000
MOST_SEEDS = 1000
MOST_OUTWARD = 6  # steps of a variant beyond the grid, while its best is the first or last value
_SETTINGS = ("seed", "refine")  # the keys of `tune` that are not tuned
_TYPED = re.compile(r"(\d{1,9})\.\.(\d{1,9})")  # 3..20

Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


def product(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Returns each combination of the values once."""
    if math.prod(len(values) for values in grid.values()) > MOST_RUNS:
        raise ConfigError(f"more than {MOST_RUNS} variants; split the study")
    rows = itertools.product(*grid.values())
    return distinct([dict(zip(grid, row, strict=True)) for row in rows])


def check_distinct(seeds: list[int]) -> list[int]:
    """Returns the seeds. Raises ValueError if one is listed twice."""
    if len({*seeds}) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"{twice} is there twice; a seed is one run")
    return seeds


SeedList = Annotated[list[Seed], AfterValidator(check_distinct)]


# ------------------------------------------------------------------------------------------ tuning


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tuning:
    """The `tune` of a question. `grid` has the values of each tuned key, `seed` the seeds of
    tuning. Every variant tries the whole grid, and then, `refine` times, two more points for each
    key with steps."""

    grid: Grid
    seed: SeedList
    refine: Annotated[Integer, Field(ge=0, le=8)] = 1

    @property
    def stepped(self) -> list[str]:
        """The keys whose values are steps: a search can go between them and beyond them."""
        return [key for key, values in self.grid.items() if has_steps(values)]

    @property
    def points(self) -> list[Values]:
        """The points of the grid; one empty point if nothing is tuned."""
        return product(self.grid)

    @property
    def budget(self) -> int:
        """The number of points of every variant, without those of `most_more`."""
        return len(self.points) + self.refine * 2 * len(self.stepped)

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
        whole = len(self.points)
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


# ------------------------------------------------------------------------------------------- seeds


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class UntilDecided:
    """Every variant gets `first` seeds. Then the variants of undecided comparisons get more, up to
    `most`."""

    first: Annotated[Integer, Field(ge=FEWEST, le=MOST_SEEDS)]
    most: Annotated[Integer, Field(ge=FEWEST, le=MOST_SEEDS)]
    until: Literal["decided"]

    def __str__(self) -> str:
        return f"{self.first} to {self.most} seeds each, until decided"


def read_seeds(seeds: Any) -> Any:
    """Returns the `seeds` of a file: a list as it is, a group of keys as the plan."""
    if not isinstance(seeds, Mapping):
        return seeds
    plan = build(UntilDecided, "", seeds)
    if plan.most < plan.first:
        raise ConfigError(f"most: {plan.most} is below first: {plan.first}")
    return plan


Seeds = Annotated[
    Annotated[SeedList, Field(min_length=1), Tag("list")] | Annotated[UntilDecided, Tag("plan")],
    Discriminator(lambda seeds: "plan" if isinstance(seeds, UntilDecided) else "list"),
    BeforeValidator(read_seeds),
]


def read_typed_seeds(values: Sequence[Any]) -> list[int] | UntilDecided:
    """Returns the seeds of a question that a typed seed=0,1,2 or seed=3..20 names."""
    try:
        if len(values) == 1 and (ends := _TYPED.fullmatch(str(values[0]))):
            first, most = map(int, ends.groups())
            return read_seeds({"first": first, "most": most, "until": "decided"})
        return distinct(check("", {"seed": [*values]}, _seed)["seed"])
    except ConfigError as error:
        raise ConfigError(
            f"seed={','.join(map(show, values))}: {error}; a list of seeds is seed=0,1,2 or "
            '"seed=range(0,3)", and seed=A..B is A seeds, and more up to B until it is decided; '
            f"{FEWEST} <= A <= B <= {MOST_SEEDS}"
        ) from None


def _seed(seed: list[Seed]) -> None:
    """Has the signature that typed seeds are checked against."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Crossed:
    """Every seed of the weights with every seed of the order of the batches."""

    init: Annotated[SeedList, Field(min_length=2)]
    order: Annotated[SeedList, Field(min_length=2)]


def cross(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a sweep's file, with the seeds of the order as an axis where `seeds`
    crosses them with those of the weights."""
    seeds = content.get("seeds")
    if not (isinstance(seeds, Mapping) and {"init", "order"} & {*seeds}):
        return dict(content)
    crossed = build(Crossed, "seeds", seeds)
    vary, fixed, together = (content.get(key) or {} for key in ("vary", "fixed", "together"))
    if ORDER in [*vary, *fixed, *(key for one in together for key in one)]:
        raise ConfigError(f"{ORDER}: it is set twice, here and by seeds.order")
    listed = [{**one, ORDER: order} for one in together for order in crossed.order]
    grid = {**vary, ORDER: crossed.order} if vary or not together else {}
    return {**content, "seeds": crossed.init, "vary": grid, "together": listed}


def seed_order(count: int, left_out: Sequence[int], planned: Sequence[int] = ()) -> list[int]:
    """Returns the first `count` seeds in the order in which they are added: those that were
    `planned` before, in order of size, and the numbers after them, without those of tuning."""
    after = itertools.count(max(planned, default=-1) + 1)
    more = (seed for seed in after if seed not in left_out)
    return list(itertools.islice(itertools.chain(sorted(planned), more), count))
