"""The judge: the decision against brute force, the ledger, and proposals from end to end."""

import io
import json
import math
import multiprocessing
import shutil
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from judge_series import run_proposal, simulate_series, skewed, summarize
from run_folders import DATA, config_of, make_run
from scipy import integrate, stats

import transformer_norms.judge.__main__ as judge
from transformer_norms import cli
from transformer_norms.comparison.sequence import EFFECT_VARIANCE
from transformer_norms.errors import ConfigError
from transformer_norms.judge import decision, pairs, parties
from transformer_norms.judge.child import Answer, Child
from transformer_norms.judge.decision import MISSED, decide, interval
from transformer_norms.judge.ledger import (
    Pair,
    Party,
    add_pair,
    enter_proposal,
    level_of,
    read_ledger,
)

ROOT = Path(__file__).parents[1]
LEVEL, EFFECT, MOST = 0.05 / 40, 0.005, 20
TEXT = "".join(f"{i} owls read {i * i % 97} books on {i % 7} trees.\n" for i in range(900))
COMMON = (
    "model=tiny model.depth=1 model.width=16 model.context=16 data=text data.paths=corpus.txt "
    "tracking=none data.val_tokens=300 trainer.threads=1 trainer.steps=24 trainer.batch_size=8 "
    "schedule.warmup=1 trainer.probe_every=0"
)
DATA_OF_A_RUN = {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA}


# ------------------------------------------------------------------------------------ the decision


def one_sided_martingale(x, mu, sign):
    """The ratio of the likelihoods of means on one side of mu and of mu itself, by integration:
    the mean is half-normal with variance g sigma^2, and sigma has the right Haar prior."""
    x = np.asarray(x)
    n, mean = len(x), x.mean()
    squares = ((x - mean) ** 2).sum()

    def density(sigma, at):
        exponent = -(squares + n * (mean - at) ** 2) / (2 * sigma**2)
        return np.exp(exponent) * sigma ** (-n - 1)

    def mixed(effect, sigma):
        weight = 2 * stats.norm.pdf(effect, scale=math.sqrt(EFFECT_VARIANCE))
        return weight * density(sigma, mu + sign * effect * sigma)

    scale = x.std(ddof=1)
    above = integrate.dblquad(mixed, scale / 30, scale * 30, 0, 40, epsabs=0, epsrel=1e-6)[0]
    return above / integrate.quad(density, scale / 30, scale * 30, args=(mu,), limit=400)[0]


def test_where_the_upper_end_lies_the_evidence_of_lower_means_is_one_over_the_level():
    """A martingale of mean 1 exceeds 1 / level with a probability of at most `level`. The evidence
    of higher means is at most 1 there, and both together are what the end is solved for."""
    x = [-1.1, -0.7, -1.0, -0.9, -1.2, -0.8]
    level = 0.01
    _, _, high = interval(x, level)
    below, above = (one_sided_martingale(x, high, sign) for sign in (-1, 1))
    assert above <= 1
    assert below >= 1 / level
    assert below + above == pytest.approx(1 / level + 1, rel=1e-3)


def test_the_ends_of_the_interval_mirror_each_other():
    x = [0.3, -0.2, 0.4, 0.1, 0.25, 0.0]
    mean, low, high = interval(x, MISSED)
    mirrored = interval([-value for value in x], MISSED)
    assert mirrored == pytest.approx((-mean, -high, -low))
    assert interval(x, MISSED / 10)[2] > high
    assert interval(x, MISSED / 10)[1] == low  # a gain that is missed is no false `better`


@pytest.mark.parametrize(
    ("differences", "word", "over"),
    [
        ([], "undecided", False),
        ([-0.5, -0.5001], "undecided", False),
        ([-0.1 - 1e-4 * (k % 3) for k in range(9)], "better", True),
        ([-0.004 - 1e-5 * (k % 3) for k in range(12)], "not better", True),  # less than the effect
        ([0.1 + 1e-4 * (k % 3) for k in range(9)], "not better", True),
        ([0.0, 0.0, 0.0], "not better", True),  # the change changes nothing
        ([-0.1, -0.1, -0.1], "undecided", False),  # no noise is measured
        ([-0.02, -0.01, -0.03], "undecided", False),
        ([0.02, 0.03, 0.025], "undecided", True),  # hopeless
        ([-0.003, -0.0035, -0.0025], "undecided", True),  # a gain, but hardly one of 0.005
        ([0.02, -0.03, 0.01, -0.015] * 5, "undecided", True),  # the budget is spent
    ],
)
def test_what_differences_decide(differences, word, over):
    decided = decide(differences, LEVEL, EFFECT, MOST)
    assert (decided.word, decided.over) == (word, over)


