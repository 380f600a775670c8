"""parallel=fsdp: ranks with a shard of each weight compute what one process computes."""

import math
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from rank_workers import on_ranks
from sharded import batch_of, config_of, cut_short, distance, first_gradients, in_shards, steps
from short_runs import here, rows  # noqa: F401
from test_ranks_everything import folder_of, go_through, train_calm
from torch import distributed

from transformer_norms import load
from transformer_norms.commands.sample import main as sample
from transformer_norms.names import distinct_norms, options
from transformer_norms.run import checkpoint
from transformer_norms.training.parallel.ranks import ALONE

# A difference may be so large, in units of the tensor's largest number (sharded.py has details).
LIMITS = {"fp64": 1e-12, "fp32": 1e-6}
FEW = [
    ["preset=gpt2"],
    ["placement=rezero", "architecture.tied=false"],
    ["placement=hyper_connections", "architecture.q_rank=7", "architecture.kv_rank=5"],
]
CONSTRAINED = ["placement=ngpt", "final_norm=rmsnorm", "optimizer=muon"]
VARIANTS = [f"placement={name}" for name in options("placement")]
VARIANTS += [f"norm={name}" for name in distinct_norms() if name not in ("none", "batchnorm")]
VARIANTS += [f"attention={name}" for name in options("attention")]
VARIANTS += ["architecture.attention_gate=elementwise", "architecture.value_residual=0.5"]
VARIANTS += ["architecture.value_embedding=3", "architecture.kv_rank=7"]
VARIANTS += ["architecture.kv_from_block=0", "model.head_dim=2+2*i", "architecture.smear=4"]
TIED = ["architecture.tied=true", "trainer.activation_checkpointing=true"]
KINDS = [TIED, ["architecture.tied=false"]]
LATENTS = ["architecture.q_rank=9", "architecture.rope_dim=4", "architecture.value_dim=5"]
# The width here is not a multiple of 4.
FITTING = {"norm=group_rmsnorm": ["norm.groups=2"], "architecture.kv_rank=7": LATENTS}
EVERY = [[variant, *FITTING.get(variant, []), *kind] for variant in VARIANTS for kind in KINDS]
COMPILED = """placement=pre
placement=residual_dual trainer.activation_checkpointing=true
placement=mhc architecture.kv_rank=7 architecture.q_rank=9"""
EVERY += [["trainer.compile=block", *line.split()] for line in COMPILED.splitlines()]
TRAINED = "preset=gpt2 placement=ngpt placement=mixln norm=seednorm norm=gatednorm placement=mhc"
STEPS = [
    [variant, f"optimizer={optimizer}", *more]
    for variant in (*TRAINED.split(), "architecture.kv_rank=7")
    for optimizer in ("adamw", "muon")
    for more in ([], ["trainer.accumulation=4"])
]
# A weight of equal streams before a norm has a gradient of zero but for rounding, which AdamW then
# enlarges. The gradient of GeoNorm's angle nearly cancels.
NOTHING = 1e-20  # the norm of a gradient that is zero but for rounding
CANCELS = "blocks.0.attention.connection."


class Seen(NamedTuple):
    """All ranks saw these differences of (precision, typed) in gradients and in steps. Some weights
    of the variants `cancel`."""

    gradients: list
    steps: list
    cut: dict
    cancel: str = "no weight"


def see(count, precisions, cases, trained, **more):
    groups = [(p, typed) for p in precisions for typed in cases], [("fp64", t) for t in trained]
    configs = [[config_of(*t, f"trainer.precision={p}") for p, t in group] for group in groups]
    (*found, cut), *others = on_ranks(count, work, *configs)
    assert all(other == [*found, cut] for other in map(list, others))
    seen = (list(zip(*pair, strict=True)) for pair in zip(groups, found, strict=True))
    return Seen(*seen, cut, **more)


def work(ranks, gradients, trained):
    return first_gradients(ranks, gradients), steps(ranks, trained), cut_short(ranks, gradients[0])


@pytest.fixture(scope="module")
def quick():
    return see(2, ["fp64"], FEW, [CONSTRAINED])


nightly = [pytest.param(count, marks=pytest.mark.nightly) for count in (2, 4)]


@pytest.fixture(scope="module", params=[None, *nightly])
def seen(request):
    if request.param is None:
        return request.getfixturevalue("quick")
    return see(request.param, LIMITS, EVERY, STEPS, cancel=CANCELS)


