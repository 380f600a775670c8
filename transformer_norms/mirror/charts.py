"""What was probed, drawn: a chart for each measure and part, a line for each block.

One page is one small file. W&B's own charts of many lines would be a table each, which is an
artifact of the run, some twenty a run, and beside them a dozen numbers that are no metrics.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import isfinite, log10
from typing import Any

from transformer_norms.measures import MEASURES, PREFIX, Measure, Place, place_of

_MOST_POINTS = 300  # of a line, which is about as many pixels wide
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 340.0, 44.0, 190.0
_PAGE = """<!doctype html>
<meta charset="utf-8">
<style>
body { margin: 8px; background: #fff; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); font: 12px sans-serif }
text { font: 11px sans-serif; fill: #444 }
.title { font-weight: bold; fill: #000 }
path { fill: none; stroke-width: 1.4 }
path:hover { stroke-width: 3 }
.axis { stroke: #bbb; stroke-width: 1 }
</style>
"""

Point = tuple[float, float | None]
Lines = dict[Place, list[Point]]
Scale = Callable[[float], float]


def page(rows: Iterable[dict[str, Any]]) -> str:
    """The charts of a metrics.jsonl as HTML that loads nothing; '' where nothing was probed."""
    found: dict[tuple[str, str], Lines] = {}
    probed = [row for row in rows if any(key.startswith(f"{PREFIX}/") for key in row)]
    for row in probed[:: -(-len(probed) // _MOST_POINTS) or 1]:
        for key, value in row.items():
            if (place := place_of(key)) is not None:
                chart = (place.measure, "" if place.block is None else place.part)
                line = found.setdefault(chart, {}).setdefault(place, [])
                line.append((row["tokens"], value))
    order = {measure: number for number, measure in enumerate(MEASURES)}
    charts = sorted(found.items(), key=lambda item: (order.get(item[0][0], 99), item[0]))
    return _PAGE + "\n".join(_chart(*chart, lines) for chart, lines in charts) if charts else ""


def _chart(measure: str, part: str, lines: Lines) -> str:
    about = MEASURES.get(measure, Measure(measure, ""))
    shown = [value for line in lines.values() for _, value in line if value is not None]
    log = about.log and min(shown, default=0.0) > 0
    x, y = _across(lines), _up(shown, log)
    places = sorted(lines, key=lambda place: (place.block is None, place.block or 0, place.part))
    title = escape(": ".join(filter(None, [about.title, part])) + (" (log)" if log else ""))
    drawn = [_path(place, lines[place], places, x, y) for place in places]
    return (
        f'<svg viewBox="0 0 350 214"><text class="title" x="{_LEFT}" y="14">{title}'
        f"<title>{escape(about.meaning)}</title></text>{_legend(places)}"
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
        f"{_marks(shown, y)}{_tokens(lines)}{''.join(drawn)}</svg>"
    )


def _across(lines: Lines) -> Scale:
    last = max(tokens for line in lines.values() for tokens, _ in line) or 1
    return lambda tokens: _LEFT + (_RIGHT - _LEFT) * tokens / last


def _up(values: Sequence[float], log: bool) -> Scale:
    """From the least to the largest."""
    way: Scale = log10 if log else float
    low, high = (way(min(values)), way(max(values))) if values else (0.0, 1.0)
    span = high - low
    if not isfinite(span) or span == 0:
        return lambda value: (_TOP + _BOTTOM) / 2
    return lambda value: _BOTTOM - (_BOTTOM - _TOP) * (way(value) - low) / span


def _path(place: Place, line: list[Point], places: list[Place], x: Scale, y: Scale) -> str:
    """A gap where a number was not finite."""
    steps, pen = [], "M"
    for tokens, value in line:
        if value is None:
            pen = "M"
        else:
            steps.append(f"{pen}{x(tokens):.1f} {y(value):.1f}")
            pen = "L"
    named = f"<title>{_name(place)}</title>"
    look = f'stroke="{_colour(place, places)}"'
    dashes = ' stroke-dasharray="4 3"' if place.block is None else ""
    return f'<path {look}{dashes} d="{"".join(steps)}">{named}</path>'


def _name(place: Place) -> str:
    return escape(place.part if place.block is None else f"block {place.block}")


def _colour(place: Place, places: list[Place]) -> str:
    """From yellow at the first block to dark blue at the last."""
    if place.block is None:
        return "#888"
    depth = max(other.block or 0 for other in places) or 1
    share = place.block / depth
    return f"hsl({45 + 195 * share:.0f} 85% {48 - 14 * share:.0f}%)"


def _legend(places: list[Place]) -> str:
    """Names in their lines' colours: the first and the last block, and what is no block."""
    blocks = [place for place in places if place.block is not None]
    named = [*dict.fromkeys([*blocks[:1], *blocks[-1:]]), *places[len(blocks) :]]
    spans = [f'<tspan fill="{_colour(p, places)}">{_name(p)}</tspan>' for p in named]
    return f'<text x="{_LEFT}" y="30">{" &#160; ".join(spans)}</text>'


def _marks(values: Sequence[float], y: Scale) -> str:
    ends = dict.fromkeys([min(values), max(values)]) if values else ()
    return "".join(
        f'<text x="{_LEFT - 4}" y="{y(end) + 4:.1f}" text-anchor="end">{end:.3g}</text>'
        for end in ends
    )


def _tokens(lines: Lines) -> str:
    last = max(tokens for line in lines.values() for tokens, _ in line)
    return f'<text x="{_RIGHT}" y="{_BOTTOM + 15}" text-anchor="end">{last:,.0f} tokens</text>'