def student_calls_better(differences, looks, level):
    """Whether Student's one-sided test finds a gain worth naming at any look: one row each."""
    means = np.stack([differences[:, :n].mean(1) for n in looks])
    errors = np.stack([differences[:, :n].std(1, ddof=1) / math.sqrt(n) for n in looks])
    quantiles = stats.t.ppf(level, np.asarray(looks) - 1)[:, None]
    return ((means / errors < quantiles) & (means <= -EFFECT)).any(0)


def test_a_candidate_that_is_no_better_is_called_better_no_more_often_than_the_level():
    """Looked at after every pair. Student's test with the same looks finds several times as many:
    the check can fail."""
    level, differences = 0.05, np.random.default_rng(0).normal(0, 0.02, (600, 12))
    words = [run_proposal(row, level, EFFECT)[0] for row in differences.tolist()]
    allowed = stats.binom.ppf(0.999, 600, level)
    assert words.count("better") <= allowed
    assert student_calls_better(differences, range(3, 13), level).sum() > allowed


def test_a_gain_is_found_in_half_the_pairs_and_a_hopeless_candidate_costs_less():
    draw = np.random.default_rng(1)
    found, null = (
        summarize([simulate_series(draw, 20, gain=gain, fresh=True) for _ in range(4)])
        for gain in (0.02, 0.0)
    )
    assert found["better"] >= 0.95
    assert found["pairs"] < 12
    assert null["pairs"] < 9
    assert found["saved"] == pytest.approx(1 - found["pairs"] / 20)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [
        {"sd": 0.003},
        {"sd": 0.01},
        {"sd": 0.01, "effect": 0.0, "most": 40},
        {"sd": 0.02, "noise": skewed},
        {"sd": 0.02, "likeness": 0.9, "fresh": True},
    ],
    ids=lambda truth: " ".join(f"{key}={getattr(x, '__name__', x)}" for key, x in truth.items()),
)
def test_of_series_of_100_null_proposals_at_most_5_percent_hold_a_false_better(settings):
    """Student's test of each proposal at 5 %, with the same looks, finds more: it can fail."""
    draw = np.random.default_rng(2)
    null = summarize([simulate_series(draw, **settings) for _ in range(200)])
    assert null["any better"] <= 0.05
    assert null["pairs"] < settings.get("most", 20) / 2
    differences = draw.normal(0, settings["sd"], (40, 100, 20))
    false = [student_calls_better(one, range(3, 21), 0.05).any() for one in differences]
    assert np.mean(false) > 0.05


@pytest.mark.nightly
def test_candidates_made_from_a_lucky_one_need_seeds_of_their_own():
    """With shared seeds the luck of one candidate is inherited: why they are not the default."""
    draw = np.random.default_rng(3)
    alike = [simulate_series(draw, sd=0.02, likeness=0.9) for _ in range(200)]
    assert summarize(alike)["any better"] > 0.05


@pytest.mark.nightly
@pytest.mark.parametrize("gain", [0.0075, 0.01, 0.015])
def test_giving_up_hopeless_candidates_costs_hardly_a_gain(gain, monkeypatch):
    def run_series():
        draw = np.random.default_rng(5)
        series = [simulate_series(draw, 20, gain=gain, fresh=True) for _ in range(20)]
        return summarize(series)

    giving_up = run_series()
    monkeypatch.setattr(decision, "is_hopeless", lambda *_: False)
    assert giving_up["better"] > run_series()["better"] - 0.02
    assert giving_up["pairs"] < run_series()["pairs"]


@pytest.mark.nightly
def test_gains_are_found_with_half_the_runs():
    draw = np.random.default_rng(4)
    found = [
        summarize([simulate_series(draw, gain=gain) for _ in range(20)])
        for gain in (0.01, 0.02, 0.03, 0.05)
    ]
    for numbers, least in zip(found, (0.15, 0.97, 0.99, 0.99), strict=True):
        assert numbers["better"] > least
    saved = [numbers["saved"] for numbers in found]
    assert saved == sorted(saved)
    assert saved[1] > 0.3


