"""W&B gets what the run folder holds, each step once, and the trainer never notices."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from transformer_norms import files
from transformer_norms.tracking import mirror as tracking
from transformer_norms.tracking.mirror import Mirror, resolve_mode

pytestmark = pytest.mark.area("trust")

SECRET = "5ec2e7" * 7


def row(step: int) -> dict[str, Any]:
    values = {"step": step, "tokens": step * 64, "train/loss": 3 - step / 100}
    if step % 10 == 0:
        values |= {"val/loss": 3.5 - step / 100, "grad_norm": float("inf")}
        values |= {f"probe/gradient_norm/mlp.up/{block}": step + block for block in range(3)}
        values |= {"probe/stream_rms/embedding": 1.5 if step > 10 else float("nan")}
    return values


def make_run(folder: Path, steps: int = 0) -> files.MetricsFile:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("optimizer: {lr: 1e-3}\nmodel: {width: 64}\n")
    choices = {"norm": "rmsnorm", "placement": "pre" * 40}
    files.write_json(folder / "summary.json", {"status": "running", "choices": choices})
    metrics = files.MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        metrics.append(row(step))
    return metrics


def finish(folder: Path) -> None:
    summary = files.read_json(folder / "summary.json")
    files.write_json(folder / "summary.json", summary | {"status": "finished", "val_loss": 2.5})


def offline_records(study: Path) -> list[dict[str, Any]]:
    """All records of all offline parts below a study, by W&B's own reader."""
    records = []
    for part in sorted(study.glob("wandb/offline-run-*")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(part)]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        records += [json.loads(line) for line in lines.splitlines()]
    return records


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """What W&B shall have: a number that was not finite is null in the file, and absent there."""
    return [
        {key: value for key, value in row.items() if value is not None and key != "nonfinite"}
        for row in files.read_metrics(folder / "metrics.jsonl")
    ]


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of metrics; pictures have rows of their own."""
    items = [record["history"] for record in records if record["type"] == "history"]
    return [
        {"step": item["step"]["num"]}
        | {key: value for key, value in item["item"].items() if not key.startswith("_")}
        for item in items
        if not any(key.startswith("view/") for key in item["item"])
    ]


def test_a_live_mirror_holds_what_metrics_jsonl_holds_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    folder = tmp_path / "study" / "rmsnorm-pre-0a1b"
    metrics = make_run(folder, steps=1)

    def train() -> None:
        for step in range(2, 41):
            metrics.append(row(step))
            time.sleep(0.02)
        finish(folder)

    mirror = Mirror("offline")
    mirror.follow(folder)
    trainer = threading.Thread(target=train)
    trainer.start()
    trainer.join()
    mirror.close(timeout=30.0)

    records = offline_records(tmp_path / "study")
    assert history(records) == rows_of(folder)
    hidden = {
        record["metric"]["name"]
        for record in records
        if record["type"] == "metric" and record["metric"]["options"].get("hidden")
    }
    blocks = [f"probe/gradient_norm/mlp.up/{block}" for block in range(3)]
    assert hidden == {*blocks, "probe/stream_rms/embedding"}
    run = next(record["run"] for record in records if record["type"] == "run")
    assert run["display_name"] == folder.name
    assert run["run_group"] == "study"
    assert run["config"]["update"]["optimizer"] == {"lr": 0.001}
    assert run["config"]["update"]["choices"]["norm"] == "rmsnorm"
    assert all(len(tag) <= 64 for tag in run["tags"])
    assert "norm=rmsnorm" in run["tags"]
    assert not (tmp_path / "study" / "wandb" / "mirror.log").exists()
    for path in (tmp_path / "study").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


PARENT = """
import sys, time
from pathlib import Path
from transformer_norms.tracking.mirror import Mirror
mirror = Mirror("offline")
for folder in sys.argv[1:]:
    mirror.follow(Path(folder))
print(mirror._process.pid, flush=True)
time.sleep(60)
"""


def test_when_the_trainer_is_killed_the_mirror_finishes_and_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "study" / "run"
    make_run(folder, steps=5)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # What W&B leaves where the trainer's process has used it; the mirror has its own service.
    environment["WANDB_SERVICE"] = "3-1-unix-/no/such/service"
    command = [sys.executable, "-c", PARENT, str(folder)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _gone(child, seconds=20)
    state = next((tmp_path / "study" / "wandb").glob("*.json"))
    assert files.read_json(state)["step"] == 5


def _gone(process: int, seconds: float) -> bool:
    """Not there or a zombie, within some seconds."""
    for _ in range(int(seconds * 20)):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_without_wandb_the_trainer_notices_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "wandb.py").write_text("raise ImportError('there is no W&B here')\n")
    monkeypatch.setenv("PYTHONPATH", str(stub))
    folder = tmp_path / "study" / "run"
    make_run(folder, steps=5)
    mirror = Mirror("offline")
    mirror.follow(folder)
    assert mirror._process is not None
    assert mirror._process.wait(20) != 0
    mirror.follow(folder)
    mirror.close()
    mirror.close()
    assert not (tmp_path / "study" / "wandb").exists()


def test_a_mirror_that_hangs_is_ended_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, start_new_session=True)
    monkeypatch.setattr(tracking, "_start", lambda mode: hanging)
    mirror = Mirror("offline")
    mirror.follow(Path("run"))
    mirror.close(timeout=0.1)
    assert hanging.returncode == -signal.SIGKILL


def test_a_process_that_cannot_start_or_read_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    mirror = Mirror("offline")
    mirror.follow(Path("run"))
    mirror.close()


def test_the_trainer_imports_no_wandb() -> None:
    code = "import sys, transformer_norms.tracking.mirror; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


NETRC = "machine api.wandb.ai login user password secret\n"


@pytest.mark.parametrize(
    ("mode", "environment", "netrc", "resolved"),
    [
        ("auto", {}, "", "offline"),
        ("auto", {"WANDB_API_KEY": SECRET}, "", "online"),
        ("auto", {"WANDB_API_KEY": ""}, "", "offline"),
        ("auto", {}, NETRC, "online"),
        ("auto", {}, NETRC.replace("api.wandb.ai", "api.forge.coreweave.com"), "online"),
        ("auto", {"WANDB_BASE_URL": "https://api.wandb.ai"}, NETRC, "online"),
        ("auto", {}, "machine elsewhere login user password secret\n", "offline"),
        ("auto", {}, "no netrc at all", "offline"),
        ("auto", {"WANDB_BASE_URL": "https://wandb.example.org"}, NETRC, "offline"),
        ("auto", {"WANDB_MODE": "offline", "WANDB_API_KEY": SECRET}, NETRC, "offline"),
        ("auto", {"WANDB_MODE": "dryrun"}, NETRC, "offline"),
        ("auto", {"WANDB_MODE": "online"}, "", "online"),
        ("auto", {"WANDB_MODE": "disabled"}, NETRC, "disabled"),
        ("online", {"WANDB_MODE": "disabled"}, "", "online"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": SECRET}, NETRC, "offline"),
    ],
)
def test_the_mode_is_what_was_typed_then_the_environment_then_the_credentials(
    tmp_path: Path, mode: str, environment: dict[str, str], netrc: str, resolved: str
) -> None:
    (tmp_path / ".netrc").write_text(netrc)
    assert resolve_mode(mode, {"HOME": str(tmp_path), **environment}) == resolved


def test_disabled_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    mirror = Mirror("auto")
    mirror.follow(Path("run"))
    assert mirror._process is None


def test_a_folder_that_is_no_run_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tracking.main(["sync", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_tells_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        tracking.main(["--help"])
    assert "sync" in capsys.readouterr().out
