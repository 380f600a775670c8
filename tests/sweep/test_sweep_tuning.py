"""Tuning of whole studies, from losses written down by hand and runs that are not trained."""

import json
from collections import Counter
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import product
from math import log
from pathlib import Path

import pytest
from sweeps import TEXT, compose_once, sweep, write_sweep

from transformer_norms import compose
from transformer_norms.comparison.sweep_record import PlannedRun, SweepRecord, Tuned, read_record
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Data, Summary
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.sweep.grid import Tuning
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.tuning import Tuner, trained_losses

LR, WARMUP, INIT = "optimizer.lr", "schedule.warmup", "init"
RATES = [1e-3, 2e-3, 4e-3]
UNIGRAM = 3.3
RECORD = Path("runs/mine/sweep-mine.json")
TWO = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\nseeds: [0]\n"
GRID = TWO + f"tune: {{{LR}: [1e-3, 2e-3, 4e-3], seed: [100, 101]}}\n"


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
            for seed, (variant, point) in product(self.tuner.tuning.seed, pairs):
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


@pytest.mark.parametrize(("refine", "points"), [(0, 4), (2, 8)])
def test_refine_0_switches_the_refinement_off_and_2_halves_the_steps_again(refine, points):
    tuning = Tuning({LR: RATES}, [100], refine=refine)
    harness = Harness(tuning, Trainer()).run()
    assert len(harness.points("rmsnorm")) == len(harness.points("layernorm")) == points
    assert tuning.budget == points - 1  # the widening comes on top of it


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
    budget = "5 points (a grid of 3, then 2 around the best; at an edge one step more, for all)"
    assert f"tuning of 2 variants: {budget} x 2 seeds, equal for all variants; then each" in err
    assert (record.tune, record.refine) == ({LR: [*RATES, 8e-3]}, 1)
    assert set(sweep_points("rmsnorm").values()) == {2}
    assert len(sweep_points("rmsnorm")) == len(sweep_points("layernorm")) == 6
    results = {run.tuned[LR] for run in record.runs if run.stage == "result"}
    assert results == {0.002828, 0.005657}
    assert (answer["runs"], len(trainer.trained)) == (2 * (6 * 2 + 1), 26)
    assert len(set(trainer.trained)) == 26


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
