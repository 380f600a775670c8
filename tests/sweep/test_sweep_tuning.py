"""Tuning: the search, on losses that are known functions of the point, and whole studies, from
losses written down by hand and runs that are not trained."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from math import log, sqrt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import tree
from sweeps import TEXT, compose_once, sweep, write_sweep

from transformer_norms import compose
from transformer_norms.comparison.sweep_record import PlannedRun, Tuned, read_record
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Data, Summary
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.sweep.grid import Tuning, product
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.search import Attempt, Tried, refinement, widen
from transformer_norms.sweep.tuning import Tuner, trained_losses

LR, WARMUP, DECAY, INIT = "optimizer.lr", "schedule.warmup", "optimizer.weight_decay", "init"
RATES = [1e-3, 2e-3, 4e-3]
UNIGRAM, STAGES = 3.3, ("tune", "result")
RECORD = Path("runs/mine/sweep-mine.json")
TWO = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\nseeds: [0]\n"
GRID = TWO + f"tune: {{{LR}: [1e-3, 2e-3, 4e-3], seed: [100, 101]}}\n"


# ---------------------------------------------------------------------------- the search


def everything(point):
    return True


def tried_at(losses, key=LR):
    """{value: loss of a seed, or a list of such losses}; None is a run that failed."""
    lists = {value: one if isinstance(one, list) else [one] for value, one in losses.items()}
    return Tried({}, [attempt({key: value}, *one) for value, one in lists.items()])


def attempt(point, *losses):
    trained = {seed: loss for seed, loss in enumerate(losses) if loss is not None}
    return Attempt(point, trained, losses.count(None))


def test_the_best_point_has_the_lowest_loss_of_those_where_no_run_failed():
    assert tried_at({1e-3: 2.4, 2e-3: 2.1, 4e-3: 2.2}).best == {LR: 2e-3}
    # A mean that leaves out a failed seed is no mean of the same seeds, however low it is.
    assert tried_at({1e-3: [2.4, 2.4], 2e-3: [None, 1.0], 4e-3: [2.5, 2.6]}).best == {LR: 1e-3}
    assert tried_at({1e-3: [None, None], 2e-3: [2.5, None], 4e-3: [None, 2.4]}).best == {LR: 4e-3}
    assert tried_at({1e-3: [None, None], 2e-3: [None, None]}).best is None


def test_a_lucky_run_does_not_choose_the_best_point():
    """The curve through all trials near it does. The losses are those of a valley at 3e-3."""
    rates = [3e-3 * 3 ** (steps / 4) for steps in (-4, -2, -1, 0, 1, 2, 4)]
    valley = {rate: 2 + 0.1 * log(rate / 3e-3) ** 2 for rate in rates}
    lucky = {rate: [loss, loss - 0.02 * (rate == rates[4])] for rate, loss in valley.items()}
    assert min(lucky, key=lambda rate: sum(lucky[rate])) == rates[4]
    assert tried_at(lucky).best == {LR: 3e-3}


def test_values_that_are_lists_are_words():
    values = {2.0: [0.9, 0.95], 1.9: [0.9, 0.99]}
    tried = Tried({}, [attempt({"betas": value}, loss) for loss, value in values.items()])
    assert tried.best == {"betas": [0.9, 0.99]}


def test_an_edge_is_the_first_or_last_value_that_was_tried():
    assert tried_at({2e-3: 1.0, 1e-3: 2.0, 4e-3: 3.0}).edge([LR]) == []
    assert tried_at({2e-3: 1.0, 1e-3: 0.9, 4e-3: 3.0}).edge([LR]) == [LR]
    assert tried_at({1e-3: None}).edge([LR, DECAY]) == [LR, DECAY]


def test_a_refinement_is_half_a_step_below_and_above_the_best_and_changes_one_key_at_a_time():
    tuning = Tuning({LR: RATES, DECAY: [0.1, 0.4], INIT: ["a", "b"]}, [100])
    points = [{LR: r, DECAY: d, INIT: i} for r in RATES for d in (0.1, 0.4) for i in "ab"]
    best = {LR: 2e-3, DECAY: 0.4, INIT: "b"}
    tried = Tried({}, [attempt(point, float(point != best)) for point in points])
    found = refinement(tuning, tried, everything)
    half = float(f"{2e-3 / sqrt(2):.4g}"), float(f"{2e-3 * sqrt(2):.4g}")
    assert found == [
        {**best, LR: half[0]}, {**best, LR: half[1]},
        {**best, DECAY: 0.2}, {**best, DECAY: 0.8},  # the last is half of the outward step of 4
    ]  # fmt: skip


def test_a_second_refinement_halves_the_step_again():
    tuning = Tuning({LR: RATES}, [100])
    tried = tried_at({1e-3: 3.0, 2e-3: 1.0, 4e-3: 2.0})
    for expected in (2e-3 / sqrt(2), 2e-3 * sqrt(2)), (2e-3 / 2**0.25, 2e-3 * 2**0.25):
        points = refinement(tuning, tried, everything)
        assert [point[LR] for point in points] == pytest.approx(expected, rel=1e-3)
        tried.attempts += [attempt(point, 2.5) for point in points]


def test_whole_numbers_stay_whole_and_a_value_is_never_tried_twice():
    tuning = Tuning({WARMUP: [50, 100, 200]}, [100])
    tried = tried_at({50: 2.0, 100: 1.0, 200: 3.0}, WARMUP)
    assert refinement(tuning, tried, everything) == [{WARMUP: 71}, {WARMUP: 141}]
    # Nothing lies between 1, 2 and 3, and nothing below 1: the next steps are above.
    narrow = Tuning({WARMUP: [1, 2, 3]}, [100])
    tried = tried_at({1: 2.0, 2: 1.0, 3: 3.0}, WARMUP)
    assert refinement(narrow, tried, everything) == [{WARMUP: 4}, {WARMUP: 5}]


def test_a_value_that_is_not_allowed_gives_its_place_to_the_next_nearest():
    tuning = Tuning({LR: [0.25, 1.0]}, [100])
    tried = tried_at({0.25: 2.0, 1.0: 1.0})
    points = refinement(tuning, tried, lambda point: point[LR] <= 1)
    assert [point[LR] for point in points] == pytest.approx([0.5, 1 / 4**0.25], rel=1e-3)


def test_the_grid_goes_on_by_its_own_ratio_at_the_ends_where_some_variant_did_best():
    low, middle, high = (
        tried_at({rate: abs(log(rate / best)) for rate in RATES}) for best in RATES
    )
    grid = {LR: RATES}
    assert widen(grid, [middle]) == grid
    assert widen(grid, [middle, high]) == {LR: [*RATES, 8e-3]}
    assert widen(grid, [low, high]) == {LR: [5e-4, *RATES, 8e-3]}


@pytest.mark.parametrize("values", [["cosine", "linear"], [1e-3], [0, 0.1, 0.2], [True, False]])
def test_a_grid_of_words_of_one_value_or_with_a_zero_has_no_steps(values):
    tuning = Tuning({"key": values}, [100])
    assert tuning.stepped == []
    tried = tried_at(dict.fromkeys(values, 1.0), "key")
    assert widen(tuning.grid, [tried]) == tuning.grid
    assert refinement(tuning, tried, everything) == []


def test_whole_numbers_are_widened_to_whole_numbers():
    tried = tried_at({50: 2.0, 100: 1.0}, WARMUP)
    assert widen({WARMUP: [50, 100]}, [tried]) == {WARMUP: [50, 100, 200]}


KEYS = st.fixed_dictionaries(
    {
        LR: st.lists(
            st.sampled_from([1e-3, 1.7e-3, 3e-3, 5.2e-3, 9e-3]), min_size=1, max_size=4, unique=True
        )
    },
    optional={
        WARMUP: st.lists(st.integers(1, 200), min_size=1, max_size=3, unique=True),
        INIT: st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    },
)


@settings(max_examples=60, deadline=None)
@given(KEYS, st.integers(0, 3), st.integers(0, 2**32))
def test_every_variant_gets_the_same_number_of_points_whatever_its_losses(grid, refine, seed):
    tuning = Tuning(grid, [100], refine=refine)
    bumpy = lambda point: random.Random(f"{seed} {point}").random()  # noqa: E731
    for loss in (bumpy, lambda point: None):
        tried = Tried({}, [attempt(point, loss(point)) for point in product(grid)])
        for _ in range(refine):
            points = refinement(tuning, tried, everything)
            assert all(point not in tried.points for point in points)
            tried.attempts += [attempt(point, loss(point)) for point in points]
        assert len(tried.points) == tuning.budget


# ---------------------------------------------------------------------------- of a study


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    monkeypatch.setattr("transformer_norms.sweep.ending._write_report", lambda *_: (None, 0))
    compose_once(monkeypatch)
    plan_sweep.cache_clear()


class Killed(BaseException):
    """No handler of the sweep sees it, as none sees kill -9."""


class Trainer:
    """Takes the place of the launcher: the loss of a run is a function of its variant, its tuned
    values and its seed; None for a run that diverged. `trained` has the folders in order."""

    def __init__(self):
        self.trained, self.stop_after, self.breaks = [], 10**9, False
        self.facts = {}  # of the data and the code, by which a sweep knows a run again

    def loss(self, norm, tuned, seed):
        best = 2.5e-3 if norm == "rmsnorm" else 6e-3
        return 2 + log(tuned[LR] / best) ** 2 / 10 + 0.001 * (seed % 2)

    def launch(self, _, batch, sweep, say):
        if not self.facts:
            plan = Plan(compose(batch[0].overrides))
            data = Data(identity=plan.data_identity, fingerprint="", ngrams={"val": [UNIGRAM]})
            self.facts = {"data": data, "source": plan.code}
        return [self.train(job.run, job.folder) for job in batch]

    def train(self, run, folder):
        if len(self.trained) == self.stop_after:
            raise Killed
        if self.breaks and run.variant["norm"] == "layernorm" and run.tuned[LR] == 2e-3:
            return {"status": "failed", "error": "RuntimeError: no more"}
        loss = self.loss(run.variant["norm"], run.tuned, run.seed)
        folder.mkdir(parents=True)
        ended = summary(loss, "diverged" if loss is None else "finished")
        replace(ended, identity=run.identity, **self.facts).write(folder)
        self.trained.append(folder.name)
        return {"status": "finished"}


@pytest.fixture
def trainer(monkeypatch):
    trainer = Trainer()
    monkeypatch.setattr("transformer_norms.sweep.drive.launch", trainer.launch)
    return trainer


class Harness:
    """A tuner of two norms, whose runs are trained by `trainer` in the current folder."""

    def __init__(self, tuning, trainer, allowed=lambda variant, point: True):
        self.trainer, self.jobs, self.lines = trainer, [], []
        variants = [{"norm": "rmsnorm"}, {"norm": "layernorm"}]
        self.tuner = Tuner(tuning, variants, variants[0], allowed, self.lines.append)

    def run(self):
        """The rounds; a run whose folder is there is not trained again."""
        for pairs in self.tuner.rounds():
            for seed, (variant, point) in itertools.product(self.tuner.tuning.seed, pairs):
                name = sha256(json.dumps([variant, point, seed]).encode()).hexdigest()
                run = PlannedRun(name, "0" * 16, "tune", variant, point, seed)
                if not Path(name).is_dir():
                    self.trainer.train(run, Path(name))
                self.jobs.append(Job(run, Path(name), (), {}))
            self.tuner.read(self.jobs)
        return self

    def points(self, norm):
        (tried,) = (one for one in self.tuner.tried if one.variant == {"norm": norm})
        return tried.points


def summary(loss, status="finished", unigram=UNIGRAM):
    data = Data(identity={}, fingerprint="", ngrams={"val": [unigram] if unigram else []})
    return Summary(status=status, identity="0" * 16, data=data, val_loss=loss, initial_loss=5.5)


def test_only_runs_that_trained_have_a_loss_that_tuning_uses():
    runs = {0: summary(2.0), 1: summary(2.5, "diverged"), 2: summary(3.296), 3: summary(3.294)}
    assert trained_losses(runs) == {0: 2.0, 3: 3.294}  # the third is not past the unigram
    assert trained_losses({0: summary(None, "diverged")}) == {}
    assert trained_losses({0: summary(9.0, unigram=None)}) == {0: 9.0}  # an old record


def test_where_the_baseline_passes_the_bigram_a_trial_has_to():
    """rmsnorm, the baseline, ends at 2.0; layernorm at 2.6, between the bigram and the unigram."""
    trainer = Trainer()
    trainer.loss = lambda norm, tuned, seed: 2.0 if norm == "rmsnorm" else 2.6
    trainer.facts = {
        "data": Data(identity={}, fingerprint="", ngrams={"val": [UNIGRAM, 2.5]}), "source": {}
    }  # fmt: skip
    baseline, stuck = Harness(Tuning({LR: RATES}, [100]), trainer).run().tuner.tried
    assert all(not attempt.failed for attempt in baseline.attempts)
    assert all(attempt.failed for attempt in stuck.attempts)
    assert stuck.best is None


def test_a_variant_whose_runs_all_fall_short_of_the_bigram_is_searched_where_it_learned_most():
    """layernorm passes the bigram between two rates of the grid, and nowhere on it."""
    short = {1e-3: 2.9, 2e-3: 2.6, 4e-3: UNIGRAM, 0.001414: 2.7, 0.002828: 2.4}
    trainer = Trainer()
    trainer.loss = lambda norm, tuned, seed: (
        2 + abs(log(tuned[LR] / 2e-3)) / 10 if norm == "rmsnorm" else short[tuned[LR]]
    )
    trainer.facts = {
        "data": Data(identity={}, fingerprint="", ngrams={"val": [UNIGRAM, 2.5]}), "source": {}
    }  # fmt: skip
    tuner = Harness(Tuning({LR: RATES}, [100]), trainer).run().tuner
    assert tuner.choices()[1] == Tuned({"norm": "layernorm"}, {LR: 0.002828}, [])


def test_a_grid_is_widened_once_for_all_then_refined_around_each_variants_best():
    harness = Harness(Tuning({LR: RATES}, [100, 101]), Trainer()).run()
    assert harness.tuner.grid == {LR: [*RATES, 8e-3]}
    assert harness.points("rmsnorm")[4:] == [{LR: 0.001414}, {LR: 0.002828}]
    assert harness.points("layernorm")[4:] == [{LR: 0.005657}, {LR: 0.01131}]
    assert harness.tuner.choices() == [
        Tuned({"norm": "rmsnorm"}, {LR: 0.002828}, []),
        Tuned({"norm": "layernorm"}, {LR: 0.005657}, []),
    ]
    assert harness.lines[0] == (
        "optimizer.lr: the grid is now 0.001, 0.002, 0.004, 0.008 for all variants, because one is "
        "best at its edge or failed at every value"
    )


def test_a_variant_that_fails_everywhere_has_nothing_to_tune_and_as_many_points():
    trainer = Trainer()
    whole = trainer.loss
    trainer.loss = lambda norm, *rest: UNIGRAM if norm == "layernorm" else whole(norm, *rest)
    harness = Harness(Tuning({LR: RATES}, [100]), trainer).run()
    assert [one.best for one in harness.tuner.choices()] == [{LR: 0.002828}, None]
    assert harness.points("layernorm")[4:] == [{LR: 2.5e-4}, {LR: 1.25e-4}]
    assert len(harness.points("rmsnorm")) == 6


@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_tuning_that_is_killed_at_any_run_takes_the_same_path_again(apart, monkeypatch):
    keys = {LR: RATES, WARMUP: [10, 20], INIT: ["mup", "scaled"]}
    tuning = Tuning(keys, [100, 101])
    calm = Harness(tuning, Trainer()).run()
    Path("rough").mkdir()
    monkeypatch.chdir("rough")
    trainer = Trainer()
    for runs in range(1, len(calm.trainer.trained), apart):
        trainer.stop_after = runs
        with pytest.raises(Killed):
            Harness(tuning, trainer).run()
    trainer.stop_after = 10**9
    again = Harness(tuning, trainer).run()
    assert trainer.trained == calm.trainer.trained  # none twice, none more, in the same order
    assert again.tuner.choices() == calm.tuner.choices()
    counts = {len(again.points(norm)) for norm in ("rmsnorm", "layernorm")}
    # The rate and the warm-up are each widened by a step, and refined by two.
    assert counts == {4 * 3 * 2 + 4}


# ---------------------------------------------------------------------------- as a sweep's stage


def sweep_points(norm):
    """The tuned points of a variant in the sweep's record, each with the number of its runs."""
    runs = [run for run in read_record(RECORD).runs if run.stage == "tune"]
    return Counter(json.dumps(run.tuned) for run in runs if run.variant == {"norm": norm})


