"""Contrasts: which sums of losses a text states, and what is refused."""

import itertools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import run_folders
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from losses import MARGIN
from refusing import refused
from run_folders import PRE, SANDWICH, config_of, edit, edited, folder, make_study, make_sweep

from transformer_norms.comparison.contrasts import LONGEST, Contrast, find_contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sweep_record import merge_records, names_of, read_record, words_of
from transformer_norms.comparison.verdict import Rules, Side, compare, pair, usual_variance
from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main
from transformer_norms.report.fairness import contrast_differences, pairs_within
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study


def named(*variants):
    return dict(zip(names_of(variants), variants, strict=True))


def grid(**axes):
    keys = [key.replace("__", ".") for key in axes]
    return named(*(dict(zip(keys, row, strict=True)) for row in itertools.product(*axes.values())))


INITS = grid(init=["gpt2", "xavier"], placement=["pre", "post", "hybrid"])
DEPTHS = grid(placement=["pre", "post"], model__depth=[4, 8, 32, 6])


def value(contrast, losses):
    return sum(c * losses[name] for name, c in contrast.coefficients.items())


def coefficients(text, variants=INITS):
    return dict(find_contrast(text, variants).coefficients)


INTERACTION = "(post - pre) under gpt2 - (post - pre) under xavier"
EQUATIONS = named(
    {"placement.equation": "x + f(norm(x))"},
    {"placement.equation": "norm(x + f(x))"},
    {"placement": "pre"},
    {"placement": "pre", "embed_scale": 2},
)


# The general case is below. Values with blanks stand in quotes; whole labels come before parts.
@pytest.mark.parametrize(("text", "wanted"), [
    ("post init=xavier - placement=post gpt2", {"xavier post": 1, "gpt2 post": -1}),
    (INTERACTION, {"gpt2 post": 1, "gpt2 pre": -1, "xavier post": -1, "xavier pre": 1}),
    ("((gpt2 - xavier)) under pre", {"gpt2 pre": 1, "xavier pre": -1}),
    ("(hybrid - pre) under gpt2 - (post - pre) under gpt2", {"gpt2 hybrid": 1, "gpt2 post": -1}),
    ("(gpt2 pre - xavier pre) - (xavier pre - gpt2 pre)", {"gpt2 pre": 2, "xavier pre": -2}),
    ("'x + f(norm(x))' - \"norm(x + f(x))\"", {"x + f(norm(x))": 1, "norm(x + f(x))": -1}),
    ("embed_scale=2 - pre", {"pre embed_scale=2": 1, "pre": -1}),
])  # fmt: skip
def test_a_contrast_is_the_signed_sum_of_its_terms(text, wanted):
    found = find_contrast(text, INITS if {*wanted} <= {*INITS} else EQUATIONS)
    assert found.coefficients == wanted
    assert found.pair == (tuple(wanted) if [*wanted.values()] == [1, -1] else None)


def test_a_trend_is_the_least_squares_slope_of_the_difference_per_doubling():
    y = np.arange(8.0) ** 1.5
    # The trend of one variant's own loss, and with a term's variant chosen by its further words.
    alone = value(find_contrast("post over model.depth", DEPTHS), dict(zip(DEPTHS, y, strict=True)))
    assert alone == pytest.approx(np.polyfit(np.log2([4, 8, 32, 6]), y[4:], 1)[0], abs=1e-12)
    two = find_contrast(
        "((post - pre) under dyt - (post - pre) under none) over model.depth",
        grid(norm=["none", "dyt"], placement=["pre", "post"], model__depth=[4, 16]),
    )
    ends = two.coefficients["dyt post depth=16"], two.coefficients["none pre depth=4"]
    assert (ends, len(two.coefficients)) == ((0.5, -0.5), 8)  # over two doublings


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=7, unique=True), st.data())
def test_every_trend_sums_to_zero_and_gives_a_straight_lines_slope(values, data):
    variants = grid(placement=["pre", "post"], model__width=values)
    found = find_contrast("post - pre over model.width", variants)
    assert sum(found.coefficients.values()) == pytest.approx(0, abs=1e-9)
    slope = data.draw(st.floats(-5, 5))
    line = {name: slope * np.log2(one["model.width"]) for name, one in variants.items()}
    losses = {name: line[name] if "post" in name else 1.25 for name in variants}
    assert value(found, losses) == pytest.approx(slope, abs=1e-6)


AXES = {"norm": ("a", "b"), "placement": ("pre", "post"), "model.depth": (4, 8)}
ALL = grid(norm=["a", "b"], placement=["pre", "post"], model__depth=[4, 8])


