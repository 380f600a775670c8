"""The training step at GPT-2's size: compiled beforehand, and timed by turns with others."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gpu_machine
import norms
import torch
import torch.nn.functional as F
from contenders import CLIP, Size, as_in_a_run, ours, parameters, trained
from gpu_peers import NANOGPT, PEERS, TRANSFORMERS, product_weights
from gpu_section import Section, Step, quartiles, repeated, seconds_of
from peers import Unlike, two_groups
from rounds import Times, interleaved, ratios
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from transformer_norms.names import distinct_norms, options
from transformer_norms.run import machine

MODES = {"eager": "none", "block": "block", "whole": "whole"}  # trainer.compile
FREE, WAITING = "free", "waiting"  # digits may differ each time; each step ends before the next
# A captured step keeps its memory: no more of them fit on a GPU of 80 GB together.
KINDS = ("block", "whole", *PEERS, "eager", "block, free", "block, waiting")
TURNS = 25.0  # seconds of a section for the turns of what is built by then
LARGE = 64  # sequences of a step
GPT2 = "preset=gpt2 trainer.precision=bf16"
# One stream first, then several.
PLACEMENTS = """
pre post peri sandwich hybrid normformer subln deepnorm keel qkv qk_fc layerscale rezero lns mixln
b2t admin skipinit parallel ngpt qk_cap siamese residual_dual hyper_connections attention_residuals
""".split()
BASELINE = f"{GPT2} norm=rmsnorm placement=pre"
KEPT = 25  # variants whose compiled blocks a process keeps
GIB = 2**30
SHARES = {"variants": 4, "norms": 2}  # processes that compile them
TOGETHER = 6  # processes that compile at a time: one of a whole step takes some 15 GiB


def flops_per_token(size: Size) -> int:
    """Returns the FLOPs of a training pass: 6 for each weight of a product, the head's included,
    and attention's, over all pairs of positions. It is the same for all contenders."""
    attention = 12 * size.depth * size.context * size.width
    return 6 * product_weights(size, size.vocabulary) + attention


