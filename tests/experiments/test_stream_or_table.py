"""The stream, the weights and the head: what is said of the studies that ask which of them decides,
on studies whose truth is planted."""

import re
from itertools import islice, product
from pathlib import Path

import agreement
import numpy as np
import primary
import pytest
import results
import streams
import streams_256
import untied
import yaml
from own_folder import own_folder  # noqa: F401
from planted import SEEDS, change_rows, plant
from reports import study_of
from run_folders import config_at, edited, folder_name

WEIGHTS, ENTERS = (0.02, 0.056), (0.02, 0.5)
WIDE_WEIGHTS = 0.0141, 0.0396
OWN = {"pre": 0.0, "post": 0.1, "sandwich": 0.2, "hybrid": -0.1}  # X - pre at the first corner
TYPED = ("init=scaled",)
CONFIGS = Path(results.__file__).parents[1] / "configs" / "sweep"
STARTS = {"small": (0.02, 1), "factor": (0.02, 25), "table": (0.5, 1)}  # table, factor on tokens
CORNERS = [(x, w, rms) for x in ("post", "sandwich", "hybrid") for w in WEIGHTS for rms in ENTERS]


def plant_corners(effect, ratio=lambda *at: 1.0, lost=(), wide=False):
    """A study of the four corners in which X - pre is its own value and an `effect`. The sub-layers
    of a run have the geometric mean `ratio`. The runs of the variants in `lost` diverged. `wide`:
    with the weights and the contrasts of stream_or_table_256."""
    corners = [*product(WIDE_WEIGHTS if wide else WEIGHTS, ENTERS, OWN)]
    losses = [
        ({"placement": placement, "init.std.default": weights,
          "architecture.embed_scale": yaml.safe_load(f"{enters / weights:.4g}")},
         None if (placement, weights, enters) in lost
         else 2 + OWN[placement] + effect(placement, weights, enters))
        for weights, enters, placement in corners
    ]  # fmt: skip
    asked = contrasts_of(f"stream_or_table{'_256' * wide}")
    found = plant(losses, typed=TYPED, contrasts=asked)
    factors = {"attention/0": 4.0, "mlp/0": 0.25, "attention/1": 2.0, "mlp/1": 0.5}
    for (variant, _), (weights, enters, placement) in zip(losses, corners, strict=True):
        mean = ratio(placement, weights, enters)
        probes = {f"probe/branch_over_stream/{at}": mean * f for at, f in factors.items()}
        for seed in SEEDS:
            run = Path("study", folder_name(config_at(variant, seed, TYPED)))
            change_rows(run, lambda rows, first=probes: [rows[0] | first, *rows[1:]])
    return found


def contrasts_of(sweep):
    return yaml.safe_load(Path(CONFIGS, f"{sweep}.yaml").read_text())["contrasts"]


EFFECT = {"pre": 0.0, "post": -0.1, "sandwich": -0.2, "hybrid": 0.1}


def of_the_stream(placement, weights, enters):
    return EFFECT[placement] * (enters > 0.1)


def of_the_weights(placement, weights, enters):
    return EFFECT[placement] * (weights > 0.03)


def of_both(placement, weights, enters):
    """The stream changes each placement as much as the weights do, and more than they in one."""
    sign = -1 if weights > 0.03 else 1  # the sign of what the stream does follows from the weights
    return 0.2 * sign * (enters > 0.1) * (placement == "post")


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (of_the_stream, "It is the stream. 6 of 6"),
        (of_the_weights, "It is the weights. 0 of 6"),
        (of_both, streams.UNDECIDED),
        (lambda *at: 0.0, streams.UNDECIDED),
    ],
    ids=["stream", "weights", "both", "neither"],
)
def test_the_words_of_stream_or_table_are_those_of_the_planted_truth(effect, said):
    assert streams.answer(plant_corners(effect)).startswith(said)


def test_a_placement_that_failed_in_a_corner_takes_the_word_away():
    found = plant_corners(of_the_stream, lambda p, w, e: len(p) + e, lost=[("post", 0.02, 0.02)])
    assert streams.answer(found).startswith(streams.UNDECIDED)
    assert [one.value is None for one in primary.primary_contrasts(found)].count(True) == 2
    text = streams.study_text(found)
    assert text.count("| a run failed |") == 3  # two contrasts and a cell
    assert "Over all 11 points" in text


