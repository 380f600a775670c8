"""The drawing of each variant's block, as `explain` draws it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Variant, finite
from transformer_norms.run.reader import SavedRun

_DEEPEST, _LARGEST = 1024, 1 << 22  # depth, and depth x width, of a model that is drawn
# The nodes of a config of which nothing is drawn, so that what they hold is drawn once.
_NOT_DRAWN = {"optimizer", "schedule", "trainer", "loss", "data", "tokenizer"}


@dataclass(frozen=True)
class Drawing:
    """`svg` is our own drawing of a validated config. `why` says why there is none."""

    svg: str = ""
    ends: tuple[str, ...] = ()  # the equations before the first block and behind the last
    why: str = ""


def block_drawings(variants: Sequence[Variant]) -> list[tuple[Drawing, list[str]]]:
    """Returns each different drawing of the variants that have a result, with their names."""
    names: dict[Drawing, list[str]] = {}
    drawn: dict[str, Drawing] = {}
    for variant in variants:
        for run in variant.ended[:1]:
            key = _drawn_settings(run)
            drawing = drawn.get(key) or _drawing(run)
            if drawing.svg:  # what could not be read may be of what is not drawn
                drawn[key] = drawing
            names.setdefault(drawing, []).append(variant.name)
    return list(names.items())


def _drawn_settings(run: SavedRun) -> str:
    """Returns what a drawing is of: settings, and the names in its title."""
    titles = [run.choice("placement"), run.choice("norm")]
    settings = run.settings
    kept = {key: settings[key] for key in settings if key.partition(".")[0] not in _NOT_DRAWN}
    return json.dumps([titles, kept], sort_keys=True, default=str)


def _drawing(run: SavedRun) -> Drawing:
    depth, width = run.value("model.depth"), run.value("model.width")
    if not (finite(depth) and finite(width) and depth <= _DEEPEST and depth * width <= _LARGEST):
        return Drawing(why="it is too large")
    file = run.folder / "config.yaml"
    from transformer_norms.config.compose import compose
    from transformer_norms.explain.anatomy import Anatomy
    from transformer_norms.explain.painting import block_svg

    try:
        anatomy = Anatomy(compose([as_typed("config", str(file)), "trainer.device=cpu"]))
        return Drawing(block_svg(anatomy), tuple(anatomy.ends().values()))
    except ConfigError as error:
        return Drawing(why=str(error).removeprefix(f"config={file}: "))
