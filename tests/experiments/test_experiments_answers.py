"""What experiments/ says of a study beyond its report: on studies whose truth is planted."""

import json
import re
from itertools import islice
from pathlib import Path

import agreement
import numpy as np
import primary
import pytest
import results
import screens
import streams
import streams_256
import untied
import yaml
from run_folders import config_of, make_record, make_run, planned, tuned
from scipy import stats

from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study

WEIGHTS, ENTERS = (0.02, 0.056), (0.02, 0.5)
WIDE_WEIGHTS = 0.0141, 0.0396
OWN = {"pre": 0.0, "post": 0.1, "sandwich": 0.2, "hybrid": -0.1}  # X - pre at the first corner
SEEDS = range(10, 13)
CONFIGS = Path(results.__file__).parents[1] / "configs" / "sweep"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def contrast(placement, one, other):
    """(X - pre) at one corner less that at another, in the words of configs/sweep."""
    corners = [f"default={w} embed_scale={rms / w:.4g}" for w, rms in (one, other)]
    return " - ".join(f"({placement} - pre) under {corner}" for corner in corners)


def plant(effect, ratio=lambda placement, weights, enters: 1.0, lost=(), wide=False):
    """A study of the four corners in which X - pre is its own value and an `effect`, with a little
    noise. The runs of the variants in `lost` diverged. `wide`: with the weights and the contrasts
    of stream_or_table_256."""
    random, runs = np.random.default_rng(0), []
    for weights in WIDE_WEIGHTS if wide else WEIGHTS:
        for enters in ENTERS:
            for placement in OWN:
                variant = {
                    "placement": placement,
                    "init.std.default": weights,
                    "architecture.embed_scale": yaml.safe_load(f"{enters / weights:.4g}"),
                }
                typed = ["init=scaled", *(f"{key}={value}" for key, value in variant.items())]
                for seed in SEEDS:
                    config = config_of(typed, seed)
                    loss = 2 + OWN[placement] + effect(placement, weights, enters)
                    diverged = (placement, weights, enters) in lost
                    run = make_run(
                        "study", config, None if diverged else loss + random.normal(0, 1e-3),
                        status="diverged" if diverged else "finished",
                    )  # fmt: skip
                    add_ratio(run, ratio(placement, weights, enters))
                    runs.append(planned(config, variant))
    contrasts = [
        contrast(x, (w, 0.5), (w, 0.02)) for x in ("post", "sandwich", "hybrid") for w in WEIGHTS
    ] + [
        contrast(x, (0.056, rms), (0.02, rms))
        for x in ("post", "sandwich", "hybrid")
        for rms in ENTERS
    ]
    if wide:
        contrasts = yaml.safe_load((CONFIGS / "stream_or_table_256.yaml").read_text())["contrasts"]
    make_record(
        "study", runs, seeds=[*SEEDS], contrasts=contrasts,
        axes=["placement", "init.std.default", "architecture.embed_scale"],
    )  # fmt: skip
    return findings(read_study([Path("study")]))


