"""Tuning: the search, on losses that are known functions of the point, and whole studies, from
losses written down by hand and runs that are not trained."""

import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import log, sqrt
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import tree
from sweeps import composed, trainings, write_sweep
from sweeps import made_up_sweep as sweep

from transformer_norms.comparison.sweep_record import PlannedRun, Tuned, read_record
from transformer_norms.run.summary import Data, Summary
from transformer_norms.sweep.design import MOST_OUTWARD, Tuning, product
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.search import Attempt, Search
from transformer_norms.sweep.tuning import Tuner

LR, WARMUP, DECAY, INIT = "optimizer.lr", "schedule.warmup", "optimizer.weight_decay", "init"
RATES = [1e-3, 2e-3, 4e-3]
UNIGRAM, NORMS = 3.3, ("rmsnorm", "layernorm")
RECORD = Path("runs/mine/sweep-mine.json")
TWO = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\nseeds: [0]\n"
GRID = TWO + f"margin: 0.01\ntune: {{{LR}: [1e-3, 2e-3, 4e-3], seed: [100, 101]}}\n"


# ---------------------------------------------------------------------------- the search


def search_of(losses, key=LR):
    """{value: loss of a seed, or a list of such losses}; None is a run that failed."""
    lists = {value: one if isinstance(one, list) else [one] for value, one in losses.items()}
    attempts = [attempt({key: value}, *one) for value, one in lists.items()]
    return Search({}, Tuning({key: [*losses]}, [100]), attempts=attempts)


def attempt(point, *losses):
    trained = {seed: loss for seed, loss in enumerate(losses) if loss is not None}
    return Attempt(point, trained, losses.count(None))


def test_the_best_point_has_the_lowest_loss_of_those_where_no_run_failed():
    assert search_of({1e-3: 2.4, 2e-3: 2.1, 4e-3: 2.2}).best == {LR: 2e-3}
    # A mean that leaves out a failed seed is no mean of the same seeds, however low it is.
    assert search_of({1e-3: [2.4, 2.4], 2e-3: [None, 1.0], 4e-3: [2.5, 2.6]}).best == {LR: 1e-3}
    assert search_of({1e-3: [None, None], 2e-3: [2.5, None], 4e-3: [None, 2.4]}).best == {LR: 4e-3}
    assert search_of({1e-3: [None, None], 2e-3: [None, None]}).best is None


def test_a_lucky_run_does_not_choose_the_best_point():
    """The curve through all trials near it does. The losses are those of a valley at 3e-3."""
    rates = [3e-3 * 3 ** (steps / 4) for steps in (-4, -2, -1, 0, 1, 2, 4)]
    valley = {rate: 2 + 0.1 * log(rate / 3e-3) ** 2 for rate in rates}
    lucky = {rate: [loss, loss - 0.02 * (rate == rates[4])] for rate, loss in valley.items()}
    assert min(lucky, key=lambda rate: sum(lucky[rate])) == rates[4]
    assert search_of(lucky).best == {LR: 3e-3}


def test_values_that_are_lists_are_words():
    values = {2.0: [0.9, 0.95], 1.9: [0.9, 0.99]}
    attempts = [attempt({"betas": value}, loss) for loss, value in values.items()]
    tuning = Tuning({"betas": [*values.values()]}, [100])
    assert Search({}, tuning, attempts=attempts).best == {"betas": [0.9, 0.99]}


def test_an_edge_is_the_first_or_last_value_that_was_tried():
    assert search_of({2e-3: 1.0, 1e-3: 2.0, 4e-3: 3.0}).edge == []
    assert search_of({2e-3: 1.0, 1e-3: 0.9, 4e-3: 3.0}).edge == [LR]
    assert search_of({1e-3: None, 2e-3: None}).edge == [LR]


