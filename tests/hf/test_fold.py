"""Norms folded into the weights: the same function, the norms that are left, and what stays."""

import json
from functools import cache

import pytest
import references as there
import small_studies as small
import torch
from combinations import combined
from test_hf import CASES, text, theirs_of
from test_hf_refusals import REFUSALS

from transformer_norms import load
from transformer_norms.analysis import folded_model, norm_folding
from transformer_norms.analysis.folded_model import fold_gains
from transformer_norms.analysis.outcome import of_kind, read_rows
from transformer_norms.analysis.trained.fold import main
from transformer_norms.commands.sampling import sample
from transformer_norms.config.compose import compose
from transformer_norms.hf import from_hf
from transformer_norms.names import distinct_norms, options
from transformer_norms.norms import RMSNorm
from transformer_norms.run.checkpoint import verify

pytestmark = [pytest.mark.filterwarnings("ignore")]
SIZES = (
    "model=nano model.width=24 model.heads=3 model.depth=3 model.context=8 trainer.precision=fp64"
).split()
VOCABULARY = 13


def tokens_of(seed=0):
    return torch.randint(VOCABULARY, (3, 8), generator=torch.Generator().manual_seed(seed))


@cache
def folded(*typed, norm="layernorm", placement="pre"):
    config = combined(*SIZES, *typed, norm=norm, placement=placement)
    model = small.lively(config, VOCABULARY, 0.25, drawn=False).eval()
    return model, fold_gains(model, tokens_of())


def left(model):
    norms = {}
    for _, norm in model.norms():
        own = " ".join(name for name, _ in norm.named_parameters())
        norms[norm.norm_place.title, type(norm).__name__, own] = None
    return [*norms]


def check(*typed, norm, placement):
    """The folded model, built from its saved config alone, has the logits of the one before."""
    model, result = folded(*typed, norm=norm, placement=placement)
    rebuilt = folded_model.build_uninitialized(result.config, VOCABULARY)
    rebuilt.load_state_dict(result.model.state_dict())
    with torch.no_grad():
        expected, logits = model(tokens_of(7)), rebuilt.eval()(tokens_of(7))
    assert (expected.std(-1) > 1e-4).all()  # a model without norms has small logits
    # PRMSNorm divides by the rms of few numbers, which may be small and enlarges rounding.
    bound = 1e-11 if norm == "prmsnorm" else 1e-12
    assert (expected - logits).abs().max() < bound * expected.abs().max()
    return result


QUICK = ("pre", "sandwich", "hybrid_star")
EVERY = [pytest.param(p, distinct_norms(), marks=pytest.mark.nightly) for p in options("placement")]


@pytest.mark.parametrize(("placement", "norms"), [*((p, ["layernorm"]) for p in QUICK), *EVERY])
def test_a_folded_model_has_the_same_logits(placement, norms):
    folds = [check(norm=norm, placement=placement).folds for norm in norms]
    assert placement not in QUICK or any(fold.into for fold in folds[0])


EVERYTHING = (
    ("architecture.smear=4",),
    ("final_norm=rmsnorm",),
    ("v_norm=head", "architecture.kv_from_block=0"),
    ("architecture.attention_gate=elementwise", "qk_norm=full"),
    ("position=learned", "mlp=swiglu", "model.kv_heads=H**(1-i)", "model.head_dim=6+4*i",
     "v_norm=head"),
    ("position=sinusoidal", "architecture.bias=true"),
    ("position=learned", "qk_norm=head", "v_norm=per_head", "architecture.values_from_keys=i%2"),
    ("position=learned", "qk_norm=per_head", "v_norm=per_head", "architecture.q_rank=10",
     "architecture.kv_rank=8", "architecture.rope_dim=2", "architecture.value_dim=5"),
    ("architecture.value_embedding=1", "architecture.value_gate=12"),
    ("architecture.value_residual=0.5", "v_norm=head"),
    ("attention=sinks", "architecture.tied=false", "v_norm=per_head"),
    ("embed=norm", "qk_norm=head", "architecture.qk_norm_order=after", "architecture.smear=4"),
    ("embed=fixnorm",),
    ("model.dropout=0.1", "architecture.bias=[up]"),
)  # fmt: skip