def test_a_sweep_prints_its_budget_and_records_it_and_goes_on_after_a_kill(capsys, trainer):
    named = write_sweep(GRID)
    for trainer.stop_after in (4, 20):
        with pytest.raises(Killed):
            sweep(capsys, *named)
    trainer.stop_after = 10**9
    capsys.readouterr()
    answer, code, err = sweep(capsys, *named)
    record = read_record(RECORD)
    assert code == 0, err
    assert err.index("24/24 ") < err.index("rmsnorm: best at")  # what ended, then what follows
    seeds = {stage: {run.seed for run in record.runs if run.stage == stage} for stage in STAGES}
    assert seeds == {"tune": {100, 101}, "result": {0}}
    budget = "5 points (a grid of 3, then 2 around the best; at an edge one step more, for all)"
    assert f"tuning of 2 variants: {budget} x 2 seeds, equal for all variants; then each" in err
    assert (record.tune, record.refine) == ({LR: [*RATES, 8e-3]}, 1)
    assert set(sweep_points("rmsnorm").values()) == {2}
    assert len(sweep_points("rmsnorm")) == len(sweep_points("layernorm")) == 6
    results = {run.tuned[LR] for run in record.runs if run.stage == "result"}
    assert results == {0.002828, 0.005657}
    assert (answer["runs"], len(trainer.trained)) == (2 * (6 * 2 + 1), 26)
    assert len(set(trainer.trained)) == 26
    before = tree("runs")
    assert sweep(capsys, *named)[:2] == (answer, 0)
    assert tree("runs") == before


