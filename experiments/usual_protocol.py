"""How wrong are the protocols that most comparisons use? From the packed runs of the tuned studies.

A pair is a variant and its baseline that the whole study tells apart: each at its own best rate,
with all of its seeds, which are FEWEST at least. A protocol sees a part of these runs and gives the
pair another difference.

* One rate, one seed: the trials of one tuning seed, at each rate that both have tried.
* One rate, more seeds: a result of each at its own best rate, plus what the tuning curve of each
  loses between that rate and the common one. The curve is taken to be the same for each seed.
* Own rate: results of some seeds, at the rate that tuning chose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from transformer_norms.analysis.rendering import svg_bytes
from transformer_norms.comparison.verdict import compare
from transformer_norms.report.figures import FONT, GREY, line_style, subplots, use_log_axis
from transformer_norms.report.findings import Findings, asked_comparisons
from transformer_norms.report.study import RATE, Variant
from transformer_norms.text_tables import markdown_table

FAR = 0.03  # nats
SOME = 3  # seeds
FEWEST = 5  # seeds of a pair: SOME to look at, and others to say what is true
TITLES = ("wrong sign", f"off by more than {FAR:g} nats")


Seen = Sequence[tuple[float, float]]  # a difference that a protocol may see, and the true one


@dataclass(frozen=True)
class Side:
    """A variant's `trials` by rate and tuning seed, its `best` rate, and its results there by
    seed."""

    trials: Mapping[float, Mapping[int, float]]
    best: float
    results: Mapping[int, float]

    def rise(self, rate: float) -> float:
        """By how much the tuning curve at this rate is above that at the best one."""
        return fmean(self.trials[rate].values()) - fmean(self.trials[self.best].values())


@dataclass(frozen=True)
class Pair:
    """A variant and its baseline in a study. `truth` is their difference by the whole study."""

    study: str
    name: str
    truth: float
    variant: Side
    baseline: Side

    @property
    def rates(self) -> list[float]:
        """The rates that both have tried."""
        return sorted(self.variant.trials.keys() & self.baseline.trials.keys())

    def at_one_rate(self, rate: float, seeds: int) -> Seen:
        if seeds > 1:
            rise = self.variant.rise(rate) - self.baseline.rise(rate)
            return [(difference + rise, truth) for difference, truth in self.at_own_rates(seeds)]
        one, other = self.variant.trials[rate], self.baseline.trials[rate]
        return [(one[seed] - other[seed], self.truth) for seed in one.keys() & other.keys()]

    def at_own_rates(self, seeds: int) -> Seen:
        """With each choice of so many seeds. The truth is then the difference of all other seeds:
        those that the protocol sees say nothing about its error."""
        return [
            (
                fmean(self.differences[seed] for seed in each),
                fmean(d for seed, d in self.differences.items() if seed not in each),
            )
            for each in combinations(self.differences, seeds)
        ]

    @property
    def differences(self) -> Mapping[int, float]:
        one, other = self.variant.results, self.baseline.results
        return {seed: one[seed] - other[seed] for seed in one.keys() & other.keys()}


def pairs_of(found: Mapping[str, Findings]) -> Iterator[Pair]:
    """The pairs of the studies that tuned the rate alone, which are told apart when contrasts and
    differences of a study are judged together."""
    for study, findings in found.items():
        if [*findings.study.tune] != [RATE]:
            continue
        asked = asked_comparisons(findings.study, findings.outcomes, findings.slack)
        comparisons = compare(asked, findings.rules)
        for variant in findings.compared:
            c, baseline = comparisons[variant.name], findings.study.baseline_of(variant)
            if c.difference is None or len(c.seeds) < FEWEST:
                continue
            if c.verdict in ("better", "worse"):
                sides = _side(findings, variant), _side(findings, baseline)
                yield Pair(study, variant.name, c.difference, *sides)


def _side(findings: Findings, variant: Variant) -> Side:
    assert variant.tuned is not None
    assert variant.tuned.best is not None
    losses = findings.outcomes[variant.name].losses
    return Side(_trials(findings, variant), variant.tuned.best[RATE], losses)


def _trials(findings: Findings, variant: Variant) -> dict[float, dict[int, float]]:
    losses: dict[float, dict[int, float]] = {}
    for trial in variant.trials:
        if trial.run and trial.ended and trial.folder not in findings.study.trial_failures:
            losses.setdefault(trial.tuned[RATE], {})[trial.seed] = trial.run.final_loss("val_loss")
    return losses


@dataclass(frozen=True)
class Wrong:
    """How often a protocol is wrong, each pair counting once: its sign, and by more than FAR."""

    pairs: int
    sign: float
    far: float


def wrong(pairs: Sequence[Seen]) -> Wrong:
    """Of what a protocol may see of each pair."""
    return Wrong(
        len(pairs),
        fmean(fmean((d > 0) != (truth > 0) for d, truth in seen) for seen in pairs),
        fmean(fmean(abs(d - truth) > FAR for d, truth in seen) for seen in pairs),
    )


def at_rate(pairs: Sequence[Pair], rate: float, seeds: int) -> Wrong:
    return wrong([p.at_one_rate(rate, seeds) for p in pairs if rate in p.rates])


def at_baseline_rate(pairs: Sequence[Pair], seeds: int) -> Wrong:
    kept = [p for p in pairs if p.baseline.best in p.rates]
    return wrong([p.at_one_rate(p.baseline.best, seeds) for p in kept])


def at_own(pairs: Sequence[Pair], seeds: int) -> Wrong:
    return wrong([p.at_own_rates(seeds) for p in pairs])


def common_rates(pairs: Sequence[Pair]) -> list[float]:
    """The rates that at least half of the pairs have tried on both sides."""
    rates = sorted({rate for pair in pairs for rate in pair.rates})
    return [rate for rate in rates if 2 * sum(rate in p.rates for p in pairs) >= len(pairs)]


def protocol_text(pairs: Sequence[Pair]) -> str:
    trials = median(
        sum(map(len, side.trials.values())) for p in pairs for side in (p.variant, p.baseline)
    )
    rows = [["protocol", "seeds", "runs a variant", "pairs", "wrong sign", f"off by over {FAR:g}"]]

    def add(name: str, seeds: int, runs: float, found: Wrong) -> None:
        shares = (f"{100 * share:.0f} %" for share in (found.sign, found.far))
        rows.append([name, str(seeds), f"{runs:g}", str(found.pairs), *shares])

    for rate in common_rates(pairs):
        for seeds in (1, SOME):
            add(f"one rate, {rate:g}", seeds, seeds, at_rate(pairs, rate, seeds))
    for seeds in (1, SOME):
        add("the baseline's best rate", seeds, seeds, at_baseline_rate(pairs, seeds))
    for seeds in (1, SOME):
        add("each its own best rate", seeds, trials + seeds, at_own(pairs, seeds))
    studies = len({pair.study for pair in pairs})
    return (
        f"{len(pairs)} pairs of {studies} studies, with differences of "
        f"{min(abs(p.truth) for p in pairs):.3f} to {max(abs(p.truth) for p in pairs):.2f} nats:"
        f"\n\n{markdown_table(rows)}"
    )


def draw(pairs: Sequence[Pair]) -> bytes:
    """Both shares over the common rate, and lines for each variant's own rate."""
    drawing, panels = subplots(1, 2, figsize=(7.5, 3.0), layout="constrained")
    rates = common_rates(pairs)
    for axes, word, title in zip(panels, ("sign", "far"), TITLES, strict=True):
        use_log_axis(axes)
        for place, seeds in enumerate((1, SOME)):
            colour, dashes = line_style(place)
            name = f"{seeds} seed{'s' * (seeds > 1)}"
            shares = [100 * getattr(at_rate(pairs, rate, seeds), word) for rate in rates]
            axes.plot(rates, shares, "o", color=colour, linestyle=dashes, linewidth=1.2,
                      markersize=3, label=f"one rate, {name}")  # fmt: skip
            own = 100 * getattr(at_own(pairs, seeds), word)
            axes.axhline(
                own, color=GREY, linestyle=dashes, linewidth=1.2, label=f"own rate, {name}"
            )
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=FONT)
        axes.set(xlabel="learning rate of all variants", ylabel="% of pairs")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                   fontsize=FONT, frameon=False)  # fmt: skip
    return svg_bytes(drawing)
