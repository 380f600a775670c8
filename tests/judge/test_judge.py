"""The judge from end to end: its command, the two runs of a pair, and checkouts."""

import io
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusing import refused
from run_folders import DATA, config_of, make_run
from warm import TEXT

import transformer_norms.judge.__main__ as judge
from transformer_norms import cli
from transformer_norms.judge import pairs, parties
from transformer_norms.judge.child import Exit, run_python
from transformer_norms.judge.decision import decide
from transformer_norms.judge.ledger import read_ledger

ROOT = Path(__file__).parents[2]
REFUSALS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
COMMON = (
    "model=nano model.depth=1 model.width=16 model.context=16 data=text data.paths=corpus.txt "
    "tracking=none data.val_tokens=300 trainer.threads=1 trainer.steps=24 trainer.batch_size=8 "
    "schedule.warmup=1 trainer.probe_every=0"
)
DATA_OF_A_RUN = {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)


class TrainedHere:
    """Runs the lines of a child in this process: an import of torch each time takes longer than the
    runs. `trained` lists what was asked of train.py, and `answers` what is answered first."""

    def __init__(self):
        self.trained, self.answers = [], []

    def __call__(self, root, lines, arguments):
        assert Path(root) == ROOT
        if lines == pairs._TRAIN:
            self.trained.append([*arguments])
            if self.answers and (answer := self.answers.pop(0)):
                return answer
        return run_lines(lines, arguments)


def run_lines(lines, arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["-c", *arguments])
        try:
            with redirect_stdout(out), redirect_stderr(err):
                exec(lines, {})
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            err.write("" if isinstance(end.code, int) else f"{end.code}\n")
    return Exit(code, *(text.getvalue().rstrip().rpartition("\n")[2] for text in (out, err)))


@pytest.fixture
def here_in(monkeypatch):
    child = TrainedHere()
    for module in (pairs, parties):
        monkeypatch.setattr(module, "run_python", child)
    return child


@pytest.fixture
def run_here(here_in, capsys):
    def run(*arguments, more=("--share-seeds",)):
        here_in.trained.clear()
        code = judge.main([*arguments, *more])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out else None, err

    return run


def summaries(answer):
    """The records of the runs of an answer, one row for each pair."""
    found = [json.loads(Path(run, "summary.json").read_text()) for run in answer["runs"]]
    return [found[first : first + 2] for first in range(0, len(found), 2)]


def test_a_better_rate_is_found_as_soon_as_its_pairs_decide_and_the_baseline_serves_again(
    run_here, here_in
):
    typed = ["optimizer.lr=2e-3", "optimizer.lr=6e-3", "--with", COMMON]
    code, answer, err = run_here(*typed, "--proposals", "1")
    assert (code, answer["decision"], answer["proposal"]) == (0, "better", 1)
    differences = []
    for first, second in summaries(answer):
        differences.append(second["test_loss"] - first["test_loss"])
        assert first["batch_chain"] == second["batch_chain"]
    assert answer["difference"] == pytest.approx(np.mean(differences), rel=1e-12)
    assert answer["level"] == 0.025
    assert not decide(differences[:-1], 0.025, 0.005, 20).over
    assert answer["low"] < answer["difference"] < answer["high"] < 0
    assert len(err.splitlines()) == answer["pairs"] + 2
    assert len(here_in.trained) == len(answer["runs"])

    again, same, _ = run_here(*typed)
    assert (again, same, here_in.trained) == (0, answer, [])
    folders = set(Path("runs").glob("judge-*/*"))
    code, answer, _ = run_here(typed[0], f"norm=layernorm {typed[0]}", "--with", COMMON, "--most=1")
    assert (code, answer["decision"], answer["proposal"]) == (7, "undecided", 2)
    assert len(set(Path("runs").glob("judge-*/*")) - folders) == 1  # the candidate's


def test_a_stopped_command_keeps_its_number_and_the_same_command_goes_on(run_here, here_in):
    typed = ["", "norm=layernorm", "--with", COMMON, "--most", "2"]
    preempted = Exit(75, '{"status": "preempted"}', "")
    here_in.answers = [None, None, None, preempted]
    code, answer, err = run_here(*typed)
    assert (code, answer) == (75, None)
    assert err.splitlines()[-1] == "stopped; the same command goes on"
    assert [len(p.pairs) for p in read_ledger(Path("runs/judge.json")).proposals] == [1]
    code, answer, err = run_here(*typed)
    assert (code, answer["pairs"], answer["proposal"]) == (7, 2, 1)
    assert [own[-2] for own in here_in.trained] == ["seed=1", "seed=1"]
    code, answer, _ = run_here(*typed, "--minutes", "0", more=())
    assert (code, answer["pairs"], answer["proposal"]) == (7, 0, 2)
    assert answer["reason"] == "the 0 minutes are spent"


def test_a_run_folder_is_judged_with_all_of_its_settings(run_here, here_in):
    assert cli.main([*COMMON.split(), "study=mine", "seed=7", "placement=sandwich"]) == 0
    (folder,) = Path("runs/mine").iterdir()
    code, answer, _ = run_here(str(folder), "norm=layernorm", "--most", "1")
    assert (code, answer["pairs"]) == (7, 1)
    folders = (folder, *answer["runs"])
    before, *configs = (yaml.safe_load(Path(run, "config.yaml").read_text()) for run in folders)
    for config, norm in zip(configs, ("rmsnorm", "layernorm"), strict=True):
        assert config["choices"] == {**before["choices"], "norm": norm}
        assert config["trainer"] == before["trainer"] | {"threads": config["trainer"]["threads"]}
        assert (before["seed"], config["seed"]) == (7, 0)


