"""Measures the cost of a change of norms: each changed model is trained on, with an equal control.

The changes are those of swap and of norm_removal. A model is a finished run, or a folder that
transformers wrote, whose text is typed.
"""

import copy
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_norms.analysis.outcome import (
    DIVERGED,
    KIND,
    MODEL,
    SEED,
    Analysis,
    Lines,
    Number,
    Numbers,
    Outcome,
    Row,
    Rows,
    of_kind,
)
from transformer_norms.analysis.rendering import check_new
from transformer_norms.analysis.trained.measuring import Measure, measure_models, read_subjects
from transformer_norms.analysis.trained.subjects import (
    WINDOWS,
    Loaded,
    check_keys,
    check_vocabulary,
    context_of,
    is_checkpoint,
    load_own,
    read_tokens,
    save_changed,
    split_context,
)
from transformer_norms.analysis.untrained_models import with_defaults
from transformer_norms.config.building import build_trainer
from transformer_norms.config.compose import recompose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.data.batches import Batches
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.training.divergence import Divergence
from transformer_norms.training.trainer import Trainer

# The defaults of the tuning: its horizon is not that of the run.
DEFAULTS = {"trainer.steps": "300", "schedule.warmup": "20"}
RATE = 1 / 3  # of the run's own peak
# A checkpoint does not say at which rate it was trained: the default of transformers' own Trainer.
CHECKPOINT_RATE = 5e-5
OF_CHECKPOINTS = {
    "optimizer.lr": f"{CHECKPOINT_RATE:g}",
    "trainer.batch_size": f"{WINDOWS}",
    "data.val_tokens": "32768",
}
FIXED = {"trainer.eval_every": "0", "trainer.probe_every": "0", "trainer.compile": "none"}
TYPED = (
    "trainer.steps trainer.batch_size trainer.accumulation trainer.clip trainer.device optimizer "
    "schedule plugins"
).split()
TYPED_OF_CHECKPOINTS = "data model.context trainer.precision seed".split()
OF_TUNINGS = f"""KEY=VALUE changes how it is tuned on, as for train. Where nothing is typed it is
  {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())}
and {RATE:.2g} of the run's own peak rate, its optimizer afresh. A folder of
transformers is tuned on --text FILE or on the corpus of typed data keys, in
windows of model.context tokens, with optimizer.lr={CHECKPOINT_RATE:g} if none is typed.
"""
BEFORE, TUNED, CONTROL = "before", "tuned", "control"
SMOOTH = 15  # steps, whose mean difference is drawn
# Changes the model that is tuned on, where a change is due before a step. Yields the name of each
# stage in which the model is to be validated, while it is in it.
Timetable = Callable[[int], Iterable[str]]


def measure_tuned(
    analysis: Analysis, measure: Measure, change: str, typed: Namespace, tell: Tell
) -> Outcome:
    """Measures each model that was typed, with `measure`. `change` is the name of what it does.
    Raises ConfigError before the first where a changed model cannot be saved."""
    subjects = read_subjects(typed, tell)
    if typed.save is not None:
        check_new(*(saved_folder(typed.save, one.folder, change) for one in subjects.members))
    return measure_models(analysis, measure, typed, tell, subjects, load_tunable)


def saved_folder(home: Path, folder: Path, change: str) -> Path:
    """Returns where the changed model of a folder is saved in the folder of --save."""
    return home / f"{folder.resolve().name}-{change}"


# ------------------------------------------------------------------------- a model that is tuned on


