"""Gradients and streams by block before training, and how the last gradient changes with depth."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_norms.analysis.command import (
    analysis_parser,
    paragraph,
    run_analysis,
    set_decades,
    svg_bytes,
)
from transformer_norms.analysis.init_measures import (
    DEFAULTS,
    DOWN,
    SEQUENCES,
    SQUARE,
    VOCABULARY,
    Setting,
    Variant,
    measure_variants,
    read_setting,
    stream_bounds,
)
from transformer_norms.commands.terminal import Parser
from transformer_norms.model.placement import Placement
from transformer_norms.progress import Tell
from transformer_norms.report.figures import (
    FONT,
    GREY,
    label_ends,
    line_style,
    pyplot,
    style_axes,
)
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table, text_table

TITLE = "Gradients and streams before training"
DIGITS = 10  # significant: the last ones of float64 depend on the number of threads
BOUNDS = {-0.5: "N^-1/2", 0.0: "N^0", None: ""}
LIMITS = (
    "One step backward from the start says how large gradients are there, not how a model trains: "
    "Adam, for one, divides by it.",
    "The tokens are random, one batch of them a seed, and what the model learns from text is not "
    "in their gradients.",
    "The intervals are over seeds. A line through a few depths is no proof of a power of N, and "
    "what it is beyond them is not measured; misfit says how far from it the depths are.",
    "Two matrices of each block are measured, and neither norms nor embeddings.",
)
LIMITS_OF_XIONG = (
    "All variants have the paper's init and shapes here: what a placement brings besides norms "
    "and skips, as DeepNorm's init, is not in this comparison. Without --xiong it is.",
)
EPILOG = f"""
Typed as for train -m: model.depth is the axis of depth, seed the seeds, every other list an axis
of variants. The defaults are {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())},
and one head with --xiong. Of placements with two streams x and r, x is measured. The last line on
stdout is JSON.
"""


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("init_gradients", __doc__, out, "placement=pre,post", EPILOG)
    parser.add_argument("overrides", nargs="*", metavar="KEY=A,B", help="as train -m takes them")
    parser.add_argument(
        "--xiong", action="store_true",
        help="with the suppositions of Xiong et al. 2020: uniform attention, relu, square matrices",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    setting = read_setting(typed.overrides, typed.xiong, tell)
    variants = measure_variants(setting, tell)
    paths = write_files(typed.out, files(setting, variants)) if typed.out else []
    return terminal(setting, variants), {"files": paths}


# --------------------------------------------------------------------------- table and sentences


def rows(setting: Setting, variants: Sequence[Variant]) -> list[list[str]]:
    """The table: a heading, and a row for each variant."""
    first, last = setting.depths[0], setting.depths[-1]
    heading = ["variant", "bound", "slope", "misfit", f"N={first}", f"N={last}", "stream"]
    return [heading, *(_row(variant, first, last) for variant in variants)]


def _row(variant: Variant, first: int, last: int) -> list[str]:
    law = variant.law
    half = "" if law is None or law.half is None else f" ± {law.half:.2f}"
    gradients = [geometric_mean(variant.blocks[n][:, -1, DOWN]) for n in (first, last)]
    stream = variant.blocks[last][:, -1, SQUARE].mean()
    bounds = " ({:g} to {:g})".format(*stream_bounds(last)) if variant.bound == -0.5 else ""
    return [
        variant.name,
        BOUNDS[variant.bound],
        f"{law.slope:+.2f}{half}" if law else "none",
        f"{law.misfit:.2f}" if law else "",
        *(f"{gradient:.3g}" for gradient in gradients),
        f"{stream:.3g}{bounds}",
    ]


def geometric_mean(values: np.ndarray, axis: int | None = None) -> Any:
    """The geometric mean, which is 0 if a value is 0."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(values).mean(axis))


