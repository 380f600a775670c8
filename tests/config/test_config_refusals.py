"""What cannot be run is answered with one line, and nothing is written."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from new_process import run_python
from omegaconf import OmegaConf
from refusing import refused
from run_folders import tree

from transformer_norms import build_model, cli, prepare_tokens, train
from transformer_norms.commands.hydra_sweeps import split_words
from transformer_norms.config.choices import choose
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import flat
from transformer_norms.names import AXES, NORM_WORDS, options
from transformer_norms.sweep.drive import plan_sweep

ROOT = Path(__file__).parents[2]

STUDIES = ["../../x", "/abs", "-rf", ".", "..", ".hidden", "a/b", "a b", "a\\b", "x" * 300]
STUDIES += ["'mаin'", "'ｍain'", ""]  # noqa: RUF001 letters that look like others
ROWS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
CASES = [row for group in ("names", "shapes", "kinds", "ranges") for row in ROWS[group]]
CASES += [  # which no YAML should hold
    [["seed=\udc80"], r"'seed=\udc80'", "control characters"],
    [f"seed={'9' * 5000}", "seed=999", "cannot be read"],
    [f"architecture.embed_scale='{'-' * 5000}1'", "architecture.embed_scale", "too deeply"],
]


def typed(overrides) -> list:
    """A list is taken as it is, a string is split at its spaces between pairs."""
    if isinstance(overrides, list):
        return overrides
    return re.split(r" (?=\S*=)", overrides) if "=" in overrides else [overrides]


@pytest.mark.goal("K1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0])[:60])
def test_a_malformed_command_is_refused_in_one_line_that_names_key_value_and_way_out(case):
    overrides, *fragments = case
    line = refused(compose, typed(overrides))
    assert [part for part in fragments if part not in line] == [], line


def misspelled(name: str) -> str:
    """trainer.steps -> trainer.ssteps"""
    above, dot, last = name.rpartition(".")
    return f"{above}{dot}{last[0]}{last}"


def test_a_misspelled_key_is_answered_with_that_key():
    fixed = {"type", "formula", "source", "unverified"}
    for key in flat(choose([], None).values):
        if key.rpartition(".")[2] not in fixed:
            typed = f"{misspelled(key)}=1"
            assert refused(compose, [typed]).startswith(f"{typed}: did you mean '{key}'? there is ")


@pytest.mark.parametrize("axis", [*AXES, *NORM_WORDS])
def test_a_misspelled_option_is_answered_with_that_option(axis):
    known = [*NORM_WORDS[axis], "rmsnorm"] if axis in NORM_WORDS else options(axis)
    for name in known:
        line = refused(compose, [f"{axis}={misspelled(name)}"])
        assert f"did you mean '{name}'? there is no {axis} '{misspelled(name)}'; there" in line
        assert known[0] in line
        assert axis not in AXES or len(known) <= 16 or " (configs/" in line or "--list" in line


@pytest.mark.goal("K1", "X4")
@pytest.mark.parametrize("study", STUDIES, ids=lambda name: ascii(name)[:40])
def test_a_study_whose_name_could_leave_its_folder_is_refused_by_name(study):
    line = refused(compose, [f"study={study}"])
    assert (repr(study.strip("'"))[:50] in line, "letters" in line) == (True, True), line


@pytest.mark.goal("K1")
@pytest.mark.parametrize("case", ROWS["sweeps"], ids=lambda case: case[0])
def test_a_malformed_element_of_a_sweep_is_refused_before_the_first_job(case):
    overrides, *fragments = case
    line = refused(plan_sweep, tuple(typed(overrides)))
    assert [part for part in fragments if part not in line] == [], line


def test_a_single_string_is_no_list_of_overrides():
    assert "['norm=rmsnorm']" in refused(compose, "norm=rmsnorm")
    assert "['norm=rmsnorm']" in refused(compose, {"norm": "layernorm"})


@pytest.mark.parametrize(("takes", "more"), [(build_model, [8]), (train, []), (prepare_tokens, [])])
def test_a_function_that_takes_a_config_refuses_anything_else_in_one_line(takes, more):
    """As users call it: without the checker of types that tests have around it."""
    line = "{'norm': 'dyt'}: a config is wanted, as compose(['norm=rmsnorm'])"
    assert refused(inspect.unwrap(takes), {"norm": "dyt"}, *more) == line


HOSTILE_NAMES = [
    *STUDIES, "../x", "../../../../tmp/x", "x/../../y", "./x", "x/.", "//x", "~", "~/x", "$HOME",
    "`id`", "$(id)", "x;id", "x|id", "x&id", "*", "?", "[a]", "{a,b}", "x\n", "\nx", "x\x00.yaml",
    "\x1b[2J", "x\u202eyp", "x\u200b", "x:y", "\uff0e\uff0e/x", "\u2025/x", "%2e%2e%2fx", "-",
    "--help", "x" * 256, "\udc80",
]  # fmt: skip


@pytest.mark.goal("X4")
@pytest.mark.parametrize("most", [2, pytest.param(99, marks=pytest.mark.nightly)])
def test_no_hostile_name_writes_anything_anywhere(most, tmp_path, monkeypatch, capsys, measured):
    """A run and a sweep leave everything above the current folder as it is."""
    here = tmp_path / "above" / "here"
    here.mkdir(parents=True)
    (tmp_path / "above" / "x").write_text("somebody's")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    before, tried = tree(tmp_path), HOSTILE_NAMES[:most]
    for name in tried:
        for more in [], ["-m", "seed=0,1"]:
            for spelled in f"study={name}", f"study='{name}'":
                assert cli.main([*more, spelled, "model=nano", "data=stories"]) == 2, name
                out, err = capsys.readouterr()
                assert (out, err.count("\n"), err[:-1].isprintable()) == ("", 1, True), name
    assert tree(tmp_path) == before
    assert most == 2 or len(set(tried)) >= 40
    measured(f"{len(tried)} names, {4 * len(tried)} commands, nothing written")


# Each command is refused; then this program prints whether torch was imported.
ASKED = """
import json, sys
from refusing import refused
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
for typed in json.loads(sys.argv[1]):
    refused(compose, typed)
