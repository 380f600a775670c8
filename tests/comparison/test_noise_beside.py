"""The study of noise beside a study: when it stands in for the study's own variances."""

from pathlib import Path

import numpy as np
import pytest
from own_folder import own_folder  # noqa: F401
from run_folders import PRE, SANDWICH, by_placement, make_sweep

from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import noise_beside, read_study


def make_study(name, losses, **more):
    """A study in runs/NAME of {placement: {seed: loss}}."""
    study = Path("runs") / name
    members = [(variant | more, *run) for variant, *run in by_placement(losses)]
    make_sweep(study, members, name=name)
    return study


@pytest.mark.goal("Q6")
def test_the_noise_beside_a_study_of_one_comparison_is_its_prior():
    draw = np.random.default_rng(0)
    scatter = {p: dict(enumerate(2 + 0.02 * draw.normal(size=8))) for p in ("pre", "post")}
    make_study("noise", scatter)
    folder = make_study("mine", {"pre": PRE, "sandwich": SANDWICH})
    study = read_study([folder])
    found = findings(study, noise_beside(study))
    differences = [scatter["post"][seed] - scatter["pre"][seed] for seed in range(8)]
    assert found.rules.prior.variance == pytest.approx(np.var(differences, ddof=1))
    assert found.rules.prior.origin == "the study noise"
    assert found.comparisons["sandwich"].spread.freedom == 2 + found.rules.prior.weight
    assert findings(study).rules.prior is None


def test_noise_of_another_size_or_horizon_or_none_at_all_is_no_prior():
    folder = make_study("mine", {"pre": PRE, "sandwich": SANDWICH})
    assert noise_beside(read_study([folder])) is None
    noise = make_study("noise", {"pre": PRE, "post": SANDWICH}, **{"trainer.steps": 80})
    assert noise_beside(read_study([folder])) is None
    assert noise_beside(read_study([noise])) is None


def test_four_comparisons_of_the_study_are_enough():
    losses = {p: {s: x + 0.01 * n * s for s, x in PRE.items()} for n, p in
              enumerate(("pre", "post", "sandwich", "peri", "out"))}  # fmt: skip
    losses["post"][0] += 0.003
    losses["peri"][1] += 0.004
    make_study("noise", {"pre": PRE, "post": SANDWICH})
    study = read_study([make_study("mine", losses)])
    found = findings(study, noise_beside(study))
    assert found.rules.prior.origin == "the comparisons of this study"
    fewer = read_study([make_study("fewer", dict(list(losses.items())[:4]))])
    assert findings(fewer, noise_beside(fewer)).rules.prior.origin == "the study noise"
