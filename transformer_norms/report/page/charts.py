"""The charts of a page: the drawings of all panels, as SVG whose parts know their variant."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from transformer_norms.report.charts.differences import BAND
from transformer_norms.report.charts.panels import SECTIONS, Panel, draw_panel, panels
from transformer_norms.report.figures import (
    COLOURS,
    GREY,
    LINE,
    MOST_LINES,
    Tag,
    drawn_with,
    figure_bytes,
    height_of,
)
from transformer_norms.report.findings import Findings
from transformer_norms.report.paper.figure_sheet import TEXT
from transformer_norms.report.study import Rows
from transformer_norms.text_tables import printable

POINTS = 150  # of one curve, at most
_WIDTH = 5.2  # inches
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
# The page's own names of the colours, which follow its reader to the dark.
_THEMED = {
    **{colour: f"--line-{place}" for place, colour in enumerate(COLOURS)},
    **{GREY: "--faint", LINE: "--rule", BAND: "--band", "#ffffff": "--ground"},
}


@dataclass(frozen=True)
class Chart:
    panel: Panel
    svg: Markup


def page_charts(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, list[Chart]]:
    """Returns the charts of each section."""
    charts: dict[str, list[Chart]] = {section: [] for section in SECTIONS}
    settings = {"font.family": ["sans-serif"], "svg.fonttype": "none"}
    many = len(findings.study.variants)
    with drawn_with(TEXT, settings):
        for panel in panels(findings, rows, POINTS):
            alike = many > MOST_LINES and panel.name.endswith("-by-step")
            if alike or panel.name == "loss-by-steps":  # it looks as it does by tokens
                continue
            figure = draw_panel(panel, _WIDTH, height_of(many))
            charts[panel.section].append(Chart(panel, _page_svg(panel, figure)))
    return charts


def _page_svg(panel: Panel, figure: Any) -> Markup:
    """The drawing as an element of a page. Parts have the class of their variant, and points their
    words; colours are the page's, and names of parts are not those of another chart."""
    tags = list(_number_tags(figure))
    root = ElementTree.fromstring(figure_bytes(figure, "svg"))
    for element in root.iter():
        if (name := element.get("id", "")).startswith("tag-"):
            _apply(tags[int(name.removeprefix("tag-"))], element, panel.section != "axes")
        if element.tag == f"{_SVG}g":
            element.attrib.pop("id", None)
        elif name:
            element.set("id", f"{panel.name}-{name}")
        for key, value in element.attrib.items():
            if key == _LINK and value.startswith("#"):
                element.set(key, f"#{panel.name}-{value[1:]}")
            elif key == "clip-path":
                element.set(key, value.replace("#", f"#{panel.name}-"))
            elif key == "style":
                element.set(key, _themed(value))
    for metadata in root.findall(f"{_SVG}metadata"):
        root.remove(metadata)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _number_tags(figure: Any) -> Iterator[Tag]:
    """Yields the tags of a figure, and names their artists in the SVG by the number of the tag."""
    artists = [artist for axes in figure.axes for artist in axes.get_children()]
    artists += [tick.label1 for axes in figure.axes for tick in axes.yaxis.majorTicks]
    for number, artist in enumerate(one for one in artists if hasattr(one, "tag")):
        for part in (artist, getattr(artist, "arrow_patch", None)):
            if part is not None:
                part.set_gid(f"tag-{number}")
        yield artist.tag


def _apply(tag: Tag, group: ElementTree.Element, by_variant: bool) -> None:
    """Gives a part its class and its words. Points outside the figure are not drawn: the others
    have the words of the whole then."""
    if by_variant:
        group.set("class", tag.classes)
    points = [*group.iter(f"{_SVG}use")]
    named = {group: tag.words}
    if tag.points and len(points) == len(tag.points):
        named = dict(zip(points, tag.points, strict=True))
    for element, words in named.items():
        ElementTree.SubElement(element, f"{_SVG}title").text = printable(words)


def _themed(style: str) -> str:
    """The colours of a style by their names. The rings on the cells of a map stay white."""
    style = re.sub(r"(?<=font: )([\d.]+px)[^;]*", r"\1 Helvetica, Arial, sans-serif", style)
    return re.sub(
        r"#[0-9a-f]{6}",
        lambda found: f"var({_THEMED[found[0]]}, {found[0]})" if found[0] in _THEMED else found[0],
        style.replace("stroke: #ffffff", "stroke: white"),
    )


ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