def test_a_refinement_is_half_a_step_below_and_above_the_best_and_changes_one_key_at_a_time():
    tuning = Tuning({LR: RATES, DECAY: [0.1, 0.4], INIT: ["a", "b"]}, [100])
    points = [{LR: r, DECAY: d, INIT: i} for r in RATES for d in (0.1, 0.4) for i in "ab"]
    best = {LR: 2e-3, DECAY: 0.4, INIT: "b"}
    attempts = [attempt(point, float(point != best)) for point in points]
    found = Search({}, tuning, attempts=attempts).refinement()
    half = float(f"{2e-3 / sqrt(2):.4g}"), float(f"{2e-3 * sqrt(2):.4g}")
    assert found == [
        {**best, LR: half[0]}, {**best, LR: half[1]},
        {**best, DECAY: 0.2}, {**best, DECAY: 0.8},  # the last is half of the outward step of 4
    ]  # fmt: skip


# The losses of a grid, and the next points outward, half way to a failure, and around the best.
@pytest.mark.parametrize(("losses", "beyond", "between", "around"), [
    ({1e-3: 1, 2e-3: 2, 4e-3: 3}, [5e-4], [], [7.071e-4, 1.414e-3]),
    ({1e-3: 2, 2e-3: 1, 4e-3: 2}, [], [], [1.414e-3, 2.828e-3]),
    ({1e-3: 3, 1.414e-3: 2, 2e-3: 1, 2.828e-3: 2, 4e-3: 2}, [], [], [1.682e-3, 2.378e-3]),
    ({1e-3: 3, 2e-3: 2, 4e-3: 1}, [8e-3], [], [2.828e-3, 5.657e-3]),
    ({1e-3: 3, 2e-3: 2, 2.828e-3: 1}, [3.999e-3], [], [2.378e-3, 3.363e-3]),  # by its ratio
    ({1e-3: 2, 2e-3: 1, 4e-3: None, 8e-3: None}, [], [2.828e-3], [1.414e-3, 2.828e-3]),
    ({1e-3: 2, 2e-3: [1, 1], 4e-3: [0.5, None]}, [], [2.828e-3], [1.414e-3, 2.828e-3]),
    # The best is not the last that trains.
    ({1e-3: 2, 2e-3: 1, 4e-3: 3, 8e-3: None}, [], [], [1.414e-3, 2.828e-3]),
    ({1e-3: None, 2e-3: 1, 4e-3: 3}, [], [], [1.414e-3, 2.828e-3]),
    ({1e-3: None, 2e-3: None}, [5e-4], [], [5e-4, 2.5e-4]),
    ({50: 2, 100: 1}, [200], [], [71, 141]),  # whole numbers stay whole
    ({50: 2, 100: 1, 200: 3}, [], [], [71, 141]),
    # Nothing lies between whole numbers in sequence, and nothing below 1: the next steps are above.
    ({1: 1, 2: None}, [], [], [4, 8]),
    ({1: 2, 2: 1, 3: 3}, [], [], [4, 5]),
])  # fmt: skip
def test_at_an_edge_a_step_outward_is_tried_below_a_failure_half_a_step_and_around_a_best_two(
    losses, beyond, between, around
):
    tried = search_of(losses)
    found = [tried.steps_outward(), tried.bisection(), tried.refinement()]
    assert found == [[{LR: value} for value in values] for values in (beyond, between, around)]
    tried.outward = MOST_OUTWARD
    assert tried.steps_outward() == []
    tried.outward, tried.allowed = 0, lambda point: False
    assert tried.steps_outward() == tried.bisection() == tried.refinement() == []


def search(loss):
    """Tunes a variant with a known loss at each rate. Returns its trials and the tuner's lines."""
    tuner = Tuner(Tuning({LR: RATES}, [100]), [{"norm": "a"}], {}, lambda *pair: True, print)
    (tried,) = tuner.searches
    for pairs in tuner.rounds():
        tried.attempts += [attempt(point, loss(point[LR])) for _, point in pairs]
    return tried, tuner.lines()


