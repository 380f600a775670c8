"""A report's figures."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from page_studies import skip_charts
from reports import findings_of, study_of, text
from run_folders import (
    PRE,
    config_of,
    edit,
    edit_each,
    folder,
    folder_name,
    make_study,
    make_sweep,
    tree,
    trials_at,
    tuned,
    tuning_study,
)

from transformer_norms.names import options
from transformer_norms.report import curves, figures, rates
from transformer_norms.report.curves import Curve, loss_range
from transformer_norms.report.figures import (
    figure_bytes,
    line_style,
    short_name,
    spread_apart,
    subplots,
    use_log_axis,
)
from transformer_norms.report.writing import write_report

NGRAMS = {"val": [3.3, 2.5, 2.3, 2.28, 2.2]}
TRAINED = {"pre": PRE, "peri": {0: 2.28, 1: 2.29, 2: 2.3}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skip_charts(monkeypatch)


def drawn_by(monkeypatch):
    """The figures that are drawn, which are not written."""
    drawings = []
    monkeypatch.setattr(figures, "figure_bytes", lambda figure, _: drawings.append(figure) or b"")
    return drawings


@pytest.mark.parametrize("rate", ["1e999", "9" * 400])
def test_a_rate_that_no_figure_has_room_for_is_left_out_of_it(rate):
    path = tuning_study()
    path.write_text(path.read_text().replace("0.001", rate))
    assert "## Tuning" not in text()


def test_a_report_drawn_again_unchanged_rewrites_nothing():
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: 2.31}})
    write_report([Path("study")])
    before = tree()
    assert "study/curves.svg" in before
    assert not [name for name in before if name.endswith(".png")]
    assert write_report([Path("study")])[0] == Path("study/report.html")
    assert tree() == before


def test_curves_are_drawn_from_whatever_was_measured():
    make_study("study", {"pre": {0: None, 1: None}, "post": PRE})
    (folder("pre", 0) / "metrics.jsonl").write_text("")
    bad = '{"step": 1, "tokens": 5, "val/loss": null}\n{"step": 2, "tokens": "x", "val/loss": 2}\n'
    (folder("pre", 1) / "metrics.jsonl").write_text(bad + '{"step": 3, "tokens": 1e999}\n')
    (folder("post", 0) / "metrics.jsonl").unlink()
    text()
    assert Path("study/curves.svg").read_bytes().startswith(b"<?xml")


def test_a_long_name_keeps_its_beginning_and_its_end():
    names = [f"{placement} embedding={table} embed_scale={factor}"
             for placement in ("sandwich", "normformer")
             for table, factor in ((0.02, 1), (0.02, 25), (0.5, 1))]  # fmt: skip
    short = [short_name(name) for name in names]
    assert len(set(short)) == len(names)
    assert max(map(len, short)) == 34
    for name, cut in zip(names, short, strict=True):
        beginning, _, end = cut.partition("...")
        assert name.startswith(beginning)
        assert name.endswith(end)
    assert short_name("pre") == "pre"


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [
        (5.9e-4, 5.3e-3, ["0.001", "0.002", "0.005"]),
        (1.7e-3, 9e-3, ["0.002", "0.005"]),
        (1e-5, 1, ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]),
    ],
)
def test_no_two_names_of_a_log_axis_touch(low, high, named):
    figure, axes = subplots(figsize=(2.6, 2.0))
    use_log_axis(axes)
    axes.plot([low, high], [1, 2])
    figure.draw_without_rendering()
    inside = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    names = [text for text in inside if text.get_text()]
    assert [text.get_text() for text in names] == named
    boxes = [text.get_window_extent() for text in names]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    assert not axes.xaxis.get_minorticklocs().size


def test_the_chosen_rate_has_a_ring_even_where_one_of_its_seeds_diverged(monkeypatch):
    """Before any loss was measured. A mean over the easier seed is no lowest loss of a map."""
    trials = trials_at({"pre": {1e-3: (4.0, 4.2), 1e-2: (2.0, None), 1e-1: (None, None)}})
    make_sweep("study", trials=trials, tuned=[tuned({"placement": "pre"}, {"optimizer.lr": 1e-2})])
    lost = config_of(["placement=pre"], 101, optimizer__lr=1e-2)
    edit(Path("study", folder_name(lost)), initial_loss=None)
    study = study_of("study")
    assert rates.rate_lines(study)[0].lowest == pytest.approx(4.1)
    drawings = drawn_by(monkeypatch)
    assert rates.draw_rates(study).keys() == {"rates.svg"}
    (axes,) = drawings[0].axes
    drawn = [(line.get_marker(), line.get_xydata().tolist()) for line in axes.lines]
    top = axes.get_ylim()[1]
    assert ("None", [[1e-3, 4.1], [1e-2, 2.0]]) in drawn  # the line of the means
    assert ("o", [[1e-3, 4.0], [1e-3, 4.2], [1e-2, 2.0]]) in drawn  # every run that trained
    assert [at for marker, at in drawn if marker == "x"] == [[[1e-2, top]], [[1e-1, top]]]
    assert "2" in {text.get_text() for text in axes.texts}  # runs that failed at the last rate
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert [ring.get_xydata().tolist() for ring in rings] == [[[1e-2, 2.0]]]


def tuned_at(losses):
    """A study of {placement: {rate: loss}}, each with the rate of its lowest loss; None is a run
    that diverged."""
    choices = []
    for name, tried in losses.items():
        trained = {rate: loss for rate, loss in tried.items() if loss is not None}
        best = {"optimizer.lr": min(trained, key=trained.get)} if trained else None
        choices.append(tuned({"placement": name}, best))
    make_sweep("study", trials=trials_at(losses), tuned=choices)
    return study_of("study")


def test_more_variants_than_lines_that_differ_are_a_map_of_their_rates(monkeypatch):
    post = {1e-3: None, 3e-3: 2.4, 1e-2: 3.0}
    study = tuned_at({"pre": {1e-3: 2.5, 1e-2: 2.25}, "post": post, "peri": {1e-3: None}})
    monkeypatch.setattr(figures, "MOST_LINES", 2)
    drawings = drawn_by(monkeypatch)
    rates.draw_rates(study)
    axes = drawings[0].axes[0]
    (cells,) = axes.collections
    above = cells.get_array().reshape(3, 3)
    assert np.all(np.diff(cells.get_coordinates()[..., 0]) == 1)  # also the only cell of a row
    wanted = [[0.25, np.nan, 0], [np.nan, 0, 0.6], [np.nan] * 3]
    np.testing.assert_allclose(np.ma.filled(above, np.nan), wanted, atol=1e-9)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["pre", "post", "peri"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "0.003", "0.01"]
    crosses = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "x"]
    assert crosses == [[], [[0, 1]], [[0, 2]]]
    rings = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert rings == [[[2, 0]], [[1, 1]]]


def test_crosses_of_many_variants_leave_the_names_room_and_lie_within_the_axes(monkeypatch):
    placements = options("placement")[:16]
    losses = {name: {1e-4: None, 1e-3: 2.5, 2e-3: 2 + i / 1e3} for i, name in enumerate(placements)}
    study = tuned_at(losses)
    drawings = drawn_by(monkeypatch)
    rates.draw_rates(study)
    figure = drawings[0]
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert all(low < x < high for line in axes.lines for x in line.get_xdata())
    names = [text for text in axes.texts if text.get_text() in placements]
    boxes = sorted(map(Text.get_window_extent, names), key=lambda box: box.y0)  # without arrows
    assert len(boxes) == len(placements)
    assert all(one.y1 <= other.y0 + 1 for one, other in pairwise(boxes))


def draw_study(name, losses):
    """Makes a study whose runs know the losses of n-grams, and draws its curves."""
    make_study(name, losses)
    edit_each(Path(name).glob("*-s*"), lambda s: {"data": s["data"] | {"ngrams": NGRAMS}})
    found = findings_of(name)
    rows = {run.folder: run.metrics() for run in found.study.results}
    assert curves.draw_curves(found, rows).keys() == {"curves.svg"}


def test_a_variant_that_failed_moves_no_axis_and_is_counted_at_the_edge(monkeypatch):
    drawings = drawn_by(monkeypatch)
    draw_study("few", TRAINED)
    draw_study("more", TRAINED | {"post": {0: 3.3, 1: 2.6, 2: None}})
    few, (left, right) = drawings[0].axes, drawings[-1].axes
    assert [left.get_xlim(), left.get_ylim()] == [few[0].get_xlim(), few[0].get_ylim()]
    assert right.get_xlim() == few[1].get_xlim()  # its other axis has a row for each variant
    assert left.get_ylabel().startswith("validation loss")
    assert "3 of 3" in {text.get_text() for text in right.texts}
    crosses = [line for line in right.lines if line.get_marker() == "x"]
    assert [cross.get_xdata().tolist() for cross in crosses] == [[1]]
    marked = [line for line in left.lines if line.get_marker() == "x"]
    assert {float(y) for cross in marked for y in cross.get_ydata()} == {left.get_ylim()[1]}


def test_a_run_that_ends_above_where_they_began_leaves_the_others_in_view():
    tokens = np.array([0.0, 10, 20])
    ended = [np.array([5.5, 4, 3]), np.array([5.5, 9, 9e5])]
    low, high = loss_range([Curve(tokens, losses, tokens) for losses in ended])
    assert low < 3 < 4 < high < 5.5


def test_lines_of_n_grams_are_drawn_where_they_are_in_view(monkeypatch):
    drawings = drawn_by(monkeypatch)
    draw_study("study", TRAINED)
    left, right = drawings[0].axes
    for axes, ends in ((left, left.get_ylim()), (right, right.get_xlim())):
        lines = zip("unigram bigram 3-gram 4-gram 5-gram".split(), NGRAMS["val"], strict=True)
        inside = {name for name, loss in lines if ends[0] < loss < ends[1]}
        assert {"3-gram", "4-gram"} <= inside
        assert {text.get_text() for text in axes.texts if "gram" in text.get_text()} == inside
    assert "unigram" not in {text.get_text() for text in right.texts}


@pytest.mark.parametrize("tuned_too", [False, True])
def test_of_one_row_of_each_run_no_curve_is_drawn(monkeypatch, tuned_too):
    """The training loss has no place in a figure of the validation loss."""
    drawings = drawn_by(monkeypatch)
    tuning_study() if tuned_too else make_study("study", {"pre": PRE, "peri": PRE})
    found = findings_of("study")
    once = {run.folder: run.metrics()[-1:] for run in found.study.results}
    curves.draw_curves(found, once)
    labels = [(one.get_xlabel(), one.get_ylabel()) for one in drawings[0].axes]
    expected = [("optimizer.lr", "validation loss, nats per token")] if tuned_too else []
    assert labels == [*expected, ("final validation loss, nats per token", "")]


def test_names_at_the_lines_do_not_overlap_and_keep_their_order():
    wanted = [0.5, 0.51, 0.0, 0.52, 1.0, 0.99]
    placed = spread_apart(wanted, 0.1)
    assert np.argsort(placed).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(placed)).min() >= 0.1 - 1e-12
    assert min(placed) >= 0
    assert max(placed) <= 1
    assert np.mean(sorted(placed)[1:4]) == pytest.approx(0.51)  # moved evenly to both sides
    assert np.diff(sorted(spread_apart([0.5] * 30, 0.1))) == pytest.approx(1 / 29)


def test_thirty_variants_have_styles_of_their_own_that_differ_in_grey():
    styles = [line_style(place) for place in range(30)]
    assert len({str(one) for one in styles}) == 30
    greys = [np.dot([int(c[i : i + 2], 16) for i in (1, 3, 5)], [0.299, 0.587, 0.114])
             for c, _ in styles[:6]]  # fmt: skip
    assert np.diff(greys).min() > 12


def test_beside_long_names_every_label_stays_inside_the_figure(monkeypatch):
    """Of variants of three keys the names leave the last axes half of their width."""
    make_sweep("study", [
        ({"placement": placement, "optimizer.lr": rate, "schedule.warmup": 200}, seed, loss)
        for placement in ("pre", "post")
        for rate in (6.67e-4, 2e-3)
        for seed, loss in PRE.items()
    ])  # fmt: skip
    beyond = []

    def look_at(drawn, kind):
        drawn.draw_without_rendering()
        for one in drawn.axes:
            extent = one.xaxis.label.get_window_extent()
            beyond.append((extent.x0 < 0, extent.x1 > drawn.bbox.x1))
        return b""

    monkeypatch.setattr(figures, "figure_bytes", look_at)
    write_report(["study"])
    assert beyond
    assert not any(map(any, beyond))


def test_what_another_processor_rounds_otherwise_is_the_same_svg():
    drawings = []
    for noise in (0.0, 1e-12):
        figure, axes = subplots()
        axes.set_position((0.123456789 + noise, 0.1, 0.8, 0.8))
        axes.plot([0, 1, 2], [0.1234567 * (1 + noise), 0.7, 1e-3])
        drawings.append(figure_bytes(figure, "svg"))
    assert drawings[0] == drawings[1]
    assert b"scale(0.015625)" in drawings[0]  # of the letters, whole
    assert not re.search(rb'="M [^"]*\d\.\d{4}', drawings[0])