# -------------------------------------------------------------------------------------- the ledger


@pytest.mark.parametrize("first", [1, 3, 20])
def test_the_levels_of_an_endless_series_sum_to_5_percent(first):
    """Blocks of N, 2 N, 4 N, ... share a half, a quarter, an eighth, ... of it equally."""
    level = [level_of(number, first) for number in range(1, 127 * first + 1)]
    end = 0
    for block in range(7):
        start, end = end, end + first * 2**block
        share = Fraction(1, 20) / 2 ** (block + 1)
        assert level[start:end] == [float(share / (end - start))] * (end - start)
    assert sum(level) < 0.05 == pytest.approx(sum(level) * 128 / 127)


def party(name, identity):
    return Party(name, "/code", [name], "c" * 16, None, identity * 16)


BASELINE, CANDIDATE, SECOND = party("x", "a"), party("y", "b"), party("z", "c")


def made_pair(seed, difference, **keys):
    return Pair(seed, (f"b{seed}", f"c{seed}"), "val_loss", (2.0, 2.0 + difference), **keys)


def test_a_proposal_keeps_its_number_its_level_and_its_pairs():
    path = Path("made/judge.json")
    first = enter_proposal(path, BASELINE, CANDIDATE, EFFECT)
    assert (first.number, first.level) == (1, 0.05 / 40)
    add_pair(path, 1, made_pair(1000, -0.1), MOST)
    assert enter_proposal(path, BASELINE, SECOND, EFFECT).number == 2
    assert enter_proposal(path, BASELINE, CANDIDATE, 0.01).number == 3
    again = enter_proposal(path, BASELINE, replace(CANDIDATE, typed="typed otherwise"), EFFECT)
    assert (again.number, again.next_seed) == (1, 1001)
    assert [p.number for p in read_ledger(path).proposals] == [1, 2, 3]


