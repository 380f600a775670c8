"""What the page says, and that it is what the runs say."""

import json
import re
from html.parser import HTMLParser
from statistics import fmean, stdev

import pytest
from page_studies import LOSSES, STEPS, depth_study, runs_of, tuned_study, value
from run_folders import (
    PRE,
    SANDWICH,
    config_of,
    edit,
    folder_name,
    make_run,
    make_study,
    make_sweep,
)

from transformer_norms.report.answer import answer
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.page import shared_settings
from transformer_norms.report.page.charts import chart_data, probe_data
from transformer_norms.report.page.differences import Scale, forest, maps, scale
from transformer_norms.report.page.drawings import block_drawings
from transformer_norms.report.scope import regime
from transformer_norms.report.writing import write_report


class Words(HTMLParser):
    """The text that a reader sees, and the data of the charts."""

    def __init__(self, page):
        super().__init__()
        self.text, self.data, self.inside = [], "", []
        self.feed(page)
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "style"):
            self.inside.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1][0] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text.append(data)
        elif self.inside[-1][1].get("type") == "application/json":
            self.data += data


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Pictures are drawn in tests of theirs."""
    from transformer_norms.report import writing

    monkeypatch.setattr(writing, "draw_curves", lambda findings, rows: {})
    monkeypatch.setattr(writing, "draw_rates", lambda study: {})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The page of a study with tuned rates, and its parts; written without its drawings."""
    study = tmp_path_factory.mktemp("tuned") / "study"
    tuned_study(study)
    with pytest.MonkeyPatch.context() as patch:
        from transformer_norms.report import page, writing

        patch.setattr(writing, "draw_curves", lambda findings, rows: {})
        patch.setattr(writing, "draw_rates", lambda study: {})
        patch.setattr(page, "block_drawings", lambda variants: [])
        path, found = write_report([study])
    return study, Words(path.read_text()), found


def data_of(words):
    return json.loads(words.data)


def test_the_answer_stands_before_everything_else(tuned):
    _, words, found = tuned
    said = answer(found)
    assert said.lead.startswith("rmsnorm post is better than rmsnorm pre by 0.119 nats")
    assert words.words.index(said.lead) < words.words.index("Results")
    assert [group.verdict for group in said.groups] == ["better", "failed"]


def test_contrasts_and_what_the_answer_is_about_stand_on_the_page(tmp_path):
    post = {seed: loss + 0.1 for seed, loss in PRE.items()}
    make_study(tmp_path, {"pre": PRE, "post": post, "out": SANDWICH}, contrasts=["post - out"])
    path, found = write_report([tmp_path])
    words = Words(path.read_text()).words
    (said,) = answer(found).contrasts
    assert words.index(said) < words.index("Results")
    assert f"Scale of these results: {regime(found)}." in words
    assert "contrast seeds value 95 % interval" in words
    assert f"post - out 3 {found.contrasts['post - out'].difference:+.4f} " in words
    assert "Other differences between the variants of a contrast: post (out in brackets)" in words


def test_what_follows_a_mean_on_the_page_is_the_deviation_over_seeds_and_is_called_so(tuned):
    _, words, _ = tuned
    for by_seed in LOSSES.values():
        losses = [loss for loss in by_seed.values() if loss is not None]
        assert f"{fmean(losses):.4f} ± {stdev(losses):.4f}" in words.words
    assert "mean ± standard deviation over seeds" in words.words


@pytest.mark.parametrize("make", [tuned_study, depth_study])
def test_the_navigation_has_every_heading_in_its_words_and_order(tmp_path, monkeypatch, make):
    from transformer_norms.report import page

    monkeypatch.setattr(page, "block_drawings", lambda variants: [])
    make(tmp_path)
    shown = write_report([tmp_path])[0].read_text()
    (navigation,) = re.findall(r"<nav.*?</nav>", shown, re.S)
    links = re.findall(r'<a href="#([\w-]+)">(.*?)</a>', navigation)
    sections = re.findall(r'<section id="([\w-]+)">\s*<h2>(.*?)</h2>', shown)
    assert links == sections
    assert ("axis-section-0", "Loss against model.depth") in links or make is tuned_study


@pytest.mark.goal("Q1")
def test_every_run_is_traced_to_config_commit_data_and_batches(tuned):
    study, words, _ = tuned
    runs = runs_of(study)
    assert len(runs) == 4 * 3 + 4 * 3
    for name, summary in runs.items():
        for traced in (name, summary["identity"][:12], summary["commit"][:12]):
            assert traced in words.words
        assert summary["data"]["fingerprint"][:12] in words.words
        assert summary["batch_chain"][:12] in words.words


