"""W&B gets what the run folder holds, each step once, and the trainer never notices."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from guide import ROOT, blocks
from run_folders import config_of, edit, make_run

from transformer_norms import cli, compose
from transformer_norms.errors import ConfigError
from transformer_norms.run.metrics import MetricsFile, read_metrics
from transformer_norms.run.plan import Plan
from transformer_norms.storage.reading import read_json
from transformer_norms.sweep.drive import plan_sweep, run_sweep
from transformer_norms.sweep.launcher import Launcher
from transformer_norms.tracking import mirror as tracking
from transformer_norms.tracking.__main__ import main
from transformer_norms.tracking.mirror import Mirror
from transformer_norms.tracking.wishes import resolve_mode, wishes

SECRET = "5ec2e7" * 7
CEILING = 120.0  # seconds in which even a busy machine does what is waited for
NETRC = "machine api.wandb.ai login user password secret\n"
NO_LOGIN = "there is no login to W&B; type wandb login first"
NO_PROJECT = (
    r"a W&B project has up to 128 characters, none of /\#?%:; its owner is tracking.entity=NAME"
)
NO_MODE = "W&B takes online, offline, disabled"
TROUBLE = "run: CommError: no network"


def wait_for(event):
    """Returns when `event` is true; a test fails that waits for it in vain."""
    end = time.monotonic() + CEILING
    while not event():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def row(step):
    values = {"step": step, "tokens": step * 64, "train/loss": 3 - step / 100}
    if step % 10 == 0:
        values |= {"val/loss": 3.5 - step / 100, "grad_norm": float("inf")}
        values |= {f"probe/gradient_norm/mlp.up/{block}": step + block for block in range(3)}
        values |= {"probe/stream_rms/embedding": 1.5 if step > 10 else float("nan")}
    return values


def begin(study, steps, seed=0):
    folder = make_run(study, config_of(seed=seed), status="running", rows=0)
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in steps:
        metrics.append(row(step))
    return folder, metrics


def offline_records(study):
    """Returns all records of all offline parts of a study, read by W&B's own reader."""
    records = []
    for part in sorted(study.glob("wandb/offline-run-*")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(part)]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        records += [json.loads(line) for line in lines.splitlines()]
    return records