def test_a_decided_proposal_takes_no_more_pairs_and_no_pair_twice():
    path = Path("judge.json")
    enter_proposal(path, BASELINE, CANDIDATE, EFFECT, shares=True)
    for seed in (0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
        proposal = add_pair(path, 1, made_pair(seed, -0.1 - 1e-4 * (seed % 3)), MOST)
    assert proposal.decision == "better"
    assert [pair.seed for pair in proposal.pairs] == list(range(len(proposal.pairs)))
    assert len(proposal.pairs) < 9


def test_proposals_share_no_seed_unless_they_are_told_to():
    path = Path("judge.json")
    seeds = [
        enter_proposal(path, BASELINE, CANDIDATE, EFFECT, shares=shares).next_seed
        for shares in (True, False, False)
    ]
    assert seeds == [0, 2000, 2000]
    assert enter_proposal(path, BASELINE, SECOND, EFFECT).next_seed == 3000


@pytest.mark.parametrize(
    ("failed", "word", "reason"),
    [
        ((None, "diverged"), "not better", "the candidate failed to train with seed 1: diverged"),
        (("diverged", None), "undecided", "the baseline failed to train with seed 1: diverged"),
        (("diverged", "diverged"), "undecided", "the baseline failed"),
    ],
)
def test_a_run_that_failed_to_train_decides_at_once(failed, word, reason):
    path = Path("judge.json")
    enter_proposal(path, BASELINE, CANDIDATE, EFFECT, shares=True)
    add_pair(path, 1, made_pair(0, -0.1), MOST)
    proposal = add_pair(path, 1, made_pair(1, 0.0, failed=failed), MOST)
    decided = proposal.weigh(MOST)
    assert (decided.word, decided.over, decided.difference) == (word, True, None)
    assert reason in decided.reason == proposal.reason


def test_a_ledger_is_one_series_of_one_n_and_a_damaged_one_is_refused():
    path = Path("judge.json")
    assert enter_proposal(path, BASELINE, CANDIDATE, EFFECT, first=5).level == 0.005
    assert enter_proposal(path, BASELINE, SECOND, EFFECT).level == 0.005
    with pytest.raises(ConfigError, match="was begun with 5"):
        enter_proposal(path, BASELINE, SECOND, EFFECT, first=6)
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"level"', b'"leve"'))
    with pytest.raises(ConfigError, match=r"judge.json: proposals.0.level"):
        read_ledger(path)


def enter_many(name, barrier):
    barrier.wait()
    for index in range(10):
        other = party(f"{name}{index}", "d")
        identity = f"{ord(name):x}{index}".ljust(16, "0")
        enter_proposal(Path("judge.json"), BASELINE, replace(other, identity=identity), EFFECT)


def test_two_processes_enter_proposals_at_once_and_none_is_lost():
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    processes = [context.Process(target=enter_many, args=(name, barrier)) for name in "pq"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    proposals = read_ledger(Path("judge.json")).proposals
    assert [proposal.number for proposal in proposals] == list(range(1, 21))
    assert len({proposal.candidate.identity for proposal in proposals}) == 20


# ----------------------------------------------------------------------------- from end to end


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)


class ChildHere(Child):
    """Runs the lines of a Child in this process: an import of torch each time takes longer than the
    runs. `trained` lists what was asked of train.py, and `answers` what is answered first."""

    trained: list[list[str]] = []
    answers: list[Answer] = []

    def __init__(self, root, lines, arguments):
        assert Path(root) == ROOT
        self.answer = None
        if lines == pairs._TRAIN:
            ChildHere.trained.append([*arguments])
            self.answer = ChildHere.answers.pop(0) if ChildHere.answers else None
        self.answer = self.answer or run_lines(lines, arguments)

    def wait(self):
        return self.answer

    def stop(self):
        pass


def run_lines(lines, arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv, sys.argv = sys.argv, ["-c", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            exec(lines, {})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        err.write("" if isinstance(end.code, int) else f"{end.code}\n")
    finally:
        sys.argv = argv
    return Answer(code, *(text.getvalue().rstrip().rpartition("\n")[2] for text in (out, err)))


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Judges in this process: the exit code, the JSON line and what a person reads."""
    monkeypatch.setattr(ChildHere, "trained", [])
    monkeypatch.setattr(ChildHere, "answers", [])
    for module in (pairs, parties):
        monkeypatch.setattr(module, "Child", ChildHere)

    def run(*arguments, own_seeds=False):
        ChildHere.trained.clear()
        code = judge.main([*arguments, *([] if own_seeds else ["--share-seeds"])])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out else None, err

    return run


def summaries(answer):
    """The records of the runs of an answer, one row for each pair."""
    found = [json.loads(Path(run, "summary.json").read_text()) for run in answer["runs"]]
    return [found[first : first + 2] for first in range(0, len(found), 2)]


def test_a_better_rate_is_found_as_soon_as_its_pairs_decide_and_the_baseline_serves_again(run_here):
    typed = ["optimizer.lr=2e-3", "optimizer.lr=6e-3", "--with", COMMON]
    code, answer, err = run_here(*typed, "--proposals", "1")
    assert (code, answer["decision"], answer["proposal"]) == (0, "better", 1)
    rows = summaries(answer)
    differences = [row[1]["test_loss"] - row[0]["test_loss"] for row in rows]
    assert answer["difference"] == pytest.approx(np.mean(differences), rel=1e-12)
    assert [row[0]["batch_chain"] for row in rows] == [row[1]["batch_chain"] for row in rows]
    assert answer["level"] == 0.025
    assert not decide(differences[:-1], 0.025, EFFECT, MOST).over
    assert answer["low"] < answer["difference"] < answer["high"] < 0
    assert len(err.splitlines()) == answer["pairs"] + 2
    assert len(ChildHere.trained) == len(answer["runs"])

    again, same, _ = run_here(*typed)
    assert (again, same, ChildHere.trained) == (0, answer, [])

    folders = set(Path("runs").glob("judge-*/*"))
    code, answer, _ = run_here(typed[0], f"norm=layernorm {typed[0]}", "--with", COMMON, "--most=1")
    assert (code, answer["decision"], answer["proposal"]) == (7, "undecided", 2)
    assert len(set(Path("runs").glob("judge-*/*")) - folders) == 1  # the candidate's


def test_a_stopped_command_keeps_its_number_and_the_same_command_goes_on(run_here):
    typed = ["", "norm=layernorm", "--with", COMMON, "--most", "2", "--workers", "2"]
    preempted = Answer(75, '{"status": "preempted"}', "")
    ChildHere.answers = [None, None, None, preempted]
    code, answer, err = run_here(*typed)
    assert (code, answer) == (75, None)
    assert err.splitlines()[-1] == "stopped; the same command goes on"
    assert [len(p.pairs) for p in read_ledger(Path("runs/judge.json")).proposals] == [1]
    code, answer, err = run_here(*typed)
    assert (code, answer["pairs"], answer["proposal"]) == (7, 2, 1)
    assert [own[-2] for own in ChildHere.trained] == ["seed=1", "seed=1"]
    code, answer, _ = run_here(*typed, "--minutes", "0", own_seeds=True)
    assert (code, answer["pairs"], answer["proposal"]) == (7, 0, 2)
    assert answer["reason"] == "the 0 minutes are spent"


def test_a_run_that_another_process_trains_is_waited_for(run_here, monkeypatch):
    monkeypatch.setattr(pairs, "_BUSY_FOR", 0.0)
    ChildHere.answers = [Answer(75, "", "runs/x is being trained by process 7 on here")] * 2
    code, answer, err = run_here("", "norm=layernorm", "--with", COMMON, "--most", "1")
    assert (code, answer["pairs"]) == (7, 1)
    assert err.count("is being trained by process 7 on here; waiting") == 1
    assert len(ChildHere.trained) == 2 + 2


def test_a_run_folder_is_judged_with_all_of_its_settings(run_here):
    assert cli.main([*COMMON.split(), "study=mine", "seed=7", "placement=sandwich"]) == 0
    (folder,) = Path("runs/mine").iterdir()
    code, answer, _ = run_here(str(folder), "norm=layernorm", "--most", "1", "--workers", "2")
    configs = [yaml.safe_load(Path(run, "config.yaml").read_text()) for run in answer["runs"]]
    before = yaml.safe_load((folder / "config.yaml").read_text())
    assert (code, answer["pairs"]) == (7, 1)
    for config, norm in zip(configs, ("rmsnorm", "layernorm"), strict=True):
        assert config["choices"] == {**before["choices"], "norm": norm}
        assert config["trainer"] == before["trainer"] | {"threads": config["trainer"]["threads"]}
        assert (before["seed"], config["seed"]) == (7, 0)


def test_help_fits_into_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        judge.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("0 better, 6 not better, 7 undecided" in line for line in lines)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["", "norm=layernrm"], "did you mean 'layernorm'"),
        (["", "norm=rmsnorm"], "'norm=rmsnorm': is the same run as ''; nothing to judge"),
        (["", "norm=layernorm seed=3"], "seed=3: goes with no judge; the judge trains one seed"),
        (["", "trainer.precision=bf16"], "trainer.precision: fp32 of the baseline and bf16 of"),
        (["", "norm=layernorm model=tiny 'x"], "cannot be read: no closing quotation"),
        ([".", "norm=layernorm"], ".: is neither a run folder"),
        (["nowhere", "norm=layernorm"], "nowhere: there is no such folder, and it is no KEY=VALUE"),
        (["", "norm=layernorm", "--most", "0"], "0: a whole number from 1 is wanted"),
        (["", "norm=layernorm", "--most", "1001"], "--most 1001: a proposal has at most 1000"),
        (["", "norm=layernorm", "--effect", "nan"], "nan: a number from 0 is wanted"),
        (["", "norm=layernorm", "--ledger", "corpus.txt"], "corpus.txt: not readable as JSON"),
    ],
)
def test_a_wrong_command_is_one_line_and_writes_nothing(typed, message, run_here):
    before = list(Path().iterdir())
    code, answer, err = run_here(*typed, "--with", COMMON)
    assert (code, answer, ChildHere.trained) == (2, None, [])
    assert message in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == before


def test_a_run_that_ends_in_an_error_ends_the_command_with_its_code(run_here):
    ChildHere.answers = [Answer(4, "", "runs/x: no space left")]
    code, _, err = run_here("", "norm=layernorm", "--with", COMMON)
    assert (code, err.splitlines()[-1]) == (4, "'' with seed 0: runs/x: no space left")
    ChildHere.answers = [Answer(1, "", "RuntimeError: no more")]
    code, _, err = run_here("", "norm=layernorm", "--with", COMMON)
    assert (code, err.splitlines()[-1]) == (1, "'' with seed 0: RuntimeError: no more")


# ---------------------------------------------------------------------------------------- one pair


def made(loss, norm="rmsnorm", **changed):
    return make_run(norm, config_of(), loss, **changed)


def test_a_pair_has_the_test_loss_if_both_runs_have_one():
    first, second = made(2.5, test_loss=2.6), made(2.4, "b", test_loss=2.3)
    pair = pairs.read_pair(0, first, second)
    assert (pair.loss, pair.losses, pair.failed) == ("test_loss", (2.6, 2.3), (None, None))
    assert pair.difference == 2.3 - 2.6
    pair = pairs.read_pair(0, first, made(2.4, "c"))
    assert (pair.loss, pair.losses) == ("val_loss", (2.5, 2.4))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"batch_chain": "others"}, "batches"),
        ({"data": {**DATA_OF_A_RUN, "fingerprint": "e" * 64}}, "tokens"),
        ({"data": {**DATA_OF_A_RUN, "val": {"tokens": 7}}}, "held-out tokens"),
        ({"data": {**DATA_OF_A_RUN, "ngrams": {"val": [3.0]}}}, "n-grams"),
    ],
)
def test_runs_that_read_or_evaluate_other_tokens_are_no_pair(changed, name):
    with pytest.raises(ConfigError, match=f"differ in their {name}: no pair"):
        pairs.read_pair(0, made(2.5), made(2.4, "b", **changed))


def test_a_candidate_that_diverged_has_failed_though_it_read_fewer_batches():
    pair = pairs.read_pair(0, made(2.5), made(None, "b", status="diverged", batch_chain="fewer"))
    assert (pair.losses, pair.failed) == ((2.5, None), (None, "diverged"))
    data = {**DATA_OF_A_RUN, "ngrams": {"val": [2.45, 2.0]}}
    pair = pairs.read_pair(0, made(2.4, "c", data=data), made(2.46, "d", data=data))
    assert pair.failed == (None, "no better than the unigram (2.450)")


# ----------------------------------------------------------------------------- processes, checkouts


def test_a_child_uses_the_package_of_its_folder_and_is_stopped_by_its_parent_alone(monkeypatch):
    for folder, word in ((".", "here"), ("there", "there")):  # Python would import that of "."
        Path(folder, "transformer_norms").mkdir(parents=True)
        Path(folder, "transformer_norms/__init__.py").write_text(f"WHERE = {word!r}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    lines = (
        "import sys, transformer_norms as t; print(); print(t.WHERE, *sys.argv[1:]); sys.exit(5)"
    )
    assert Child(Path("there").absolute(), lines, ["a", "b c"]).wait() == (5, "there a b c", "")
    lines = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open("ready", "w").write(str(os.getsid(0) == os.getpid()))
os.rename("ready", "begun")
signal.pause()
"""
    child = Child(ROOT, lines, [])
    while not Path("begun").exists():
        assert child._process.poll() is None
        time.sleep(0.01)
    child.stop()
    child.stop()
    assert child.wait().code == 75
    assert Path("begun").read_text() == "True"


def test_two_checkouts_are_judged_by_the_code_of_each(capsys):
    for name in ("before", "after"):
        for part in ("transformer_norms", "configs", "hydra_plugins"):
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, Path(name, part), ignore=skip)
    norm = Path("after/transformer_norms/norms/rmsnorm.py")
    text = norm.read_text()
    norm.write_text(text + "\n# another version\n")
    assert parties.code_hash(ROOT, []) == parties.code_hash(Path("before"), [])
    code = judge.main(["before", "after", "--with", COMMON, "--most", "1"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, answer["decision"], answer["pairs"]) == (7, "undecided", 1)
    ((first, second),) = summaries(answer)
    sources = first["source"], second["source"]
    differing = {file for file in sources[0] if sources[0][file] != sources[1][file]}
    assert differing == {"norms/rmsnorm.py"}
    assert len({Path(run).parent for run in answer["runs"]}) == 2  # no run folder is shared
    assert first["test_loss"] == second["test_loss"]  # a comment changes no digit