class LeanLoop:
    """A peer's step: model and loss compiled as one under bf16 autocast, clipping, fused AdamW, and
    nothing that waits for the device."""

    def __init__(self, name: str, size: Size, device: str) -> None:
        self.model = PEERS[name].build(size).to(device).train()
        expected = PEERS[name].parameters(size)
        if parameters(self.model) != expected:
            raise Unlike(f"it has {parameters(self.model):,} parameters, not {expected:,}")
        self.weights, self.batches = list(self.model.parameters()), size.batches()
        self.device, self.count = device, 0
        self.loss = torch.compile(self.eager_loss, dynamic=False)
        self.optimizer = torch.optim.AdamW(
            two_groups(self.weights), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def eager_loss(self, batch: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            answer: Any = self.model(batch[:, :-1])
        logits = getattr(answer, "logits", answer)
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    def step(self) -> None:
        batch = self.batches(self.count)
        if self.device == "cuda":
            batch = batch.pin_memory().to(self.device, non_blocking=True)
        self.loss(batch).backward()
        nn.utils.clip_grad_norm_(self.weights, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.count += 1


class Contender(NamedTuple):
    """`compiled` says after the first step what of it is compiled, and what could not be."""

    step: Step
    model: nn.Module
    compiled: Callable[[], str]


def contender(section: Section, kind: str, size: Size, variant: str = GPT2) -> Contender:
    """Returns one of KINDS. Our own steps are those of a run where a kind has no mark."""
    if kind in PEERS:
        loop = LeanLoop(kind, size, section.device)
        return Contender(loop.step, loop.model, lambda: "whole")
    mode, *marks = kind.split(", ")
    overrides = [*variant.split(), f"trainer.compile={MODES[mode]}"]
    trainer = ours(size, overrides, size.batches(), device=section.device)
    if WAITING not in marks:
        as_in_a_run(trainer)

    def step() -> None:
        with nullcontext() if FREE in marks else machine.deterministic(section.device):
            trained(trainer)

    return Contender(step, trainer.model, lambda: trainer.loss.compilation.text)


def measure_steps(section: Section) -> None:
    compare(section, section.size(), KINDS)


def measure_large(section: Section) -> None:
    compare(section, section.size(section.pick(LARGE, 4)), ("block",))


def compare(section: Section, size: Size, kinds: Iterable[str]) -> None:
    """Times each contender alone as soon as it is built, then all of them by turns."""
    steps = {}
    for kind in kinds:
        with section.measuring(kind):
            if section.left < TURNS:
                raise TimeoutError("left out for lack of time")
            steps[kind] = build(section, kind, size)
    seconds = max(5.0, min(30.0, section.left - TURNS / 2))
    times = by_turns(section, steps, seconds) if steps else {}
    for kind, values in times.items():
        others = [
            name for name in (*PEERS, f"{kind}, {FREE}", f"{kind}, {WAITING}") if name in times
        ]
        over = {name: median(ratios(times, name, kind)) for name in others}
        section.say(f"{kind}, by turns", **rates(section, size, values), times_as_fast_as=over)
    for kind in {"block", NANOGPT} & steps.keys():
        write_profile(section, kind, steps[kind])


def build(section: Section, kind: str, size: Size) -> Step:
    begun, cuda = time.perf_counter(), section.device == "cuda"
    machine.forget_memory(section.device)
    before = torch.cuda.memory_allocated() if cuda else 0
    step, model, compiled = contender(section, kind, size)
    seconds_of(step, 1, section.device)
    ready = time.perf_counter() - begun
    taken = seconds_of(step, section.pick(5, 1), section.device)
    section.say(
        f"{kind}, alone",
        parameters=parameters(model),
        compiled=compiled(),
        gib=(machine.peak_memory("cuda") - before) / GIB if cuda else None,
        seconds_until_warm=ready,
        **rates(section, size, [taken, taken]),
    )
    return step


def by_turns(section: Section, steps: dict[str, Step], seconds: float) -> Times:
    """Returns seconds of a step by round, where some steps of each end with one wait."""
    count = section.pick(5, 1)
    several = {kind: repeated(step, count, section.device) for kind, step in steps.items()}
    times = interleaved(several, 1, 60, section.pick(seconds, 0.0))
    return {kind: [t / count for t in values] for kind, values in times.items()}


def rates(section: Section, size: Size, values: list[float]) -> dict[str, Any]:
    """Returns quartiles of a step's time, and what it makes of the device's FLOP/s."""
    tokens, low_middle_high = size.batch * size.context, quartiles(values)
    speed = tokens / low_middle_high[1]
    return {
        "milliseconds": [1e3 * t for t in low_middle_high],
        "tokens_a_second": speed,
        "mfu": {
            peak: speed * flops_per_token(size) / rate if rate else None
            for peak, rate in section.peaks().items()
        },
    }


def write_profile(section: Section, kind: str, step: Step) -> None:
    with section.measuring(f"{kind}, profile"):
        cuda = section.device == "cuda"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
        with profile(activities=activities) as found:
            repeated(step, 2, section.device)()
        order = f"self_{'device' if cuda else 'cpu'}_time_total"
        table = found.key_averages().table(order, row_limit=40, max_name_column_width=90)
        Path(section.folder, f"{section.name}_{kind}.txt").write_text(table)


def every_variant() -> list[str]:
    """Returns PLACEMENTS, then the norms, then the other placements."""
    others = [name for name in options("placement") if name not in PLACEMENTS]
    norms = [name for name in distinct_norms() if name not in ("rmsnorm", "batchnorm")]
    return [
        *(f"{GPT2} norm=rmsnorm placement={name}" for name in PLACEMENTS),
        *(f"{GPT2} norm={name} placement=pre" for name in norms),
        *(f"{GPT2} norm=rmsnorm placement={name}" for name in others),
    ]


def measure_variants(section: Section) -> None:
    """Times as many variants as there is time for, by turns with `pre` and with transformers."""
    size, steps = section.size(), {}
    for name, kind in (("pre", "block"), (TRANSFORMERS, TRANSFORMERS)):
        with section.measuring(name):
            steps[name] = contender(section, kind, size, BASELINE).step
            seconds_of(steps[name], 1, section.device)
    variants = every_variant()[: section.pick(None, 2)]
    for i, variant in enumerate(variants):
        if section.left < 12:
            section.say("left out for lack of time", variants=variants[i:])
            break
        if i % KEPT == KEPT - 1:
            torch.compiler.reset()  # beyond a limit torch compiles no more blocks
            for step in steps.values():
                step()
        with section.measuring(variant):
            measure_variant(section, variant, size, steps)
        machine.forget_memory(section.device)


def measure_variant(section: Section, variant: str, size: Size, others: dict[str, Step]) -> None:
    step, _, compiled = contender(section, "block", size, variant)
    repeated(step, 3, section.device)()
    times = by_turns(section, {**others, variant: step}, 1.0)
    over = {name: median(ratios(times, name, variant)) for name in others}
    numbers = rates(section, size, times[variant])
    section.say(variant, compiled=compiled(), **numbers, times_as_fast_as=over)


def compile_beforehand(section: Section) -> None:
    """Fills the cache of kernels from several processes."""
    if section.part:
        compile_part(section)
        return
    compiled = [kind for kind in KINDS if not kind.startswith("eager") and WAITING not in kind]
    kinds = [f"step/{kind}" for kind in compiled]
    shares = [f"{what}/{k}/{n}" for what, n in SHARES.items() for k in range(section.pick(n, 1))]
    # Those that take much memory by turns with those that take little.
    pairs = zip_longest(kinds[: section.pick(None, 1)], shares)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for part in filter(None, chain(*pairs)):
            pool.submit(run_part, section, part)


def run_part(section: Section, part: str) -> None:
    begun, environment = time.time(), {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "3"}
    done = subprocess.run(section.command(part=part), env=environment)
    section.say(part, exit=done.returncode, seconds=time.time() - begun)


def compile_part(section: Section) -> None:
    what, *rest = section.part.split("/")
    size = section.size()
    if what == "step":
        repeated(contender(section, rest[0], size).step, 2, section.device)()
        return
    share = slice(int(rest[0]), None, int(rest[1]))
    if what == "norms":
        gpu_machine.compile_norms(section, list(norms.norms(size.width))[share])
        return
    # A block is compiled without knowledge of the depth.
    shallow = replace(size, depth=2)
    for variant in every_variant()[: len(PLACEMENTS)][share][: section.pick(None, 1)]:
        repeated(contender(section, "block", shallow, variant).step, 2, section.device)()
        torch.compiler.reset()
        machine.forget_memory(section.device)
