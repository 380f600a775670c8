"""Every formula of a config worked out in each block that it is for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformer_norms.config.validation import shown
from transformer_norms.errors import ConfigError
from transformer_norms.formula import formula_values
from transformer_norms.model.coefficient import Shapes, coefficient
from transformer_norms.model.initialization import ROLES, InitRule
from transformer_norms.model.placement import Placement
from transformer_norms.model.position import rotary_bases
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import HEAD_SITES, REST_OF_B, SubLayerPlan


def check_formulas(config: ModelConfig, placement: Placement, init: InitRule) -> None:
    """Every coefficient, and every weight's deviation, has a value in each block that it is for."""
    depth, architecture = config.model.depth, config.architecture
    values = formula_values(config.model)
    blocks = [{**values, "i": i, "l": i + 1} for i in range(depth)]
    for key in ("embed_scale", "attention_scale", "logit_scale"):
        if getattr(architecture, key) != "none" or key == "attention_scale":
            learned = HEAD if key == "attention_scale" else STREAM
            _check_coefficient(f"architecture.{key}", getattr(architecture, key), learned, values)
    with _formula("architecture.rope_base", architecture.rope_base):
        rotary_bases(architecture.rope_base, depth)
    for here in blocks:
        with _formula("placement.where", "blocks"):
            plans = placement.plans(int(here["i"]), depth)
        for name, plan in {**plans, "block": placement.block_plan}.items():
            for key, spec, learned in _coefficients(plan):
                _check_coefficient(f"placement.{name}.{key}", spec, learned, here)
    outside = {"embedding": True, "head": not architecture.tied}
    outside["position"] = config.position.type == "learned"
    for role in ROLES:
        key = role if role in init.std else "default"
        for here in blocks if role not in outside else [values] * outside[role]:
            with _formula(f"init.std.{key}", init.std[key].text):
                if init.std[key]({**here, "fan_in": here["d"], "fan_out": here["d"]}) < 0:
                    raise ValueError("a standard deviation is at least 0")


STREAM: Shapes = dict.fromkeys(("scalar", "vector"), (1,))  # what may be learned on the stream
HEAD: Shapes = dict.fromkeys(("scalar", "head", "vector"), (1,))  # and on heads


def _coefficients(plan: SubLayerPlan) -> Iterator[tuple[str, Any, Shapes]]:
    for key, spec in plan.coefficients.items():
        if (key, spec) != ("a", REST_OF_B):
            yield key, spec, HEAD if key == "head_scale" else STREAM
    for key, spec in plan.adds.items():
        yield key, spec, STREAM
    for key, site in plan.sites.items():
        yield f"{key}.scale", site.scale, HEAD if key in (*HEAD_SITES, "head_norm") else STREAM


def _check_coefficient(key: str, spec: Any, learned: Shapes, values: Mapping[str, float]) -> None:
    with _formula(key, spec):
        if isinstance(spec, bool) or not isinstance(spec, (str, int, float, Mapping)):
            raise ValueError("a number, a formula such as sqrt(d), or learn and init are wanted")
        coefficient(spec, learned, values)


@contextmanager
def _formula(key: str, text: Any) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{key}: {shown(text)} is not allowed; {_cut(str(error))}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{key}: {shown(text)} is nested too deeply") from None


def _cut(line: str) -> str:
    return line if len(line) <= 300 else line[:297] + "..."
