"""Disks that are full, or fill while a command writes: nothing is lost, and one line says so."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from corpora import ready
from run_folders import PRE, make_study, skip_pictures, tree
from surroundings import TINY, fill, free, small_disk, the_line, tiny
from warm import TEXT, result

from transformer_norms.data import CORPORA
from transformer_norms.data.token_cache import cache_folder
from transformer_norms.errors import StorageError
from transformer_norms.run import beginning, checkpoint
from transformer_norms.run.metrics import MetricsFile, read_metrics
from transformer_norms.run.record import Record

NIGHTLY = pytest.mark.nightly


def full(ended, said):
    """The line of a command that the disk ended."""
    code, _, err = ended
    assert (code, said in the_line(err)) == (4, True), err
    return the_line(err)


@pytest.mark.goal("D1")
@pytest.mark.parametrize(
    "left", [0.5, *(pytest.param(part / 8, marks=NIGHTLY) for part in range(8))]
)
def test_a_run_on_a_disk_that_fills_keeps_its_checkpoint_and_goes_on_bitwise(
    left, command, tmp_path, monkeypatch, measured
):
    """The disk has room for one checkpoint and a part, since something else has filled it."""
    _, calm, _ = command("train", *TINY, "study=calm")
    save, ballast = Record.checkpoint, []
    with small_disk(tmp_path / "disk", 8 << 20) as disk, chdir(disk):

        def save_and_fill(record, trainer):
            save(record, trainer)
            if trainer.step == 5 and not ballast:
                (saved,) = Path(record.folder, "checkpoints").glob("step-*")
                size = sum(file.stat().st_blocks * 512 for file in saved.iterdir())
                ballast.append(fill(disk, leave=int(left * size) // 4096 * 4096))

        monkeypatch.setattr(Record, "checkpoint", save_and_fill)
        line = full(command("train", *TINY), "no space left")
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
    measured(f"{1 + left:g} checkpoints: exit 4, and bitwise once there is space")


@pytest.mark.goal("D2")
@pytest.mark.parametrize("points", [2, pytest.param(40, marks=NIGHTLY)])
def test_a_disk_that_fills_while_text_is_tokenized_leaves_nothing_that_passes_as_complete(
    points, tmp_path, monkeypatch, measured
):
    Path("corpus.txt").write_text(TEXT * 4)
    corpus = CORPORA["text"](paths=("corpus.txt",), val_paths=(), separator="\\n")
    whole = ready(corpus).fingerprint
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(disk / "cache"))
        for point in range(points):

            def fill_when_encoding(what, done, total, leave=point * 80_000 // points):
                if "encoding" in what and not (disk / "ballast").exists():
                    fill(disk, leave // 4096 * 4096)

            said = rf"{disk}/cache.*no space left \(\d+ bytes free\)"
            with pytest.raises(StorageError, match=said):
                ready(corpus, tell=fill_when_encoding)
            assert not [path for path in cache_folder().iterdir() if path.is_dir()]
            (disk / "ballast").unlink()
        assert ready(corpus).fingerprint == whole
    measured(f"{points} of {points} full disks: one line, no part of a cache left")


def asked(err):
    """The bytes that a refusal names."""
    return int(err.rpartition("(")[2].split()[0])


@pytest.mark.goal("D3")
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=NIGHTLY)])
@pytest.mark.parametrize(
    "typed",
    [
        "model.width=256 trainer.keep=1",
        pytest.param("trainer.keep=2 trainer.precision=fp64", marks=NIGHTLY),
        pytest.param("trainer.keep=5 model.width=64 trainer.probe_every=1", marks=NIGHTLY),
        pytest.param("model.depth=12 optimizer=muon trainer.probe_every=2", marks=NIGHTLY),
        pytest.param("tokenizer=bpe tokenizer.vocab_size=400 trainer.steps=60", marks=NIGHTLY),
    ],
)
@pytest.mark.draws
def test_a_disk_with_what_was_asked_for_is_enough_and_with_less_is_refused_at_once(
    typed, together, command, tmp_path, monkeypatch, measured
):
    typed = tiny(*typed.split())
    if not together:
        assert command("data", *typed)[0] == 0

    def attempt(size):
        disk = tmp_path / "disk"
        with small_disk(disk, size), chdir(disk), monkeypatch.context() as patch:
            if together:
                patch.setenv("TRANSFORMER_NORMS_CACHE", str(disk / "cache"))
            ended = command("train", *typed)
            if ended[0]:
                left = [path for path in disk.rglob("*") if path.suffix != ".lock"]
                assert left == [disk / "cache"] * together
            return ended, free(disk)

    needed = -(-asked(full(attempt(64 << 10)[0], "no space left")) // 4096) * 4096
    with monkeypatch.context() as patch:
        patch.setattr(beginning, "build_model", lambda *_: pytest.fail("the model is built"))
        ended, _ = attempt(int(0.95 * needed))
    assert asked(full(ended, "no space left")) == pytest.approx(needed, abs=4096)
    (code, _, err), rest = attempt(needed + 4096 * 4 * together)
    assert code == 0, err
    measured(f"of {needed:,} bytes asked for {rest:,} were left over; 5 % less was refused")


@pytest.mark.goal("D3")
@NIGHTLY
def test_a_run_that_goes_on_asks_for_what_it_has_not_written_yet(command, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 64 << 10) as disk, chdir(disk):
        needed = -(-asked(the_line(command("train", *TINY)[2])) // 4096) * 4096
    save = Record.checkpoint

    def save_and_stop(record, trainer):
        save(record, trainer)
        if trainer.step == 10:
            raise KeyboardInterrupt

    with small_disk(tmp_path / "disk", needed) as disk, chdir(disk):
        with monkeypatch.context() as patch:
            patch.setattr(Record, "checkpoint", save_and_stop)
            assert command("train", *TINY)[0] == 75
        assert free(disk) < needed
        code, answer, err = command("train", *TINY)
        assert (code, answer["steps"]) == (0, 12), err
        assert "goes on from step 10" in err


@pytest.mark.goal("D3")
def test_a_disk_without_inodes_is_said_to_have_none(command, tmp_path):
    with small_disk(tmp_path / "disk", 64 << 20, nr_inodes=2) as disk, chdir(disk):
        Path("file").touch()
        full(command("train", *TINY), "no inodes left")


@pytest.mark.goal("D4")
def test_a_report_on_a_full_disk_is_one_line_and_the_runs_stay(command, tmp_path, monkeypatch):
    skip_pictures(monkeypatch)
    make_study("study", {"pre": PRE})
    before = tree("study")
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        fill(disk)
        ended = command("report", "study", "--out", str(disk / "new"))
        assert full(ended, "no space left").startswith(f"{disk}/new")
    assert tree("study") == before


@pytest.mark.goal("D4")
def test_a_torn_last_line_is_left_out_and_said(capfd):
    path = Path("metrics.jsonl")
    path.write_text('{"step": 1}\n{"step": 143513, "loss":')
    assert read_metrics(path) == [{"step": 1}]
    MetricsFile(path).append({"step": 2})
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "metrics.jsonl: a last line that was not written whole is left out"
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.goal("D4", "S6")
@NIGHTLY
def test_wandb_on_a_full_disk_changes_nothing_in_training(command, tmp_path, measured):
    _, alone, _ = command("train", *TINY, "study=alone")
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
    run = command("train", *TINY)[1]["run"]
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        shutil.copytree("runs", disk / "runs", ignore=shutil.ignore_patterns("checkpoints"))
        fill(disk)
        (disk / "empty.svg").touch()
        commands = (
            f"explain --svg {disk}/empty.svg",
            f"export {run} {disk}/exported",
            f"analysis invariances --out {disk}/laws",
            f"report {run} --out {disk}/report",
            f"report {run} --figures {disk}/figures",
            f"tracking sync {disk}/{run} --mode offline",
        )
        for typed in commands:
            assert str(disk) in full(command(*typed.split()), "no space left"), typed
        assert not (disk / "exported").exists()
    measured(f"{len(commands)} commands")
