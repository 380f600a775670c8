"""The verdict on a comparison as a sentence, which claims what its numbers carry, and no more."""

import math
from collections.abc import Mapping, Sequence

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import FEWEST, LEVEL
from transformer_norms.comparison.verdict import Comparison


def comparison_sentence(
    variant: str,
    baseline: str,
    comparison: Comparison,
    outcomes: Outcomes,
    baseline_outcomes: Outcomes,
) -> str:
    """The verdict on `variant` against `baseline`, in nats per token and without a full stop. It
    claims what its numbers carry, and no more."""
    match comparison.verdict:
        case "better" | "worse" | "below the effect":
            claim = _difference_claim(variant, baseline, comparison)
        case "equivalent":
            claim = _equivalence_claim(variant, baseline, "difference ", "nats", comparison)
        case "not distinguishable":
            claim = _undecided_claim(variant, baseline, "difference ", "nats", comparison)
            claim += _tuning_note(variant, baseline, comparison)
        case "identical":
            seeds = plural(len(comparison.seeds), "seed")
            claim = f"{variant} has exactly the losses of {baseline} with {seeds}"
        case "failed":
            sides = [(variant, outcomes), (baseline, baseline_outcomes)]
            claim = _failure_claim(sides if outcomes.failed else sides[::-1], comparison)
        case "not decided yet":
            claim = f"{variant} against {baseline} is {_waiting_text(comparison, 'pair')}"
        case "too few seeds":
            claim = _too_few_claim(variant, baseline, comparison)
    return claim + _missing_note(variant, outcomes) + _missing_note(baseline, baseline_outcomes)


def _difference_claim(variant: str, baseline: str, c: Comparison) -> str:
    difference, interval = difference_and_interval(c, sign=-1 if c.verdict == "better" else 1)
    numbers = f"by {difference} nats ({interval}, {_evidence(c)})"
    if c.verdict == "below the effect":
        return (
            f"{variant} differs from {baseline} {numbers}, less than the {c.effect:g} worth naming"
        )
    return f"{variant} is {c.verdict} than {baseline} {numbers}"


def _equivalence_claim(name: str, second: str, what: str, unit: str, c: Comparison) -> str:
    """The claim on two variants, or on a sum and zero. `what` is empty for a sum."""
    assert c.p_equivalent is not None
    value, interval = difference_and_interval(c)
    return (
        f"{name} is equivalent to {second} within {c.effect:g} {unit} ({what}{value}, {interval}, "
        f"{_p_text(c.p_equivalent)} after Holm, {plural(len(c.seeds), 'seed')})"
    )


def _undecided_claim(name: str, second: str, what: str, unit: str, c: Comparison) -> str:
    assert c.p_holm is not None
    value, interval = difference_and_interval(c)
    power = ""
    if c.detectable is not None:
        size = f"{what and 'difference of '}{_two_digit_text(c.detectable)}"
        power = f" (90 % power to detect a true {size})"
    return (
        f"{name} is not distinguishable from {second} with {plural(len(c.seeds), 'seed')}{power}: "
        f"{what}{value} {unit}, {interval}, {_p_text(c.p_holm)} after Holm"
    )


def _tuning_note(variant: str, baseline: str, c: Comparison) -> str:
    """Says how large the tuning errors may be, where they are most of the interval."""
    unknown = [n for n, gain in zip((variant, baseline), c.gains, strict=True) if math.isinf(gain)]
    if unknown:
        return f"; nothing bounds the tuning error of {' and '.join(unknown)}"
    if c.low is None or c.high is None or 2 * sum(c.gains) < c.high - c.low:
        return ""
    gain, baseline_gain = map(_two_digit_text, c.gains)
    return f"; tuning error up to {gain} nats of {variant} and {baseline_gain} of {baseline}"


def _failure_claim(sides: Sequence[tuple[str, Outcomes]], c: Comparison) -> str:
    """`sides` are variant and baseline, one in which a run failed first."""
    (name, outcomes), (second, rest) = sides
    share = outcomes.failure_text.replace(" (", f" run{'s' * (outcomes.ended != 1)} (", 1)
    claim = f"{name} failed to train in {share}, {second} in {rest.failure_text}"
    return claim if c.fisher is None else f"{claim}; Fisher's {_p_text(c.fisher)} after Holm"


