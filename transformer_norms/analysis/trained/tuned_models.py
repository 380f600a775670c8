"""Measures the cost of a change of norms: each changed model is trained on, with an equal control.

The changes are those of swap and of norm_removal.
"""

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.analysis.outcome import (
    DIVERGED,
    KIND,
    MODEL,
    SEED,
    Lines,
    Number,
    Numbers,
    Row,
    Rows,
    of_kind,
)
from transformer_norms.analysis.trained.subjects import Unmeasured, typed_keys
from transformer_norms.analysis.trained.tunable import (
    BEFORE,
    CONTROL,
    TUNED,
    Timetable,
    Tunable,
    TuningLosses,
    stay,
)
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell

SMOOTH = 15  # steps, of what is drawn of a step's differences


def end_numbers(digits: str) -> Numbers:
    """The losses at the end of the tuning, and their difference."""
    return {
        TUNED: Number(TUNED, "at the end of the tuning", digits),
        CONTROL: Number(
            CONTROL, "the same model tuned on the same batches with its own norms", digits
        ),
        "gap": Number("gap", "tuned less control", "+.4f", compared=True),
    }


@dataclass(frozen=True)
class Change:
    """A change of a model's norms, in which the model is tuned on.

    `model` is tuned with `config`, as the timetable says, which is made once the model's optimizer
    is there. The control is the model as it was, validated at the steps of `stages`. `finish`
    makes of the tuned model the one that is saved with the config `saved`, and tells the rounding
    of that. `words` and `rows` say more of the change.
    """

    model: Transformer
    config: Config
    timetable: Callable[[Transformer], Timetable]
    stages: Mapping[int, str]
    saved: Config
    words: str
    finish: Callable[[Transformer], tuple[Transformer, float | None]] = lambda model: (model, None)
    rows: Rows = ()


def measure_change(
    name: str, prepare: Callable[[Tunable], Change], tunable: Tunable, tell: Tell, typed: Namespace
) -> Iterator[Row | str | Path]:
    """Changes the norms of a model, tunes it on, and saves it where --save was typed. Yields what
    was measured and written. `name` is that of the change. Raises Unmeasured where `prepare`
    raises ConfigError."""
    try:
        change = prepare(tunable)
    except ConfigError as error:
        raise Unmeasured(str(error)) from None
    changed, model = tunable.tune(change.model, change.config, change.timetable, name, tell)
    unchanged, stays = copy.deepcopy(tunable.model), stay(change.stages)
    control, _ = tunable.tune(unchanged, tunable.config, lambda _: stays, CONTROL, tell)
    yield " ".join([change.words, *typed_keys(typed)])
    rounding = None
    if not changed.diverged:
        model, rounding = change.finish(model)
        if out := saved_folder(name, typed.save, tunable.folder):
            tunable.save(model, change.saved, out, name)
            yield out
    yield from rows_of(changed, control, rounding, name)
    yield from change.rows


def saved_folder(name: str, home: Path | None, folder: Path) -> Path | None:
    """Returns the folder of a changed model, if --save named a `home`."""
    return home and home / f"{folder.resolve().name}-{name}"


def rows_of(
    changed: TuningLosses, control: TuningLosses, rounding: float | None, name: str
) -> Iterator[Row]:
    """The losses of a model, those of each stage, and those of each step. `name` is that of the
    change."""
    reasons = {name: changed.diverged, CONTROL: control.diverged}
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
        losses = (tuning.validation.get(stage) for tuning in (changed, control))
        yield {KIND: "stage", "stage": stage, "step": step, **_pair("val_loss", *losses)}
    for step, both in enumerate(zip_longest(changed.training, control.training), start=1):
        yield {KIND: "step", "step": step, **_pair("train_loss", *both)}


def _pair(name: str, changed: float | None, control: float | None) -> Row:
    return {name: changed, f"{name}_{CONTROL}": control}


# ------------------------------------------------------------------------------------ the figure


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
