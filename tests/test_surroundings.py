"""Disks, homes, streams and folders that are not as a command would have them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import surroundings
from run_folders import PRE, make_study, skip_pictures
from surroundings import drop_rights, fill, free, small_disk
from warm import Command

from transformer_norms.__main__ import main
from transformer_norms.commands.dispatch import ANALYSES, COMMANDS
from transformer_norms.data import CORPORA, TOKENIZERS, prepare
from transformer_norms.data.token_cache import cache_folder
from transformer_norms.errors import StorageError
from transformer_norms.run import checkpoint, run
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.run.record import Record
from transformer_norms.run.summary import read_summary

TINY = ["model=nano", "model.width=16", "model.heads=2", "model.depth=1", "model.context=16"]
TINY += ["data=stories", "data.documents=150", "data.val_tokens=300", "tokenizer=byte"]
TINY += ["tracking=none", "trainer.steps=12", "trainer.batch_size=4", "trainer.threads=1"]
TINY += ["trainer.checkpoint_every=5", "trainer.log_every=1", "schedule.warmup=3"]
TINY += ["trainer.device=cpu"]


def tiny(*more):
    """A short run; what is given here replaces what TINY says of the same key."""
    return [f"{k}={v}" for k, v in dict(text.split("=", 1) for text in [*TINY, *more]).items()]


COMMAND = "transformer_norms/__main__.py"
CEILING = 600  # seconds, for a machine that is busy with other things
NIGHTLY = pytest.mark.nightly


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capfd):
    """Runs a command in this process: its exit code, its last line on stdout, all of stderr."""

    def run(*typed):
        capfd.readouterr()
        code = main(list(typed))
        out, err = capfd.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out.startswith("{") else out, err

    return run


def the_line(err):
    """The last line on stderr, which is the only one that is not about work that goes on."""
    lines = [line for line in err.splitlines() if not line.startswith(("data: ", "warning: "))]
    assert "Traceback" not in err
    return lines[-1]


def result(folder):
    """The bytes of the weights, and all numbers of the rows but the seconds."""
    newest = max(Path(folder, "checkpoints").glob("step-*"))
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    return newest.name, (newest / "model.safetensors").read_bytes(), rows


# ------------------------------------------------------------------------------------- the disk


@pytest.mark.goal("D1")
@pytest.mark.parametrize(
    "left", [0.5, *(pytest.param(part / 8, marks=NIGHTLY) for part in range(8))]
)
def test_a_run_on_a_disk_that_fills_keeps_its_checkpoint_and_goes_on_bitwise(
    left, command, tmp_path, monkeypatch, measured
):
    """The disk has room for one checkpoint and a part, since something else has filled it."""
    code, calm, _ = command("train", *TINY, "study=calm")
    assert code == 0
    save, ballast = Record.checkpoint, []
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        monkeypatch.chdir(disk)

        def save_and_fill(record, trainer):
            save(record, trainer)
            if trainer.step == 5 and not ballast:
                (saved,) = Path(record.folder, "checkpoints").glob("step-*")
                size = sum(file.stat().st_blocks * 512 for file in saved.iterdir())
                ballast.append(fill(disk, leave=int(left * size) // 4096 * 4096))

        monkeypatch.setattr(Record, "checkpoint", save_and_fill)
        code, _, err = command("train", *TINY)
        line = the_line(err)
        assert code == 4
        assert "no space left" in line
        assert "bytes needed" in line or not left
        assert "bytes free" in line
        (folder,) = Path("runs/main").iterdir()
        assert str(folder) in line
        (saved,) = (folder / "checkpoints").iterdir()
        assert checkpoint.verify(saved).step == 5
        ballast[0].unlink()
        code, rough, err = command("train", *TINY)
        assert code == 0, err
        assert "goes on from step 5" in err
        assert result(rough["run"]) == result(tmp_path / calm["run"])
    measured("8 of 8 amounts of free space between 1 and 2 checkpoints: bitwise")


@pytest.mark.goal("D2")
@pytest.mark.parametrize("points", [2, pytest.param(40, marks=NIGHTLY)])
def test_a_disk_that_fills_while_text_is_tokenized_leaves_nothing_that_passes_as_complete(
    points, tmp_path, monkeypatch, measured
):
    text = "".join(f"{i} owls read {i * i % 97} books.\n" for i in range(3000))
    Path("corpus.txt").write_text(text)
    typed = {"paths": ("corpus.txt",), "val_paths": (), "separator": "\\n"}
    corpus, byte = CORPORA["text"](**typed), TOKENIZERS["byte"]()

    def tokens(tell=lambda *_: None):
        return prepare(corpus, byte, "hash", 0.1, 0.0, say=lambda line: None, tell=tell)

    whole = tokens().fingerprint
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(disk / "cache"))
        for point in range(points):

            def fill_when_encoding(what, done, total, leave=point * 80_000 // points):
                if "encoding" in what and not (disk / "ballast").exists():
                    fill(disk, leave // 4096 * 4096)

            with pytest.raises(StorageError, match=r"no space left \(\d+ bytes free\)") as caught:
                tokens(fill_when_encoding)
            assert str(disk / "cache") in str(caught.value)
            assert not [path for path in cache_folder().iterdir() if path.is_dir()]
            (disk / "ballast").unlink()
        assert tokens().fingerprint == whole
    measured(f"{points} of {points} full disks: one line, no part of a cache left")


def asked(err):
    """The bytes that a refusal names."""
    return int(err.rpartition("(")[2].split()[0])


@pytest.mark.goal("D3")
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=NIGHTLY)])
@pytest.mark.parametrize(
    "typed",
    [
        ("model.width=96", "trainer.keep=1"),
        *(
            pytest.param(typed, marks=NIGHTLY)
            for typed in (
                ("trainer.keep=2", "trainer.precision=fp64"),
                ("trainer.keep=5", "model.width=64", "trainer.probe_every=1"),
                ("model.depth=12", "optimizer=muon", "trainer.probe_every=2"),
                ("tokenizer=bpe", "tokenizer.vocab_size=400", "trainer.steps=60"),
            )
        ),
    ],
    ids=lambda typed: " ".join(typed),
)
@pytest.mark.draws
def test_a_disk_with_what_was_asked_for_is_enough_and_with_less_is_refused_at_once(
    typed, together, command, tmp_path, monkeypatch, measured
):
    if not together:
        assert command("data", *tiny(*typed))[0] == 0

    def attempt(size):
        with small_disk(tmp_path / "disk", size) as disk, monkeypatch.context() as patch:
            if together:
                patch.setenv("TRANSFORMER_NORMS_CACHE", str(disk / "cache"))
            patch.chdir(disk)
            code, _, err = command("train", *tiny(*typed))
            left = [path for path in disk.rglob("*") if path.suffix != ".lock"]
            return code, the_line(err), left, free(disk)

    code, line, left, _ = attempt(64 << 10)
    assert code == 4
    assert "no space left" in line
    assert left == [tmp_path / "disk/cache"] * together
    needed = -(-asked(line) // 4096) * 4096
    with monkeypatch.context() as patch:
        patch.setattr(run, "build_model", lambda *_: pytest.fail("the model is built"))
        code, line, left, _ = attempt(int(0.95 * needed))
    assert (code, asked(line)) == (4, pytest.approx(needed, abs=4096))
    assert left == [tmp_path / "disk/cache"] * together
    code, line, _, rest = attempt(needed + 4096 * 4 * together)
    assert code == 0, line
    measured(f"of {needed:,} bytes asked for {rest:,} were left over; 5 % less was refused")


@pytest.mark.goal("D3")
@NIGHTLY
def test_a_run_that_goes_on_asks_for_what_it_has_not_written_yet(command, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        monkeypatch.chdir(disk)
        needed = -(-asked(the_line(command("train", *TINY)[2])) // 4096) * 4096
        monkeypatch.chdir(tmp_path)
    save = Record.checkpoint

    def save_and_stop(record, trainer):
        save(record, trainer)
        if trainer.step == 10:
            raise KeyboardInterrupt

    with small_disk(tmp_path / "disk", needed) as disk:
        monkeypatch.chdir(disk)
        with monkeypatch.context() as patch:
            patch.setattr(Record, "checkpoint", save_and_stop)
            assert command("train", *TINY)[0] == 75
        assert free(disk) < needed
        code, answer, err = command("train", *TINY)
        assert (code, answer["steps"]) == (0, 12), err
        assert "goes on from step 10" in err
        monkeypatch.chdir(tmp_path)


@pytest.mark.goal("D3")
def test_a_disk_without_inodes_is_said_to_have_none(command, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 64 << 20, nr_inodes=2) as disk:
        (disk / "file").touch()
        monkeypatch.chdir(disk)
        code, _, err = command("train", *TINY)
        assert code == 4
        assert "no inodes left" in the_line(err)
        monkeypatch.chdir(tmp_path)


@pytest.mark.goal("D4")
def test_a_report_on_a_full_disk_is_one_line_and_the_runs_stay(command, tmp_path, monkeypatch):
    skip_pictures(monkeypatch)
    make_study("study", {"pre": PRE})
    before = {file: file.read_bytes() for file in Path("study").rglob("*") if file.is_file()}
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        fill(disk)
        code, _, err = command("report", "study", "--out", str(disk / "new"))
        assert code == 4
        assert the_line(err).startswith(f"{disk}/new")
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.goal("D4")
def test_a_torn_last_line_is_left_out_and_said(capfd):
    path = Path("metrics.jsonl")
    path.write_text('{"step": 1}\n{"step": 143513, "loss":')
    MetricsFile(path).append({"step": 2})
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "metrics.jsonl: a last line that was not written whole is left out"
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.goal("D4", "S6")
@NIGHTLY
def test_wandb_on_a_full_disk_changes_nothing_in_training(command, tmp_path, measured):
    code, alone, _ = command("train", *TINY, "study=alone")
    assert code == 0
    Path("runs/full").mkdir()
    with small_disk(Path("runs/full/wandb"), 4096):
        shown = [text for text in TINY if not text.startswith("tracking")]
        code, answer, err = command("train", *shown, "study=full", "tracking.mode=offline")
        assert code == 0, err
        assert result(answer["run"]) == result(alone["run"])
    measured("bitwise, exit 0")


@pytest.mark.goal("D4")
@NIGHTLY
def test_every_command_that_writes_says_a_full_disk_in_one_line(command, tmp_path, measured):
    code, answer, _ = command("train", *TINY)
    assert code == 0
    run = answer["run"]
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        shutil.copytree("runs", disk / "runs", ignore=shutil.ignore_patterns("checkpoints"))
        fill(disk)
        (disk / "empty.svg").touch()
        commands = (
            ["explain", "--svg", f"{disk}/empty.svg"],
            ["export", run, f"{disk}/exported"],
            ["analysis", "invariances", "--out", f"{disk}/laws"],
            ["report", run, "--out", f"{disk}/report"],
            ["report", run, "--figures", f"{disk}/figures"],
            ["tracking", "sync", f"{disk}/{run}", "--mode", "offline"],
        )
        for typed in commands:
            code, _, err = command(*typed)
            assert code == 4, (typed, err)
            assert str(disk) in the_line(err), (typed, err)
            assert "no space left" in the_line(err)
        assert not (disk / "exported").exists()
    measured(f"{len(commands)} commands")


# ------------------------------------------------------------------------------ homes and caches


def full_disk(disk):
    fill(disk)
    return {"TRANSFORMER_NORMS_CACHE": f"{disk}/cache"}


def read_only_disk(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return {"TRANSFORMER_NORMS_CACHE": f"{disk}/cache"}


def no_home(disk):
    return {"HOME": "/proc/nobody"}


def no_xdg_cache(disk):
    return {"XDG_CACHE_HOME": "/proc/cache"}


def file_for_a_cache(disk):
    (disk / "file").write_text("not a folder")
    return {"TRANSFORMER_NORMS_CACHE": f"{disk}/file"}


def file_above_the_cache(disk):
    (disk / "file").write_text("not a folder")
    return {"TRANSFORMER_NORMS_CACHE": f"{disk}/file/cache"}


def unknown_user(disk):
    return {}


CACHES = (full_disk, read_only_disk, no_home, no_xdg_cache, file_for_a_cache,
          file_above_the_cache, unknown_user)  # fmt: skip


@pytest.mark.goal("D2")
@pytest.mark.parametrize("spoil", CACHES, ids=lambda spoil: spoil.__name__)
def test_a_cache_that_cannot_be_written_is_one_line_with_its_path(
    spoil, command, tmp_path, monkeypatch
):
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        for name in ("TRANSFORMER_NORMS_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environment := spoil(disk)).items():
            monkeypatch.setenv(name, value)
        if spoil is unknown_user:
            monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
        for typed in (["train", *TINY], ["data", *TINY]):
            code, out, err = command(*typed)
            assert (code, out) == (4, "")
            line = the_line(err)
            assert line.startswith((*environment.values(), "~"))
            assert "TRANSFORMER_NORMS_CACHE=FOLDER" in line


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
    [
        "leave_both",
        *(pytest.param(name, marks=NIGHTLY) for name in [*surroundings.STATES][1:]),
    ],
)
def test_a_run_ends_as_ever_whatever_becomes_of_its_streams(state, measured):
    program = Command(TINY, prepare=surroundings.STATES[state])
    _, err = program.communicate(CEILING)
    assert program.returncode == 0
    assert "Exception ignored" not in err
    (folder,) = Path("runs/main").iterdir()
    assert read_summary(folder).status == "finished"
    measured("8 of 8 states of stdout and stderr")


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
    text = "".join(f"{i} owls read {i * i % 97} books on {i % 7} trees.\n" for i in range(900))
    Path("corpus.txt").write_text(text)
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
    measured("3 states of the streams, with and without a pool")


# ------------------------------------------------------------------------------------- folders


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


def test_a_run_that_may_not_be_read_is_named_and_the_others_are_listed(here):
    make_study("study", {"pre": PRE})
    first, *others = sorted(path for path in Path("study").iterdir() if path.is_dir())
    first.chmod(0)
    for typed, code in ((["runs", "study", "--json"], 0), (["report", "study"], 2)):
        program = Command(typed, program=COMMAND, prepare=drop_rights)
        out, err = program.communicate(CEILING)
        assert program.returncode == code, err
        (line,) = [line for line in err.splitlines() if "ermission denied" in line]
        assert str(first) in line
        assert "Traceback" not in err
        assert not out if code else len(json.loads(out)) == len(others)
    first.chmod(0o700)


# ------------------------------------------------------------------------------------- locales


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
