"""A run or a study is found by its folder, by a file in it, or by a part of its name."""

import pytest

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


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("runs/main/rmsnorm-pre-s0-11111111", 0),
        ("runs/main/rmsnorm-pre-s0-11111111/", 0),
        ("runs/main/rmsnorm-pre-s0-11111111/config.yaml", 0),
        ("~/runs/main/rmsnorm-pre-s0-11111111", 0),
        ("rmsnorm-post", 1),
        ("22222222", 1),
        ("main/rmsnorm-post", 1),
        ("layernorm-pre-s0-33333333", 2),  # the whole name of the first attempt
        ("layernorm", 4),  # the newest of three attempts
        ("quick/rms", 5),
        ("quick", 5),  # it has one run
        ("hybrid-s0-5", 6),
        ("dyt", 7),  # a name comes before the name of its study
    ],
)
def test_a_run_is_found(here, text, run):
    assert find_run(text).resolve() == here / "runs" / RUNS[run]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runs/main", "runs/main"),
        ("main", "runs/main"),
        ("qui", "runs/quick"),
        ("runs/quick/sweep-quick.json", "runs/quick/sweep-quick.json"),
        ("dyt", "runs/dyt"),
        ("post", "runs/main/rmsnorm-post-s0-22222222"),
        ("runs/main/rmsnorm-post-s0-22222222/config.yaml", "runs/main/rmsnorm-post-s0-22222222"),
    ],
)
def test_a_study_is_found(here, text, place):
    assert find_study(text).resolve() == here / place


@pytest.mark.parametrize(
    ("find", "text", "message"),
    [
        (find_run, "rmsnorm-pre", "rmsnorm-pre: type more of one name; 2 fit: runs/main/rmsnorm-"),
        (find_run, "runs/main", "runs/main: is no run folder; name one in it: runs/main/layernorm"),
        (find_run, "s0", " and 4 more"),
        (find_run, "layrnorm", "layrnorm: did you mean runs/main/layernorm-pre-s0-33333333, "),
        (find_run, "rmsnorm-pst-s0", "did you mean runs/main/rmsnorm-post-s0-22222222? there is"),
        (find_run, "nope", "nope: there is no such file or folder, and no run below ./runs has "),
        (
            find_run,
            "zzz",
            "no run below ./runs has that in its name; there are runs/dyt/rms",
        ),
        (
            find_run,
            "",
            ": there is no such file or folder, and no run below ./runs has that in its name",
        ),
        (find_run, "a" * 9999, "no run below ./runs"),
        (find_run, "a\0b", "no run below ./runs"),
        (find_run, "runs/main/wandb", "runs/main/wandb: is no run folder; config.yaml is missing"),
        (find_study, "quik", "quik: did you mean runs/quick, runs/quick/rmsnorm-"),
    ],
)
def test_a_name_of_nothing_or_of_several_things_is_answered_in_one_line(here, find, text, message):
    with pytest.raises(ConfigError) as error:
        find(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_without_runs_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for find in (find_run, find_study):
        with pytest.raises(
            ConfigError, match=r"^x: there is no such file or folder, and no run below ./r"
        ):
            find("x")


def test_config_takes_a_file_of_any_name_and_a_run_by_its_name(here):
    (here / "mailed.yaml").touch()
    assert str(find_config("mailed.yaml")) == "mailed.yaml"
    assert find_config("rmsnorm-post").as_posix() == f"runs/{RUNS[1]}/config.yaml"
    with pytest.raises(ConfigError, match="^zzz: there is no such file or folder, and no run "):
        find_config("zzz")
