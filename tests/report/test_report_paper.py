"""What a report gives a paper: panels as figures of their own."""

import re
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from page_studies import LOSSES, STEPS, axes_of, depth_study, panels_of, tuned_study, value
from run_folders import BATCH, CONTEXT, FLOPS

from transformer_norms.report import writing
from transformer_norms.report.__main__ import main
from transformer_norms.report.charts.panels import panel_files
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet, read_length
from transformer_norms.report.writing import write_figures

TOKENS = STEPS[-1] * CONTEXT * BATCH


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The panels of two studies by name, and the rows of a run by its folder."""
    found = {}
    for name, make in (("depth", depth_study), ("tuned", tuned_study)):
        study = tmp_path_factory.mktemp("paper") / name
        make(study)
        found[name] = findings(read_study([study]))
    every = {}
    for own in found.values():
        every |= panels_of(own)
    return every, found["tuned"]


def test_every_panel_of_the_page_is_there(drawn):
    along = {f"loss-by-{x}" for x in ("tokens", "tokens-log", "flops", "seconds")}
    probes = {f"probe-{name}{x}" for name in ("stream-rms", "gradient-norm",
              "gradient-norm-attention-query", "gradient-norm-mlp-up")
              for x in ("", "-by-step")}  # fmt: skip
    rest = {"final-loss", "differences", "tuning", "final-loss-by-model-depth"}
    assert drawn[0].keys() == along | probes | rest


def test_a_curve_is_drawn_along_what_its_file_is_named_after(drawn):
    ends = {"tokens": TOKENS, "flops": FLOPS * TOKENS, "seconds": STEPS[-1] / 2}
    for name, end in {**ends, "tokens-log": TOKENS}.items():
        axes = axes_of(drawn[0][f"loss-by-{name}"])
        assert max(line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata())) == end
        scale = "log" if name.endswith("-log") else "linear"
        assert (axes.get_xscale(), axes.get_yscale()) == (scale, scale)


def test_rows_of_differences_have_the_seeds_their_mean_and_interval(drawn):
    panels_, found = drawn
    axes = axes_of(panels_["differences"])
    names = ["rmsnorm post", "layernorm post"]
    assert panels_["differences"].rows == names
    first = LOSSES["rmsnorm", "post"]
    own = [first[seed] - LOSSES["rmsnorm", "pre"][seed] for seed in first]
    marked = {mark: [[*line.get_xdata()] for line in axes.lines if line.get_marker() == mark]
              for mark in ("o", "|", "<")}  # fmt: skip
    assert [sorted(x) for x in marked["o"]] == [pytest.approx(sorted(own))]
    assert marked["|"] == [[pytest.approx(np.mean(own))]]
    compared, edge = found.comparisons["rmsnorm post"], axes.get_xlim()[0]
    spans = [
        line for line in axes.lines if line.get_marker() == "None" and line.get_linewidth() > 0
    ]
    thin, thick = sorted(spans[1:], key=lambda line: line.get_linewidth())  # the first is zero
    assert [*thick.get_xdata()] == [*compared.interval]
    assert compared.bounds[0] == -np.inf  # what tuning missed is not known
    assert [*thin.get_xdata()] == [edge, compared.bounds[1]]
    assert marked["<"] == [[edge]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "a seed", "95 % interval", "bounds: for all comparisons at once,\nwith the tuning error; "
        "they decide"
    ]  # fmt: skip
    assert "runs failed" in [text.get_text() for text in axes.texts]


def test_a_probe_is_drawn_by_block_at_the_step_that_the_page_shows_first(drawn):
    axes = axes_of(drawn[0]["probe-stream-rms"])
    seeds = LOSSES["rmsnorm", "pre"]
    wanted = [0.5, *(np.mean([value(s, STEPS[1], block) for s in seeds]) for block in (0, 1))]
    assert list(axes.lines[0].get_ydata()) == pytest.approx(wanted, rel=1e-3)
    assert axes.get_xlabel() == f"block, at step {STEPS[1]}"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["embedding", "0", "1"]


def files_of(panel):
    sheet = Sheet(font="serif")
    with drawn_with(TEXT, sheet.settings()):
        return panel_files(panel, sheet)


def test_a_pdf_has_the_width_of_a_column_true_type_fonts_and_letters_that_can_be_read(drawn):
    for name in ("loss-by-tokens", "differences"):
        (data,) = files_of(drawn[0][name]).values()
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+)", data)
        assert float(box[1]) == 3.25 * 72
        assert b"/FontFile2" in data
        assert b"/Type3" not in data
        assert not re.search(rb"/(CreationDate|Producer|Creator|ID)\b", data)
        streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S)
        drawn_text = b"\n".join(zlib.decompress(one) for one in streams if one[:1] == b"\x78")
        sizes = {float(size) for size in re.findall(rb"/F\d+ ([\d.]+) Tf", drawn_text)}
        assert sizes
        assert 7 <= min(sizes) <= max(sizes) <= 9


def test_figures_drawn_anew_are_the_same_bytes_and_unchanged_files_are_not_touched(
    drawn, tmp_path, monkeypatch
):
    panel = drawn[0]["tuning"]
    monkeypatch.setattr(writing, "panels", lambda findings, rows: [panel])
    sheet = Sheet(("svg", "pdf"), read_length("10cm"))
    paths = write_figures(drawn[1], tmp_path / "new", sheet)
    assert paths == [str(tmp_path / "new" / f"tuning.{kind}") for kind in ("svg", "pdf")]
    before = [(Path(path).read_bytes(), Path(path).stat().st_mtime_ns) for path in paths]
    write_figures(drawn[1], tmp_path / "new", sheet)
    assert [(Path(p).read_bytes(), Path(p).stat().st_mtime_ns) for p in paths] == before
    svg = ElementTree.fromstring(before[0][0])
    assert float(svg.get("width").removesuffix("pt")) == pytest.approx(10 / 2.54 * 72, abs=0.01)


@pytest.mark.parametrize(
    ("flag", "typed", "message"),
    [
        ("width", "3.25", "a length such as 3.25in is wanted, in in, cm, mm, pt"),
        ("width", "3inch", "a length such as 3.25in is wanted"),
        ("width", "999in", "is 999 inches; 1 to 40 inches are drawn"),
        ("format", "jpg", "pdf, svg can be written"),
        ("font", "serf", "did you mean 'serif'? --font takes serif, sans"),
    ],
)
def test_what_no_figure_can_be_is_refused_in_one_line(flag, typed, message, capsys):
    assert main(["nowhere", "--figures", "x", f"--{flag}", typed]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"--{flag} {typed}: {message}")
    assert said.count("\n") == 1


def test_a_length_is_read_as_tex_reads_it():
    widths = {"3.25in": 3.25, "8.255cm": 3.25, "82.55mm": 3.25, "234.8775pt": 3.25}
    for text, inches in widths.items():
        assert read_length(text) == pytest.approx(inches)


def test_flags_of_figures_without_figures_are_refused_before_anything_is_read(capsys):
    assert main(["nowhere", "--width", "3in"]) == 2
    assert capsys.readouterr().err == "--width: type --figures DIR as well; it is about figures\n"
