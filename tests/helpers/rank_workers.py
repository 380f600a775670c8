"""Functions for tests that several processes run together, and the processes themselves."""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch._dynamo  # ranks share what is imported here
import torch.distributed as distributed
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.multiprocessing as multiprocessing
from warm import forking

from transformer_norms import compose
from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.training.parallel.ranks import ALONE, Ranks

ROOT = Path(__file__).parents[2]
VOCABULARY = 31
SIZES = "model=nano model.width=16 model.depth=3 model.heads=2 model.context=16".split()
SIZES += "trainer.batch_size=16 trainer.probe_every=0 trainer.device=cpu schedule.warmup=2".split()


def on_ranks(count, work, *arguments):
    """Returns what work(ranks, *arguments) returns on each of `count` gloo ranks. These are forked
    from a process that has imported this module."""
    forking()
    with tempfile.TemporaryDirectory() as folder:
        given = (count, folder, work, arguments)
        multiprocessing.start_processes(_run, given, nprocs=count, start_method="forkserver")
        # Written by the processes above.
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(count)]


def _run(rank, count, folder, work, arguments):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count
    )
    torch.save(work(Ranks(rank, count), *arguments), f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def batches(step, rows=16, time=17, vocabulary=VOCABULARY):
    return torch.randint(vocabulary, (rows, time), generator=torch.Generator().manual_seed(step))


def trainer_of(ranks, typed, replicas=1):
    keys = {text.partition("=")[0] for text in typed}
    usual = [text for text in SIZES if text.partition("=")[0] not in keys]
    config = compose([*usual, *typed])
    model = build_model(config, VOCABULARY)
    windows = [batches(100)[:3], batches(101)[:1, :5], batches(102)[:4]]
    return build_trainer(config, model, batches, lambda: windows, replicas, ranks=ranks)


def train_some(ranks, typed, steps=8, replicas=1):
    """Returns every logged number of some steps, the evaluations, and a hash of the weights."""
    trainer = trainer_of(ranks, typed, replicas)
    numbers = []
    for _ in range(steps):
        assert trainer.train_step() is None
        numbers += [trainer.losses[-1], trainer.grad_norm]
    numbers += trainer.evaluate(trainer.validation())[:2]
    numbers += trainer.evaluate_average(trainer.validation()).values()
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.parameters)
    return [number.hex() for number in map(float, numbers)], hashlib.sha256(weights).hexdigest()


def train_all(ranks, cases):
    torch.set_num_threads(1)
    return [train_some(ranks, typed) for typed in cases]


def train_all_alone(cases):
    return train_all(ALONE, cases)


def torchrun(count, *typed, command=("train.py",), **environment):
    """Starts `torchrun --nproc-per-node COUNT train.py ...` in the current folder."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    words += ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(
        [*words, str(ROOT / command[0]), *typed],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **own},
    )  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
