"""The plan of a run, which is what it has to compute and to hold, and that of a sweep."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.compose import compose
from transformer_norms.config.data_settings import expected_vocab_size
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.plan.rehearsal import Bytes, Stage
from transformer_norms.progress import Live, track
from transformer_norms.sweep.planning import new_steps
from transformer_norms.sweep.question import Request, read_request

GIB = 2**30
# Assumed: the CUDA context and the workspaces of cuBLAS; an interpreter with torch.
REST = {"cuda": 1.5 * GIB, "cpu": 0.4 * GIB, "mps": 0.4 * GIB}


# ------------------------------------------------------------------------------ the memory of a run


@dataclass(frozen=True)
class StepLayout:
    """A step is `micro_batches` of `sequences` each. Each replica of the model computes `share` of
    them one after another. `pieces` is by how much they are smaller than trainer.accumulation
    says."""

    replicas: int
    micro_batches: int
    sequences: int
    pieces: int

    @property
    def share(self) -> int:
        return self.micro_batches // self.replicas

    @property
    def sets(self) -> int:
        """The most sets of gradients of a replica at a time. The tree adds halves: while the last
        micro-batch is computed, the sum of each left half on the way to it waits."""
        return (self.share - 1).bit_length() + 1


def divide_step(config: Config) -> StepLayout:
    """Returns the layout of a config's step on one device; ConfigError where there is none."""
    settings = config.trainer
    replicas = 1 if settings.replicas == "auto" else settings.replicas
    if replicas > 1 and settings.device != "cpu":
        raise ConfigError(f"trainer.replicas={replicas}: they are for a CPU")
    count = lcm(settings.accumulation, replicas)
    if settings.batch_size % count:
        raise ConfigError(
            f"trainer.replicas={replicas}: they cannot share {settings.batch_size} sequences "
            f"(trainer.batch_size) evenly with trainer.accumulation={settings.accumulation}"
        )
    return StepLayout(replicas, count, settings.batch_size // count, count // settings.accumulation)


@dataclass(frozen=True)
class Memory:
    """The bytes of one device by part at the fullest moment of each phase of a step. `backward` is
    the forward and the backward pass, `sum` the addition of gradients, `update` the optimizer's
    step. `rest` is there all the time."""

    phases: dict[str, Bytes]
    rest: int

    @cached_property
    def peak(self) -> int:
        return self.rest + max(parts.total() for parts in self.phases.values())


def memory_of(stage: Stage, layout: StepLayout) -> Memory:
    """Returns what a device holds: weights, moments and average once, and gradients for each
    replica. The stage rehearses one micro-batch."""
    passes = stage.rehearse(layout.sequences, layout.pieces)
    average = Counter(average=stage.config.trainer.averaging[0] * stage.weights)
    kept = Counter({part: stage.update[part] for part in ("weights", "moments")}) + average
    micro_batch = Counter({part: size for part, size in passes.items() if part not in kept})
    weights = stage.weights
    waiting = Counter(gradients=(layout.sets - 1) * weights)
    backward, added = kept.copy(), kept.copy()
    for _ in range(layout.replicas):
        backward += micro_batch + waiting
        added += Counter(gradients=layout.sets * weights)
    phases = {"backward": backward, "sum": added, "update": stage.update + average}
    return Memory(phases, int(REST[stage.config.trainer.device]))


# ---------------------------------------------------------------------------------------- the plans


@dataclass(frozen=True)
class RunPlan:
    """`numbers` are those of --json, in bytes and FLOPs: FLOPs are of the forward and the backward
    pass, `flops_per_token_again` those that activation checkpointing computes once more."""

    config: Config
    numbers: dict[str, Any]


def plan_run(config: Config, vocab_size: int | None = None) -> RunPlan:
    """Returns the plan of a run on one device."""
    layout = divide_step(config)
    stage = Stage(config, vocab_size or expected_vocab_size(config.tokenizer))
    parameters, (flops, again) = stage.numbers(), stage.flops_per_token()
    tokens_per_step = config.trainer.batch_size * config.model.context
    tokens = config.trainer.steps * tokens_per_step
    memory = memory_of(stage, layout)
    numbers = {
        "parameters": {"all": sum(parameters.values()), **parameters},
        "vocab_size": stage.model.vocab_size,
        "flops_per_token": flops,
        "flops_per_token_again": again,
        "tokens_per_step": tokens_per_step,
        "tokens": tokens,
        "flops": flops * tokens,
        "micro_batches": layout.micro_batches,
        "sequences": layout.sequences,
        "memory": {name: dict(parts) for name, parts in memory.phases.items()},
        "rest": memory.rest,
        "peak_memory": memory.peak,
    }
    return RunPlan(config, numbers)


@dataclass(frozen=True)
class SweepPlan:
    """`runs` has the plan of one run of each variant, by its label. `stages` has the runs, steps,
    tokens and FLOPs of all variants together, by stage. All seeds count that may be added until it
    is decided."""

    request: Request
    runs: dict[str, RunPlan]
    stages: dict[str, dict[str, float]]

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers of --json."""
        runs = {name: run.numbers for name, run in self.runs.items()}
        return {"sweep": self.request.name, "stages": self.stages, "runs": runs}


def plan_sweep_of(arguments: Sequence[str], device: str, vocab: int | None) -> SweepPlan:
    """Returns the plan of a command line with sweep=NAME or several values of a key."""
    request = read_request(arguments)
    question = request.question
    # A variant is planned at the first of its tuned points: they do not change its size.
    point = question.tune.points[0]
    runs = {}
    with Live() as live:
        for variant in track(live, "planning variants, {:.0f} of {:.0f}", question.variants):
            values = {**question.fixed, **variant, **point}
            try:
                config = compose([as_typed(key, value) for key, value in values.items()], device)
            except ConfigError as error:
                raise ConfigError(f"{error} (in {label(variant)})") from None
            runs[label(variant)] = plan_run(config, vocab)
    tune, results = question.tune, question.most_seeds
    # At a tuned point or at a seed that is added, a run may have no shorter one to begin from.
    shared = {"results": 0 if tune.grid or question.until_decided else results}
    seeds = {"results": results}
    if tuning := tune.budget * len(tune.seed):
        seeds = {"tuning": tuning, **seeds, "all": tuning + results}
        shared |= dict.fromkeys(("tuning", "all"), len(tune.points) * len(tune.seed))
    stages: dict[str, dict[str, float]] = {}
    for stage, n in seeds.items():
        stages[stage] = dict.fromkeys(("runs", "steps", "tokens", "flops"), 0)
        for run in runs.values():
            steps, k = run.config.trainer.steps, shared[stage]
            trained = k * new_steps(run.config) + (n - k) * steps
            tokens = trained * run.numbers["tokens_per_step"]
            each = n, trained, tokens, tokens * run.numbers["flops_per_token"]
            for key, more in zip(stages[stage], each, strict=True):
                stages[stage][key] += more
    return SweepPlan(request, runs, stages)
