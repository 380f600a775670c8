"""Lines, boxes and words as SVG. Heights count upward until the page is done."""

from html import escape

STYLE = """
text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2937 }
.title { font-size: 17px; font-weight: bold }
.blocks { font-size: 14px; font-weight: bold }
.site, .factor { font-size: 12px; fill: #4b5563 }
.equation { font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 11.5px }
.in-norm { fill: #ffffff; font-weight: bold }
rect.norm { fill: #2563eb }
rect.layer { fill: #e5e7eb; stroke: #9ca3af }
circle { fill: #ffffff; stroke: #1f2937; stroke-width: 1.5 }
path { fill: none; stroke: #4b5563; stroke-width: 1.5 }
path.stream { stroke: #1f2937; stroke-width: 2.5 }
path.head { fill: #1f2937; stroke: none }
"""
CORNER = 9.0
Point = tuple[float, float]


class Page:
    """What is drawn first lies below what follows."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, list[float]]] = []

    def add(self, pattern: str, *heights: float) -> None:
        """`pattern` with {0}, {1}, ... where heights stand."""
        self.parts.append((pattern, list(heights)))

    def line(self, points: list[Point], kind: str = "branch", arrow: bool = False) -> None:
        """Straight pieces with round corners, an arrow at the end if asked."""
        tip = points[-1]
        if arrow:
            points = [*points[:-1], _short_of(tip, points[-2])]
        commands, heights = [f"M {points[0][0]:.1f} {{0:.1f}}"], [points[0][1]]
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            enter, leave = _towards(corner, before), _towards(corner, after)
            n = len(heights)
            commands.append(
                f"L {enter[0]:.1f} {{{n}:.1f}} Q {corner[0]:.1f} {{{n + 1}:.1f}} "
                f"{leave[0]:.1f} {{{n + 2}:.1f}}"
            )
            heights += [enter[1], corner[1], leave[1]]
        commands.append(f"L {points[-1][0]:.1f} {{{len(heights)}:.1f}}")
        heights.append(points[-1][1])
        self.add(f'<path class="{kind}" d="{" ".join(commands)}"/>', *heights)
        if arrow:
            self.head(points[-2], tip)

    def head(self, before: Point, tip: Point) -> None:
        (x, y), size = tip, 7.0
        if before[0] == x:
            back = y - size if before[1] < y else y + size
            corners = [(x, y), (x - 4, back), (x + 4, back)]
        else:
            side = x - size if before[0] < x else x + size
            corners = [(x, y), (side, y - 4), (side, y + 4)]
        path = " L ".join(f"{x:.1f} {{{n}:.1f}}" for n, (x, _) in enumerate(corners))
        self.add(f'<path class="head" d="M {path} Z"/>', *(height for _, height in corners))

    def box(self, kind: str, x: float, y: float, width: float, height: float, words: str) -> None:
        """Its centre is at x, y."""
        self.add(
            f'<rect class="{kind}" x="{x - width / 2:.1f}" y="{{0:.1f}}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="6"/>',
            y + height / 2,
        )
        self.words(words, x, y, f"in-{kind}")

    def circle(self, x: float, y: float, radius: float, sign: str) -> None:
        self.add(f'<circle cx="{x:.1f}" cy="{{0:.1f}}" r="{radius}"/>', y)
        arm = radius * (0.6 if sign == "+" else 0.42)
        ends = [((x - arm, y), (x + arm, y)), ((x, y - arm), (x, y + arm))]
        if sign != "+":
            low, high = y - arm, y + arm
            ends = [((x - arm, low), (x + arm, high)), ((x - arm, high), (x + arm, low))]
        for one, other in ends:
            self.line([one, other])

    def words(self, words: str, x: float, y: float, kind: str, anchor: str = "middle") -> None:
        text = escape(words).replace("{", "{{").replace("}", "}}")
        self.add(
            f'<text class="{kind}" x="{x:.1f}" y="{{0:.1f}}" text-anchor="{anchor}" '
            f'dominant-baseline="central">{text}</text>',
            y,
        )

    def svg(self, width: float, height: float) -> str:
        """A file of its own, on white."""
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        return self.bare(width, height, f"\n<style>{STYLE}</style>\n{paper}") + "\n"

    def bare(self, width: float, height: float, first: str = "") -> str:
        """For a page that has the style."""
        drawn = "\n".join(part.format(*(height - h for h in at)) for part, at in self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">{first}\n{drawn}\n</svg>'
        )


def _towards(corner: Point, other: Point) -> Point:
    """A little way from a corner to the next point, where the curve begins."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    share = min(CORNER, length / 2) / length if length else 0
    return corner[0] + dx * share, corner[1] + dy * share


def _short_of(tip: Point, before: Point) -> Point:
    """Where a line ends whose arrow comes to `tip`."""
    dx, dy = before[0] - tip[0], before[1] - tip[1]
    length = abs(dx) + abs(dy)
    return tip[0] + 5 * dx / length, tip[1] + 5 * dy / length