def test_what_a_pair_differs_in_beyond_the_question_stands_beside_its_verdict(tuned):
    _, words, found = tuned
    assert found.differences["rmsnorm post"]
    for text in found.differences["rmsnorm post"]:
        assert text in words.words


def test_curves_are_the_rows_of_the_runs(tuned):
    study, words, found = tuned
    curves = data_of(words)["curves"]
    for variant, drawn in zip(found.study.variants, curves["variants"], strict=True):
        for member in variant.results:
            rows = [json.loads(line) for line in (member.folder / "metrics.jsonl").open()]
            (run,) = [
                r
                for r in drawn["runs"]
                if member.folder.name in r["text"] and r["key"] == "val/loss"
            ]
            assert run["tokens"] == [row["tokens"] for row in rows]
            assert run["loss"] == pytest.approx([row["val/loss"] for row in rows], abs=1e-5)
            assert run["failed"] == (member.status == "diverged")
        finished = [m for m in variant.results if m.status == "finished"]
        means = [
            fmean(json.loads((m.folder / "metrics.jsonl").read_text().splitlines()[i])["val/loss"]
                  for m in finished)
            for i in range(len(STEPS))
        ]  # fmt: skip
        assert drawn["means"]["val/loss"]["loss"] == pytest.approx(means, abs=1e-5)
        assert drawn["tokens_per_step"] == 32 * 16
        assert drawn["flops_per_token"] == 6000


def test_a_rate_has_a_dot_for_each_run_that_trained_and_a_cross_for_those_that_failed(tmp_path):
    """One of its two runs diverged before any loss was measured."""
    tried = {(1e-3, 100): 2.3, (1e-3, 101): 2.4, (1e-2, 100): 2.3, (1e-2, 101): 2.3}
    make_sweep(tmp_path, trials=[({"placement": "pre"}, seed, loss, {"optimizer.lr": rate})
                                 for (rate, seed), loss in tried.items()])  # fmt: skip
    lost = config_of(["placement=pre"], 101, optimizer__lr=1e-2)
    edit(tmp_path / folder_name(lost), status="diverged", val_loss=None, initial_loss=None)
    (line,) = chart_data(findings(read_study([tmp_path])), {})["rates"]["lines"]
    points = [(point["x"], point["loss"], point["failed"]) for point in line["points"]]
    # The run that trained has its dot, and is the mean of those that did.
    assert points == [(1e-3, pytest.approx(2.35), 0), (1e-2, 2.3, 1)]
    assert [point["losses"] for point in line["points"]] == [[2.3, 2.4], [2.3]]
    # A mean over the easier seed is no lowest loss for a map to measure from.
    assert line["lowest"] == pytest.approx(2.35)


def test_the_names_of_narrow_charts_are_cut_in_the_middle_and_differ(tmp_path):
    names = ["layernorm_nobias", "layernorm_np", "rmsnorm_np", "derf"]
    pairs = [*((norm, "mup") for norm in names[:3]), *((norm, "gpt2") for norm in names[2:])]
    results = [({"norm": norm, "init": init}, 0, 2.3) for norm, init in pairs]
    make_sweep(tmp_path, results, baseline={"norm": "derf"})
    short = chart_data(findings(read_study([tmp_path])), {})["short"]
    assert {"layern...ias mup", "layernorm_np mup", "rmsnorm_np mup", "derf gpt2"} < {*short}
    assert len({*short}) == 5


def test_a_name_that_would_be_cut_to_that_of_another_stays_whole(tmp_path):
    norms = ("layernorm_np", "layernorm_1p")
    results = [({"norm": norm, "init": "megatron"}, 0, 2.3) for norm in norms]
    make_sweep(tmp_path, results, baseline={"norm": "layernorm_np"})
    short = chart_data(findings(read_study([tmp_path])), {})["short"]
    assert {*short} == {"layernorm_np megatron", "layernorm_1p megatron"}


