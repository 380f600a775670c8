"""A report writes for a paper: panels as figures, tables for LaTeX, and their sources."""

import re
import shutil
import subprocess
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from page_studies import LOSSES, STEPS, axes_of, depth_study, panels_of, tuned_study, value
from reports import findings_of, text
from run_folders import BATCH, CONTEXT, FLOPS, PRE, edit, folder, make_study, tree

from transformer_norms.report import writing
from transformer_norms.report.__main__ import main
from transformer_norms.report.charts.panels import panel_files
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.paper.citations import publications
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet, read_length
from transformer_norms.report.table import summary_lines
from transformer_norms.report.writing import write_figures
from transformer_norms.text_tables import escape_latex, latex_tabular

TOKENS = STEPS[-1] * CONTEXT * BATCH
POST = {0: 2.50, 1: 2.53, 2: 2.51}
NEAR = {0: 2.301, 1: 2.318, 2: 2.315}
HOSTILE = "50%_a & b # ^ ~ \\input{x} [3] * | <é ï ñ ç ő Å> “q” α Ω ± − → 中 \u202e"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The panels of two studies by name, and the findings of the second."""
    every = {}
    for make in (depth_study, tuned_study):
        study = tmp_path_factory.mktemp("paper")
        make(study)
        found = findings_of(study)
        every |= panels_of(found)
    return every, found


def test_every_panel_of_the_page_is_there(drawn):
    along = {f"loss-by-{x}" for x in ("tokens", "tokens-log", "steps", "flops", "seconds")}
    probes = {f"probe-{name}{x}" for name in ("stream-rms", "gradient-norm",
              "gradient-norm-attention-query", "gradient-norm-mlp-up")
              for x in ("", "-by-step")}  # fmt: skip
    rest = {"final-loss", "differences", "tuning", "final-loss-by-model-depth",
            "final-loss-by-step-time"}  # fmt: skip
    assert drawn[0].keys() == along | probes | rest


def test_a_curve_is_drawn_along_what_its_file_is_named_after(drawn):
    ends = {"tokens": TOKENS, "steps": STEPS[-1], "flops": FLOPS * TOKENS, "seconds": STEPS[-1] / 2}
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
    spans = [x for x in axes.lines if x.get_marker() == "None" and x.get_linewidth() > 0]
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


def test_a_pdf_has_the_width_of_a_column_true_type_fonts_and_letters_that_can_be_read(drawn):
    for name in ("loss-by-tokens", "differences"):
        with drawn_with(TEXT, (sheet := Sheet(font="serif")).settings()):
            (data,) = panel_files(drawn[0][name], sheet).values()
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


def test_figures_drawn_again_are_the_same_files(drawn, tmp_path, monkeypatch):
    panel = drawn[0]["tuning"]
    monkeypatch.setattr(writing, "chosen_panels", lambda wanted, findings, rows: [panel])
    sheet = Sheet(("svg", "pdf"), read_length("10cm"))
    paths = write_figures(drawn[1], tmp_path / "new", sheet)
    assert paths == [str(tmp_path / "new" / f"tuning.{kind}") for kind in ("svg", "pdf")]
    before = tree(tmp_path)
    write_figures(drawn[1], tmp_path / "new", sheet)
    assert tree(tmp_path) == before
    svg = ElementTree.fromstring(Path(paths[0]).read_bytes())
    assert float(svg.get("width").removesuffix("pt")) == pytest.approx(10 / 2.54 * 72, abs=0.01)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--width 3.25", "--width 3.25: a length such as 3.25in is wanted, in in, cm, mm, pt"),
        ("--width 3inch", "--width 3inch: a length such as 3.25in is wanted"),
        ("--width 999in", "--width 999in: is 999 inches; 1 to 40 inches are drawn"),
        ("--format jpg", "--format jpg: pdf, svg can be written"),
        ("--font serf", "--font serf: did you mean 'serif'? --font takes serif, sans"),
        ("", "--width: type --figures DIR as well; it is about figures"),
    ],
)
def test_what_no_figure_can_be_is_refused_in_one_line(typed, message, capsys):
    words = ["--figures", "x", *typed.split()] if typed else ["--width", "3in"]
    assert main(["nowhere", *words]) == 2  # before anything is read
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1


def test_a_length_is_read_as_tex_reads_it():
    widths = {"3.25in": 3.25, "8.255cm": 3.25, "82.55mm": 3.25, "234.8775pt": 3.25}
    for typed, inches in widths.items():
        assert read_length(typed) == pytest.approx(inches)


def tex(name="table"):
    return Path("study", f"{name}.tex").read_text()


def cells(source):
    """The rows of a tabular, their cells as they are typed."""
    (inside,) = re.findall(r"\\begin\{tabular\}\{[^\n]*\n(.*?)\\end\{tabular\}", source, re.S)
    lines = [line for line in inside.splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in line.removesuffix(r"\\").split("&")] for line in lines]


def caption(source):
    return re.search(r"\\caption\{(.*)\}\n", source)[1]


def test_the_short_table_has_means_with_their_deviation_and_the_lowest_is_bold():
    make_study("study", {"pre": PRE, "post": POST, "peri": NEAR})
    text()
    heading, *rows = cells(tex())
    assert heading == ["variant", r"loss $\pm$ sd", "difference", "verdict", "$n$"]
    deviations = {name: np.std([*own.values()], ddof=1)
                  for name, own in (("pre", PRE), ("post", POST), ("peri", NEAR))}  # fmt: skip
    assert [row[1] for row in rows] == [
        rf"$\mathbf{{2.3100}} \pm {deviations['pre']:.4f}$",
        rf"$2.5133 \pm {deviations['post']:.4f}$",
        rf"$2.3113 \pm {deviations['peri']:.4f}$",
    ]
    assert [row[2] for row in rows] == ["", "$+0.2033$", "$+0.0013$"]
    assert [row[3] for row in rows] == ["baseline", "worse", "equivalent"]
    assert {row[4] for row in rows} == {"$3$"}
    said = caption(tex())
    assert "Bold: the lowest mean, which is not a verdict." in said
    assert "Regime: data stories; " in said
    assert "3 seeds; not tuned." in said
    assert r"\label{tab:study}" in tex()
    assert r"% pre: \cite{radford2019gpt2,xiong2020layernorm}" in tex()


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_mean_has_its_deviation_everywhere_and_no_test_is_told_that_was_not_made(seeds):
    every = {"pre": PRE, "post": POST, "peri": NEAR}
    make_study("study", {name: dict(list(own.items())[:seeds]) for name, own in every.items()})
    table = text()
    terminal = "\n".join(summary_lines(findings_of("study")))
    places = {"terminal": terminal, "table": table, "short": tex()}
    for own in every.values():
        losses = list(own.values())[:seeds]
        mean, deviation = f"{np.mean(losses):.4f}", f"{np.std(losses, ddof=1):.4f}"
        wanted = re.compile(rf"{mean}\}}?( ± | \\pm ){deviation}")
        assert [name for name, said in places.items() if not wanted.search(said)] == []
    assert "val loss ± sd" in terminal.splitlines()[0]
    assert "mean ± standard deviation (sd) over seeds" in table
    assert r"mean $\pm$ standard deviation (sd) over seeds" in caption(tex())
    assert ("too few seeds for an interval and a p" in table) is (seeds < 3)
    assert ["for 2 comparisons at once" in x for x in (table, caption(tex()))] == [seeds > 2] * 2


def test_what_failed_is_no_best_mean_and_minus_signs_stand_in_math_mode():
    make_study(
        "study",
        {"pre": PRE, "post": {0: 2.0, 1: None, 2: 2.01}, "peri": {0: 2.2, 1: 2.21, 2: 2.19}},
    )
    text()
    rows = {row[0]: row for row in cells(tex())}
    assert rows["post"][1] == "1 of 3 failed"
    assert rows["peri"][1].startswith(r"$\mathbf{2.2000}")
    assert rows["peri"][2] == "$-0.1100$"
    seeds = cells(tex("table-seeds"))
    assert seeds[0] == ["variant", "seed $0$", "seed $1$", "seed $2$"]
    assert seeds[2] == ["post", "$2.0000$", "failed", "$2.0100$"]


def test_of_more_seeds_than_variants_the_seeds_are_the_rows():
    make_study("study", {"pre": {s: 2.3 + s / 100 for s in range(4)}, "post": {0: 2.5}})
    text()
    heading, *rows = cells(tex("table-seeds"))
    assert heading == ["", "pre", "post"]
    assert [row[1] for row in rows] == ["$2.3000$", "$2.3100$", "$2.3200$", "$2.3300$"]


@pytest.mark.goal("X6")
def test_special_characters_are_escaped_and_no_row_begins_with_an_argument():
    escaped = escape_latex(HOSTILE)
    assert escaped.isascii()
    symbols = r"$\alpha$ \texttt{U+03A9} $\pm$ $-$ $\to$ \texttt{U+4E2D} ?"
    for part in (r"\'{e}", r"\"{\i}", r"\H{o}", r"\r{A}", symbols):
        assert part in escaped, part
    assert r"\^{\i}" not in escaped
    plain = re.sub(r"\\[%_&#{}]|\\\w+\{\}", "", escaped)
    assert not set("%&#^~") & set(plain.replace(r"\~{n}", ""))
    rows = latex_tabular([["a"], ["[1] x"], ["* y"]], "l").splitlines()
    assert [row for row in rows if re.match(r"\s*[\[*]", row)] == []


def test_the_sources_of_a_study_are_those_of_its_choices():
    make_study("study", {"pre": PRE, "peri": NEAR})
    for seed in NEAR:
        file = folder("peri", seed) / "config.yaml"
        own = re.sub(
            "source: Peri-LN.*", "source: Our own, Doe {et al}. 2031 @ 50%", file.read_text()
        )
        file.write_text(own)
    text()
    bib = Path("study/sources.bib").read_text()
    keys = re.findall(r"^@\w+\{([^,]+),$", bib, re.M)
    assert keys == sorted(set(keys))
    assert {"zhang2019rmsnorm", "xiong2020layernorm", "su2021rope",
            "loshchilov2017adamw", "so2021primer", "placement-peri"} <= set(keys)  # fmt: skip
    assert r"note = {Our own, Doe (et al). 2031 (at) 50\%}" in bib
    assert "named = " not in bib
    assert bib.count("{") == bib.count("}")


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no LaTeX")
def test_latex_and_bibtex_take_every_file():
    names = {"pre": PRE, "post": POST, "peri": NEAR}
    make_study("study", names, question=HOSTILE)
    edit(folder("post", 0), warnings=[HOSTILE])
    text()
    every = "\n".join(one.text for one in publications())
    Path("all.bib").write_text(every)
    inputs = "\n".join(rf"\input{{study/{name}}}" for name in ("table", "table-seeds"))
    Path("doc.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,graphicx,url}\begin{document}" + inputs
        + latex_tabular([["a", "b"], [escape_latex(HOSTILE), "[x]"], ["[x]", "*"]], "ll")
        + r"\nocite{*}\bibliographystyle{plain}\bibliography{all,study/sources}\end{document}"
    )  # fmt: skip
    for command in (["pdflatex"], ["bibtex"], ["pdflatex"]):
        stop = ["-halt-on-error"] if command == ["pdflatex"] else []
        done = subprocess.run([*command, *stop, "doc"], capture_output=True, text=True)
        repeated = "Repeated entry" in done.stdout  # of two files with the same entries
        assert done.returncode == 0 or repeated, done.stdout[-2000:]
    cited = Path("doc.bbl").read_text().count(r"\bibitem")
    assert cited == len(publications())
    assert "Overfull" not in Path("doc.log").read_text().partition("doc.bbl")[0]
