"""The nodes of a config: read-only values that are read as attributes, whatever room declares them.

A node whose keys are known is a dataclass, `@node class Sizes: width: Size`. A node whose keys a
registered class decides is a `Values`. A `Mark` in a field's annotation says what its type cannot.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

Class = TypeVar("Class", bound=type)


class Mark(Enum):
    """AUTO: what is chosen may be `auto`, and stands for what the config resolves it to.
    ASIDE: the field changes no result beyond its last digits, and is no part of the identity.
    COMMAND: the field is about one command, and is not taken over from a saved run.
    DERIVED: the field follows from what is chosen, and cannot be chosen itself.
    EACH: the field holds several nodes by name, of the class that its annotation names."""

    AUTO = "auto"
    ASIDE = "aside"
    COMMAND = "command"
    DERIVED = "derived"
    EACH = "each"


def marks_of(kind: Any) -> tuple[Any, ...]:
    """Returns the marks of an annotation."""
    return tuple(getattr(kind, "__metadata__", ()))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def node(declared: Class) -> Class:
    """Makes a class a frozen node whose constructor checks each field's type and range."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return cast(Class, dataclass(frozen=True, kw_only=True, config=config)(declared))


class Values(Mapping[str, Any]):
    """Read-only keys and values, also as attributes: `config.norm.eps`, `Placement(**values)`."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", {str(key): freeze(v) for key, v in values.items()})

    def __getattr__(self, key: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[key]
        except KeyError:
            raise AttributeError(f"there is no key '{key}' beside {', '.join(self)}") from None

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __setattr__(self, key: str, value: object) -> NoReturn:
        raise AttributeError(f"{key}: a composed config is read-only")

    def __reduce__(self) -> tuple[Any, ...]:
        return Values, (self._values,)

    def __deepcopy__(self, memo: object) -> "Values":
        return self


def freeze(value: Any) -> Any:
    """Mappings as `Values` and lists as tuples, at every depth."""
    if isinstance(value, Mapping) and not isinstance(value, Values):
        return Values(value)
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value


def plain(value: Any) -> Any:
    """Nodes as dictionaries and tuples as lists, at every depth: what YAML and JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def value_at(tree: Any, key: str) -> Any:
    """The value of a dotted key; KeyError where there is none."""
    for part in key.split("."):
        tree = tree[part] if isinstance(tree, Mapping) else getattr(tree, part)
    return tree
