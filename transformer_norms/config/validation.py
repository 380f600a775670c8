"""Checks a node of the config against the signature of what it will build: kinds, ranges, names;
and every formula by working it out.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from transformer_norms.errors import ConfigError
from transformer_norms.formula import formula_values
from transformer_norms.model.coefficient import Shapes, coefficient
from transformer_norms.model.initialization import ROLES, InitRule
from transformer_norms.model.placement import Placement
from transformer_norms.model.position import rotary_bases
from transformer_norms.model.sites import HEAD_SITES, REST_OF_B, SubLayerPlan
from transformer_norms.names import nearest, unknown


def check(
    node: str, values: Mapping[str, Any], owner: Callable[..., Any], supplied: Iterable[str] = ()
) -> dict[str, Any]:
    """`values` as `owner` takes them (1e6 where an integer is wanted is 1000000), or a ConfigError
    naming the key. `supplied` are the arguments that the builder adds and no config holds."""
    schema = _schema(owner, frozenset(supplied))
    try:
        checked = schema.model_validate(dict(values))
    except ValidationError as error:
        known = list(schema.model_fields)
        raise ConfigError(_line(node, values, error.errors(), known)) from None
    given = checked.model_fields_set
    return {name: getattr(checked, name) for name in schema.model_fields if name in given}


@cache
def _schema(owner: Callable[..., Any], supplied: frozenset[str]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if name in supplied or parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (kind, default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{owner.__name__}Values", __config__=config, **fields)


def _line(node: str, values: Mapping[str, Any], errors: list[Any], known: list[str]) -> str:
    """The first error; where a value may be of several kinds, what each of them wants."""
    first, name = errors[0], str(errors[0]["loc"][0])
    key = _key(node, values, first)
    if first["type"] == "extra_forbidden":
        return f"{key}: {unknown('key', name, known)}"
    if first["type"] == "missing":
        return f"{key} is missing; wanted are {', '.join(known)}"
    wanted = [_wanted(error) for error in errors if _key(node, values, error) == key]
    return f"{key}: {_shown(first['input'])} is not allowed; {', or '.join(dict.fromkeys(wanted))}"


def _key(node: str, values: Any, error: Any) -> str:
    """As it was typed: members of unions and positions in lists are pydantic's own names."""
    parts = [node] if node else []
    for part in error["loc"]:
        if isinstance(values, Mapping) and (part in values or error["type"] == "missing"):
            parts.append(str(part))
            values = values.get(part)
    return ".".join(parts)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wanted(error: Any) -> str:
    if error["type"] == "literal_error":
        allowed = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"allowed are {', '.join(allowed)}" + _hint(error["input"], allowed)
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")


def _hint(value: Any, allowed: list[str]) -> str:
    near = nearest(str(value), allowed)
    return f" (did you mean {near[0]}?)" if near else ""


def check_formulas(config: Mapping[str, Any], placement: Placement, init: InitRule) -> None:
    """Every coefficient, and every weight's deviation, has a value in each block that it is for."""
    depth, architecture = config["model"]["depth"], config["architecture"]
    values = formula_values(config["model"])
    blocks = [{**values, "i": i, "l": i + 1} for i in range(depth)]
    for key in ("embed_scale", "attention_scale", "logit_scale"):
        if architecture[key] != "none" or key == "attention_scale":
            learned = HEAD if key == "attention_scale" else STREAM
            _check_coefficient(f"architecture.{key}", architecture[key], learned, values)
    with _formula("architecture.rope_base", architecture["rope_base"]):
        rotary_bases(architecture["rope_base"], depth)
    for here in blocks:
        with _formula("placement.where", "blocks"):
            plans = placement.plans(int(here["i"]), depth)
        for name, plan in {**plans, "block": placement.whole}.items():
            for key, spec, learned in _coefficients(plan):
                _check_coefficient(f"placement.{name}.{key}", spec, learned, here)
    outside = {"embedding": True, "head": not architecture["tied"]}
    outside["position"] = config["position"]["type"] == "learned"
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
        raise ConfigError(f"{key}: {_shown(text)} is not allowed; {_cut(str(error))}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{key}: {_shown(text)} is nested too deeply") from None


def _cut(line: str) -> str:
    return line if len(line) <= 300 else line[:297] + "..."
