"""Shared parts of figures: styles that read in grey, names that do not overlap, lines of n-grams,
the marks of failed runs, and stable bytes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from transformer_norms.data.ngrams import ngram_name
from transformer_norms.text_tables import printable

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
MOST_LINES = len(COLOURS) * len(DASHES)  # lines of more variants look alike
GREY = "#666666"
LINE = "#bbbbbb"  # of n-grams, below everything else
FONT = 7.5  # points
_DPI = 200  # of colours that a drawing holds as an image
_FRAME = 0.8  # inches of a figure that its axes do not have
_HEIGHT, _PER_NAME = 3.4, 0.15  # inches
_LONGEST_NAME = 34  # characters
_ROW = 7  # points between the crosses of two variants
_text_size = ContextVar("points of a figure's text", default=FONT)


def text_size() -> float:
    """The size of the text of the figure that is being drawn, in points."""
    return _text_size.get()


@contextmanager
def drawn_with(size: float, settings: dict[str, Any]) -> Iterator[None]:
    """Inside, figures are drawn with text of `size` points and these settings of matplotlib."""
    import matplotlib

    token = _text_size.set(size)
    try:
        with matplotlib.rc_context(settings):  # type: ignore[arg-type]  # names are text
            yield
    finally:
        _text_size.reset(token)


def line_style(place: int) -> tuple[str, Any]:
    """Colour and dashes of the variant at a place. The first MOST_LINES places differ from each
    other."""
    return COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]


def tag(
    artists: Iterable[Any], place: int, words: str, points: Sequence[str] = (), kind: str = ""
) -> None:
    """Says which variant, by its place, artists belong to, and names them and each of their points.
    A page shows the words under the cursor; the bytes of a figure do not have them."""
    for artist in artists:
        artist.tag = Tag(f"variant-{place} {kind}".strip(), words, points)


@contextmanager
def tagging(axes: Any, place: int, words: str) -> Iterator[None]:
    """Tags what is drawn inside and has no tag."""
    before = {*axes.get_children()}
    yield
    new = [artist for artist in axes.get_children() if artist not in before]
    tag([artist for artist in new if not hasattr(artist, "tag")], place, words)


class Tag(NamedTuple):
    classes: str
    words: str
    points: Sequence[str]


def short_name(text: str, longest: int = _LONGEST_NAME) -> str:
    """Cut in the middle: names of variants often differ at their end."""
    text = printable(text)
    if len(text) <= longest:
        return text
    head = (longest - 3) // 2
    return f"{text[:head]}...{text[head + 3 - longest :]}"


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart, in the order of `wanted` and as close to it as possible (by
    least squares), inside 0..1; evenly spread if there is no room for that."""
    from scipy.optimize import isotonic_regression

    count = len(wanted)
    steps = min(gap, 1 / max(1, count - 1)) * np.arange(count)
    order = np.argsort(wanted, kind="stable")
    fitted = isotonic_regression(np.asarray(wanted)[order] - steps).x
    placed = np.empty(count)
    placed[order] = np.clip(fitted, 0, 1 - steps[-1]) + steps
    return [float(position) for position in placed]


def height_of(names: int, crosses: int = 0) -> float:
    """The height, in inches, of a figure with so many names next to its axes, and so many rows of
    crosses above them, the first of which lies on the edge."""
    return max(_HEIGHT, _PER_NAME * names + 1) + _ROW / 72 * max(0, crosses - 1)


class DrawnLine(NamedTuple):
    """A line that is drawn: the place that sets its style, its name, its end unless it has no
    point, and the number of runs that failed at each x."""

    place: int
    name: str
    end: tuple[float, float] | None
    failed: Mapping[float, int] = {}


