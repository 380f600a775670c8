"""What each block of a trained model is worth: how far it turns and changes the stream, and the
loss without it."""

# angle: arccos(cos)/pi of the stream before and after blocks, at the last token of a sequence, as
# Gromov et al. 2024, arXiv:2403.17887, have it. The curse of depth (Sun et al. 2025,
# arXiv:2502.05795) and Mix-LN (Li et al. 2024, arXiv:2412.13795) show it by block, and beside it
# what a model loses without one block: here in nats, on all of the text. The length of what a block
# adds over the stream's is that of Csordas et al. 2025, arXiv:2505.13898, who compare the deeper
# half with the first, as the summaries here do. Gradients by block are probes of training.

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from transformer_norms.analysis.command import (
    OF_SUBJECTS,
    add_subjects,
    analysis_parser,
    run_analysis,
    set_decades,
    svg_bytes,
)
from transformer_norms.analysis.trained.over_seeds import (
    Quantity,
    Tables,
    by_variant,
    draw_seeds,
    numbers_csv,
    seed_tables,
    terminal_text,
)
from transformer_norms.analysis.trained.subjects import Loaded, Subject, Subjects, read_subjects
from transformer_norms.commands.terminal import Parser
from transformer_norms.errors import ConfigError
from transformer_norms.model.placement import read_placement
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table
from transformer_norms.training.probes import watch_streams

TITLE = "What each block is worth"
QUANTITIES = {
    "angle": Quantity("angle"),
    "update": Quantity("update", 3),
    "rise": Quantity("rise, nats"),
    "ratio": Quantity("deep / first", 3),
}
LEGEND = (
    "angle: arccos(cos) / pi of the stream before and after the block, mean over the last tokens "
    "of sequences (0 the same, 0.5 orthogonal); of all tokens beside it. update: length of what "
    "the block changes the stream by over the stream's own, mean over tokens. rms: of the stream "
    "behind the block. rise: nats per token that the loss rises by without the block."
)
LEGEND_OF_MEANS = (
    "Means over the blocks of the deeper half. angle: arccos(cos) / pi of the stream before and "
    "after a block, at the last tokens of sequences; update: length of what a block changes the "
    "stream by over the stream's own; rise: of the loss, without a block, nats per token; deep / "
    "first: angle of the deeper half over that of the first half. After ±: half of Student's 95 % "
    "interval."
)
LIMITS = (
    "The rise of the loss without a block is that of this model, which never learned to do without "
    "it; a model trained without it may do as well.",
    "Two blocks may stand in for each other: rises do not add up.",
    "Where a norm stands on the stream, as in post-norm, the block that is left out takes its norm "
    "with it. Of two streams, x is measured.",
)


