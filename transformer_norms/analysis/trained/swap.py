"""Another norm in a trained model: its cost before and after tuning, beside an equal control."""

# The swap is made before the first step, so that the optimizer knows the new norms' parameters. The
# control is the same model tuned on the same batches with its own norms. DyT (Zhu et al. 2025,
# arXiv:2503.10622) and Derf (Chen et al. 2025, arXiv:2512.10938) were trained from the start; what
# is measured here is whether a model that learned with one norm can go on with another.

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from transformer_norms.analysis.command import (
    add_subjects,
    analysis_parser,
    check_saved,
    run_analysis,
    saved_folder,
    svg_bytes,
)
from transformer_norms.analysis.norm_swapping import (
    Swap,
    check_places,
    compose_swapped,
    is_swap,
    swap_norms,
    swap_rows,
)
from transformer_norms.analysis.norm_tuning import BEFORE, CONTROL, TUNED, Cost, Timetable
from transformer_norms.analysis.trained.over_seeds import (
    Quantity,
    Tables,
    by_variant,
    seed_tables,
    terminal_text,
)
from transformer_norms.analysis.trained.subjects import (
    Subject,
    Subjects,
    Unmeasured,
    left_out,
    read_subjects,
)
from transformer_norms.analysis.trained.tunable import (
    OF_TUNINGS,
    TYPED_OF_CHECKPOINTS,
    Tunable,
    read_tunable,
)
from transformer_norms.analysis.trained.tunable import TYPED as OF_THE_TUNING
from transformer_norms.analysis.tuning_curves import by_name, curves_csv, draw_differences
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, line_style, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table

TITLE = "Norms swapped"
SWAPPED, GAP = "swapped", "gap"
QUANTITIES = {
    BEFORE: Quantity(BEFORE),
    SWAPPED: Quantity(SWAPPED),
    TUNED: Quantity(TUNED),
    CONTROL: Quantity(CONTROL),
    GAP: Quantity(GAP),
}
LEGEND = (
    "Validation losses in nats per token. before: as it was trained; swapped: with the new norm, "
    "before any tuning; tuned: at the end of the tuning; control: the same model tuned on the same "
    "batches with its own norms; gap: tuned less control."
)
OVER_SEEDS = " After ±: half of Student's 95 % interval, of the gap over paired seeds."
LEGEND_OF_WEIGHTS = (
    "Parameters of norms: carried over to the new norm; at its own start; left out, since the new "
    "norm has no place for it. All other weights are those that were trained."
)
LIMITS = (
    "A norm that a model was trained with from the start may do better or worse than one that it "
    "was tuned to.",
    "The rate and the length of the tuning are the control's, and were not tuned for the new norm.",
    "What a norm brings with it (a start of weights, a head of its own, a scale of the embedding) "
    "is not swapped.",
)
EPILOG = f"""
MODEL is a finished run, a study of several runs, or a folder that transformers
loads. A run or a study is named by its path or by a part of its name below ./runs.
norm=NEW stands at each site that has the run's norm; norm.KEY=VALUE are its own
keys. One site is typed as in a config: final_norm=NEW, qk_norm=NEW, or
  placement.equation="{{attention: x + f(norm(x)), mlp: x + f(NEW(x))}}"
in which nothing changes but names of norms. Gain and bias are carried over,
other parameters of the new norm are at their own start.
{OF_TUNINGS}Files are written after each model.
"""