@pytest.mark.parametrize("counts", [(4, 2, 9, 0), (3, 2, 7, 3)])
def test_each_contrast_at_width_256_is_put_beside_its_own_at_width_128(counts):
    """The stream does to post and hybrid what it does at width 128, and the opposite to the
    sandwich. A lost corner of hybrid is in three contrasts."""
    plant_corners(of_the_stream)
    Path("study").rename("narrow")
    wide = plant_corners(
        lambda x, w, e: (-1 if x == "sandwich" else 1) * of_the_stream(x, w, e), wide=True,
        lost=[("hybrid", 0.0141, 0.02)] if counts[-1] else [],
    )  # fmt: skip
    text = streams_256.study_text(wide, study_of("narrow"))
    words = streams_256.SAME, streams_256.OTHER, streams_256.NOT_APART, streams_256.FAILED
    said = "; ".join(f"{word}: {count}" for word, count in zip(words, counts, strict=True))
    assert text.split("beside width 128: ")[1].startswith(f"{said}.")
    row = next(line for line in text.splitlines() if line.startswith("| (sandwich - pre) under"))
    value, before = (float(row.split(" | ")[place]) for place in (1, 4))
    assert (value, before) == pytest.approx((0.2, -0.2), abs=5e-3)


@pytest.mark.parametrize(
    ("best", "noise", "confirmed"), [(0.15, 0.0, True), (0.02, 0.0, False), (0.15, 1.0, False)]
)
def test_a_best_ratio_is_confirmed_where_it_was_expected_and_predicts(best, noise, confirmed):
    random, points = np.random.default_rng(2), []
    for x, weights, enters in CORNERS:
        own, base = random.normal(-2, 1.5, 2)
        loss = [0.01 * (log - np.log(best)) ** 2 for log in (own, base)]
        difference = loss[0] - loss[1] + noise * random.normal()
        points.append(point(x, weights, enters, difference, own - base, own**2 - base**2))
    text = streams_256.ratio_answer(points)
    assert text.endswith("a best ratio is confirmed.") is confirmed


def plant_untied(effects):
    """The study untied_stream: by start, what it adds to X - pre, and of how many placements."""
    losses = []
    for start, (table, factor) in STARTS.items():
        effect, few = effects.get(start, (0.0, 3))
        for place, placement in enumerate(OWN):
            variant = {"placement": placement, "init.std.embedding": table,
                       "architecture.embed_scale": factor}  # fmt: skip
            losses.append((variant, 2 + OWN[placement] + effect * (0 < place <= few)))
    typed = (*TYPED, "architecture.tied=false")
    return plant(losses, typed=typed, contrasts=contrasts_of("untied_stream"))


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ({"factor": (-0.1, 3), "table": (-0.1, 3)}, untied.SIZE),
        ({"factor": (-0.1, 2), "table": (-0.1, 2)}, untied.SIZE),
        ({"factor": (-0.1, 1), "table": (-0.1, 1)}, untied.UNDECIDED),
        ({"factor": (0.1, 3), "table": (0.1, 3)}, untied.UNDECIDED),  # the other sign
        ({"factor": (-0.1, 3)}, untied.RATE),
        ({"factor": (0.1, 3)}, untied.UNDECIDED),
        ({"table": (-0.1, 3)}, untied.UNDECIDED),  # the factor undoes it
        ({"factor": (-0.2, 3), "table": (-0.1, 3)}, untied.UNDECIDED),
        ({}, untied.UNDECIDED),
    ],
)
def test_the_words_of_untied_stream_are_those_of_the_planted_truth(effects, said):
    found = {"untied_stream": plant_untied(effects)}
    text, table = islice(results._asked("untied_stream", found, Path()), 2)
    assert text.startswith(said)
    assert table.count("(post - pre) under") == 4  # two contrasts of two terms


def test_what_a_head_of_its_own_changes_is_told_of_both_studies():
    plant_corners(lambda placement, weights, enters: 0.3 * (placement == "post") * (weights < 0.03))
    Path("study").rename("stream_or_table")
    with edited(Path("stream_or_table", "sweep-quick.json")) as asked:
        asked["axes"].append("architecture.tied")  # as the packed study, which was to vary the head
    plant_untied({"factor": (0.1, 1)})
    Path("study").rename("untied_stream")
    text = untied.head_text(*map(study_of, ("stream_or_table", "untied_stream")))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    values = {(row[0].split()[0][1:], row[0].split()[6]): float(row[1]) for row in rows[2:]}
    expected = dict.fromkeys(
        product(EFFECT.keys() - {"pre"}, ("embed_scale=1", "embed_scale=25")), 0.0
    )
    expected |= {("post", "embed_scale=1"): -0.3, ("post", "embed_scale=25"): 0.1 - 0.3}
    assert values == pytest.approx(expected, abs=5e-3)
    assert {len(row) for row in rows} == {3}  # described: it was asked afterwards, and has no p


def test_the_table_of_primary_contrasts_is_written_of_every_study_that_declares_them():
    folders = Path(results.__file__).parent
    texts = {file.parent.name: file.read_text() for file in folders.glob("*/README.md")}
    words = re.compile("Primary (are|is)|the same four contrasts")
    declared = {name for name, text in texts.items() if words.search(text)}
    assert declared == {*streams.STUDIES, *agreement.SCALES, *results.PRIMARY}
    found = plant_corners(of_the_weights)
    (table,) = results._asked("qk_width", {"qk_width": found}, Path())
    assert table.count("(post - pre) under") == 8  # four contrasts of two terms