def notes(setting: Setting, variants: Sequence[Variant]) -> list[str]:
    """Sentences that explain the table's columns."""
    first, last = setting.depths[0], setting.depths[-1]
    lines = [
        f"N={first}, N={last}: Frobenius norm of dL/dW_down in the last of N blocks, geometric "
        "mean of the seeds. slope: of its logarithm on log N, least squares for each seed; their "
        "mean and Student's 95 % interval. misfit: the largest factor between a depth's gradient "
        f"and the line. stream: mean square after block {last} of {last}, mean of the seeds."
    ]
    if setting.xiong:
        lines.append(
            "bound: the power of N beyond which the gradient does not grow, proven as are the two "
            "bounds of pre's stream by Xiong et al. 2020 (arXiv:2002.04745), whose suppositions "
            "the models meet as far as a placement lets them."
        )
    else:
        lines.append(
            "Xiong et al. 2020 (arXiv:2002.04745) prove bounds of pre and post under suppositions "
            "that these models do not meet; --xiong makes them."
        )
    if any(variant.law is None for variant in variants):
        lines.append("none: a gradient is zero or not finite, and has no logarithm.")
    dual = [
        name
        for name, configs in setting.variants.items()
        if Placement(**configs[0].placement).topology == "dual"
    ]
    if dual:
        lines.append(f"Of the two streams of {', '.join(dual)}, x is measured, and not r.")
    return lines


def _question(setting: Setting) -> str:
    depths, seeds = ", ".join(map(str, setting.depths)), ", ".join(map(str, setting.seeds))
    return f"N = {depths} blocks, seeds {seeds}"


def terminal(setting: Setting, variants: Sequence[Variant]) -> str:
    """The table and its notes within 80 columns."""
    title, table = paragraph(f"{TITLE}: {_question(setting)}"), text_table(rows(setting, variants))
    remarks = map(paragraph, (*notes(setting, variants), *setting.warnings))
    return "\n".join([title, "", table, "", *remarks, ""])


# ------------------------------------------------------------------------------------- the files


def files(setting: Setting, variants: Sequence[Variant]) -> dict[str, bytes]:
    """The contents of init_gradients.csv, .md and .svg."""
    return {
        "init_gradients.csv": csv_file(variants),
        "init_gradients.md": markdown_page(setting, variants).encode(),
        "init_gradients.svg": figure(variants, setting.depths),
    }


def csv_file(variants: Sequence[Variant]) -> bytes:
    """A row for each block of each model."""
    heading = "variant depth seed block down output square".split()
    lines = [
        [variant.name, depth, seed, block, *(f"{number:.{DIGITS}g}" for number in numbers)]
        for variant in variants
        for depth, models in variant.blocks.items()
        for seed, blocks in zip(variant.seeds, models, strict=True)
        for block, numbers in enumerate(blocks, start=1)
    ]
    return csv_table([heading, *lines])


def markdown_page(setting: Setting, variants: Sequence[Variant]) -> str:
    heading, *cells = rows(setting, variants)
    filled = [n for n in range(len(heading)) if any(row[n] for row in cells)]
    sections = [
        f"# {TITLE}",
        f"Models as they start, in float64, of {_question(setting)}; one batch of {SEQUENCES} "
        f"sequences of uniformly drawn tokens, {VOCABULARY} of them in the vocabulary; the "
        "gradient is that of the mean cross-entropy in nats per token. The keys:",
        markdown_list(setting.keys),
        markdown_table([[row[n] for n in filled] for row in (heading, *cells)]),
        markdown_list(notes(setting, variants)),
        "![by depth and by block](init_gradients.svg)",
        "## What this does not show",
        markdown_list((*LIMITS, *(LIMITS_OF_XIONG if setting.xiong else ()))),
    ]
    if setting.warnings:
        sections += ["## Warnings", markdown_list(setting.warnings)]
    return "\n\n".join(sections) + "\n"


# ------------------------------------------------------------------------------------ the figure

SIZE, INCHES_PER_NAME = (10.0, 3.4), 0.15
ASIDE = 0.05  # of an octave, between the dots of neighbouring variants
OFF = 1.2  # times the outermost dot, where a reference line runs
DOT: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 2, "markeredgewidth": 0}
BELOW: dict[str, Any] = {  # a word under the right end of what it names
    "xytext": (0, -2), "textcoords": "offset points", "ha": "right", "va": "top",
    "color": GREY, "fontsize": FONT - 1,
}  # fmt: skip
End = tuple[float, float]


