"""The verdict on a comparison as a sentence, which claims what its numbers carry, and no more."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.price import Price
from transformer_norms.comparison.statistics import FEWEST, LEVEL
from transformer_norms.comparison.verdict import Comparison, Verdict

# The line of each verdict: on a variant and its baseline, and on any other contrast.
_LINES: dict[Verdict, tuple[str, str]] = {
    "better": (
        "{variant} is better than {baseline} by {size} {unit} ({evidence})",
        "{text} is below zero: {value} {unit} ({evidence})",
    ),
    "worse": (
        "{variant} is worse than {baseline} by {size} {unit} ({evidence})",
        "{text} is above zero: {value} {unit} ({evidence})",
    ),
    "equivalent": (
        "{variant} is equivalent to {baseline} within {margin:g} {unit} "
        "(difference {value}, {evidence})",
        "{text} is zero within {margin:g} {unit} ({value}, {evidence})",
    ),
    "not told apart": (
        "{variant} is not told apart from {baseline}: difference {value} {unit} "
        "({evidence}){found}{tuning}",
        "{text} is not told apart from zero: {value} {unit} ({evidence}){found}{tuning}",
    ),
    "described": (
        "{variant} - {baseline} is {value} {unit} ({interval}, not tested)",
        "{text} is {value} {unit} ({interval}, not tested)",
    ),
    "best rate not found": (
        "{variant} is not compared with {baseline}: the best value{edges} tried is the first or "
        "the last; more values are needed beyond it",
        "{text} has no value: the best value{edges} tried is the first or the last; more values "
        "are needed beyond it",
    ),
    "failed": ("{failures}{fisher}", "{text} has no value: runs failed to train, {failures}"),
    "not decided yet": (
        "{variant} against {baseline} is not decided yet: {so_far}",
        "{text} is not decided yet: {so_far}",
    ),
}


def comparison_sentence(
    contrast: Contrast,
    comparison: Comparison,
    outcomes: Mapping[str, Outcomes],
    edges: Sequence[str] = (),
) -> str:
    """The verdict on a contrast, without a full stop. `outcomes` are those of its variants, and
    `edges` its variants whose best rate was not found."""
    c, pair = comparison, contrast.pair
    value, interval = difference_and_interval(c)
    size, evidence = difference_and_interval(c, -1 if pair and c.verdict == "better" else 1)
    p = "" if c.p is None else f"{_p_text(c.p)}, "
    claim = _LINES[c.verdict][0 if pair else 1].format(
        variant=pair and pair[0],
        baseline=pair and pair[1],
        text=contrast.title,
        unit=contrast.unit,
        margin=c.margin,
        value=value,
        size=size,
        interval=interval,
        evidence=f"{evidence}, {p}{plural(len(c.seeds), 'seed')}",
        found=_found_note(c),
        tuning=_tuning_note(pair or (), c),
        edges=f" that {' and '.join(edges)}" if edges else "",
        failures=_failure_text(outcomes, bool(pair)) if c.verdict == "failed" else "",
        fisher="" if c.fisher is None else f"; Fisher's {_p_text(c.fisher)}",
        so_far=_waiting_text(c, "pair" if pair else "seed"),
    )
    missing = {name: one for name, one in outcomes.items() if one.missing}
    return claim + "".join(
        f"; {name}: {len(one.missing)} of {plural(one.planned, 'run')} missing"
        for name, one in missing.items()
    )


def _found_note(c: Comparison) -> str:
    """Says which difference the seeds could have found."""
    if c.detectable is not None:
        return f"; a true difference of {_two_digit_text(c.detectable)} is found nine times in ten"
    return "; no difference is found yet, however large" if math.isfinite(max(c.slack)) else ""


def _tuning_note(pair: Sequence[str], c: Comparison) -> str:
    """Says how large the tuning errors of a pair may be, where they are most of the bounds, and
    where nothing bounds them."""
    if math.isinf(max(c.slack)):
        unknown = [n for n, slack in zip(pair, c.slack, strict=False) if math.isinf(slack)]
        of = f" of {' and '.join(unknown)}" if unknown else ""
        return f"; nothing bounds the tuning error{of}"
    if not pair or c.bounds is None or 2 * sum(c.slack) < c.bounds[1] - c.bounds[0]:
        return ""
    variant, baseline = map(_two_digit_text, c.slack)
    return f"; tuning error up to {variant} nats of {pair[0]} and {baseline} of {pair[1]}"


def _failure_text(outcomes: Mapping[str, Outcomes], pair: bool) -> str:
    """Names the variants in which runs failed; of a pair both, such a one first."""
    if not pair:
        return " and ".join(
            f"{name} in {o.failure_text}" for name, o in outcomes.items() if o.failed
        )
    (name, failed), (second, rest) = sorted(outcomes.items(), key=lambda item: not item[1].failed)
    share = failed.failure_text.replace(" (", f" run{'s' * (failed.ended != 1)} (", 1)
    return f"{name} failed to train in {share}, {second} in {rest.failure_text}"


def _waiting_text(c: Comparison, what: str) -> str:
    """`3 of 5 pairs ended (0.0012 so far, 95 % interval ...)`"""
    ended = len(c.seeds)
    if not c.planned:
        words = "its variants have no seed in common"
    elif ended < c.planned:
        words = f"{ended} of {plural(c.planned, what)} ended"
    elif ended < FEWEST:
        words = f"it has {plural(ended, what)}, and {FEWEST} are the fewest"
    else:
        words = (
            f"the difference is the same with each of {ended} seeds, which therefore count as one"
        )
    if c.difference is None:
        return words
    if c.interval is None or math.isinf(c.interval[0]):
        return f"{words} ({_two_digit_text(c.difference)} nats so far)"
    difference, interval = difference_and_interval(c)
    return f"{words} ({difference} so far, {interval} at any look)"


def difference_and_interval(c: Comparison, sign: int = 1) -> tuple[str, str]:
    """The difference, times `sign`, and its interval, to two digits of its half-width."""
    if c.difference is None:
        return "", ""
    if c.interval is None or math.isinf(c.interval[0]):
        return f"{sign * c.difference:z.4f}", "no interval yet"
    low, high = sorted(sign * end for end in c.interval)
    decimals = max(0, -math.floor(math.log10((high - low) / 20)))
    interval = f"95 % interval {low:z.{decimals}f} to {high:z.{decimals}f}"
    return f"{sign * c.difference:z.{decimals}f}", interval


def _p_text(p: float) -> str:
    if p < 0.001:
        return "p below 0.001"
    if 0.0495 <= p < LEVEL:
        return "p just below 0.05"  # three decimals would say that it is not
    return f"p {p:.3f}" if p < 0.1 else f"p {p:.2f}"


def _two_digit_text(value: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:z.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def price_clause(price: Price, variant: str, baseline: str, unit: str = "tokens") -> str:
    """`post reaches the loss of pre with 9 % fewer tokens (4 to 14)`: the one that saves them comes
    first."""
    if (price.high or 0 if price.saved is None else price.saved) < 0:
        saved, high, low = (None if x is None else -x for x in (price.saved, price.low, price.high))
        price = replace(price, saved=saved, low=low, high=high)
        variant, baseline = baseline, variant
    claim = f"{variant} reaches the loss of {baseline} with"
    if price.saved is not None:
        return f"{claim} {100 * price.saved:z.0f} % fewer {unit} ({_range_text(price)})"
    if (price.low or 0) <= 0:
        return f"the horizons do not bound the {unit} saved"
    return f"{claim} at least {100 * (price.low or 0):.0f} % fewer {unit}"


def price_text(price: Price) -> str:
    """`9 % (4 to 14)`, `no estimate (94 to no bound)`."""
    saved = "no estimate" if price.saved is None else f"{100 * price.saved:z.0f} %"
    return f"{saved} ({_range_text(price)})"


def _range_text(price: Price) -> str:
    ends = price.low, price.high
    return " to ".join("no bound" if end is None else f"{100 * end:z.0f}" for end in ends)


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"