def test_probes_are_means_over_the_seeds_that_finished(tuned):
    _, words, found = tuned
    probes = data_of(words)["probes"]
    assert [measure["name"] for measure in probes["measures"]] == ["stream_rms", "gradient_norm"]
    assert probes["measures"][1]["parts"] == ["", "attention.query", "mlp.up"]
    for variant, drawn in zip(found.study.variants, probes["variants"], strict=True):
        seeds = [m.seed for m in variant.results if m.status == "finished"]
        assert drawn["steps"] == STEPS
        for number, part in enumerate(["", "attention.query", "mlp.up"]):
            measure = "gradient_norm" if part else "stream_rms"
            for block in (0, 1):
                expected = [fmean(value(s, step, block, number) for s in seeds) for step in STEPS]
                there = drawn["values"][measure][part][str(block)]
                assert there == pytest.approx(expected, rel=1e-3)
        assert drawn["values"]["stream_rms"][""]["embedding"] == [0.5] * 3


def test_a_probe_that_one_seed_lacks_has_no_mean(tmp_path):
    tuned_study(tmp_path)
    run = next(tmp_path.glob("pre-s0*"))
    file = run / "metrics.jsonl"
    file.write_text(re.sub(r'"probe/stream_rms/1": [0-9.]+', '"probe/stream_rms/1": null',
                           file.read_text(), count=1))  # fmt: skip
    study = read_study([tmp_path])
    rows = {member.folder: member.run.metrics() for member in study.runs}
    place = next(i for i, v in enumerate(study.variants)
                 if any(m.folder.name == run.name for m in v.results))  # fmt: skip
    first, *rest = probe_data(study, rows)["variants"][place]["values"]["stream_rms"][""]["1"]
    assert first is None
    assert None not in rest


def test_the_small_pictures_are_on_one_scale():
    on = Scale(0.1)
    assert (on(-0.1), on(0), on(0.1)) == (9, 90, 171)
    assert (on(-5), on(5)) == (9, 171)


def test_the_small_pictures_show_each_seed_mean_and_interval(tmp_path):
    make_study(tmp_path, {"pre": PRE, "sandwich": SANDWICH})
    found = findings(read_study([tmp_path]))
    on = Scale(0.1)
    drawn = forest(found, found.study.variant("sandwich"), on)
    differences = {seed: SANDWICH[seed] - PRE[seed] for seed in PRE}
    assert drawn.seeds == [(on(d), f"seed {s}: {d:+.4f}") for s, d in differences.items()]
    assert drawn.mean == on(fmean(differences.values()))
    compared = found.comparisons["sandwich"]
    assert drawn.interval == (on(compared.low), on(compared.high))
    assert drawn.beyond == (False, False)
    assert forest(found, found.study.variant("sandwich"), Scale(0.001)).beyond == (True, False)
    assert forest(found, found.study.variant("pre"), on) is None


def test_a_pair_in_which_a_run_failed_has_no_picture_of_differences(tuned):
    _, words, found = tuned
    assert forest(found, found.study.variant("layernorm post"), Scale(1.0)) is None
    assert "layernorm post failed to train in 1 of 3 runs" in words.words


def test_a_map_has_a_cell_for_each_pair(tuned):
    _, _, found = tuned
    (drawn,) = maps(found)
    assert (drawn.row_axis, drawn.column_axis, drawn.rest) == ("placement", "norm", "")
    assert drawn.columns == ["rmsnorm", "layernorm"]
    cells = {(name, column): cell for name, row in drawn.rows
             for column, cell in zip(drawn.columns, row, strict=True)}  # fmt: skip
    for (norm, placement), losses in LOSSES.items():
        cell = cells[placement, norm]
        trained = [loss for loss in losses.values() if loss is not None]
        assert cell.loss == pytest.approx(fmean(trained))
        assert bool(cell.failed) == (None in losses.values())
    assert cells["post", "rmsnorm"].shade == 0
    assert cells["post", "layernorm"].shade == max(cell.shade for cell in cells.values())


def test_losses_are_drawn_against_an_axis_of_numbers(tmp_path, monkeypatch):
    from transformer_norms.report import page

    monkeypatch.setattr(page, "block_drawings", lambda variants: [])
    depth_study(tmp_path)
    words = Words(write_report([tmp_path])[0].read_text())
    (chart,) = data_of(words)["axes"]
    assert (chart["key"], chart["ticks"], chart["log"]) == ("model.depth", [2, 4, 16], True)
    assert [line["name"] for line in chart["lines"]] == ["pre", "sandwich"]
    for line, gain in zip(chart["lines"], (0, 0.02), strict=True):
        assert [point["x"] for point in line["points"]] == [2, 4, 16]
        losses = [3 - depth / 20 - gain + 0.005 for depth in (2, 4, 16)]
        assert [point["loss"] for point in line["points"]] == pytest.approx(losses)
    assert "Loss against model.depth" in words.words