@dataclass(frozen=True)
class Tunable(Loaded):
    """A trained model that is tuned on, on the CPU.

    `config` is that of the tuning; its optimizer starts afresh. The tuning reads on in `train`
    after what the run of `summary` has read. A folder of transformers has no summary.
    """

    train: np.ndarray
    summary: Summary | None

    def trainer(self, model: Transformer, config: Config) -> Trainer:
        """A trainer that reads on where the model's own training stopped."""
        size, sequences = config.trainer.batch_size, 0
        if self.summary is not None:
            torch.set_num_threads(self.summary.threads or 1)
            sequences = self.summary.step * self.own.trainer.batch_size
        batches = Batches(self.train, self.context, size, config.data.seed)
        first = -(-sequences // size)
        return build_trainer(
            config, model.train(), lambda step: batches(first + step), self.windows
        )

    def tune_control(self, stages: Mapping[int, str], tell: Tell) -> "TuningLosses":
        """Tunes the model on as it is, and validates it at the steps of `stages`."""
        trainer = self.trainer(copy.deepcopy(self.model), self.config)
        return tune(trainer, stay(stages), CONTROL, tell)

    @property
    def text_line(self) -> str:
        """How much text the tuning and the validation read."""
        tuned = self.config.trainer.steps * self.config.trainer.batch_size * self.context
        return f"tuned on {tuned} tokens of text, validated on {self.tokens_read}"

    def save(self, model: Transformer, config: Config, home: Path, change: str) -> Path:
        """Writes a changed model of `config` into a new folder in `home`, which is returned."""
        folder = saved_folder(home, self.folder, change)
        save_changed(folder, model, config, self.folder, change, self.config.trainer.steps)
        return folder


def load_tunable(folder: Path, typed: Sequence[str], text: Path | None = None) -> Tunable:
    """Returns the trained model of a folder, to be tuned on as `typed` says: KEY=VALUE as train.py
    takes them. `text` is that of a folder of transformers.

    Raises ConfigError if it is not a run, or if its text has changed.
    """
    of_checkpoint, summary = is_checkpoint(folder), read_summary(folder)
    check_keys(typed, "a tuning", [*TYPED, *(TYPED_OF_CHECKPOINTS if of_checkpoint else ())])
    if text is not None and not of_checkpoint:
        raise ConfigError(f"--text {text}: {folder} is a run, which is tuned on its own text")
    if summary is None and not of_checkpoint:
        raise ConfigError(f"{folder}: was saved by an analysis, and only a run can be tuned on")
    if text is not None:
        split = [] if any(word.startswith("data.split=") for word in typed) else ["data.split=tail"]
        typed = ["data=text", as_typed("data.paths", [str(text.resolve())]), *split, *typed]
    kept, context = split_context(typed)
    model, own = load_own(folder, kept)
    rate = {"optimizer.lr": f"{own.optimizer.lr * RATE:g}"}
    usual = {**DEFAULTS, **(OF_CHECKPOINTS if of_checkpoint else rate), **FIXED}
    config = recompose(own, with_defaults(kept, usual))
    tokens, context = read_tokens(folder, config), context_of(context, model, folder)
    tokens.check(context)
    check_vocabulary(folder, model, tokens.train, tokens.val)
    precision = config.trainer.precision
    model = model.double() if precision == "fp64" else model
    return Tunable(
        folder, model, own, config, tokens.val, context, precision, tokens.train, summary
    )


# --------------------------------------------------------------------------------------- the tuning


@dataclass
class TuningLosses:
    """One model tuned on: step and validation loss by stage, and the training loss of each step,
    in nats per token. `diverged` says why it ended early, and is empty where it did not."""

    steps: dict[str, int] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)
    diverged: str = ""

    def validate(self, stage: str, trainer: Trainer) -> None:
        measured = trainer.evaluate(trainer.validation())
        assert measured is not None
        self.steps[stage] = trainer.step
        self.validation[stage] = measured.nats / measured.tokens


def stay(stages: Mapping[int, str]) -> Timetable:
    """The timetable of a model that stays as it is: the stage of a step, if it has one."""
    return lambda step: [stages[step]] if step in stages else []


