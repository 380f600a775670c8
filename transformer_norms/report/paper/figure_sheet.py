"""The size, font and formats of figures for a paper, as they are typed."""

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from typing import Any

from transformer_norms.errors import ConfigError

FORMATS = ("pdf", "svg")
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # pt as in TeX
TEXT = 8.0  # points, of most text; none is smaller by more than one point
_SMALLEST, _LARGEST = 1.0, 40.0  # inches
# The panels that are written unless others are typed.
PANELS = ("differences", "loss-by-steps", "final-loss")
# These come with matplotlib, so that a figure is the same on every machine.
FONTS = {"serif": "STIXGeneral", "sans": "DejaVu Sans"}


@dataclass(frozen=True)
class Sheet:
    """`width` in inches; `font` is one of FONTS. Without `panels` all are drawn."""

    formats: tuple[str, ...] = ("pdf",)
    width: float = 3.25
    font: str = "sans"
    panels: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """The settings of matplotlib. PDFs embed fonts as TrueType: many venues refuse Type 3."""
        return {
            "font.family": [FONTS[self.font], FONTS["sans"]],  # the second has what the first lacks
            "mathtext.fontset": "stix" if self.font == "serif" else "dejavusans",
            "pdf.fonttype": 42,
            "text.hinting": "none",  # as wide when margins are measured as in the file
            "axes.linewidth": 0.6,
        }


def add_flags(parser: ArgumentParser) -> None:
    """Adds the flags of figures for a paper."""
    add = parser.add_argument_group("figures for a paper").add_argument
    add("--figures", type=os.path.expanduser, metavar="DIR",
        help="write panels of the report there, each as a separate file")  # fmt: skip
    add("--panels", type=lambda text: tuple(text.split(",")), metavar="LIST",
        help=f"of their names, or all (default: {','.join(PANELS)})")  # fmt: skip
    add("--format", type=read_formats, metavar="LIST", help="of pdf,svg (default: pdf)")
    add("--width", type=read_length, metavar="LENGTH",
        help="in in, cm, mm or TeX's pt (default: 3.25in, a column of most venues)")  # fmt: skip
    add("--font", choices=FONTS, help="(default: sans)")


def typed_sheet(typed: Namespace) -> Sheet | None:
    """The sheet of the typed flags; None without --figures. Raises ConfigError, one line."""
    flags = ("format", "width", "font", "panels")
    given = {flag: value for flag in flags if (value := getattr(typed, flag)) is not None}
    if typed.figures is not None:
        panels = given.pop("panels", PANELS)
        own = {"formats" if flag == "format" else flag: value for flag, value in given.items()}
        return Sheet(**own, panels=() if "all" in panels else panels)
    if given:
        raise ConfigError(f"--{next(iter(given))}: type --figures DIR as well; it is about figures")
    return None


def read_formats(text: str) -> tuple[str, ...]:
    formats = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    if wrong := [word for word in formats if word not in FORMATS]:
        raise ArgumentTypeError(f"{wrong[0]}: {', '.join(FORMATS)} can be written")
    return formats


def read_length(text: str) -> float:
    """The length in inches."""
    parts = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", text, re.ASCII)
    if parts is None or parts[2] not in INCHES:
        raise ArgumentTypeError(
            f"{text}: a length such as 3.25in is wanted, in {', '.join(INCHES)}"
        )
    inches = float(parts[1]) * INCHES[parts[2]]
    if not _SMALLEST <= inches <= _LARGEST:
        raise ArgumentTypeError(
            f"{text}: is {inches:.3g} inches; {_SMALLEST:g} to {_LARGEST:g} inches are drawn"
        )
    return inches
