"""What the page says, and that it is what the runs say."""

import json
import re
from html import unescape
from statistics import fmean

import pytest
from page_studies import (
    LOSSES,
    STEPS,
    axes_of,
    depth_study,
    panels_of,
    runs_of,
    skip_charts,
    skip_files,
    tuned_study,
    value,
)
from reports import findings_of, study_of
from run_folders import PRE, SANDWICH, config_of, make_run, make_study

from transformer_norms.report import figures
from transformer_norms.report.answer import answer, contrast_sentence
from transformer_norms.report.charts.differences import difference_rows, limit_of
from transformer_norms.report.charts.profiles import probe_profiles
from transformer_norms.report.page import shared_settings
from transformer_norms.report.page.drawings import block_drawings
from transformer_norms.report.scope import regime
from transformer_norms.report.writing import write_report


def words_of(page):
    """The text that a reader sees."""
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", page, flags=re.S)
    return " ".join(unescape(shown).split())


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    skip_charts(monkeypatch)
    skip_files(monkeypatch)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The page of a study with tuned rates, and its parts; written without its drawings."""
    study = tmp_path_factory.mktemp("tuned") / "study"
    tuned_study(study)
    with pytest.MonkeyPatch.context() as patch:
        skip_charts(patch)
        skip_files(patch)
        path, found = write_report([study])
    return study, words_of(path.read_text()), found


def test_the_answer_stands_before_everything_else_and_no_failure_or_difference_lacks(tuned):
    _, words, found = tuned
    said = answer(found)
    assert said.lead.startswith("rmsnorm post is better than rmsnorm pre by 0.1187 nats")
    assert words.index(said.lead) < words.index("Results")
    assert [*said.groups] == ["better", "failed"]
    assert "layernorm post failed to train in 1 of 3 runs" in words
    assert found.differences["rmsnorm post"]
    assert all(text in words for text in found.differences["rmsnorm post"])


def test_contrasts_and_what_the_answer_is_about_stand_on_the_page(tmp_path):
    post = {seed: loss + 0.1 for seed, loss in PRE.items()}
    make_study(tmp_path, {"pre": PRE, "post": post, "out": SANDWICH}, contrasts=["post - out"])
    path, found = write_report([tmp_path])
    words = words_of(path.read_text())
    said = contrast_sentence(found, found.study.contrasts[0])
    assert words.index(f"{said}.") < words.index("Results")
    assert f"Scale of these results: {regime(found)}." in words
    assert "contrast seeds value 95 % interval" in words
    assert f"post - out 3 {found.contrasts['post - out'].difference:+.4f} " in words
    assert "Other differences between the variants of a contrast: post (out in brackets)" in words


@pytest.mark.parametrize("make", [tuned_study, depth_study])
def test_the_navigation_has_every_heading_in_its_words_and_order(tmp_path, make):
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
            assert traced in words
        assert summary["data"]["fingerprint"][:12] in words
        assert summary["batch_chain"][:12] in words


def test_curves_are_the_rows_of_the_runs(tuned):
    _, _, found = tuned
    lines = axes_of(panels_of(found)["loss-by-tokens"]).lines
    drawn = {line.tag.words: line for line in lines if hasattr(line, "tag")}
    for variant in found.study.variants:
        finals = []
        for member in variant.results:
            rows = [json.loads(line) for line in (member.folder / "metrics.jsonl").open()]
            words = f"{variant.name}, seed {member.seed}: {member.folder.name}"
            assert drawn[words].get_xdata().tolist() == [row["tokens"] for row in rows]
            assert drawn[words].get_ydata().tolist() == [row["val/loss"] for row in rows]
            finals += [[row["val/loss"] for row in rows]] if member.status == "finished" else []
        means = [fmean(losses) for losses in zip(*finals, strict=True)]
        assert drawn[f"{variant.name}, mean"].get_ydata().tolist() == pytest.approx(means)
        assert variant.flops_per_token == 6000


def test_rates_of_more_variants_than_lines_differ_are_a_map_and_called_so(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "MOST_LINES", 2)
    tuned_study(tmp_path)
    path, found = write_report([tmp_path])
    assert "A row for each variant, a cell for each value" in words_of(path.read_text())
    assert panels_of(found)["tuning"].rows == [" ".join(names) for names in LOSSES]


def profiles_of(study):
    rows = {member.folder: member.run.metrics() for member in study.runs}
    return {(own.measure, own.part): own for own in probe_profiles(study, rows)}


def test_probes_are_means_over_the_seeds_that_finished(tuned):
    _, _, found = tuned
    profiles = profiles_of(found.study)
    parts = ["", "attention.query", "mlp.up"]
    assert [*profiles] == [("stream_rms", ""), *(("gradient_norm", part) for part in parts)]
    for variant in found.study.variants:
        seeds = [m.seed for m in variant.results if m.status == "finished"]
        for number, part in enumerate(parts):
            means = profiles["gradient_norm" if part else "stream_rms", part].means[variant.name]
            for block in (0, 1):
                expected = {s: fmean(value(x, s, block, number) for x in seeds) for s in STEPS}
                assert means[str(block)] == pytest.approx(expected)
            if not part:
                assert means["embedding"] == dict.fromkeys(STEPS, 0.5)


def test_a_probe_that_one_seed_lacks_has_no_mean(tmp_path):
    tuned_study(tmp_path)
    file = next(tmp_path.glob("pre-s0*")) / "metrics.jsonl"
    file.write_text(re.sub(r'"probe/stream_rms/1": [0-9.]+', '"probe/stream_rms/1": null',
                           file.read_text(), count=1))  # fmt: skip
    means = profiles_of(study_of(tmp_path))["stream_rms", ""].means
    measured = [[*own["1"]] for own in means.values()]
    assert sorted(measured) == [STEPS, STEPS, STEPS, STEPS[1:]]


def test_losses_are_drawn_against_an_axis_of_numbers(tmp_path):
    depth_study(tmp_path)
    path, found = write_report([tmp_path])
    axes = axes_of(panels_of(found)["final-loss-by-model-depth"])
    means = [line for line in axes.lines if line.get_linestyle() != "None"]
    for line, gain in zip(means, (0, 0.02), strict=True):
        assert list(line.get_xdata()) == [2, 4, 16]
        losses = [3 - depth / 20 - gain + 0.005 for depth in (2, 4, 16)]
        assert list(line.get_ydata()) == pytest.approx(losses)
    assert {text.get_text() for text in axes.texts} == {"pre", "sandwich"}
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o"]
    assert [list(x) for x in dots] == [[2, 2], [4, 4], [16, 16]] * 2
    assert (axes.get_xscale(), list(axes.get_xticks())) == ("log", [2, 4, 16])
    assert "Loss against model.depth" in words_of(path.read_text())


def test_blocks_that_are_drawn_alike_are_drawn_once(tmp_path):
    make_study(tmp_path, {"pre": {0: 2.3}, "post": {0: 2.4}})
    pre, post = study_of(tmp_path).variants
    drawings = block_drawings([pre, post, pre])
    assert [names for _, names in drawings] == [["pre", "pre"], ["post"]]
    assert all(block.svg.startswith("<svg") and "rmsnorm" in block.svg for block, _ in drawings)


def test_what_differs_in_its_name_alone_is_drawn_under_its_own_name(tmp_path):
    """And an optimizer that is not known here keeps no other variant from being drawn."""
    typed = ["placement.equation=x + f(norm(x))"]
    for optimizer, overrides in (("adamw", []), ("muon", typed), ("mine", typed)):
        config = config_of([*overrides, f"optimizer={optimizer.replace('mine', 'adamw')}"])
        for node in (config, config["chosen"]):
            node["optimizer"]["type"] = node["choices"]["optimizer"] = optimizer
        make_run(tmp_path, config, 2.3)
    variants = study_of(tmp_path).variants
    assert [variant.name.split()[-1] for variant in variants] == ["adamw", "muon", "mine"]
    pre, typed, unknown = (block_drawings([variant])[0][0] for variant in variants)
    assert "mine" in unknown.why
    assert "<svg" in pre.svg
    assert pre.svg != typed.svg
    for order in (variants, variants[::-1]):
        found = {name: drawing for drawing, names in block_drawings(order) for name in names}
        assert [found[variant.name] for variant in variants[:2]] == [pre, typed]


@pytest.mark.parametrize(
    ("keys", "why"), [({"model__depth": 10000}, "too large"), ({"model__heads": 3}, "heads")]
)
def test_a_config_that_cannot_be_built_here_is_not_drawn(tmp_path, keys, why):
    make_run(tmp_path, config_of([], 0, **keys), 2.3)
    ((block, _),) = block_drawings(study_of(tmp_path).variants)
    assert block.svg == ""
    assert why in block.why


def test_what_another_version_measured_is_shown_by_its_own_name(tmp_path):
    make_study(tmp_path, {"pre": {0: 2.3}})
    study = study_of(tmp_path)
    row = {"step": 1, "probe/a<b/c&d/0": 1.0}
    (own,) = probe_profiles(study, {member.folder: [row] for member in study.runs})
    assert own.title == "a<b c&d"
    assert own.means == {"pre": {"0": {1: 1.0}}}


def test_one_variant_far_out_leaves_the_differences_of_the_others_readable(tmp_path):
    far = {seed: loss + 7 for seed, loss in SANDWICH.items()}
    make_study(tmp_path, {"pre": PRE, "sandwich": SANDWICH, "peri": SANDWICH, "post": far})
    found = findings_of(tmp_path)
    near, post = found.comparisons["sandwich"], found.comparisons["post"]
    limit, (low, high) = limit_of(difference_rows(found), found.study.margin), near.bounds
    assert -limit < low < high < limit
    assert high - low > limit / 16
    assert limit < post.bounds[0] < post.interval[0]


def test_what_all_results_share_is_listed_and_what_they_do_not_is_named(tuned):
    _, _, found = tuned
    shared, differing = shared_settings(found.study)
    for group, key, said in (("optimizer", "lr", "0.01"), ("trainer", "steps", "40"),
                             ("model", "width", "64")):  # fmt: skip
        assert (key, said) in shared[group]
    assert "norm.type" in differing
    assert "type" not in dict(shared.get("norm", ()))
