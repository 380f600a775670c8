"""The drawing of each variant's block, as `explain` draws it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.comparison.statistics import finite
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Variant
from transformer_norms.run.reader import SavedRun

_DEEPEST, _LARGEST = 1024, 1 << 22  # depth, and depth x width, of a model that is drawn


@dataclass(frozen=True)
class Drawing:
    """`svg` is our own drawing of a validated config. `why` says why there is none."""

    svg: str = ""
    ends: tuple[str, ...] = ()  # the equations before the first block and after the last
    why: str = ""


def block_drawings(variants: Sequence[Variant]) -> list[tuple[Drawing, list[str]]]:
    """Returns each different drawing of the variants that have a result, with their names."""
    names: dict[Drawing, list[str]] = {}
    for variant in variants:
        for run in variant.ended[:1]:
            names.setdefault(_drawing(run), []).append(variant.name)
    return list(names.items())


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