@pytest.mark.parametrize("steps", [-9, -7, -6, -3, -1, 0, 0.3, 1, 2, 4, 5, 8, 9, 12])
def test_a_best_rate_outside_the_grid_is_found_or_the_values_to_type_are_named(steps):
    """The best rate is 2^steps times the grid's first. Six steps outward and half a step of the
    refinement are in reach; a best is inside once a worse value beyond it was tried."""
    centre = RATES[0] * 2**steps
    tried, (found, *way_on) = search(lambda rate: 2 + log(rate / centre) ** 2 / 10)
    beyond = max(-round(steps), round(steps) - 2, -1)
    assert tried.outward == min(6, beyond + 1)
    assert found.startswith(f"a: best at {LR}={tried.best[LR]}, of {5 + tried.outward} points")
    assert tried.edge == [LR] * (beyond > 6)
    assert found.endswith(f"; still the edge of {LR}") == (beyond > 6)
    if beyond <= 6:
        assert abs(log(tried.best[LR] / centre)) <= log(2) / 4 + 1e-3
        assert way_on == []
    else:
        start, _, values = way_on[0].rpartition("=")
        assert start == f"the best {LR} is not found of a; to go on, type {LR}"
        powers = range(3 + 6 + 2) if steps > 0 else range(-8, 3)
        expected = [RATES[0] * 2**power for power in powers]
        assert [float(value) for value in values.split(",")] == pytest.approx(expected, rel=2e-3)


def test_below_a_wall_three_points_more_come_near_to_it():
    """Half a step, and half of that, from the last rate that trains to the first that fails."""
    tried, _ = search(lambda rate: None if rate > 3.5e-3 else 3 - 100 * rate)
    later = [point[LR] for point in tried.points[3:]]
    assert later == pytest.approx([2e-3 * 2**power for power in (-0.5, 0.5, 0.75)], rel=1e-3)
    assert (tried.best, tried.edge) == ({LR: later[-1]}, [])


@pytest.mark.parametrize("values", [["cosine", "linear"], [1e-3], [0, 0.1, 0.2], [True, False]])
def test_a_grid_of_words_of_one_value_or_with_a_zero_has_no_steps(values):
    tried = search_of(dict.fromkeys(values, 1.0), "key")
    assert tried.steps_outward() == tried.refinement() == tried.bisection() == []
    tuning = tried.tuning
    assert (tuning.stepped, tuning.most_more, tuning.more_text) == ([], 0, "")


some = partial(st.lists, min_size=1, max_size=3, unique=True)
KEYS = st.fixed_dictionaries(
    {LR: some(st.sampled_from([1e-3, 1.7e-3, 3e-3, 5.2e-3, 9e-3]), max_size=4)},
    optional={WARMUP: some(st.integers(1, 200)), INIT: some(st.sampled_from("abc"))},
)


@settings(max_examples=60, deadline=None)
@given(KEYS, st.integers(0, 3), st.integers(0, 2**32))
def test_grid_and_refinement_have_the_same_number_of_points_whatever_the_losses(grid, refine, seed):
    tuning = Tuning(grid, [100], refine=refine)
    bumpy = lambda point: random.Random(f"{seed} {point}").random()  # noqa: E731
    for loss in (bumpy, lambda point: None):
        tried = Search({}, tuning, attempts=[attempt(p, loss(p)) for p in product(grid)])
        for _ in range(refine):
            points = tried.refinement()
            assert all(point not in tried.points for point in points)
            tried.attempts += [attempt(point, loss(point)) for point in points]
        assert len(tried.points) == tuning.budget


# ---------------------------------------------------------------------------- of a study


def valley(norm, rate, seed):
    best = 2.5e-3 if norm == "rmsnorm" else 6e-3
    return 2 + log(rate / best) ** 2 / 10 + 0.001 * (seed % 2)


@dataclass(frozen=True)
class DoneJob(Job):
    summary: Summary = None


def done_job(run, summary):
    return DoneJob(run, (), SimpleNamespace(folder=Path(), config=composed(())), summary)


def tuner_of(loss, data=None):
    """A tuner of two norms, all of whose rounds have been run. The loss of a run is a function of
    its norm, its rate and its seed."""
    jobs, variants = [], [{"norm": norm} for norm in NORMS]
    tuner = Tuner(Tuning({LR: RATES}, [100]), variants, variants[0], lambda *pair: True, print)
    for pairs in tuner.rounds():
        for variant, point in pairs:
            run = PlannedRun("a", "0" * 16, "tune", variant, point, 100)
            jobs.append(done_job(run, summary(loss(variant["norm"], point[LR], 100), data=data)))
        tuner.read(jobs)
    return tuner