def _waiting_text(c: Comparison, what: str) -> str:
    """`not decided yet: 3 of 5 pairs have ended (difference so far 0.0012 nats, ...)`"""
    verb = "has" if len(c.seeds) == 1 else "have"
    ended = f"not decided yet: {len(c.seeds)} of {plural(c.planned, what)} {verb} ended"
    if c.difference is None:
        return ended
    if c.low is None and c.high is None:
        return f"{ended} ({_two_digit_text(c.difference)} nats so far)"
    difference, interval = difference_and_interval(c)
    return f"{ended} ({difference} so far, {interval} at any look)"


def _too_few_claim(variant: str, baseline: str, c: Comparison) -> str:
    claim = f"{variant} cannot be compared with {baseline}"
    if c.difference is None:
        return f"{claim}: {_no_pair(c, 'they have')}"
    difference = _two_digit_text(c.difference)
    if len(c.seeds) == 1:
        return f"{claim} with 1 seed (difference {difference} nats)"
    if len(c.seeds) < FEWEST:
        by_seed = " and ".join(map(_two_digit_text, c.differences))
        return (
            f"{claim} with {len(c.seeds)} seeds, {FEWEST} are the fewest (mean difference "
            f"{difference} nats, by seed {by_seed})"
        )
    return (
        f"{claim}: the difference is the same {difference} nats with each of {len(c.seeds)} seeds, "
        "which therefore count as one"
    )


def _no_pair(c: Comparison, they_have: str) -> str:
    return "no pair has ended yet" if c.planned else f"{they_have} no seed in common"


def sum_sentence(
    text: str, unit: str, comparison: Comparison, outcomes: Mapping[str, Outcomes]
) -> str:
    """The verdict on an interaction or a trend, which is called by its `text`. `outcomes` are those
    of its variants."""
    c, seeds = comparison, plural(len(comparison.seeds), "seed")
    match c.verdict:
        case "failed":
            failed = [f"{name} in {o.failure_text}" for name, o in outcomes.items() if o.failed]
            claim = f"{text} has no value: runs failed to train, {' and '.join(failed)}"
        case "not decided yet":
            claim = f"{text} is {_waiting_text(c, 'seed')}"
        case "too few seeds":
            claim = _too_few_of_a_sum(text, unit, c)
        case "equivalent to zero" if c.low is None:
            claim = f"{text} is exactly zero with {seeds}"
        case "equivalent to zero":
            claim = _equivalence_claim(text, "zero", "", unit, c)
        case "not distinguishable from zero":
            claim = _undecided_claim(text, "zero", "", unit, c)
        case _:
            value, interval = difference_and_interval(c)
            small = c.verdict == "below the effect"
            verdict = "" if small else f"{c.verdict}: "
            claim = f"{text} is {verdict}{value} {unit} ({interval}, {_evidence(c)})"
            claim += f", less than the {c.effect:g} worth naming" * small
    return claim + "".join(_missing_note(name, one) for name, one in outcomes.items())


def _too_few_of_a_sum(text: str, unit: str, c: Comparison) -> str:
    claim = f"{text} cannot be told from zero"
    if c.difference is None:
        return f"{claim}: {_no_pair(c, 'its variants have')}"
    value = f"{_two_digit_text(c.difference)} {unit}"
    if len(c.seeds) < FEWEST:
        return f"{claim} with {plural(len(c.seeds), 'seed')}, {FEWEST} are the fewest ({value})"
    return f"{claim}: it is the same {value} with each of {len(c.seeds)} seeds"


def _missing_note(name: str, outcomes: Outcomes) -> str:
    missing = len(outcomes.missing)
    if not missing:
        return ""
    verb = "is" if missing == 1 else "are"
    return f"; {name}: {missing} of {plural(outcomes.planned, 'run')} {verb} missing"


def difference_and_interval(c: Comparison, sign: int = 1) -> tuple[str, str]:
    """The difference, times `sign`, and its interval, to two digits of its half-width."""
    assert c.difference is not None
    ends = [None if end is None else sign * end for end in (c.low, c.high)][::sign]
    known = [end for end in ends if end is not None]
    if not known:
        return f"{sign * c.difference:z.4f}", "no interval yet"
    width = known[-1] - known[0] or 2 * abs(known[0] - sign * c.difference)
    decimals = max(0, -math.floor(math.log10(width / 20)))
    low, high = ("no bound" if end is None else f"{end:z.{decimals}f}" for end in ends)
    return f"{sign * c.difference:z.{decimals}f}", f"95 % interval {low} to {high}"


def _evidence(c: Comparison) -> str:
    assert c.p_holm is not None
    exact = "" if c.sign_flip is None else f", sign-flip {_p_text(c.sign_flip)}"
    return f"{_p_text(c.p_holm)} after Holm{exact}, {plural(len(c.seeds), 'seed')}"


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
