"""From a trained model to one without norms: what is frozen, what is folded, and the control."""

import copy
import json
from pathlib import Path

import pytest
import small_studies as small
import torch
from combinations import combined
from measured import gap_sentences
from omegaconf import OmegaConf
from refusing import refused

from transformer_norms import build_model, compose, load
from transformer_norms.analysis.norm_removal import (
    FreezingOrder,
    RemovableNorm,
    compose_normless,
    fold_norms,
    main,
    make_removable,
    norm_stages,
    remove_in_order,
)
from transformer_norms.analysis.outcome import of_kind, read_rows
from transformer_norms.analysis.trained.tuned_models import Tunable, load_tunable, stay, tune
from transformer_norms.config.building import build_trainer
from transformer_norms.data.batches import Batches
from transformer_norms.norms import NORMS
from transformer_norms.norms.rmsnorm import RMSNorm
from transformer_norms.progress import tell_nobody
from transformer_norms.run.checkpoint import verify

SIZES = "model=nano model.width=24 model.heads=3 model.depth=2 model.context=8".split()
KINDS = tuple(kind for kind in NORMS.values() if isinstance(kind, type))
TYPED = ["trainer.steps=30", "--gap", "2", "--start", "4"]


def tokens_of(step=0, rows=3, time=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(13, (rows, time + 1), generator=generator)


def frozen(model, batches=3):
    """All norms frozen, after a few forward passes."""
    norms = make_removable(model.train()).values()
    with torch.no_grad():
        for step in range(batches):
            model(tokens_of(step)[:, :-1])
            for norm in norms:
                norm.step()
    for norm in norms:
        norm.frozen = True
        norm.unify_lengths()
    return model.eval()


def test_a_frozen_norm_is_its_formula_with_a_number_for_the_length():
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(2))
    for norm, centre in (("layernorm", 1.0), ("rmsnorm", 0.0), ("layernorm_1p", 1.0)):
        own = small.lively(compose([*SIZES, f"norm={norm}"]), 13, 0.25, drawn=False).final
        gain = own.gain if own.gain is not None else 1 + own.offset
        bias = 0 if own.bias is None else own.bias
        divisor = torch.tensor([3.0, 0.7, 0.7, 0.7, 0.7])[:, None]
        expected = gain * (x - centre * x.mean(-1, keepdim=True)) / divisor + bias
        removable = RemovableNorm(own)
        assert torch.equal(removable(x), own(x))
        removable.lengths, removable.frozen = torch.tensor([3.0, 0.7]), True
        assert torch.allclose(removable(x), expected, atol=1e-6)


def test_the_length_is_the_average_over_tokens_and_then_over_steps_the_first_token_apart():
    model = small.lively(compose([*SIZES, "norm=layernorm"]), 13, 0.25, drawn=False).train()
    final, inputs = make_removable(model)["final"], []
    model.final.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    for step in range(3):
        model(tokens_of(step)[:1, :-1])
        model(tokens_of(step)[1:2, :-1])  # accumulated, or run again: one step all the same
        final.step()
    model.eval()
    model(tokens_of(9)[:, :-1])  # an evaluation, which is not followed
    eps = model.config.norm.eps
    passes = [torch.cat(inputs[n : n + 2]) for n in (0, 2, 4)]
    each = [((x - x.mean(-1, keepdim=True)).square().mean(-1) + eps).sqrt() for x in passes]
    for place, part in ((0, slice(0, 1)), (1, slice(1, None))):
        one, two, three = (length[:, part].mean() for length in each)
        expected = 0.9 * (0.9 * one + 0.1 * two) + 0.1 * three
        assert final.lengths[place] == pytest.approx(expected.item(), rel=1e-5)