def figure(variants: Sequence[Variant], depths: Sequence[int]) -> bytes:
    """Three logarithmic panels as SVG: each seed is a dot, the mean of the seeds a line.

    They show the last gradient by depth, and gradients and streams by block.
    """
    plt = pyplot()
    height = max(SIZE[1], INCHES_PER_NAME * len(variants) + 1)
    drawing, panels = plt.subplots(1, 3, figsize=(SIZE[0], height), layout="constrained")
    deepest = max(depths)
    for axes in panels:
        axes.set_yscale("log", nonpositive="mask")
    gradients, down, square = panels
    ends = [
        _draw_by_depth(gradients, variants, depths),
        _draw_by_block(down, variants, deepest, DOWN, geometric_mean),
        _draw_by_block(square, variants, deepest, SQUARE, np.mean),
    ]
    if any(variant.bound == -0.5 for variant in variants):
        _draw_bounds(square, deepest)
    for axes, own in zip(panels, ends, strict=True):
        _name_lines(axes, [variant.name for variant in variants], own)
        set_decades(axes)
        style_axes(axes)
    gradients.set(xlabel="depth N, blocks", ylabel="|dL/dW_down| in the last block")
    down.set(xlabel=f"block of {deepest}", ylabel="|dL/dW_down| in the block")
    square.set(xlabel=f"block of {deepest}", ylabel="mean square of the stream after the block")
    return svg_bytes(drawing)


def _draw_by_depth(axes: Any, variants: Sequence[Variant], depths: Sequence[int]) -> list[End]:
    """The last gradient by depth. The dots of neighbouring variants stand a little apart."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths], minor=False)
    axes.xaxis.minorticks_off()
    ends = []
    for place, variant in enumerate(variants):
        colour, dashes = line_style(place)
        last, law = variant.last, variant.law
        aside = 2 ** (ASIDE * (place - (len(variants) - 1) / 2))
        x = np.repeat([depth * aside for depth in variant.blocks], len(variant.seeds))
        axes.plot(x, last.ravel(), color=colour, alpha=0.7, **DOT)
        values = [law(depth) if law else 0.0 for depth in depths]
        axes.plot(depths, values, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depths[-1]), values[-1]))
    dots = [
        (depth, down)
        for variant in variants
        for depth, seeds in zip(variant.blocks, variant.last, strict=True)
        for down in seeds
        if 0 < down < np.inf
    ]
    if dots:  # Xiong's two slopes: 0 above all dots, -1/2 below them
        top = OFF * max(y for _, y in dots)
        low = min(y * n**0.5 for n, y in dots) / OFF
        for label, line in (("0", [top for _ in depths]), ("-1/2", [low / n**0.5 for n in depths])):
            axes.plot(depths, line, color=GREY, linewidth=0.6, zorder=1)
            axes.annotate(f"slope {label}", (depths[-1], line[-1]), **BELOW)
    return ends


def _draw_by_block(
    axes: Any, variants: Sequence[Variant], depth: int, column: int, mean: Callable[..., Any]
) -> list[End]:
    """One of the measured numbers in the blocks of the models of one depth."""
    ends, blocks = [], range(1, depth + 1)
    for place, variant in enumerate(variants):
        colour, dashes = line_style(place)
        numbers = variant.blocks[depth][..., column]
        axes.plot(np.tile(blocks, len(numbers)), numbers.ravel(), color=colour, alpha=0.25,
                  rasterized=True, **DOT)  # fmt: skip
        line = mean(numbers, axis=0)
        axes.plot(blocks, line, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depth), line[-1]))
    axes.set_xticks(sorted({1, *(round(depth * part / 4) for part in range(1, 5))}))
    return ends


def _draw_bounds(axes: Any, depth: int) -> None:
    blocks = list(range(1, depth + 1))
    low, high = zip(*map(stream_bounds, blocks), strict=True)
    axes.fill_between(blocks, low, high, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    axes.annotate("bounds of pre", (depth, low[-1]), **BELOW)


def _name_lines(axes: Any, names: Sequence[str], ends: Sequence[End]) -> None:
    """Names each line at its end. `label_ends` knows linear scales only, so it gets logarithms."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    beside = axes.twinx()
    beside.set_ylim(np.log10(low), np.log10(high))
    beside.set_axis_off()
    logs = [(x, np.log10(y) if 0 < y < np.inf else np.log10(low)) for x, y in ends]
    label_ends(beside, names, logs)


if __name__ == "__main__":
    sys.exit(main())
