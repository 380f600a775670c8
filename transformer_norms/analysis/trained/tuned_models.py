"""Measures the cost of a change of norms: each changed model is trained on, with an equal control.

The changes are those of swap and of norm_removal.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_norms.analysis.norm_tuning import BEFORE, CONTROL, TUNED, Cost
from transformer_norms.analysis.outcome import (
    DIVERGED,
    KIND,
    MODEL,
    SEED,
    Analysis,
    Number,
    Numbers,
    Outcome,
    Row,
    Rows,
    of_kind,
)
from transformer_norms.analysis.rendering import check_folder, write_outcome
from transformer_norms.analysis.trained.over_seeds import outcome_of
from transformer_norms.analysis.trained.subjects import read_subjects
from transformer_norms.analysis.trained.tunable import (
    TYPED,
    TYPED_OF_CHECKPOINTS,
    Tunable,
    read_tunable,
)
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


class Changed(NamedTuple):
    """The cost of a change of a model's norms, and the model that it ends with, which is saved with
    `config` unless its tuning diverged. `rows` say more of the change."""

    cost: Cost
    model: Transformer
    config: Config
    rows: Rows = ()


# Changes the norms of one model, whose title is given, and tunes it on.
Change = Callable[[str, Tell], Changed]


def change_models(
    analysis: Analysis,
    typed: Namespace,
    tell: Tell,
    name: str,
    prepare: Callable[[Tunable], Change],
    setting: str,
) -> Outcome:
    """Changes the norms of each model that is typed, tunes it on, and writes what was found.

    `name` is that of the change. A model for which `prepare` raises ConfigError is left out; the
    error is raised if none is left.
    """
    subjects = read_subjects(typed, tell, [*TYPED, *TYPED_OF_CHECKPOINTS])
    check_saved(typed.save, [subject.folder for subject in subjects.members], name)
    keys = [word for word in typed.where if "=" in word and not Path(word).exists()]
    changes: list[tuple[Tunable, Change]] = []
    reasons: dict[int, str] = {}
    for place, subject in enumerate(subjects.members):
        tunable = read_tunable(subject.folder, keys, typed.text)
        try:
            changes.append((tunable, prepare(tunable)))
        except ConfigError as error:
            reasons[place] = str(error)
    if not changes:
        raise ConfigError(reasons[0])
    read = dict.fromkeys(tunable.text_line for tunable, _ in changes)
    subjects = subjects.without(reasons, [f"{setting}{' ' * bool(keys)}{' '.join(keys)}", *read])
    rows: list[Row] = []
    saved: list[str] = []
    origins = [subject.origin for subject in subjects.members]
    for subject, (tunable, change) in zip(subjects.members, changes, strict=True):
        cost, model, config, more = change(subject.title, tell)
        rows += [{**subject.columns, **row} for row in (*rows_of(cost, name), *more)]
        if typed.save and not cost.changed.diverged:
            out = saved_folder(typed.save, tunable.folder, name)
            tunable.save(model, config, out, name)
            saved.append(str(out))
        outcome = outcome_of(analysis, subjects, rows, (), origins, saved)
        write_outcome(outcome, typed.out)
    return outcome


def saved_folder(home: Path, folder: Path, name: str) -> Path:
    """The folder in `home` for what a change makes of the model in `folder`."""
    return home / f"{folder.resolve().name}-{name}"


def check_saved(home: Path | None, folders: Sequence[Path], name: str) -> None:
    """Raises ConfigError if a model cannot be written into the folder that --save names."""
    if home is None:
        return
    check_folder(home)
    outs = [saved_folder(home, folder, name) for folder in folders]
    for out in outs:
        if out.exists() or outs.count(out) > 1:
            why = "is there already" if out.exists() else "would be written twice"
            raise ConfigError(f"--save {home}: {out} {why}; name another folder")


def rows_of(cost: Cost, name: str) -> Iterator[Row]:
    """The losses of a model, those of each stage, and those of each step. `name` is that of the
    change."""
    changed, control = cost.changed, cost.control
    reasons = {name: changed.diverged, CONTROL: control.diverged}
    ends = {BEFORE: control.validation.get(BEFORE), CONTROL: control.validation.get(TUNED)}
    yield {
        **changed.validation,
        **ends,
        "gap": cost.gap,
        "rounding": cost.rounding,
        DIVERGED: "; ".join(f"{which}: {why}" for which, why in reasons.items() if why),
    }
    for stage, step in cost.steps.items():
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
