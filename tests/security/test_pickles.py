"""X1: a file of a stranger is data. Whatever would run code in it is never run, and is named."""

import hashlib
import json
import shutil
from contextlib import chdir
from itertools import islice
from pathlib import Path

import pytest
from pickles import payloads
from run_folders import skip_pictures

from transformer_norms import train
from transformer_norms.__main__ import main
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError, InputError
from transformer_norms.judge.ledger import read_ledger
from transformer_norms.run import checkpoint
from transformer_norms.run.plan import Plan
from transformer_norms.storage.manifest import DamagedError, seal_manifest

RUN = Path("runs/old/run")
STUDY = RUN.parent
STEP = "checkpoints/step-00000006"
INERT = {"hydra", "base64"}  # JSON, which may be read where nobody looks for what it has
REFUSALS = (ConfigError, InputError, DamagedError)
TINY = ["model=nano", "data=stories", "data.documents=300", "tokenizer=byte", "tracking=none"]
SHORT = (
    "model.width=8 model.depth=2 model.heads=2 model.context=16 data.val_tokens=512 study=old "
    "trainer.steps=6 trainer.batch_size=4 trainer.keep=1 trainer.threads=1 schedule.warmup=2"
).split()


@pytest.fixture
def canary(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("canary") / "made"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    with chdir(home):
        return home / train(compose([*TINY, *SHORT]))["folder"]


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch, trained):
    monkeypatch.chdir(tmp_path)
    skip_pictures(monkeypatch)
    shutil.copytree(trained, RUN)


@pytest.mark.goal("X1")
def test_each_payload_makes_its_canary_if_anything_runs_it(canary, measured):
    made = payloads(canary)
    for name, (data, run) in made.items():
        run(data)
        assert canary.exists(), name
        canary.unlink()
    assert len(made) >= 12
    measured(f"{len(made)} payloads, each of which works")


def command(*arguments):
    return lambda: main(list(map(str, arguments)))


def open_optimizer():
    """Opens the optimizer's tensors as a run does that goes on."""
    (folder,) = RUN.glob("checkpoints/*")
    with checkpoint.verify(folder).open("optimizer") as tensors:
        names = sorted(tensors.keys())
    raise DamagedError(f"optimizer.safetensors: {names}")  # what restores it looks for its own


def prepare_tokens(*typed):
    return Plan(compose([*(TINY[:-2] if typed else TINY), *typed])).tokens()


def read_tokenizer():
    return prepare_tokens("tokenizer=file", "tokenizer.path=handed.json")


SAMPLE = command("sample", RUN, "--tokens", "1")
REPORT = command("report", STUDY)
# (the file, what reads it, whether its manifest is sealed anew, so that its hash is right)
PLACES = {
    "a config": (RUN / "config.yaml", SAMPLE, False),
    "a config that is typed": (RUN / "config.yaml", command("explain", f"config={RUN}"), False),
    "a run's tokenizer": (RUN / "tokenizer.json", SAMPLE, False),
    "weights": (RUN / STEP / "model.safetensors", SAMPLE, True),
    "weights beside their hash": (RUN / STEP / "model.safetensors", SAMPLE, False),
    "an optimizer": (RUN / STEP / "optimizer.safetensors", open_optimizer, True),
    "a state": (RUN / STEP / "state.json", SAMPLE, True),
    "a manifest": (RUN / STEP / "manifest.json", SAMPLE, False),
    "a file of torch beside the weights": (RUN / STEP / "model.pt", SAMPLE, False),
    "a summary, listed": (RUN / "summary.json", command("runs", STUDY), False),
    "a summary, reported": (RUN / "summary.json", REPORT, False),
    "rows": (RUN / "metrics.jsonl", REPORT, False),
    "a sweep's record": (STUDY / "sweep-main.json", REPORT, False),
    "a summary, mirrored": (RUN / "summary.json", command("tracking", "sync", RUN), False),
    "a handed tokenizer": (Path("handed.json"), read_tokenizer, False),
    "cached tokens": (Path("cache/*/train.bin"), prepare_tokens, False),
    "a cached tokenizer": (Path("cache/*/tokenizer.json"), prepare_tokens, True),
    "a ledger": (Path("ledger.json"), lambda: read_ledger(Path("ledger.json")), False),
}


@pytest.mark.goal("X1")
@pytest.mark.parametrize("most", [2, pytest.param(99, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("place", PLACES)
def test_a_pickle_in_the_place_of(place, most, canary, monkeypatch, capfd, measured):
    name, read, sealed = PLACES[place]
    if place.startswith(("cached", "a cached")):
        monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(Path("cache").absolute()))
        prepare_tokens()
    (file,) = [*Path().glob(str(name))] or [name]
    untouched = file.read_bytes() if file.exists() else None
    manifest = file.parent / "manifest.json"
    seal = manifest.read_bytes() if manifest.exists() else None
    tried = dict(islice(payloads(canary).items(), most))
    for payload, (data, _) in tried.items():
        file.write_bytes(data if name.suffix != ".jsonl" else data + b"\n")
        if sealed:
            seal_anew(manifest, file)
        lines = refuse(read, capfd)
        assert not canary.exists(), payload
        naming = [line for line in lines if file.name in line or str(file.parent) in line]
        assert naming or payload in INERT, (payload, lines)
        if seal is not None:
            manifest.parent.mkdir(exist_ok=True)
            manifest.write_bytes(seal)
        file.unlink() if untouched is None else file.write_bytes(untouched)
    measured(f"{len(tried)} payloads as {place}")


def refuse(read, capfd) -> list[str]:
    """Returns the lines about a file that is refused or passed over. One of them names it. The
    command may end with that, or go on without the file."""
    capfd.readouterr()
    try:
        read()
    except REFUSALS as error:
        lines = [str(error)]
    else:
        lines = capfd.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in lines), lines
    assert all(line.isprintable() for line in lines), lines
    return lines


def seal_anew(manifest: Path, file: Path) -> None:
    held, data = json.loads(manifest.read_bytes()), file.read_bytes()
    del held["sha256"]
    held["files"][file.name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    manifest.write_bytes(seal_manifest(held))