@st.composite
def differences(draw, free=tuple(AXES)):
    """A difference in random brackets and order, and its coefficients, which are added up in
    another way: (text, {values of the axes: coefficient})."""
    chosen = draw(st.sampled_from(free))
    rest = tuple(axis for axis in free if axis != chosen)
    sides = draw(st.permutations(AXES[chosen]))
    if rest and draw(st.booleans()):  # an interaction: one difference under two values
        text, inner = draw(differences(rest))
        texts = [f"({text}) under {word(chosen, side)}" for side in sides]
        totals = [{frozenset({*at, (chosen, side)}): c for at, c in inner.items()}
                  for side in sides]  # fmt: skip
    else:
        shared = [(axis, draw(st.sampled_from(AXES[axis]))) for axis in rest]
        words = [draw(st.permutations([(chosen, side), *shared])) for side in sides]
        texts = [" ".join(itertools.starmap(word, one)) for one in words]
        if draw(st.booleans()):
            texts = [f"({texts[0]})", texts[1]]
        totals = [{frozenset(one): Fraction(1)} for one in words]
    blank = draw(st.sampled_from([" ", "  ", "\n"]))
    return f"{texts[0]}{blank}-{blank}{texts[1]}", {
        **totals[0], **{at: -c for at, c in totals[1].items()}
    }  # fmt: skip


def word(axis, value):
    return f"depth={value}" if axis == "model.depth" else str(value)


@given(differences())
def test_any_contrast_that_can_be_written_is_read_as_it_was_meant(case):
    text, wanted = case
    found = find_contrast(text, ALL).coefficients
    assert {frozenset(ALL[name].items()): c for name, c in found.items()} == wanted


@given(st.text(st.sampled_from("() -'\"=ab4 underover\n"), max_size=40))
def test_any_text_is_a_contrast_or_one_line(text):
    line = ""
    try:
        assert sum(find_contrast(text, ALL).coefficients.values()) == 0
    except ConfigError as error:
        line = str(error)
    assert "\n" not in line


REFUSED = [
    ("hybird under gpt2 - pre under gpt2", "names no variant", "did you mean 'hybrid'"),
    ("hybrid - gpt2 pre", "'hybrid' names 2 variants", "gpt2 hybrid, xavier hybrid"),
    ("hybrid - xavier", "'hybrid' names 2 variants", "add words"),
    ("gpt2 xavier - gpt2 pre", "'gpt2 xavier' names no variant", "gpt2 post"),
    ("gpt2 pre - gpt2 pre", "with itself", ""),
    *((text, "is not a contrast; a contrast is A - B") for text in (
        "gpt2 pre", "", "gpt2 pre -", "- gpt2 pre", "(gpt2 pre - gpt2 post", "gpt2 pre - xavier)",
        "gpt2 pre - (post - pre) under gpt2", "gpt2 pre - gpt2 post - gpt2 hybrid",
        "gpt2 (pre) - gpt2 post", "post - pre over", "post - pre over init placement",
    )),
    ("'gpt2 pre - gpt2 post", "quotation mark", ""),
    ("post - pre over model.dept", "no axis 'model.dept'", "init, placement"),
    ("post - pre over init", "gpt2 is not a number above zero", ""),
    ("gpt2 pre - gpt2 post" + " " * LONGEST + "x", "at most", str(LONGEST)),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0][:30])
def test_what_is_no_contrast_of_these_variants_is_one_line_that_begins_with_it(case):
    text, *parts = case
    line = refused(find_contrast, text, INITS)
    assert line.startswith(text[:20])
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize("values", [[4], [0, 4], [-1, 4], [True, 4], ["auto", 4], [[4], 8]])
def test_a_trend_needs_two_numbers_above_zero_and_its_variants_at_each(values):
    variants = grid(placement=["pre", "post"], schedule__warmup=values)
    line = refused(find_contrast, "post - pre over schedule.warmup", variants)
    assert "over schedule.warmup" in line
    del (variants := dict(DEPTHS))["post depth=8"]
    line = refused(find_contrast, "post - pre over model.depth", variants)
    assert "'post' at model.depth=8 names no variant" in line


def sides(contrast, losses):
    return [Side(c, Outcomes(losses[name])) for name, c in contrast.coefficients.items()]


def random_losses(names, seeds, *, seed=0):
    draws = np.random.default_rng(seed)
    return {name: dict(enumerate(2 + 0.05 * draws.standard_normal(seeds))) for name in names}


