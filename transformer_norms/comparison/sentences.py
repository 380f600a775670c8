"""The verdict on a comparison as a sentence, which claims what its numbers carry, and no more."""

import math
from collections.abc import Mapping, Sequence

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import FEWEST, LEVEL
from transformer_norms.comparison.verdict import Comparison

_OF_A_PAIR = {
    "better": "{variant} is better than {baseline} by {size} {unit} ({evidence})",
    "worse": "{variant} is worse than {baseline} by {size} {unit} ({evidence})",
    "equivalent": "{variant} is equivalent to {baseline} within {margin:g} {unit} "
    "(difference {value}, {evidence})",
    "not told apart": "{variant} is not told apart from {baseline}: difference {value} {unit} "
    "({evidence}){found}{tuning}",
    "described": "{variant} - {baseline} is {value} {unit} ({interval}, not tested)",
    "best rate not found": "{variant} is not compared with {baseline}: the best value"
    "{edges} tried is the first or the last; more values are needed beyond it",
}
_OF_A_SUM = {
    "better": "{variant} is below zero: {value} {unit} ({evidence})",
    "worse": "{variant} is above zero: {value} {unit} ({evidence})",
    "equivalent": "{variant} is zero within {margin:g} {unit} ({value}, {evidence})",
    "not told apart": "{variant} is not told apart from zero: {value} {unit} ({evidence}){found}",
    "described": "{variant} is {value} {unit} ({interval}, not tested)",
    "best rate not found": "{variant} has no value: the best value{edges} tried is the first or "
    "the last; more values are needed beyond it",
}


def comparison_sentence(
    variant: str,
    baseline: str,
    comparison: Comparison,
    outcomes: Outcomes,
    baseline_outcomes: Outcomes,
    edges: Sequence[str] = (),
) -> str:
    """The verdict on `variant` against `baseline`, in nats per token and without a full stop.
    `edges` are the variants whose best rate was not found."""
    both = {variant: outcomes, baseline: baseline_outcomes}
    match comparison.verdict:
        case "failed":
            order = list(both) if outcomes.failed else [baseline, variant]
            claim = _failure_claim([(name, both[name]) for name in order], comparison)
        case "not decided yet":
            claim = f"{variant} against {baseline} is {_waiting_text(comparison, 'pair')}"
        case word:
            tuning = _tuning_note(variant, baseline, comparison)
            numbers = _numbers(comparison, "nats", edges, sign=-1 if word == "better" else 1)
            claim = _OF_A_PAIR[word].format(
                variant=variant, baseline=baseline, tuning=tuning, **numbers
            )
    return claim + "".join(_missing_note(name, one) for name, one in both.items())


def sum_sentence(
    text: str,
    unit: str,
    comparison: Comparison,
    outcomes: Mapping[str, Outcomes],
    edges: Sequence[str] = (),
) -> str:
    """The verdict on an interaction or a trend, which is called by its `text`. `outcomes` are those
    of its variants."""
    match comparison.verdict:
        case "failed":
            failed = [f"{name} in {o.failure_text}" for name, o in outcomes.items() if o.failed]
            claim = f"{text} has no value: runs failed to train, {' and '.join(failed)}"
        case "not decided yet":
            claim = f"{text} is {_waiting_text(comparison, 'seed')}"
        case word:
            claim = _OF_A_SUM[word].format(variant=text, **_numbers(comparison, unit, edges))
            if word == "not told apart" and math.isinf(max(comparison.slack)):
                claim += "; nothing bounds the tuning error"
    return claim + "".join(_missing_note(name, one) for name, one in outcomes.items())


def _numbers(c: Comparison, unit: str, edges: Sequence[str], sign: int = 1) -> dict[str, object]:
    """The numbers that the lines above name: `size` and `evidence` times `sign`."""
    value, interval = difference_and_interval(c)
    size, evidence = difference_and_interval(c, sign)
    p = "" if c.p is None else f"{_p_text(c.p)}, "
    found = "; no difference is found yet, however large" if math.isfinite(max(c.slack)) else ""
    if c.detectable is not None:
        found = f"; a true difference of {_two_digit_text(c.detectable)} is found nine times in ten"
    return {
        "unit": unit,
        "margin": c.margin,
        "value": value,
        "size": size,
        "interval": interval,
        "evidence": f"{evidence}, {p}{plural(len(c.seeds), 'seed')}",
        "found": found,
        "edges": f" that {' and '.join(edges)}" if edges else "",
    }


def _tuning_note(variant: str, baseline: str, c: Comparison) -> str:
    """Says how large the tuning errors may be, where they are most of the bounds."""
    unknown = [
        n for n, slack in zip((variant, baseline), c.slack, strict=True) if math.isinf(slack)
    ]
    if unknown:
        return f"; nothing bounds the tuning error of {' and '.join(unknown)}"
    if c.bounds is None or 2 * sum(c.slack) < c.bounds[1] - c.bounds[0]:
        return ""
    slack, baseline_slack = map(_two_digit_text, c.slack)
    return f"; tuning error up to {slack} nats of {variant} and {baseline_slack} of {baseline}"


def _failure_claim(sides: Sequence[tuple[str, Outcomes]], c: Comparison) -> str:
    """`sides` are variant and baseline, one in which a run failed first."""
    (name, outcomes), (second, rest) = sides
    share = outcomes.failure_text.replace(" (", f" run{'s' * (outcomes.ended != 1)} (", 1)
    claim = f"{name} failed to train in {share}, {second} in {rest.failure_text}"
    return claim if c.fisher is None else f"{claim}; Fisher's {_p_text(c.fisher)}"


def _waiting_text(c: Comparison, what: str) -> str:
    """`not decided yet: 3 of 5 pairs have ended (difference so far 0.0012 nats, ...)`"""
    words = f"not decided yet: {_ended_text(c, what)}"
    if c.difference is None:
        return words
    if c.interval is None or math.isinf(c.interval[0]):
        return f"{words} ({_two_digit_text(c.difference)} nats so far)"
    difference, interval = difference_and_interval(c)
    return f"{words} ({difference} so far, {interval} at any look)"


def _ended_text(c: Comparison, what: str) -> str:
    ended = len(c.seeds)
    if not c.planned:
        return "its variants have no seed in common"
    if ended < c.planned:
        one = 1 in (ended, c.planned)
        return f"{ended} of {plural(c.planned, what)} {'has' if one else 'have'} ended"
    if ended < FEWEST:
        return f"it has {plural(ended, what)}, and {FEWEST} are the fewest"
    return f"the difference is the same with each of {ended} seeds, which therefore count as one"


def _missing_note(name: str, outcomes: Outcomes) -> str:
    missing = len(outcomes.missing)
    if not missing:
        return ""
    verb = "is" if missing == 1 else "are"
    return f"; {name}: {missing} of {plural(outcomes.planned, 'run')} {verb} missing"


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


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"
