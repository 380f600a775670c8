"""The sites of a sub-layer: where a norm may stand, and what an equation says of each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# The arguments that f may have in an equation: sites hold a norm, scales a coefficient.
INSIDE = {
    "attention": ("q_latent", "kv_latent", "q", "k", "v", "head_norm", "ctx"),
    "mlp": ("hidden", "mid"),
}
SCALES = {"attention": ("head_scale",), "mlp": ("hidden_scale",)}
HEAD_SITES = ("q", "k", "v")
KV_SITES = ("kv_latent", "k", "v")  # on what keys and values are made of, and on these
LATENT_SITES = {"q_latent": "q_rank", "kv_latent": "kv_rank"}  # by the key of their width
# A norm at q, k or v acts on each head with one gain, on each with a gain of its own, or on all
# heads side by side.
SHARES = ("head", "per_head", "full")
EARLIER = ("start", "x0")  # the stream as it entered the block, and the embedded tokens
NORMED = "normed"  # what f reads, behind its norm, as a term of the skip
REST_OF_B = "1 - b"  # the skip's coefficient in a convex residual, (1 - b) * x + b * f

Coefficient = Any  # a number, the text of a formula, or the mapping of what is learned


@dataclass(frozen=True)
class Site:
    """The norm at a site. `norm` means the run's norm; another word is the name of a norm's file.
    `share` says whether it acts head by head. `scale` is a coefficient on its output."""

    norm: str
    share: str = "head"
    scale: Coefficient = 1


@dataclass(frozen=True)
class NormPlace:
    """The place of a norm in a model. Assembly writes it on the norm, as `norm_place`: a norm may
    keep the word that it was built with as `place`.

    `block` counts from 0, and is None outside of blocks. `sub_layer` is attention or mlp, or
    `block` for both; outside of blocks it is enter or leave for a part of a connection, else empty.
    `site` is a site of the sub-layer, `connection`, `inside NAME` for a learned matrix, rows, embed
    or final. `norm` is the name of a norm's file, or `norm` for the run's norm.
    """

    block: int | None
    sub_layer: str
    site: str
    norm: str = "norm"
    width: int = 0
    share: str = "head"

    @property
    def title(self) -> str:
        return self.site if self.block is None else f"{self.sub_layer}.{self.site}"


def place_of(norm: Any) -> NormPlace:
    place: NormPlace = norm.norm_place
    return place


@dataclass(frozen=True)
class SubLayerPlan:
    """The plan of one sub-layer of one block: norms by site, and coefficients.

    `coefficients` are a (skip), b (branch), head_scale and hidden_scale, where they are not 1.
    `adds` maps start, x0 and what f reads (normed) to their factors in the skip. `enters` maps the
    streams whose sum the sub-layer reads as h, where that is not x alone, to their factors. `names`
    maps what is multiplied (a, b, q.scale, enter.x0) to the name of its learned coefficient; equal
    names share one parameter.
    """

    sites: dict[str, Site] = field(default_factory=dict)
    coefficients: dict[str, Coefficient] = field(default_factory=dict)
    adds: dict[str, Coefficient] = field(default_factory=dict)
    enters: dict[str, Coefficient] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def scales(self) -> Iterator[tuple[str, Coefficient]]:
        """Yields each coefficient with what it multiplies, as in `names`."""
        yield from self.coefficients.items()
        yield from self.adds.items()
        yield from ((f"enter.{stream}", spec) for stream, spec in self.enters.items())
        yield from ((f"{name}.scale", site.scale) for name, site in self.sites.items())

    def site(self, name: str) -> Site:
        return self.sites.get(name, Site("none"))

    def coefficient(self, name: str) -> Coefficient:
        return self.coefficients.get(name, 1)
