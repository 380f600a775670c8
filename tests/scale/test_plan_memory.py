"""The memory that a plan says, against what torch's allocator and the kernel say of real steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.plan.plans import divide_step, memory_of
from transformer_norms.plan.rehearsal import Stage

VOCABULARY = 97
TINY = ("model=nano", "model.depth=3", "trainer.batch_size=8", "tracking=none")
UNWATCHED = "trainer.probe_every=0"
MEASURED = Path(__file__).with_name("measured_memory.py")


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
    tensors = [*trainer.parameters, *trainer.model.buffers(), *moments]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


LATENT = ("architecture.q_rank=24", "architecture.kv_rank=12", "architecture.rope_dim=8",
          "architecture.value_dim=20")  # fmt: skip
STEPS = [
    ("trainer.accumulation=8", "preset=gpt2"),
    ("placement=hyper_connections", *LATENT),
    ("optimizer=muon", "placement=ngpt", "model.width=128"),
]
MORE = [
    ("trainer.activation_checkpointing=true", "mlp=swiglu", "model.context=128"),
    ("placement=hybrid",),
    ("trainer.precision=bf16", "placement=qk_cap"),
    ("trainer.precision=fp64", "placement=residual_dual", "norm=dyt"),
    ("trainer.accumulation=4", "placement=mixln", "norm=seednorm", "optimizer=muon"),
    ("preset=deepseek_v3", "attention=sinks"),
    ("trainer.precision=bf16", *LATENT),
    ("optimizer=muon", "placement=mhc", *LATENT),
    *((f"placement={name}",) for name in ("altup", "laurel", "gemma3n", "siamese")),
    ("trainer.activation_checkpointing=true", "placement=attention_residuals"),
]


@pytest.mark.parametrize(
    "typed",
    [*STEPS, *(pytest.param(typed, marks=pytest.mark.nightly) for typed in MORE)],
    ids=" ".join,
)
def test_a_plans_memory_is_what_torch_allocates_in_a_step(typed):
    typed = (*TINY, UNWATCHED, *typed)
    trainer = trainer_of(typed, VOCABULARY)
    trainer.train_step()
    measured = allocated(trainer.train_step) + held(trainer)
    assert planned(typed, VOCABULARY) == pytest.approx(measured, rel=0.02)


SIZES = [
    ("model.depth=12", "model.width=256", "model.context=256", "trainer.batch_size=8"),
    ("preset=gpt2", "model.depth=4", "model.width=256", "model.context=256"),
    ("model.depth=8", "model.width=512", "model.context=256", "trainer.batch_size=2",
     "optimizer=muon"),
    ("trainer.replicas=2", "model.depth=12", "model.width=256", "model.context=256",
     "trainer.batch_size=8", "trainer.accumulation=4"),
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("typed", SIZES, ids=["12-256", "gpt2 4-256", "muon 8-512", "replicas"])
def test_a_plans_memory_is_that_of_a_process_that_trains(typed):
    """The kernel counts what the process holds. The C library gives freed memory back at once, as
    an allocator of a GPU would reuse it: by default it holds up to a half more."""
    typed = (*typed, UNWATCHED, "tracking=none")
    vocab_size = 50257 if "preset=gpt2" in typed else 257
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, MEASURED, str(vocab_size), *typed],
        env={**os.environ, **environment, "MALLOC_MMAP_MAX_": "1000000", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured > 2**28
    assert planned(typed, vocab_size) == pytest.approx(measured, rel=0.1)


@pytest.mark.nightly
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("more", [(), ("trainer.precision=bf16",), ("placement=qk_cap",)])
def test_a_plans_memory_is_what_a_gpu_allocates(more):
    for typed in SIZES[:3]:  # the last has replicas, which are for a CPU
        typed = (*typed, UNWATCHED, "tracking=none", "trainer.device=cuda", *more)
        trainer = trainer_of(typed, 50257)
        trainer.train_step()
        torch.cuda.reset_peak_memory_stats()
        trainer.train_step()
        measured = torch.cuda.max_memory_allocated()
        assert planned(typed, 50257, "cuda") == pytest.approx(measured, rel=0.1)
        del trainer
        torch.cuda.empty_cache()