def finish_lines(axes: Any, lines: Sequence[DrawnLine], ngrams: Sequence[float] = ()) -> None:
    """Writes the name of each line next to its end, in its colour, apart from the others. A cross
    on the upper edge marks runs that failed. Lines of n-grams that are in view are drawn, and named
    in grey."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # crosses move no axis
    failing = [line for line in lines if line.failed]
    for row, line in enumerate(failing):
        for x, count in line.failed.items():
            _mark_failures(axes, x, count, row, line)
    (low, high), scale = axes.get_ylim(), np.log if axes.get_yscale() == "log" else float
    longest = min(_LONGEST_NAME, int(7 * axes.figure.get_size_inches()[0]))
    named = [(line, line.end) for line in lines if line.end]
    labels = [(short_name(line.name, longest), line_style(line.place)[0], end)
              for line, end in named]  # fmt: skip
    for order, loss in ngrams_in_view(ngrams, low, high):
        axes.axhline(loss, color=LINE, linewidth=0.6, zorder=1)
        labels.append((ngram_name(order), GREY, (axes.get_xlim()[1], loss)))
    if not labels:
        return
    inches = axes.figure.get_size_inches()[1] - _FRAME - _ROW / 72 * max(0, len(failing) - 1)
    bottom, top = scale(low), scale(high)
    inside = [min(max(y, low), high) for _, _, (_, y) in labels]
    wanted = [(scale(y) - bottom) / (top - bottom) for y in inside]
    heights = spread_apart(wanted, text_size() * 1.25 / 72 / inches)
    drawn = []
    for (name, colour, (x, _)), at, y in zip(labels, inside, heights, strict=True):
        label = axes.annotate(
            name, (x, at), xytext=(1.05, y),
            textcoords="axes fraction", va="center", fontsize=text_size(), color=colour,
            parse_math=False, annotation_clip=False, arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip
        drawn.append(label)
    for label, (line, _) in zip(drawn, named, strict=False):  # n-grams have no place
        tag([label], line.place, line.name)


def _mark_failures(axes: Any, x: float, count: int, row: int, line: DrawnLine) -> None:
    """Draws a cross for runs that failed, with their number if there are several. Each `row` is
    above the one before, so that the crosses of two variants do not overlap."""
    from matplotlib.transforms import offset_copy

    above = offset_copy(axes.transData, axes.figure, y=_ROW * row, units="points")
    top, colour = axes.get_ylim()[1], line_style(line.place)[0]
    with tagging(axes, line.place, f"{line.name}: {count} failed"):
        axes.plot([x], [top], "x", color=colour, markersize=5, clip_on=False, transform=above,
                  zorder=4)  # fmt: skip
        if count > 1:
            axes.annotate(
                str(count), (x, top), xytext=(5, _ROW * row), textcoords="offset points",
                va="center", fontsize=text_size() - 1, color=colour, annotation_clip=False,
            )  # fmt: skip


def draw_dots(
    axes: Any, at: tuple[Sequence[float], Sequence[float]], place: int, name: str,
    words: Sequence[str], size: float = 2.8,
) -> None:  # fmt: skip
    """Draws a dot for each run of a variant, at x and y. Each has its own words."""
    colour, _ = line_style(place)
    dots = axes.plot(*at, "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.7)
    tag(dots, place, name, words)


def ngrams_in_view(ngrams: Sequence[float], low: float, high: float) -> list[tuple[int, float]]:
    """The order and the loss of each n-gram whose line is in view: no axis is stretched for one."""
    return [(order, loss) for order, loss in enumerate(ngrams, 1) if low < loss < high]


def number_parts_of_decades(axis: Any) -> None:
    """Numbers a logarithmic axis that spans about a decade as a linear one is numbered."""
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(ScalarFormatter(useOffset=False))


def use_log_axis(axes: Any) -> None:
    """Makes x logarithmic, with ticks at 1, 2 and 5 of each decade. All of them are named where
    there are at most a decade and a half, and powers of ten where there are more."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    def name(value: float, _: int) -> str:
        low, high = axes.xaxis.get_view_interval()
        is_power = np.isclose(np.log10(value), round(np.log10(value)))
        return f"{value:g}" if is_power or high <= 30 * low else ""

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(name))
    axes.minorticks_off()


def subplots(rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Any, Any]:
    """A figure and its axes, with the settings of matplotlib's `subplots`, in the style of all
    figures. It is for files alone: it opens no window, and is not closed."""
    from matplotlib.figure import Figure

    of_figure = {name: settings.pop(name) for name in ("figsize", "layout") if name in settings}
    figure = Figure(**of_figure)
    panels = figure.subplots(rows, columns, **settings)
    for axes in figure.axes:
        axes.tick_params(labelsize=text_size(), colors=GREY)
        axes.xaxis.label.set_fontsize(text_size() + 1)
        axes.yaxis.label.set_fontsize(text_size() + 1)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


_STAMPS = {"svg": ("Date",), "pdf": ("CreationDate", "Creator", "Producer")}


def figure_bytes(figure: Any, kind: str) -> bytes:
    """The figure as an SVG or a PDF, without a date and without a version."""
    import matplotlib

    data = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "report"}):  # names of parts follow from it
        figure.savefig(data, format=kind, dpi=_DPI, metadata=dict.fromkeys(_STAMPS[kind]))
    figure.set_layout_engine("none")  # another format has the same layout
    return _round_svg(data.getvalue()) if kind == "svg" else data.getvalue()


def _round_svg(svg: bytes) -> bytes:
    """The SVG with coordinates in thousandths of a point, and each clip path named by them. In
    Matplotlib's own the last digit, and with it names, may be another one on another processor."""
    svg = re.sub(rb"scale\([^)]*\)|-?\d+\.\d{4,}", _shorten, svg)
    clips = re.findall(rb'<clipPath id="(\w+)">(.*?)</clipPath>', svg, re.DOTALL)
    names = {old: b"p" + sha256(shape).hexdigest()[:10].encode() for old, shape in clips}
    return re.sub(rb"\bp[0-9a-f]{10}\b", lambda found: names.get(found[0], found[0]), svg)


def _shorten(found: re.Match[bytes]) -> bytes:
    """A coordinate with three decimals; a scale as it is."""
    if found[0].startswith(b"scale"):
        return found[0]
    text = f"{float(found[0]):.3f}".rstrip("0").rstrip(".")
    return (text if float(text) else "0").encode()
