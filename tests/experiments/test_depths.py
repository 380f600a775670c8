"""Losses and rates by depth: on a study whose truth is planted."""

from depths import depths_text, draw
from own_folder import own_folder  # noqa: F401
from reports import findings_of
from run_folders import make_sweep, tuned

LOSSES = {  # by rate; None failed
    ("pre", 4): {0.001: 2.0, 0.002: 1.9, 0.004: 2.1},
    ("post", 4): {0.001: 2.0, 0.002: 1.8, 0.004: None},
    ("pre", 32): {0.001: 1.7, 0.002: 1.8, 0.004: 1.9},
    ("post", 32): {0.001: 1.6, 0.002: None, 0.004: None},
}


def test_the_lowest_failing_rate_above_the_chosen_one_stands_beside_it():
    trials, results, chosen = [], [], []
    for (placement, depth), by_rate in LOSSES.items():
        variant = {"model.depth": depth, "placement": placement}
        points = {rate: {"optimizer.lr": rate} for rate in by_rate}
        trials += [(variant, 100, loss, points[rate]) for rate, loss in by_rate.items()]
        best = min((loss, rate) for rate, loss in by_rate.items() if loss is not None)[1]
        results += [(variant, seed, by_rate[best], points[best]) for seed in (1, 2, 3)]
        chosen.append(tuned(variant, points[best]))
    make_sweep("study", results, trials, seeds=[1, 2, 3], tuned=chosen)
    found = findings_of("study")
    text = depths_text(found)
    assert "| post | 1.8000 | 1.6000 |" in text
    assert "| pre | 0.002, none fails up to 0.004 | 0.001, none fails up to 0.004 |" in text
    assert "| post | 0.002, fails at 0.004 | 0.001, fails at 0.002 |" in text
    assert draw(found).startswith(b"<?xml")