def data_of(*ngrams):
    return Data(identity={}, fingerprint="", ngrams={"val": [*ngrams]})


def summary(loss, status="finished", data=None):
    data = data or data_of(UNIGRAM)
    return Summary(status=status, identity="0" * 16, data=data, val_loss=loss, initial_loss=5.5)


def test_only_runs_that_trained_have_a_loss_that_tuning_uses():
    """The third is not past the unigram. Of the last no unigram is known."""
    summaries = [summary(2.0), summary(2.5, "diverged"), summary(3.296), summary(3.294)]
    summaries += [summary(None, "diverged"), summary(9.0, data=data_of())]
    variant = {"norm": "rmsnorm"}
    runs = [PlannedRun("a", "0" * 16, "tune", variant, {LR: 1e-3}, seed) for seed in range(6)]
    tuner = Tuner(Tuning({LR: RATES}, [*range(6)]), [variant], variant, bool, print)
    tuner.read(list(map(done_job, runs, summaries)))
    (read,) = tuner.searches[0].attempts
    assert (read.losses, read.failed) == ({0: 2.0, 3: 3.294, 5: 9.0}, 3)


def test_a_variant_whose_runs_all_fall_short_of_the_bigram_is_searched_where_it_learned_most():
    """layernorm passes the bigram, as the baseline does, between two rates of the grid alone."""
    short = {1e-3: 2.9, 2e-3: 2.6, 4e-3: UNIGRAM, 0.001414: 2.7, 0.002828: 2.4, 0.003363: 2.6}
    usual = lambda rate: 2 + abs(log(rate / 2e-3)) / 10  # noqa: E731
    loss = lambda norm, rate, seed: usual(rate) if norm == "rmsnorm" else short[rate]  # noqa: E731
    tuner = tuner_of(loss, data_of(UNIGRAM, 2.5))
    passing = [[a.point[LR] for a in tried.attempts if not a.failed] for tried in tuner.searches]
    assert (len(passing[0]), passing[1]) == (5, [0.002828])
    assert tuner.choices()[1] == Tuned({"norm": "layernorm"}, {LR: 0.002828}, [])


def test_a_variant_that_fails_everywhere_goes_down_and_has_nothing_to_tune():
    loss = lambda norm, *more: UNIGRAM if norm == "layernorm" else valley(norm, *more)  # noqa: E731
    tuner = tuner_of(loss)
    assert [one.best for one in tuner.choices()] == [{LR: 0.002828}, None]
    down = [point[LR] for point in tuner.searches[1].points[3:]]
    assert down == pytest.approx([1e-3 / 2**step for step in range(1, 9)], rel=2e-3)
    assert tuner.lines()[1:] == ["layernorm: nothing to tune, every trial failed"]


# ---------------------------------------------------------------------------- as a sweep's stage


@pytest.fixture
def trainer(trainings, monkeypatch):
    monkeypatch.setattr("transformer_norms.sweep.ending._write_report", lambda *_: (None, 0))
    trainings.loss = loss_of
    return trainings


def loss_of(config):
    return valley(config.choices["norm"], config.optimizer.lr, config.seed)


def sweep_points(norm):
    """The tuned points of a variant in the sweep's record, each with the number of its runs."""
    runs = [run for run in read_record(RECORD).runs if run.stage == "tune"]
    return Counter(json.dumps(run.tuned) for run in runs if run.variant == {"norm": norm})


