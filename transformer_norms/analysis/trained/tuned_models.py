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

from transformer_norms.analysis.norm_tuning import BEFORE, CONTROL, TUNED, Timetable, Tuning, stay
from transformer_norms.analysis.outcome import (
    DIVERGED,
    KIND,
    MODEL,
    SEED,
    Number,
    Numbers,
    Row,
    Rows,
    of_kind,
)
from transformer_norms.analysis.rendering import check_new
from transformer_norms.analysis.trained.subjects import Unmeasured, typed_keys
from transformer_norms.analysis.trained.tunable import Tunable
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.report.figures import GREY, line_style

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
    out = typed.save and typed.save / f"{tunable.folder.resolve().name}-{name}"
    if out:
        check_new(out)
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
        if out:
            tunable.save(model, change.saved, out, name)
            yield out
    yield from rows_of(changed, control, rounding, name)
    yield from change.rows


def rows_of(changed: Tuning, control: Tuning, rounding: float | None, name: str) -> Iterator[Row]:
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


def draw_stages(axes: Any, rows: Rows) -> None:
    """The validation loss at each stage: dots while the norms change, crosses for the control."""
    stages = list(dict.fromkeys(row["stage"] for row in of_kind(rows, "stage")))
    for place, (name, seeds) in enumerate(_models(rows, "stage").items()):
        colour, _ = line_style(place + 1)
        for own in seeds:
            for key, mark, line, words in (
                ("val_loss", "o", "-", "changed"),
                (f"val_loss_{CONTROL}", "x", "--", CONTROL),
            ):
                there = {row["stage"]: row[key] for row in own if row.get(key) is not None}
                axes.plot(
                    [stages.index(stage) for stage in there], [*there.values()], mark,
                    linestyle=line, color=colour, markersize=3.5, linewidth=0.9,
                    label=f"{name}, {words}" if own is seeds[0] else None,
                )  # fmt: skip
    axes.set_xticks(range(len(stages)), stages, rotation=20)
    axes.set(ylabel="validation loss, nats per token")


def draw_differences(axes: Any, rows: Rows) -> None:
    """How far each step's training loss lies above the control's, on the same batch: a thin line a
    seed, a thick one a variant's mean."""
    for place, (name, seeds) in enumerate(_models(rows, "step").items()):
        colour, dashes = line_style(place + 1)
        lines = []
        for own in seeds:
            pairs = [(row.get("train_loss"), row.get("train_loss_control")) for row in own]
            apart = np.array([a - b for a, b in pairs if a is not None and b is not None])
            if len(apart) >= SMOOTH:
                lines.append(np.convolve(apart, np.ones(SMOOTH) / SMOOTH, "valid"))
                each = np.arange(len(lines[-1])) + SMOOTH
                axes.plot(each, lines[-1], color=colour, linewidth=0.4)
        if lines:
            mean = np.mean([line[: min(map(len, lines))] for line in lines], axis=0)
            axes.plot(
                np.arange(len(mean)) + SMOOTH, mean, color=colour, linestyle=dashes, linewidth=1.6,
                label=name,
            )  # fmt: skip
    axes.set(xlabel="step", ylabel=f"training loss - control's, nats\n(mean of {SMOOTH} steps)")
    axes.axhline(0, color=GREY, linewidth=0.8)


def _models(rows: Rows, kind: str) -> Mapping[str, list[Rows]]:
    """The rows of a kind of each model, by variant."""
    models: dict[str, dict[Any, list[Row]]] = {}
    for row in of_kind(rows, kind):
        models.setdefault(row[MODEL], {}).setdefault(row.get(SEED), []).append(row)
    return {name: list(seeds.values()) for name, seeds in models.items()}
