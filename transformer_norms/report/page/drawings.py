"""Each variant's block, as `explain` draws it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Variant

_DEEPEST, _LARGEST = 1024, 1 << 22  # depth, and depth x width, of a model that is drawn


@dataclass(frozen=True)
class Block:
    """`svg` is our own drawing of a validated config; `why` stands where there is none."""

    variants: list[str]
    svg: str = ""
    why: str = ""


def drawn_blocks(variants: Sequence[Variant]) -> list[Block]:
    """Of variants that have a result; those whose drawings are the same share one."""
    found: dict[tuple[str, str], list[str]] = {}
    for variant in variants:
        if not variant.ended:
            continue
        typed = f"config={variant.ended[0].folder / 'config.yaml'}"
        try:
            drawn = (_draw(typed), "")
        except ConfigError as error:
            drawn = ("", str(error).removeprefix(f"{typed}: "))
        found.setdefault(drawn, []).append(variant.name)
    return [Block(names, svg, why) for (svg, why), names in found.items()]


def _draw(typed: str) -> str:
    """ConfigError where the config is not one that this version can build."""
    from transformer_norms.config import compose, plain

    config = plain(compose([typed, "trainer.device=cpu"]))
    depth, width = config["model"]["depth"], config["model"]["width"]
    if depth > _DEEPEST or depth * width > _LARGEST:
        raise ConfigError("it is too large")
    from transformer_norms.explain.anatomy import dissect
    from transformer_norms.explain.figure import drawn
    from transformer_norms.explain.reading import Reader
    from transformer_norms.explain.weightless import build_weightless

    reader, model = Reader(config), build_weightless(config, 256)
    page, width, height = drawn(
        config, [dissect(reader, i, block) for i, block in enumerate(model.blocks)]
    )
    return page.bare(width, height)
