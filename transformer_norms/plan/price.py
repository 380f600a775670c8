"""A price of a device-hour, in the currency that was typed."""

import re
from dataclasses import dataclass

from transformer_norms.errors import ConfigError

_TYPED = re.compile(r"([^\d.,-]*)(\d+(?:\.\d+)?)([^\d.,]*)")


@dataclass(frozen=True)
class Price:
    """`before` and `after` are what stands around the number: `$2.5`, `2.5 EUR`."""

    before: str
    number: float
    after: str

    def of(self, hours: float) -> str:
        return f"{self.before}{hours * self.number:,.2f}{self.after}"


def read_price(text: str) -> Price:
    """Returns a typed price; ConfigError where there is not one number in it."""
    parts = _TYPED.fullmatch(text.strip())
    if parts is None or len(text) > 40:
        raise ConfigError(
            f"--price {text}: one number is wanted, 0 or above, with a currency or without, as 2.5 "
            "or '2.5 EUR'"
        )
    return Price(parts[1], float(parts[2]), parts[3])
