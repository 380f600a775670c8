"""--register: a question is written down before its runs, and the report holds the study to it."""

import hashlib
import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
import sweeps
import yaml
from refusing import refused
from run_folders import edit, tree
from sweeps import MADE_UP, SHORT, composed, made_up_sweep, sweep, trainings, write_sweep
from warm import TEXT

from transformer_norms import compose
from transformer_norms.cli import main
from transformer_norms.report.writing import write_report
from transformer_norms.run.plan import Plan
from transformer_norms.storage import loaded_code

FILE = Path("registered/mine.yaml")
TABLE, RECORD = Path("runs/mine/table.md"), Path("runs/mine/sweep-mine.json")
MINE = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm, scalenorm]}\n"
MINE += "seeds: [0, 1, 2]\ncontrasts: [layernorm - rmsnorm]\n"
TUNED = "tune: {optimizer.lr: [1e-3, 2e-3], seed: [9], refine: 0}"
NORMS = ("rmsnorm", "layernorm", "scalenorm")
SAME = "What was asked is what was registered."


def register(capsys, *typed, content=MINE, short=MADE_UP):
    code = main([*short, *write_sweep(content), *typed, "--register"])
    return (code, *capsys.readouterr())


def git(*words):
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.check_output(["git", *own, *words], text=True).strip()


def commit(name):
    git("add", "--force", name)
    git("commit", "--quiet", "--message", name)
    return git("rev-parse", "HEAD")


def first_run(norm):
    """The identity of the run that tunes a norm first, planned by itself."""
    own = [f"norm={norm}", "optimizer.lr=0.001", "seed=9", "plugins=mine"]
    return Plan(compose([*MADE_UP, *own])).hash


def registered():
    return TABLE.read_text().partition("## Registered\n")[2].partition("\n## ")[0].strip()


def test_a_question_is_written_with_its_hash_and_its_budget_and_nothing_else_is(trainings, capsys):
    write_sweep(MINE)
    before = tree(".")
    tuned = partial(register, capsys, content=MINE + TUNED)
    assert tuned("study=mine", "launcher=pool")[0] == 0
    assert {*tree(".")} - {*before} == {"registered", str(FILE)}
    first, _, content = FILE.read_bytes().partition(b"\n")
    assert first.decode() == f"sha256: {hashlib.sha256(content).hexdigest()}"
    held, config = yaml.safe_load(content), compose(MADE_UP)
    assert held["terms"] == [  # without threads, tracking, the launcher and the study
        "question Which?",
        "baseline norm=rmsnorm",
        *(f"variant norm={norm}" for norm in NORMS),
        *("tune optimizer.lr=[0.001, 0.002]", "tune seed=[9]", "tune refine=0"),
        *("seed 0", "seed 1", "seed 2"),
        "contrast layernorm - rmsnorm",
        "margin 0.02",
        *("fixed model=nano", "fixed data=stories", "fixed trainer.steps=4", "fixed plugins=mine"),
        *(f"run {norm} lr=0.001 s9 {first_run(norm)}" for norm in NORMS),
    ]
    runs = 3 * (2 * 1 + 3)
    tokens = runs * 4 * config.trainer.batch_size * config.model.context
    assert [held["budget"][key] for key in ("runs", "steps", "tokens")] == [runs, runs * 4, tokens]
    assert {"better", "equivalent", "not told apart"} < {*held["words"]}
    there = FILE.read_bytes()
    assert tuned()[0] == 0
    code, _, line = tuned("seed=0,1,2,3")
    assert (code, line.count("\n"), FILE.read_bytes()) == (2, 1, there)
    assert "registered/mine.yaml: is there, for sweep=mine. " in line
    assert "Asked and not registered: seed 3. study=NAME" in line
    assert main(["-m", "norm=rmsnorm,dyt", "--register"]) == 2
    assert not Path("runs").exists()


def test_the_report_says_what_was_registered_before_the_runs_and_what_was_asked_afterwards(
    trainings, capsys
):
    named = write_sweep(MINE)
    git("init", "--quiet")
    register(capsys)
    holder = commit(FILE)
    # A key that changes no result is typed.
    _, _, said = made_up_sweep(capsys, *named, "trainer.log_every=2")
    assert SAME in registered()
    line = f"before the first run began; commit {holder[:12]} had the file then."
    said = said[said.index("registered/") :]
    assert said.startswith("registered/mine.yaml: mine was registered on ")
    assert f"{line}\n{SAME}\n" in said
    assert line in registered()
    assert registered().count("\n") == 1
    # A part is not a difference while the rest is asked by another command; more is.
    made_up_sweep(capsys, *named, "norm=rmsnorm,layernorm,dyt", "seed=0,1,2,5")
    FILE.unlink()
    said = made_up_sweep(capsys, *named)[2]
    assert "runs/mine/sweep-mine.json: mine was registered on " in said
    assert "\nAsked and not registered: variant norm=dyt; seed 5.\n" in said
    write_report([RECORD], margin=0.05, contrasts=["scalenorm - rmsnorm"])
    first, second = registered().replace("\\", "").split("\n")
    more = "variant norm=dyt; contrast scalenorm - rmsnorm; margin 0.05; seed 5."
    assert (line in first, second) == (True, f"- Asked and not registered: {more}")


