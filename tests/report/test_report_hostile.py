"""A report of folders that anybody may have written."""

import json
import os
import shutil
from pathlib import Path

import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import (
    PRE,
    edit,
    folder,
    make_study,
    rows,
    text,
)

from transformer_norms.report.__main__ import main
from transformer_norms.text_tables import escape_latex, escape_markdown, spreadsheet_cell

EVIL = '=cmd|"/C calc"!A1\x1b[31m\n<script>x</script> \\input{/etc/passwd} $x$ & # _ ^ ~ % |\u202e'


@pytest.mark.goal("X6")
def test_anybodys_text_is_inert_in_every_file():
    make_study("study", {"pre": PRE, "post": PRE}, question=EVIL)
    edit(folder("post", 0), warnings=[EVIL], device=EVIL, commit="+1")
    table = text()
    tex = Path("study/table.tex").read_text()
    results = Path("study/results.csv").read_text()
    for written in (table, tex, results):
        assert all(c.isprintable() or c == "\n" for c in written)
    assert "<script>" not in table.replace("\\<script", "")
    assert "\n\\input" not in tex
    assert [row["device"][:5] for row in rows()].count("'=cmd") == 1
    assert [row["commit"] for row in rows()].count("'+1") == 1
    assert len({line.count(" | ") for line in table.splitlines() if line.startswith("| ")}) == 1


@pytest.mark.goal("X6")
@pytest.mark.parametrize("start", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_spreadsheet_takes_no_text_for_a_formula(start):
    assert spreadsheet_cell(start).startswith("'")
    assert spreadsheet_cell(-1.5) == -1.5


@pytest.mark.goal("X6")
def test_markdown_and_latex_specials_are_escaped():
    assert escape_markdown("a|b<c>[d](e)`f`*g*") == r"a\|b\<c\>\[d\](e)\`f\`\*g\*"
    assert escape_latex("50 %_{x} \\input") == r"50 \%\_\{x\} \textbackslash{}input"


def break_link(run):
    shutil.move(run / "summary.json", "elsewhere.json")
    (run / "summary.json").symlink_to(Path("elsewhere.json").absolute())


def break_folder(run):
    shutil.move(run, "elsewhere")
    run.symlink_to(Path("elsewhere").absolute())


def break_pipe(run):
    (run / "summary.json").unlink()
    os.mkfifo(run / "summary.json")


def break_size(run):
    with (run / "config.yaml").open("r+b") as file:
        file.truncate(1 << 40)


def replace_content(name, content):
    return lambda run: (run / name).write_bytes(content)


HOSTILE = {
    "a link": (break_link, "is a link"),
    "a linked folder": (break_folder, "is a link"),
    "a pipe": (break_pipe, "is no file"),
    "a terabyte": (break_size, "is longer than"),
    "garbage": (replace_content("summary.json", b"\x00\xff{"), "invalid json"),
    "a list": (replace_content("summary.json", b"[]"), "summary.json"),
    "brackets": (replace_content("summary.json", b"[" * 100_000), "invalid json"),
    "infinity": (lambda run: edit(run, val_loss=float("inf")), "should be a finite number"),
    "a word for a number": (lambda run: edit(run, val_loss="2.3"), "val_loss: input should be"),
    "no loss": (lambda run: edit(run, val_loss=None), "val_loss: a finished run has one"),
    "an alias": (replace_content("config.yaml", b"a: &a [1]\nb: [*a, *a]\n"), "no anchors"),
    "a tag": (
        replace_content("config.yaml", b"a: !!python/object/apply:os.system [touch canary]\n"),
        "holds no tags, and there is",
    ),
    "a deep config": (replace_content("config.yaml", b"[" * 50_000), "nested too deeply"),
    "half a config": (
        replace_content("config.yaml", b"form: 1\nchoices: {}\nseed: 0\n"),
        "is no saved run",
    ),
    "no config": (lambda run: (run / "config.yaml").unlink(), "No such file"),
    "no record": (
        replace_content("../sweep-quick.json", b'{"name": "../../x"}'),
        "sweep-quick.json: ",
    ),
}


@pytest.mark.goal("X7")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_one_line_and_the_other_runs_are_reported(what, capsys):
    make_study("study", {"pre": {0: 2.3}, "post": {0: 2.4}})
    breaks, said = HOSTILE[what]
    breaks(folder("pre", 0))
    assert main(["study"]) == 0
    printed = capsys.readouterr()
    start = "left out, as it is damaged: study/"
    line = next(line for line in printed.err.splitlines() if line.startswith(start))
    assert said in line
    named = escape_markdown(line)
    assert Path("study/table.md").read_text().count(named) == 2  # above what it is missing from
    runs, ended = (2, 2) if what == "no record" else (2, 1)
    answer = json.loads(printed.out)
    assert (answer["runs"], answer["finished"]) == (runs, ended)
    assert not Path("canary").exists()
    if what != "a linked folder":  # which may be typed by itself
        alone = folder("pre", 0) if runs > ended else Path("study/sweep-quick.json")
        assert main([str(alone)]) == 2
        assert said in capsys.readouterr().err
