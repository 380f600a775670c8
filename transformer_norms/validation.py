"""Checks values against the annotations of a node of the tree, or of a registered class. An error
is one line that names the key. Nothing here imports torch.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import Parameter
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Auto, Mark, marks_of, short_text
from transformer_norms.names import parameters, suggestion, unknown

Built = TypeVar("Built")
Owner = Callable[..., Any]
_WANTED = {
    "bool_type": "it should be true or false",
    "mapping_type": "it should be a group of keys",
    "dict_type": "it should be a group of keys",
    "tuple_type": "it should be a list",
    "list_type": "it should be a list",
    "string_type": "it should be a word",
    "float_type": "it should be a number",
    "int_type": "it should be an integer",
}


def check(
    node: str,
    values: Mapping[str, Any],
    *owners: Owner,
    supplied: Iterable[str] = (),
    auto: bool = False,
    spelled: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Returns `values` as the owners' signatures take them: 1e6 is 1000000 where an integer is
    wanted. Raises ConfigError, which names the key. `supplied` are the arguments that the builder
    adds and no config holds. With `auto`, a key marked AUTO may be auto. A number where a word is
    wanted counts as it is `spelled`."""
    schema = _schema(owners, frozenset(supplied), auto)
    values = dict(values)
    while True:
        try:
            checked = schema.model_validate(values)
        except ValidationError as error:
            errors = error.errors()
            name = str(errors[0]["loc"][0])
            types = {e["type"] for e in errors if e["loc"][0] == name}
            word = spelled.get(_joined(node, name))
            wordy = "string_type" in types and "value_error" not in types
            if not wordy or word is None or values[name] == word:
                raise ConfigError(_line(node, values, errors, schema.model_fields)) from None
            values[name] = word
        else:
            given = checked.model_fields_set
            return {name: getattr(checked, name) for name in schema.model_fields if name in given}


def build(owner: Callable[..., Built], node: str, values: Mapping[str, Any]) -> Built:
    """Returns a node of the tree. Raises ConfigError where a value is wrong, or where values that
    are right alone do not fit together."""
    checked = check(node, values, owner)
    try:
        return owner(**checked)
    except ValidationError as error:
        raise ConfigError(_wanted(error.errors()[0])) from None


@cache
def _schema(owners: tuple[Owner, ...], supplied: frozenset[str], auto: bool) -> type[BaseModel]:
    keys: dict[str, Any] = {}
    for name, parameter in ((n, p) for owner in owners for n, p in parameters(owner).items()):
        kind = Any if parameter.annotation is Parameter.empty else parameter.annotation
        if auto and Mark.AUTO in marks_of(kind):
            kind = Auto | kind
        if name not in supplied:
            keys[name] = (kind, ... if parameter.default is Parameter.empty else parameter.default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    return create_model("Checked", __config__=config, **keys)


def _line(node: str, values: Mapping[str, Any], errors: list[Any], known: Mapping[str, Any]) -> str:
    """Returns the line of the first error, or of an unknown key, which may be one that is missing
    with a slip. Where a value may be of several kinds, it says what each of them wants."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    name = str(first["loc"][0])
    key = _key(node, values, first)
    if first["type"] == "extra_forbidden":
        return f"{key}: {unknown('key', name, known)}"
    if first["type"] == "missing":
        required = ", ".join(name for name, field in known.items() if field.is_required())
        return f"{key} is missing; wanted are {required}"
    errors = [error for error in errors if _key(node, values, error) == key]
    near = ""
    wanted = [_wanted(error) for error in errors if error["type"] != "literal_error"]
    if listed := [error for error in errors if error["type"] == "literal_error"]:
        allowed = re.findall(r"'(.*?)'", " ".join(error["ctx"]["expected"] for error in listed))
        wanted.insert(0, f"allowed are {', '.join(allowed)}")
        near = suggestion(listed[0]["input"], allowed, key)
    what = f"{short_text(first['input'])} is not allowed"
    return f"{key}: {near}{what}; {', or '.join(dict.fromkeys(wanted))}"


def _key(node: str, values: Any, error: Any) -> str:
    """Returns the key of an error as it was typed, without pydantic's own names for the members of
    unions and the positions in lists."""
    parts = []
    for part in error["loc"]:
        if isinstance(values, Mapping) and (part in values or error["type"] == "missing"):
            parts.append(str(part))
            values = values.get(part)
    return _joined(node, *parts)


def _joined(*parts: object) -> str:
    return ".".join(str(part) for part in parts if part != "")


def _wanted(error: Any) -> str:
    if error["type"] in ("too_short", "too_long"):
        least, most = (error["ctx"].get(f"{end}_length") for end in ("min", "max"))
        limit, number = ("at least", least) if least else ("at most", most)
        return f"it should have {limit} {number} item{'s' * (number != 1)}"
    reason: str = _WANTED.get(error["type"], error["msg"])
    return reason.removeprefix("Value error, ").replace("Input should be", "it should be")
