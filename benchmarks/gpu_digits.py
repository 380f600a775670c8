"""Whether a GPU gives the same digits each time, with cold and warm caches of kernels."""

import hashlib
import json
import os
import subprocess
import tempfile
from typing import Any

import norms
import torch
from contenders import ours, trained
from gpu_section import Section
from gpu_steps import BASELINE, every_variant
from torch import Tensor

from transformer_norms.run import machine

STEPS = 5
Digits = dict[str, Any]


def measure_digits(section: Section) -> None:
    if section.part:
        print(json.dumps(digits(section, BASELINE, section.part)))
        return
    modes = section.pick(("none", "block", "whole"), ("whole",))
    with tempfile.TemporaryDirectory() as folder:
        cold = {
            (mode, cache): begin(section, mode, f"{folder}/{mode}{cache}")
            for mode in modes
            for cache in "ab"
        }
        compare_norms(section)
        first = {key: end(process) for key, process in cold.items()}
        again = {mode: begin(section, mode, f"{folder}/{mode}a") for mode in modes}
        warm = {mode: end(process) for mode, process in again.items()}
    for mode in modes:
        a, b, c = first[mode, "a"], first[mode, "b"], warm[mode]
        section.say(
            f"trainer.compile={mode}",
            two_cold_caches_alike=a == b,
            cold_and_warm_alike=a == c,
            losses=a["losses"],
        )
    compare_variants(section)


def begin(section: Section, mode: str, cache: str) -> "subprocess.Popen[str]":
    """Starts a process that trains a few steps with that folder of compiled kernels."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRANSFORMER_NORMS_CACHE")
    environment = {**os.environ, **dict.fromkeys(names, cache)}
    command = section.command(part=mode)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> Digits:
    printed = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"a process that trained ended with code {process.returncode}")
    return json.loads(printed.splitlines()[-1])


def digits(section: Section, variant: str, mode: str = "none") -> Digits:
    """Trains a small model in bf16, and returns its losses and the hash of its weights."""
    size, overrides = section.small_size(), [*variant.split(), f"trainer.compile={mode}"]
    trainer = ours(size, overrides, size.batches(), device=section.device)
    with machine.deterministic(section.device):
        for _ in range(STEPS):
            trained(trainer)
    every = b"".join(p.detach().cpu().numpy().tobytes() for p in trainer.model.parameters())
    return {"losses": trainer.losses, "weights": hashlib.sha256(every).hexdigest()}


def compare_variants(section: Section) -> None:
    """As many variants as there is time for, each trained twice."""
    found: dict[str, list[str]] = {"same": [], "unequal": []}
    for variant in every_variant()[: section.pick(None, 2)]:
        if section.left < 5:
            break
        with section.measuring(variant):
            alike = digits(section, variant) == digits(section, variant)
            found["same" if alike else "unequal"].append(variant)
    section.say("eager, trained twice", same=len(found["same"]), unequal=found["unequal"])


def compare_norms(section: Section) -> None:
    """The largest distance of each norm's output and gradients from a CPU's, in float64."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 64, 128, dtype=torch.float64)
    most = {}
    for name, norm in norms.norms(128).items():
        here, there = (pass_on(norm, x, grad, device) for device in ("cpu", section.device))
        most[name] = max(float((a - b).abs().max()) for a, b in zip(here, there, strict=True))
    section.say("norms in float64, largest distance from a CPU", **most)


def pass_on(norm: torch.nn.Module, x: Tensor, grad: Tensor, device: str) -> list[Tensor]:
    moved = norm.to(device, torch.float64)
    inputs = [x.to(device).requires_grad_(), *moved.parameters()]
    return [tensor.detach().cpu() for tensor in norms.pass_of(moved, inputs, grad.to(device))()]
