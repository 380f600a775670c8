"""The prices of a study's variants, from the losses of each kind of variant over its horizons."""

from collections.abc import Mapping

from transformer_norms.comparison.price import LossCurve, Price, price
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.comparison.verdict import Comparison, Rules, Side
from transformer_norms.report.study import Study, Variant


def horizon_of(variant: Variant) -> int | None:
    """The tokens of the finished runs; None without any."""
    return next((run.summary.tokens for run in variant.ended if run.finished), None)


def loss_curves(study: Study, sides: Mapping[str, Side]) -> dict[str, LossCurve]:
    """The curve of each variant, by its name: of all variants that differ in nothing but their
    horizon."""
    curves: dict[str, LossCurve] = {}
    for kind in grouped(study.variants, lambda v: v.kind):
        curve = LossCurve({at: sides[v.name] for v in kind if (at := horizon_of(v))})
        curves |= {variant.name: curve for variant in kind}
    return curves


def prices_of(
    study: Study,
    sides: Mapping[str, Side],
    comparisons: Mapping[str, Comparison],
    rules: Rules,
    together: int,
) -> dict[str, Price]:
    """The price of each comparison of two variants, by its name: at their horizon, and as one of so
    many that are judged `together`, unless it is only described."""
    curves = loss_curves(study, sides)
    prices: dict[str, Price] = {}
    for name, c in comparisons.items():
        pair = study.asked[name].pair
        if pair is None or not (c.bounds or c.verdict == "described"):
            continue
        horizon, *others = {horizon_of(study.variant(one)) for one in pair}
        if horizon and not others:
            count = 1 if c.verdict == "described" else together
            found = price(curves[pair[0]], curves[pair[1]], horizon, rules, count)
            prices |= {name: found} if found else {}
    return prices