def point(placement, weights, enters, difference, log_ratio, log_square=0.0):
    cell = streams.Cell(weights, enters)
    return streams.Point(placement, cell, difference, log_ratio, log_square)


def test_the_ratio_of_a_variant_is_the_geometric_mean_over_that_of_pre_norm():
    found = plant_corners(of_the_stream, lambda p, w, e: 3.0 if p == "pre" else len(p) * w / e)
    points = streams.points_of(found)
    assert [(p.placement, p.cell.weights, p.cell.enters) for p in points] != []
    for p in points:
        expected = np.log(len(p.placement) * p.cell.weights / p.cell.enters / 3)
        assert p.log_ratio == pytest.approx(expected)
        own = np.log(len(p.placement) * p.cell.weights / p.cell.enters)
        assert p.log_square == pytest.approx(own**2 - np.log(3) ** 2)
        planted = OWN[p.placement] + of_the_stream(p.placement, p.cell.weights, p.cell.enters)
        assert p.difference == pytest.approx(planted, abs=3e-3)
    drawn = streams.draw(found).decode()
    for words in (*OWN, "weights of 0.02 at init", "weights of 0.056 at init"):
        assert words in drawn, words


def test_a_ratio_that_makes_the_difference_predicts_it():
    random = np.random.default_rng(0)
    ratios = {corner: random.normal() + ("post", "hybrid").count(corner[0]) for corner in CORNERS}
    points = [point(*at, 0.05 * ratios[at] + 0.01 + random.normal(0, 1e-3), ratios[at])
              for at in CORNERS]  # fmt: skip
    slope, intercept = streams.fit_line(points)
    assert slope == pytest.approx(0.05, abs=1e-3)
    assert intercept == pytest.approx(0.01, abs=2e-3)
    left_out = streams.leave_placements_out(points)
    assert {left.placement for left in left_out} == EFFECT.keys() - {"pre"}
    assert all(left.points == 4 and left.line < 2e-3 < left.mean for left in left_out)
    low, high = streams.slope_interval(points)
    assert low < slope < high
    assert "predicts the difference" in streams.regression_text(points)


def random_points():
    random = np.random.default_rng(1)
    return [point(*corner, *random.normal(size=2)) for corner in CORNERS]


def test_a_line_is_fitted_without_the_placement_that_it_has_to_predict():
    """By least squares on the rows of the two others. A ratio that is not the reason does not
    predict."""
    points = random_points()
    assert "does not predict the difference" in streams.regression_text(points)
    for found in streams.leave_placements_out(points):
        rest = [p for p in points if p.placement != found.placement]
        own = [p for p in points if p.placement == found.placement]
        design = np.array([[p.log_ratio, 1.0] for p in rest])
        line, *_ = np.linalg.lstsq(design, np.array([p.difference for p in rest]), rcond=None)
        errors = [p.difference - line[0] * p.log_ratio - line[1] for p in own]
        by_mean = [p.difference - np.mean([q.difference for q in rest]) for p in own]
        assert found.slope == pytest.approx(line[0]), found.placement
        assert found.line == pytest.approx(np.sqrt(np.mean(np.square(errors)))), found.placement
        assert found.mean == pytest.approx(np.sqrt(np.mean(np.square(by_mean)))), found.placement


def test_a_best_ratio_is_found_from_differences_in_which_each_cell_has_its_own_level():
    """Losses are 0.03 (log ratio - log 0.15)^2 and a number of the cell, which pre-norm shares."""
    random = np.random.default_rng(2)
    pre = {(w, rms): random.normal(-1) for w in WEIGHTS for rms in ENTERS}

    def loss(log):
        return 0.03 * (log - np.log(0.15)) ** 2

    points = []
    for x, *cell in CORNERS:
        own, base = random.normal(-2), pre[tuple(cell)]
        points.append(point(x, *cell, loss(own) - loss(base), own - base, own**2 - base**2))
    b, c = streams.fit_curve(points)
    assert (c, np.exp(-b / (2 * c))) == pytest.approx((0.03, 0.15))
    for x in ("post", "sandwich", "hybrid"):
        own, rest = ([p for p in points if (p.placement == x) is one] for one in (True, False))
        curve, mean, zero, best = streams.curve_errors(own, rest)
        assert curve < 1e-12 < mean
        assert zero == pytest.approx(np.sqrt(np.mean([p.difference**2 for p in own])))
        assert best == pytest.approx(0.15)
    assert "is least at a ratio of 0.15" in streams.curve_text(points)
    hill = [point(x, *cell, -0.1 * n, 0.0, 1.0 * n) for n, (x, *cell) in enumerate(CORNERS)]
    assert "is least at" not in streams.curve_text(hill)
