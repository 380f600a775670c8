"""Whether a GPU gives the same digits each time, with cold and warm caches of kernels."""

import hashlib
import json
import os
import subprocess
import tempfile
from typing import Any

import norms
import torch
from contenders import as_in_a_run, ours, trained
from gpu_section import Section
from gpu_steps import BASELINE, every_variant
from torch import Tensor

from transformer_norms.run import machine

STEPS = 5
RESERVED = 35.0  # seconds for the processes with compiled kernels
Digits = dict[str, Any]


def measure_digits(section: Section) -> None:
    if section.part:
        print(json.dumps(digits(section, BASELINE, section.part)))
        return
    modes = section.pick(("none", "block", "whole"), ("whole",))
    with tempfile.TemporaryDirectory() as folder:
        caches = {mode: (f"{folder}/{mode}_a", f"{folder}/{mode}_b") for mode in modes}
        cold = {mode: [begin(section, mode, one) for one in caches[mode]] for mode in modes}
        compare_norms(section)  # while others compile
        compare_variants(section)
        first = {mode: [end(process) for process in cold[mode]] for mode in modes}
        warm = {mode: begin(section, mode, caches[mode][0]) for mode in modes}
        for mode in modes:
            a, b, c = *first[mode], end(warm[mode])
            alike = {"two_cold_caches_alike": a == b, "cold_and_warm_alike": a == c}
            failed = [one for one in (a, b, c) if "error" in one]
            section.say(f"trainer.compile={mode}", **(failed or [{**alike, **a}])[0])


def begin(section: Section, mode: str, cache: str) -> "subprocess.Popen[str]":
    """Starts a process that trains a few steps with that folder of compiled kernels."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRANSFORMER_NORMS_CACHE")
    environment = {**os.environ, **dict.fromkeys(names, cache)}
    command = section.command(part=mode)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> Digits:
    printed = process.communicate()[0]
    if process.returncode:
        return {"error": f"a process that trained ended with code {process.returncode}"}
    return json.loads(printed.splitlines()[-1])


def digits(section: Section, variant: str, mode: str = "none") -> Digits:
    """Trains a small model in bf16, and returns its losses and the hash of its weights."""
    size, overrides = section.small_size(), [*variant.split(), f"trainer.compile={mode}"]
    trainer = as_in_a_run(ours(size, overrides, size.batches(), device=section.device))
    with machine.deterministic(section.device):
        for _ in range(STEPS):
            trained(trainer)
    every = b"".join(p.detach().cpu().numpy().tobytes() for p in trainer.model.parameters())
    compiled = trainer.loss.compilation.text
    return {
        "losses": trainer.losses,
        "compiled": compiled,
        "weights": hashlib.sha256(every).hexdigest(),
    }


def compare_variants(section: Section) -> None:
    """Trains as many variants as there is time for, each twice."""
    found: dict[str, list[str]] = {"same": [], "unequal": []}
    for variant in every_variant()[: section.pick(None, 2)]:
        if section.left < section.pick(RESERVED, 0):
            break
        with section.measuring(variant):
            alike = digits(section, variant) == digits(section, variant)
            found["same" if alike else "unequal"].append(variant)
    section.say("eager, trained twice", same=len(found["same"]), unequal=found["unequal"])


def compare_norms(section: Section) -> None:
    """Writes how far the output and gradients of each norm in float64 are from a CPU's, at most."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 64, 128, dtype=torch.float64)
    most: dict[str, float] = {}
    for name, norm in norms.norms(128).items():
        with section.measuring(name):
            here, there = (pass_on(norm, x, grad, device) for device in ("cpu", section.device))
            most[name] = max(float((a - b).abs().max()) for a, b in zip(here, there, strict=True))
    section.say("norms in float64, largest distance from a CPU", **most)


def pass_on(norm: torch.nn.Module, x: Tensor, grad: Tensor, device: str) -> list[Tensor]:
    moved = norm.to(device, torch.float64)
    inputs = [x.detach().to(device).requires_grad_(), *moved.parameters()]
    return [tensor.detach().cpu() for tensor in norms.pass_of(moved, inputs, grad.to(device))()]
