"""What each block of a trained model is worth: how far it turns and changes the stream, and the
loss without it."""

# angle: arccos(cos)/pi of the stream before and after blocks, at the last token of a sequence, as
# Gromov et al. 2024, arXiv:2403.17887, have it. The curse of depth (Sun et al. 2025,
# arXiv:2502.05795) and Mix-LN (Li et al. 2024, arXiv:2412.13795) show it by block, and beside it
# what a model loses without one block: here in nats, on all of the text. The length of what a block
# adds over the stream's is that of Csordas et al. 2025, arXiv:2505.13898, who compare the deeper
# half with the first, as the summaries here do. Gradients by block are probes of training. Muted
# blocks are this project's: they tell what a block's norms on the stream do from the rest.

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from transformer_norms.analysis.trained.subjects import (
    Loaded,
    Subject,
    Subjects,
    Unmeasured,
    read_subjects,
)
from transformer_norms.commands.terminal import Parser
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
MUTED = {
    "angle_muted": Quantity("muted angle"),
    "update_muted": Quantity("muted update", 3),
    "rise_muted": Quantity("muted rise"),
}
LEGEND = (
    "angle: arccos(cos) / pi of the stream before and after the block, mean over the last tokens "
    "of sequences (0 the same, 0.5 orthogonal); of all tokens beside it. update: length of what "
    "the block changes the stream by over the stream's own, mean over tokens. rms: of the stream "
    "behind the block. rise: nats per token that the loss rises by without the block."
)
LEGEND_OF_MUTED = (
    "Muted, a block computes what it keeps for later ones, and its sub-layers add nothing: only "
    "its norms on the stream and the coefficients of its skips act. angle and update: what these "
    "do to the stream; rise: of the loss, with this block muted. Without such norms and "
    "coefficients a muted block does nothing."
)
LEGEND_OF_MEANS = (
    "Means over the blocks of the deeper half. angle: arccos(cos) / pi of the stream before and "
    "after a block, at the last tokens of sequences; update: length of what a block changes the "
    "stream by over the stream's own; rise: of the loss, without a block, nats per token; deep / "
    "first: angle of the deeper half over that of the first half; muted: of blocks whose "
    "sub-layers add nothing, and whose norms on the stream stay. After ±: half of Student's 95 % "
    "interval."
)
LIMITS = (
    "The rise of the loss without a block is that of this model, which never learned to do without "
    "it; a model trained without it may do as well.",
    "Two blocks may stand in for each other: rises do not add up.",
    "Where a norm stands on the stream, as in post-norm, the block that is left out takes its norm "
    "with it, and angle and update hold what the norm does; a muted block keeps the norm. Of two "
    "streams, x is measured.",
)