def test_main_effects_and_the_interaction_are_those_of_a_two_way_analysis_of_variance():
    """Their sums of squares are those of the cells' means, and their p those of the F tests with
    seeds as blocks: F of an effect is its mean square by that of the effect x seeds."""
    seeds = 6
    losses = random_losses(names := [*INITS], seeds)
    y = np.array([[*losses[name].values()] for name in names]).reshape(2, 3, seeds)[:, :2]
    square = {name: one for name, one in INITS.items() if one["placement"] != "hybrid"}
    signs = {  # of the cells (gpt2 pre, gpt2 post, xavier pre, xavier post), by hand
        "xavier - gpt2": np.array([[-1, -1], [1, 1]]) / 2,
        "post - pre": np.array([[-1, 1], [-1, 1]]) / 2,
        "(post - pre) under xavier - (post - pre) under gpt2": np.array([[1, -1], [-1, 1]]),
    }
    squares = 0.0
    for text, own in signs.items():
        contrast = find_contrast(text, square)
        assert contrast.coefficients == dict(zip(square, own.flat, strict=True))
        found = compare({"it": sides(contrast, losses)}, Rules(MARGIN))["it"]
        by_seed = np.einsum("abs,ab->s", y, own)
        assert found.differences == pytest.approx(by_seed)
        effect = by_seed.mean() ** 2 / (own**2).sum() * seeds
        with_seeds = ((by_seed - by_seed.mean()) ** 2).sum() / (own**2).sum()
        f = effect / (with_seeds / (seeds - 1))
        assert found.p == pytest.approx(scipy.stats.f.sf(f, 1, seeds - 1))
        squares += effect
    assert squares == pytest.approx(seeds * ((y.mean(-1) - y.mean()) ** 2).sum())
    assert find_contrast("post - pre", square).title == "post - pre (mean over init)"
    assert find_contrast("xavier post - gpt2 post", square).title == "xavier post - gpt2 post"


def test_a_mean_needs_the_same_values_on_the_other_axes_and_may_have_a_trend():
    part = {name: one for name, one in INITS.items() if name != "xavier pre"}
    line = refused(find_contrast, "post - pre", part)
    assert "'post' names 2 variants, gpt2 post, xavier post" in line
    assert coefficients("post - hybrid", part)["xavier post"] == 0.5  # these have the same inits
    twice = named(*({"norm": a, "placement": b} for a in "xyz" for b in "xyz" if a != b))
    line = refused(find_contrast, "x y - x z", twice)  # x of which axis?
    assert "'x y' names 2 variants" in line
    crossed = grid(norm=["a", "b"], placement=["pre", "post"], model__depth=[4, 8, 32])
    y = np.arange(12.0).reshape(2, 2, 3) ** 1.5
    trend = find_contrast("post - pre over model.depth", crossed)
    wanted = np.polyfit(np.log2([4, 8, 32]), (y[:, 1] - y[:, 0]).mean(0), 1)[0]
    assert value(trend, dict(zip(crossed, y.flat, strict=True))) == pytest.approx(wanted)


def test_declared_contrasts_are_one_family_and_the_pairs_only_described():
    losses = random_losses(INITS, 5)
    texts = ["gpt2 post - gpt2 pre", INTERACTION]
    asked = {text: sides(find_contrast(text, INITS), losses) for text in texts}
    pairs = {name: pair(Outcomes(losses[name]), Outcomes(losses["gpt2 pre"])) for name in losses}
    del pairs["gpt2 pre"]
    rules = Rules(MARGIN, usual_variance(pairs))
    alone = {text: compare({text: asked[text]}, rules)[text] for text in texts}
    together = compare({**asked, **pairs}, rules, described=pairs)
    for text in texts:
        assert together[text].p == min(1, 2 * alone[text].p)
        assert together[text].interval == alone[text].interval
    assert {together[name].verdict for name in pairs} == {"described"}
    # A sum of four losses varies twice as much as a difference of two, and so does its usual one.
    assert alone[texts[1]].spread.freedom == 4 + 4
    values = np.var(alone[texts[1]].differences, ddof=1), 2 * rules.usual.variance
    assert alone[texts[1]].spread.variance == pytest.approx(max(values[0], sum(values) / 2))


def test_a_contrast_with_a_run_that_failed_has_no_number():
    asked = sides(Contrast({"a": 1, "b": -1, "c": -1}), random_losses("abc", 5))
    failing = Side(1, Outcomes({0: 2.0, 1: 2.1, 2: 2.05}, {3: "diverged", 4: "diverged"}))
    found = compare({"it": [*asked, failing]}, Rules(MARGIN))["it"]
    assert (found.verdict, found.difference, found.p, found.fisher) == ("failed", None, None, None)


