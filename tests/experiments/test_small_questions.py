"""What experiments/small_questions.py measures inside a model, against counting by hand."""

from copy import deepcopy

import pytest
import small_questions as asked
import torch

TINY = ["model.width=16", "model.heads=2", "model.depth=2", "model.context=16",
        "trainer.steps=12", "trainer.batch_size=4", "trainer.device=cpu"]  # fmt: skip


@pytest.fixture
def train(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question; " * 100)
    return lambda *typed: asked.Training(str(text), *TINY, *typed)


@pytest.fixture
def trained(train):
    training = train("norm=batchnorm", "norm.allow_noncausal=true")
    assert [*training.run()] == [*range(13)]
    return training


def test_the_population_of_one_batch_has_the_statistics_of_that_batch(trained):
    batch = trained.batches(0)
    population = deepcopy(trained.model).train()
    asked.take_population(population, [batch])
    for norm in asked._batchnorms(population):
        norm.running_var *= 63 / 64  # running averages are unbiased, a batch's own variance is not
    with torch.no_grad():
        expected = trained.model.train()(batch[:, :-1], batch[:, 1:])[1].item()
        found = population.eval()(batch[:, :-1], batch[:, 1:])[1].item()
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_population_of_several_batches_has_the_mean_of_their_statistics(trained):
    batches = [trained.batches(i) for i in range(3)]
    population = deepcopy(trained.model).train()
    asked.take_population(population, batches)
    embedded = [trained.model.embedding(batch[:, :-1]).reshape(-1, 16) for batch in batches]
    first = asked._batchnorms(population)[0]
    means = torch.stack([x.mean(0) for x in embedded]).mean(0)
    variances = torch.stack([x.var(0) for x in embedded]).mean(0)
    torch.testing.assert_close(first.running_mean, means.detach())
    torch.testing.assert_close(first.running_var, variances.detach())


def test_measuring_the_modes_leaves_the_run_as_it_is(trained):
    before = deepcopy(trained.model.state_dict())
    asked.modes_of(trained, 3)
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_share_near_eps_is_that_of_the_tokens_counted_one_by_one(train):
    training = train("norm=rmsnorm", "init=scaled")
    with torch.no_grad():
        table = training.model.embedding.weight
        table.mul_(torch.linspace(0.1, 3, len(table))[:, None])
    read = torch.as_tensor(training.tokens.val[:-1].astype(int))
    squares = training.model.embedding(read).square().mean(-1)
    eps = squares.median().item() / asked.NEAR
    share = asked.shares_of(training, eps)
    counted = sum(square < asked.NEAR * eps for square in squares.flatten().tolist())
    assert share["blocks.0.attention.pre"] == pytest.approx(counted / squares.numel(), abs=0.02)
    assert 0.3 < share["blocks.0.attention.pre"] < 0.7
    assert {*asked.shares_of(training, 1e-20).values()} == {0.0}


def test_the_tables_have_the_means_of_the_seeds_and_the_norms():
    rows = [{"seed": str(seed), "step": "10", "batch": "2", "running": str(3 + seed),
             "population": "2.5", "distance": "0.1"} for seed in range(3)]  # fmt: skip
    _, row = asked.modes_rows(rows)
    assert row[:4] == ["10", "2.000", "2.500", "4.000"]
    assert row[5] == "+1.500 (-0.984 to +3.984)"  # t of 2 degrees of freedom, 4.303 / sqrt(3)
    shares = [{"eps": "1e-06", "step": "0", "norm": name, "share": share}
              for name, share in (("a", "0.5"), ("b", "0.75"), ("c", "0.25"))]  # fmt: skip
    assert asked.shares_rows(shares)[1] == ["1e-06", "50.0 %", "75.0 %", "25.0 %"]
