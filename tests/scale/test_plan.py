"""The figures of transformer_norms.plan agree with closed forms and torch's own counters."""

import json
import re

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms import build_model, compose
from transformer_norms.plan.__main__ import main
from transformer_norms.plan.plans import divide_step
from transformer_norms.plan.rehearsal import Stage

TINY = ("preset=gpt2", "model=nano", "tracking=none")
GPT2 = ("preset=gpt2", "model=124m", "tokenizer=gpt2")


def planned(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_gpt2s_parameters_and_flops_are_those_of_its_sizes():
    d, t, v, n = 768, 1024, 50257, 12
    block = 12 * d * d + 13 * d  # q, k, v, output and mlp; their biases, two norms of 2 d
    numbers = Stage(compose(GPT2), v).numbers()
    assert sum(numbers.values()) == v * d + t * d + n * block + 2 * d == 124_439_808
    d, t, v, n = 64, 32, 61, 2
    weights, pairs = 12 * n * d * d + v * d, n * 2 * t * d
    assert Stage(compose(TINY), v).flops_per_token() == (3 * 2 * (weights + pairs), 0)


@pytest.mark.parametrize(
    "variant",
    [
        "placement=pre",
        "placement=hybrid mlp=swiglu model.kv_heads=2",
        "placement=residual_dual norm=layernorm trainer.activation_checkpointing=true",
        "preset=gpt2 placement=ngpt norm=l2norm",
    ],
)
def test_flops_of_a_token_are_torchs_count_of_a_real_forward_and_backward_pass(variant):
    config = compose(["model=nano", "tracking=none", *variant.split()])
    model, context = build_model(config, 61), config.model.context
    tokens = torch.zeros(3, context, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    # The kernel that is made of matrix products: its backward pass computes nothing again.
    with sdpa_kernel(SDPBackend.MATH), counter:
        model(tokens).sum().backward()
    flops, _ = Stage(config, 61).flops_per_token()
    # A norm's gain may have its gradient from a product of its own, which is none of the model's.
    assert flops == pytest.approx(counter.get_total_flops() / tokens.numel(), rel=2e-3)


def test_what_is_computed_once_more_is_torchs_count_with_checkpointing_less_that_without():
    counts, typed = [], ["model=nano", "tracking=none", "placement=post", "norm=layernorm"]
    for on in ("false", "true"):
        stage = Stage(compose([*typed, f"trainer.activation_checkpointing={on}"]), 61)
        counter = FlopCounterMode(display=False)
        with stage.mode, sdpa_kernel(SDPBackend.MATH), counter:
            stage.loss.backward(torch.zeros(2, 33, dtype=torch.long), 1)
        counts.append(counter.get_total_flops() / 2 / stage.config.model.context)
    flops, again = stage.flops_per_token()
    assert counts == [flops, flops + again]


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 8, 20, 64])
def test_a_tree_of_gradients_holds_one_set_for_each_half_that_waits(micro_batches):
    def most(parts):  # sets while a branch is added, its result included
        return 1 if parts == 1 else max(most(parts // 2), 1 + most(parts - parts // 2))

    sizes = ("model=nano", "tracking=none", f"trainer.batch_size={micro_batches}")
    config = compose([*sizes, f"trainer.accumulation={micro_batches}"])
    assert divide_step(config).sets == most(micro_batches)


def test_the_sheet_of_a_small_model_counts_in_mib(capsys):
    assert main([*TINY, "--vocab", "64"]) == 0
    sheet = " ".join(capsys.readouterr().out.split())
    (count,) = re.findall(r"\bparameters ([\d,]+)", sheet)
    assert f" weights {4 * int(count.replace(',', '')) / 2**20:.2f} " in sheet
    assert " MiB of a device, " in sheet


def test_a_sweeps_total_is_its_runs_tokens_and_flops(capsys):
    sweep = ("-m", "norm=layernorm,rmsnorm", "seed=0,1,2", "model=nano", "trainer.steps=10")
    plan = planned(capsys, *sweep, "--accelerator", "H100 SXM")
    (stage,) = plan["stages"].values()
    (flops,) = {run["flops_per_token"] for run in plan["runs"].values()}
    assert (stage["runs"], stage["tokens"]) == (6, 6 * 10 * 16 * 32)
    assert stage["flops"] == stage["tokens"] * flops


def test_tuning_is_a_stage_of_its_own_with_the_points_around_the_best(capsys):
    plan = planned(capsys, "sweep=placements", "placement=pre,post", "seed=0,1,2")
    runs = {name: stage["runs"] for name, stage in plan["stages"].items()}
    tuning = 2 * (5 + 2) * 2  # variants, points and their refinement, seeds
    assert runs == {"tuning": tuning, "results": 2 * 3, "all": tuning + 2 * 3}


def test_a_model_typed_beside_a_sweep_is_planned_and_said(capsys):
    arguments = ["model=nano", "norm=rmsnorm,layernorm", "sweep=norms"]
    runs = planned(capsys, *arguments)["runs"]
    assert runs["rmsnorm"]["parameters"] == planned(capsys, "model=nano")["parameters"]
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "model=nano is in the place of this sweep's" in said
    assert "that failed, adds at most 14 runs of tuning to a variant" in said


WRONG = [
    (("--accelerator", "H100 SXN"), "did you mean 'H100 SXM'?"),
    (("norm=rmsnrm",), "did you mean 'rmsnorm'?"),
    (("--vocab", "0"), "at least 1"),
    (("sweep=placement_124m",), "did you mean 'placements_124m'?"),
    (("trainer.replicas=3",), "they cannot share 16 sequences"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_a_wrong_plan_is_answered_in_one_line(capsys, arguments, said):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(("name", "fits"), [("L4", "does NOT fit into"), ("H100 SXM", "fits into")])
def test_a_plan_says_whether_a_run_fits_into_an_accelerator(capsys, name, fits):
    typed = [*GPT2, "trainer.batch_size=96", "trainer.precision=bf16"]
    assert main([*typed, "--accelerator", name]) == 0
    assert f"GiB {fits} " in capsys.readouterr().out
