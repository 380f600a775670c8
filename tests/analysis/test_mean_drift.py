"""The mean of the stream: by hand, planted, and of a checkpoint."""

import numpy as np
import pytest
from analyses.mean_drift import ANALYSIS, chance, measure
from untrained import DEPTH, WIDTH, model_and_text, sequences, streams_by_hand

from transformer_norms.progress import tell_nobody

PLACEMENTS = {"pre": "rmsnorm", "post": "layernorm", "parallel": "layernorm",
              "residual_dual": "rmsnorm", "sandwich": "rmsnorm"}  # fmt: skip


def cosines(x):
    """Of each token, with the vector of ones."""
    ones = np.ones(x.shape[-1])
    return np.array([token @ ones / np.linalg.norm(token) / np.linalg.norm(ones) for token in x])


@pytest.mark.parametrize(("placement", "norm"), PLACEMENTS.items())
def test_the_cosines_of_every_boundary_are_those_by_hand(placement, norm):
    loaded = model_and_text(placement=placement, norm=norm)
    drift = measure(loaded, tell_nobody)
    by_hand = [streams_by_hand(loaded, tokens)[0] for tokens in sequences(loaded)]
    parts = {"x": 0, "r": 1}
    for (part, i), found in drift.streams.items():
        streams = [one[0 if i is None else i + 1] for one in by_hand]
        streams = [one[parts[part]] if part else one for one in streams]
        assert found == pytest.approx(np.concatenate([*map(cosines, streams)]), abs=1e-12)
    assert len(drift.streams) == 1 + DEPTH * (2 if placement == "residual_dual" else 1)
    c = abs(drift.streams["", None])
    cells = np.median(c), np.quantile(c, 0.9), c.max()
    streams = ANALYSIS.views[0].table([*drift.rows]).cells
    assert streams[1][1:4] == [f"{cell:.4f}" for cell in cells]
    two = placement == "residual_dual"  # of whose streams x is what the numbers and figure are of
    blocks = [c for (part, _), c in drift.streams.items() if part == ("x" if two else "")]
    blocks = blocks if two else blocks[1:]
    assert len(blocks) == DEPTH
    assert drift.numbers["last"] == np.median(abs(blocks[-1]))
    assert drift.numbers["median"] == pytest.approx(np.mean([np.median(abs(c)) for c in blocks]))
    chance = WIDTH * np.mean([(c**2).mean() for c in blocks])
    assert drift.numbers["chance"] == pytest.approx(chance)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_at_a_norm_the_share_is_what_centring_takes_of_its_input(norm):
    loaded = model_and_text("qk_norm=head", placement="pre", norm=norm)
    drift = measure(loaded, tell_nobody)
    ends = [streams_by_hand(loaded, tokens)[0][-1] for tokens in sequences(loaded)]
    x = np.concatenate(ends)
    kept = ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1) / (x**2).sum(-1)
    assert drift.norms["final"] ** 2 == pytest.approx(1 - kept, abs=1e-12)
    assert drift.centres["final"] == (norm == "layernorm")
    of_heads = {"attention.q", "attention.k"}
    assert {*drift.sites.values()} == {"final", "attention.pre", "mlp.pre"} | of_heads
    heads = [path for path, site in drift.sites.items() if site in of_heads]
    assert len(heads) == 2 * DEPTH
    over = {path: (c**2).mean() * (WIDTH / 2 if path in heads else WIDTH)
            for path, c in drift.norms.items()}  # fmt: skip
    assert drift.over_chance == pytest.approx(over)
    assert drift.numbers["norms_chance"] == pytest.approx(np.mean([*over.values()]))


def test_chance_is_that_of_random_directions_and_of_random_signs():
    x = np.random.default_rng(0).standard_normal((20_000, 16))
    for sample in (x, np.sign(x) * np.arange(16) ** 2):  # features of any sizes
        c = sample.mean(-1) / (sample**2).mean(-1) ** 0.5
        assert (c**2).mean() ** 0.5 == pytest.approx(chance(16)[1], rel=0.02)
    c = abs(x.mean(-1)) / (x**2).mean(-1) ** 0.5
    assert np.median(c) == pytest.approx(chance(16)[0], rel=0.02)
