"""Contrasts: which sums of losses a text states, and what is refused."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import PRE, SANDWICH, make_study

from transformer_norms.comparison.contrasts import LONGEST, Contrast, find_contrast
from transformer_norms.errors import ConfigError
from transformer_norms.report.gathering import read_study
from transformer_norms.run.sweep_record import merge_records, names_of, read_record


def named(*variants):
    return dict(zip(names_of(variants), variants, strict=True))


def grid(**axes):
    return named(
        *(
            {key.replace("__", "."): value for key, value in zip(axes, row, strict=True)}
            for row in itertools.product(*axes.values())
        )
    )


INITS = grid(init=["gpt2", "xavier"], placement=["pre", "post", "hybrid"])
DEPTHS = grid(placement=["pre", "post"], model__depth=[4, 8, 32, 6])


def coefficients(text, variants=INITS):
    return dict(find_contrast(text, variants).coefficients)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpt2 hybrid - gpt2 post", {"gpt2 hybrid": 1, "gpt2 post": -1}),
        ("post init=xavier - placement=post gpt2", {"xavier post": 1, "gpt2 post": -1}),
        ("(hybrid - pre) under gpt2", {"gpt2 hybrid": 1, "gpt2 pre": -1}),
        ("hybrid under gpt2 - pre under gpt2", {"gpt2 hybrid": 1, "gpt2 pre": -1}),
        (
            "(hybrid - pre) under gpt2 - (hybrid - pre) under xavier",
            {"gpt2 hybrid": 1, "gpt2 pre": -1, "xavier hybrid": -1, "xavier pre": 1},
        ),
        ("((gpt2 - xavier)) under pre", {"gpt2 pre": 1, "xavier pre": -1}),
        # What stands on both sides falls out.
        ("(hybrid - pre) under gpt2 - (post - pre) under gpt2",
         {"gpt2 hybrid": 1, "gpt2 post": -1}),
        ("(gpt2 pre - xavier pre) - (xavier pre - gpt2 pre)", {"gpt2 pre": 2, "xavier pre": -2}),
    ],
)  # fmt: skip
def test_a_contrast_is_the_signed_sum_of_its_terms(text, wanted):
    assert coefficients(text) == wanted


def test_a_trend_is_the_least_squares_slope_of_the_difference_per_doubling():
    found = find_contrast("post - pre over model.depth", DEPTHS)
    losses = {name: {0: loss} for name, loss in zip(DEPTHS, np.arange(8.0) ** 1.5, strict=True)}
    x, y = np.array([4, 8, 32, 6]), np.array([losses[name][0] for name in DEPTHS])
    slope, _ = np.polyfit(np.log2(x), y[4:] - y[:4], 1)
    assert found.by_seed(losses)[0] == pytest.approx(slope, abs=1e-12)
    assert found.over == "model.depth"
    # The trend of one variant's own loss, and with a term's variant chosen by its further words.
    alone = find_contrast("post over model.depth", DEPTHS).by_seed(losses)[0]
    assert alone == pytest.approx(np.polyfit(np.log2(x), y[4:], 1)[0], abs=1e-12)
    two = find_contrast(
        "((post - pre) under dyt - (post - pre) under none) over model.depth",
        grid(norm=["none", "dyt"], placement=["pre", "post"], model__depth=[4, 16]),
    )
    assert two.coefficients["dyt post depth=16"] == 0.5  # the difference over two doublings
    assert two.coefficients["none pre depth=4"] == -0.5
    assert len(two.coefficients) == 8


@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=7, unique=True),
    st.data(),
)
def test_every_trend_sums_to_zero_and_gives_a_straight_lines_slope(values, data):
    variants = grid(placement=["pre", "post"], model__width=values)
    found = find_contrast("post - pre over model.width", variants)
    assert sum(found.coefficients.values()) == pytest.approx(0, abs=1e-9)
    slope = data.draw(st.floats(-5, 5))
    line = {name: slope * np.log2(one["model.width"]) for name, one in variants.items()}
    losses = {name: {0: line[name] if "post" in name else 1.25} for name in variants}
    assert found.by_seed(losses)[0] == pytest.approx(slope, abs=1e-6)


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
    else:  # two variants, with their other words on either side or behind `under`
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
    assert {
        frozenset(ALL[name].items()): c for name, c in find_contrast(text, ALL).coefficients.items()
    } == wanted


@given(st.text(st.sampled_from("() -'\"=ab4 underover\n"), max_size=40))
def test_any_text_is_a_contrast_or_one_line(text):
    line = ""
    try:
        assert sum(find_contrast(text, ALL).coefficients.values()) == 0
    except ConfigError as error:
        line = str(error)
    assert "\n" not in line


def test_a_value_with_blanks_stands_in_quotes_and_whole_labels_come_before_parts():
    equations = named(
        {"placement.equation": "x + f(norm(x))"},
        {"placement.equation": "norm(x + f(x))"},
        {"placement": "pre"},
        {"placement": "pre", "embed_scale": 2},
    )
    assert coefficients("'x + f(norm(x))' - \"norm(x + f(x))\"", equations) == {
        "x + f(norm(x))": 1,
        "norm(x + f(x))": -1,
    }
    assert coefficients("embed_scale=2 - pre", equations) == {"pre embed_scale=2": 1, "pre": -1}


REFUSED = [
    ("hybird under gpt2 - pre under gpt2", "names no variant", "did you mean 'hybrid'"),
    ("hybrid - gpt2 pre", "'hybrid' names 2 variants", "gpt2 hybrid, xavier hybrid"),
    ("gpt2 xavier - gpt2 pre", "'gpt2 xavier' names no variant", "gpt2 post"),
    ("gpt2 pre - gpt2 pre", "with itself", ""),
    ("gpt2 pre", "no difference", "A - B"),
    ("gpt2 pre - (post - pre) under gpt2", "between two", ""),
    ("gpt2 pre - gpt2 post - gpt2 hybrid", "between two", ""),
    ("(gpt2 pre - gpt2 post", "')' is missing", ""),
    ("gpt2 pre - gpt2 post)", "')' is one too many", ""),
    ("gpt2 pre -", "missing at the end", ""),
    ("- gpt2 pre", "missing before '-'", ""),
    ("", "missing", ""),
    ("'gpt2 pre - gpt2 post", "quotation mark", ""),
    ("post - pre over model.dept", "no axis 'model.dept'", "init, placement"),
    ("post - pre over init", "gpt2 is no number above zero", ""),
    ("gpt2 pre - gpt2 post" + " " * LONGEST + "x", "at most", str(LONGEST)),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0][:30])
def test_what_is_no_contrast_of_these_variants_is_one_line_that_begins_with_it(case):
    text, *parts = case
    with pytest.raises(ConfigError) as refusal:
        find_contrast(text, INITS)
    line = str(refusal.value)
    assert line.startswith(text[:20])
    assert "\n" not in line
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize("values", [[4], [0, 4], [-1, 4], [True, 4], ["auto", 4], [[4], 8]])
def test_a_trend_needs_two_numbers_above_zero(values):
    variants = grid(placement=["pre", "post"], schedule__warmup=values)
    with pytest.raises(ConfigError, match=r"over schedule\.warmup"):
        find_contrast("post - pre over schedule.warmup", variants)


def test_a_trend_needs_its_variants_at_every_value():
    variants = {name: one for name, one in DEPTHS.items() if name != "post depth=8"}
    with pytest.raises(ConfigError, match=r"'post' at model\.depth=8 names no variant"):
        find_contrast("post - pre over model.depth", variants)


def test_a_plain_difference_knows_its_two_sides_and_a_contrast_its_squares():
    pair = find_contrast("gpt2 post - gpt2 pre", INITS)
    assert pair.pair == ("gpt2 post", "gpt2 pre")
    assert pair.squares == 2
    interaction = find_contrast("(post - pre) under gpt2 - (post - pre) under xavier", INITS)
    assert (interaction.pair, interaction.squares) == (None, 4)
    assert find_contrast("pre over model.depth", DEPTHS).squares == pytest.approx(
        1 / np.square(np.log2([4, 8, 32, 6]) - np.log2([4, 8, 32, 6]).mean()).sum()
    )


def test_only_seeds_that_all_variants_have_give_a_value():
    contrast = Contrast({"a": 1, "b": -1, "c": -1, "d": 1})
    losses = {"a": {2: 3.5, 0: 1.0, 1: 2.0}, "b": {0: 0.5, 2: 1.0}, "c": {0: 0.25, 2: 0, 5: 1},
              "d": {0: 4, 2: 1}}  # fmt: skip
    assert contrast.by_seed(losses) == {0: 4.25, 2: 3.5}


# ------------------------------------------------------------------------------ of a sweep's record


def test_a_record_of_a_sweep_that_asked_for_none_is_read_and_keeps_those_of_later_times(tmp_path):
    path = make_study(tmp_path, {"pre": PRE, "post": SANDWICH})
    content = json.loads(path.read_text())
    assert content.pop("contrasts") == []
    path.write_text(json.dumps(content))
    before = read_record(path)
    assert before.contrasts == []
    now = merge_records(before, replace(before, contrasts=["post - pre"]))
    assert (now.runs, now.contrasts) == (before.runs, ["post - pre"])
    later = replace(before, contrasts=["pre - post", "post - pre"])
    assert merge_records(now, later).contrasts == ["post - pre", "pre - post"]


def test_a_studys_contrasts_are_those_of_its_record_and_the_typed_ones(tmp_path):
    make_study(tmp_path, {"pre": PRE, "post": SANDWICH}, contrasts=["post - pre", "out - pre"])
    study = read_study([tmp_path], contrasts=["pre - post", "post - pre"])
    assert [one.text for one in study.contrasts] == ["post - pre", "pre - post"]
    (reason,) = study.left_out
    assert reason.startswith("contrast out - pre: 'out' names no variant; there are pre, post")
    with pytest.raises(ConfigError, match="--contrast out - pre: 'out' names no variant"):
        read_study([tmp_path], contrasts=["out - pre"])