print("torch" in sys.modules)
"""


@pytest.mark.goal("K1")
def test_unknown_keys_and_names_of_options_are_refused_before_torch_is_imported(measured):
    """The first names; a norm for the embedding is looked up among the classes, with torch."""
    wanted = [typed(overrides) for overrides, *_ in ROWS["names"][:21]]
    assert run_python(ASKED, json.dumps(wanted)) == "False\n"
    measured(f"{len(wanted)} refused without torch")


COMMANDS = [
    ["norm=rmsnrom"],
    ["trainer.stesp=10"],
    ["study=../../x"],
    ["config=nowhere.yaml"],
    ["-m", "norm=rmsnorm,rmsnrom"],
    ["-m", "seed=0,1", "hydra/launcher=nowhere"],
    ["-m", "seed=0,1", "launcher=pool", "launcher.workers=0"],
    ["-m", "seed=0,1", "hydra/sweeper=nowhere"],
    ["-m", "seed=0,1", "hydra.launcher.nothing=1"],
    ["-m", "seed=0,1", "hydra.sweep.dir=/tmp/elsewhere"],
    ["-m", "seed=0,1", "hydra/sweeper=basic", "+hydra.sweep.dir=/tmp/elsewhere"],
    ["-m", "hydra/sweeper=basic", "norm=rmsnorm,rmsnrom"],
    ["sweep=quick", "--config-dir=here"],
]


def hydras_settings() -> list[str]:
    tree = OmegaConf.to_container(OmegaConf.structured(HydraConf))
    groups = [f"hydra/{next(iter(group))}=1" for group in tree.pop("defaults")]
    return [*groups, *(f"hydra.{key}=1" for key in flat(tree))]


@pytest.mark.goal("X4")
def test_hydras_settings_and_flags_are_refused_besides_those_of_a_launcher_and_a_sweeper():
    """All that Hydra has, so one that a later Hydra adds has to be decided upon."""
    taken = ["hydra/launcher=1", "hydra/sweeper=1"]
    more = ["hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=9"]
    assert split_words([*taken, "seed=1", *more]) == ([*taken, *more], ["seed=1"])
    typed = ["hydra={run:1}", "hydra.launcher._target_=abort", "hydra.launchers.n_jobs=2"]
    for text in [*hydras_settings(), *typed]:
        if text not in taken:
            assert split_words([text]) == ([], [text])
            line = refused(compose, [text])
            assert line.startswith(f"{text}: Hydra's setting is not taken; "), line
    flags = {flag for action in get_args_parser()._actions for flag in action.option_strings}
    parser = cli.make_parser()
    for flag in sorted(flags - {*parser.flags}):
        assert refused(parser.parse_args, [flag])


@pytest.mark.goal("K1")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_malformed_command_exits_with_2_and_one_line_and_writes_nothing(
    arguments, tmp_path, monkeypatch, capsys
):
    """A run and a sweep in their own processes; others in this one, which has imported torch."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / "here").mkdir()
    before = tree(tmp_path)
    if arguments in (COMMANDS[0], COMMANDS[5]):
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        kept |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-B", str(ROOT / "train.py"), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path / "here", env=kept, capture_output=True, text=True
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["train.py"])
        code = cli.main(arguments)
        out, err = capsys.readouterr()
    assert (code, out, err.count("\n"), err[-1:]) == (2, "", 1, "\n")
    assert tree(tmp_path) == before
    assert arguments[-1].rpartition(",")[2].partition("=")[0] in err


@pytest.fixture(scope="module")
def saved() -> str:
    return to_yaml(compose(["final_norm=layernorm"]))


HOSTILE = [*ROWS["files"], ("form: 0x" + "f" * 5000, "Exceeds the limit")]
HOSTILE += [("#" * (1 << 19), "longer than")]
GONE = "(gone)"  # in the place of a value


@pytest.mark.goal("X3")
@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: ascii(case[0])[:40])
def test_a_file_that_is_more_or_less_than_a_saved_config_is_refused(case, tmp_path):
    content, fragment = case
    file = tmp_path / "config.yaml"
    file.write_text(content)
    line = refused(compose, [f"config={file}"])
    assert line.startswith(f"config={file}: ")
    assert fragment in line


@pytest.mark.goal("K2", "X3")
@pytest.mark.parametrize("edit", ROWS["edits"], ids=lambda edit: f"{edit[0]}-{edit[1]}"[:40])
def test_a_saved_config_is_complete_and_every_key_in_it_counts_or_is_refused(edit, saved, tmp_path):
    key, value, fragment = edit
    held = yaml.safe_load(saved)
    node, (*above, last) = held, key.split(".")
    for name in above:
        node = node[name]
    if value == GONE:
        del node[last]
    else:
        node[last] = value
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(held))
    line = refused(compose, [f"config={file}"])
    assert key.removeprefix("init.std.").removeprefix("resolved.") in line
    assert fragment in line, line


@pytest.mark.parametrize(
    "key",
    "preset=gpt2 recipe=olmo2_1b qkv=none norms={} warnings=[] resolved={} choices={}".split(),
)
def test_what_a_saved_run_derives_cannot_be_typed_beside_it(key, saved, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(saved)
    assert key in refused(compose, [f"config={file}", key])
