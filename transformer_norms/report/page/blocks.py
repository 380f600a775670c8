"""Each variant's block, as `explain` draws it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Variant

_LARGEST = 1 << 24  # depth x width of a model that is drawn


@dataclass(frozen=True)
class Block:
    """`svg` is our own drawing of a validated config; `why` stands where there is none."""

    variants: list[str]
    svg: str = ""
    why: str = ""


def blocks(variants: Sequence[Variant]) -> list[Block]:
    """Of variants that have a result; those whose drawings are the same share one."""
    found: dict[tuple[str, str], list[str]] = {}
    for variant in variants:
        if not variant.ended:
            continue
        try:
            drawn = (_draw(str(variant.ended[0].folder / "config.yaml")), "")
        except ConfigError as error:
            drawn = ("", str(error))
        found.setdefault(drawn, []).append(variant.name)
    return [Block(names, svg, why) for (svg, why), names in found.items()]


def _draw(path: str) -> str:
    """ConfigError where the config is not one that this version can build."""
    from transformer_norms.config import compose, plain

    config = plain(compose([f"config={path}", "trainer.device=cpu"]))
    if config["model"]["depth"] * config["model"]["width"] > _LARGEST:
        raise ConfigError("too large to be drawn")
    from transformer_norms.explain.anatomy import dissect
    from transformer_norms.explain.figure import drawn
    from transformer_norms.explain.reading import Reader
    from transformer_norms.explain.weightless import build_weightless

    reader, model = Reader(config), build_weightless(config, 256)
    page, width, height = drawn(
        config, [dissect(reader, i, block) for i, block in enumerate(model.blocks)]
    )
    return page.bare(width, height)