def test_blocks_that_are_drawn_alike_are_drawn_once(tmp_path):
    make_study(tmp_path, {"pre": {0: 2.3}, "post": {0: 2.4}})
    drawings = block_drawings(read_study([tmp_path]).variants)
    assert [names for _, names in drawings] == [["pre"], ["post"]]
    assert all(block.svg.startswith("<svg") and "rmsnorm" in block.svg for block, _ in drawings)
    same = [*read_study([tmp_path]).variants[:1]] * 2
    assert [names for _, names in block_drawings(same)] == [["pre", "pre"]]


def test_what_differs_in_its_name_alone_is_drawn_under_its_own_name(tmp_path):
    """And an optimizer that is not known here keeps no other variant from being drawn."""
    typed = ["placement.equation=x + f(norm(x))"]
    for optimizer, overrides in (("adamw", []), ("muon", typed), ("mine", typed)):
        config = config_of([*overrides, f"optimizer={optimizer.replace('mine', 'adamw')}"])
        if optimizer == "mine":
            for node in (config, config["chosen"]):
                node["optimizer"]["type"] = node["choices"]["optimizer"] = "mine"
        make_run(tmp_path, config, 2.3)
    variants = read_study([tmp_path]).variants
    assert [variant.name.split()[-1] for variant in variants] == ["adamw", "muon", "mine"]
    pre, typed, unknown = (block_drawings([variant])[0][0] for variant in variants)
    assert "mine" in unknown.why
    assert "<svg" in pre.svg
    assert pre.svg != typed.svg
    for order in (variants, variants[::-1]):
        found = {name: drawing for drawing, names in block_drawings(order) for name in names}
        assert [found[variant.name] for variant in variants[:2]] == [pre, typed]


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"model__depth": 10000}, "too large"), ({"model__heads": 3}, "heads")],
)
def test_a_config_that_cannot_be_built_here_is_not_drawn(tmp_path, keys, why):
    make_run(tmp_path, config_of([], 0, **keys), 2.3)
    ((block, _),) = block_drawings(read_study([tmp_path]).variants)
    assert block.svg == ""
    assert why in block.why


def test_what_another_version_measured_is_shown_by_its_own_name(tmp_path):
    make_study(tmp_path, {"pre": {0: 2.3}})
    study = read_study([tmp_path])
    row = {"step": 1, "probe/a<b/c&d/0": 1.0}
    shown = probe_data(study, {member.folder: [row] for member in study.runs})
    (measure,), (variant,) = shown["measures"], shown["variants"]
    (part,) = measure["parts"]
    assert measure["title"] == "a&lt;b"
    assert variant["values"][measure["name"]][part] == {"0": [1.0]}


def test_only_the_page_of_an_unfinished_study_is_loaded_anew(tmp_path, monkeypatch):
    from transformer_norms.report import page

    monkeypatch.setattr(page, "block_drawings", lambda variants: [])
    make_study(tmp_path, {"pre": {0: 2.3}, "post": {0: 2.4}})
    run = next(tmp_path.glob("post*"))
    edit(run, status="running")
    refreshing = '<meta http-equiv="refresh" content="7">'
    assert refreshing in write_report([tmp_path], refresh=7)[0].read_text()
    assert refreshing not in write_report([tmp_path])[0].read_text()
    edit(run, status="finished")
    assert refreshing not in write_report([tmp_path], refresh=7)[0].read_text()


def test_one_variant_far_out_leaves_the_small_pictures_of_the_others_readable(tmp_path):
    far = {0: 2.3, 1: 9.3, 2: 2.4}
    make_study(tmp_path, {"pre": PRE, "sandwich": SANDWICH, "peri": SANDWICH, "post": far})
    found = findings(read_study([tmp_path]))
    on = scale(found)
    near = forest(found, found.study.variant("sandwich"), on)
    assert near.beyond == (False, False)
    assert near.interval[1] - near.interval[0] > 5
    assert forest(found, found.study.variant("post"), on).beyond == (True, True)


def test_what_all_results_share_is_listed_and_what_they_do_not_is_named(tuned):
    _, _, found = tuned
    shared, differing = shared_settings(found.study)
    assert ("lr", "0.01") in shared["optimizer"]
    assert ("steps", "40") in shared["trainer"]
    assert ("width", "64") in shared["model"]
    assert "norm.type" in differing
    assert "norm" not in shared or "type" not in dict(shared["norm"])
