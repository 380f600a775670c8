"""Checks a node of the config against the signature of what it will build: kinds, ranges, names."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from transformer_norms.errors import ConfigError
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
        raise ConfigError(_line(node, error.errors()[0], list(schema.model_fields))) from None
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


def _line(node: str, error: Any, known: list[str]) -> str:
    # Members of unions and positions in lists are pydantic's own names, no part of the key.
    parts = [part for part in error["loc"] if isinstance(part, str)]
    key = ".".join([node, parts[0]] if node and parts else [node or parts[0]]).strip(".")
    if error["type"] == "extra_forbidden":
        return f"{key}: {unknown('key', parts[0], known)}"
    if error["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {_shown(error['input'])} is not allowed; {_wanted(error)}"


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