def test_the_start_is_that_of_one_process(seen):
    for (precision, typed), case in seen.gradients:
        assert case["sharded"], typed
        assert case["buffers"], typed
        # A constraint divides by lengths, which are sums over the ranks.
        assert case["start"] <= (LIMITS[precision] if "placement=ngpt" in typed else 0), typed


@pytest.mark.goal("A4")
def test_a_loss_and_every_gradient_are_those_of_one_process(seen):
    beyond = {}
    for (precision, typed), case in seen.gradients:
        assert len(case["gradients"]) > 10
        distances, limit = {"loss": case["loss"], **case["gradients"]}, LIMITS[precision]
        beyond |= {
            (precision, *typed, name): far
            for name, far in distances.items()
            if not far <= (10 * limit if seen.cancel in name else limit)
            and not case["roundings"].get(name, math.inf) <= 2
        }
    assert beyond == {}


@pytest.mark.goal("A4")
def test_steps_probes_and_evaluations_are_those_of_one_process(seen):
    for (_, typed), case in seen.steps:
        assert max(case["losses"], case["norm"], case["nats"]) < 1e-12, typed
        far = {name: value for name, value in case["tensors"].items() if seen.cancel not in name}
        assert max(far.values()) < 1e-9, typed
        assert case["tokens"], typed
        probed = [pair for step in case["probed"] for pair in step.items()]
        assert [(name, two) for name, two in probed if max(map(abs, two)) > NOTHING] == [], typed


def test_a_signal_to_one_rank_ends_a_step_of_all_after_the_same_micro_batch(quick):
    assert quick.cut == {"computed": 3, "of": 4, "as_before": True, "gradients": 0}


ONE, DDP, TWO, FOUR = ("none", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 4)


@pytest.mark.nightly
@pytest.mark.goal("R6")
@pytest.mark.parametrize("stages", [(TWO, ONE, FOUR), (ONE, TWO, DDP), (FOUR, TWO)], ids=str)
def test_a_run_goes_on_with_shards_and_without(stages, here):  # noqa: F811
    precise = "trainer.precision=fp64", "optimizer=muon"
    calm = train_calm(*precise)
    go_through(stages, *precise)
    rough = folder_of("rough")
    for one, other in zip(rows(calm), rows(rough), strict=True):
        assert other == pytest.approx(one, rel=1e-8)
    expected = load(calm).state_dict()
    for name, tensor in load(rough).state_dict().items():
        assert distance(tensor, expected[name]) < 1e-8
    assert sample([str(rough), "--prompt", "a", "--tokens", "3"]) == 0


# One format: what any number of ranks saves, any number loads, byte for byte.

NAMES = ("average", "snapshots", "model", "optimizer")
# Some tensors have fewer rows than ranks: a number at each sub-layer.
TYPED = ("placement=rezero", "optimizer=muon", "architecture.bias=true")
TYPED += ("trainer.average={type: window, count: 2, every: 1}",)


def trainer_on(ranks, *typed):
    return in_shards(ranks, config_of(*TYPED, *typed))


def save(folder, step, trainer):
    state = trainer.state()
    checkpoint.save(folder, "0123456789abcdef", step, trainer.tensors(), state, {}, keep=9)


def hand_on(ranks, folder, source, target):
    """Loads one step and saves it as another, after an evaluation, which gathers weights."""
    trainer = trainer_on(ranks, "seed=7")
    saved = checkpoint.verify(folder / f"step-{source:08d}")
    with ExitStack() as opened:
        files = {name: opened.enter_context(saved.open(name)) for name in NAMES}
        trainer.restore(saved.state, files)
    trainer.evaluate_average([batch_of(3)])
    if ranks.rank == 0:
        save(folder, target, trainer)
    else:
        checkpoint.follow(trainer.tensors())
    if ranks.count > 1:
        distributed.barrier()


@pytest.mark.nightly
def test_one_process_and_2_and_3_ranks_hand_on_one_checkpoint_byte_for_byte(tmp_path):
    trainer = trainer_on(ALONE)
    assert [trainer.train_step() for _ in range(2)] == [None, None]
    save(tmp_path, 1, trainer)
    hand_on(ALONE, tmp_path, 1, 2)
    on_ranks(3, hand_on, tmp_path, 2, 3)
    on_ranks(2, hand_on, tmp_path, 3, 4)
    hand_on(ALONE, tmp_path, 4, 5)
    for name in NAMES:
        files = sorted(tmp_path.glob(f"step-*/{name}.safetensors"))
        assert (len(files), len({file.read_bytes() for file in files})) == (5, 1), name
