"""python experiments/small_questions.py TEXT   measures batchnorm/modes.csv and eps/shares.csv anew

Two questions that need the model while it trains, and not its losses alone. TEXT is
tinyshakespeare.txt. Some twenty minutes of two cores.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms import (
    build_batches,
    build_model,
    build_optimizers,
    build_schedulers,
    compose,
    prepare_tokens,
)
from transformer_norms.comparison.statistics import half_interval
from transformer_norms.data.batches import windows
from transformer_norms.norms.batchnorm import BatchNorm
from transformer_norms.norms.rmsnorm import RMSNorm

HERE = Path(__file__).parent
MODES, SHARES = HERE / "batchnorm" / "modes.csv", HERE / "eps" / "shares.csv"
STEPS = (10, 30, 100, 300, 600)  # at which the modes are measured
SEEDS = range(10, 15)
EPS = (1e-12, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
NEAR = 10  # a mean square below so many eps is near it
HELD_OUT = 16384  # bytes
POPULATION = 50  # batches that the statistics of a population are taken from
SETTING = {"tokenizer": "byte", "data": "text", "data.split": "tail", "data.val_fraction": "0.1",
           "model.depth": "4", "model.width": "128", "model.heads": "4", "model.context": "64",
           "trainer.batch_size": "12", "trainer.steps": "600"}  # fmt: skip


class Training:
    """A run of the usual setting, step by step; `typed` changes it."""

    def __init__(self, text: str, *typed: str) -> None:
        setting = SETTING | dict(pair.split("=", 1) for pair in typed) | {"data.paths": text}
        self.config = compose([f"{k}={v}" for k, v in setting.items()], device="cpu")
        self.tokens = prepare_tokens(self.config)
        self.batches = build_batches(self.config, self.tokens)
        self.model = build_model(self.config, self.tokens.vocab_size)

    def run(self) -> Iterator[int]:
        """Yields the number of steps done, from 0."""
        optimizers = build_optimizers(self.config, self.model)
        schedulers = build_schedulers(self.config, optimizers)
        yield 0
        for step in range(self.config.trainer.steps):
            batch = self.batches(step)
            self.model.train()
            self.model(batch[:, :-1], batch[:, 1:])[1].backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.trainer.clip)
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            yield step + 1

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Nats per byte over HELD_OUT bytes, in the mode that `model` is in."""
        nats, count = 0.0, 0
        context, size = self.config.model.context, self.config.trainer.batch_size
        for window in windows(self.tokens.val, context, HELD_OUT, size):
            predicted = window[:, 1:].numel()
            nats += model(window[:, :-1], window[:, 1:])[1].item() * predicted
            count += predicted
        return nats / count


# ---------------------------------------------------------------------------- BatchNorm's two modes


def measure_modes(text: str) -> Iterator[dict[str, Any]]:
    """Rows of a seed and a step: the held-out loss with the statistics of each batch, with running
    averages, and with the statistics of a population of training batches at the same weights."""
    for seed in SEEDS:
        training = Training(text, "norm=batchnorm", "norm.allow_noncausal=true", f"seed={seed}")
        for step in training.run():
            if step in STEPS:
                yield {"seed": seed, "step": step} | modes_of(training, step)


def modes_of(training: Training, step: int) -> dict[str, float]:
    batch_mode = deepcopy(training.model).train()
    running = deepcopy(training.model).eval()
    population = deepcopy(training.model).train()
    take_population(population, [training.batches(step + i) for i in range(POPULATION)])
    distance = [
        ((kept.running_mean - whole.running_mean) / whole.running_var.sqrt()).abs().mean().item()
        for kept, whole in zip(_batchnorms(running), _batchnorms(population), strict=True)
    ]
    return {
        "batch": training.held_out_loss(batch_mode),
        "running": training.held_out_loss(running),
        "population": training.held_out_loss(population.eval()),
        "distance": fmean(distance),
    }


def _batchnorms(model: nn.Module) -> list[BatchNorm]:
    return [module for module in model.modules() if isinstance(module, BatchNorm)]


@torch.no_grad()
def take_population(model: nn.Module, batches: Sequence[Tensor]) -> None:
    """Gives each BatchNorm the mean over batches of their statistics. Each batch passes in the mode
    of training, so that a norm sees what it saw there."""
    for place, batch in enumerate(batches):
        for norm in _batchnorms(model):
            norm.momentum = 1 / (place + 1)  # the mean of all so far
        model(batch[:, :-1])


def modes_rows(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A table: means over seeds, and the two gaps with their intervals."""
    found = [
        [
            "step", "statistics of the batch", "of the population", "running averages",
            "population - batch", "running - population", "distance of the means",
        ]
    ]  # fmt: skip
    for step in dict.fromkeys(row["step"] for row in rows):
        own = [{k: float(v) for k, v in row.items()} for row in rows if row["step"] == step]
        losses = [f"{fmean(r[key] for r in own):.3f}" for key in ("batch", "population", "running")]
        seen = _interval([r["population"] - r["batch"] for r in own])
        stale = _interval([r["running"] - r["population"] for r in own])
        found.append([step, *losses, seen, stale, f"{fmean(r['distance'] for r in own):.3f}"])
    return found


def _interval(values: Sequence[float]) -> str:
    mean, half = fmean(values), half_interval(values) or 0.0
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


# ------------------------------------------------------------------------ tokens whose rms is small


def measure_shares(text: str) -> Iterator[dict[str, Any]]:
    """Rows of an eps, a step (0 and the last) and a norm: the share of held-out tokens whose mean
    square is below NEAR times eps."""
    for eps in EPS:
        training = Training(text, "norm=rmsnorm", "init=scaled", f"norm.eps={eps:g}", "seed=10")
        for step in training.run():
            if step in (0, training.config.trainer.steps):
                for name, share in shares_of(training, eps).items():
                    yield {"eps": f"{eps:g}", "step": step, "norm": name, "share": share}


def shares_of(training: Training, eps: float) -> dict[str, float]:
    """By the path of each RMSNorm in the model."""
    model, near = training.model.eval(), dict[str, list[Tensor]]()
    hooks = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: near.setdefault(name, []).append(
                (given[0].square().mean(-1) < NEAR * eps).flatten()
            )
        )
        for name, module in model.named_modules()
        if isinstance(module, RMSNorm)
    ]
    training.held_out_loss(model)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(found).float().mean().item() for name, found in near.items()}


def shares_rows(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A table: for each eps the share at the first norm, the largest and the last, before training
    and after it."""
    steps = list(dict.fromkeys(row["step"] for row in rows))
    places = ("the first norm", "the norm with the most", "the final norm")
    found = [["eps", *(f"{place}, step {step}" for step in steps for place in places)]]
    for eps in dict.fromkeys(row["eps"] for row in rows):
        cells = []
        for step in steps:
            own = [float(r["share"]) for r in rows if r["eps"] == eps and r["step"] == step]
            cells += [f"{100 * share:.1f} %" for share in (own[0], max(own), own[-1])]
        found.append([eps, *cells])
    return found


# -------------------------------------------------------------------------------------------- files


def write_rows(file: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    """Writes each row when it is measured: a failure loses none."""
    file.parent.mkdir(exist_ok=True)
    with open(file, "w", newline="", encoding="utf-8") as stream:
        table = None
        for row in rows:
            table = table or csv.writer(stream)
            if not stream.tell():
                table.writerow(row)
            table.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in row.values()])
            stream.flush()
            print(file.parent.name, *row.values(), file=sys.stderr)


def read_rows(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    write_rows(MODES, measure_modes(arguments[0]))
    write_rows(SHARES, measure_shares(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
