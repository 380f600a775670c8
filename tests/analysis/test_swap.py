"""A norm in the place of another in a trained model: its weights, the tuning, and the control."""

import json
import re

import pytest
import small_studies as small
import torch
from combinations import combined
from refusing import refused

from transformer_norms import load
from transformer_norms.analysis.norm_removal import main as remove_norms
from transformer_norms.analysis.outcome import Outcome, of_kind, read_rows
from transformer_norms.analysis.rendering import page
from transformer_norms.analysis.trained.swap import ANALYSIS, compose_swapped, main, swap_norms
from transformer_norms.analysis.trained.tuned_models import (
    TuningLosses,
    load_tunable,
    stay,
    tune,
    tuning_rows,
)
from transformer_norms.commands.sampling import sample
from transformer_norms.config.building import build_trainer
from transformer_norms.data.batches import Batches
from transformer_norms.norms import NORMS
from transformer_norms.progress import tell_nobody

SIZES = f"model=nano model.width={small.WIDTH} model.heads=2 model.depth=2 model.context=8".split()
STEPS = ["trainer.steps=4", "schedule.warmup=1"]
KINDS = tuple(kind for kind in NORMS.values() if isinstance(kind, type))


def model_of(**words):
    """A model in float64 whose weights are neither ones nor zeros."""
    config = combined(*SIZES, "trainer.precision=fp64", "trainer.device=cpu", **words)
    return small.lively(config, 13, 1 / 3).eval()


def swapped(model, *typed):
    return swap_norms(model, compose_swapped(model.config, typed))


@torch.no_grad()
def logits(model):
    return model(torch.randint(13, (2, 8), generator=torch.Generator().manual_seed(2)))


@pytest.mark.parametrize("norm", ["dyt", "scalenorm", "seednorm", "rmsnorm_1p", "ssnorm"])
def test_a_norm_in_its_own_place_is_the_same_model(norm):
    model = model_of(norm=norm)
    same, swaps = swapped(model, f"norm={norm}")
    assert torch.equal(logits(same), logits(model))
    assert not any(swap.started or swap.left for swap in swaps)


@torch.no_grad()
def test_layernorm_for_rmsnorm_changes_nothing_where_all_streams_are_centred():
    model = model_of(norm="rmsnorm")
    for module in (model.embedding, *(b.attention.f.output for b in model.blocks),
                   *(b.mlp.f.down for b in model.blocks)):  # fmt: skip
        axis = 1 if module is model.embedding else 0
        module.weight.sub_(module.weight.mean(axis, keepdim=True))
    typed = ["norm=layernorm", "norm.eps=1e-6"]
    there, swaps = swapped(model, *typed)
    assert {(s.carried, s.started, s.left) for s in swaps} == {("gain", "bias", "")}
    assert (logits(there) - logits(model)).abs().max() < 1e-13
    model.embedding.weight[:, 0] += 1
    assert (logits(swapped(model, *typed)[0]) - logits(model)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("before", "after", "factor"),
    [
        ("rmsnorm_1p", "dyt", lambda old: 1 + old.offset),
        ("rmsnorm", "rmsnorm_1p", lambda old: old.gain),
        ("scalenorm", "rmsnorm", lambda old: old.gain / small.WIDTH**0.5 * torch.ones(small.WIDTH)),
        ("layernorm", "rmsnorm_bias", lambda old: old.gain),
    ],
)
def test_a_gain_is_carried_over_as_what_it_multiplies_by(before, after, factor):
    model = model_of(norm=before)
    new, old = swapped(model, f"norm={after}")[0].final, model.final
    gain = 1 + new.offset if getattr(new, "offset", None) is not None else new.gain
    assert torch.allclose(gain, factor(old).double(), atol=1e-15)
    if after == "rmsnorm_bias":
        assert torch.equal(new.bias, old.bias)
    if after == "dyt":
        assert (new.alpha.item(), new.bias.abs().max().item()) == (1.0, 0.0)


def test_all_that_is_no_norm_keeps_its_weights_and_its_place_in_the_equation():
    for placement in ("hybrid", "deepnorm", "hyper_connections", "subln"):
        model = model_of(placement=placement)
        new = swapped(model, "norm=dyt")[0]
        own = dict(model.named_parameters())
        norms = tuple(f"{path}." for path, m in new.named_modules() if isinstance(m, KINDS))
        shared = {n: p for n, p in new.named_parameters() if not n.startswith(norms)}
        assert len(shared) > 10
        assert all(torch.equal(p, own[name]) for name, p in shared.items())
        assert new.config.architecture == model.config.architecture


def test_one_site_is_named_by_the_equation():
    typed = "placement.equation={attention: x + f(norm(x)), mlp: x + f(dyt(x))}"
    _, swaps = swapped(model_of(), typed)
    assert {(s.site, s.after) for s in swaps} == {
        ("attention.pre", "RMSNorm"), ("mlp.pre", "DyT"), ("final", "RMSNorm"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "typed", "said"),
    [
        ({}, "norm=dytt", "did you mean 'dyt'"),
        ({}, "placement.equation=norm(x + f(norm(x)))", "a swap changes names of norms, and"),
        ({}, "placement.equation=x + 0.5 * f(norm(x))", "a swap changes names of norms, and"),
        ({}, "embed=rmsnorm", "embed: there is no norm that another one could replace"),
        ({}, "norm=batchnorm", "takes its statistics over later tokens too"),
        ({"placement": "ngpt"}, "norm=dyt", "no site has the run's norm; each names its own"),
    ],
)
def test_what_is_no_swap_is_one_line(words, typed, said):
    assert said in refused(swapped, model_of(**words), typed)