@dataclass(frozen=True)
class Depth:
    """What was measured in one model of N blocks. `angles` [N + 1, N + 1] has the mean angular
    distance between all boundaries, at last tokens, `of_all` at all tokens. The rest has a number
    for each block: `update`, `rms`, the loss `without` it (nan if later blocks use what it keeps),
    and of the muted block the loss and what it does to the stream."""

    subject: Subject
    loss: float
    tokens: int
    angles: np.ndarray
    of_all: np.ndarray
    update: np.ndarray
    rms: np.ndarray
    without: np.ndarray
    muted: np.ndarray
    muted_turns: np.ndarray
    muted_update: np.ndarray

    @property
    def turns(self) -> np.ndarray:
        """The angular distance across each block."""
        return np.diagonal(self.angles, 1)

    @property
    def rises(self) -> np.ndarray:
        return self.without - self.loss

    @property
    def note(self) -> str:
        """Which blocks are not left out, and why; nothing where all are."""
        kept = [str(i) for i, loss in enumerate(self.without, start=1) if np.isnan(loss)]
        if not kept:
            return ""
        blocks = f"block{'s' * (len(kept) > 1)} {', '.join(kept)}"
        why = "later blocks use values, or keys and values, that are computed there"
        return f"{self.subject.name}: {blocks} cannot be left out, only muted: {why}"

    @property
    def numbers(self) -> dict[str, float]:
        """Means over the deeper half. Its last block can be left out in every model."""
        half = len(self.rms) // 2  # of an odd number the middle one is deep
        first = max(self.turns[:half].mean(), np.finfo(float).tiny)
        return {
            "angle": float(self.turns[half:].mean()),
            "update": float(self.update[half:].mean()),
            "rise": float(np.nanmean(self.rises[half:])),
            "ratio": float(self.turns[half:].mean() / first),
            "angle_muted": float(self.muted_turns[half:].mean()),
            "update_muted": float(self.muted_update[half:].mean()),
            "rise_muted": float((self.muted - self.loss)[half:].mean()),
        }


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("depth_use", __doc__, out, "runs/main --out DIR", OF_SUBJECTS)
    add_subjects(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    subjects, depths = read_subjects(typed, tell).measure(tell, partial(measure, tell=tell))
    paths = write_files(typed.out, files(subjects, depths)) if typed.out else []
    facts = {"numbers": [{"model": d.subject.title, **d.numbers} for d in depths]}
    return terminal(subjects, depths), {**facts, "files": paths}


# ------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def measure(subject: Subject, loaded: Loaded, tell: Tell) -> Depth:
    """Reads the stream at all boundaries, and evaluates the model with each block muted, and
    without it."""
    model, depth = loaded.model, len(loaded.model.blocks)
    if depth < 2:
        raise Unmeasured(subject, "has one block; depth is measured from two blocks on")
    connection = read_placement(loaded.config.placement).connection
    if connection.get("inputs"):
        raise Unmeasured(subject, "its blocks take their inputs in turn, and none can be left out")

    def evaluate(words: str) -> float:
        what = f"{subject.title}, {words}: token {{:.0f}}/{{:.0f}}"
        return loaded.evaluate(lambda done, total: tell(what, done, total))

    whole = Boundaries(subject, range(depth + 1))
    with watch_streams(model, whole):
        loss = evaluate("whole")
    blocks, muted, without = model.blocks, [], []
    around = [Boundaries(subject, range(i, i + 2)) for i in range(depth)]
    for i, block in enumerate(blocks):
        with mute(block), watch_streams(model, around[i]):
            muted.append(evaluate(f"block {i + 1} of {depth} muted"))
        if any(getattr(module, "keeps", False) for module in block.modules()):
            without.append(np.nan)
            continue
        if not (connection or around[i].sums.update.any()):  # it does nothing at all
            without.append(muted[i])
            continue
        try:
            model.blocks = nn.ModuleList(other for other in blocks if other is not block)
            without.append(evaluate(f"without block {i + 1} of {depth}"))
        finally:
            model.blocks = blocks
    angles, _, updates, _ = map(np.array, zip(*(b.sums.means() for b in around), strict=True))
    return Depth(
        subject,
        loss,
        loaded.tokens_read,
        *whole.sums.means(),
        np.array(without),
        np.array(muted),
        np.where(updates[:, 0], angles[:, 0, 1], 0.0),  # where rounding would make an angle
        updates[:, 0],
    )


@contextmanager
def mute(block: Any) -> Iterator[None]:
    """Inside it the sub-layers of the block add nothing to the stream. They are computed all the
    same, for what they keep for later blocks."""
    sub_layers = block.attention, block.mlp
    for sub_layer in sub_layers:
        vars(sub_layer)["update"] = partial(_nothing_of, sub_layer.update)
    try:
        yield
    finally:
        for sub_layer in sub_layers:
            del vars(sub_layer)["update"]


def _nothing_of(update: Any, *given: Any) -> Tensor:
    return torch.zeros_like(update(*given))


class Boundaries:
    """Adds the streams at the boundaries `places` to sums: 0 enters the first block, and n leaves
    block n. Unmeasured where blocks hand on several streams at once."""

    def __init__(self, subject: Subject, places: range) -> None:
        self.subject, self.places = subject, places
        self.sums, self.streams = Sums(len(places) - 1), list[Tensor]()

    def __call__(self, part: str, i: int | None, x: Tensor) -> None:
        if part == "r" or (0 if i is None else i + 1) not in self.places:
            return
        if x.dim() > 3:
            why = "its blocks hand on several streams at once, and depth is measured of one"
            raise Unmeasured(self.subject, why)
        self.streams.append(x.detach())
        if len(self.streams) == len(self.places):
            for rows in zip(*self.streams, strict=True):
                self.sums.add(torch.stack([row.double() for row in rows]))
            self.streams.clear()


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
                *(
                    ["", ""]
                    if np.isnan(depth.without[i])
                    else [f"{depth.without[i]:.4f}", f"{depth.rises[i]:+.4f}"]
                ),
            ]
        )
    return rows