def test_norms_go_before_mlps_first_then_before_attention_and_before_the_head_last():
    order = FreezingOrder(norm_stages(build_model(compose(SIZES), 13)), start=4, gap=3)
    assert order.steps == {
        4: "blocks.0.mlp.pre",
        7: "blocks.1.mlp.pre",
        10: "blocks.0.attention.pre",
        13: "blocks.1.attention.pre",
        16: "final",
    }
    stages = {7: "mlp", 13: "attention", 16: "final", 19: "first token"}
    assert order.stages == {0: "before", **stages}


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("placement=sandwich", "attention.out (RMSNorm), mlp.out (RMSNorm)"),
        ("placement=post", "attention.post (RMSNorm)"),
        ("qk_norm=head", "attention.q (RMSNorm), attention.k (RMSNorm)"),
        ("embed=rmsnorm", "embed (RMSNorm)"),
        ("embed=fixnorm", "rows (L2Norm)"),
        ("norm=dyt", "mlp.pre (DyT)"),
        ("placement=geonorm", "here: final (RMSNorm, inside the last step of its connection);"),
        ("norm=none", "there is no norm in it"),
        ("placement=subln", "attention.ctx (RMSNorm), mlp.mid (RMSNorm)"),
        ("placement.equation='x + f(rmsnorm_np(x))'", "its own norms: attention.pre, mlp.pre"),
    ],
)
def test_a_norm_that_no_weight_can_take_in_is_named(typed, named):
    config = compose([*SIZES, typed])
    model = build_model(config, 13)
    own_norms = "placement.equation" in typed
    assert named in refused(*((compose_normless, config) if own_norms else (norm_stages,)), model)


FOLDED = [
    "norm=layernorm",
    "norm=rmsnorm",
    "norm=rmsnorm_bias architecture.bias=true",
    "norm=layernorm_1p mlp=swiglu",
    "norm=layernorm_np architecture.tied=false",
    "norm=rmsnorm placement=parallel",
    "norm=layernorm placement=parallel_two_norms model.kv_heads=1",
    "norm=layernorm placement=lns architecture.attention_gate=elementwise",
    "norm=layernorm placement=layerscale embed=none architecture.logit_cap=5",
    "preset=gpt2",
    "norm=rmsnorm final_norm=layernorm",
    "norm=layernorm final_norm=rmsnorm architecture.bias=[up]",
    "norm=rmsnorm architecture.attention_scale={learn:head,init:0.5} architecture.logit_scale=2",
]


@pytest.mark.parametrize("typed", FOLDED)
def test_the_folded_network_has_no_norm_and_gives_the_same_logits(typed):
    config = compose([*SIZES, *typed.split()])
    model = frozen(small.lively(config, 13, 0.25, drawn=False))
    without = fold_norms(model, compose_normless(config, model))
    assert not any(isinstance(module, (*KINDS, RemovableNorm)) for module in without.modules())
    tokens = tokens_of(7)[:, :-1]
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(tokens)
        assert (without(tokens) - wanted).abs().max() < 1e-12 * wanted.abs().max()
        assert (wanted.std(-1) > 0.01).all()  # logits that say something


def test_a_subclass_of_a_norm_may_compute_anything_and_is_not_taken_for_it():
    model = build_model(compose([*SIZES, "norm=rmsnorm"]), 13)

    class Mine(RMSNorm):
        def forward(self, x):
            return x

    model.final.__class__ = Mine
    with pytest.raises(ValueError, match=r"final \(Mine\)"):
        norm_stages(model)


def tuned(remove, steps=14, norm="layernorm"):
    config = combined(
        *SIZES, f"trainer.steps={steps}", "schedule.warmup=2", "trainer.probe_every=0", norm=norm
    )
    model = build_model(config, 13)
    validation = [tokens_of(99)]
    trainer = build_trainer(config, model, tokens_of, lambda: validation)
    order = FreezingOrder(norm_stages(model), 3, 1)
    timetable = remove_in_order(order, model) if remove else stay(order.stages)
    return tune(trainer, timetable, "", tell_nobody)


def test_a_loss_that_stays_above_the_first_one_is_measured_and_no_divergence():
    config = combined(*SIZES, "trainer.steps=120", "schedule.warmup=2", "optimizer.lr=0.3")
    model, easy = build_model(config, 13), torch.zeros(3, 9, dtype=torch.long)
    with torch.no_grad():
        for _ in range(2):
            model.embedding.weight[0] += 1  # the first batch is one that it knows
    batches = lambda step: easy if step == 0 else tokens_of(step)  # noqa: E731
    trainer = build_trainer(config, model, batches, lambda: [tokens_of(99)])
    removal = remove_in_order(FreezingOrder(norm_stages(model), 3, 1), model)
    tuning = tune(trainer, removal, "", tell_nobody)
    assert min(tuning.training[1:]) > tuning.training[0]
    assert tuning.diverged == ""
    assert len(tuning.training) == 120


