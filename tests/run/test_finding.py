"""A run or a study is found by its folder, by a file in it, or by a part of its name."""

from pathlib import Path

import pytest
import yaml

from transformer_norms import ConfigError
from transformer_norms.config.finding import find_config, find_run, find_study

RUNS = [
    "main/rmsnorm-pre-s0-11111111",
    "main/rmsnorm-post-s0-22222222",
    "main/layernorm-pre-s0-33333333",
    "main/layernorm-pre-s0-33333333-2",
    "main/layernorm-pre-s0-33333333-10",
    "quick/rmsnorm-pre-s0-44444444",
    "dyt/rmsnorm-hybrid-s0-55555555",
    "other/dyt-hybrid-s0-66666666",
]
ROWS = yaml.safe_load(Path(__file__).with_name("finding.yaml").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in RUNS:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    (tmp_path / "runs" / "main" / "wandb").mkdir()
    (tmp_path / "runs" / "quick" / "sweep-quick.json").touch()
    return tmp_path


@pytest.mark.parametrize(("text", "run"), ROWS["runs"])
def test_a_run_is_found(here, text, run):
    assert find_run(text).resolve() == here / "runs" / RUNS[run]


@pytest.mark.parametrize(("text", "place"), ROWS["studies"])
def test_a_study_is_found(here, text, place):
    assert find_study(text).resolve() == here / place


@pytest.mark.parametrize(("find", "kind"), [(find_run, "no run"), (find_study, "no study")])
def test_a_name_of_nothing_or_of_several_things_is_answered_in_one_line(here, find, kind):
    for text, message in [*ROWS[kind], ["a" * 9999, "no "]]:
        with pytest.raises(ConfigError) as error:
            find(text)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_without_runs_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for find in (find_run, find_study):
        with pytest.raises(ConfigError, match=r"^x: there is no such file .* no run below ./runs$"):
            find("x")


def test_config_takes_a_file_of_any_name_and_a_run_by_its_name(here):
    (here / "mailed.yaml").touch()
    assert str(find_config("mailed.yaml")) == "mailed.yaml"
    assert find_config("rmsnorm-post").as_posix() == f"runs/{RUNS[1]}/config.yaml"
    with pytest.raises(ConfigError, match="^zzz: there is no such file or folder, and no run "):
        find_config("zzz")
