"""Runs of one stack make the steps that each would make alone, to rounding, however they end."""

from functools import partial
from itertools import product

import pytest
import torch
from combinations import combined
from trainers import SIZES

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.training.loss import LOSSES, ModelLoss
from transformer_norms.training.parallel.stacks import MOST_FAILURES, Stack, StackedLoss

VOCABULARY, STEPS, FEWER = 31, 20, 9
TINY = [*SIZES, "model.depth=1", "model.width=16", "model.heads=2", "trainer.precision=fp64"]
RUNS = [(seed, rate) for seed in (0, 1) for rate in (1e-3, 3e-3)]
NORMS = ["rmsnorm", "layernorm", "scalenorm", "l2norm", "dyt", "derf", "seednorm", "bhyt"]
NORMS += ["gatednorm", "group_rmsnorm"]
PLACEMENTS = ["pre", "post", "sandwich", "ngpt", "residual_dual", "rezero", "hybrid_star", "keel"]
PLACEMENTS += ["qk_cap", "hyper_connections"]


def trainers_of(*typed, stack=None, runs=RUNS, **words):
    """A trainer of each run, whose batches are drawn from its seed."""
    made = []
    for place, (seed, rate) in enumerate(runs):
        config = combined(*TINY, *typed, f"seed={seed}", f"optimizer.lr={rate}", **words)
        size = STEPS, 4, config.model.context + 1
        data = torch.randint(VOCABULARY, size, generator=torch.Generator().manual_seed(seed))
        loss = partial(StackedLoss, stack=stack, place=place) if stack else ModelLoss
        model = build_model(config, VOCABULARY)
        made.append(build_trainer(config, model, data.__getitem__, lambda: (), loss=loss))
    return made


def train(trainer, steps=STEPS):
    """Returns why the run diverged, or None."""
    while trainer.step < steps:
        if reason := trainer.train_step():
            return reason
    return None


def train_stacked(stack, trainers, steps):
    return [run.result() for run in stack.run([partial(train, one, steps) for one in trainers])]


def check_equal(alone, together, rtol=1e-12):
    assert [one.step for one in alone] == [one.step for one in together]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other.losses, one.losses, rtol=rtol, atol=0)
        weights = [torch.cat([p.flatten() for p in made.parameters]) for made in (one, other)]
        # Where a gradient is zero, AdamW divides its rounding by the size of that rounding.
        assert (weights[0] - weights[1]).norm() <= 100 * rtol * weights[0].norm()


def check(*typed, steps=STEPS, **words):
    alone, stack = trainers_of(*typed, **words), Stack()
    for trainer in alone:
        assert train(trainer, steps) is None
    together = trainers_of(*typed, stack=stack, **words)
    assert train_stacked(stack, together, steps) == [None] * 4
    assert stack.failures == 0, stack.reason
    check_equal(alone, together)


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize(("norm", "placement", "typed"), [
    ("rmsnorm", "pre", []),
    ("rmsnorm", "sandwich", ["optimizer=muon"]),
    ("dyt", "qk_cap", ["trainer.accumulation=2"]),
    ("seednorm", "ngpt", ["mlp.activation=relu2"]),
    ("derf", "residual_dual", ["architecture.sliding_window=4", "position=alibi"]),
    ("l2norm", "rezero", []),
    *(nightly(norm, placement, [f"optimizer={optimizer}"])
      for norm, placement, optimizer in product(NORMS, PLACEMENTS, ("adamw", "muon"))),
])  # fmt: skip
def test_20_steps_of_2_seeds_and_2_rates_are_those_of_4_lone_runs(norm, placement, typed):
    check(*typed, norm=norm, placement=placement)


def compiler_of(kind, compiled):
    """Stands in for the compiler of a stack, and keeps in `compiled` the functions that it got."""

    def compiler(function):
        compiled.append(function)
        if kind == "fixed":
            return function
        return torch.compile(function, backend="aot_eager", dynamic=False, fullgraph=True)

    return None if kind == "free" else compiler


@pytest.mark.parametrize(("kind", "placement"), [
    ("free", "pre"),
    ("fixed", "pre"),
    *(nightly("compiled", placement) for placement in ("pre", "qk_cap", "hyper_connections")),
])  # fmt: skip
def test_a_run_that_diverges_raises_or_ends_leaves_the_others_as_if_it_had_not(
    kind, placement, monkeypatch
):
    """One rate is too high, the fourth batch of one run has an id that is not there, and one run
    has fewer steps. A stack that is compiled goes on with the number of runs that it began with."""
    runs = [(0, 1e-3), (0, 100), (1, 1e-3), (1, 3e-3), (2, 1e-3)]
    compiled, sizes = [], []
    alone, stack = trainers_of(runs=runs, placement=placement), Stack(compiler_of(kind, compiled))
    ends = [FEWER, FEWER, 3, 5, FEWER]
    reasons = [train(one, steps) for one, steps in zip(alone, ends, strict=True)]
    diverges = placement != "qk_cap"  # which bears that rate for so long
    assert [reason is not None for reason in reasons] == [False, diverges, False, False, False]
    together = trainers_of(stack=stack, runs=runs, placement=placement)
    data, whole = together[2].batches, stack.gradients
    together[2].batches = lambda step: data(step) + (step == 3) * VOCABULARY
    monkeypatch.setattr(stack, "gradients", lambda parts: sizes.append(len(parts)) or whole(parts))
    ends[2] = FEWER
    with torch._dynamo.config.patch(error_on_recompile=True):
        ended = stack.run([partial(train, *each) for each in zip(together, ends, strict=True)])
    assert isinstance(ended.pop(2).exception(), IndexError)
    assert [run.result() for run in ended] == reasons[:2] + reasons[3:]
    torch.testing.assert_close(together[1].losses, alone[1].losses, rtol=1e-3, atol=0)
    check_equal(alone[:1] + alone[2:], together[:1] + together[2:])
    assert (stack.failures, "index" in stack.reason) == (1, True)
    assert (len(sizes), sizes[0], sizes[-1]) == (FEWER, 5, 3 - diverges)  # one step of all at once
    assert len(stack.weights["embedding.weight"]) == (2 if kind == "free" else 5)
    assert len(compiled) == (kind != "free")


class Counts(torch.nn.Module):
    """x times a number that grows with each call in training, which no buffer holds."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return x * self.calls


def test_what_cannot_be_computed_together_is_computed_run_by_run():
    """test_sweep_stacked.py has what vmap refuses."""
    stack = Stack()
    together = trainers_of(stack=stack)
    for one in together:
        one.model.final = Counts()
    train_stacked(stack, together, FEWER)
    assert stack.failures >= MOST_FAILURES
    assert "other gradients" in stack.reason


def test_a_criterion_of_a_plugin_is_what_a_stack_trains_on(monkeypatch):
    class Softened:
        """(1 - a) * cross-entropy + a * its mean over the vocabulary"""

        def __call__(self, logits, targets):
            own = {"reduction": "sum", "label_smoothing": 0.1}
            return torch.nn.functional.cross_entropy(logits, targets, **own)

    monkeypatch.setattr(LOSSES, "maker", lambda values: Softened)
    check(steps=FEWER)
