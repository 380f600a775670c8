"""Each variant's block, as `explain` draws it."""

from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO

from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Variant, finite
from transformer_norms.run.reader import SavedRun

_DEEPEST, _LARGEST = 1024, 1 << 22  # depth, and depth x width, of a model that is drawn


@dataclass(frozen=True)
class Block:
    """`svg` is our own drawing of a validated config; `why` stands where there is none."""

    variants: list[str]
    svg: str = ""
    ends: tuple[str, ...] = ()  # what stands before the first block and behind the last
    why: str = ""


def drawn_blocks(variants: Sequence[Variant]) -> list[Block]:
    """Returns the drawings of variants that have a result. Equal drawings are shown once."""
    found: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for variant in variants:
        for run in variant.ended[:1]:
            found.setdefault(_drawn(run), []).append(variant.name)
    return [Block(names, *drawn) for drawn, names in found.items()]


def _drawn(run: SavedRun) -> tuple[str, tuple[str, ...], str]:
    """The drawing and its ends, or why there is none."""
    depth, width = run.value("model.depth"), run.value("model.width")
    if not (finite(depth) and finite(width) and depth <= _DEEPEST and depth * width <= _LARGEST):
        return "", (), "it is too large"
    file = run.folder / "config.yaml"
    try:
        return *_draw(as_typed("config", str(file))), ""
    except ConfigError as error:
        return "", (), str(error).removeprefix(f"config={file}: ")


def _draw(typed: str) -> tuple[str, tuple[str, ...]]:
    """ConfigError where the config is not one that this version can build."""
    from transformer_norms.config.compose import compose
    from transformer_norms.explain.anatomy import Anatomy
    from transformer_norms.explain.painting import block_svg

    with redirect_stderr(StringIO()):  # the report says once that runs were translated
        anatomy = Anatomy(compose([typed, "trainer.device=cpu"]))
    return block_svg(anatomy), tuple(anatomy.ends().values())