def test_a_sweep_prints_its_budget_and_records_it_and_goes_on_after_a_kill(capsys, trainer):
    named = write_sweep(GRID)
    for left in (4, 9, 7):  # in the grid, between two steps outward, after them
        trainer.killed_after(left, lambda: sweep(capsys, *named))
    capsys.readouterr()
    answer, code, err = sweep(capsys, *named)
    record = read_record(RECORD)
    assert code == 0, err
    assert err.index("24/24 ") < err.index("rmsnorm: best at")  # what ended, then what follows
    seeds = {(run.stage, run.seed) for run in record.runs}
    assert seeds == {("tune", 100), ("tune", 101), ("result", 0)}
    budget = "5 points (a grid of 3, then 2 around the best) x 2 seeds, equal for all variants"
    assert f"tuning of 2 variants: {budget}; then each at its best, 1 other seed\n" in err
    assert "that failed, adds at most 14 runs of tuning to a variant\n" in err
    assert (record.tune, record.refine, record.margin) == ({LR: RATES}, 1, 0.01)
    assert set(sweep_points("rmsnorm").values()) == {2}
    later = [[json.loads(p)[LR] for p in sweep_points(norm)][3:] for norm in NORMS]
    # Each goes outward by itself, and is refined around its best.
    assert later == [[0.001414, 0.002828], [8e-3, 0.016, 0.005657, 0.01131]]
    step = "2 more runs of tuning, a step outward from a best value at the edge: layernorm\n"
    assert err.count(step) == 2
    results = {run.tuned[LR] for run in record.runs if run.stage == "result"}
    assert results == {0.002828, 0.005657}
    assert (answer["runs"], len(trainer.folders)) == ((5 + 7) * 2 + 2, 26)
    assert len(set(trainer.folders)) == 26
    before = tree("runs")
    assert sweep(capsys, *named)[:2] == (answer, 0)
    assert tree("runs") == before


def test_a_point_that_cannot_be_composed_is_named_and_replaced_for_its_variant(capsys, trainer):
    trainer.loss = lambda config: 3 - config.optimizer.lr / 100
    named = write_sweep(TWO + f"tune: {{{LR}: [50, 100.0], seed: [100]}}\n")
    _, code, err = sweep(capsys, *named)  # 100 is the largest rate that a config may have
    record = read_record(RECORD)
    assert code == 0, err
    told = [line for line in err.splitlines() if line.startswith("not tried: ")]
    assert told[0].startswith("not tried: optimizer.lr: 200 is not")
    assert len(told) == len(set(told))
    assert record.tune == {LR: [50, 100.0]}
    assert [json.loads(point)[LR] for point in sweep_points("rmsnorm")] == [50, 100, 70.71, 84.09]
    assert [one.edge for one in record.tuned] == [[LR], [LR]]
    assert "rmsnorm: best at optimizer.lr=100.0, of 4 points; still the edge of optimizer.lr" in err
    assert "to go on, type" not in err


def test_where_a_best_rate_is_not_found_the_values_that_the_sweep_names_go_on(capsys, trainer):
    far = lambda config: 2 + log(config.optimizer.lr / RATES[0] / 2**11) ** 2 / 50  # noqa: E731
    trainer.loss = lambda config: (loss_of if config.choices["norm"] == "rmsnorm" else far)(config)
    named = write_sweep(GRID.replace(", 101", ""))
    _, _, err = sweep(capsys, *named)
    assert [one.edge for one in read_record(RECORD).tuned] == [[], [LR]]
    typed = next(line for line in err.splitlines() if "not found" in line).split()[-1]
    _, code, err = sweep(capsys, *named, typed)
    assert ("not found" in err, code) == (False, 0)
    assert [one.edge for one in read_record(RECORD).tuned] == [[], []]
    assert len(set(trainer.folders)) == len(trainer.folders)


def test_a_variant_whose_trial_could_not_run_waits_and_the_others_go_on(capsys, trainer):
    trainer.broken, named = {"layernorm"}, write_sweep(GRID.replace(", 101", ""))
    _, code, err = sweep(capsys, *named)
    assert code == 1
    assert "layernorm: not all of its tuning runs have ended" in err
    assert [one.variant for one in read_record(RECORD).tuned] == [{"norm": "rmsnorm"}]
    trainer.broken = set()
    _, code, err = sweep(capsys, *named)
    assert code == 0, err
    assert [one.best for one in read_record(RECORD).tuned] == [{LR: 0.002828}, {LR: 0.005657}]


def test_a_sweep_in_which_every_trial_failed_says_that_there_is_nothing_to_tune(capsys, trainer):
    trainer.loss = lambda config: math.inf
    _, code, err = sweep(capsys, *write_sweep(GRID.replace(", 101", "")))
    assert code == 0
    assert "layernorm: nothing to tune, every trial failed" in err
    assert {run.stage for run in read_record(RECORD).runs} == {"tune"}