def test_variants_of_a_contrast_must_be_comparable_and_all_have_results(tmp_path):
    make_study(tmp_path, {"pre": PRE, "post": SANDWICH, "out": PRE}, contrasts=["out - post"])
    asked = read_study([tmp_path])
    assert findings(asked).contrasts["out - post"].verdict == "worse"
    without = [replace(one, results=[]) if one.name == "out" else one for one in asked.variants]
    assert findings(replace(asked, variants=without)).contrasts == {}
    edit(tmp_path / folder("out", 1).name, batch_chain="others")
    assert "batch_chain" in refused(findings, read_study([tmp_path], baseline={}))


BETWEEN = "(post - pre) under {1} - (post - pre) under {0}"


@pytest.mark.parametrize(("key", "values", "words", "field"), [
    ("trainer.batch_size", [4, 8], BETWEEN, None),
    ("trainer.precision", ["fp32", "bf16"], BETWEEN, None),
    ("trainer.batch_size", [4, 8], "post {1} - pre {0}", "data.val_tokens"),
    ("trainer.batch_size", [4, 8], "pre {1} - pre {0}", "data.val_tokens"),
    ("tokenizer", ["byte", "gpt2"], BETWEEN, "tokenizer"),
])  # fmt: skip
def test_a_contrast_across_horizons_takes_differences_that_are_each_within_one(
    tmp_path, monkeypatch, key, values, words, field
):
    """So too across precisions; not across tokenizers, where a loss per token is another unit."""
    results = []
    for at, placement, seed in itertools.product((0, 1), ("pre", "post"), range(4)):
        gain = (0.03, -0.03)[at] + 0.001 * (-1) ** seed * at
        variant = {key: values[at], "placement": placement}
        results.append((variant, seed, 2.3 + gain * (placement == "post")))
    asked = words.format(*(words_of(key, value)[0] for value in values))
    typed = lambda keys, seed, _: config_of([f"{k}={v}" for k, v in keys.items()], seed)  # noqa: E731
    monkeypatch.setattr("run_folders.config_at", typed)  # what follows from a key is composed
    make_sweep(tmp_path, results, contrasts=[asked])
    if field:
        assert field in refused(findings, read_study([tmp_path]))
    else:
        found = findings(read_study([tmp_path])).contrasts[asked]
        assert found.difference == pytest.approx(-0.06, abs=1e-6)


def test_what_differs_beyond_a_contrast_is_said_of_its_pairs(tmp_path):
    cells = itertools.product(("gpt2", "xavier"), ("pre", "post"), (0, 1))
    results = [({"init": init, "placement": place}, seed, 2.3) for init, place, seed in cells]
    make_sweep(tmp_path, results, contrasts=[INTERACTION])
    study = read_study([tmp_path])
    (contrast,) = study.contrasts
    pairs = [(one.name, second.name) for one, second in pairs_within(study, contrast)]
    assert pairs == [("gpt2 post", "gpt2 pre"), ("xavier pre", "xavier post")]
    start, _, line = contrast_differences(study, contrast)[0].partition(": ")
    assert start == "gpt2 post (gpt2 pre in brackets)"
    assert ("final_norm none (norm)" in line, "init" in line) == (True, False)


def test_the_command_takes_contrasts_and_the_report_shows_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_folders.skip_pictures(monkeypatch)
    make_study("study", {"pre": PRE, "post": SANDWICH, "out": PRE}, contrasts=["hybrid - pre"])
    typed = ["study", "--contrast", "post - out", "--contrast", "out - post"]
    assert main(typed) == 0
    table = Path("study/table.md").read_text()
    section = table.partition("## Contrasts")[2].partition("## ")[0]
    assert "- post - out is -0.0187 nats (95 % interval" in section  # typed: not declared
    assert "| out - post | 3     | +0.0187" in section
    assert "The value of a contrast is the sum of coefficient x loss over its variants" in section
    assert "contrast hybrid - pre: 'hybrid' names no variant; there are pre, post, out" in table
    shown = capsys.readouterr().err
    assert "post - out  3      -0.0187" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["study", "--contrast", "psot - out"]) == 2
    assert Path("study/table.md").read_text() == table
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--contrast psot - out: did you mean 'post'? 'psot' names no variant; ")


def test_a_record_of_a_sweep_that_asked_for_none_is_read_and_keeps_those_of_later_times(tmp_path):
    path = make_study(tmp_path, {"pre": PRE, "post": SANDWICH})
    with edited(path) as content:
        assert content.pop("contrasts") == []
    before = read_record(path)
    assert before.contrasts == []
    now = merge_records(before, replace(before, contrasts=["post - pre"]))
    assert (now.runs, now.contrasts) == (before.runs, ["post - pre"])
    later = replace(before, contrasts=["pre - post", "post - pre"])
    assert merge_records(now, later).contrasts == ["post - pre", "pre - post"]
