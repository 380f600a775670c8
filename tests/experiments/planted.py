"""Studies whose truth is planted: the losses of variants are known, and a little noise is added."""

import json
from pathlib import Path

import numpy as np
from reports import findings_of
from run_folders import make_sweep

SEEDS = (10, 11, 12)


def plant(losses, noise=1e-3, failed=(), point=lambda variant: (), folder="study", **asked):
    """The findings of a study: `losses` are pairs of a variant and its loss, which is None where
    all seeds diverged. In `failed` are places of losses whose first seed diverged. A variant's
    `point` is the one that it was tuned at."""
    random, results = np.random.default_rng(0), []
    for place, (variant, loss) in enumerate(losses):
        for seed in SEEDS:
            drawn = random.normal(0, noise)
            lost = loss is None or (place in failed and seed == SEEDS[0])
            results.append((variant, seed, None if lost else loss + drawn, *point(variant)))
    make_sweep(folder, results, seeds=[*SEEDS], **asked)
    return findings_of(folder)


def change_rows(run, change):
    """Writes the rows of a run's metrics.jsonl as `change` returns them."""
    file = Path(run, "metrics.jsonl")
    rows = change([*map(json.loads, file.read_text().splitlines())])
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
