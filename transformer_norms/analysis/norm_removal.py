"""From a trained model to one without norms: what each stage costs, beside an equal control."""

# A norm's division by each token's own length becomes a division by one number, one norm after the
# other while the model is tuned on. What is then left of a norm is a matrix, which the weights that
# read it take in. Baroni et al. 2025, arXiv:2507.02559, after Heimersheim 2024, arXiv:2409.13710,
# who did it to GPT-2.
#
# Theirs differs in three points: queries and keys lose their norm before values do; the end-of-text
# token keeps a length of its own for a while, as the first token does here too; and some of their
# models had an auxiliary loss on the last lengths.

import sys
from argparse import Namespace
from collections.abc import Sequence
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.analysis.command import (
    analysis_parser,
    check_saved,
    paragraph,
    run_analysis,
    saved_folder,
    svg_bytes,
)
from transformer_norms.analysis.freezing_order import AT_ONCE, FIRST, ORDER, Removable
from transformer_norms.analysis.norm_freezing import STAGES
from transformer_norms.analysis.norm_tuning import BEFORE, CONTROL, TUNED, Cost
from transformer_norms.analysis.trained.subjects import find_model, is_checkpoint
from transformer_norms.analysis.trained.tunable import (
    OF_TUNINGS,
    Tunable,
    read_tunable,
)
from transformer_norms.analysis.tuning_curves import by_name, curves_csv, draw_differences
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.comparison.statistics import half_interval
from transformer_norms.comparison.sweep_record import label
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, line_style, pyplot, style_axes
from transformer_norms.report.gathering.grouping import group_by_variant
from transformer_norms.report.writing import write_files
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table, text_table

EPILOG = f"""
MODEL is a finished run, by its folder or a part of its name below ./runs, or a
folder that transformers loads. Its norms are LayerNorms or RMSNorms that stand
before sub-layers and before the head (placement=pre, parallel, lns, ...).
{OF_TUNINGS}From step --start on, every --gap steps, one norm after the other divides by its
average length instead of each token's own: those before the mlps, then those
before attention, then the one before the head; the sequence's first token last.
The control is the same model, tuned on the same batches with its norms. Losses
are validation losses in nats per token. Files are written after each run.
"""
LEGEND = (
    "Validation losses in nats per token; at once: all norms frozen at the step of the first, and "
    "nothing tuned after; mlp, attention, final, first token: once these had gone, one by one; "
    "gap: tuned without norms less the control, which was tuned alike with its norms."
)


def make_parser() -> Parser:
    out = "where table and figure go, in the place of others"
    parser = analysis_parser(
        "norm_removal", __doc__, out, "rmsnorm --out DIR trainer.steps=300", EPILOG
    )
    parser.add_argument("runs", nargs="+", metavar="MODEL | KEY=VALUE", help="see below")
    parser.add_argument(
        "--start", type=int, default=20, metavar="STEP", help="of the first norm (%(default)s)"
    )
    parser.add_argument(
        "--gap", type=int, default=5, metavar="STEPS", help="between two norms (%(default)s)"
    )
    parser.add_argument(
        "--text", type=typed_path, metavar="FILE", help="of a folder of transformers"
    )
    parser.add_argument("--save", type=typed_path, metavar="DIR", help="where the folded models go")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    keys = [text for text in typed.runs if "=" in text and not Path(text).exists()]
    folders = [find_model(text) for text in typed.runs if text not in keys]
    _check(typed, folders)
    tunables = [read_tunable(folder, keys, typed.text) for folder in folders]
    removables = [Removable(tunable, typed.start, typed.gap) for tunable in tunables]
    costs: list[Cost] = []
    paths: list[str] = []
    models: list[str] = []
    for one, name in zip(removables, _names(folders), strict=True):
        cost, model = one.remove(name, tell)
        costs.append(cost)
        if typed.save and model is not None:
            out = saved_folder(typed.save, one.tunable.folder, "folded")
            one.tunable.save(model, one.normless, out, "folded")
            models.append(str(out))
        if typed.out:
            setting = (
                f"Tuned on for {len(costs[0].control.training)} steps, a norm frozen every "
                f"{typed.gap} from step {typed.start} on{', ' * bool(keys)}{' '.join(keys)}."
            )
            paths = write_files(typed.out, files(costs, tunables, setting))
    remarks = map(paragraph, (LEGEND, *text_lines(tunables), *sentences(costs)))
    return "\n".join([text_table(rows(costs)), "", *remarks]), {"files": [*paths, *models]}


