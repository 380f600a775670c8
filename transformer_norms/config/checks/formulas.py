"""Works out every formula of a config in each block that it is for, and names the key of one that
has no value there."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.formula import Formula
from transformer_norms.kinds import refusal_text, short_text
from transformer_norms.model.architecture import PER_BLOCK, ROLES
from transformer_norms.model.coefficient import LOW_RANK, Shapes, coefficient
from transformer_norms.model.initialization import read_deviations
from transformer_norms.model.placement import Placement, read_placement
from transformer_norms.model.position import SCALINGS, scaling_factors
from transformer_norms.model.sites import HEAD_SITES, REST_OF_B
from transformer_norms.model.sizes import Sizes, block_values, formula_values
from transformer_norms.training.settings import WEIGHTS, check_factor

Values = Mapping[str, float]
# The shapes that a learned coefficient may have, on the stream and on heads.
STREAM: Shapes = dict.fromkeys(("scalar", "vector"), (1,))
SUMS: Shapes = {**STREAM, LOW_RANK: (1,)}  # of the terms that are added
HEAD: Shapes = dict.fromkeys(("scalar", "head", "vector"), (1,))
# Keys that are not coefficients at this value.
_ABSENT = [(key, "none") for key in ("embed_scale", "logit_scale", "value_residual")]


def check_formulas(config: Config) -> None:
    """Raises ConfigError if a coefficient, a size, or a weight's deviation has no value in a
    block."""
    architecture, sizes = config.architecture, config.model
    depth, values = sizes.depth, formula_values(sizes)
    scaling = config.position.get("scaling", "none")
    blocks = [block_values(sizes, i) for i in range(depth)]
    for key, declared in PER_BLOCK.items():
        spec = getattr(architecture, key)
        with name_key(f"architecture.{key}", spec):
            declared.numbers(spec, blocks)
    owns = config.blocks
    heads = [formula_values(own.sizes) for own in owns]
    ranks = [own.latent_ranks for own in owns]
    for key, shapes, places in (
        ("embed_scale", STREAM, [values]),
        ("logit_scale", STREAM, [values]),
        ("attention_scale", HEAD, heads),
        ("value_scale", HEAD, blocks),
        ("value_residual", HEAD, blocks),
    ):
        spec = getattr(architecture, key)
        for here in places if (key, spec) not in _ABSENT else ():
            with name_key(f"architecture.{key}", spec):
                _check_coefficient(spec, shapes, here)
    with name_key("position.scaling", scaling):
        for factor in {*scaling_factors(scaling, depth)} - {1}:
            SCALINGS.maker(scaling)(torch.ones(1), base=1e4, dims=2, factor=factor)
    placement = read_placement(config.placement)
    for here in blocks:
        _check_block(placement, here, depth)
    _check_deviations(config, values, blocks, ranks)
    several = {rank for own in ranks for rank in own.values()}
    _check_factors(config.optimizer.get("lr_factor"), sizes, several)


def _check_block(placement: Placement, values: Values, depth: int) -> None:
    i = int(values["i"])
    with name_key("placement.where", "blocks"):
        plans = {**placement.plans(i, depth), "block": placement.block_plan(i, depth)}
        equations = placement.equation(i, depth)
    for part, plan in plans.items():
        equation = equations.get(part) or next(iter(equations.values()))
        key = "equation" if equation in placement.default.text.values() else "where"
        for slot, spec in plan.scales.items():
            if spec == REST_OF_B:
                continue
            if isinstance(spec, Mapping):
                faulty = name_key(f"placement.learned.{plan.names[slot]}", spec)
            else:
                faulty = name_key(f"placement.{key}", spec, f" in '{equation}', block i={i},")
            with faulty:
                _check_coefficient(spec, _shapes_at(slot), values)


def _shapes_at(slot: str) -> Shapes:
    if slot.removesuffix(".scale") in (*HEAD_SITES, "head_norm", "head_scale"):
        return HEAD
    return STREAM if slot.endswith((".scale", "hidden_scale")) else SUMS


def _check_coefficient(spec: Any, shapes: Shapes, values: Values) -> None:
    if isinstance(spec, bool) or not isinstance(spec, (str, int, float, Mapping)):
        raise ValueError("a number, a formula such as sqrt(d), or learn and init are wanted")
    coefficient(spec, shapes, values)


def _check_deviations(
    config: Config, values: Values, blocks: Sequence[Values], ranks: Sequence[Mapping[str, int]]
) -> None:
    """Checks the standard deviation of each role's weights, in each block that has such weights."""
    with name_key("init.std", config.init.std):
        deviations = read_deviations(config.init.std)
    outside = {"embedding": True, "head": not config.architecture.tied}
    outside["position"] = config.position.type == "learned"
    for role in ROLES:
        key = role if role in deviations else "default"
        formula = deviations[key]
        for here in blocks if role not in outside else [values] * outside[role]:
            with name_key(f"init.std.{key}", formula.text):
                d = ranks[int(here.get("i", 0))].get(role, here["d"])
                if formula({**here, "d": d, "fan_in": d, "fan_out": here["d"]}) < 0:
                    raise ValueError("a standard deviation is at least 0")


def _check_factors(factors: Any, sizes: Sizes, ranks: Collection[int]) -> None:
    """Checks what the learning rate of each group of parameters is multiplied by. A plugin's own
    optimizer may mean something else by it."""
    values, d, m = formula_values(sizes), sizes.width, sizes.mlp_width
    for group, formula in factors.items() if isinstance(factors, Mapping) else ():
        shapes = ((d, d), (d, m), (m, d)) if group in WEIGHTS else ()
        own: list[dict[str, int]] = [{"fan_in": i, "fan_out": o} for i, o in shapes] or [{}]
        if group == "matrices":
            own += [{"d": rank, "fan_in": rank, "fan_out": d} for rank in ranks]
        for shape in own:
            with name_key(f"optimizer.lr_factor.{group}", formula):
                check_factor(Formula(formula)({**values, **shape}))


def is_of_weights(formula: Formula, group: str, latents: bool) -> bool:
    """Returns whether a factor of the rate is another number for each weight of a group: it names
    fan_in or fan_out, or d where there are latents, whose width is the d of what reads them."""
    own = {"d"} if latents and group == "matrices" else set()
    return not formula.names.isdisjoint({"fan_in", "fan_out"} | own)


@contextmanager
def name_key(key: str, spec: Any, where: str = "") -> Iterator[None]:
    """Turns the error of a formula into a ConfigError that names its key."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{key}: {refusal_text(spec, error, where)}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{key}: {short_text(spec)} is nested too deeply") from None
