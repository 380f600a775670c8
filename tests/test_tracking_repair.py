"""Live, late and repaired mirrors come to the same; a stand-in for W&B keeps what is logged."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformer_norms.mirror import parts
from wandb_stand_in import StandIn, metrics, set_status, stand_in, study, write

from transformer_norms import files
from transformer_norms.tracking import mirror as tracking
from transformer_norms.tracking.parts import run_id
from transformer_norms.tracking.run import RunMirror
from transformer_norms.tracking.syncing import mirror_once

pytestmark = pytest.mark.area("trust")


def test_rewound_and_repeated_rows_are_logged_once_live(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    one = RunMirror(study / "run", "offline")
    write(metrics, range(1, 21))
    assert not one.poll()
    metrics.truncate_after(10)
    assert not one.poll()
    for step in range(11, 31):  # longer lines, so that the old place is no longer between two
        metrics.append({"step": step, "tokens": step, "seconds": 1 / step})
    set_status(study / "run", "finished")
    assert one.poll(last=True)
    assert not one.problem
    one.close()
    assert stand_in.steps() == list(range(1, 31))


def test_rewound_and_repeated_rows_are_logged_once_by_a_second_process(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 21))
    mirror_once(study / "run", "offline")
    metrics.truncate_after(10)
    write(metrics, range(11, 31))
    mirror_once(study / "run", "offline")
    assert stand_in.steps() == list(range(1, 31))


def test_what_a_killed_mirror_had_not_finished_is_made_again(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 11))
    mirror_once(study / "run", "offline")
    write(metrics, range(11, 21))
    killed = RunMirror(study / "run", "offline")
    killed.poll()
    killed._lock.release()
    mirror_once(study / "run", "offline")
    assert stand_in.steps() == list(range(1, 21))
    assert stand_in.parts == 3


def test_what_is_mirrored_is_not_mirrored_again(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 11))
    set_status(study / "run", "finished")
    assert tracking.main(["sync", str(study), "--mode", "offline"]) == 0
    assert tracking.main(["sync", str(study / "run"), "--mode", "offline"]) == 0
    assert stand_in.parts == 1


def test_a_torn_line_waits_until_it_is_whole(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    one = RunMirror(study / "run", "offline")
    with metrics.path.open("ab", buffering=0) as file:
        file.write(b'{"step": 1}\n{"step": 2, "tok')
        one.poll()
        file.write(b'ens": 3}\n')
        one.poll()
    one.close()
    assert stand_in.steps() == [1, 2]


def test_rows_of_one_step_are_one_step_and_null_is_left_out(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    metrics.append({"step": 1, "tokens": 5, "train/loss": float("nan")})
    metrics.append({"step": 1, "tokens": 5, "val/loss": 2.0})
    mirror_once(study / "run", "offline")
    part = next(study.glob("wandb/offline-run-*"))
    rows = json.loads((part / "rows.json").read_text())
    assert rows[1:] == [[1], [{"tokens": 5, "val/loss": 2.0}]]


def test_a_process_that_mirrors_keeps_others_away(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 11))
    one = RunMirror(study / "run", "offline")
    one.poll()
    assert "another process" in mirror_once(study / "run", "offline")
    one.close()
    assert stand_in.steps() == list(range(1, 11))


def test_without_a_network_online_becomes_offline_with_one_line_that_tells_no_secret(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "no network")
    write(metrics, range(1, 11))
    one = RunMirror(study / "run", "online")
    one.poll()
    one.close()
    assert [options["mode"] for options in stand_in.started] == ["online", "offline"]
    assert stand_in.started[0]["settings"].init_timeout == 20
    assert stand_in.steps() == list(range(1, 11))
    write(metrics, range(11, 21))
    again = RunMirror(study / "run", "online")
    again.poll()
    again.close()
    assert [options["mode"] for options in stand_in.started[2:]] == ["offline"]
    log = (study / "wandb" / "mirror.log").read_text()
    assert log.count("\n") == 1
    assert "offline instead" in log
    assert "no network" not in log


def test_only_the_first_folder_waits_for_a_network_that_is_not_there(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 3))
    (study / "other").mkdir()
    (study / "other" / "metrics.jsonl").write_bytes(metrics.path.read_bytes())
    both = [RunMirror(study / name, "online") for name in ("run", "other")]
    for one in both:
        one.poll()
        one.close()
    modes = [options["mode"] for options in stand_in.started]
    assert modes == ["online", "offline", "offline"]


def test_a_run_that_cannot_start_does_not_end_the_runs_that_are_open(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.reachable = True
    write(metrics, range(1, 3))
    (study / "other").mkdir()
    (study / "other" / "metrics.jsonl").write_bytes(metrics.path.read_bytes())
    first = RunMirror(study / "run", "online")
    first.poll()
    stand_in.reachable = False
    monkeypatch.setattr(parts.wandb, "teardown", pytest.fail)
    second = RunMirror(study / "other", "online")
    assert second.poll()
    assert "no W&B" in second.problem
    second.close()
    first.close()
    assert stand_in.steps() == [1, 2]


def test_online_goes_on_where_the_server_is(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    stand_in.reachable, stand_in.starting_step = True, 8
    write(metrics, range(1, 11))
    mirror_once(study / "run", "online")
    assert stand_in.steps() == [8, 9, 10]


def test_offline_parts_are_uploaded_before_newer_steps_go_online(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.reachable = True
    write(metrics, range(1, 11))
    mirror_once(study / "run", "offline")
    write(metrics, range(11, 21))
    live = RunMirror(study / "run", "online")
    live.poll()
    live.close()
    uploaded: list[str] = []

    def wandb_sync(command: list[str], **options: Any) -> Any:
        assert options["timeout"] > 0
        uploaded.append(Path(command[-1]).name)
        (Path(command[-1]) / "run.wandb.synced").touch()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(parts.subprocess, "run", wandb_sync)
    write(metrics, range(21, 31))
    assert mirror_once(study / "run", "online") == "mirrored up to step 30"
    assert [options["mode"] for options in stand_in.started] == ["offline", "offline", "online"]
    assert uploaded == [f"offline-run-00{part}-{run_id(study / 'run')}-{part}" for part in (1, 2)]


@pytest.mark.parametrize(
    "error",
    [
        subprocess.TimeoutExpired(["wandb", "sync"], 300),
        subprocess.CalledProcessError(1, ["wandb", "sync"], stderr=b"no\nkey"),
    ],
)
def test_an_upload_that_fails_is_tried_for_one_run_and_none_is_lost(
    study: Path,
    stand_in: StandIn,
    metrics: files.MetricsFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    write(metrics, range(1, 3))
    (study / "other").mkdir()
    (study / "other" / "metrics.jsonl").write_bytes(metrics.path.read_bytes())
    assert tracking.main(["sync", str(study), "--mode", "offline"]) == 0
    tried: list[Any] = []

    def failing(command: list[str], **_: Any) -> None:
        tried.append(command)
        raise error

    monkeypatch.setattr(parts.subprocess, "run", failing)
    write(metrics, range(3, 5))
    assert tracking.main(["sync", str(study), "--mode", "online"]) == 1
    assert len(tried) == 1
    assert "run: mirrored up to step 4, but W&B is not reached" in capsys.readouterr().err
    assert (study / "wandb" / "mirror.log").read_text().count("\n") == 1
    assert sorted(stand_in.steps()) == [1, 1, 2, 2, 3, 4]


def test_a_broken_run_is_told_and_the_others_are_mirrored(
    study: Path,
    stand_in: StandIn,
    metrics: files.MetricsFile,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(metrics, range(1, 11))
    (study / "broken").mkdir()
    (study / "broken" / "metrics.jsonl").write_text('{"no step": 1}\n')
    assert tracking.main(["sync", str(study), "--mode", "offline"]) == 1
    assert "broken: KeyError" in capsys.readouterr().err
    assert stand_in.steps() == list(range(1, 11))


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("diverged", 0), ("failed", 1)])
def test_how_a_run_ended_is_how_it_ends_in_wandb(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile, status: str, code: int
) -> None:
    write(metrics, range(1, 3))
    set_status(study / "run", status)
    mirror_once(study / "run", "offline")
    part = next(study.glob("wandb/offline-run-*"))
    assert json.loads((part / "rows.json").read_text())[0] == code