def test_a_narrower_question_names_what_no_command_asked(trainings, capsys):
    register(capsys)
    named = write_sweep(MINE.replace("[0, 1, 2]", "{first: 3, until: decided, most: 4}"))
    made_up_sweep(capsys, *named, "norm=rmsnorm,layernorm", "optimizer.lr=1e-3")
    assert "before the first run began; no commit had the file then." in registered()
    assert registered().split("\n")[1:] == [
        "- Settings, data or plugins differ from the registered ones: run layernorm s0; "
        "run rmsnorm s0.",
        "- Asked and not registered: seed 3 to 4 seeds each, until decided; "
        "fixed optimizer.lr=0.001.",
        "- Registered and not asked: variant norm=scalenorm; seed 0; seed 1; seed 2.",
    ]


@pytest.mark.parametrize("begun_at", ["nowhere", "elsewhere", "the root", "a later commit"])
def test_runs_that_began_without_the_registration_are_counted(trainings, capsys, begun_at):
    named = write_sweep(MINE)
    made_up_sweep(capsys, *named)
    assert "registered" not in TABLE.read_text().lower()
    assert json.loads(RECORD.read_text())["registered"] is None
    git("init", "--quiet")
    root = commit("mine/configs/sweep/mine.yaml")
    register(capsys)
    commit(FILE)
    Path("later.txt").touch()
    later, away = (
        commit("later.txt"),
        ", 9 runs had begun at commits that are not in its repository",
    )
    begun, said = {
        "nowhere": (None, away), "elsewhere": (40 * "1", away),
        "the root": (root, ", AFTER 9 runs had begun; "),
        "a later commit": (later, ", before the first run began; "),
    }[begun_at]  # fmt: skip
    for file in Path("runs/mine").glob("*/summary.json"):
        edit(file.parent, commit=begun)
    made_up_sweep(capsys, *named)
    assert said in registered()
    assert SAME in registered()


def test_a_file_that_was_changed_is_said_to_be_and_one_that_is_none_starts_nothing(
    trainings, capsys
):
    named = write_sweep(MINE)
    register(capsys)
    git("init", "--quiet")
    commit(FILE)
    FILE.write_text(FILE.read_text().replace("margin 0.02", "margin 0.03"))
    assert "Registered and not asked: margin 0.03." in register(capsys)[2]
    made_up_sweep(capsys, *named)
    assert "The file was changed by then: its hash does not fit." in registered()
    assert "no commit had the file then" in registered()
    FILE.write_text("sha256: 0\n- a list\n")  # and the record has its copy
    made_up_sweep(capsys, *named, "seed=7,8,9")
    trained = len(trainings.runs)
    FILE.rename("registered/own.yaml")
    line = refused(made_up_sweep, capsys, *named, "study=own")
    assert line.startswith("registered/own.yaml: is not a file that ")
    assert line.endswith("; move or delete it")
    assert len(trainings.runs) == trained


def test_a_registration_of_another_study_is_named_before_the_first_run(trainings, capsys):
    register(capsys)
    said = made_up_sweep(capsys, "sweep=mine", "plugins=mine", "study=own")[2]
    assert "warning: registered/mine.yaml does not register sweep=mine study=own, which" in said


@pytest.mark.parametrize("changed", ["a default", "the data", "a plugin"])
def test_what_changed_after_the_registration_is_reported(trainings, capsys, monkeypatch, changed):
    named = write_sweep(MINE)
    corpus, plugin = Path("corpus.txt"), Path("mine/own.py")
    corpus.write_text(TEXT)
    plugin.write_text("")
    assert register(capsys, short=SHORT)[0] == 0
    if changed == "a default":
        sweeps.compose_once(
            monkeypatch, lambda words: composed((*words, "optimizer.weight_decay=0.03"))
        )
    elif changed == "the data":
        corpus.write_text(f"{TEXT}One more line.\n")
    else:
        plugin.write_text("# other code\n")
        monkeypatch.setattr(loaded_code, "_first", {})  # as another process begins
    said = sweep(capsys, *named)[2]
    runs = "; ".join(f"run {norm} s0" for norm in sorted(NORMS))
    names = "plugin plugins/own.py" if changed == "a plugin" else runs
    line = f"Settings, data or plugins differ from the registered ones: {names}."
    assert f"\n{line}\n" in said
    assert registered().split("\n")[1:] == [f"- {line}"]
