"""Noise on norms and longer text: by hand, and in closed form."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from analyses.collapse import ANALYSIS, PRIMARY, longest, measure, sizes_of
from analyses.longer_text import losses_by_position
from analyses.norm_noise import (
    KINDS,
    QUERIES,
    Noise,
    Setting,
    norms_read,
    query_positions,
    sites_read,
)
from untrained import CONTEXT, DEPTH, model_and_text, sequences

from transformer_norms.progress import tell_nobody

SEED = 5
ATTENTIONS = {
    "plain": [], "capped": ["architecture.attention_cap=0.5"], "alibi": [],
    "sinks": ["attention=sinks"], "window": ["architecture.sliding_window=3"],
}  # fmt: skip
READ = {
    "pre": ("attention.pre", "mlp.pre"),
    "post": ("mlp.post (2 of 3)", "attention.post"),
    "parallel": ("pre", "pre"),
    "parallel_two_norms": ("attention.pre", "mlp.pre"),
    "peri": ("attention.pre", "mlp.pre"),
    "out": ("none", "none"),
    "none": ("none", "none"),
    "qkv": ("attention.q, attention.k, attention.v", "mlp.pre"),
    "residual_dual": ("mlp.post (2 of 3)", "attention.post"),
    "lns": ("attention.pre", "mlp.pre"),
    "mhc": ("attention.pre", "mlp.pre"),
}


def noise_free(loaded, sizes=(0.1,), foreign=None):
    return measure(loaded, sizes, SEED, foreign, tell_nobody)


def tokens_of(loaded):
    return torch.from_numpy(loaded.tokens.astype(np.int64))


@pytest.mark.parametrize("placement", ["pre", "post", "parallel", "qkv", "residual_dual", "none"])
def test_noise_of_no_size_changes_nothing_to_the_bit(placement):
    loaded = model_and_text(placement=placement)
    found = noise_free(loaded, (0.0, 0.1))
    assert found.loss == loaded.evaluate()
    for setting in found.losses:
        moved = found.moved[setting]
        if setting.size == 0 or placement == "none":
            assert found.losses[setting] == found.loss
            assert {*moved.distance, *moved.changed} == {0}
        else:
            assert found.losses[setting] != found.loss
            assert moved.distance[1] > 0


@torch.no_grad()
def attention_by_hand(block, x, words):
    """The weights [heads, time, keys] of one sequence [time, width], in numpy."""
    f = block.attention.f
    q, k = ((x @ m.weight.detach().numpy().T).reshape(len(x), 2, -1) for m in (f.query, f.key))
    logits = np.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    at = np.arange(len(x))
    seen = at[None, :] <= at[:, None]
    if words == "capped":
        logits = 0.5 * np.tanh(logits / 0.5)
    if words == "window":
        seen &= at[:, None] - at[None, :] < 3
    if words == "alibi":
        logits -= np.array([2.0**-4, 2.0**-8])[:, None, None] * (at[:, None] - at[None, :])
    logits = np.where(seen, logits, -np.inf)
    if words == "sinks":
        sinks = f.attend.sinks.numpy()[:, None, None].repeat(len(x), 1)
        logits = np.concatenate((logits, sinks), -1)
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def perturbed(y, z, kind, size):
    if kind == "length":
        return y * (1 + size * z)
    return y + size * np.sqrt((y**2).mean(-1, keepdims=True)) * z


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_distance_is_the_total_variation_by_hand(attention, kind):
    position = "alibi" if attention == "alibi" else "none"
    loaded = model_and_text(*ATTENTIONS[attention], placement="pre", position=position)
    moved = noise_free(loaded).moved[Setting("attention", kind, 0.1)]
    noise, block = Noise(Setting("attention", kind, 0.1), SEED), loaded.model.blocks[0]
    distances, changes, sharp = [], [], []
    for window, tokens in enumerate(sequences(loaded)):
        with torch.no_grad():
            x = loaded.model.embed(loaded.model.scale(loaded.model.embedding(tokens[:-1])))
            y = block.attention.pre(x).numpy()
        shape = (len(y), 1 if kind == "length" else y.shape[1])
        z = noise.draw("0.attention", window, shape).double().numpy()
        before = attention_by_hand(block, y, attention)
        after = attention_by_hand(block, perturbed(y, z, kind, 0.1), attention)
        distances += np.abs(after - before).sum(-1).ravel().tolist()
        changes += (after.argmax(-1) != before.argmax(-1)).ravel().tolist()
        sharp += (before.max(-1) > 0.5).ravel().tolist()
    assert moved.distance[0] == pytest.approx(sum(distances) / 2 / len(distances), rel=1e-9)
    assert moved.changed[0] == pytest.approx(sum(changes) / len(changes))
    assert moved.sharp[0] == pytest.approx(sum(sharp) / len(sharp))
    assert moved.changed_sharp[0] == pytest.approx(np.array(changes)[sharp].mean())


def test_the_noise_is_standard_normal_and_another_at_each_place_window_kind_and_seed():
    def drawn(place="0.attention", window=0, kind="vector", seed=SEED):
        return Noise(Setting("attention", kind, 0.1), seed).draw(place, window, (100, 100))

    one = drawn()
    assert torch.equal(one, drawn())
    assert (one.mean().item(), one.std().item()) == pytest.approx((0, 1), abs=0.03)
    others = drawn("1.attention"), drawn(window=1), drawn(kind="length"), drawn(seed=SEED + 1)
    for other in others:
        assert abs((one * other).mean()) < 0.05


@pytest.mark.parametrize("placement", READ)
def test_the_norms_are_those_whose_output_is_what_a_sub_layer_reads(placement):
    loaded = model_and_text(placement=placement)
    read = norms_read(loaded.model, next(loaded.windows())[:1, :-1])
    assert tuple(sites_read(read, name) for name in ("attention", "mlp")) == READ[placement]
    modules = loaded.model.modules()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_every_norm_that_a_sub_layer_reads_has_noise_in_the_primary_number():
    """The loss of a model whose norms are replaced by hand."""
    loaded = model_and_text(placement="pre")
    found, model = noise_free(loaded), loaded.model
    noise = Noise(PRIMARY, SEED)
    windows = 0

    def give(place, norm, x):
        y = norm(x)
        z = torch.stack([noise.draw(place, windows + n, y.shape[1:]) for n in range(len(y))])
        return y + 0.1 * y.square().mean(-1, keepdim=True).sqrt() * z.double()

    for i, block in enumerate(model.blocks):
        for name in ("attention", "mlp"):
            layer = getattr(block, name)
            norm = layer.pre
            del layer.pre
            layer.pre = lambda x, norm=norm, place=f"{i}.{name}": give(place, norm, x)
    nats = 0.0
    with torch.no_grad():
        for batch in loaded.windows():
            logits = model(batch[:, :-1]).log_softmax(-1)
            nats -= logits.gather(-1, batch[:, 1:, None]).sum().item()
            windows += len(batch)
    assert found.numbers["rise"] == pytest.approx(nats / 19 - found.loss, abs=1e-12)


@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_longer_windows_are_the_models_own_losses_position_by_position(position):
    loaded = model_and_text(f"position={position}", placement="pre")
    found, tokens = noise_free(loaded), tokens_of(loaded)
    assert [text.multiple for text in found.longer] == [1, 2]
    assert found.longer[0].loss() == pytest.approx(found.loss, abs=1e-12)
    loaded.model.context = 12
    by_hand = {}  # the loss of each token, by the length of windows
    with torch.no_grad():
        for length in (6, 12):
            nats = []
            for at in range(0, 19, length):
                own = tokens[at : at + length + 1]
                logits = loaded.model(own[None, :-1])[0].log_softmax(-1)
                nats += (-logits.gather(-1, own[1:, None])[:, 0]).tolist()
            by_hand[length] = np.array(nats)
    usual, longer = by_hand.values()
    assert found.longer[1].nats == pytest.approx(longer)
    assert np.flatnonzero(found.longer[1].tokens_at(6)).tolist() == [*range(6, 12), 18]
    heading, of_usual, row = ANALYSIS.views[2].table([*found.rows]).cells
    assert of_usual[3:] == ["", "", ""]
    later = [each[[*range(6, 12), 18]].mean() for each in (longer, usual)]
    expected = [longer.mean(), *later, later[0] - later[1]]
    assert [float(cell) for cell in row[2:]] == pytest.approx(expected, abs=6e-5)
    assert row[5].startswith(("+", "-"))
    # A causal model reads the first half of a long window as it reads a usual one.
    rises = [longer[at::12].mean() - usual[at::12].mean() for at in range(12)]
    positions = longest([*found.rows])
    drawn = {row["end"]: row["rise"] for row in positions}
    assert drawn == pytest.approx(dict(enumerate(rises, start=1)), abs=1e-12)
    assert rises[:6] == pytest.approx([0] * 6, abs=1e-12)
    assert [(row["loss"], row["loss_usual"]) for row in positions] == [
        pytest.approx((longer[at::12].mean(), usual[at::12].mean())) for at in range(12)
    ]
    assert found.notes == ["no windows of 4 times the length: the text that is read has 19 tokens"]


def test_positions_that_end_say_so_and_the_model_keeps_its_context():
    loaded = model_and_text("position=learned", placement="pre")
    found = noise_free(loaded, foreign=loaded.tokens[::-1].copy())
    assert [text.multiple for text in found.longer] == [1]
    assert found.notes[0].endswith("learned positions end at the context of 6 tokens")
    assert loaded.model.context == CONTEXT
    backwards = replace(loaded, tokens=loaded.tokens[::-1].copy())
    assert found.numbers["foreign"] == pytest.approx(backwards.evaluate() - found.loss)
    with pytest.raises(RuntimeError):
        losses_by_position(loaded, loaded.tokens, 2, lambda done, total: None)
    assert loaded.model.context == CONTEXT


def test_queries_are_at_even_distances():
    assert query_positions(5).tolist() == [0, 1, 2, 3, 4]
    far = query_positions(1000)
    assert (len(far), far[0], far[-1]) == (QUERIES, 0, 999)
    assert set(far.diff().tolist()) == {15, 16}


def test_the_tenth_is_always_measured():
    assert sizes_of("0.5,0.01") == [0.01, 0.1, 0.5]
    assert len(noise_free(model_and_text(placement="pre")).moved[PRIMARY].distance) == DEPTH
