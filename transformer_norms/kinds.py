"""The kinds of values that a config may hold: the annotations of constructors and of nodes.

The config door checks what was typed against the annotations of the class that it is for. Numbers
are bounded on both sides, so that a slip of the keyboard is refused and not trained.

A node is a group of keys. If its keys are known, it is a dataclass, `@node class Sizes`. If a
registered class decides its keys, it is a `Values`. A `Mark` says what an annotation's type cannot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, cast, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass
from typing_extensions import TypeAliasType

Class = TypeVar("Class", bound=type)
LARGEST = 1e100  # of a loss: its square is finite. Beyond it, a number counts as not finite


def is_finite(number: float) -> bool:
    """Whether a loss or a norm is a number that can be reckoned with."""
    return abs(number) <= LARGEST


def _integer(value: Any) -> Any:
    """1e6 is the integer 1000000; 1.5 is not an integer, and neither is a bool."""
    if isinstance(value, bool):
        raise ValueError("a whole number is wanted, not a bool")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a bool")
    return float(value) if isinstance(value, int) else value


def _list(value: Any) -> Any:
    """A list with one element may be typed without brackets."""
    return value if isinstance(value, (list, tuple)) else [value]


# Each has a name, which help() of a class shows for it.
Flag = TypeAliasType("Flag", Annotated[bool, Strict()])
Text = TypeAliasType("Text", Annotated[str, Strict()])
Integer = TypeAliasType("Integer", Annotated[int, BeforeValidator(_integer), Strict()])
Number = TypeAliasType(
    "Number", Annotated[float, BeforeValidator(_number), Strict(), Field(allow_inf_nan=False)]
)

# The numbers of a record: measured ones and counted ones.
Measured = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]

Count = TypeAliasType("Count", Annotated[Integer, Field(ge=0, le=10**12)])
Positive = TypeAliasType("Positive", Annotated[Integer, Field(ge=1, le=10**12)])
Seed = TypeAliasType("Seed", Annotated[Integer, Field(ge=0, le=2**63 - 1)])
Share = TypeAliasType("Share", Annotated[Number, Field(ge=0, le=1)])
OpenShare = TypeAliasType("OpenShare", Annotated[Number, Field(gt=0, lt=1)])
Momentum = TypeAliasType("Momentum", Annotated[Number, Field(ge=0, lt=1)])
Rate = TypeAliasType("Rate", Annotated[Number, Field(gt=0, le=100)])
Epsilon = TypeAliasType("Epsilon", Annotated[Number, Field(gt=0, le=1)])
Nonnegative = TypeAliasType("Nonnegative", Annotated[Number, Field(ge=0, le=1e6)])
Size = TypeAliasType("Size", Annotated[Integer, Field(ge=1, le=2**20)])

Auto = Literal["auto"]
Nothing = Literal["none"]
Texts = TypeAliasType("Texts", Annotated[tuple[Text, ...], BeforeValidator(_list)])
Groups = Annotated[Sequence[Mapping[str, Any]], BeforeValidator(_list)]


class Mark(Enum):
    """AUTO: what is chosen may be `auto`, which the config resolves.
    NOT_IN_IDENTITY: the field changes no result beyond its last digits.
    NOT_SAVED: the field is about one command, and is not taken over from a saved run.
    DERIVED: the field follows from what is chosen, and cannot be chosen itself.
    STEPS: a share above 0 and below 1 means that share of the run's steps.
    BY_NAME: the field holds several nodes by name, of the class that its annotation names."""

    AUTO = "auto"
    NOT_IN_IDENTITY = "not in identity"
    NOT_SAVED = "not saved"
    DERIVED = "derived"
    STEPS = "steps"
    BY_NAME = "by name"


def marks_of(kind: Any) -> tuple[Any, ...]:
    """Returns the marks of an annotation."""
    return tuple(getattr(kind, "__metadata__", ()))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def node(declared: Class) -> Class:
    """Makes a class a frozen node whose constructor checks each field's type and range."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return cast(Class, dataclass(frozen=True, kw_only=True, config=config)(declared))


class Values(Mapping[str, Any]):
    """Read-only keys and values. A key is also an attribute: `config.norm.eps`."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", {str(key): freeze(v) for key, v in values.items()})

    def __getattr__(self, key: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[key]
        except KeyError:
            raise AttributeError(f"there is no key '{key}'; there are {', '.join(self)}") from None

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
    """Returns mappings as `Values` and lists as tuples, at every depth."""
    if isinstance(value, Mapping) and not isinstance(value, Values):
        return Values(value)
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value


def plain(value: Any) -> Any:
    """Returns nodes as dictionaries and tuples as lists, at every depth, for YAML and JSON."""
    if isinstance(value, (str, int, float, NoneType)):  # most are, and the rest asks for longer
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def as_number(value: Any) -> Any:
    """Returns a whole number without its point, as it is typed, also inside lists."""
    if isinstance(value, (list, tuple)):
        return [as_number(one) for one in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return int(value) if whole else value


def short_text(value: Any) -> str:
    """Returns a value as a message quotes it."""
    text = repr(as_number(plain(value)))
    return text if len(text) <= 60 else text[:57] + "..."


def refusal_text(value: Any, error: ValueError, where: str = "") -> str:
    """Returns that a value is not allowed, and why. An error that begins with the value says both
    itself."""
    text, line = short_text(value), str(error)
    line = line if len(line) <= 300 else line[:297] + "..."
    if line.startswith(f"{text} "):
        return f"{text}{where}{line.removeprefix(text)}"
    return f"{text}{where} is not allowed; {line}"


def value_at(tree: Any, key: str) -> Any:
    """Returns the value of a dotted key. Raises KeyError or AttributeError if there is none."""
    for part in key.split("."):
        tree = tree[part] if isinstance(tree, Mapping) else getattr(tree, part)
    return tree
