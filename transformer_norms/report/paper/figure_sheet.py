"""The size, font and formats of figures for a paper, as they are typed."""

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.names import did_you_mean, nearest

FORMATS = ("pdf", "svg", "png")
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # pt as in TeX
TEXT = 8.0  # points, of most text; none is smaller by more than one point
_LARGEST, _SMALLEST = 40.0, 1.0  # inches
_DPI = (50, 2400)
# These come with matplotlib, so that a figure is the same on every machine.
FONTS = {"serif": "STIXGeneral", "sans": "DejaVu Sans"}


@dataclass(frozen=True)
class Sheet:
    """`width` and `height` in inches, a height of None follows from what is drawn; `dpi` is that of
    a PNG, and `font` the family of all text."""

    formats: tuple[str, ...]
    width: float
    height: float | None
    dpi: float
    font: str

    def settings(self) -> dict[str, Any]:
        """The settings of matplotlib. PDFs embed fonts as TrueType: many venues refuse Type 3."""
        math = "stix" if self.font == FONTS["serif"] else "dejavusans"
        return {
            "font.family": [self.font, FONTS["sans"]],  # the second has what the first lacks
            "mathtext.fontset": math,
            "pdf.fonttype": 42,
            "axes.linewidth": 0.6,
        }


# The word of each flag that is not typed.
_USUAL = {"format": "pdf", "width": "3.25in", "height": "auto", "dpi": "300", "font": "sans"}


def add_flags(parser: ArgumentParser) -> None:
    """Adds the flags of figures for a paper."""
    group = parser.add_argument_group("figures for a paper")
    group.add_argument(
        "--figures",
        type=os.path.expanduser,
        metavar="DIR",
        help="write each panel of the report there, as a file of its own",
    )
    group.add_argument("--format", metavar="LIST", help="of pdf,svg,png (default: pdf)")
    group.add_argument(
        "--width", metavar="LENGTH",
        help="in in, cm, mm or TeX's pt (default: 3.25in, a column of most venues)",
    )  # fmt: skip
    group.add_argument("--height", metavar="LENGTH", help="default: what the panel needs")
    group.add_argument("--dpi", metavar="N", help="of png (default: 300)")
    group.add_argument(
        "--font", metavar="NAME", help="serif, sans or an installed family (default: sans)"
    )


def typed_sheet(typed: Namespace) -> Sheet | None:
    """The sheet of the typed flags; None without --figures. Raises ConfigError, one line."""
    words = {flag: getattr(typed, flag) for flag in _USUAL}
    if typed.figures is None:
        if alone := [flag for flag, word in words.items() if word is not None]:
            raise ConfigError(f"--{alone[0]}: type --figures DIR as well; it is about figures")
        return None
    return read_sheet(
        **{flag: _USUAL[flag] if word is None else word for flag, word in words.items()}
    )


def read_sheet(format: str, width: str, height: str, dpi: str, font: str) -> Sheet:
    """Raises ConfigError, one line, for a format, length or font that is none."""
    return Sheet(
        _read_formats(format.split(",")),
        _read_length("--width", width),
        None if height == "auto" else _read_length("--height", height),
        _read_dpi(dpi),
        _read_font(font),
    )


def _read_formats(words: Sequence[str]) -> tuple[str, ...]:
    formats = tuple(dict.fromkeys(word.strip().lower() for word in words))
    if wrong := [word for word in formats if word not in FORMATS]:
        raise ConfigError(f"--format {wrong[0]}: {', '.join(FORMATS)} can be written")
    return formats


def _read_length(flag: str, text: str) -> float:
    parts = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", text, re.ASCII)
    units = ", ".join(INCHES)
    if parts is None:
        raise ConfigError(f"{flag} {text}: a length such as 3.25in is wanted, in {units}")
    number, unit = parts.groups()
    if unit not in INCHES:
        why = f"there is no unit {unit}" if unit else f"type the unit, such as {number}in"
        raise ConfigError(f"{flag} {text}: {why}; units are {units}")
    inches = float(number) * INCHES[unit]
    if not _SMALLEST <= inches <= _LARGEST:
        raise ConfigError(
            f"{flag} {text}: is {inches:.3g} inches; {_SMALLEST:g} to {_LARGEST:g} inches are drawn"
        )
    return inches


def _read_dpi(text: str) -> float:
    try:
        dpi = float(text)
    except ValueError:
        dpi = float("nan")
    if not (isfinite(dpi) and _DPI[0] <= dpi <= _DPI[1]):
        raise ConfigError(f"--dpi {text}: a number from {_DPI[0]} to {_DPI[1]} is wanted")
    return dpi


def _read_font(text: str) -> str:
    """The family of a font: one of FONTS, or one that this machine has."""
    if text in FONTS:
        return FONTS[text]
    from matplotlib.font_manager import fontManager

    families = {name.lower(): name for name in fontManager.get_font_names()}
    if text.lower() in families:
        return families[text.lower()]
    near = [families.get(name, name) for name in nearest(text, [*FONTS, *families], 3)]
    raise ConfigError(
        f"--font {text}: {did_you_mean(near)}there are serif, sans and the families that are "
        "installed on this machine"
    )