@dataclass(frozen=True)
class Swapped:
    """What the swap cost one model, and what became of its norms."""

    subject: Subject
    origin: str
    cost: Cost
    swaps: Sequence[Swap]

    @property
    def diverged(self) -> str:
        """Why one of the two tunings has no end, or nothing."""
        reasons = {SWAPPED: self.cost.changed.diverged, CONTROL: self.cost.control.diverged}
        return "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)

    @property
    def numbers(self) -> dict[str, float]:
        """The losses by their names in the tables, those that there are, and the gap."""
        changed, control = self.cost.changed.validation, self.cost.control.validation
        found = {
            BEFORE: control.get(BEFORE),
            SWAPPED: changed.get(SWAPPED),
            TUNED: changed.get(TUNED),
            CONTROL: control.get(TUNED),
            GAP: self.cost.gap,
        }
        return {name: number for name, number in found.items() if number is not None}


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("swap", __doc__, out, "runs/main norm=dyt --out DIR", EPILOG)
    add_subjects(parser)
    parser.add_argument("--save", type=typed_path, metavar="FOLDER", help="where tuned models go")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    swap = [word for word in typed.where if is_swap(word)]
    if not swap:
        raise ConfigError("type the norm that comes in, such as norm=dyt or final_norm=layernorm")
    rest = Namespace(**{**vars(typed), "where": [w for w in typed.where if w not in swap]})
    known = [*OF_THE_TUNING, *TYPED_OF_CHECKPOINTS]
    subjects = read_subjects(rest, tell, known)
    check_saved(typed.save, [subject.folder for subject in subjects.members], SWAPPED)
    keys = [word for word in rest.where if "=" in word]
    tunables = [read_tunable(s.folder, keys, typed.text) for s in subjects.members]
    subjects, ready = check_swaps(subjects, tunables, swap)
    setting = f"{' '.join(swap)}, tuned on for {ready[0][1].trainer.steps} steps."
    swapped: list[Swapped] = []
    paths: list[str] = []
    models: list[str] = []
    for subject, (tunable, config) in zip(subjects.members, ready, strict=True):
        one, model = measure(subject, tunable, config, tell)
        swapped.append(one)
        if typed.save and TUNED in one.cost.changed.validation:
            out = saved_folder(typed.save, tunable.folder, SWAPPED)
            tunable.save(model, compose_swapped(tunable.own, swap), out, SWAPPED)
            models.append(str(out))
        if typed.out:
            paths = write_files(typed.out, files(those_ended(subjects, swapped), swapped, setting))
    facts = {"numbers": [{"model": s.subject.title, **s.numbers} for s in swapped]}
    text = terminal(those_ended(subjects, swapped), swapped)
    return text, {**facts, "files": [*paths, *models]}


def check_swaps(
    subjects: Subjects, tunables: Sequence[Tunable], swap: Sequence[str]
) -> tuple[Subjects, list[tuple[Tunable, Config]]]:
    """Returns the models in which the norms can be swapped, with notices, and the config of each
    tuning. Raises ConfigError where there is none."""
    errors: list[Unmeasured] = []
    ready: list[tuple[Tunable, Config]] = []
    for subject, tunable in zip(subjects.members, tunables, strict=True):
        try:
            config = compose_swapped(tunable.config, swap)
            check_places(tunable.model, config)
        except ConfigError as error:
            errors.append(Unmeasured(subject, str(error)))
            if len(errors) == len(tunables):
                raise
        else:
            ready.append((tunable, config))
    read = list(dict.fromkeys(tunable.text_line for tunable, _ in ready))
    return replace(subjects.without(errors), notices=[*left_out(errors), *read]), ready


# ------------------------------------------------------------------------------------- measuring


def measure(
    subject: Subject, tunable: Tunable, config: Config, tell: Tell
) -> tuple[Swapped, Transformer]:
    """Tunes the model with the norms of `config`, and the control. Returns both, and the model as
    it is tuned."""
    model, swaps = swap_norms(tunable.model, config)
    timetable, title = Timetable({0: SWAPPED}), subject.title
    changed, model = tunable.tune(model, config, lambda _: timetable, f"{title}, swapped", tell)
    control, _ = tunable.tune_control({0: BEFORE}, title, tell)
    cost = Cost(subject.name, subject.seed, changed, control)
    return Swapped(subject, tunable.origin, cost, swaps), model


def those_ended(subjects: Subjects, swapped: Sequence[Swapped]) -> Subjects:
    """The models whose tunings both have an end. The others are named as missing."""
    missing = {name: dict(seeds) for name, seeds in subjects.missing.items()}
    for one in swapped:
        if one.diverged and one.subject.seed is not None:
            missing.setdefault(one.subject.name, {})[one.subject.seed] = (
                f"diverged ({one.diverged})"
            )
    return replace(
        subjects, members=[one.subject for one in swapped if not one.diverged], missing=missing
    )


# --------------------------------------------------------------------------- tables and sentences


def tables(ended: Subjects, swapped: Sequence[Swapped]) -> Tables:
    """The losses of one model or over seeds, and what became of the norms of each variant."""
    names = [*QUANTITIES]
    if len(swapped) == 1:
        one = swapped[0]
        cells = [
            f"{one.numbers[name]:{'+' * (name == GAP)}.4f}" if name in one.numbers else "diverged"
            for name in names
        ]
        losses: Tables = [([["model", *names], [one.subject.title, *cells]], LEGEND)]
    elif ended.members:
        numbers = by_variant((s.subject, s.numbers) for s in swapped if not s.diverged)
        losses = seed_tables(ended, numbers, QUANTITIES, LEGEND + OVER_SEEDS, [GAP])
    else:
        losses = []
    return [*losses, (norm_rows(swapped), LEGEND_OF_WEIGHTS)]


