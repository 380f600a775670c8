"""The speed of the machine: products, copies, launches, the products of the head, every norm."""

import subprocess
from functools import partial
from importlib.metadata import distributions
from statistics import median

import norms
import torch
from gpu_section import PRODUCT, Section, quartiles, repeated, seconds_of
from rounds import interleaved

from transformer_norms.run import machine

CALLS = 20  # of a kernel in one go: to wait for the device takes as long as a small kernel
NORM_SECONDS = 0.3  # of rounds for each norm


def measure_machine(section: Section) -> None:
    with section.measuring("machine"):
        section.say("machine", **versions(section))
    side = section.pick(8192, 256)
    # An odd row is not aligned in memory.
    for name, n in ((PRODUCT, side), (f"{PRODUCT}, an odd side", side - 1)):
        a = torch.randn(n, n, device=section.device, dtype=torch.bfloat16)
        taken = seconds_of(partial(torch.matmul, a, a), section.pick(20, 2), section.device)
        section.say(name, side=n, rate=2 * n**3 / taken / 1e12)
    source = torch.empty(1 << section.pick(31, 20), device=section.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    taken = seconds_of(lambda: target.copy_(source), section.pick(20, 2), section.device)
    section.say("copy, GB/s read and written", rate=2 * source.numel() / taken / 1e9)
    one = torch.zeros(1, device=section.device)
    taken = seconds_of(lambda: one.add_(1), section.pick(2000, 20), section.device)
    section.say("a kernel of one number, microseconds", taken=1e6 * taken)


def versions(section: Section) -> dict[str, str]:
    found = {"device": machine.device(section.device), "cuda": str(torch.version.cuda)}
    named = ("transformers", "triton")
    found |= {one.name: one.version for one in distributions() if one.name in named}
    if section.device == "cuda":
        fields = "driver_version,clocks.max.sm,power.limit,memory.total"
        asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True)
        found["driver, clock, power, memory"] = done.stdout.strip()
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def measure_head(section: Section) -> None:
    """Times the three products of the head on a whole batch and on its 25th part."""
    width = section.size().width
    for vocabulary in section.pick((50257, 50304), (97, 128)):
        for rows in section.pick((16384, 656), (32,)):
            make = partial(torch.randn, device=section.device, dtype=torch.bfloat16)
            states, weights, grad = (
                make(rows, width),
                make(vocabulary, width),
                make(rows, vocabulary),
            )
            products = {
                "logits": lambda s=states, w=weights: s @ w.T,
                "states' gradient": lambda g=grad, w=weights: g @ w,
                "weights' gradient": lambda g=grad, s=states: g.T @ s,
            }
            flops, count = 2 * rows * width * vocabulary, section.pick(20, 2)
            rates = {
                name: flops / seconds_of(product, count, section.device) / 1e12
                for name, product in products.items()
            }
            section.say(f"head, vocabulary {vocabulary}, {rows} rows, TFLOP/s", **rates)


def measure_norms(section: Section) -> None:
    """Times each norm on bfloat16, forward and backward, and a copy of the bytes that a norm must
    read and write: five tensors, where a copy reads and writes two and a half."""
    x, grad, source = tensors(section)
    target = torch.empty_like(source)
    count = section.pick(CALLS, 1)
    for name, norm in chosen(section):
        torch.compiler.reset()  # norms of one class share their forward
        with section.measuring(name):
            inputs = [x, *norm.to(section.device).parameters()]
            steps = {
                "copy": lambda: target.copy_(source),
                "eager": norms.pass_of(norm, inputs, grad),
                "compiled": norms.pass_of(torch.compile(norm, fullgraph=True), inputs, grad),
            }
            several = {key: repeated(step, count, section.device) for key, step in steps.items()}
            for step in several.values():
                step()
            times = interleaved(several, 1, 30, section.pick(NORM_SECONDS, 0.0))
            copy = median(times["copy"])
            section.say(
                name,
                microseconds={k: [1e6 * t / count for t in quartiles(v)] for k, v in times.items()},
                of_the_copy={k: copy / median(v) for k, v in times.items()},
            )


def compile_norms(section: Section, names: list[str]) -> None:
    x, grad, _ = tensors(section)
    for name, norm in chosen(section):
        if name in names:
            torch.compiler.reset()
            inputs = [x, *norm.to(section.device).parameters()]
            norms.pass_of(torch.compile(norm, fullgraph=True), inputs, grad)()


def chosen(section: Section) -> list[tuple[str, torch.nn.Module]]:
    return list(norms.norms(section.size().width).items())[: section.pick(None, 2)]


def tensors(section: Section) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns a norm's input, a gradient, and what a copy reads."""
    torch.manual_seed(0)
    size = section.size()
    x = torch.randn(size.batch * size.context, size.width, device=section.device).bfloat16()
    return x.requires_grad_(), torch.randn_like(x), x.new_empty(5 * x.numel() // 2)
