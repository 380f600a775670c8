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


def ends_well(typed, environment=(), prepare=None):
    """Returns what train.py prints on stderr in an environment that `prepare` makes."""
    program = Command(typed, environment, prepare=prepare)
    _, err = program.communicate(CEILING)
    assert program.returncode == 0, err
    assert "Exception ignored" not in err
    return err


OWN = "TRANSFORMER_NORMS_CACHE"
# The variable that names the cache, what it holds, and what is done to a disk at {}.
CACHES = {
    "a full disk": (OWN, "{}/cache", fill),
    "a read-only disk": (OWN, "{}/cache",
                         lambda disk: subprocess.check_call(["mount", "-o", "remount,ro", disk])),
    "no home": ("HOME", "/proc/nobody", id),
    "no XDG cache": ("XDG_CACHE_HOME", "/proc/cache", id),
    "a file for a cache": (OWN, "{}/file", lambda disk: (disk / "file").touch()),
    "a file above the cache": (OWN, "{}/file/cache", lambda disk: (disk / "file").touch()),
    "an unknown user": ("UNREAD", "~", id),
}  # fmt: skip


@pytest.mark.goal("D2")
@pytest.mark.parametrize("what", CACHES)
def test_a_cache_that_cannot_be_written_is_one_line_with_its_path(
    what, command, tmp_path, monkeypatch
):
    variable, place, spoil = CACHES[what]
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        spoil(disk)
        for name in (OWN, "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(variable, place.format(disk))
        if what == "an unknown user":
            monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
        for name in ("train", "data"):
            code, out, err = command(name, *TINY)
            assert (code, out) == (4, "")
            line = the_line(err)
            assert line.startswith((place.format(disk), "~"))
            assert f"{OWN}=FOLDER" in line
            assert ("is a file" in line) == what.startswith("a file")


@pytest.mark.goal("D4")
@NIGHTLY
def test_libraries_that_find_no_home_neither_print_nor_fail(tmp_path):
    """matplotlib draws the curve, and `datasets` reads the rows."""
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    Path("rows.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in TEXT.splitlines()))
    typed = [text for text in TINY if not text.startswith("data")]
    typed += ["data=jsonl", "data.paths=rows.jsonl", "data.val_tokens=300"]
    err = ends_well(typed, {"HOME": str(home), "HF_HOME": "", "MPLCONFIGDIR": ""}, drop_rights)
    assert list(Path("runs/main").glob("*/curve.svg"))
    assert "atplotlib" not in err
    assert not list(home.iterdir())


@pytest.mark.goal("D4")
@pytest.mark.parametrize(
    "state",
    ["leave_both", *(pytest.param(name, marks=NIGHTLY) for name in [*surroundings.STATES][1:])],
)
def test_a_run_ends_as_ever_whatever_becomes_of_its_streams(state, measured):
    ends_well(TINY, prepare=surroundings.STATES[state])
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
    ends_well(typed, prepare=surroundings.STATES[state])
    (record,) = Path("runs").glob("*/sweep-two.json")
    planned = json.loads(record.read_text())["runs"]
    assert {run["stage"] for run in planned} == {"tune", "result"}
    assert all(read_summary(record.parent / run["folder"]).ended for run in planned)
    assert (record.parent / "report.html").is_file()
    measured(f"{state}, launcher={launcher}: exit 0, both stages, report")


@pytest.mark.goal("D5")
@pytest.mark.parametrize(
    "typed",
    [[name] for name in COMMANDS if name != "analysis"] + [["analysis", name] for name in ANALYSES],
    ids=" ".join,
)
def test_a_current_folder_that_is_gone_is_one_line(typed, command, tmp_path, monkeypatch):
    for folder in ("mine", "gone"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine/norm.py").touch()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
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
    for typed in (["runs", "study", "--json"], ["report", "runs/study"]):
        program = Command(typed, program=COMMAND, prepare=drop_rights)
        out, err = program.communicate(CEILING)
        assert program.returncode == 0, err
        (line,) = [line for line in err.splitlines() if "ermission denied" in line]
        assert str(first) in line
        assert "Traceback" not in err
        assert typed[0] == "report" or len(json.loads(out)) == len(others)
    first.chmod(0o700)


UNTOLD = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOCALES = [UNTOLD | {"LC_ALL": "C"}, UNTOLD | {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "ascii"}]


@pytest.mark.goal("D5")
@NIGHTLY
@pytest.mark.parametrize("letters", LOCALES, ids=str)
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
