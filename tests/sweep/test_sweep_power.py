"""--power, and the line of a sweep's introduction: what seeds can find in the known noise."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import config_of, make_record, make_run, planned
from scipy import stats
from sweeps import REFUSALS

from transformer_norms.cli import main
from transformer_norms.comparison.power import fewest_seeds, smallest_bound, smallest_difference
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.sweep.power_table import count_comparisons, count_pairs, power_lines
from transformer_norms.sweep.question import Question, read_request

TYPED = ["model=nano", "data=stories", "tracking=none", "trainer.steps=40", "trainer.device=cpu"]
TWO = ("pre", "post")
SWEEP = ["-m", "placement=pre,post", "seed=0,1,2", *TYPED]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def power(capsys, *arguments):
    code = main([*arguments, "--power"])
    out, err = capsys.readouterr()
    return out.splitlines(), code, err


def make_noise(steps=40):
    """runs/noise: ten pairs, whose differences have a known deviation. Returns it."""
    losses = np.random.default_rng(0).normal(3, 0.02, (2, 10))
    runs = []
    for placement, row in zip(TWO, losses.tolist(), strict=True):
        for seed, loss in enumerate(row):
            config = config_of([f"placement={placement}"], seed, trainer__steps=steps)
            runs.append(planned(config, {"placement": placement}))
            make_run("runs/noise", config, loss)
    make_record("runs/noise", runs, "noise")
    return float(np.std(losses[1] - losses[0], ddof=1))


def row_of(lines, seeds):
    return next(line.split() for line in lines if re.match(f"{seeds} ", line))


def test_without_noise_sizes_are_in_its_deviation_and_nothing_is_started(capsys):
    lines, code, _ = power(capsys, *SWEEP)
    assert (code, Path("runs").exists()) == (0, False)
    assert all(len(line) <= 80 for line in lines)
    _, finds, unit, _, unit_too, runs = row_of(lines, 5)
    assert (unit, unit_too, runs) == ("sd", "sd", "10")
    found = stats.nct.sf(stats.t.ppf(0.975, 4), 4, float(finds) * 5**0.5)
    assert found == pytest.approx(0.9, abs=0.003)  # of two digits
    assert [line.split()[0] for line in lines[1:7]] == ["3", "5", "8", "10", "15", "20"]


@pytest.mark.goal("Q2", "Q6")
def test_the_noise_beside_gives_nats(capsys):
    sd = make_noise()
    lines, _, _ = power(capsys, *SWEEP)
    noise = Spread(sd**2, 0)
    finds, bound = (
        f(noise, 3, 1, in_sequence=False) for f in (smallest_difference, smallest_bound)
    )
    assert row_of(lines, 3) == ["3", f"{finds:.2g}", "nats", f"{bound:.2g}", "nats", "6"]
    needed = fewest_seeds(lambda n: smallest_bound(noise, n, 1, in_sequence=False), 0.02)
    text = " ".join(lines)
    assert f"standard deviation of {sd:.2g} nats." in text
    assert f"equal variants are equivalent within 0.02 nats takes {needed} seeds" in text


def test_noise_of_another_horizon_tells_nothing(capsys):
    make_noise(steps=80)
    assert "sd" in row_of(power(capsys, *SWEEP)[0], 3)


def test_a_plan_until_decided_has_its_row_and_its_line(capsys):
    lines, few = (
        power(capsys, *[text.replace("0,1,2", seeds) for text in SWEEP])[0]
        for seeds in ("3..12", "3..3")
    )
    assert row_of(lines, 12)[5] == "24"
    assert "3 to 12 seeds detect a true difference of" in " ".join(lines)
    assert few[-1] == "3 to 3 seeds call nothing better or worse: tests at every look need more"


def test_the_introduction_says_what_the_seeds_can_find():
    question = read_request(SWEEP[1:]).question
    assert power_lines(question, None) == [
        "3 seeds detect a true difference of 3.92 sd with 90 % power (sd: standard deviation of "
        "paired differences, which no run tells yet)"
    ]
    calm = Spread(1e-6, 4.0)
    finds = smallest_difference(calm, 3, 1, in_sequence=False)
    assert power_lines(question, calm) == [
        f"3 seeds detect a true difference of {finds:.2g} nats with 90 % power; they show that "
        "equal variants are equivalent within 0.02"
    ]
    single = read_request(["placement=pre,post", *TYPED]).question
    assert power_lines(single, calm) == ["1 seed and no verdict: 3 are the fewest"]
    assert power_lines(read_request(["seed=0,1", *TYPED]).question, calm) == []


def test_declared_contrasts_are_what_the_seeds_have_to_find():
    """A difference of two differences varies sqrt(2) times as much, and only it is judged; the
    usual variance is that of the pairs."""
    both = {"norm": ["rmsnorm", "layernorm"], "placement": ["pre", "post"]}
    terms = "(post - pre) under layernorm - (post - pre) under rmsnorm"
    question = Question("", {"norm": "rmsnorm", "placement": "pre"}, both, seeds=[0, 1, 2, 3])
    question = replace(question, contrasts=[terms])
    finds = smallest_difference(Spread(8e-4, 2), 4, 1, in_sequence=False)
    said = power_lines(question, Spread(4e-4, min(4, 3 - 1)))[0]
    assert f"4 seeds detect a true difference of {finds:.2g} nats" in said
    assert (count_pairs(question), count_comparisons(question)) == (3, 1)


@pytest.mark.parametrize(("typed", "line"), REFUSALS["power"])
def test_a_wrong_command_is_one_line(capsys, typed, line):
    out, code, err = power(capsys, *typed.split())
    assert (out, code) == ([], 2)
    assert err.startswith(line)
    assert err.count("\n") == 1
