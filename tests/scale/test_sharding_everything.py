"""Nightly: shards on 2 and 4 ranks compute what one process computes, for every placement and every
norm but batchnorm."""

import json
import math
import signal

import pytest
from rank_workers import on_ranks
from sharded import config_of, distance, first_gradients, steps
from short_runs import here, rows  # noqa: F401
from test_ranks_everything import folder_of, saved, start, wait_for

from transformer_norms import load
from transformer_norms.names import distinct_norms, options
from transformer_norms.sample import main as sample

pytestmark = pytest.mark.nightly

# A difference may be so large, in units of the tensor's largest number (sharded.py has details).
LIMITS = {"fp64": 1e-12, "fp32": 1e-6}
VARIANTS = [f"placement={name}" for name in options("placement")]
VARIANTS += [f"norm={name}" for name in distinct_norms() if name not in ("none", "batchnorm")]
VARIANTS += [f"attention={name}" for name in options("attention")]
VARIANTS += ["architecture.attention_gate=elementwise", "architecture.value_residual=0.5"]
VARIANTS += ["architecture.value_embedding=3", "architecture.kv_rank=7"]
VARIANTS += ["architecture.kv_from_block=0", "model.head_dim=2+2*i", "architecture.smear=4"]
KINDS = [
    ["architecture.tied=true", "trainer.activation_checkpointing=true"],
    ["architecture.tied=false"],
]
FITTING = {
    "norm=group_rmsnorm": ["norm.groups=2"],  # the width here is no multiple of 4
    "architecture.kv_rank=7": [
        "architecture.q_rank=9", "architecture.rope_dim=4", "architecture.value_dim=5"
    ],
}  # fmt: skip
EVERY = [[variant, *FITTING.get(variant, []), *kind] for variant in VARIANTS for kind in KINDS]
COMPILED = [
    [f"placement={name}", "trainer.compile=block", *more]
    for name, *more in (
        ("pre",),
        ("residual_dual", "trainer.activation_checkpointing=true"),
        ("mhc", "architecture.kv_rank=7", "architecture.q_rank=9"),
    )
]
STEPS = [
    [variant, f"optimizer={optimizer}", *more]
    for variant in (
        "preset=gpt2",
        "placement=ngpt",
        "placement=mixln",
        "norm=seednorm",
        "norm=gatednorm",
        "placement=mhc",
        "architecture.kv_rank=7",
    )
    for optimizer in ("adamw", "muon")
    for more in ([], ["trainer.accumulation=4"])
]


# What weighs equal streams before a norm has a gradient that cancels but for rounding, which AdamW
# then enlarges; that of GeoNorm's angle nearly cancels.
NOTHING = 1e-20  # the norm of a gradient that is zero but for rounding
CANCELS = "blocks.0.attention.connection."


def of(precision, cases):
    return [[*typed, f"trainer.precision={precision}"] for typed in cases]


def work(ranks, gradients, trained):
    return first_gradients(ranks, gradients), steps(ranks, trained)


def configs(cases):
    return [config_of(*typed) for typed in cases]


@pytest.fixture(scope="module", params=[2, 4])
def seen(request):
    """Returns what every rank saw alike: {precision: [(case, gradients)]}, steps."""
    cases = {precision: of(precision, EVERY + COMPILED) for precision in LIMITS}
    trained = of("fp64", STEPS)
    every = [typed for group in cases.values() for typed in group]
    first, *others = on_ranks(request.param, work, configs(every), configs(trained))
    assert all(other == first for other in others)
    gradients = iter(first[0])
    by_precision = {
        precision: [(typed, next(gradients)) for typed in group]
        for precision, group in cases.items()
    }
    return by_precision, list(zip(trained, first[1], strict=True))


@pytest.mark.parametrize("precision", LIMITS)
def test_the_start_is_that_of_one_process(seen, precision):
    for typed, case in seen[0][precision]:
        assert case["sharded"], typed
        assert case["buffers"], typed
        # A constraint divides by lengths, which are sums over the ranks.
        limit = LIMITS[precision] if "placement=ngpt" in typed else 0
        assert case["start"] <= limit, typed


@pytest.mark.goal("A4")
@pytest.mark.parametrize("precision", LIMITS)
def test_every_loss_and_gradient_is_that_of_one_process(seen, precision):
    limit, beyond = LIMITS[precision], {}
    for typed, case in seen[0][precision]:
        distances = {"loss": case["loss"], **case["gradients"]}
        beyond |= {
            (*typed, name): far
            for name, far in distances.items()
            if not far <= (10 * limit if CANCELS in name else limit)
            and not case["roundings"].get(name, math.inf) <= 2
        }
    assert beyond == {}


def test_steps_probes_and_evaluations_are_those_of_one_process(seen):
    for typed, case in seen[1]:
        assert max(case["losses"], case["norm"], case["nats"]) < 1e-12, typed
        far = {name: value for name, value in case["tensors"].items() if CANCELS not in name}
        assert max(far.values()) < 1e-9, typed
        assert case["tokens"], typed
        probed = [
            {name: pair for name, pair in step.items() if max(map(abs, pair)) > NOTHING}
            for step in case["probed"]
        ]
        assert probed == [{}, {}, {}], typed


# ------------------------------------------------------------------------- torchrun

ONE, DDP, TWO, FOUR = ("none", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 4)


def finish(job):
    out, err = job.communicate()
    assert job.returncode == 0, err


@pytest.mark.goal("R6")
@pytest.mark.parametrize("stages", [(TWO, ONE, FOUR), (ONE, TWO, DDP), (FOUR, TWO)], ids=str)
def test_a_run_goes_on_with_shards_and_without(stages):
    precise = "trainer.precision=fp64", "optimizer=muon"
    finish(start(1, "calm", *precise))
    beyond = 0
    for parallel, count in stages[:-1]:
        job = start(count, "rough", f"parallel={parallel}", *precise)
        wait_for(job, lambda beyond=beyond: saved("rough", beyond))
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate()
        summary = json.loads((folder_of("rough") / "summary.json").read_text())
        found = summary["status"], summary["parallel"], summary["ranks"]
        assert found == ("preempted", parallel, count), err
        beyond = summary["step"]
    parallel, count = stages[-1]
    finish(start(count, "rough", f"parallel={parallel}", *precise))
    calm, rough = folder_of("calm"), folder_of("rough")
    for one, other in zip(rows(calm), rows(rough), strict=True):
        assert other == pytest.approx(one, rel=1e-8)
    expected = load(calm).state_dict()
    for name, tensor in load(rough).state_dict().items():
        assert distance(tensor, expected[name]) < 1e-8
    assert sample([str(rough), "--prompt", "a", "--tokens", "3"]) == 0
