"""Seeds until it is decided, as a sweep runs them: which runs, which looks, which words."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import sweeps
from run_folders import tree
from sweeps import SHIFTS, BasicLauncher, trainings
from sweeps import made_up_sweep as sweep

from transformer_norms.comparison.sweep_record import Look, Seen, read_record
from transformer_norms.report.gathering import count_looks, read_study
from transformer_norms.report.study import Variant
from transformer_norms.run.summary import read_summary

PLAN = "{first: 3, until: decided, most: 8}"
NAMED = f"""baseline: {{norm: rmsnorm}}
vary: {{norm: [rmsnorm, layernorm, dyt, scalenorm, derf]}}
seeds: {PLAN}
"""
FEW = NAMED.replace("layernorm, dyt, scalenorm, derf", "layernorm, scalenorm")
LISTED = NAMED.replace("scalenorm, derf", "scalenorm").replace(PLAN, "[0, 1, 2]")


def write_sweep(text=NAMED):
    return sweeps.write_sweep(text)


def record(study="mine", name="mine"):
    return read_record(Path("runs", study, f"sweep-{name}.json"))


def looks_at(study="mine", name="mine"):
    return read_study([Path("runs", study, f"sweep-{name}.json")]).looks


def test_each_variant_gets_seeds_until_it_is_decided(capsys, trainings):
    answer, code, err = sweep(capsys, *write_sweep())
    assert code == 0, err
    assert Counter(trainings.runs).most_common(1)[0][1] == 1
    seeds = trainings.seeds
    assert seeds["derf"] == {0, 1, 2}
    assert seeds["layernorm"] == seeds["dyt"] == set(range(5))
    assert "3 to 8 seeds each, until decided" in err
    assert "15 runs in runs/mine to begin with" in err
    assert "layernorm: better after 5 seeds" in err
    assert "dyt: worse after 5 seeds" in err
    assert "derf: failed after 3 seeds" in err
    assert f"rmsnorm: {len(seeds['rmsnorm'])} seeds\n" in err
    assert "scalenorm: hopeless after" in err
    assert answer["runs"] == sum(map(len, seeds.values()))
    looks = record().looks
    assert [len(look.seen[0].seeds) for look in looks] == list(range(3, 3 + len(looks)))
    assert looks[0].decided["derf"] == "failed"
    assert {"layernorm", "dyt"}.isdisjoint(looks[0].decided)
    assert (looks[2].decided["layernorm"], looks[2].decided["dyt"]) == ("better", "worse")
    assert looks[-1].decided["scalenorm"] == "hopeless"
    table = Path("runs/mine/table.md").read_text()
    assert f"{len(looks)} looks, with more" in table
    assert "hold at every look (Wang" in table


def test_the_same_command_again_runs_nothing_and_rewrites_nothing(capsys, trainings):
    for arguments in (write_sweep(FEW), ["norm=rmsnorm,scalenorm", "seed=3..5"]):
        first = sweep(capsys, *arguments)[:2]
        before, runs = tree("runs"), len(trainings.runs)
        assert sweep(capsys, *arguments)[:2] == first
        assert (tree("runs"), len(trainings.runs)) == (before, runs)


@pytest.mark.parametrize("kills", [10, pytest.param(None, marks=pytest.mark.nightly)])
def test_a_sweep_that_is_killed_goes_on_to_the_same_decisions(capsys, trainings, kills):
    named = write_sweep(FEW)
    sweep(capsys, *named)
    calm, runs = record(), list(trainings.runs)
    assert len(calm.looks) > 1
    for left in range(len(runs)) if kills is None else [kills]:
        shutil.rmtree("runs")
        trainings.runs.clear()
        trainings.killed_after(left, lambda: sweep(capsys, *named))
        sweep(capsys, *named)
        assert sorted(trainings.runs) == sorted(runs)
        assert record() == calm


def test_a_command_goes_on_with_the_seeds_that_another_one_has_planned_meanwhile(
    capsys, trainings, monkeypatch
):
    """The other one has trained seed 3, has looked, and was killed in the first run of seed 4."""
    monkeypatch.setitem(SHIFTS, "layernorm", -0.05)
    named = write_sweep(FEW)
    sweep(capsys, *named)
    calm, runs = record(), list(trainings.runs)
    assert max(seed for _, seed in runs) > 4
    shutil.rmtree("runs")
    trainings.runs.clear()
    train, beside = trainings.train, [True]

    def train_beside(run, *rest):
        if run.config.seed == 3 and beside:
            beside.clear()
            planned = sum(seed == 3 for _, seed in runs)
            trainings.killed_after(planned, lambda: sweep(capsys, *named))
        return read_summary(run.folder) if run.folder.is_dir() else train(run, *rest)

    trainings.train = train_beside
    _, code, err = sweep(capsys, *named)
    assert (code, "undecided" in err) == (0, False)
    assert sorted(trainings.runs) == sorted(runs)
    assert record() == calm


@pytest.mark.parametrize(("at_once", "counts"), [(4, (5, 7, 8)), (0, (5,))])
def test_a_pool_is_kept_busy_and_other_launchers_get_a_seed_at_a_time(
    at_once, counts, capsys, trainings
):
    sweep(capsys, *write_sweep(FEW), launcher=BasicLauncher(at_once))
    assert len(trainings.seeds["layernorm"]) in counts  # two variants, four workers


def test_seeds_of_tuning_are_left_out_of_those_that_are_added(capsys, trainings):
    tune = "tune: {optimizer.lr: [1e-3], seed: [1, 3]}\n"
    text = FEW.replace("layernorm, ", "").replace("{first: 3", "{first: 4")
    sweep(capsys, *write_sweep(text + tune))
    results = {run.seed for run in record().runs if run.stage == "result"}
    assert results >= {0, 2, 4, 5}
    assert not results & {1, 3}


def test_a_variant_whose_runs_break_waits_and_the_others_go_on(capsys, trainings):
    trainings.broken = {"dyt"}
    assert sweep(capsys, *write_sweep())[1] == 1
    assert (trainings.seeds["dyt"], trainings.seeds["layernorm"] >= {0, 1, 2}) == (set(), True)
    trainings.broken = set()
    _, code, err = sweep(capsys, *write_sweep())
    assert code == 0
    assert "dyt: worse after 5 seeds" in err


ONE_MORE_AXIS = [("seed=0,1,2", 1), ("optimizer.lr=3e-3,1e-3 seed=0,1,2,3", 2)]


@pytest.mark.parametrize(("bare", "turns"), [
    (False, [("seed=0,1,2", 1), ("", 1), ("seed=0,1,2,3,4", 2), ("", 2)]),
    (True, [("seed=0,1,2", 1), ("seed=0,1,2,3", 2), ("norm=layernorm,derf seed=0,1,2", 1)]),
    # The variants have another name then, and their runs are the same.
    (False, ONE_MORE_AXIS), (True, ONE_MORE_AXIS),
    # Else a sweep between two of one question takes the first look at it away.
    (True, [("seed=0,1,2", 1), ("seed=0,1,2 optimizer.lr=1e-3", 1), ("seed=0,1,2,3", 2)]),
    (True, [("seed=0,1,2", 1), ("norm=rmsnorm,layernorm seed=5,6,7", 1)]),
])  # fmt: skip
def test_more_seeds_of_the_same_runs_are_a_further_look(capsys, trainings, bare, turns):
    """Each command comes with the looks that the report counts after it."""
    for typed, looks in turns:
        own = [] if "norm=" in typed else ["norm=rmsnorm,dyt"]
        command = ["study=mine", *own] if bare else write_sweep(LISTED)
        sweep(capsys, *command, *typed.split())
        assert looks_at("mine", "main" if bare else "mine") == looks, typed
        table = Path("runs/mine/table.md").read_text()
        assert (f"{looks} looks, with more seeds at each" in table) == (looks > 1), typed


@pytest.mark.parametrize("then", ["seed=0,1,2,3,4", "seed=2,3,4"])
@pytest.mark.parametrize("bare", [False, True])
def test_seeds_that_are_added_before_the_planned_ones_have_ended_are_a_look(
    capsys, trainings, then, bare
):
    """Else whoever stops a plan before its last pair, and asks for one seed more where the pairs so
    far look like nothing, tests at each number of seeds and counts no look."""
    listed = ["study=mine", "norm=rmsnorm,layernorm,dyt,scalenorm"]
    command = listed if bare else write_sweep(LISTED)
    trainings.killed_after(4 * 3 - 1, lambda: sweep(capsys, *command, "seed=0,1,2"))
    sweep(capsys, *command, then)
    looks = record("mine", "main" if bare else "mine").looks
    seen = [{one.variant["norm"]: len(one.seeds) for one in look.seen} for look in looks]
    assert sorted(seen[0].values()) == [2, 3, 3, 3]
    assert len(seen) == looks_at("mine", "main" if bare else "mine") == 2


def test_a_look_decides_by_the_rules_that_hold_once_it_counts(capsys, trainings, monkeypatch):
    monkeypatch.setitem(SHIFTS, "scalenorm", -0.035)
    named = write_sweep(LISTED)
    sweep(capsys, *named, "seed=0,1,2,3,4", "study=once")
    assert record("once").looks[0].decided["scalenorm"] == "better"
    sweep(capsys, *named)
    sweep(capsys, *named, "seed=0,1,2,3,4")
    assert "scalenorm" not in record().looks[1].decided
    assert "scalenorm is not told apart" in Path("runs/mine/table.md").read_text()


def test_a_look_tells_of_the_variants_whose_results_have_all_ended(capsys, trainings):
    """A sweep that added seeds to them has looked at them before."""
    trainings.broken = {"dyt"}
    named = write_sweep(LISTED)
    sweep(capsys, *named)
    (look,) = record().looks
    assert {"norm": "dyt"} not in [one.variant for one in look.seen]
    assert ("layernorm" in look.decided, "dyt" in look.decided) == (True, False)
    sweep(capsys, *named, "seed=0,1,2,3,4")
    trainings.broken = set()
    sweep(capsys, *named, "seed=0,1,2,3,4")
    assert looks_at() == 2


def test_a_variant_that_is_added_later_makes_no_second_look_at_the_others():
    first = Look([Seen({"norm": "a"}, [0, 1, 2]), Seen({"norm": "b"}, [0, 1, 2])], {}, [])
    later = Look([*first.seen, Seen({"norm": "c"}, [0, 1, 2])], {}, [])
    more = Look([Seen({"norm": "a"}, [0, 1, 2, 3])], {}, [])
    variants = [Variant(norm, {"norm": norm}, [], [], None, None) for norm in "abc"]
    for looks, count in (([], 1), ([first], 1), ([first, later], 1), ([first, later, more], 2)):
        assert count_looks(looks, variants) == count
