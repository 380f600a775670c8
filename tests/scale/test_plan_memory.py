"""The memory that a plan says, against what torch's allocator and the kernel say of real steps."""

import pytest
import torch
from new_process import run_python
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.plan.plans import divide_step, memory_of
from transformer_norms.plan.rehearsal import Stage

VOCABULARY = 97
TINY = ("model=nano", "model.depth=3", "trainer.batch_size=8", "tracking=none")
UNWATCHED, LONG = "trainer.probe_every=0", ["model.context=256"]
NIGHTLY = pytest.mark.nightly


def planned(typed, vocab_size, device="auto"):
    """The bytes that a plan says, without what is assumed for the rest."""
    config = compose(typed, device)
    memory = memory_of(Stage(config, vocab_size), divide_step(config))
    return memory.peak - memory.rest


def trainer_of(typed, vocab_size):
    config = compose(typed)
    shape = (config.trainer.batch_size, config.model.context + 1)
    batch = torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))
    model = build_model(config, vocab_size)
    replicas = 1 if config.trainer.replicas == "auto" else config.trainer.replicas
    return build_trainer(config, model, lambda step: batch, lambda: (), replicas)


def allocated(work):
    """The most bytes that torch's allocator had given out while `work` ran, above those before."""
    totals = []

    def read(events):
        for event in events:
            if event.tag == _EventType.Allocation:
                fields = event.extra_fields
                totals.append((event.start_time_ns, fields.total_allocated, fields.alloc_size))
            read(event.children)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    read(profiler.profiler.kineto_results.experimental_event_tree())
    _, total, size = min(totals)
    return max(total for _, total, _ in totals) - (total - size)


def held(trainer):
    """The bytes of weights, buffers and moments, which are there before a step."""
    moments = [t for o in trainer.optimizers for state in o.state.values() for t in state.values()]
    return sum(t.nbytes for t in (*trainer.parameters, *trainer.model.buffers(), *moments))


LATENT = "architecture.q_rank=24 architecture.kv_rank=12 architecture.rope_dim=8"
LATENT += " architecture.value_dim=20"
STEPS = [
    "trainer.accumulation=8 preset=gpt2",
    f"placement=hyper_connections {LATENT}",
    "optimizer=muon placement=ngpt model.width=128",
]
MORE = [
    "trainer.activation_checkpointing=true mlp=swiglu model.context=128",
    "placement=hybrid",
    "trainer.precision=bf16 placement=qk_cap",
    "trainer.precision=fp64 placement=residual_dual norm=dyt",
    "trainer.accumulation=4 placement=mixln norm=seednorm optimizer=muon",
    "preset=deepseek_v3 attention=sinks",
    f"trainer.precision=bf16 {LATENT}",
    f"optimizer=muon placement=mhc {LATENT}",
    *(f"placement={name}" for name in ("altup", "laurel", "gemma3n", "siamese")),
    "trainer.activation_checkpointing=true placement=attention_residuals",
]


@pytest.mark.parametrize("typed", [*STEPS, *(pytest.param(t, marks=NIGHTLY) for t in MORE)])
def test_a_plans_memory_is_what_torch_allocates_in_a_step(typed):
    typed = (*TINY, UNWATCHED, *typed.split())
    trainer = trainer_of(typed, VOCABULARY)
    trainer.train_step()
    measured = allocated(trainer.train_step) + held(trainer)
    assert planned(typed, VOCABULARY) == pytest.approx(measured, rel=0.02)


SIZES = [
    "model.width=256 model.depth=12 trainer.batch_size=8",
    "model.width=256 model.depth=4 preset=gpt2",
    "model.width=512 model.depth=8 trainer.batch_size=2 optimizer=muon",
    "model.width=256 model.depth=12 trainer.batch_size=8 trainer.replicas=2 trainer.accumulation=4",
]
MEASURED = """
import sys
import torch
from fresh import highest, reset
from test_plan_memory import trainer_of
vocab_size, *typed = sys.argv[1:]
torch.set_num_threads(1)
# A first step loads late imports, threads and their buffers, which are not a part of a model.
trainer_of(["model=nano", "tracking=none"], 97).train_step()
before = reset()
trainer = trainer_of(typed, int(vocab_size))
for _ in range(3):
    trainer.train_step()
print(highest() - before)
"""


@NIGHTLY
@pytest.mark.parametrize("typed", SIZES)
def test_a_plans_memory_is_that_of_a_process_that_trains(typed, monkeypatch):
    """The kernel counts what the process holds. The C library gives freed memory back at once, as
    an allocator of a GPU would reuse it: by default it holds up to a half more."""
    for name, size in (
        ("MMAP_THRESHOLD", 1 << 16),
        ("TRIM_THRESHOLD", 1 << 16),
        ("MMAP_MAX", 10**6),
    ):
        monkeypatch.setenv(f"MALLOC_{name}_", str(size))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    vocab_size = 50257 if "preset=gpt2" in typed else 257
    typed = (*typed.split(), *LONG, UNWATCHED, "tracking=none")
    measured = int(run_python(MEASURED, vocab_size, *typed).split()[-1])
    assert measured > 2**28
    assert planned(typed, vocab_size) == pytest.approx(measured, rel=0.1)


@NIGHTLY
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("more", [(), ("trainer.precision=bf16",), ("placement=qk_cap",)])
def test_a_plans_memory_is_what_a_gpu_allocates(more):
    for typed in SIZES[:3]:  # the last has replicas, which are for a CPU
        typed = (*typed.split(), *LONG, UNWATCHED, "tracking=none", "trainer.device=cuda", *more)
        trainer = trainer_of(typed, 50257)
        trainer.train_step()
        torch.cuda.reset_peak_memory_stats()
        trainer.train_step()
        measured = torch.cuda.max_memory_allocated()
        assert planned(typed, 50257, "cuda") == pytest.approx(measured, rel=0.1)
        del trainer
        torch.cuda.empty_cache()
