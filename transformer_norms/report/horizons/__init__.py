"""Variants that differ only in their horizon: prices, and comparisons at an equal budget."""

# --at, which is also the field of a summary -> its name in a sentence
BUDGETS = {"tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}


def at_text(at: str) -> str:
    """` at equal FLOPs`, or nothing where steps are equal."""
    return f" at equal {BUDGETS[at]}" if at else ""
