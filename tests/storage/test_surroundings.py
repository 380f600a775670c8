"""Homes, streams, folders and locales that are not as a command would have them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import surroundings
from run_folders import PRE, make_study
from surroundings import TINY, drop_rights, fill, small_disk, the_line
from warm import CEILING, TEXT, Command

from transformer_norms.commands.dispatch import ANALYSES, COMMANDS
from transformer_norms.run.summary import read_summary

COMMAND = "transformer_norms/__main__.py"
NIGHTLY = pytest.mark.nightly


# ------------------------------------------------------------------------------ homes and caches


def read_only_disk(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def file_in_the_way(disk):
    (disk / "file").write_text("not a folder")


OWN = "TRANSFORMER_NORMS_CACHE"
# What is done to a disk, and the environment, in which {} is the disk.
CACHES = {
    "a full disk": (fill, {OWN: "{}/cache"}),
    "a read-only disk": (read_only_disk, {OWN: "{}/cache"}),
    "no home": (id, {"HOME": "/proc/nobody"}),
    "no XDG cache": (id, {"XDG_CACHE_HOME": "/proc/cache"}),
    "a file for a cache": (file_in_the_way, {OWN: "{}/file"}),
    "a file above the cache": (file_in_the_way, {OWN: "{}/file/cache"}),
    "an unknown user": (id, {}),
}


@pytest.mark.goal("D2")
@pytest.mark.parametrize("what", CACHES)
def test_a_cache_that_cannot_be_written_is_one_line_with_its_path(
    what, command, tmp_path, monkeypatch
):
    spoil, environment = CACHES[what]
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        spoil(disk)
        for name in (OWN, "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        places = [value.format(disk) for value in environment.values()]
        for name, place in zip(environment, places, strict=True):
            monkeypatch.setenv(name, place)
        if not environment:
            monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
        for typed in (["train", *TINY], ["data", *TINY]):
            code, out, err = command(*typed)
            assert (code, out) == (4, "")
            line = the_line(err)
            assert line.startswith((*places, "~"))
            assert f"{OWN}=FOLDER" in line
            assert ("is a file" in line) == what.startswith("a file")


@pytest.mark.goal("D4")
@NIGHTLY
def test_libraries_that_find_no_home_neither_print_nor_fail(tmp_path):
    """matplotlib draws the curve, and `datasets` reads the rows."""
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    rows = [json.dumps({"text": f"{i} owls read {i * i % 97} books."}) for i in range(300)]
    Path("rows.jsonl").write_text("\n".join(rows))
    typed = [text for text in TINY if not text.startswith("data")]
    typed += ["data=jsonl", "data.paths=rows.jsonl", "data.val_tokens=300"]
    environment = {"HOME": str(home), "HF_HOME": "", "MPLCONFIGDIR": ""}
    program = Command(typed, environment, prepare=drop_rights)
    out, err = program.communicate(CEILING)
    assert program.returncode == 0, err
    assert list(Path("runs/main").glob("*/curve.svg"))
    assert "atplotlib" not in err
    assert not list(home.iterdir())


# --------------------------------------------------------------------------------- the streams


@pytest.mark.goal("D4")
@pytest.mark.parametrize(
    "state",
    ["leave_both", *(pytest.param(name, marks=NIGHTLY) for name in [*surroundings.STATES][1:])],
)
def test_a_run_ends_as_ever_whatever_becomes_of_its_streams(state, measured):
    program = Command(TINY, prepare=surroundings.STATES[state])
    _, err = program.communicate(CEILING)
    assert program.returncode == 0
    assert "Exception ignored" not in err
    (folder,) = Path("runs/main").iterdir()
    assert read_summary(folder).status == "finished"
    measured(f"{state}: exit 0")


@pytest.mark.goal("D4")
@NIGHTLY
@pytest.mark.parametrize("launcher", ["basic", "pool"])
@pytest.mark.parametrize("state", ["leave_both", "close_both", "fill_stderr"])
def test_a_sweep_of_two_stages_and_its_report_end_as_ever(state, launcher, measured):
    Path("mine/configs/sweep").mkdir(parents=True)
    Path("mine/configs/sweep/two.yaml").write_text(
        "question: Which?\nbaseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"
        "tune: {optimizer.lr: [1e-2, 3e-2], seed: [100]}\nseeds: [0]\n"
    )
    Path("corpus.txt").write_text(TEXT)
    # Runs that learn nothing would leave no best rate, and no second stage.
    typed = ["model=nano", "data=text", "data.paths=corpus.txt", "data.val_tokens=300"]
    typed += ["tracking=none", "trainer.threads=1", "trainer.steps=40", "schedule.warmup=3"]
    typed += ["plugins=mine", "sweep=two", f"launcher={launcher}"]
    typed += ["launcher.workers=2"] * (launcher == "pool")
    program = Command(typed, prepare=surroundings.STATES[state])
    out, err = program.communicate(CEILING)
    assert program.returncode == 0, err
    assert "Exception ignored" not in err
    (record,) = Path("runs").glob("*/sweep-two.json")
    planned = json.loads(record.read_text())["runs"]
    assert {run["stage"] for run in planned} == {"tune", "result"}
    assert all(read_summary(record.parent / run["folder"]).ended for run in planned)
    assert (record.parent / "report.html").is_file()
    measured(f"{state}, launcher={launcher}: exit 0, both stages, report")


# ------------------------------------------------------------------------------------- folders


@pytest.mark.goal("D5")
@pytest.mark.parametrize(
    "typed",
    [[name] for name in COMMANDS if name != "analysis"] + [["analysis", name] for name in ANALYSES],
    ids=" ".join,
)
def test_a_current_folder_that_is_gone_is_one_line(typed, command, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/norm.py").touch()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for more in ([], [f"plugins={tmp_path}/mine"]):
        code, out, err = command(*typed, *more)
        assert (code, out) == (4, "")
        assert the_line(err).endswith("the current folder was deleted; change to another")
        assert len(err.splitlines()) == 1
    monkeypatch.chdir(tmp_path)


@pytest.mark.goal("D5")
def test_a_run_that_may_not_be_read_is_named_and_the_others_are_listed(here):
    make_study("runs/study", {"pre": PRE})
    first, *others = sorted(path for path in Path("runs/study").iterdir() if path.is_dir())
    first.chmod(0)
    listed, reported = ["runs", "study", "--json"], ["report", "runs/study"]
    for typed in (listed, reported):
        program = Command(typed, program=COMMAND, prepare=drop_rights)
        out, err = program.communicate(CEILING)
        assert program.returncode == 0, err
        (line,) = [line for line in err.splitlines() if "ermission denied" in line]
        assert str(first) in line
        assert "Traceback" not in err
        if typed is listed:
            assert len(json.loads(out)) == len(others)
    first.chmod(0o700)


# ------------------------------------------------------------------------------------- locales


@pytest.mark.goal("D5")
@NIGHTLY
@pytest.mark.parametrize(
    "letters",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
    ids=lambda letters: " ".join(letters),
)
def test_in_every_locale_each_command_prints(letters, command, here):
    assert command("train", *TINY)[0] == 0
    environment = {**os.environ, **letters, "PYTHONPATH": os.pathsep.join(sys.path)}
    python = [sys.executable, "-m", "transformer_norms"]
    for typed in (
        ["explain", "placement=hybrid"], ["explain", "--list"], ["runs"], ["plan"],
        ["sample", "main", "--prompt", "„Ein“ ↯", "--tokens", "40"], ["report", "main"],
        ["analysis", "invariances"], ["train", *TINY, "seed=1"],
    ):  # fmt: skip
        ended = subprocess.run([*python, *typed], env=environment, capture_output=True)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.isascii()
        assert ended.stdout
