"""What a screen shows and chooses: on screens whose truth is planted."""

from pathlib import Path

import numpy as np
import pytest
import screens
from own_folder import own_folder  # noqa: F401
from run_folders import make_sweep, tuned

from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study


def plant_screen(folder, losses, lost=(), failed=()):
    """A screen of placements with both optimizers: `losses` by placement and optimizer. Those in
    `lost` have no rate that trains; a seed of those in `failed` diverged."""
    random, trials, results, rates = np.random.default_rng(0), [], [], []
    for placement, own in losses.items():
        for optimizer, loss in zip(("adamw", "muon"), own, strict=True):
            variant = {"optimizer": optimizer, "placement": placement}
            is_lost = (placement, optimizer) in lost
            best = {"optimizer.lr": 3e-3}
            rates.append(tuned(variant, None if is_lost else best))
            for rate, above in {1e-3: 0.1, 3e-3: 0.0, 9e-3: 0.1}.items():
                trial = None if is_lost else loss + above
                trials.append((variant, 100, trial, {"optimizer.lr": rate}))
            for seed in () if is_lost else (10, 11, 12):
                diverged = (placement, optimizer) in failed and seed == 10
                final = None if diverged else loss + random.normal(0, 1e-3)
                results.append((variant, seed, final, best))
    make_sweep(folder, results, trials, seeds=[10, 11, 12], tuned=rates)
    return findings(read_study([Path(folder)]))


def test_a_screen_has_a_line_for_each_placement_the_lowest_with_adamw_first():
    found = plant_screen(
        "study",
        {"pre": (2.0, 1.5), "post": (2.2, 1.4), "peri": (1.8, 1.5), "hybrid": (1.9, 1.9),
         "out": (2.4, 1.6)},
        lost=[("out", "adamw")], failed=[("hybrid", "muon")],
    )  # fmt: skip
    text = screens.screen_text("placements_screen_own", found)
    assert "run again" not in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["pre itself", "peri", "hybrid", "post", "out"]
    means = [float(mean.partition(",")[0]) for mean in rows[2][1:]]
    assert means == pytest.approx([2.0, 1.5], abs=3e-3)
    words = [[cell.partition(")")[2].strip() for cell in row[1:]] for row in rows[3:6]]
    assert words == [["better", ""], ["better", ""], ["worse", "better"]]
    values = [float(row[1].partition(" ")[0]) for row in rows[3:6]]
    assert values == pytest.approx([-0.2, -0.1, 0.2], abs=3e-3)
    assert rows[4][2].startswith("failed in 1 of 3")
    assert rows[6][1] == "failed at every rate"


def test_the_six_lowest_and_the_four_furthest_apart_are_chosen():
    names = ["admin", "b2t", "beam", "deepnorm", "hybrid", "keel", "lns", "mixln", "mhc", "none",
             "out", "peri", "post"]  # fmt: skip
    losses = {"pre": (2.0, 1.5)}
    losses |= {name: (1.9 + 0.02 * k, 1.5) for k, name in enumerate(names)}
    losses["none"] = (2.08, 1.4)  # 0.18 apart
    losses["post"] = (2.3, 1.5)  # 0.3 apart
    losses["mhc"] = (2.06, 1.9)  # 0.34 apart
    losses["peri"] = (1.5, 1.5)  # the lowest; a seed of it failed with muon
    losses["out"] = (1.4, 2.5)  # lower still, but a seed of it failed
    found = plant_screen("study", losses, failed=[("peri", "muon"), ("out", "adamw")])
    chosen = screens.choose_placements(found)
    assert chosen[:6] == ["peri", "admin", "b2t", "beam", "deepnorm", "hybrid"]
    assert (chosen[6:9], len(chosen)) == (["mhc", "post", "none"], 10)
    text = screens.screen_text("placements_screen", found)
    assert text.endswith(f"these are run again: {', '.join(chosen)}.")