def _check(typed: Namespace, folders: Sequence[Path]) -> None:
    for name in ("start", "gap"):
        if getattr(typed, name) < 1:
            raise ConfigError(f"--{name} {getattr(typed, name)}: at least 1 is wanted")
    if not folders:
        raise ConfigError("name at least one MODEL, such as runs/main/FOLDER")
    check_saved(typed.save, folders, "folded")


def _names(folders: Sequence[Path]) -> list[str]:
    """Norm, placement, and what else differs besides the seed; of a folder of transformers its own
    name.

    Raises ConfigError if two runs are one variant with one seed: they are no repetition.
    """
    runs = [SavedRun(folder) for folder in folders if not is_checkpoint(folder)]
    variants = group_by_variant(runs, ["norm", "placement"])
    names = {run.folder: label(values) for values, members in variants for run in members}
    for _, members in variants:
        seeds = [run.config["seed"] for run in members]
        for run in members:
            if seeds.count(run.config["seed"]) > 1:
                raise ConfigError(f"{run.folder}: another RUN differs from it in nothing")
    return [names.get(folder, folder.resolve().name) for folder in folders]


# --------------------------------------------------------------------------- table and sentences


def rows(
    costs: Sequence[Cost], stages: Sequence[str] = (BEFORE, AT_ONCE, *STAGES, TUNED)
) -> list[list[str]]:
    """A heading, and for each run its validation loss at each stage, the control's, and the gap."""
    table = [["run", *stages, "control", "gap"]]
    for cost in costs:
        losses = [cost.changed.validation.get(stage) for stage in stages]
        losses.append(cost.control.validation.get(TUNED))
        cells = ["" if loss is None else f"{loss:.3f}" for loss in losses]
        gap = "diverged" if cost.gap is None else f"{cost.gap:+.4f}"
        table.append([cost.title, *cells, gap])
    return table


def text_lines(tunables: Sequence[Tunable]) -> list[str]:
    return list(dict.fromkeys(tunable.text_line for tunable in tunables))


def sentences(costs: Sequence[Cost]) -> list[str]:
    """The gap of each variant over its seeds, and how exact the folding is.

    A gap has Student's 95 % interval. Where a run diverged it has none, since the runs that are
    left are no sample of all.
    """
    lines = []
    for name, own in by_name(costs).items():
        gaps = [cost.gap for cost in own if cost.gap is not None]
        seeds = f"{len(own)} seed{'s' * (len(own) > 1)}"
        if len(gaps) < len(own):
            rest = f"; the others {', '.join(f'{gap:+.3f}' for gap in gaps)}" if gaps else ""
            lines.append(f"{name}: {len(own) - len(gaps)} of {seeds} diverged{rest}")
            continue
        mean, half = fmean(gaps), half_interval(gaps)
        within = "" if half is None else f"95 % interval {mean - half:+.3f} to {mean + half:+.3f}, "
        lines.append(f"{name}: {mean:+.3f} nats against the control ({within}{seeds})")
    known = [cost.rounding for cost in costs if cost.rounding is not None]
    exact = "folded into the weights: the same logits in float64, to {:.0e} of the largest"
    return [*lines, exact.format(max(known))] if known else lines


# ------------------------------------------------------------------------------------- the files

RESULTS, CURVES = "norm_removal.csv", "norm_removal_curves.csv"
WITHOUT = "without norms"


