"""What the figures share: styles that read in grey, names that do not overlap, stable bytes."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np

from transformer_norms.report.escape import printable

# From dark to light, about equally far apart in lightness; as many more than dashes as makes every
# pair of the two come up.
COLOURS = ("#000000", "#20408f", "#ab3a20", "#2e8a5c", "#b97fa6", "#e2a03f")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (9, 3)),
)
GREY = "#666666"
FONT = 7.5  # points
_LONGEST = 34  # characters of a name
DPI = 200
_FRAME = 0.8  # inches of a figure that its axes do not have


def style(place: int) -> tuple[str, Any]:
    """Colour and dashes of the variant at a place: a pair of its own for each of the first 30."""
    return COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]


def name(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, in the order of `wanted` and as close to it as can be (least
    squares), inside low..high; evenly spread where there is no room for that."""
    from scipy.optimize import isotonic_regression

    count = len(wanted)
    steps = min(gap, (high - low) / max(1, count - 1)) * np.arange(count)
    order = np.argsort(wanted, kind="stable")
    fitted = isotonic_regression(np.asarray(wanted)[order] - steps).x
    placed = np.empty(count)
    placed[order] = np.clip(fitted, low, high - steps[-1]) + steps
    return [float(position) for position in placed]


def name_ends(axes: Any, names: Sequence[str], ends: Sequence[tuple[float, float]]) -> None:
    """Each variant's name beside the end of its line, in its colour, pushed away from others."""
    low, high = axes.get_ylim()
    inches = axes.figure.get_size_inches()[1] - _FRAME
    wanted = [min(max((y - low) / (high - low), 0), 1) for _, y in ends]
    heights = apart(wanted, FONT * 1.25 / 72 / inches, 0.0, 1.0)
    for place, ((x, _), at, y) in enumerate(zip(ends, wanted, heights, strict=True)):
        colour, _ = style(place)
        axes.annotate(
            name(names[place]), (x, low + at * (high - low)), xytext=(1.05, y),
            textcoords="axes fraction", va="center", fontsize=FONT, color=colour,
            parse_math=False, annotation_clip=False, arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def plain(axes: Any) -> None:
    axes.tick_params(labelsize=FONT, colors=GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_size(FONT + 1)
    axes.spines[["top", "right"]].set_visible(False)


def pyplot() -> Any:
    """Matplotlib for files, imported when something is drawn. The same drawing is the same file."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "report"
    from matplotlib import pyplot

    return pyplot


def saved(figure: Any, kind: str) -> bytes:
    data = BytesIO()
    stamp = {"svg": {"Date": None}, "png": {"Software": None}}[kind]
    figure.savefig(data, format=kind, dpi=DPI, metadata=stamp)
    return data.getvalue()
