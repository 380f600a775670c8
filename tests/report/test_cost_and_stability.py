"""The report's step times, stability and figures of cost agree with arithmetic by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from own_folder import own_folder  # noqa: F401
from page_studies import axes_of, panels_of
from reports import by_name, findings_of, text
from run_folders import (
    PRE,
    config_of,
    edit,
    edit_each,
    folder,
    folder_name,
    make_study,
    make_sweep,
    tuning_study,
)
from scipy import stats

from transformer_norms.comparison.price import Price
from transformer_norms.comparison.spike_rate import SpikeRate
from transformer_norms.report.measured.cost import seconds_price
from transformer_norms.report.table import table

SECONDS = {"pre": (10.0, 30.0, 20.0), "post": (11.0, 36.0, 21.0)}  # the machine was never the same
PRICE = Price(1e6, 0.2, 0.1, 0.3)


def priced(price=PRICE):
    """The findings, as if the study had the horizons that give post this price."""
    results = findings_of("study")
    vars(results)["prices"] = {"post": price}
    return results


def timed_study():
    make_study("study", dict.fromkeys(SECONDS, PRE))
    for placement, seconds in SECONDS.items():
        for seed, of_seed in enumerate(seconds):
            edit(folder(placement, seed), seconds=of_seed)


@pytest.mark.parametrize("counts", [(0, 0), (1, 0, 0), (4, 4, 4), (25,)])
def test_spikes_that_scatter_no_more_than_poissons_law_have_its_exact_interval(counts):
    """At each end of the interval the tail at what was seen has 2.5 %."""
    low, high = SpikeRate(counts, [2000] * len(counts)).bounds
    total, unit = sum(counts), 10_000 / (2000 * len(counts))
    assert stats.poisson.cdf(total, high / unit) == pytest.approx(0.025)
    if total:
        assert stats.poisson.sf(total - 1, low / unit) == pytest.approx(0.025)
    else:
        assert low == 0


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("variance", [1, 2, 5])
def test_the_interval_of_spikes_covers_the_truth_where_seeds_scatter_more(seeds, variance):
    """Counts of mean 10 whose variance is 1, 2 and 5 times that of Poisson's law."""
    draw, covered = np.random.default_rng(seeds), 0
    means = np.full((1000, seeds), 10.0)
    if variance > 1:
        means = draw.gamma(10 / (variance - 1), variance - 1, means.shape)
    for counts in draw.poisson(means):
        low, high = SpikeRate(counts.tolist(), [10_000] * seeds).bounds
        covered += low <= 10 <= high
    assert 0.935 <= covered / 1000 <= 0.995
    assert SpikeRate((90, 0), (100, 100)).bounds[1] == 10_000  # a step has one spike at most


def test_stability_has_spikes_the_rates_that_train_and_the_way_to_the_edge():
    """Only the steps after the first 128 can have a spike. pre trains 100 times above its best
    rate, and fails below it; post trains at the next rate above its best one, and not beyond."""
    make_study("study", {"pre": PRE})
    assert "## Stability" not in text()
    tuning_study()
    lowest = config_of(["placement=pre"], 100, optimizer__lr=1e-3)
    edit(Path("study", folder_name(lowest)), status="diverged", val_loss=None)
    for seed, spikes in enumerate((2, 0, 1)):
        edit(next(Path("study").glob(f"post-s{seed}-*")), step=1128, spikes=spikes)
        edit(next(Path("study").glob(f"pre-s{seed}-*")), step=2128, spikes=0)
    stability = text().partition("## Stability")[2]
    pre, post = by_name(stability, "pre"), by_name(stability, "post")
    assert (pre["rates that train"], post["rates that train"]) == ("3 of 4", "2 of 3")
    assert (pre["edge / best"], post["edge / best"]) == ("at least 100", "10 to 1000")
    none = stats.chi2.ppf(0.975, 2) / 2 / 6000 * 10_000
    assert pre["spikes in 10,000 steps"] == f"0 (at most {none:.1f})"
    assert post["spikes in 10,000 steps"].startswith("10 (")
    assert r"\label{tab:study-stability}" in Path("study/table-stability.tex").read_text()


def test_step_times_are_compared_by_pairs_of_seeds():
    ratios = [11 / 10, 36 / 30, 21 / 20]
    low, median, high = np.percentile(ratios, (25, 50, 75))
    timed_study()
    cells = {name: column[1] for name, column in table(priced()).items()}
    percent = [100 * ratio - 100 for ratio in (median, low, high)]
    assert cells["step time"] == "{:+.1f} % ({:+.1f} to {:+.1f})".format(*percent)
    assert "peak memory" not in cells  # of a process on a CPU, which has trained other runs
    ends = [100 - 100 * (1 - saved) * ratio
            for saved, ratio in ((0.2, median), (0.1, high), (0.3, low))]  # fmt: skip
    assert cells["seconds saved"] == "{:.0f} % ({:.0f} to {:.0f})".format(*ends)
    assert "step time" not in table(findings_of("study"))  # without a price


def test_peak_memory_is_compared_on_gpus():
    timed_study()
    for file in Path("study").glob("*/config.yaml"):
        file.write_text(file.read_text().replace("device: cpu", "device: cuda"))
    for seed in PRE:
        edit(folder("post", seed), peak_memory=(5 << 26) * (1 + seed))
        edit(folder("pre", seed), peak_memory=(4 << 26) * (1 + seed))
    assert table(priced())["peak memory"][1] == "+25.0 % (+25.0 to +25.0)"