def norm_rows(swapped: Sequence[Swapped]) -> list[list[str]]:
    """Tabulates what became of the norms, of all variants where that differs between them."""
    each = {one.subject.name: swap_rows(one.swaps) for one in swapped}
    distinct = list({str(rows): rows for rows in each.values()}.values())
    if len(distinct) == 1:
        return distinct[0]
    heading = ["model", *distinct[0][0]]
    return [heading, *([name, *row] for name, rows in each.items() for row in rows[1:])]


def sentences(swapped: Sequence[Swapped]) -> list[str]:
    if len(swapped) > 1:
        alone = [one for one in swapped if one.diverged and one.subject.seed is None]
    else:
        alone = [one for one in swapped if one.diverged]
    lines = [f"{one.subject.title}: diverged ({one.diverged})" for one in alone]
    if len(swapped) == 1 and (gap := swapped[0].cost.gap) is not None:
        rise = swapped[0].numbers[SWAPPED] - swapped[0].numbers[BEFORE]
        lines.append(
            f"{swapped[0].subject.title}: {rise:+.3f} nats by the swap, and {gap:+.4f} against the "
            "control behind the tuning (one model: no interval)"
        )
    return lines


def terminal(ended: Subjects, swapped: Sequence[Swapped]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(swapped), *ended.notes]
    titles = [one.subject.title for one in swapped]
    return terminal_text(TITLE, titles, ended.notices, tables(ended, swapped), remarks)


# ------------------------------------------------------------------------------------- the files


def files(ended: Subjects, swapped: Sequence[Swapped], setting: str) -> dict[str, bytes]:
    """The contents of swap.csv, of swap_curves.csv, swap_norms.csv, .md and .svg."""
    costs = [one.cost for one in swapped]
    norms: list[list[Any]] = [["model", *swap_rows([])[0]]]
    rows: list[list[Any]] = [["model", "seed", *QUANTITIES, "diverged"]]
    for one in swapped:
        numbers = [one.numbers.get(name) for name in QUANTITIES]
        rows.append([one.subject.name, one.subject.seed, *numbers, one.diverged])
        norms += [[one.subject.title, *row] for row in swap_rows(one.swaps)[1:]]
    return {
        "swap.csv": csv_table(rows),
        "swap_curves.csv": curves_csv(costs),
        "swap_norms.csv": csv_table(norms),
        "swap.md": page(ended, swapped, setting).encode(),
        "swap.svg": figure(costs),
    }


def page(ended: Subjects, swapped: Sequence[Swapped], setting: str) -> str:
    sections = [f"# {TITLE}", setting]
    lines = [*ended.notices, *sentences(swapped)]
    sections += [markdown_list(lines)] if lines else []
    for rows, legend in tables(ended, swapped):
        sections += [markdown_table(rows), legend]
    sections += [f"![{TITLE.lower()}](swap.svg)"]
    sections += [markdown_list(ended.notes)] if ended.notes else []
    sections += ["## What this does not show", markdown_list(LIMITS)]
    return "\n\n".join([*sections, "## Models", markdown_list([s.origin for s in swapped])]) + "\n"


# ------------------------------------------------------------------------------------ the figure


def figure(costs: Sequence[Cost]) -> bytes:
    """An SVG. Left the validation loss before, behind the swap and at the end, and the control's.
    Right how far each step's training loss lies above the control's."""
    plt = pyplot()
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    for place, (name, own) in enumerate(by_name(costs).items()):
        colour, _ = line_style(place + 1)
        for n, cost in enumerate(own):
            changed, control = cost.changed.validation, cost.control.validation
            before = control.get(BEFORE, nan)
            losses = [before, changed.get(SWAPPED, nan), changed.get(TUNED, nan)]
            left.plot(
                range(3), losses, "o-", color=colour, markersize=3.5, linewidth=0.9,
                label=None if n else f"{name}, swapped",
            )  # fmt: skip
            left.plot(
                [0, 2], [before, control.get(TUNED, nan)], "x--", color=colour, markersize=3.5,
                linewidth=0.9, label=None if n else f"{name}, {CONTROL}",
            )  # fmt: skip
    left.set_xticks(range(3), [BEFORE, SWAPPED, TUNED])
    left.set(ylabel="validation loss, nats per token")
    draw_differences(right, costs)
    for axes in (left, right):
        style_axes(axes)
        if axes.get_legend_handles_labels()[0]:  # a short tuning has no mean of steps
            axes.legend(fontsize=FONT, frameon=False)
    return svg_bytes(drawing)


if __name__ == "__main__":
    sys.exit(main())
