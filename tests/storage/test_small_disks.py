"""Disks that are full, or fill while a command writes: nothing is lost, and one line says so."""

import shutil
from pathlib import Path

import pytest
from corpora import ready
from run_folders import PRE, make_study, skip_pictures
from surroundings import TINY, fill, free, small_disk, the_line, tiny
from warm import result

from transformer_norms.data import CORPORA
from transformer_norms.data.token_cache import cache_folder
from transformer_norms.errors import StorageError
from transformer_norms.run import beginning, checkpoint
from transformer_norms.run.metrics import MetricsFile, read_metrics
from transformer_norms.run.record import Record

NIGHTLY = pytest.mark.nightly


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
    measured(f"{1 + left:g} checkpoints: exit 4, and bitwise once there is space")


@pytest.mark.goal("D2")
@pytest.mark.parametrize("points", [2, pytest.param(40, marks=NIGHTLY)])
def test_a_disk_that_fills_while_text_is_tokenized_leaves_nothing_that_passes_as_complete(
    points, tmp_path, monkeypatch, measured
):
    text = "".join(f"{i} owls read {i * i % 97} books.\n" for i in range(3000))
    Path("corpus.txt").write_text(text)
    corpus = CORPORA["text"](paths=("corpus.txt",), val_paths=(), separator="\\n")
    whole = ready(corpus).fingerprint
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(disk / "cache"))
        for point in range(points):

            def fill_when_encoding(what, done, total, leave=point * 80_000 // points):
                if "encoding" in what and not (disk / "ballast").exists():
                    fill(disk, leave // 4096 * 4096)

            with pytest.raises(StorageError, match=r"no space left \(\d+ bytes free\)") as caught:
                ready(corpus, tell=fill_when_encoding)
            assert str(disk / "cache") in str(caught.value)
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
        ("model.width=256", "trainer.keep=1"),
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
        patch.setattr(beginning, "build_model", lambda *_: pytest.fail("the model is built"))
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
    assert read_metrics(path) == [{"step": 1}]
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