def rows_of(folder):
    """Returns the rows that W&B shall have: null is a number that was not finite."""
    return [
        {key: value for key, value in row.items() if value is not None and key != "nonfinite"}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def history(records):
    """Returns the rows of metrics; pictures have rows of their own."""
    items = [record["history"] for record in records if record["type"] == "history"]
    return [
        {"step": item["step"]["num"]} | {k: v for k, v in item["item"].items() if k[0] != "_"}
        for item in items
        if not any(key.startswith("view/") for key in item["item"])
    ]


@pytest.fixture
def trainer():
    """A process that takes the place of the one that trains, and a fraction of its memory."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_live_mirror_holds_what_metrics_jsonl_holds_and_no_secret(tmp_path, monkeypatch, trainer):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    study = tmp_path / "study"
    folder, metrics = begin(study, range(1, 2))
    command = "train.py norm=rmsnorm 'placement.equation=x + f(x)'"
    process = {"pid": trainer, "host": socket.gethostname(), "command": command}
    edit(folder, process=process, warnings=["the rate never peaks"])
    mirror = Mirror({"mode": "offline"})
    mirror.follow(folder)
    for step in range(2, 41):
        metrics.append(row(step))
        if step == 20:
            wait_for(lambda: [*study.glob("wandb/offline-run-*")])  # W&B has read the first rows
    edit(folder, status="finished", val_loss=2.5)
    mirror.close(timeout=CEILING)

    records = offline_records(study)
    assert history(records) == rows_of(folder)
    metric = [record["metric"] for record in records if record["type"] == "metric"]
    hidden = {one["name"] for one in metric if one["options"].get("hidden")}
    blocks = [f"probe/gradient_norm/mlp.up/{block}" for block in range(3)]
    assert hidden == {*blocks, "probe/stream_rms/embedding"}
    run = next(record["run"] for record in records if record["type"] == "run")
    assert (run["display_name"], run["run_group"]) == (folder.name, "study")
    config = run["config"]["update"]
    assert config["optimizer"]["lr"] == config_of()["optimizer"]["lr"]
    assert config["choices"]["norm"] == "rmsnorm"
    assert "norm=rmsnorm" in run["tags"]
    # W&B shows the process that trains, its command and its code; not those of the mirror.
    assert run["git"]["commit"] == "c" * 40
    shown = next(r["environment"] for r in records if r["type"] == "environment")
    assert [shown["program"], *shown["args"]] == shlex.split(command)
    assert shown["host"] == socket.gethostname()
    used = [r["stats"]["item"]["proc.memory.rssMB"] for r in records if r["type"] == "stats"]
    assert 0 < min(used) <= max(used) < 10
    lines = "".join(r["output_logger"]["line"] for r in records if r["type"] == "output_logger")
    assert "step 9  loss 2.9100\nstep 10  loss 2.9000  val 3.4000\nstep 11  loss 2.8900\n" in lines
    assert "step 40  loss 2.6000  val 3.1000\nwarning: the rate never peaks\nfinished" in lines
    for path in study.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


AGENT = """
import os, sys
from wandb.wandb_agent import Agent
import yaml
os.environ["WANDB_SWEEP_ID"] = "s7"  # as `wandb agent` does
sweep = yaml.safe_load(open("sweep.yaml"))
agent = Agent(None, None)
agent._sweep_command = sweep["command"]
args = {"norm": {"value": "layernorm"}, "optimizer.lr": {"value": 0.003}, "seed": {"value": 1}}
for name in ("a1", "a2"):  # the second asks for a run that has ended
    agent._command_run({"type": "run", "run_id": name, "program": "train.py", "args": args})
    if code := agent._run_processes[name].wait():
        sys.exit(code)
"""


@pytest.mark.nightly
def test_the_guides_sweep_is_run_by_the_code_of_wandbs_agent(tmp_path):
    (text,) = [b.text for b in blocks(ROOT / "docs" / "tracking.md") if b.language == "yaml"]
    small = "study=agents, data=stories, data.documents=150, trainer.threads=1"
    text = text.replace("study=agents", small).replace("steps=500", "steps=6")
    (tmp_path / "sweep.yaml").write_text(text.replace("train.py", f"{ROOT}/train.py"))
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": paths}
    command = [sys.executable, "-c", AGENT]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    records = offline_records(tmp_path / "runs" / "agents")
    started, later = [record["run"] for record in records if record["type"] == "run"]
    assert (started["run_id"], started["sweep_id"]) == ("a1", "s7")
    assert (later["run_id"], later["sweep_id"]) == ("a2", "s7")
    config = started["config"]["update"]
    assert config["optimizer.lr"] == config["optimizer"]["lr"] == 0.003
    assert (config["norm"], config["choices"]["norm"], config["seed"]) == ("layernorm",) * 2 + (1,)
    (folder,) = (tmp_path / "runs" / "agents").glob("layernorm-*-s1-*")
    totals = [r["summary"].get("update", {}).get("val_loss") for r in records
              if r["type"] == "summary"]  # fmt: skip
    assert [*filter(None, totals)] == 2 * [read_json(folder / "summary.json")["val_loss"]]
    assert (tmp_path / "wandb" / "sweep-s7" / "config-a1.yaml").is_file()  # git ignores wandb/


PARENT = """
import sys, time
from pathlib import Path
from transformer_norms.tracking.mirror import Mirror
mirror = Mirror({"mode": "offline"})
for folder in sys.argv[1:]:
    mirror.follow(Path(folder))
print(mirror._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.goal("S6")
def test_when_the_trainer_is_killed_the_mirror_finishes_and_leaves(tmp_path):
    folders = [begin(tmp_path / "study", range(1, 6), seed)[0] for seed in (0, 1)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # What W&B leaves where the trainer's process has used it; the mirror has its own service.
    environment["WANDB_SERVICE"] = "3-1-unix-/no/such/service"
    command = [sys.executable, "-c", PARENT, *map(str, folders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: is_gone(child))
    assert history(offline_records(tmp_path / "study")) == 2 * rows_of(folders[0])


def is_gone(process):
    """Whether it is not there, or a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_process_that_cannot_start_or_read_stops_nobody(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    mirror = Mirror({"mode": "offline"})
    mirror.follow(Path("run"))
    mirror.close()


def test_disabled_starts_nothing(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    mirror = Mirror({"mode": "auto"})
    mirror.follow(Path("run"))
    assert mirror._process is None


def test_the_trainer_imports_no_wandb():
    code = "import sys, transformer_norms.tracking.mirror; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
        ("auto", {"WANDB_MODE": "online", "WANDB_API_KEY": SECRET}, "", "online"),
        ("auto", {"WANDB_MODE": "shared"}, NETRC, "online"),
        ("auto", {"WANDB_DISABLED": "true", "WANDB_MODE": "online"}, NETRC, "disabled"),
        ("auto", {"WANDB_DISABLED": "false"}, NETRC, "online"),
        ("online", {"WANDB_IDENTITY_TOKEN_FILE": "token"}, "", "online"),
        # W&B's own settings may name a host that only W&B knows.
        ("online", {}, "machine elsewhere login user password secret\n", "online"),
        ("auto", {"WANDB_MODE": "disabled"}, NETRC, "disabled"),
        ("online", {"WANDB_MODE": "disabled"}, NETRC, "online"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": SECRET}, NETRC, "offline"),
    ],
)
def test_the_mode_is_typed_or_of_the_environment_or_credentials(
    tmp_path, mode, environment, netrc, resolved
):
    (tmp_path / ".netrc").write_text(netrc)
    assert resolve_mode(mode, {"HOME": str(tmp_path), **environment}) == resolved


@pytest.mark.parametrize(
    ("tracking", "environment", "line"),
    [
        ({"mode": "auto"}, {"WANDB_MODE": "bogus"}, f"WANDB_MODE=bogus: {NO_MODE}"),
        ({"mode": "auto"}, {"WANDB_MODE": "ofline"}, f"did you mean 'offline'? {NO_MODE}"),
        ({"mode": "auto"}, {"WANDB_MODE": "online"}, f"WANDB_MODE=online: {NO_LOGIN}"),
        ({"mode": "online"}, {}, f"tracking.mode=online: {NO_LOGIN}"),
        ({"mode": "auto"}, {"WANDB_PROJECT": "team/x"}, f"WANDB_PROJECT=team/x: {NO_PROJECT}"),
        ({"mode": "offline", "project": "a?"}, {}, f"tracking.project=a?: {NO_PROJECT}"),
        ({"mode": "offline", "project": "a" * 129}, {}, f"aaa: {NO_PROJECT}"),
    ],
)
def test_what_wandb_would_not_take_is_refused_before_a_run_begins(
    tmp_path, monkeypatch,
    tracking, environment, line,
):  # fmt: skip
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        Mirror(tracking)
    assert str(refused.value).endswith(line)
    Mirror({"type": "none"})  # asks W&B for nothing


def test_a_refusal_of_wandbs_variables_is_one_line_and_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "bogus")
    monkeypatch.setattr("transformer_norms.sweep.drive.Sweep", None)  # which would be called first
    small = ["model=nano", "data=stories", "trainer.steps=2"]
    assert cli.main(small) == 2
    assert capsys.readouterr().err == f"WANDB_MODE=bogus: {NO_MODE}\n"
    with pytest.raises(ConfigError, match="WANDB_MODE=bogus"):
        run_sweep(["norm=rmsnorm,layernorm", *small], lambda request: Launcher())
    assert not [*tmp_path.iterdir()]


def fake_mirror(script):
    """Starts a process that reads what is named to it, and then does what the script says."""
    command = ["sh", "-c", f"cat > /dev/null; {script}"]
    pipe = subprocess.PIPE
    return lambda *_: subprocess.Popen(command, stdin=pipe, stdout=pipe)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", ""),
        ("exit 3", "its process ended with code 3"),
        (f"echo 'other: {TROUBLE}'; echo '{TROUBLE}'", TROUBLE),
        ("exec sleep 60", "not all of it is written yet"),
    ],
)
@pytest.mark.goal("S6")
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_one_line_says_where_the_data_go_and_one_at_the_end_what_did_not_get_there(
    tmp_path, monkeypatch, mode, script, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("WANDB_DIR", "elsewhere")
    monkeypatch.setattr(tracking, "_start", fake_mirror(script))
    lines: list[str] = []
    mirror = Mirror({"mode": mode, "project": "norms", "entity": "us"}, lines.append)
    mirror.follow(Path("study/run"))
    mirror.follow(Path("study/other"))
    process = mirror._process
    assert process is not None
    mirror.close(timeout=1.0)
    assert (process.returncode == -signal.SIGKILL) == ("sleep" in script)
    where = {
        "offline": "offline, in study/wandb; transformer-norms tracking sync study uploads it",
        "online": "config, command, host, metrics, packages, changed code go to us/norms",
    }[mode]
    first = f"W&B: {where}; tracking=none switches it off; not used: WANDB_DIR"
    last = f"W&B: {said}; transformer-norms tracking sync study brings what is missing"
    assert lines == [first, *[last] * bool(said)]


def test_the_keys_of_tracking_come_before_wandbs_variables_and_make_no_other_run():
    typed = ["project=norms", "entity=us", "group=spring", "name=best", "tags=[a,b]"]
    config = compose(["model=nano", *(f"tracking.{text}" for text in typed)])
    assert Plan(config).hash == Plan(compose(["model=nano"])).hash
    names = ("PROJECT", "ENTITY", "RUN_GROUP", "NAME", "TAGS", "NOTES")
    shown = wishes(config.tracking, {f"WANDB_{name}": "variable" for name in names})
    of_tracking = {"project": "norms", "entity": "us", "group": "spring", "name": "best"}
    assert shown == of_tracking | {"tags": "a,b", "notes": "variable"}
    with pytest.raises(ConfigError, match="one value for all runs of a sweep"):
        plan_sweep(("tracking.tags=a,b", "model=nano"))


def test_a_folder_that_is_no_run_is_one_line_and_2(tmp_path, capsys):
    assert main(["sync", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "runs/study/run").mkdir(parents=True)
    (tmp_path / "runs/study/run/summary.json").write_text("{}")
    (tmp_path / "runs/study/run/metrics.jsonl").touch()
    assert main(["sync", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert said.endswith("runs: neither a run folder nor a study with runs in it\n")