@pytest.mark.parametrize(("typed", "message"), REFUSALS)
def test_a_wrong_command_is_one_line_and_writes_nothing(typed, message, run_here, here_in):
    before = list(Path().iterdir())
    code, answer, err = run_here(*typed, "--with", COMMON)
    assert (code, answer, here_in.trained) == (2, None, [])
    assert message in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == before


@pytest.mark.parametrize("ended", [(4, "x: no space left"), (75, "x: is being trained")])
def test_a_run_that_ends_in_an_error_ends_the_command_with_its_code(run_here, here_in, ended):
    here_in.answers = [Exit(ended[0], "", ended[1])]
    code, _, err = run_here("", "norm=layernorm", "--with", COMMON)
    assert (code, err.splitlines()[-1]) == (ended[0], f"'' with seed 0: {ended[1]}")


def made(loss, norm="rmsnorm", **changed):
    return make_run(norm, config_of(), loss, **changed)


def test_a_pair_has_the_test_loss_if_both_runs_have_one():
    first, second = made(2.5, test_loss=2.6), made(2.4, "b", test_loss=2.3)
    pair = pairs.read_pair(0, first, second)
    assert (pair.loss, pair.losses, pair.failed) == ("test_loss", (2.6, 2.3), (None, None))
    assert pair.difference == 2.3 - 2.6
    pair = pairs.read_pair(0, first, made(2.4, "c"))
    assert (pair.loss, pair.losses) == ("val_loss", (2.5, 2.4))


@pytest.mark.parametrize(("changed", "name"), [
    ({"batch_chain": "others"}, "batches"),
    ({"data": {**DATA_OF_A_RUN, "fingerprint": "e" * 64}}, "tokens"),
    ({"data": {**DATA_OF_A_RUN, "val": {"tokens": 7}}}, "held-out tokens"),
    ({"data": {**DATA_OF_A_RUN, "ngrams": {"val": [3.0]}}}, "n-grams"),
])  # fmt: skip
def test_runs_that_read_or_evaluate_other_tokens_are_no_pair(changed, name):
    said = refused(pairs.read_pair, 0, made(2.5), made(2.4, "b", **changed))
    assert f"differ in their {name}: no pair" in said


def test_a_candidate_that_diverged_has_failed_though_it_read_fewer_batches():
    pair = pairs.read_pair(0, made(2.5), made(None, "b", status="diverged", batch_chain="fewer"))
    assert (pair.losses, pair.failed) == ((2.5, None), (None, "diverged"))
    data = {**DATA_OF_A_RUN, "ngrams": {"val": [2.45, 2.0]}}
    pair = pairs.read_pair(0, made(2.4, "c", data=data), made(2.46, "d", data=data))
    assert pair.failed == (None, "no better than the unigram (2.450)")


def test_a_child_uses_the_package_of_its_folder_and_is_stopped_by_its_parent_alone(monkeypatch):
    for folder, word in ((".", "here"), ("there", "there")):  # Python would import that of "."
        Path(folder, "transformer_norms").mkdir(parents=True)
        Path(folder, "transformer_norms/__init__.py").write_text(f"WHERE = {word!r}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    lines = "import sys, transformer_norms as t; print(); print(t.WHERE, *sys.argv[1:]); exit(5)"
    assert run_python(Path("there").absolute(), lines, ["a", "b c"]) == (5, "there a b c", "")
    lines = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("saved", "w"), sys.exit(75)))
open("ready", "w").write(str(os.getsid(0) == os.getpid()))
os.rename("ready", "begun")
while True: time.sleep(0.01)  # pause() may miss a signal that came before it
"""
    timer = threading.Thread(target=interrupt_when_begun, args=(Path("begun").absolute(),))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_python(ROOT, lines, [])
    timer.join()
    assert Path("begun").read_text() == "True"
    assert Path("saved").exists()


def interrupt_when_begun(file):
    while not file.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def checkouts():
    """Two copies of this project, the second with another line in rmsnorm.py."""
    skip = shutil.ignore_patterns("__pycache__")
    for name, part in itertools.product(("before", "after"), ("transformer_norms", "configs")):
        shutil.copytree(ROOT / part, Path(name, part), ignore=skip)
    norm = Path("after/transformer_norms/norms/rmsnorm.py")
    norm.write_text(norm.read_text() + "\n# another version\n")


def test_the_code_of_a_checkout_is_known_by_its_files(checkouts):
    own, before, after = (parties.code_hash(Path(at), []) for at in (ROOT, "before", "after"))
    assert own == before != after


@pytest.mark.nightly
def test_two_checkouts_are_judged_by_the_code_of_each(checkouts, capsys):
    code = judge.main(["before", "after", "--with", COMMON, "--most", "1"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, answer["decision"], answer["pairs"]) == (7, "undecided", 1)
    ((first, second),) = summaries(answer)
    differing = dict(first["source"].items() ^ second["source"].items())
    assert {*differing} == {"norms/rmsnorm.py"}
    assert len({Path(run).parent for run in answer["runs"]}) == 2  # no run folder is shared
    assert first["test_loss"] == second["test_loss"]  # a comment changes no digit
