"""A comparison as one plain sentence, which claims what its numbers carry and no more."""

import math

from transformer_norms.report.paired_tests import LEVEL
from transformer_norms.report.statistics import Comparison, Outcomes, Share


def in_words(
    variant: str,
    baseline: str,
    comparison: Comparison,
    outcomes: Outcomes,
    baseline_outcomes: Outcomes,
) -> str:
    """The verdict on `variant` against `baseline`, in nats per token and without a full stop."""
    match comparison.verdict:
        case "better" | "worse":
            said = _apart(variant, baseline, comparison)
        case "equivalent":
            said = _equivalent(variant, baseline, comparison)
        case "not distinguishable":
            said = _not_distinguishable(variant, baseline, comparison)
        case "identical":
            seeds = _count(len(comparison.seeds), "seed")
            said = f"{variant} has exactly the losses of {baseline} with {seeds}"
        case "diverged":
            said = _diverged(variant, baseline, outcomes.divergence, baseline_outcomes.divergence)
        case "too few seeds":
            said = _too_few(variant, baseline, comparison)
    return said + _missing(variant, outcomes) + _missing(baseline, baseline_outcomes)


def share_in_words(share: Share) -> str:
    """`2 of 3 (9 to 99 %)`, `0 of 3 (at most 63 %)`, `0 of 0`."""
    counted = f"{share.count} of {share.total}"
    if share.total == 0:
        return counted
    low = f"{100 * share.low:.0f} to" if share.count else "at most"
    return f"{counted} ({low} {100 * share.high:.0f} %)"


def _apart(variant: str, baseline: str, c: Comparison) -> str:
    sign = -1 if c.verdict == "better" else 1
    difference, interval = measured(c, sign)
    return (
        f"{variant} is {c.verdict} than {baseline} by {difference} nats "
        f"({interval}, {_evidence(c)})"
    )


def _equivalent(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_equivalent is not None
    difference, interval = measured(c)
    return (
        f"{variant} is equivalent to {baseline} within {c.effect:g} nats "
        f"(difference {difference}, {interval}, {_p(c.p_equivalent)} after Holm, "
        f"{_count(len(c.seeds), 'seed')})"
    )


def _not_distinguishable(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_holm is not None
    assert c.detectable is not None
    difference, interval = measured(c)
    if c.p_holm < LEVEL:
        return (
            f"{variant} differs from {baseline} by {difference} nats "
            f"({interval}, {_evidence(c)}), less than the {c.effect:g} worth naming"
        )
    return (
        f"{variant} is not distinguishable from {baseline} with {_count(len(c.seeds), 'seed')} "
        f"(they would find a true difference of {_two_digits(c.detectable)} nine times in ten): "
        f"difference {difference} nats, {interval}, {_p(c.p_holm)} after Holm"
    )


def _diverged(variant: str, baseline: str, ours: Share, theirs: Share) -> str:
    first, second = (variant, ours), (baseline, theirs)
    if ours.count == 0:
        first, second = second, first
    return (
        f"{first[0]} diverged in {share_in_words(first[1])}, "
        f"{second[0]} in {share_in_words(second[1])}"
    )


def _too_few(variant: str, baseline: str, c: Comparison) -> str:
    said = f"{variant} cannot be compared with {baseline}"
    if c.difference is None:
        return f"{said}: they have no seed in common"
    difference = _two_digits(c.difference)
    if len(c.seeds) == 1:
        return f"{said} with 1 seed (difference {difference} nats)"
    return (
        f"{said}: the difference is the same {difference} nats with each of {len(c.seeds)} seeds, "
        "which therefore count as one"
    )


def _missing(name: str, outcomes: Outcomes) -> str:
    missing, planned = len(outcomes.missing), outcomes.planned
    if not missing:
        return ""
    return (
        f"; {name}: {missing} of {_count(planned, 'run')} {'is' if missing == 1 else 'are'} missing"
    )


def measured(c: Comparison, sign: int = 1) -> tuple[str, str]:
    """The difference, times `sign`, and its interval, to two digits of its half-width."""
    assert c.difference is not None
    assert c.low is not None
    assert c.high is not None
    decimals = max(0, -math.floor(math.log10((c.high - c.low) / 20)))
    low, high = sorted((sign * c.low, sign * c.high))
    shown = [f"{value:z.{decimals}f}" for value in (sign * c.difference, low, high)]
    return shown[0], f"95 % interval {shown[1]} to {shown[2]}"


def _evidence(c: Comparison) -> str:
    assert c.p_holm is not None
    exact = "" if c.sign_flip is None else f", sign-flip {_p(c.sign_flip)}"
    return f"{_p(c.p_holm)} after Holm{exact}, {_count(len(c.seeds), 'seed')}"


def _p(p: float) -> str:
    if p < 0.001:
        return "p below 0.001"
    if 0.0495 <= p < LEVEL:
        return "p just below 0.05"  # three decimals would say that it is not
    return f"p {p:.3f}" if p < 0.1 else f"p {p:.2f}"


def _two_digits(value: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    shown = f"{value:z.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if decimals else shown


def _count(number: int, of: str) -> str:
    return f"{number} {of}" if number == 1 else f"{number} {of}s"