def test_the_control_is_the_run_continued_and_a_norm_in_its_own_place_has_its_bits():
    folder = small.run_of("study=pair", "norm=rmsnorm", "seed=0")
    one = load_tunable(folder, STEPS)
    model = load(folder)
    own = Batches(one.train, small.CONTEXT, 16, one.config.data.seed)
    alone = build_trainer(one.config, model, lambda step: own(small.STEPS + step), lambda: [])
    expected = [alone.train_step() or alone.last_loss for _ in range(4)]
    control = one.tune_control({0: "before"}, tell_nobody)
    assert control.training == expected
    config = compose_swapped(one.config, ["norm=rmsnorm"])
    itself, _ = swap_norms(one.model, config)
    trainer = one.trainer(itself, config)
    assert tune(trainer, stay({0: "before"}), "", tell_nobody) == control
    assert all(map(torch.equal, trainer.model.parameters(), model.parameters()))
    summary = json.loads((folder / "summary.json").read_text())
    assert control.validation["before"] == summary["val_loss"]


def test_a_tuning_that_diverged_is_named_and_takes_no_part_in_the_mean():
    control = TuningLosses({"before": 0, "tuned": 9}, {"before": 2.0, "tuned": 1.5}, [2.0] * 9)
    ended = TuningLosses({"swapped": 0, "tuned": 9}, {"swapped": 3.0, "tuned": 1.75}, [2.0] * 9)
    failed = TuningLosses({"swapped": 0}, {"swapped": 3.0}, [2.0] * 4, "the loss is nan at step 5")
    rows = [
        {"model": "mine", "seed": seed, **row}
        for seed, tuning in enumerate((ended, ended, failed))
        for row in tuning_rows("swapped", tuning, control)
    ]
    shown = page(Outcome(ANALYSIS, rows))
    assert "| mine | 2 | 2.0000 | 3.0000 | 1.7500 | 1.5000 | +0.2500 |" in shown
    assert "- mine s2: diverged (swapped: the loss is nan at step 5)" in shown
    alone = [row for row in rows if row["seed"] == 2]
    shown = page(Outcome(ANALYSIS, alone))
    assert "mine s2: diverged" in shown
    assert "±" not in shown  # of one model there is no interval
    assert len(of_kind(rows, "step")) == 3 * 9


def test_a_variant_in_which_nothing_can_be_swapped_is_left_out_by_name(capsys):
    """Also one whose config refuses the swap. post has no norm before the head."""
    post = small.run_of("study=ends", "placement=post")
    small.run_of("study=ends", "placement=pre")
    for word in ("qk_norm=head", "placement=qkv"):
        qkv = small.run_of("study=refused", word)
    why = "final: there is no norm that another one could replace"
    read = f"tuned on {4 * 16 * small.CONTEXT} tokens of text, validated on 60"
    for one, typed, said in (
        (post, "final_norm=layernorm", rf"LEFT OUT: post \(seed 0\): {why}.*{read}"),
        (qkv, "qk_norm=layernorm", r"LEFT OUT: [^:]*qkv[^:]* \(seed 0\): \S*qk_norm"),
    ):
        assert main([str(one.parent), typed, *STEPS, "--baseline", "none"]) == 0
        assert re.search(said, " ".join(capsys.readouterr().out.split()))
    assert main([str(post), "final_norm=layernorm", *STEPS]) == 2
    assert capsys.readouterr().err.endswith(f": {why}\n")


@pytest.mark.parametrize("make", [small.gpt2, pytest.param(small.llama, marks=pytest.mark.nightly)])
def test_a_folder_of_transformers_is_swapped_and_loses_its_norms(make, capsys, tmp_path):
    folder, text = make(), small.home() / "text.txt"
    typed = ["--text", str(text), "optimizer.lr=1e-2", "--save", str(tmp_path)]
    typed += ["model.context=6", "data.val_tokens=60"]
    assert main([str(folder), "norm=dyt", *STEPS, *typed, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    steps = ["trainer.steps=8", "schedule.warmup=1", "--start", "1", "--gap", "1"]
    assert remove_norms([str(folder), *steps, *typed]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["numbers"][0]["rounding"] < 1e-12
    tuned = load(tmp_path / f"{folder.name}-swapped")
    assert {type(m).__name__ for m in tuned.modules() if isinstance(m, KINDS)} == {"DyT"}
    without = load(tmp_path / f"{folder.name}-folded")
    assert not any(isinstance(m, KINDS) for m in without.modules())
    assert tuned.vocab_size == without.vocab_size == 300
    assert sample(tmp_path / f"{folder.name}-swapped", "the", 3)
    one = load_tunable(folder, [*typed[-2:], *STEPS], text)
    fresh = swap_norms(one.model, compose_swapped(one.config, ["norm=dyt"]))[0]
    (row,) = of_kind(read_rows((tmp_path / "out/swap.csv").read_text()), "model")
    for model, stage in ((fresh, "swapped"), (tuned, "tuned")):
        nats, tokens, _ = one.trainer(model, one.config).evaluate(one.windows())
        assert tokens == 60
        assert nats / tokens == pytest.approx(row[stage], rel=1e-6)
