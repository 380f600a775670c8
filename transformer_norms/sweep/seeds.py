"""The seeds of a question: a list, or a plan that adds seeds until each comparison is decided."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import ORDER, distinct
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Integer, Seed
from transformer_norms.validation import check

MOST_SEEDS = 1000
_TYPED = re.compile(r"(\d{1,9})\.\.(\d{1,9})")  # 3..20


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class UntilDecided:
    """Every variant gets `first` seeds. Then the variants of undecided comparisons get more, up to
    `most`."""

    first: Annotated[Integer, Field(ge=FEWEST, le=MOST_SEEDS)]
    most: Annotated[Integer, Field(ge=FEWEST, le=MOST_SEEDS)]
    until: Literal["decided"]

    def __str__(self) -> str:
        return f"{self.first} to {self.most} seeds each, until decided"


def check_distinct(seeds: list[int]) -> list[int]:
    """Returns the seeds. Raises ValueError if one is listed twice."""
    if len({*seeds}) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"{twice} is there twice; a seed is one run")
    return seeds


_Several = Annotated[list[Seed], Field(min_length=2), AfterValidator(check_distinct)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Crossed:
    """Every seed of the weights with every seed of the order of the batches."""

    init: _Several
    order: _Several


def cross(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a sweep's file, with the seeds of the order as an axis where `seeds`
    crosses them with those of the weights."""
    seeds = content.get("seeds")
    if not (isinstance(seeds, Mapping) and {"init", "order"} & {*seeds}):
        return dict(content)
    crossed = Crossed(**check("seeds", dict(seeds), Crossed))
    vary, fixed, together = (content.get(key) or {} for key in ("vary", "fixed", "together"))
    if ORDER in [*vary, *fixed, *(key for one in together for key in one)]:
        raise ConfigError(f"{ORDER}: it is set twice, here and by seeds.order")
    listed = [{**one, ORDER: order} for one in together for order in crossed.order]
    grid = {**vary, ORDER: crossed.order} if vary or not together else {}
    return {**content, "seeds": crossed.init, "vary": grid, "together": listed}


def read_seeds(seeds: Any) -> Any:
    """Returns the `seeds` of a file: a list as it is, a group of keys as the plan."""
    if not isinstance(seeds, Mapping):
        return seeds
    plan = UntilDecided(**check("", dict(seeds), UntilDecided))
    if plan.most < plan.first:
        raise ConfigError(f"most: {plan.most} is below first: {plan.first}")
    return plan


Seeds = Annotated[
    Annotated[list[Seed], Field(min_length=1), AfterValidator(check_distinct), Tag("list")]
    | Annotated[UntilDecided, Tag("plan")],
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
            f"seed={','.join(map(_as_word, values))}: {error}; a list of seeds is seed=0,1,2 or "
            '"seed=range(0,3)", and seed=A..B is A seeds, and more up to B until it is decided; '
            f"{FEWEST} <= A <= B <= {MOST_SEEDS}"
        ) from None


def seed_order(count: int, left_out: Sequence[int], planned: Sequence[int] = ()) -> list[int]:
    """Returns the first `count` seeds in the order in which they are added: those that were
    `planned` before, in order of size, and the numbers after them, without those of tuning."""
    after = itertools.count(max(planned, default=-1) + 1)
    more = (seed for seed in after if seed not in left_out)
    return list(itertools.islice(itertools.chain(sorted(planned), more), count))


def _as_word(value: Any) -> str:
    plain = isinstance(value, str) and not value.isdigit()
    return value if plain else as_typed("seed", value).partition("=")[2]


def _seed(seed: list[Seed]) -> None:
    """Has the signature that typed seeds are checked against."""
