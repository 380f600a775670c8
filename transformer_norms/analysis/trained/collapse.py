"""How noise on the outputs of norms moves attention and raises the loss, and the loss on longer and
on foreign text."""

# Menary et al. 2024, arXiv:2406.17837, model the interference of subspaces through their common
# norm as noise on the lengths of queries, keys and values. They call it circuit collapse if sparse
# attention shifts to another token, and report a rate of 1 % where lengths are perturbed by about
# 10 %, in models of addition. Here the noise is on what norms give: noise of length scales a token,
# hence its query, key and value alike, and noise of the whole vector is ours, as are the measures
# on all attention, on text, and on the loss. docs/analyses.md says more.

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_norms.analysis.command import (
    OF_SUBJECTS,
    add_subjects,
    analysis_parser,
    run_analysis,
    svg_bytes,
)
from transformer_norms.analysis.trained.longer_text import (
    Positions,
    losses_by_position,
    multiples,
)
from transformer_norms.analysis.trained.norm_noise import (
    KINDS,
    READERS,
    Moved,
    Noise,
    Read,
    Setting,
    Shift,
    norms_read,
    perturb,
    sites_read,
    watch_attention,
)
from transformer_norms.analysis.trained.over_seeds import (
    DIFFERENCES,
    Numbers,
    Quantities,
    Quantity,
    Tables,
    by_variant,
    compare_numbers,
    difference_rows,
    draw_seeds,
    mean_rows,
    mean_text,
    numbers_csv,
    terminal_text,
)
from transformer_norms.analysis.trained.subjects import (
    Loaded,
    Subject,
    Subjects,
    Unmeasured,
    check_file,
    read_subjects,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table

TITLE = "Noise on norms, and longer text"
SIZES = "0.01,0.03,0.1,0.3"
TENTH = 0.1  # the size that is always measured, and that models are compared at
LARGEST = 10.0
PRIMARY = Setting("sub-layers", "vector", TENTH)
LOSSES = {
    "rise": Quantity(
        "rise",
        words="rise of the loss when every norm that a sub-layer reads has noise of a tenth of its "
        "rms, in nats per token",
    ),
    "rise_length": Quantity("by length", words="the same when the noise is on its length only"),
}
ATTENTION = {
    "distance": Quantity(
        "distance",
        words="total variation of attention, mean over blocks, heads and tokens, when the norms "
        "that attention reads have noise of a tenth of their rms",
    ),
    "changed": Quantity(
        "changed, %", 2, "share of heads and tokens whose most attended key is then another one"
    ),
    "changed_length": Quantity(
        "by length, %", 3, "the same when the noise is on their length only"
    ),
}
QUANTITIES = LOSSES | ATTENTION
# The losses that not every model has.
OTHERS = {
    "longer": Quantity(
        "4x text", 3, "loss on windows of 4 times the length less that on the usual, same text"
    ),
    "foreign": Quantity("foreign", 3, "loss on the foreign text less that on the own"),
}
LEGEND = (
    "Rise of the loss in nats per token, by the size of the noise over the rms of what a norm "
    "gives. attention: the norms that attention reads; all: those that attention or an mlp reads. "
    "vector: independent noise on each feature; length: a token's features are multiplied by one "
    "number, 1 + noise."
)
LEGEND_OF_BLOCKS = (
    "Attention by block, when the norms that attention reads have noise of a tenth of their rms. "
    "distance: total variation, half of the summed changes of weights, mean over heads and tokens; "
    "changed: share of heads and tokens whose most attended key is another one; sharp: share of "
    "those that gave one key more than half before; of sharp: how many of these changed, under "
    "noise on the length only (circuit collapse)."
)
LEGEND_OF_NORMS = (
    "The norms that are perturbed, by their sites: those whose output a sub-layer reads as it is. "
    "Attention that reads none has those on its queries, keys and values. A norm that stands on "
    "the stream gives noise to the stream as well."
)
LEGEND_OF_WINDOWS = (
    "Loss on the same text in windows of more tokens: of all tokens, and of those behind the usual "
    "length. in usual: of the same tokens, read in windows of the usual length, with fewer tokens "
    "before them; rise: behind less in usual. Tokens up to the usual length read there what they "
    "read in long windows."
)
LIMITS = (
    "Noise that is random in all directions is not the interference that training left in a model, "
    "nor has it its size.",
    "A norm that stands on the stream, as in post-norm, hands its noise on to all that follows; "
    "before a sub-layer it ends in that sub-layer. Their rises say what noise does there, and not "
    "which placement makes less of it.",
    "Norms on queries, keys and values have three noises, behind the matrices, where a norm before "
    "attention has one, in front of them: the distances of such placements are not of one noise.",
    "Attention of a block also moves since the blocks before it were perturbed. A block whose "
    "attention reads no norm counts in means all the same; the first one has zero.",
    "A most attended key that changes among equals means little: `sharp` says how many had one.",
)


@dataclass(frozen=True)
class Collapse:
    """What was measured in one model: the loss without noise, and by setting the loss and how far
    attention moved; the loss by position on windows of several lengths, and on foreign text."""

    subject: Subject
    loss: float
    tokens: int
    losses: Mapping[Setting, float]
    moved: Mapping[Setting, Moved]
    sites: Mapping[str, str]
    longer: Sequence[Positions]
    foreign: Positions | None
    notes: Sequence[str]

    def rise(self, setting: Setting) -> float:
        return self.losses[setting] - self.loss

    @property
    def numbers(self) -> dict[str, float]:
        vector, length = (Setting("attention", kind, TENTH) for kind in KINDS)
        numbers = {
            "loss": self.loss,
            "rise": self.rise(PRIMARY),
            "rise_length": self.rise(replace(PRIMARY, kind="length")),
            "distance": fmean(self.moved[vector].distance),
            "changed": 100 * fmean(self.moved[vector].changed),
            "changed_length": 100 * fmean(self.moved[length].changed),
            "changed_sharp_length": 100 * fmean(self.moved[length].changed_sharp),
        }
        usual = self.longer[0]
        for text in self.longer[1:]:
            name = "longer" if text.multiple == 4 else f"longer_{text.multiple}"
            numbers[name] = text.loss() - usual.loss()
        if self.foreign is not None:
            numbers["foreign"] = self.foreign.loss() - usual.loss()
        return numbers


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("collapse", __doc__, out, "runs/main --out DIR", OF_SUBJECTS)
    add_subjects(parser)
    parser.add_argument(
        "--noise", default=SIZES, metavar="SIZES",
        help=f"sizes of noise over the rms of what a norm gives, as in {SIZES}; {TENTH:g} is "
        "always measured",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument(
        "--foreign", type=typed_path, metavar="FILE", help="another text, beside the own"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    sizes = sizes_of(typed.noise)
    if typed.foreign is not None:
        check_file("--foreign", typed.foreign)

    def measure_one(subject: Subject, loaded: Loaded) -> Collapse:
        foreign = None if typed.foreign is None else loaded.encode("--foreign", typed.foreign)
        return measure(subject, loaded, sizes, typed.seed, foreign, tell)

    subjects, found = read_subjects(typed, tell).measure(tell, measure_one)
    paths = write_files(typed.out, files(subjects, found)) if typed.out else []
    facts = {"numbers": [{"model": one.subject.title, **one.numbers} for one in found]}
    return terminal(subjects, found), {**facts, "files": paths}


def sizes_of(text: str) -> list[float]:
    """The sizes that were typed, and TENTH, in order."""
    try:
        sizes = [float(word) for word in text.split(",")]
    except ValueError:
        sizes = [-1.0]
    if not all(isfinite(size) and 0 <= size <= LARGEST for size in sizes):
        raise ConfigError(
            f"--noise {text}: numbers from 0 to {LARGEST:g} are wanted, such as {SIZES}"
        )
    return sorted({*sizes, TENTH})


# ------------------------------------------------------------------------------------- measuring


def measure(
    subject: Subject,
    loaded: Loaded,
    sizes: Sequence[float],
    seed: int,
    foreign: np.ndarray | None,
    tell: Tell,
) -> Collapse:
    """`foreign` holds the tokens of another text, or is None."""
    loaded = loaded if loaded.precision == "fp64" else replace(loaded, precision="fp32")
    blocks: Any = loaded.model.blocks
    if not all(hasattr(block.attention.f.attend, "logits") for block in blocks):
        raise Unmeasured(subject, "its attention has no logits that could be read")
    read = norms_read(loaded.model, next(loaded.windows())[:1, :-1].to(loaded.device))
    noises = [Noise(Setting(*each), seed) for each in product(READERS, KINDS, sizes)]
    loss, losses, moved = evaluate(subject, loaded, read, noises, tell)
    reasons = multiples(loaded)

    def text(words: str, tokens: np.ndarray, multiple: int) -> Positions:
        what = f"{subject.title}, {words}: token {{:.0f}}/{{:.0f}}"
        return losses_by_position(loaded, tokens, multiple, partial(tell, what))

    return Collapse(
        subject,
        loss,
        loaded.tokens_read,
        losses,
        moved,
        {name: sites_read(read, name) for name in READERS["sub-layers"]},
        [text(f"{n}x", loaded.tokens, n) for n, reason in reasons.items() if not reason],
        None if foreign is None else text("foreign text", foreign, 1),
        [f"no windows of {n} times the length: {why}" for n, why in reasons.items() if why],
    )


@torch.no_grad()
def evaluate(
    subject: Subject, loaded: Loaded, read: Read, noises: Sequence[Noise], tell: Tell
) -> tuple[float, dict[Setting, float], dict[Setting, Moved]]:
    """Evaluates the model on each batch without noise, and then with each noise. Returns the loss
    without, and by setting the loss and how far attention moved."""
    model = loaded.model
    shifts = [Shift(len(model.blocks)) for _ in noises]
    nats = torch.zeros(1 + len(noises), dtype=torch.float64)
    done = windows = 0
    for batch in loaded.windows():
        tell(f"{subject.title}, noise: token {{:.0f}}/{{:.0f}}", done, loaded.tokens_read)
        before: dict[int, Tensor] = {}
        with watch_attention(model, before.__setitem__):
            nats[0] += loaded.loss.sum(batch).double().cpu()
        for place, (noise, shift) in enumerate(zip(noises, shifts, strict=True), start=1):
            noise.window = windows
            watching = watch_attention(model, partial(shift.add, before))
            with perturb(model, read, noise), watching:
                nats[place] += loaded.loss.sum(batch).double().cpu()
        done, windows = done + batch[:, 1:].numel(), windows + len(batch)
    loss, *losses = (nats / done).tolist()
    if not isfinite(loss):
        raise Unmeasured(subject, "its loss is not finite")
    settings = [noise.setting for noise in noises]
    moved = {s: shift.means for s, shift in zip(settings, shifts, strict=True)}
    return loss, dict(zip(settings, losses, strict=True)), moved


# --------------------------------------------------------------------------- tables and sentences


def sizes_in(found: Sequence[Collapse]) -> list[float]:
    return list(dict.fromkeys(setting.size for setting in found[0].losses))


def columns() -> dict[str, tuple[str, str]]:
    """The heading of each pair of readers and kind."""
    short = {"attention": "attention", "sub-layers": "all"}
    return {f"{short[r]}, {kind}": (r, kind) for r, kind in product(READERS, KINDS)}


def rise_rows(found: Sequence[Collapse]) -> list[list[str]]:
    """A heading, and a row for each variant and size."""
    rows = [["model", "noise", *columns()]]
    for name in dict.fromkeys(one.subject.name for one in found):
        own = [one for one in found if one.subject.name == name]
        for size in sizes_in(found):
            each = [[one.rise(Setting(*pair, size)) for one in own] for pair in columns().values()]
            rows.append([name, f"{size:g}", *(mean_text(rises, 4) for rises in each)])
    return rows if len(found) > 1 else [row[1:] for row in rows]


def block_rows(one: Collapse) -> list[list[str]]:
    """A heading, and a row for each block."""
    vector, length = (one.moved[Setting("attention", kind, TENTH)] for kind in KINDS)
    shares_of = ("changed, %", "sharp, %", "of sharp, %")
    rows = [["block", "distance", "changed, %", "length: distance", *shares_of]]
    for i in range(len(vector.distance)):
        shares = (length.changed[i], length.sharp[i], length.changed_sharp[i])
        rows.append(
            [str(i + 1), f"{vector.distance[i]:.4f}", f"{100 * vector.changed[i]:.2f}",
             f"{length.distance[i]:.4f}", *(f"{100 * share:.2f}" for share in shares)]
        )  # fmt: skip
    return rows


def norm_rows(found: Sequence[Collapse]) -> list[list[str]]:
    """A heading, and for each variant what its sub-layers read."""
    sites = {one.subject.name: one.sites for one in found}
    each = [[name, *own.values()] for name, own in sites.items()]
    return [["model", "attention reads", "an mlp reads"], *each]


def window_rows(one: Collapse) -> list[list[str]]:
    """A heading, and a row for each length of windows."""
    usual = one.longer[0]
    rows = [["windows", "tokens", "loss", "behind", "in usual", "rise"]]
    for text in one.longer:
        behind, cells = text.tokens_at(usual.context), ["", "", ""]
        if behind.any():
            losses = text.loss(behind), usual.loss(behind)
            cells = [*(f"{loss:.4f}" for loss in losses), f"{losses[0] - losses[1]:+.4f}"]
        tokens = str(text.multiple * usual.context)
        rows.append([f"{text.multiple}x", tokens, f"{text.loss():.4f}", *cells])
    return rows


def others(numbers: Numbers) -> dict[str, Quantity]:
    """Those of OTHERS that all models have."""
    models = [one for seeds in numbers.values() for one in seeds.values()]
    return {key: each for key, each in OTHERS.items() if all(key in one for one in models)}


def tables(subjects: Subjects, found: Sequence[Collapse]) -> Tables:
    """The tables of one model, or those of several over seeds."""
    norms = (norm_rows(found), LEGEND_OF_NORMS)
    if len(found) == 1:
        one = found[0]
        longer: Tables = [(window_rows(one), LEGEND_OF_WINDOWS)] if len(one.longer) > 1 else []
        blocks = (block_rows(one), LEGEND_OF_BLOCKS)
        return [(rise_rows(found), LEGEND), blocks, *longer, norms]
    numbers = by_variant((one.subject, one.numbers) for one in found)
    losses = LOSSES | others(numbers)
    interval = "After ±: half of Student's 95 % interval."
    means: Tables = [
        (mean_rows(numbers, each), f"{in_words(each)}. {interval}") for each in (losses, ATTENTION)
    ]
    comparisons = compare_numbers(subjects, numbers, losses | ATTENTION)
    differences = difference_rows(subjects, comparisons, losses | ATTENTION)
    if differences:
        means.append((differences, DIFFERENCES))
    return [*means, (rise_rows(found), f"{LEGEND} {interval}"), norms]


def in_words(quantities: Quantities) -> str:
    return "; ".join(f"{each.title}: {each.words}" for each in quantities.values())


def sentences(found: Sequence[Collapse]) -> list[str]:
    lines = [f"loss {one.loss:.4f} nats per token on {one.tokens} tokens without noise"
             for one in found[:1] if len(found) == 1]  # fmt: skip
    for one in found if len(found) == 1 else ():
        if one.foreign is not None:
            rise = one.numbers["foreign"]
            lines.append(f"foreign text: loss {one.foreign.loss():.4f}, {rise:+.4f} to the own")
    for one in found:
        if set(one.sites.values()) == {"none"}:
            lines.append(f"{one.subject.name}: no sub-layer reads a norm, nothing is perturbed")
        lines += [f"{one.subject.name}: {note}" for note in one.notes]
    return list(dict.fromkeys(lines))


def terminal(subjects: Subjects, found: Sequence[Collapse]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(found), *subjects.notes]
    titles = [one.subject.title for one in found]
    return terminal_text(TITLE, titles, subjects.notices, tables(subjects, found), remarks)


# ------------------------------------------------------------------------------------- the files


def files(subjects: Subjects, found: Sequence[Collapse]) -> dict[str, bytes]:
    """The contents of collapse.csv, of collapse_blocks.csv, collapse_positions.csv and
    collapse_runs.csv, .md and .svg."""
    numbers = by_variant((one.subject, one.numbers) for one in found)
    return {
        "collapse.csv": losses_csv(found),
        "collapse_blocks.csv": blocks_csv(found),
        "collapse_positions.csv": positions_csv(found),
        "collapse_runs.csv": numbers_csv(numbers),
        "collapse.md": page(subjects, found).encode(),
        "collapse.svg": figure(found),
    }


def losses_csv(found: Sequence[Collapse]) -> bytes:
    """A row for each setting of each model."""
    rows: list[list[Any]] = ["model seed norms noise size loss loss_before".split()]
    for one in found:
        for s, loss in one.losses.items():
            own = [one.subject.name, one.subject.seed]
            rows.append([*own, s.readers, s.kind, s.size, loss, one.loss])
    return csv_table(rows)


def blocks_csv(found: Sequence[Collapse]) -> bytes:
    """A row for each block of each setting of each model."""
    heading = "model seed norms noise size block distance changed sharp changed_sharp"
    rows: list[list[Any]] = [heading.split()]
    for one in found:
        for s, m in one.moved.items():
            own = [one.subject.name, one.subject.seed, s.readers, s.kind, s.size]
            each = zip(m.distance, m.changed, m.sharp, m.changed_sharp, strict=True)
            rows += [[*own, i, *numbers] for i, numbers in enumerate(each, start=1)]
    return csv_table(rows)


def positions_csv(found: Sequence[Collapse]) -> bytes:
    """A row for each bin of positions of each length of windows, and of the foreign text.
    `loss_usual` is the loss of the same tokens in windows of the usual length."""
    rows: list[list[Any]] = ["model seed text windows first last loss loss_usual".split()]
    for one in found:
        texts = [("own", text, one.longer[0]) for text in one.longer]
        texts += [("foreign", one.foreign, one.foreign)] if one.foreign is not None else []
        for name, text, usual in texts:
            own = [one.subject.name, one.subject.seed, name, text.multiple * text.context]
            for ends, tokens in text.bins.items():
                rows.append([*own, *ends, text.loss(tokens), usual.loss(tokens)])
    return csv_table(rows)


def page(subjects: Subjects, found: Sequence[Collapse]) -> str:
    sections = [f"# {TITLE}"]
    sections += [markdown_list([*subjects.notices, *sentences(found), *subjects.notes])]
    for rows, legend in tables(subjects, found):
        sections += [markdown_table(rows), legend]
    sections += [f"![{TITLE.lower()}](collapse.svg)"]
    sections += ["## What this does not show", markdown_list(LIMITS)]
    origins = [
        f"{one.subject.origin}; loss {one.loss:.4f} nats per token on {one.tokens} tokens"
        for one in found
    ]
    return "\n\n".join([*sections, "## Models", markdown_list(origins)]) + "\n"


# ------------------------------------------------------------------------------------ the figure


def figure(found: Sequence[Collapse]) -> bytes:
    """Panels as SVG: the rise of the loss by the size of noise, the distance of attention by block
    and the share of changed keys, and by position how far the loss on the longest windows lies
    above that of the same tokens in usual ones. A thin line is a seed, a thick one the mean of a
    variant."""
    drawing, panels = pyplot().subplots(1, 4, figsize=(13.0, 3.4), layout="constrained")
    vector, length = (Setting("attention", kind, TENTH) for kind in KINDS)
    for place, name in enumerate(dict.fromkeys(one.subject.name for one in found)):
        own = [one for one in found if one.subject.name == name]
        sizes = [size for size in sizes_in(found) if size]
        rises = [{size: one.rise(replace(PRIMARY, size=size)) for size in sizes} for one in own]
        far = [dict(enumerate(one.moved[vector].distance, start=1)) for one in own]
        changed = [[100 * x for x in one.moved[length].changed] for one in own]
        shares = [dict(enumerate(each, start=1)) for each in changed]
        drawn: list[list[dict[Any, float]]] = [rises, far, shares, list(map(longer_rises, own))]
        for axes, lines in zip(panels, drawn, strict=True):
            draw_seeds(axes, lines, name, place)
    panels[0].set(xscale="log", xlabel="noise / rms, all norms", ylabel="rise of the loss, nats")
    panels[0].set_yscale("symlog", linthresh=1e-3)
    panels[0].axhline(0, color=GREY, linewidth=0.8)
    panels[1].set(xlabel="block", ylabel="distance of attention, noise 0.1")
    panels[2].set(xlabel="block", ylabel="other key first, %, length noise 0.1")
    panels[3].set(xlabel="position", ylabel="loss less that in usual windows, nats")
    panels[3].set_xscale("log")
    panels[3].axhline(0, color=GREY, linewidth=0.8)
    for context in {one.longer[0].context for one in found}:
        panels[3].axvline(context, color=GREY, linewidth=0.8, linestyle=":")
    for axes in panels[1:3]:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(bottom=0)
    for axes in panels:
        style_axes(axes)
    panels[0].legend(fontsize=FONT, frameon=False)
    return svg_bytes(drawing)


def longer_rises(one: Collapse) -> dict[int, float]:
    """By position in the longest windows, the loss less that of the same tokens in usual windows.
    Nothing where no windows are longer."""
    usual, text = one.longer[0], one.longer[-1]
    if text is usual:
        return {}
    each = text.bins.items()
    return {last + 1: text.loss(tokens) - usual.loss(tokens) for (_, last), tokens in each}


if __name__ == "__main__":
    sys.exit(main())
