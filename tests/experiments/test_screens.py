"""What a screen shows and chooses: on screens whose truth is planted."""

import pytest
import screens
from own_folder import own_folder  # noqa: F401
from planted import plant
from run_folders import tuned

BEST = {"optimizer.lr": 3e-3}


def plant_screen(losses, lost=(), failed=()):
    """A screen of placements with both optimizers: `losses` by placement and optimizer. Those in
    `lost` have no rate that trains; a seed of those in `failed` diverged."""
    places = [(placement, optimizer) for placement in losses for optimizer in ("adamw", "muon")]
    every = dict(zip(places, [loss for own in losses.values() for loss in own], strict=True))
    variants = {(p, o): {"optimizer": o, "placement": p} for p, o in places}
    trials = [
        (variants[at], 100, None if at in lost else loss + above, {"optimizer.lr": rate})
        for at, loss in every.items()
        for rate, above in {1e-3: 0.1, 3e-3: 0.0, 9e-3: 0.1}.items()
    ]
    trained = [at for at in places if at not in lost]
    losses, failed = [(variants[at], every[at]) for at in trained], map(trained.index, failed)
    chosen = [tuned(variants[at], None if at in lost else BEST) for at in places]
    return plant(losses, failed=[*failed], point=lambda _: [BEST], trials=trials, tuned=chosen)


def test_a_screen_has_a_line_for_each_placement_the_lowest_with_adamw_first():
    found = plant_screen(
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
    found = plant_screen(losses, failed=[("peri", "muon"), ("out", "adamw")])
    chosen = screens.choose_placements(found)
    assert chosen[:6] == ["peri", "admin", "b2t", "beam", "deepnorm", "hybrid"]
    assert (chosen[6:9], len(chosen)) == (["mhc", "post", "none"], 10)
    text = screens.screen_text("placements_screen", found)
    assert text.endswith(f"these are run again: {', '.join(chosen)}.")
