"""The time of a step with every norm and with every placement, over that of `norm=layernorm
placement=pre`; all else is the default recipe's. In one process, rounds interleaved: a few variants
at a time are built, warmed, timed by turns with the one baseline, and freed. The baseline is a
variant of itself as well, twice: how far those are from 1 is what a ratio may be wrong by.

    python benchmarks/variants.py [--only NAME,NAME] [--sizes A,B] [--rounds N] [--seconds S]
                                  [--out FILE] [KEY=VALUE...]
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from contenders import Size, ours, trained, trained_alone
from products import recorded
from rounds import Steps, each_size, interleaved, ratios, steps_a_round, timed

from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import parse
from transformer_norms.errors import ConfigError
from transformer_norms.names import distinct_norms, options, unknown
from transformer_norms.training.trainer import Trainer

SIZES = "4-128-64-12-65,6-128-128-16-512,6-384-256-8-65"
NORM, PLACEMENT = "norm=layernorm", "placement=pre"
BASELINE, PRODUCTS = "baseline", "products"
SETTLED = 4.0  # seconds of rounds for the share of the products, at most, about
WARM = 2  # steps of a variant before it is timed
TOGETHER = 3  # variants for each of the baseline's turns; with more, what a ratio is of lies apart
NEEDS = {"norm=batchnorm": ["norm.allow_noncausal=true"]}


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    try:
        typed.variants = chosen(typed.only, typed.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return each_size(typed, measure, table, {})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time of a step with every norm, placement.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="of the baseline and every variant")
    add("--only", metavar="NAME,...", help="these norms and placements, such as rmsnorm,sandwich")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--rounds", type=int, default=15, help="at most this many for each variant and size")
    add("--seconds", type=float, default=2.0, help="of rounds for each variant and size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def every_variant() -> dict[str, list[str]]:
    """What is typed for each, by name."""
    every = {f"norm={name}": [PLACEMENT, f"norm={name}"] for name in options("norm")}
    every |= {f"placement={name}": [NORM, f"placement={name}"] for name in options("placement")}
    return {name: [*typed, *NEEDS.get(name, [])] for name, typed in every.items()}


def chosen(only: str | None, overrides: list[str]) -> dict[str, list[str]]:
    """Those to be measured. Raises ConfigError where one of them cannot be."""
    for pair in parse(overrides):
        if pair.key in ("norm", "placement"):
            raise ConfigError(f"{pair}: is what varies here; --only {pair.word} picks one")
    every = every_variant()
    names = {variant: variant.partition("=")[2] for variant in every}
    known = sorted(set(names.values()))
    wanted = known if only is None else only.split(",")
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--only {only}: {unknown('norm or placement', name, known)}")
    variants = {variant: typed for variant, typed in every.items() if names[variant] in wanted}
    if only is None:  # an eps takes no time
        distinct = {f"norm={name}" for name in distinct_norms()}
        variants = {
            k: v for k, v in variants.items() if k.startswith("placement=") or k in distinct
        }
    for typed in variants.values():
        compose([*typed, *overrides])  # what is wrong is wrong before anything is measured
    return variants


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """Every variant at one size, as the JSON holds it. Times are seconds a step, by round."""
    baseline = ours(size, [NORM, PLACEMENT, *typed.overrides], size.batches())
    step = partial(trained, baseline)
    products = recorded(
        partial(trained_alone, baseline)
    )  # every variant's, but for those with matrices
    # In a round a variant has its own step, and no more than one of the baseline's.
    count = steps_a_round({BASELINE: step}, typed.seconds / typed.rounds / 2)
    limit = interleaved({BASELINE: step, PRODUCTS: products.replay}, count, typed.rounds, SETTLED)
    share = median(ratios(limit, PRODUCTS, BASELINE))
    results: dict[str, Any] = {}
    every = list(typed.variants)
    for i in range(0, len(every), TOGETHER):
        names = every[i : i + TOGETHER]
        variants = {
            name: ours(size, [*typed.variants[name], *typed.overrides], size.batches())
            for name in names
        }
        results |= beside(baseline, variants, count, typed, share)
        for k, name in enumerate(names, i + 1):
            low, middle, high = results[name]["ratio"]
            place = f"{size} {k}/{len(every)}"
            print(f"{place} {name}: {middle:.3f} ({low:.3f} to {high:.3f})", file=sys.stderr)
        del variants
        gc.collect()
    return {
        "size": str(size),
        "steps_a_round": count,
        "products": {"counts": products.counts, "flop": products.flop, "seconds": limit},
        "variants": results,
    }


def beside(
    baseline: Trainer,
    variants: dict[str, Trainer],
    count: int,
    typed: argparse.Namespace,
    share: float,
) -> dict[str, Any]:
    """The variants' times by turns with the baseline's, of whose step the products take `share`;
    and their quartiles of ratios."""
    every = {BASELINE: baseline, **variants}
    steps: Steps = {name: partial(trained, trainer) for name, trainer in every.items()}
    for name in variants:
        timed(steps[name], WARM)
    times = interleaved(steps, count, typed.rounds, len(variants) * typed.seconds)
    results = {}
    for name in variants:
        low, middle, high = quantiles(ratios(times, name, BASELINE), method="inclusive")
        results[name] = {
            "seconds": {BASELINE: times[BASELINE], "variant": times[name]},
            "ratio": [low, middle, high],
            "products_share": share / middle,
        }
    return results


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns, the fastest first."""
    variants = result["variants"]
    step = median(t for one in variants.values() for t in one["seconds"][BASELINE])
    lines = [
        f"\n{result['size']}: a step of {NORM} {PLACEMENT} takes {1e3 * step:.2f} ms",
        f"{'':36}{'over that':>10}{'quartiles':>17}{'products':>10}",
    ]
    for name, one in sorted(variants.items(), key=lambda item: item[1]["ratio"][1]):
        low, middle, high = one["ratio"]
        lines.append(
            f"{name:36}{middle:10.3f}{f'{low:.3f} to {high:.3f}':>17}{one['products_share']:>10.0%}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