def muted_rows(depth: Depth) -> list[list[str]]:
    """A heading, and a row for each block when it is muted."""
    rows = [["muted block", "angle", "update", "loss", "rise"]]
    for i, loss in enumerate(depth.muted):
        does = f"{depth.muted_turns[i]:.4f}", f"{depth.muted_update[i]:.4g}"
        rows.append([str(i + 1), *does, f"{loss:.4f}", f"{loss - depth.loss:+.4f}"])
    return rows


def tables(subjects: Subjects, depths: Sequence[Depth]) -> Tables:
    """The table of one model by block, or those of several over seeds."""
    if len(depths) == 1:
        return [(block_rows(depths[0]), LEGEND), (muted_rows(depths[0]), LEGEND_OF_MUTED)]
    numbers = by_variant((d.subject, d.numbers) for d in depths)
    return seed_tables(subjects, numbers, QUANTITIES | MUTED, LEGEND_OF_MEANS, QUANTITIES)


def sentences(depths: Sequence[Depth]) -> list[str]:
    notes = list(dict.fromkeys(depth.note for depth in depths if depth.note))
    if two := list(dict.fromkeys(d.subject.name for d in depths if len(d.rms) == 2)):
        notes.append(f"{', '.join(two)}: of two blocks, the deeper half is block 2 alone")
    if len(depths) > 1:
        return notes
    one, numbers = depths[0], depths[0].numbers
    return [
        f"loss {one.loss:.4f} nats per token on {one.tokens} tokens; deeper half: angle "
        f"{numbers['angle']:.4f} ({numbers['ratio']:.2f} times the first half's), update "
        f"{numbers['update']:.3f}, rise {numbers['rise']:+.4f}",
        *notes,
    ]


def terminal(subjects: Subjects, depths: Sequence[Depth]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(depths), *subjects.notes]
    titles = [depth.subject.title for depth in depths]
    return terminal_text(TITLE, titles, subjects.notices, tables(subjects, depths), remarks)


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
    heading = (
        "model seed block angle angle_all_tokens update rms loss_without loss loss_muted "
        "angle_muted update_muted"
    )
    rows: list[list[Any]] = [heading.split()]
    for depth in depths:
        columns = [depth.turns, np.diagonal(depth.of_all, 1), depth.update, depth.rms]
        columns += [depth.without, np.full(len(depth.rms), depth.loss)]
        columns += [depth.muted, depth.muted_turns, depth.muted_update]
        for i, numbers in enumerate(zip(*columns, strict=True), start=1):
            cells = ["" if np.isnan(number) else float(number) for number in numbers]
            rows.append([depth.subject.name, depth.subject.seed, i, *cells])
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
    sections += [markdown_list([*subjects.notices, *sentences(depths)])]
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
            lines = [
                {i: float(x) for i, x in enumerate(array, start=1) if not np.isnan(x)}
                for array in arrays
            ]
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
