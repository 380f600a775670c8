"""Steps per second of small runs: one run, several on one device, and torch alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from contenders import CLIP, as_in_a_run, ours
from gpu_peers import nanogpt
from gpu_section import Section, Step, seconds_of
from gpu_steps import contender
from rounds import WARM, timed
from side_by_side import side_by_side, synchronized
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from transformer_norms.run import machine
from transformer_norms.training.parallel.stacks import Stack, StackedLoss
from transformer_norms.training.trainer import Trainer

SECONDS = 4.0  # that several processes train
Tensors = dict[str, Tensor]
Numbers = dict[str, Any]


def measure_small(section: Section) -> None:
    for kind, runs in dict.fromkeys((kind, section.pick(n, min(n, 2))) for kind, n in KINDS):
        torch.compiler.reset()
        with section.measuring(f"{kind}, runs: {runs}"):
            section.say(f"{kind}, runs: {runs}", **MEASURES[kind](section, runs))


def one_run(kind: str, section: Section, runs: int) -> Numbers:
    """On a GPU, an eager step of a run becomes one CUDA graph."""
    one = contender(section, kind, section.small_size(), "")
    return {**rate(section, one.step, runs), "compiled": one.compiled()}


def processes(section: Section, runs: int) -> Numbers:
    size, mode, seconds = section.small_size(), "trainer.compile=none", section.pick(SECONDS, 0.1)
    together = side_by_side(runs, size, section.device, [mode], seconds)
    return {"run_steps_a_second": together["steps_a_second"]}


def graphs(section: Section, runs: int) -> Numbers:
    """Each run has a graph of its step and a stream, and all graphs are replayed together."""
    replays = [captured(section, step) for step in raw_steps(section, runs, 1)]
    return rate(section, lambda: [replay() for replay in replays], runs)


def stacked(section: Section, runs: int) -> Numbers:
    """One graph is the step of all runs, whose weights are stacked."""
    (step,) = raw_steps(section, 1, runs)
    return rate(section, captured(section, step), runs)


def stacked_runs(section: Section, runs: int) -> Numbers:
    """Runs of this project, each with a trainer, whose gradients are computed as one."""
    stack, size = Stack(partial(torch.compile, dynamic=False, fullgraph=True)), section.small_size()
    trainers = []
    for place in range(runs):
        loss = partial(StackedLoss, stack=stack, place=place)
        typed = [f"seed={place}", "trainer.compile=none"]
        one = ours(size, typed, size.batches(), device=section.device, loss=loss)
        trainers.append(as_in_a_run(one))

    def train(count: int) -> None:
        def steps(trainer: Trainer) -> None:
            for _ in range(count):
                assert trainer.train_step() is None

        for run in stack.run([partial(steps, trainer) for trainer in trainers]):
            run.result()

    count = section.pick(100, 2)
    with machine.deterministic(section.device):
        train(WARM)
        seconds = timed(synchronized(partial(train, count), section.device), 1)
    return {"run_steps_a_second": runs * count / seconds, "given_up": stack.reason}


def rate(section: Section, step: Step, runs: int) -> Numbers:
    return {"run_steps_a_second": runs / seconds_of(step, section.pick(200, 2), section.device)}


def raw_steps(section: Section, stacks: int, members: int) -> list[Step]:
    """Returns the steps of so many stacks of GPT-2, without this project."""
    size, device = section.small_size(), section.device
    base, batch = nanogpt(size).to(device), size.batches()(0).to(device)

    def loss_of(weights: Tensors, buffers: Tensors) -> Tensor:
        logits = functional_call(base, (weights, buffers), (batch[:, :-1],))
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    losses = torch.compile(vmap(loss_of), dynamic=False, fullgraph=True)
    models = [[nanogpt(size).to(device) for _ in range(members)] for _ in range(stacks)]
    return [raw_step(losses, *stack_module_state(stack), device) for stack in models]


def raw_step(
    losses: Callable[[Tensors, Tensors], Tensor], weights: Tensors, buffers: Tensors, device: str
) -> Step:
    """Returns a step of stacked runs: forward, backward, a clip by run, AdamW."""
    every, rate = list(weights.values()), torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(every, lr=rate, fused=True, capturable=device == "cuda")

    def step() -> None:
        gradients = torch.autograd.grad(losses(weights, buffers).sum(), every)
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients])
        factors = (CLIP / squares.sum(0).sqrt()).clamp(max=1.0)
        for weight, gradient in zip(every, gradients, strict=True):
            weight.grad = gradient * factors.view(-1, *[1] * (weight.ndim - 1))
        optimizer.step()

    return step


def captured(section: Section, step: Step) -> Step:
    """Returns the replay of a step's graph on its own stream. A CPU has no graphs: the step."""
    if section.device == "cpu":
        return step
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


MEASURES: dict[str, Callable[[Section, int], Numbers]] = {
    **{kind: partial(one_run, kind) for kind in ("eager, waiting", "eager", "block", "whole")},
    "processes": processes,
    "stacked": stacked_runs,
    "torch alone, graphs": graphs,
    "torch alone, stacked": stacked,
}
KINDS = [("eager", 1), ("whole", 1), ("processes", 4), ("stacked", 16), ("torch alone, graphs", 8)]
KINDS += [("torch alone, stacked", 16), ("processes", 8), ("eager, waiting", 1), ("block", 1)]
KINDS += [("stacked", 32), ("torch alone, graphs", 1), ("torch alone, stacked", 32)]
