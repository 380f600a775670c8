"""A study from a stranger: whatever lies in the place of a run's file is one line that names it,
and text is text in every file of a report."""

import json
import os
import shutil
from pathlib import Path

import pandas  # noqa: F401  before memory is bounded
import pytest
from no_files import (
    NO_FILES,
    bounded,  # noqa: F401  what hangs ends its test
)
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import rows, text
from run_folders import PRE, config_of, edit, folder, make_record, make_run, make_study, planned

from transformer_norms import ConfigError, compose, load, runs
from transformer_norms.commands.runs import main as list_runs
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.errors import InputError
from transformer_norms.report.__main__ import main as report
from transformer_norms.run.loading import tokenizer
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.text_tables import escape_markdown, spreadsheet_cell

CONTENTS = {
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "digits": b'{"step": ' + b"9" * 10_000 + b"}\n",
    "no UTF-8": b"\xff\xfe\n",
    "nothing": b"",
    "a list": b"[]\n",
    "a word": b'"x"\n',
    "a damaged line in the middle": b'{"step": 1, "tokens": 1}\n{"step"\n{"step": 3}\n',
}
ENTRIES = {
    "runs": lambda run: runs("study"),
    "frame": lambda run: runs("study").frame(),
    "load": load,
    "tokenizer": tokenizer,
    "config": lambda run: compose([f"config={run}/config.yaml"]),
    "metrics": lambda run: SavedRun(run).metrics(),
}
READS = {
    "summary.json": ["runs", "frame", "metrics"],
    "config.yaml": ["runs", "frame", "config", "load"],
    "metrics.jsonl": ["runs", "metrics"],
    "tokenizer.json": ["tokenizer"],
}
ATTACKS = [*CONTENTS, *(what for what in NO_FILES if what != "nothing")]
EVIL = '=cmd|"/C calc"!A1\x1b[31m\n<script>x</script> \\input{/etc/passwd} $x$ & # _ ^ ~ % |\u202e'


@pytest.fixture
def run(bounded):  # noqa: F811
    make_study("study", {"pre": {0: 2.3}, "post": {0: 2.4}})
    (folder("pre", 0) / "tokenizer.json").write_text("{}")
    return folder("pre", 0)


def attack(file, what):
    """Bytes, or what CONTENTS or NO_FILES has under that name, take the place of a file."""
    if file.is_symlink() or file.exists():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    if isinstance(what, bytes) or what in CONTENTS:
        file.write_bytes(CONTENTS.get(what, what))
    else:
        NO_FILES[what][0](file)


@pytest.mark.goal("X1", "X7")
@pytest.mark.parametrize("what", ATTACKS)
@pytest.mark.parametrize("name", READS)
def test_one_line_names_the_file(run, name, what):
    attack(run / name, what)
    harmless = name == "metrics.jsonl" and what == "nothing"  # a run that has no rows yet
    for entry in READS[name]:
        if harmless:
            ENTRIES[entry](run)
            continue
        with pytest.raises((ConfigError, InputError)) as caught:
            ENTRIES[entry](run)
        assert len(str(caught.value).splitlines()) == 1
        assert name in str(caught.value) or "tokenizer" in str(caught.value)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("bounded", [1 << 30], indirect=True)
@pytest.mark.parametrize("count", [30_001, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_a_sweep_record_of_more_runs_than_sweeps_plan_is_answered(count, bounded):  # noqa: F811
    file = make_record("study", [planned(config_of(), {"placement": "pre"})])
    record = json.loads(file.read_text())
    text = ",".join([json.dumps(record["runs"][0])] * count)
    file.write_text(json.dumps({**record, "runs": ["RUNS"]}).replace('"RUNS"', text))
    with pytest.raises(ConfigError, match="sweep-quick.json: runs: list should have at most 30000"):
        read_record(file)


def test_a_link_to_a_run_is_named_and_no_link_is_followed(run):
    """Pipes and sockets are passed over."""
    os.mkfifo("study/pipe")
    NO_FILES["a socket"][0](Path("study/socket"))
    Path("outside").mkdir()
    make_run("outside", config_of(seed=7), 2.0)
    (Path("study") / "away").symlink_to(Path("outside").absolute())
    assert len(run_folders(Path("study"))) == 2  # what lies behind it is not even listed
    assert report(["study"]) == 0
    inside = next(Path("outside").iterdir())
    (Path("study") / inside.name).symlink_to(inside.absolute())
    with pytest.raises(ConfigError, match=f"{inside.name}: is a link"):
        runs("study")
    assert len(runs(Path("study", inside.name))) == 1  # the user has named it


@pytest.mark.parametrize("what", ["a pipe", "a device behind a link", "a link out of the folder"])
def test_rows_are_appended_to_a_plain_file_alone(bounded, what):  # noqa: F811
    NO_FILES[what][0](Path("metrics.jsonl"))
    with pytest.raises(ConfigError, match="metrics.jsonl: is "):
        MetricsFile(Path("metrics.jsonl"))


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
def test_specials_of_markdown_are_escaped():
    assert escape_markdown("a|b<c>[d](e)`f`*g*") == r"a\|b\<c\>\[d\](e)\`f\`\*g\*"


def link_folder(run):
    shutil.move(run, "elsewhere")
    run.symlink_to(Path("elsewhere").absolute())


def put(name, what):
    return lambda run: attack(run / name, what)


TAG = b"a: !!python/object/apply:os.system [touch canary]\n"
HOSTILE = {
    "a linked folder": (link_folder, "is a link"),
    "infinity": (lambda run: edit(run, val_loss=float("inf")), "should be a finite number"),
    "no loss": (lambda run: edit(run, val_loss=None), "val_loss: a finished run has one"),
    "a tag": (put("config.yaml", TAG), "holds no tags, and there is"),
    "no config": (lambda run: (run / "config.yaml").unlink(), "No such file"),
    "no record": (put("../sweep-quick.json", b'{"name": "../../x"}'), "sweep-quick.json: "),
}


@pytest.mark.goal("X7")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_one_line_and_the_other_runs_are_reported(run, what, capsys):
    breaks, said = HOSTILE[what]
    breaks(run)
    assert report(["study"]) == 0
    printed = capsys.readouterr()
    start = "left out, as it is damaged: study/"
    line = next(line for line in printed.err.splitlines() if line.startswith(start))
    assert said in line
    named = escape_markdown(line)
    assert Path("study/table.md").read_text().count(named) == 2  # above what it is missing from
    list_runs(["study"])
    listed = capsys.readouterr().err.splitlines()
    if what not in ("no loss", "no record"):  # which a list of runs needs not
        assert sum(said in line for line in listed) == 1
    runs, ended = (2, 2) if what == "no record" else (2, 1)
    answer = json.loads(printed.out)
    assert (answer["runs"], answer["finished"]) == (runs, ended)
    assert not Path("canary").exists()
    if what != "a linked folder":  # which may be typed by itself
        alone = run if runs > ended else Path("study/sweep-quick.json")
        assert report([str(alone)]) == 2
        assert said in capsys.readouterr().err