def tune(trainer: Trainer, timetable: Timetable, what: str, tell: Tell) -> TuningLosses:
    """Tunes the trainer's model on to its last step, as the timetable says. `what` names the model
    to `tell`."""
    tuning, steps = TuningLosses(), trainer.settings.steps
    # A loss above the first one is to be measured here; only one that is not finite ends it.
    trainer.divergence = Divergence(warmup=steps)
    for step in range(steps):
        tell(f"{what}: step {{:.0f}}/{{:.0f}}", step, steps)
        for stage in timetable(step):
            tuning.validate(stage, trainer)
        tuning.diverged = trainer.train_step() or ""
        if tuning.diverged:
            return tuning
        tuning.training.append(trainer.last_loss)
    tuning.validate(TUNED, trainer)
    return tuning


def tuning_rows(
    change: str, changed: TuningLosses, control: TuningLosses, rounding: float | None = None
) -> Iterator[Row]:
    """The losses of a model, those of each stage, and those of each step."""
    reasons = {change: changed.diverged, CONTROL: control.diverged}
    tuned, end = (tuning.validation.get(TUNED) for tuning in (changed, control))
    yield {
        **changed.validation,
        BEFORE: control.validation.get(BEFORE),
        CONTROL: end,
        "gap": None if tuned is None or end is None else tuned - end,
        "rounding": rounding,
        DIVERGED: "; ".join(f"{which}: {why}" for which, why in reasons.items() if why),
    }
    for stage, step in {BEFORE: 0, **changed.steps, **control.steps}.items():
        one, other = (tuning.validation.get(stage) for tuning in (changed, control))
        losses = {"val_loss": one, f"val_loss_{CONTROL}": other}
        yield {KIND: "stage", "stage": stage, "step": step, **losses}
    for step, (one, other) in enumerate(zip_longest(changed.training, control.training), start=1):
        yield {KIND: "step", "step": step, "train_loss": one, f"train_loss_{CONTROL}": other}


# ----------------------------------------------------------------------- the numbers and the figure


def end_numbers(digits: str) -> Numbers:
    """The losses at the end of the tuning, and their difference."""
    return {
        TUNED: Number(TUNED, "at the end of the tuning", digits),
        CONTROL: Number(
            CONTROL, "the same model tuned on the same batches with its own norms", digits
        ),
        "gap": Number("gap", "tuned less control", "+.4f", compared=True),
    }


def stage_losses(rows: Rows) -> Rows:
    """The validation loss of each variant at each stage, and that of its control. Before the first
    stage the two are one model."""
    control = f"val_loss_{CONTROL}"
    sides = (("val_loss", ""), (control, f", {CONTROL}"))
    return [
        {
            **row,
            MODEL: f"{row[MODEL]}{words}",
            "loss": row.get(control if row["stage"] == BEFORE else key),
        }
        for key, words in sides
        for row in of_kind(rows, "stage")
    ]


def loss_differences(rows: Rows) -> Rows:
    """How far the training loss lies above the control's on the same batch, as the mean of SMOOTH
    steps."""
    models: dict[tuple[str, Any], list[float]] = {}
    for row in of_kind(rows, "step"):
        changed, control = row.get("train_loss"), row.get(f"train_loss_{CONTROL}")
        if changed is not None and control is not None:
            models.setdefault((row[MODEL], row.get(SEED)), []).append(changed - control)
    means = {
        model: np.convolve(each, np.ones(SMOOTH) / SMOOTH, "valid").tolist()
        for model, each in models.items()
        if len(each) >= SMOOTH
    }
    return [
        {MODEL: name, SEED: seed, "step": step, "difference": mean}
        for (name, seed), each in means.items()
        for step, mean in enumerate(each, start=SMOOTH)
    ]


PANELS = (
    Lines(stage_losses, "stage", "loss", "", "validation loss, nats per token"),
    Lines(
        loss_differences, "step", "difference", "step",
        f"training loss - control's, nats\n(mean of {SMOOTH} steps)", level=0.0,
    ),
)  # fmt: skip
