"""The ledger of a series of proposals: its levels, and what stays of a proposal."""

import multiprocessing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from refusing import refused

from transformer_norms.judge import ledger
from transformer_norms.judge.ledger import Pair, Party, add_pair, enter_proposal

EFFECT, MOST = 0.005, 20


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("first", [1, 3, 20])
def test_the_levels_of_an_endless_series_sum_to_5_percent(first):
    """Blocks of N, 2 N, 4 N, ... share a half, a quarter, an eighth, ... of it equally."""
    level = [ledger.level_of(number, first) for number in range(1, 127 * first + 1)]
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


def test_a_proposal_keeps_its_number_its_level_and_its_pairs_and_shares_no_seed_unless_it_is_told():
    path = Path("made/judge.json")
    first = enter_proposal(path, BASELINE, CANDIDATE, EFFECT)
    assert (first.number, first.level, first.next_seed) == (1, 0.05 / 40, 1000)
    add_pair(path, 1, made_pair(1000, -0.1), MOST)
    others = [
        enter_proposal(path, BASELINE, SECOND, EFFECT),
        enter_proposal(path, BASELINE, CANDIDATE, 0.01),
        enter_proposal(path, BASELINE, CANDIDATE, EFFECT, shares=True),
    ]
    assert [(one.number, one.next_seed) for one in others] == [(2, 2000), (3, 3000), (4, 0)]
    again = enter_proposal(path, BASELINE, replace(CANDIDATE, typed="typed otherwise"), EFFECT)
    assert (again.number, again.next_seed) == (1, 1001)
    assert [p.number for p in ledger.read_ledger(path).proposals] == [1, 2, 3, 4]


def test_a_decided_proposal_takes_no_more_pairs_and_no_pair_twice():
    path = Path("judge.json")
    enter_proposal(path, BASELINE, CANDIDATE, EFFECT, shares=True)
    for seed in (0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
        proposal = add_pair(path, 1, made_pair(seed, -0.1 - 1e-4 * (seed % 3)), MOST)
    assert proposal.decision == "better"
    assert [pair.seed for pair in proposal.pairs] == list(range(len(proposal.pairs)))
    assert len(proposal.pairs) < 9


@pytest.mark.parametrize(("failed", "word", "reason"), [
    ((None, "diverged"), "not better", "the candidate failed to train with seed 1: diverged"),
    (("diverged", None), "undecided", "the baseline failed to train with seed 1: diverged"),
    (("diverged", "diverged"), "undecided", "the baseline failed"),
])  # fmt: skip
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
    said = refused(enter_proposal, path, BASELINE, SECOND, EFFECT, first=6)
    assert "was begun with 5" in said
    path.write_bytes(path.read_bytes().replace(b'"level"', b'"leve"'))
    assert "judge.json: proposals.0.level" in refused(ledger.read_ledger, path)


def enter_many(name, barrier):
    barrier.wait()
    for index in range(10):
        own = Party(name, "/code", [name], "c" * 16, None, f"{ord(name):x}{index}".ljust(16, "0"))
        enter_proposal(Path("judge.json"), BASELINE, own, EFFECT)


def test_two_processes_enter_proposals_at_once_and_none_is_lost():
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    other = context.Process(target=enter_many, args=("p", barrier))
    other.start()
    enter_many("q", barrier)
    other.join()
    assert other.exitcode == 0
    proposals = ledger.read_ledger(Path("judge.json")).proposals
    assert [proposal.number for proposal in proposals] == list(range(1, 21))
    assert len({proposal.candidate.identity for proposal in proposals}) == 20
