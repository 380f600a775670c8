"""The tables of a report for LaTeX, and the sources beside them."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import PRE, edit, folder, make_study, text

from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.paper.citations import publications
from transformer_norms.report.table import summary_lines
from transformer_norms.text_tables import escape_latex, latex_tabular

POST = {0: 2.50, 1: 2.53, 2: 2.51}
NEAR = {0: 2.301, 1: 2.318, 2: 2.315}


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
    terminal = "\n".join(summary_lines(findings(read_study([Path("study")]))))
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


HOSTILE = "50%_a & b # ^ ~ \\input{x} [3] * | <é ï ñ ç ő Å> “q” α Ω ± − → 中 \u202e"


@pytest.mark.goal("X6")
def test_special_characters_are_escaped_and_no_row_begins_with_an_argument():
    escaped = escape_latex(HOSTILE)
    assert escaped.isascii()
    assert r"\'{e}" in escaped
    assert r"\^{\i}" not in escaped
    assert r"\"{\i}" in escaped
    assert r"\H{o}" in escaped
    assert r"\r{A}" in escaped
    assert r"$\alpha$ \texttt{U+03A9} $\pm$ $-$ $\to$ \texttt{U+4E2D} ?" in escaped
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