def add_ratio(run, ratio):
    """Two sub-layers of two blocks, whose geometric mean is `ratio`."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    factors = {"attention/0": 4.0, "mlp/0": 0.25, "attention/1": 2.0, "mlp/1": 0.5}
    probes = {f"probe/branch_over_stream/{at}": ratio * f for at, f in factors.items()}
    first = json.dumps(json.loads(lines[0]) | probes)
    (run / "metrics.jsonl").write_text("\n".join([first, *lines[1:]]) + "\n")


def of_the_stream(placement, weights, enters):
    return {"pre": 0.0, "post": -0.1, "sandwich": -0.2, "hybrid": 0.1}[placement] * (enters > 0.1)


def of_the_weights(placement, weights, enters):
    return {"pre": 0.0, "post": -0.1, "sandwich": -0.2, "hybrid": 0.1}[placement] * (weights > 0.03)


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
    assert streams.answer(plant(effect)).startswith(said)


def test_a_placement_that_failed_in_a_corner_takes_the_word_away():
    found = plant(of_the_stream, lambda p, w, e: len(p) + e, lost=[("post", 0.02, 0.02)])
    assert streams.answer(found).startswith(streams.UNDECIDED)
    assert [one.value is None for one in primary.primary_contrasts(found)].count(True) == 2
    text = streams.study_text(found)
    assert text.count("| a run failed |") == 3  # two contrasts and a cell
    assert "Over all 11 points" in text


@pytest.mark.parametrize("counts", [(4, 2, 9, 0), (3, 2, 7, 3)])
def test_each_contrast_at_width_256_is_put_beside_its_own_at_width_128(counts):
    """The stream does to post and hybrid what it does at width 128, and the opposite to the
    sandwich. A lost corner of hybrid stands in three contrasts."""
    plant(of_the_stream)
    Path("study").rename("narrow")
    wide = plant(
        lambda x, w, e: (-1 if x == "sandwich" else 1) * of_the_stream(x, w, e), wide=True,
        lost=[("hybrid", 0.0141, 0.02)] if counts[-1] else [],
    )  # fmt: skip
    text = streams_256.study_text(wide, read_study([Path("narrow")]))
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


STARTS = {"small": (0.02, 1), "factor": (0.02, 25), "table": (0.5, 1)}  # table, factor on tokens


def plant_untied(effects):
    """The study untied_stream: by start, what it adds to X - pre, and of how many placements."""
    random, runs = np.random.default_rng(1), []
    for start, (table, factor) in STARTS.items():
        for place, placement in enumerate(OWN):
            variant = {"placement": placement, "init.std.embedding": table,
                       "architecture.embed_scale": factor}  # fmt: skip
            for seed in SEEDS:
                config = config_of(
                    ["init=scaled", "architecture.tied=false",
                     *(f"{key}={value}" for key, value in variant.items())],
                    seed,
                )  # fmt: skip
                effect, few = effects.get(start, (0.0, 3))
                loss = 2 + OWN[placement] + effect * (0 < place <= few) + random.normal(0, 1e-3)
                make_run("study", config, loss)
                runs.append(planned(config, variant))
    sweep = yaml.safe_load(Path(CONFIGS, "untied_stream.yaml").read_text())
    make_record(
        "study", runs, seeds=[*SEEDS], contrasts=sweep["contrasts"],
        axes=["placement", "init.std.embedding", "architecture.embed_scale"],
    )  # fmt: skip
    return findings(read_study([Path("study")]))


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
    text, table = islice(results._asked("untied_stream", plant_untied(effects), Path()), 2)
    assert text.startswith(said)
    assert table.count("(post - pre) under") == 4  # two contrasts of two terms


def test_what_a_head_of_its_own_changes_is_told_of_both_studies():
    plant(lambda placement, weights, enters: 0.3 * (placement == "post") * (weights < 0.03))
    Path("study").rename("stream_or_table")
    record = Path("stream_or_table", "sweep-quick.json")
    asked = json.loads(record.read_text())
    asked["axes"].append("architecture.tied")  # as the packed study, which was to vary the head
    record.write_text(json.dumps(asked))
    plant_untied({"factor": (0.1, 1)})
    Path("study").rename("untied_stream")
    text = untied.head_text(read_study([Path("stream_or_table"), Path("untied_stream")]))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    values = {(row[0].split()[0][1:], row[0].split()[6]): float(row[1]) for row in rows[2:]}
    expected = {
        (x, f"embed_scale={f}"): 0.0 for x in ("post", "sandwich", "hybrid") for f in (1, 25)
    }
    expected |= {("post", "embed_scale=1"): -0.3, ("post", "embed_scale=25"): 0.1 - 0.3}
    assert values == pytest.approx(expected, abs=5e-3)
    assert [row[3] == "1.000" for row in rows[2:4]] == [False, False]


def test_the_corrected_p_of_a_declared_contrast_is_holms_over_the_declared_alone():
    found = plant(
        lambda placement, weights, enters: 1.5e-3 * (placement == "post") * (enters > 0.1)
    )
    primaries = primary.primary_contrasts(found)
    raw = [found.contrasts[one.contrast.text].p for one in primaries]
    ordered, least = sorted(range(12), key=raw.__getitem__), 0.0
    for rank, place in enumerate(ordered):
        least = max(least, min(1.0, raw[place] * (12 - rank)))
        assert primaries[place].p == pytest.approx(least)
        assert primaries[place].p <= found.contrasts[primaries[place].contrast.text].p_holm
    assert 0 < min(raw) < 0.05


def test_the_table_of_primary_contrasts_is_written_of_every_study_that_declares_them():
    folders = Path(results.__file__).parent
    texts = {file.parent.name: file.read_text() for file in folders.glob("*/README.md")}
    words = re.compile("Primary are|the same four contrasts")
    declared = {name for name, text in texts.items() if words.search(text)}
    assert declared == {*streams.STUDIES, *agreement.SCALES, *results.PRIMARY}
    found = plant(of_the_weights)
    (table,) = results._asked("qk_width", found, Path())
    assert table.count("(post - pre) under") == 8  # four contrasts of two terms


def point(placement, weights, enters, difference, log_ratio, log_square=0.0):
    cell = streams.Cell(weights, enters)
    return streams.Point(placement, cell, difference, None, None, log_ratio, log_square)


CORNERS = [(x, w, rms) for x in ("post", "sandwich", "hybrid") for w in WEIGHTS for rms in ENTERS]


def test_the_ratio_of_a_variant_is_the_geometric_mean_over_that_of_pre_norm():
    found = plant(of_the_stream, lambda p, w, e: 3.0 if p == "pre" else len(p) * w / e)
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
    for words in ("post - pre", "hybrid - pre", "weights 0.02", "weights 0.056", "at step 1"):
        assert words in drawn, words


def test_a_ratio_that_makes_the_difference_predicts_it():
    random = np.random.default_rng(0)
    ratios = {corner: random.normal() + ("post", "hybrid").count(corner[0]) for corner in CORNERS}
    points = [
        point(*c, 0.05 * ratios[c] + 0.01 + random.normal(0, 1e-3), ratios[c]) for c in CORNERS
    ]
    slope, intercept = streams.fit_line(points)
    assert slope == pytest.approx(0.05, abs=1e-3)
    assert intercept == pytest.approx(0.01, abs=2e-3)
    for left in streams.leave_placements_out(points):
        assert left.points == 4
        assert left.line < 2e-3 < left.mean
    low, high = streams.slope_interval(points)
    assert low < slope < high
    assert "predicts the difference" in streams.regression_text(points)


def random_points():
    random = np.random.default_rng(1)
    return [point(*corner, *random.normal(size=2)) for corner in CORNERS]


def test_a_ratio_that_is_not_the_reason_does_not_predict():
    assert "does not predict the difference" in streams.regression_text(random_points())


@pytest.mark.parametrize("left", ["post", "sandwich", "hybrid"])
def test_a_line_is_fitted_without_the_placement_that_it_has_to_predict(left):
    """By least squares on the rows of the two others."""
    points = random_points()
    rest = [p for p in points if p.placement != left]
    design = np.array([[p.log_ratio, 1.0] for p in rest])
    line, *_ = np.linalg.lstsq(design, np.array([p.difference for p in rest]), rcond=None)
    own = [p for p in points if p.placement == left]
    errors = [p.difference - line[0] * p.log_ratio - line[1] for p in own]
    by_mean = [p.difference - np.mean([q.difference for q in rest]) for p in own]
    (found,) = [o for o in streams.leave_placements_out(points) if o.placement == left]
    assert found.slope == pytest.approx(line[0])
    assert found.line == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert found.mean == pytest.approx(np.sqrt(np.mean(np.square(by_mean))))


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
        own, rest = (
            [p for p in points if (p.placement == x) is is_own] for is_own in (True, False)
        )
        curve, mean, zero, best = streams.curve_errors(own, rest)
        assert curve < 1e-12 < mean
        assert zero == pytest.approx(np.sqrt(np.mean([p.difference**2 for p in own])))
        assert best == pytest.approx(0.15)
    assert "is least at a ratio of 0.15" in streams.curve_text(points)
    hill = [point(x, *cell, -0.1 * n, 0.0, 1.0 * n) for n, (x, *cell) in enumerate(CORNERS)]
    assert "is least at" not in streams.curve_text(hill)


# --------------------------------------------------------------------------------------- agreement

PLACEMENTS = ("pre", "post", "peri", "hybrid", "normformer")


def plant_scales(means, noise=1e-3, lost=(), trained=None, best=()):
    """A study of horizons: `means` has the loss of each placement at each number of steps.
    `trained` is the training loss of a placement and seed at a step; `best` has the rates."""
    random, runs = np.random.default_rng(0), []
    for steps, losses in means.items():
        for placement, loss in zip(PLACEMENTS, losses, strict=True):
            variant = {"trainer.steps": steps, "placement": placement}
            for seed in (10, 11, 12):
                config = config_of([f"placement={placement}"], seed, trainer__steps=steps)
                diverged = (steps, placement) in lost
                run = make_run(
                    "study", config, None if diverged else loss + random.normal(0, noise),
                    status="diverged" if diverged else "finished", rows=steps,
                )  # fmt: skip
                if trained is not None:
                    rows = [*map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
                    for row in rows:
                        row["train/loss"] = trained(placement, seed, row["step"])
                    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
                runs.append(planned(config, variant))
    first, last = min(means), max(means)
    rates = [
        tuned({"trainer.steps": steps, "placement": placement}, {"optimizer.lr": rate})
        for steps in means
        for placement, rate in best
    ]
    contrasts = [f"({x} - pre) under steps={last} - ({x} - pre) under steps={first}"
                 for x in PLACEMENTS[1:]]  # fmt: skip
    axes = ["trainer.steps", "placement"]
    make_record("study", runs, seeds=[10, 11, 12], contrasts=contrasts, axes=axes, tuned=rates)
    return findings(read_study([Path("study")]))


def test_the_training_losses_inside_the_longest_runs_are_those_of_pairs_at_one_rate():
    means = {30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: (1.0, 1.1, 1.2, 0.9, 1.3)}
    rates = zip(PLACEMENTS, (1e-3, 3e-3, 1e-3, 3e-3, 1e-3), strict=True)

    def trained(placement, seed, step):
        above = {"peri": -0.05, "normformer": 0.4 if step <= 60 else 0.01 * (seed - 10)}
        return 3.0 - step / 480 + 0.1 * seed + above.get(placement, 0.5)

    def trained_alike(placement, seed, step):
        return trained(placement, seed, step) - 0.5 * (placement == "pre")

    found = plant_scales(means, trained=trained_alike, best=[*rates])
    _, last = agreement.scales_of("horizon", found)
    error = np.std([0, 0.01, 0.02], ddof=1) / np.sqrt(3)
    early, late = "+0.400 ± 0.000", f"+0.010 ± {error:.3f}"
    assert agreement.training_rows(last, found) == [
        ["steps", "peri - pre", "normformer - pre"],  # the others have a rate of their own
        ["25 to 30", "-0.050 ± 0.000", early],
        ["50 to 60", "-0.050 ± 0.000", early],
        ["100 to 120", "-0.050 ± 0.000", late],
        ["200 to 240", "-0.050 ± 0.000", late],
        ["400 to 480", "-0.050 ± 0.000", late],
    ]
    assert "inside the runs of 480 steps" in agreement.study_text("horizon", found)


def test_a_width_with_two_numbers_of_steps_is_two_scales():
    random, runs = np.random.default_rng(0), []
    for k, (width, steps) in enumerate([(64, 20), (64, 40), (128, 30), (256, 40)]):
        for place, placement in enumerate(PLACEMENTS):
            variant = {"model.width": width, "trainer.steps": steps, "placement": placement}
            for seed in (10, 11, 12):
                config = config_of(
                    [f"placement={placement}"], seed, trainer__steps=steps, model__width=width
                )
                loss = 2.0 - 0.1 * k + 0.05 * place + random.normal(0, 1e-3)
                make_run("study", config, loss, rows=steps)
                runs.append(planned(config, variant))
    contrasts = [f"(({x} - pre) under width=256 - ({x} - pre) under width=64) under steps=40"
                 for x in PLACEMENTS[1:]]  # fmt: skip
    axes = ["model.width", "trainer.steps", "placement"]
    make_record("study", runs, seeds=[10, 11, 12], contrasts=contrasts, axes=axes)
    found = findings(read_study([Path("study")]))
    scales = agreement.scales_of("size", found)
    assert [scale.label for scale in scales] == [
        "64, 20 steps", "64, 40 steps", "128, 30 steps", "256, 40 steps",
    ]  # fmt: skip
    assert agreement.answer("size", found).startswith("width 64, 20 steps predicts width 256, 40")
    drawn = agreement.draw("size", found).decode()
    assert (
        drawn.count("<!-- 64 -->"),
        drawn.count("<!-- 128 -->"),
        drawn.count("<!-- 256 -->"),
    ) == (1, 1, 1)


def test_an_order_that_stays_is_said_to_predict():
    start = (2.0, 2.1, 2.2, 1.9, 2.3)
    found = plant_scales({30: start, 120: start, 480: [loss - 0.5 for loss in start]})
    assert agreement.answer("horizon", found).startswith("steps 30 predicts steps 480")
    text = agreement.study_text("horizon", found)
    assert text.count("| +1.00 | +1.00 to +1.00 |") == 3


def test_a_sign_that_turns_is_named_and_the_order_does_not_predict():
    found = plant_scales({30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: (1.0, 0.9, 1.2, 0.8, 1.3)})
    said = agreement.answer("horizon", found)
    assert said == (
        "steps 30 does not predict steps 480: post is better at steps 480, worse at steps 30."
    )


def test_a_difference_that_grows_without_turning_is_neither():
    found = plant_scales({30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: (1.0, 1.3, 1.4, 0.8, 1.5)})
    said = agreement.answer("horizon", found)
    assert said.startswith("Neither word is said of steps 30 and steps 480: (post - pre) under")


def test_a_run_that_failed_leaves_no_agreement():
    means = {30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: (1.0, 1.1, 1.2, 0.9, 1.3)}
    found = plant_scales(means, lost=[(30, "post"), (480, "peri")])
    assert len(agreement.training_rows(agreement.scales_of("horizon", found)[-1], found)) == 1
    assert "Neither word is said" in agreement.answer("horizon", found)
    text = agreement.study_text("horizon", found)
    assert "| 30 | 480 | a run failed |  |" in text
    assert "has no value, as runs failed" in text


def test_tau_counts_the_pairs_and_small_noise_leaves_it():
    means = {30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: (1.02, 1.01, 1.2, 0.9, 1.3)}
    one, other = agreement.scales_of("horizon", plant_scales(means))
    found = agreement.agree(one, other)
    assert found.tau == pytest.approx(0.8)  # one of ten pairs is turned
    assert found.low == found.high == found.tau


def test_tau_is_scipys():
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 20, 5))
    expected = [stats.kendalltau(a, b).statistic for a, b in zip(one, other, strict=True)]
    assert agreement.kendall_tau(one, other) == pytest.approx(expected)


def test_the_error_of_a_mean_is_that_of_the_two_way_layout():
    """By the least squares of losses on dummies of placements and seeds."""
    scale, _ = agreement.scales_of(
        "horizon", plant_scales({30: (2.0, 2.1, 2.2, 1.9, 2.3), 480: [1.0] * 5}, noise=0.05)
    )
    rows = [(i, j) for i in range(5) for j in range(3)]
    design = np.array([[*np.eye(5)[i], *np.eye(3)[j][1:]] for i, j in rows])
    losses = np.array([scale.losses[i, j] for i, j in rows])
    fitted, *_ = np.linalg.lstsq(design, losses, rcond=None)
    squares = ((losses - design @ fitted) ** 2).sum()
    error, freedom = scale.error
    assert freedom == 15 - 7
    assert error == pytest.approx(np.sqrt(squares / freedom / 3))


def test_close_means_have_a_wide_interval_of_tau():
    found = plant_scales({30: (2.0, 2.01, 2.02, 1.99, 2.03), 480: [1.0] * 5}, noise=0.05)
    one, other = agreement.scales_of("horizon", found)
    interval = agreement.agree(one, other)
    assert interval.low < -0.3 < 0.3 < interval.high
    assert "the interval of tau reaches zero" in agreement.answer("horizon", found)


# ----------------------------------------------------------------------------------------- screens


def plant_screen(folder, losses, lost=(), failed=()):
    """A screen of placements with both optimizers: `losses` by placement and optimizer. Those in
    `lost` have no rate that trains; a seed of those in `failed` diverged."""
    random, runs, rates = np.random.default_rng(0), [], []
    for placement, own in losses.items():
        for optimizer, loss in zip(("adamw", "muon"), own, strict=True):
            variant = {"optimizer": optimizer, "placement": placement}
            typed = [f"optimizer={optimizer}", f"placement={placement}"]
            is_lost = (placement, optimizer) in lost
            best = None if is_lost else {"optimizer.lr": 3e-3}
            rates.append(tuned(variant, best))
            for rate, above in {1e-3: 0.1, 3e-3: 0.0, 9e-3: 0.1}.items():
                trial = config_of(typed, 100, optimizer__lr=rate)
                make_run(folder, trial, None if is_lost else loss + above,
                         status="diverged" if is_lost else "finished")  # fmt: skip
                runs.append(planned(trial, variant, "tune", {"optimizer.lr": rate}))
            for seed in () if is_lost else (10, 11, 12):
                config = config_of(typed, seed, optimizer__lr=3e-3)
                diverged = (placement, optimizer) in failed and seed == 10
                make_run(
                    folder, config, None if diverged else loss + random.normal(0, 1e-3),
                    status="diverged" if diverged else "finished",
                )  # fmt: skip
                runs.append(planned(config, variant))
    make_record(
        folder, runs, seeds=[10, 11, 12], axes=["optimizer", "placement"], tuned=rates,
        tune={"optimizer.lr": [1e-3, 3e-3, 9e-3]}, tune_seeds=[100],
    )  # fmt: skip
    return findings(read_study([Path(folder)]))


def test_a_screen_has_a_line_for_each_placement_the_lowest_with_adamw_first():
    found = plant_screen(
        "study",
        {"pre": (2.0, 1.5), "post": (2.2, 1.4), "peri": (1.8, 1.5), "hybrid": (1.9, 1.9),
         "out": (2.4, 1.6)},
        lost=[("out", "adamw")], failed=[("hybrid", "muon")],
    )  # fmt: skip
    text = screens.screen_text("placements_screen_own", found)
    assert "run again" not in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["pre itself", "peri", "hybrid", "post", "out"]
    means = [float(mean.partition(",")[0]) for mean in rows[2][1:]]
    assert means == pytest.approx([2.0, 1.5], abs=3e-3)
    words = [[cell.partition(")")[2].strip() for cell in row[1:]] for row in rows[3:6]]
    assert words == [["better", ""], ["better", ""], ["worse", "better"]]
    values = [float(row[1].partition(" ")[0]) for row in rows[3:6]]
    assert values == pytest.approx([-0.2, -0.1, 0.2], abs=3e-3)
    assert rows[4][2].startswith("failed in 1 of 3")
    assert rows[6][1] == "failed at every rate"


def test_the_six_lowest_and_the_four_furthest_apart_are_chosen():
    names = ["admin", "b2t", "beam", "deepnorm", "hybrid", "keel", "lns", "mixln", "mhc", "none",
             "out", "peri", "post"]  # fmt: skip
    losses = {"pre": (2.0, 1.5)}
    losses |= {name: (1.9 + 0.02 * k, 1.5) for k, name in enumerate(names)}
    losses["none"] = (2.08, 1.4)  # 0.18 apart
    losses["post"] = (2.3, 1.5)  # 0.3 apart
    losses["mhc"] = (2.06, 1.9)  # 0.34 apart
    losses["peri"] = (1.5, 1.5)  # the lowest; a seed of it failed with muon
    losses["out"] = (1.4, 2.5)  # lower still, but a seed of it failed
    found = plant_screen("study", losses, failed=[("peri", "muon"), ("out", "adamw")])
    chosen = screens.choose_placements(found)
    assert chosen[:6] == ["peri", "admin", "b2t", "beam", "deepnorm", "hybrid"]
    assert (chosen[6:9], len(chosen)) == (["mhc", "post", "none"], 10)
    text = screens.screen_text("placements_screen", found)
    assert text.endswith(f"these are run again: {', '.join(chosen)}.")
