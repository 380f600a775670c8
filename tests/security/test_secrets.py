"""X8: what the environment holds in secret stands in no file and on no stream."""

import os
from pathlib import Path

import pytest
from plugin_folders import write_plugins
from warm import Command

from transformer_norms import compose, train
from transformer_norms.errors import describe_error, hide_secrets
from transformer_norms.training.trainer import Trainer

NAMES = (
    "WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN "
    "GITHUB_TOKEN OPENAI_API_KEY PGPASSWORD GOOGLE_APPLICATION_CREDENTIALS"
).split()
SECRETS = {name: f"{place}5ec2e7{'ab9' * 11}" for place, name in enumerate(NAMES)}
SECRETS["https_proxy"] = "http://someone:9hunter2-hunter2@proxy.invalid:3128"
VALUES = [*map(SECRETS.get, NAMES), "9hunter2-hunter2"]
TINY = (
    "model=nano data=stories data.documents=300 data.val_tokens=64 tokenizer=byte trainer.steps=4 "
    "trainer.eval_every=2 trainer.batch_size=2 schedule.warmup=0 trainer.device=cpu"
).split()
LEAKY = """
import os
import torch
from torch import nn
from transformer_norms.norms import NORMS

@NORMS("leaky")
class Leaky(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls > 3 and os.environ.get("LEAK"):
            raise RuntimeError(f"401 for {dict(os.environ)}")
        return x
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def hits(*texts: str) -> list[str]:
    found = [value for value in VALUES for text in texts if value in text]
    for file in (file for file in Path().rglob("*") if file.is_file()):
        data = file.read_bytes()
        found += [f"{file}: {value}" for value in VALUES if value.encode() in data]
    return found


@pytest.mark.goal("X8")
def test_an_error_that_quotes_the_environment_is_kept_without_its_secrets(monkeypatch, measured):
    def fail(self):
        raise RuntimeError(f"401 for {dict(os.environ)}")

    monkeypatch.setattr(Trainer, "train_step", fail)
    monkeypatch.setattr("sys.argv", ["train.py", f"hub={SECRETS['HF_TOKEN']}"])
    with pytest.raises(RuntimeError) as caught:
        train(compose([*TINY, "tracking=none"]))
    line = describe_error(caught.value)
    assert "401 for" in next(Path().rglob("summary.json")).read_text()
    assert line.count("***") >= len(VALUES)
    assert hits(line) == []
    measured(f"{len(VALUES)} secrets, none found")


def test_a_short_word_is_no_secret_and_nothing_else_is_masked(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("HOME", "/home/somebody")
    text = "false in /home/somebody"
    assert hide_secrets(text) == text


@pytest.mark.goal("X8")
@pytest.mark.nightly
def test_no_file_and_no_stream_of_any_command_has_a_secret(measured):
    Path("mine").mkdir()
    leaky = {"norm/leaky": "type: leaky\nformula: x\nsource: mine\n"}
    write_plugins(Path("mine"), LEAKY, leaky)
    offline = {"WANDB_MODE": "offline"}
    sweep = ["-m", "norm=rmsnorm,leaky", "seed=0,1", "launcher=pool", "launcher.workers=2"]
    plugin = ["plugins=mine", "tracking=wandb"]
    said = []
    for typed, leak, code in (
        ([*plugin, "norm=rmsnorm"], "", 0),
        ([*plugin, "norm=leaky"], "1", 1),
        ([*plugin, "study=swept", *sweep], "1", 1),
        ([f"data.paths={SECRETS['HF_TOKEN']}", "data=text"], "", 2),
    ):
        command = Command([*TINY, *typed], {**SECRETS, **offline, "LEAK": leak})
        said += command.communicate(timeout=300)
        assert command.returncode == code, said[-1]
        assert ("401 for" in "".join(said[-2:])) == bool(leak)
    assert list(Path().rglob("report.html"))
    assert list(Path().rglob("*.wandb"))
    assert "***" in "".join(said)
    assert hits(*said) == []
    files = sum(file.is_file() for file in Path().rglob("*"))
    measured(f"{len(VALUES)} secrets, {files} files and {len(said)} streams, none found")
