"""Prepares a run before its first step: its model, the division of a step, its first files."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from transformer_norms import processes
from transformer_norms.config.building import build_batches, build_model
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import diff
from transformer_norms.data import Tokens
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import say
from transformer_norms.run import machine
from transformer_norms.run.checkpoint import Checkpoint
from transformer_norms.run.folder import path_text, this_process
from transformer_norms.run.loading import tokenizer
from transformer_norms.run.metrics import LONGEST
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import ELSEWHERE, Data, Summary, read_summary
from transformer_norms.storage.files import write_bytes, write_json
from transformer_norms.storage.reading import read_bytes
from transformer_norms.training.causality import pass_warnings
from transformer_norms.training.measures import Start
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel.ranks import Ranks
from transformer_norms.training.parallel.sharding import sharder
from transformer_norms.training.parallel.work_division import (
    Division,
    divide,
    resume_division,
    thread_count,
)
from transformer_norms.training.probes import high_losses, measure_start
from transformer_norms.training.tensors import load_weights


@dataclass
class Prepared:
    """A model before training, the division of a step, the warnings, and the numbers of its start.
    A run that goes on has no such numbers."""

    model: Transformer
    division: Division
    warnings: list[str]
    start: Start | None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def check_ranks(plan: Plan, data: Data, ranks: Ranks) -> None:
    """Raises ConfigError unless all ranks would train the same run."""
    config = plan.config
    typed = {f"trainer.{key}": value for key, value in plain(config.trainer).items()}
    same = {"folder": str(plan.folder), "tokens": data.fingerprint, **plan.code, **typed}
    first, *others = ranks.gather(same | {"parallel": config.parallel.type})
    for rank, other in enumerate(others, 1):
        if names := list(diff(first, other)):
            raise ConfigError(
                f"parallel={config.parallel.type}: rank {rank} has another "
                f"{', '.join(names[:3])} than rank 0; all need one command, code and data"
            )


def prepare_model(plan: Plan, tokens: Tokens, ranks: Ranks, stacked: bool) -> Prepared:
    """Builds the model, and divides the work of a step. A run that goes on keeps the division as
    far as its digits depend on it. A run in a stack of runs has one replica."""
    config, keys, count = plan.config, plan.config.trainer, ranks.count
    before = ranks.on_first(lambda: read_summary(plan.folder))
    # The ranks of a larger machine take no more, so that all divide the work alike.
    cores = min(ranks.gather(max(1, processes.cores() // processes.local_count())))
    threads = before and before.threads
    if not threads:
        threads = thread_count(keys, config.model, tokens.vocab_size, cores, count)
    torch.set_num_threads(threads)
    model = model_of(plan, tokens, ranks)
    seen = pass_warnings(model, tokens.vocab_size)
    warnings, start = [*config.warnings, *plan.warnings, *seen], None
    if before:
        replicas = 1 if stacked else before.replicas or 1
        known = Division(before.micro_batches or 1, before.ranks or 1, replicas, threads)
        division = resume_division(known, keys, model, cores, count)
    else:
        keys = replace(keys, replicas=1) if stacked else keys
        division = divide(keys, model, OPTIMIZERS[config.optimizer.type], threads, count)
        if plan.continued_from is None:  # else it begins trained
            first = build_batches(config, tokens)(0)  # which variants of one seed share
            start = measure_start(model, first[:, :-1])
            warnings += high_losses(model, first)
    return Prepared(model, division, warnings, start)


def model_of(plan: Plan, tokens: Tokens, ranks: Ranks) -> Transformer:
    """Returns the model of a run, whose weights are drawn from the seed, or are those that
    `continue_from` names. Raises ConfigError where these do not fit."""
    shard = sharder(plan.config.parallel.type, plan.config.trainer.device, ranks)
    model = build_model(plan.config, tokens.vocab_size, shard)
    if plan.weights is not None:
        text = path_text(folder := plan.weights.path.parents[1])
        try:
            if tokenizer(folder).save() != tokens.tokenizer.save():
                way = f"type tokenizer=file tokenizer.path={text}"
                raise ConfigError(f"its weights are for another tokenizer; {way}")
            with plan.weights.open("model") as weights:
                load_weights(model, weights)
        except ValueError as error:
            raise ConfigError(f"continue_from={text}: {error}") from None
    return model


def write_beginning(
    plan: Plan,
    tokens: Tokens,
    data: Data,
    prepared: Prepared,
    before: Summary | None,
    saved: Checkpoint | None,
    changes: dict[str, Any],
) -> Summary:
    """Writes the first files of a run, or only the summary of a run that goes on from `before`.
    Returns the summary. `saved` is the checkpoint from which it trains, perhaps of another run,
    whose rows it takes over. `changes` are the fields that say how this process trains."""
    device = machine.device(plan.config.trainer.device)
    changes = {"status": "running", "process": this_process(), **changes}
    of = saved.path.parents[1] if saved else plan.folder
    if of != plan.folder:
        write_bytes(plan.folder / "metrics.jsonl", read_bytes(of / "metrics.jsonl", LONGEST))
    if saved is None or of not in (plan.folder, plan.origin):
        changes["branched_from"] = of.name if saved else None
        changes["branch_step"] = saved.step if saved else None
    if before is None:
        summary = Summary(
            steps=plan.config.trainer.steps,
            parameters=prepared.parameters,
            choices=dict(plan.config.choices),
            identity=plan.hash,
            continued_from=plan.continued_from,
            data=data,
            versions=machine.versions(),
            **machine.commit(),
            source=plan.code,
            device=device,
            start=prepared.start,
            warnings=prepared.warnings,
            **changes,
        )
        write_bytes(plan.folder / "config.yaml", to_yaml(plan.config).encode())
        write_json(plan.folder / "tokenizer.json", tokens.tokenizer.save())
    else:
        name, devices = path_text(plan.folder), before.device or device
        if before.data.fingerprint != data.fingerprint:
            raise ConfigError(
                f"{name}: the tokens have changed since this run began "
                f"({before.data.fingerprint[:12]} then, {data.fingerprint[:12]} now); "
                "again=true runs it again, in another folder"
            )
        if devices.rpartition(ELSEWHERE)[2] != device:
            say(f"{name} was trained on {devices}, and goes on on {device}")
            devices = f"{devices}{ELSEWHERE}{device}"
        summary = replace(before, error=None, device=devices, **changes)
    summary.write(plan.folder)
    return summary
