"""Training on while the norms go, and the same training beside it in which they stay."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.norm_freezing import (
    STAGES,
    RemovableNorm,
    compose_normless,
    fold_norms,
    make_removable,
    norm_stages,
)
from transformer_norms.config.building import build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.data.batches import Batches, windows
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import unknown
from transformer_norms.run import checkpoint
from transformer_norms.run.identity import run_hash
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.files import make_folder, write_bytes, write_json
from transformer_norms.training.divergence import Divergence
from transformer_norms.training.tensors import stored_tensors
from transformer_norms.training.trainer import Trainer

BEFORE, AT_ONCE, FIRST, TUNED = "before", "at once", "first token", "tuned"
ORDER = (BEFORE, AT_ONCE, *STAGES, FIRST, TUNED)
# The defaults of the tuning: a horizon of its own.
DEFAULTS = ("trainer.steps=300", "schedule.warmup=20")
RATE = 1 / 3  # of the run's own peak
FIXED = ("trainer.eval_every=0", "trainer.probe_every=0", "trainer.compile=false")
TYPED = (
    "trainer.steps trainer.batch_size trainer.accumulation trainer.clip optimizer schedule plugins"
).split()
EXACT = 1e-9  # of the largest logit: float64's rounding is far below, a wrong fold far above


@dataclass(frozen=True)
class Timetable:
    """From step `start` on a norm is frozen every `gap` steps. Last the first token loses the
    length of its own. `norms` has the stage of each norm by its path, in the order of freezing."""

    norms: Mapping[str, str]
    start: int
    gap: int

    @property
    def steps(self) -> dict[int, str]:
        """The path of the norm that is frozen at a step."""
        return {self.start + n * self.gap: path for n, path in enumerate(self.norms)}

    @property
    def end(self) -> int:
        return self.start + len(self.norms) * self.gap

    @property
    def stages(self) -> dict[int, str]:
        """The stage whose last norm is frozen at a step."""
        last = {self.norms[path]: step for step, path in self.steps.items()}
        return {step: stage for stage, step in last.items()} | {self.end: FIRST}


@dataclass
class Tuning:
    """One model tuned on: step and validation loss by stage, and the training loss of each step,
    in nats per token. `diverged` says why it ended early, and is empty where it did not."""

    steps: dict[str, int] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)
    diverged: str = ""

    def validate(self, stage: str, trainer: Trainer) -> None:
        measured = trainer.evaluate(trainer.validation())
        assert measured is not None
        nats, tokens = measured
        self.steps[stage], self.validation[stage] = trainer.step, nats / tokens


def tune(
    trainer: Trainer, timetable: Timetable, remove: bool, tell: Callable[[int, int], None]
) -> Tuning:
    """Tunes the trainer's model on while its norms are frozen one by one.

    Without `remove` this is the control: the same steps on the same batches, validated alike.
    """
    tuning, steps = Tuning(), trainer.settings.steps
    # A loss above the first one is what is to be measured here; only what is not finite ends it.
    trainer.divergence = Divergence(warmup=steps)
    norms = make_removable(trainer.model) if remove else {}
    tuning.validate(BEFORE, trainer)
    for step in range(steps):
        tell(step, steps)
        if norms and step == timetable.start:
            _freeze(norms, True)
            tuning.validate(AT_ONCE, trainer)
            _freeze(norms, False)
        if norms and step in timetable.steps:
            norms[timetable.steps[step]].frozen = True
        if step == timetable.end:
            for norm in norms.values():
                norm.unify_lengths()
        if step in timetable.stages:
            tuning.validate(timetable.stages[step], trainer)
        tuning.diverged = trainer.train_step() or ""
        if tuning.diverged:
            return tuning
        for norm in norms.values():
            norm.step()
        tuning.training.append(trainer.last_loss)
    tuning.validate(TUNED, trainer)
    return tuning


def _freeze(norms: Mapping[str, RemovableNorm], frozen: bool) -> None:
    for norm in norms.values():
        norm.frozen = frozen


@dataclass(frozen=True)
class Cost:
    """The cost of removing a run's norms: the tuning in which they go, beside the control.

    `rounding` is the largest difference between logits before and after folding, in float64, over
    the largest logit. It is None where nothing was folded.
    """

    name: str
    seed: int
    removed: Tuning
    control: Tuning
    rounding: float | None

    @property
    def steps(self) -> dict[str, int]:
        """The step of each stage that was reached."""
        steps = {**self.control.steps, **self.removed.steps}
        return {stage: steps[stage] for stage in ORDER if stage in steps}

    @property
    def gap(self) -> float | None:
        """Nats per token above the control, at the end of both."""
        ends = [tuning.validation.get(TUNED) for tuning in (self.removed, self.control)]
        return None if ends[0] is None or ends[1] is None else ends[0] - ends[1]


class Subject:
    """A trained run that is tuned on as `typed` says: KEY=VALUE as train.py takes them.

    Its optimizer starts afresh, with norms and without. Raises ConfigError if it is no finished
    run, if it has norms that are not folded here, or if its text has changed.
    """

    def __init__(self, folder: Path, typed: Sequence[str], start: int, gap: int) -> None:
        self.folder, file = folder, folder / "config.yaml"
        keys = dict(_read_key(text) for text in typed)
        plugins = keys.get("plugins", "none")
        self.model = load(folder, plugins)
        summary = read_summary(folder)
        if summary is None or summary.status != "finished":
            status = summary.status if summary else "no run of train.py"
            raise ConfigError(f"{folder}: is {status}, not finished")
        self.summary = summary
        try:
            self.timetable = Timetable(norm_stages(self.model), start, gap)
        except ValueError as error:
            raise ConfigError(f"{folder}: {error}") from None
        rate = self.model.config.optimizer.lr * RATE
        defaults = [*DEFAULTS, f"optimizer.lr={rate:g}", *FIXED]
        kept = [text for text in defaults if text.partition("=")[0] not in keys]
        self.config = compose([f"config={file}", *kept, *typed])
        self.normless = compose_normless(file, self.model, plugins)
        if self.timetable.end >= self.config.trainer.steps:
            raise ConfigError(
                f"trainer.steps={self.config.trainer.steps}: the last norm of {folder} goes at "
                f"step {self.timetable.end}; more steps, or a smaller --start or --gap"
            )
        self.tokens = Plan(self.config).tokens()
        if self.tokens.fingerprint != summary.data.fingerprint:
            raise ConfigError(f"{folder}: its tokens are others than those it was trained on")

    def remove(self, name: str, tell: Callable[..., None]) -> tuple[Cost, Transformer | None]:
        """Tunes twice, folds, and compares. Returns the cost, and the model without norms.

        The model is None if its tuning diverged. Raises ConfigError if folding has changed what the
        model computes.
        """
        torch.set_num_threads(self.summary.threads or 1)
        seed = self.config.seed

        def tune_copy(words: str, remove: bool) -> tuple[Tuning, Transformer]:
            trainer = self.trainer(copy.deepcopy(self.model).train())
            tell_step = partial(tell, f"{name} s{seed}, {words}: step {{:.0f}}/{{:.0f}}")
            return tune(trainer, self.timetable, remove, tell_step), trainer.model

        removed, frozen = tune_copy("without norms", True)
        control, _ = tune_copy("control", False)
        if removed.diverged:
            return Cost(name, seed, removed, control, None), None
        folded = fold_norms(frozen, self.normless)
        rounding = _rounding(frozen, folded, next(iter(self.windows())))
        if not rounding < EXACT:
            raise ConfigError(
                f"{self.folder}: folding has changed the logits, by {rounding:.0e} of the largest; "
                "a fault of this program, or a norm of your own"
            )
        return Cost(name, seed, removed, control, rounding), folded

    def save(self, model: Transformer, folder: Path) -> None:
        """Writes the model without norms into a new folder that `load` and sampling read."""
        make_folder(folder)
        write_bytes(folder / "config.yaml", to_yaml(self.normless).encode())
        write_json(folder / "tokenizer.json", tokenizer(self.folder).save())
        dtype = torch.float64 if self.normless.trainer.precision == "fp64" else torch.float32
        tensors = {name: tensor.to(dtype) for name, tensor in stored_tensors(model).items()}
        extra = {"folded_from": self.folder.resolve().name}
        identity = run_hash(self.normless, self.summary.data.identity)
        step = self.summary.step + self.config.trainer.steps
        weights = {"model": tensors}
        checkpoint.save(folder / "checkpoints", identity, step, weights, {}, extra, keep=1)

    def trainer(self, model: Transformer) -> Trainer:
        """A trainer that reads on where the run's own training stopped."""
        size, config = self.config.trainer.batch_size, self.config
        batches = Batches(self.tokens.train, config.model.context, size, config.data.seed)
        sequences = self.summary.step * self.model.config.trainer.batch_size  # read by the run
        first = -(-sequences // size)
        return build_trainer(config, model, lambda step: batches(first + step), self.windows)

    def windows(self) -> Any:
        """The validation text, window by window."""
        size = self.config.trainer.batch_size // self.config.trainer.accumulation
        context, limit = self.config.model.context, self.config.data.val_tokens
        return windows(self.tokens.val, context, limit, size)


def _read_key(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if key not in TYPED and key.split(".")[0] not in TYPED:
        raise ConfigError(f"{text}: of a tuning {unknown('key', key, TYPED)}")
    return key, value


@torch.no_grad()
def _rounding(frozen: Transformer, folded: Transformer, tokens: torch.Tensor) -> float:
    exact = copy.deepcopy(frozen).double().cpu().eval()
    expected, logits = exact(tokens[:, :-1]), folded(tokens[:, :-1])
    return ((expected - logits).abs().max() / expected.abs().max()).item()