@pytest.mark.parametrize(
    ("runs", "changed", "reason"),
    [
        ("pre-s1-*", {"device": "another processor"}, "device"),
        ("*-s*", {"device": "a processor, then another"}, "device"),  # each went on elsewhere
        ("pre-s1-*", {"threads": 2, "replicas": 2}, "threads, replicas"),
        ("pre-s1-*", {"parallel": "ddp", "ranks": 2}, "processes"),
        ("pre-s1-*", {"compile": "default"}, "compile"),
        ("pre-s1-*", {"stacked": {"members": 4, "place": 0, "runs": []}}, "stacked"),
    ],
)
def test_runs_of_other_machines_are_not_compared(runs, changed, reason):
    timed_study()
    edit_each(Path("study").glob(runs), lambda _: changed)
    assert table(priced())["step time"][1] == f"not comparable ({reason})"
    assert "seconds saved" not in table(priced())


@pytest.mark.parametrize("saved", [None, 0.5, 0.01, -0.5])
def test_seconds_saved_are_those_of_the_better_one_for_the_same_loss(saved):
    """A step takes 1 s in the baseline, and 1.1 s in the variant."""
    timed_study()
    for placement, seconds in (("pre", 40.0), ("post", 44.0)):
        edit_each(Path("study").glob(f"{placement}-*"), lambda _, s=seconds: {"seconds": s})
    study = findings_of("study").study
    sides = map(study.variant, ("post", "pre"))
    net = seconds_price(study, *sides, Price(1e6, saved, None, saved))[1]
    assert net.low is None
    if saved is None:
        assert net.saved is None
        return
    post, pre = 1.1 * 100 * min(1, 1 - saved), 1.0 * 100 * min(1, 1 + saved)
    expected = 1 - post / pre if post < pre else pre / post - 1
    assert (net.saved, net.high) == pytest.approx((expected, expected))


def test_the_loss_by_step_time_rings_the_variants_that_none_beats_in_both():
    losses = {"pre": 2.3, "post": 2.2, "peri": 2.25, "sandwich": 2.4}
    times = {"pre": 1.0, "post": 1.3, "peri": 1.5, "sandwich": 0.9}
    noise = {0: 0.0, 1: 0.01, 2: 0.02}
    make_study("study", {p: {s: x + loss for s, x in noise.items()} for p, loss in losses.items()})
    for placement, time in times.items():
        for seed in noise:
            edit(folder(placement, seed), seconds=40 * time * (1 + seed))
    axes = axes_of(panels_of(findings_of("study"))["final-loss-by-step-time"])
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    beaten = {p for p in losses for q in losses if losses[q] < losses[p] and times[q] < times[p]}
    expected = sorted((times[p], losses[p] + 0.01) for p in losses.keys() - beaten)
    assert np.array(expected) == pytest.approx(np.column_stack(rings[0].get_data()))
    assert {text.get_text() for text in axes.texts} == {*losses}
    edit(folder("peri", 0), device="another processor")
    assert "final-loss-by-step-time" not in panels_of(findings_of("study"))


def test_the_loss_by_tokens_has_the_curve_of_the_price_and_its_gap():
    """The power law through three horizons, each of four times the tokens: the second fall of the
    loss is q times the first. The gap reaches to where post has the last loss of pre."""
    means = {"pre": (3.0, 2.5, 2.4), "post": (3.1, 2.4, 2.3)}
    noise = {"pre": (0.0, 0.01, 0.02), "post": (0.002, 0.007, 0.021)}
    steps = (40, 160, 640)
    make_sweep("study", [
        ({"placement": placement, "trainer.steps": count}, seed, loss + noise[placement][seed])
        for placement, losses in means.items()
        for count, loss in zip(steps, losses, strict=True) for seed in range(3)
    ])  # fmt: skip
    panels = panels_of(findings_of("study"))
    assert "final-loss-by-trainer-steps" not in panels
    axes, last = axes_of(panels["final-loss-by-tokens"]), 32 * 16 * 640
    assert list(axes.get_xticks()) == [last / 16, last / 4, last]
    curves = [np.array(line.get_data()) for line in axes.lines if len(line.get_xdata()) > 9]
    for (x, y), (first, second, third) in zip(curves, means.values(), strict=True):
        q = (second - third) / (first - second)
        limit = third - (second - third) * q / (1 - q)
        law = limit + (third - limit) * (x / last) ** (math.log(q) / math.log(4))
        assert y == pytest.approx(law + 0.01)
    gap = next(line for line in axes.child_axes[0].lines if line.get_marker() == "|")
    (start, end), (height, again) = gap.get_data()
    assert (end, height, again) == pytest.approx((last, 2.41, 2.41))
    x, y = curves[1]
    assert np.interp(start, x, y) == pytest.approx(2.41, abs=1e-4)
    saved = f"{100 * (1 - start / last):.0f} %"
    assert {label.get_text() for label in axes.texts} == {"pre", f"post: {saved}"}
    assert f"with {saved} fewer seconds" in text()  # a step takes as long