def test_the_sentence_of_a_gap_has_students_interval_unless_a_seed_diverged():
    rows = [{"model": "pre", "seed": n, "gap": gap} for n, gap in enumerate((0.05, 0.07, 0.09))]
    half = 4.302652729911275 * 0.02 / 3**0.5  # t of 2 degrees at 97.5 %
    expected = f"95 % interval {0.07 - half:+.3f} to {0.07 + half:+.3f}, 3 seeds"
    assert gap_sentences(rows) == [f"pre: +0.070 nats against the control ({expected})"]
    ended = {"model": "pre", "diverged": "folded: the loss is nan at step 9"}
    assert gap_sentences([ended] * 2) == ["pre: 2 of 2 seeds diverged"]
    assert gap_sentences([ended, *rows[:1]]) == ["pre: 1 of 2 seeds diverged; the others +0.050"]


def test_the_removal_is_the_control_up_to_its_first_norm():
    """test_swap.py holds the control against plain training."""
    control, removed = tuned(remove=False), tuned(remove=True)
    assert removed.training[:3] == control.training[:3]
    pairs = zip(removed.training[3:], control.training[3:], strict=True)
    assert all(one != other for one, other in pairs)
    assert removed.validation["before"] == control.validation["before"]
    assert [*removed.validation][:2] == ["before", "at once"]
    assert [*control.validation] == "before|mlp|attention|final|first token|tuned".split("|")


def run_of(seed):
    return small.run_of("study=pair", "norm=layernorm", f"seed={seed}")


def test_the_command_shows_each_stage_and_leaves_a_model_without_norms(capsys, tmp_path):
    folder = tmp_path
    assert main([str(run_of(0)), *TYPED, "--out", f"{folder}/o", "--save", f"{folder}/s"]) == 0
    out = capsys.readouterr().out.splitlines()
    rows = read_rows((folder / "o/norm_removal.csv").read_text())
    (end,) = of_kind(rows, "model")
    assert (end["model"], end["seed"]) == ("layernorm pre", 0)
    assert end["gap"] == end["tuned"] - end["control"]
    assert end["rounding"] < 1e-13
    stages = "before, at once, mlp, attention, final, first token, tuned".split(", ")
    assert {row["stage"]: row["step"] for row in of_kind(rows, "stage")} == dict(
        zip(stages, (0, 4, 8, 14, 16, 18, 30), strict=True)
    )
    files = json.loads(out[-1])["files"]
    (saved,) = [path for path in files if "folded" in path]
    (step,) = (Path(saved) / "checkpoints").iterdir()
    assert verify(step).extra == {"folded_from": run_of(0).name}
    text = (folder / "o/norm_removal.md").read_text()
    assert run_of(0).name in text
    assert "- tuned on " in text
    model = load(saved)
    assert not any(isinstance(module, KINDS) for module in model.modules())
    assert OmegaConf.load(f"{saved}/config.yaml").norm.type == "none"


def test_ctrl_c_in_the_second_run_keeps_the_first_and_is_a_line(capsys, tmp_path, monkeypatch):
    runs = [str(run_of(seed)) for seed in (0, 1)]
    trainer = Tunable.trainer

    def interrupted(self, *given):
        if self.config.seed == 1:
            raise KeyboardInterrupt
        return trainer(self, *given)

    monkeypatch.setattr(Tunable, "trainer", interrupted)
    assert main([*runs, *TYPED, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "stopped; finished runs are written"
    rows = read_rows((tmp_path / "norm_removal.csv").read_text())
    assert {row["seed"] for row in rows} == {0}
    assert run_of(0).name in (tmp_path / "norm_removal.md").read_text()
    assert (tmp_path / "norm_removal.svg").is_file()


def test_tuning_reads_on_where_the_run_stopped():
    """A batch of 64 that was not read whole is left. test_swap.py has a batch of the run's size."""
    tunable = load_tunable(run_of(0), ["trainer.steps=30", "trainer.batch_size=64"])
    own = Batches(tunable.train, 8, 64, tunable.config.data.seed)
    read = tunable.trainer(tunable.model, tunable.config).batches
    assert all(torch.equal(read(step), own(1 + step)) for step in range(3))
    assert tunable.config.optimizer.lr == pytest.approx(compose(SIZES).optimizer.lr / 3)