def test_a_point_that_cannot_be_composed_is_named_and_replaced_for_its_variant(capsys, trainer):
    trainer.loss = lambda norm, tuned, seed: 3 - tuned[LR] / 100
    named = write_sweep(TWO + f"tune: {{{LR}: [50, 100.0], seed: [100]}}\n")
    _, code, err = sweep(capsys, *named)  # 100 is the largest rate that a config may have
    record = read_record(RECORD)
    assert code == 0, err
    assert "not tried: optimizer.lr: 200 is not" in err
    assert record.tune == {LR: [50, 100.0]}
    assert [json.loads(point)[LR] for point in sweep_points("rmsnorm")] == [50, 100, 70.71, 84.09]
    assert [one.edge for one in record.tuned] == [[LR], [LR]]
    assert "still the edge of optimizer.lr" in err


def test_a_variant_whose_trial_could_not_run_waits_and_the_others_go_on(capsys, trainer):
    trainer.breaks, named = True, write_sweep(GRID.replace(", 101", ""))
    _, code, err = sweep(capsys, *named)
    assert code == 1
    assert "layernorm: not all of its tuning runs have ended" in err
    assert [one.variant for one in read_record(RECORD).tuned] == [{"norm": "rmsnorm"}]
    trainer.breaks = False
    _, code, err = sweep(capsys, *named)
    assert code == 0, err
    assert [one.best for one in read_record(RECORD).tuned] == [{LR: 0.002828}, {LR: 0.005657}]


def test_a_sweep_in_which_every_trial_failed_says_that_there_is_nothing_to_tune(capsys, trainer):
    trainer.loss = lambda norm, tuned, seed: None
    _, code, err = sweep(capsys, *write_sweep(GRID.replace(", 101", "")))
    assert code == 0
    assert "layernorm: nothing to tune, every trial failed" in err
    assert {run.stage for run in read_record(RECORD).runs} == {"tune"}
