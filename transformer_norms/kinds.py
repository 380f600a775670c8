"""The kinds of values that a config may hold, each with its range: the annotations of constructors.

The config door reads a constructor's signature and checks what was typed against these. Numbers
are bounded on both sides, so that a slip of the keyboard is refused and not trained.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict


def _whole(value: Any) -> Any:
    """1e6 is the integer 1000000; 1.5 is no integer, and neither is a bool."""
    if isinstance(value, bool):
        raise ValueError("a whole number is wanted, not a bool")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a bool")
    return float(value) if isinstance(value, int) else value


def _listed(value: Any) -> Any:
    """A list with one element may be typed without brackets."""
    return value if isinstance(value, (list, tuple)) else [value]


Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Integer = Annotated[int, BeforeValidator(_whole), Strict()]
Number = Annotated[float, BeforeValidator(_number), Strict(), Field(allow_inf_nan=False)]

Count = Annotated[Integer, Field(ge=0, le=10**12)]
Positive = Annotated[Integer, Field(ge=1, le=10**12)]
Seed = Annotated[Integer, Field(ge=0, le=2**63 - 1)]
Share = Annotated[Number, Field(ge=0, le=1)]
OpenShare = Annotated[Number, Field(gt=0, lt=1)]
Momentum = Annotated[Number, Field(ge=0, lt=1)]
Rate = Annotated[Number, Field(gt=0, le=100)]
Epsilon = Annotated[Number, Field(gt=0, le=1)]
Nonnegative = Annotated[Number, Field(ge=0, le=1e6)]
Size = Annotated[Integer, Field(ge=1, le=2**20)]

Auto = Literal["auto"]
Nothing = Literal["none"]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