@pytest.mark.parametrize(("placement", "norm"), [("pre", "layernorm"), *(
    pytest.param(placement, norm, marks=pytest.mark.nightly)
    for placement in ("pre", "qkv", "sandwich", "layerscale")
    for norm in ("layernorm", "layernorm_np", "rmsnorm_bias", "ssnorm")
)])  # fmt: skip
@pytest.mark.parametrize("typed", [
    pytest.param(typed, id=" ".join(typed), marks=[pytest.mark.nightly] * (n > 4))
    for n, typed in enumerate(EVERYTHING)
])  # fmt: skip
def test_what_stands_beside_the_norms_is_respected(typed, placement, norm):
    if placement == "qkv":
        typed = tuple(word for word in typed if not word.startswith(("qk_norm", "v_norm")))
    check(*typed, norm=norm, placement=placement)


def test_the_matrices_are_those_of_the_equations():
    model, result = folded("architecture.bias=true")
    block, new = model.blocks[1], result.model.blocks[1]
    gain, bias = block.mlp.pre.gain, block.mlp.pre.bias
    weight = block.mlp.f.up.weight
    close = {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(new.mlp.f.up.weight, weight * gain, **close)
    torch.testing.assert_close(new.mlp.f.up.bias, block.mlp.f.up.bias + weight @ bias, **close)
    down = block.mlp.f.down
    torch.testing.assert_close(new.mlp.f.down.weight, down.weight - down.weight.mean(0), **close)
    torch.testing.assert_close(new.mlp.f.down.bias, down.bias - down.bias.mean(), **close)
    rows = model.embedding.weight
    centred = rows - rows.mean(1, keepdim=True)
    torch.testing.assert_close(result.model.embedding.weight, centred, **close)
    torch.testing.assert_close(result.model.head.weight, rows * model.final.gain, **close)
    norm = new.mlp.pre
    assert (type(norm), norm.length.eps) == (RMSNorm, block.mlp.pre.eps)


@pytest.mark.parametrize("placement", ["pre", "parallel"])
def test_a_pre_norm_model_has_rmsnorms_without_gains_left(placement):
    result = folded(norm="layernorm", placement=placement)[1]
    assert {(kind, own) for _, kind, own in left(result.model)} == {("RMSNorm", "")}
    assert result.config.norm.type == "rmsnorm"
    assert result.config.norm.eps == 1e-5
    assert not any(fold.why for fold in result.folds)


LATENTS = ("architecture.q_rank=10", "architecture.kv_rank=8", "architecture.rope_dim=2")


def test_norms_on_latents_go_into_the_matrices_behind_and_before_them():
    result = check(*LATENTS, norm="layernorm", placement="pre")
    assert {(kind, own) for _, kind, own in left(result.model)} == {("RMSNorm", "")}
    sites = {fold.place.title: fold for fold in result.folds if fold.place.block == 1}
    behind = {name: [path.rpartition(".")[2] for path in sites[name].into] for name in sites}
    assert behind["attention.q_latent"] == ["query"]
    assert behind["attention.kv_latent"] == ["key", "value"]


@pytest.mark.parametrize(
    ("placement", "moved"),
    [("sandwich", {"attention.pre", "mlp.pre", "final"}), ("post", {"mlp.post 2"})],
)
def test_where_not_all_norms_lose_their_gain_the_moved_ones_are_left_as_ones(placement, moved):
    model, result = folded(norm="layernorm", placement=placement)
    assert left(result.model) == left(model)
    assert result.config.norm == model.config.norm
    for fold in result.folds:
        norm, last = result.model.get_submodule(fold.paths[0]), f" {fold.place.block}"
        there = {fold.place.title, fold.place.title + last} & moved
        assert bool(there) == bool(fold.into) == ({*norm.gain.tolist()} == {1.0})
        assert bool(there) == (not norm.bias.any())


def test_a_tied_head_becomes_a_matrix_of_its_own_only_where_it_takes_a_norm_in():
    assert folded(norm="rmsnorm")[1].model.head is not None
    for norm in ("rmsnorm_np", "dyt"):
        model, result = folded("architecture.tied=true", norm=norm)
        assert (model.head, result.model.head) == (None, None)


@pytest.mark.parametrize(("placement", "norm", "site", "why"), REFUSALS["folds"])
def test_a_norm_that_stays_is_named_with_the_reason(placement, norm, site, why):
    folds = folded(norm=norm, placement=placement)[1].folds
    reasons = [reason for fold in folds if fold.place.title == site for reason in fold.why]
    assert [reason for reason in reasons if why in reason], reasons


@pytest.mark.parametrize(
    ("name", "config", "bound"),
    [
        *((name, CASES[name][0], 1e-12) for name in ("gpt2", "llama", "gemma2")),
        *(pytest.param(n, CASES[n][-1], 1e-10, marks=pytest.mark.nightly) for n in CASES),
    ],
)
def test_an_imported_model_is_still_theirs_to_rounding(name, config, bound):
    theirs = theirs_of(name, config)
    result = fold_gains(from_hf(theirs), text())
    with there.in_float64(), torch.no_grad():
        expected = theirs(text()).logits
    assert (result.model(text()) - expected).abs().max() < bound * expected.abs().max()
    if bound < 1e-10:  # Gemma's gains are 1 + offset. Those after sub-layers stay: all have one.
        stays = "offset" if name == "gemma2" else ""
        assert {(kind, own) for _, kind, own in left(result.model)} == {("RMSNorm", stays)}
        assert result.rounding < 1e-12


def run():
    return small.run_of("study=pair", "norm=layernorm", "seed=0")


def test_the_command_proves_it_and_leaves_a_model_that_is_loaded_and_sampled(tmp_path, capsys):
    saved, out = tmp_path / "folded", tmp_path / "out"
    assert main([str(run()), "--save", str(saved), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    moved = "attention.pre 1-3 layernorm gain, bias, centring rmsnorm, no gain"
    assert moved in [" ".join(line.split()) for line in lines]
    (numbers,) = json.loads(lines[-1])["numbers"]
    assert numbers["rounding"] < 1e-14
    assert numbers["saved"] < 1e-5
    before, after = load(run()), load(saved)
    with torch.no_grad():
        logits = [model.double()(tokens_of()) for model in (before, after)]
    assert (logits[0] - logits[1]).abs().max() < 1e-5 * logits[0].abs().max()
    assert sample(saved, "the", 5, temperature=0) == sample(run(), "the", 5, temperature=0)
    (step,) = (saved / "checkpoints").iterdir()
    assert verify(step).extra == {"folded_from": run().name}
    rows = read_rows((out / "fold.csv").read_text())
    assert len(of_kind(rows, "norm")) == len(before.norms())
    assert main([str(saved)]) == 0  # nothing is left to be moved
    assert compose([f"config={saved}"]).norm.gain == "none"


def test_a_folder_of_transformers_is_saved_with_its_tokenizer(tmp_path, capsys):
    saved = tmp_path / "folded"
    assert main([str(small.checkpoint()), "--save", str(saved)]) == 0
    assert sample(saved, "the", 5, temperature=0).startswith("the")
    assert load(saved).config.tokenizer.path == str(saved)


def test_a_wrong_fold_is_refused_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    def forget(linear, matrix, constant):
        linear.weight.mul_(1.001)

    monkeypatch.setattr(norm_folding, "absorb", forget)
    saved, out = tmp_path / "folded", tmp_path / "out"
    assert main([str(run()), "--save", str(saved), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "folding has changed the logits, by " in error.splitlines()[-1]
    assert not saved.exists()
    assert not out.exists()
