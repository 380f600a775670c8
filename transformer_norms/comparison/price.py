"""The price of a variant: the share of its baseline's tokens that it saves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """The price of a variant against its baseline, at a horizon in tokens.

    `saved`: the share of tokens that the variant saves; below zero it needs more. `low` and `high`:
    its 95 % interval. None: no bound. `reached`: the tokens at which the better one of the two has
    the loss that the other one has at the horizon; None below the shortest horizon.
    """

    horizon: float
    saved: float | None = None
    low: float | None = None
    high: float | None = None
    reached: float | None = None