def files(costs: Sequence[Cost], tunables: Sequence[Tunable], setting: str) -> dict[str, bytes]:
    """The contents of the two CSV files, of norm_removal.md and of norm_removal.svg."""
    runs_of = tunables[: len(costs)]
    runs = [tunable.origin for tunable in runs_of]
    sections = [
        "# Norms removed",
        markdown_list([*text_lines(runs_of), *sentences(costs)]),
        markdown_table(rows(costs, ORDER)),
        f"{setting} {LEGEND}",
        "## Runs",
        markdown_list(runs),
    ]
    return {
        **csv_files(costs),
        "norm_removal.md": ("\n\n".join(sections) + "\n").encode(),
        "norm_removal.svg": figure(costs),
    }


def csv_files(costs: Sequence[Cost]) -> dict[str, bytes]:
    """A row for each stage of each run, and a row for each step."""
    stages: list[list[Any]] = [
        "run seed stage step val_loss val_loss_control rounding diverged".split()
    ]
    for cost in costs:
        reasons = {WITHOUT: cost.changed.diverged, CONTROL: cost.control.diverged}
        diverged = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
        tunings = (cost.changed, cost.control)
        for stage, step in cost.steps.items():
            ends = [cost.rounding, diverged] if stage == [*cost.steps][-1] else ["", ""]
            losses = [tuning.validation.get(stage) for tuning in tunings]
            stages.append([cost.name, cost.seed, stage, step, *losses, *ends])
    return {RESULTS: csv_table(stages), CURVES: curves_csv(costs)}


# ------------------------------------------------------------------------------------ the figure

IN_TURN = (BEFORE, *STAGES, FIRST, TUNED)


def figure(costs: Sequence[Cost]) -> bytes:
    """An SVG. Left the validation loss at each stage. Right how far each step's training loss lies
    above the control's, on the same batch: a thin line a seed, a thick one a variant's mean."""
    plt = pyplot()
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    for place, (name, own) in enumerate(by_name(costs).items()):
        colour, _ = line_style(place + 1)
        _draw_stages(left, own, colour, name)
    left.set_xticks(range(len(ORDER)), ORDER, rotation=20)
    left.set(ylabel="validation loss, nats per token", xlabel="norms frozen so far")
    draw_differences(right, costs)
    _mark_removal(right, costs)
    for axes in (left, right):
        style_axes(axes)
        if axes.get_legend_handles_labels()[0]:  # a short tuning has no mean of steps
            axes.legend(fontsize=FONT, frameon=False)
    return svg_bytes(drawing)


def _mark_removal(axes: Any, costs: Sequence[Cost]) -> None:
    """Shades the steps in which norms are frozen, if they are the same for all models."""
    spans = {(cost.steps.get(AT_ONCE, -1), cost.steps.get(FIRST, -1)) for cost in costs}
    start, end = next(iter(spans))
    if len(spans) == 1 and 0 <= start < end:
        axes.axvspan(start, end, color=GREY, alpha=0.12, linewidth=0)
        axes.annotate(
            "norms go", ((start + end) / 2, 0.97), xycoords=("data", "axes fraction"),
            ha="center", va="top", fontsize=FONT, color=GREY,
        )  # fmt: skip


def _draw_stages(axes: Any, own: Sequence[Cost], colour: str, name: str) -> None:
    """A filled dot while the norms go in turn, a cross for the control. A hollow one alone is what
    all at once costs without any tuning."""
    for n, cost in enumerate(own):
        for tuning, mark, line, words in (
            (cost.changed, "o", "-", "norms go"),
            (cost.control, "x", "--", "control"),
        ):
            axes.plot(
                [ORDER.index(stage) for stage in IN_TURN],
                [tuning.validation.get(stage, nan) for stage in IN_TURN],
                mark, linestyle=line, color=colour, markersize=3.5, linewidth=0.9,
                label=None if n else f"{name}, {words}",
            )  # fmt: skip
        axes.plot(
            [ORDER.index(AT_ONCE)], [cost.changed.validation.get(AT_ONCE, nan)], "D", color=colour,
            markerfacecolor="none", markersize=4,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