@dataclass(frozen=True)
class Depth:
    """What was measured in one model of N blocks. `angles` [N + 1, N + 1] has the mean angular
    distance between all boundaries, at last tokens, `of_all` at all tokens; `update`, `rms` and
    `without`, the loss without a block, have a number for each block."""

    subject: Subject
    loss: float
    tokens: int
    angles: np.ndarray
    of_all: np.ndarray
    update: np.ndarray
    rms: np.ndarray
    without: np.ndarray

    @property
    def turns(self) -> np.ndarray:
        """The angular distance across each block."""
        return np.diagonal(self.angles, 1)

    @property
    def rises(self) -> np.ndarray:
        return self.without - self.loss

    @property
    def numbers(self) -> dict[str, float]:
        half = len(self.rms) // 2  # of an odd number the middle one is deep
        first = max(self.turns[:half].mean(), np.finfo(float).tiny)
        return {
            "angle": float(self.turns[half:].mean()),
            "update": float(self.update[half:].mean()),
            "rise": float(self.rises[half:].mean()),
            "ratio": float(self.turns[half:].mean() / first),
        }


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("depth_use", __doc__, out, "runs/main --out DIR", OF_SUBJECTS)
    add_subjects(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    subjects = read_subjects(typed, tell)
    depths = [measure(subject, loaded, tell) for subject, loaded in subjects.each(tell)]
    paths = write_files(typed.out, files(subjects, depths)) if typed.out else []
    facts = {"numbers": [{"model": d.subject.title, **d.numbers} for d in depths]}
    return terminal(subjects, depths), {**facts, "files": paths}


# ------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def measure(subject: Subject, loaded: Loaded, tell: Tell) -> Depth:
    """Reads the stream at all boundaries, and evaluates the model without each block in turn."""
    model, depth = loaded.model, len(loaded.model.blocks)
    if depth < 2:
        raise ConfigError(f"{subject.folder}: has one block; depth is measured from two blocks on")
    if read_placement(loaded.config.placement).connection.get("inputs"):
        why = "its blocks take their inputs in turn, and none can be left out"
        raise ConfigError(f"{subject.folder}: {why}")

    def evaluate(words: str) -> float:
        what = f"{subject.title}, {words}: token {{:.0f}}/{{:.0f}}"
        return loaded.evaluate(lambda done, total: tell(what, done, total))

    boundaries: dict[int, Tensor] = {}
    sums = Sums(depth)

    def read(part: str, i: int | None, x: Tensor) -> None:
        if part == "r":
            return
        if x.dim() > 3:
            why = "its blocks hand on several streams at once, and depth is measured of one"
            raise ConfigError(f"{subject.folder}: {why}")
        boundaries[0 if i is None else i + 1] = x.detach()
        if len(boundaries) == depth + 1:
            for row in range(len(x)):
                stack = [boundaries[n][row].double() for n in range(depth + 1)]
                sums.add(torch.stack(stack))
            boundaries.clear()

    with watch_streams(model, read):
        loss = evaluate("whole")
    blocks, without = model.blocks, []
    try:
        for i in range(depth):
            model.blocks = nn.ModuleList(block for n, block in enumerate(blocks) if n != i)
            without.append(evaluate(f"without block {i + 1} of {depth}"))
    finally:
        model.blocks = blocks
    return Depth(subject, loss, loaded.tokens_read, *sums.means(), np.array(without))


class Sums:
    """Sums over sequences of what is measured of the streams at the boundaries of a sequence."""

    def __init__(self, depth: int) -> None:
        self.angles = np.zeros((depth + 1, depth + 1))
        self.of_all = np.zeros((depth + 1, depth + 1))
        self.update, self.squares = np.zeros(depth), np.zeros(depth)
        self.sequences = self.tokens = 0

    def add(self, x: Float64[Tensor, "boundaries time width"]) -> None:
        lengths = x.norm(dim=-1)
        unit = x / lengths[..., None].clamp_min(torch.finfo(x.dtype).tiny)
        cosines = torch.einsum("itd,jtd->ijt", unit, unit).clamp(-1, 1)
        angles = (cosines.arccos() / torch.pi).cpu().numpy()
        for n in range(len(angles)):
            angles[n, n] = 0.0  # where rounding would make an angle
        self.angles += angles[..., -1]
        self.of_all += angles.sum(-1)
        changes = (x[1:] - x[:-1]).norm(dim=-1) / lengths[:-1]
        self.update += changes.sum(-1).cpu().numpy()
        self.squares += x[1:].square().mean(-1).sum(-1).cpu().numpy()
        self.sequences += 1
        self.tokens += x.shape[1]

    def means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Angles at last tokens and at all, updates, and the rms of the stream."""
        return (
            self.angles / self.sequences,
            self.of_all / self.tokens,
            self.update / self.tokens,
            (self.squares / self.tokens) ** 0.5,
        )


# --------------------------------------------------------------------------- tables and sentences


def block_rows(depth: Depth) -> list[list[str]]:
    """A heading, and a row for each block."""
    rows = [["block", "angle", "of all", "update", "rms", "loss without", "rise"]]
    of_all = np.diagonal(depth.of_all, 1)
    for i, turn in enumerate(depth.turns):
        rows.append(
            [
                str(i + 1),
                *(f"{number:.4f}" for number in (turn, of_all[i])),
                *(f"{number:.4g}" for number in (depth.update[i], depth.rms[i])),
                f"{depth.without[i]:.4f}",
                f"{depth.rises[i]:+.4f}",
            ]
        )
    return rows


def tables(subjects: Subjects, depths: Sequence[Depth]) -> Tables:
    """The table of one model by block, or those of several over seeds."""
    if len(depths) == 1:
        return [(block_rows(depths[0]), LEGEND)]
    numbers = by_variant((d.subject, d.numbers) for d in depths)
    return seed_tables(subjects, numbers, QUANTITIES, LEGEND_OF_MEANS)


def sentences(depths: Sequence[Depth]) -> list[str]:
    if len(depths) > 1:
        return []
    one, numbers = depths[0], depths[0].numbers
    return [
        f"loss {one.loss:.4f} nats per token on {one.tokens} tokens; deeper half: angle "
        f"{numbers['angle']:.4f} ({numbers['ratio']:.2f} times the first half's), update "
        f"{numbers['update']:.3f}, rise {numbers['rise']:+.4f}"
    ]


def terminal(subjects: Subjects, depths: Sequence[Depth]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(depths), *subjects.notes]
    titles = [depth.subject.title for depth in depths]
    return terminal_text(TITLE, titles, tables(subjects, depths), remarks)


# ------------------------------------------------------------------------------------- the files


def files(subjects: Subjects, depths: Sequence[Depth]) -> dict[str, bytes]:
    """The contents of depth_use.csv, of depth_use_angles.csv and depth_use_runs.csv, .md and
    .svg."""
    numbers = by_variant((d.subject, d.numbers) for d in depths)
    return {
        "depth_use.csv": blocks_csv(depths),
        "depth_use_angles.csv": angles_csv(depths),
        "depth_use_runs.csv": numbers_csv(numbers),
        "depth_use.md": page(subjects, depths).encode(),
        "depth_use.svg": figure(depths),
    }


def blocks_csv(depths: Sequence[Depth]) -> bytes:
    """A row for each block of each model."""
    heading = "model seed block angle angle_all_tokens update rms loss_without loss"
    rows: list[list[Any]] = [heading.split()]
    for depth in depths:
        columns = [depth.turns, np.diagonal(depth.of_all, 1), depth.update, depth.rms]
        for i, numbers in enumerate(zip(*columns, depth.without, strict=True), start=1):
            rows.append([depth.subject.name, depth.subject.seed, i, *map(float, numbers)])
            rows[-1].append(depth.loss)
    return csv_table(rows)


def angles_csv(depths: Sequence[Depth]) -> bytes:
    """A row for each pair of boundaries of each model: after block `first` and after `last`."""
    rows: list[list[Any]] = ["model seed first last angle angle_all_tokens".split()]
    for depth in depths:
        for i, j in zip(*np.triu_indices(len(depth.angles), 1), strict=True):
            angles = float(depth.angles[i, j]), float(depth.of_all[i, j])
            rows.append([depth.subject.name, depth.subject.seed, int(i), int(j), *angles])
    return csv_table(rows)


def page(subjects: Subjects, depths: Sequence[Depth]) -> str:
    sections = [f"# {TITLE}"]
    sections += [markdown_list(sentences(depths))] if len(depths) == 1 else []
    for rows, legend in tables(subjects, depths):
        sections += [markdown_table(rows), legend]
    sections += [f"![{TITLE.lower()}](depth_use.svg)"]
    sections += [markdown_list(subjects.notes)] if subjects.notes else []
    sections += ["## What this does not show", markdown_list(LIMITS)]
    origins = [
        f"{depth.subject.origin}; loss {depth.loss:.4f} nats per token on {depth.tokens} tokens"
        for depth in depths
    ]
    return "\n\n".join([*sections, "## Models", markdown_list(origins)]) + "\n"


# ------------------------------------------------------------------------------------ the figure


def figure(depths: Sequence[Depth]) -> bytes:
    """Panels as SVG by block: the angle across it, the rise of the loss without it, and the update.
    Of one model also the angles across several blocks. A thin line is a seed, a thick one the mean
    of a variant."""
    plt = pyplot()
    alone = len(depths) == 1
    drawing, panels = plt.subplots(1, 3 + alone, figsize=(10.4 + 2.6 * alone, 3.4),
                                   layout="constrained")  # fmt: skip
    names = list(dict.fromkeys(depth.subject.name for depth in depths))
    for place, name in enumerate(names):
        own = [depth for depth in depths if depth.subject.name == name]
        numbers = (
            [depth.turns for depth in own],
            [depth.rises for depth in own],
            [depth.update for depth in own],
        )
        for axes, arrays in zip(panels, numbers, strict=False):
            lines = [dict(enumerate(map(float, array), start=1)) for array in arrays]
            draw_seeds(axes, lines, name, place)
    words = "angle across the block", "rise of the loss without it, nats", "update / stream"
    for axes, label in zip(panels, words, strict=False):
        axes.set(xlabel="block", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        style_axes(axes)
    panels[0].set_ylim(bottom=0)
    panels[1].axhline(0, color=GREY, linewidth=0.8)
    panels[2].set_yscale("log", nonpositive="mask")
    set_decades(panels[2])
    panels[0].legend(fontsize=FONT, frameon=False)
    if alone:
        _draw_angles(drawing, panels[3], depths[0].angles)
    return svg_bytes(drawing)


def _draw_angles(drawing: Any, axes: Any, angles: np.ndarray) -> None:
    """The angle between the streams before and behind n blocks from each boundary on."""
    count = len(angles)
    shown = np.full((count - 1, count - 1), np.nan)
    for n in range(1, count):
        shown[n - 1, : count - n] = np.diagonal(angles, n)
    image = axes.imshow(shown, origin="lower", aspect="auto", cmap="viridis",
                        extent=(0.5, count - 0.5, 0.5, count - 0.5))  # fmt: skip
    axes.set(xlabel="from block", ylabel="across n blocks")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    style_axes(axes)
    bar = drawing.colorbar(image, ax=axes)
    bar.set_label("angle", fontsize=FONT + 1)
    bar.ax.tick_params(labelsize=FONT, colors=GREY)


if __name__ == "__main__":
    sys.exit(main())
