"""The plan of a sub-layer: the norm at each of its sites, and the factor of each term.

equation.py reads a text into a `SubLayerPlan`, and assembly.py builds modules from it.
"""

from dataclasses import dataclass, field
from typing import Any

# The arguments that f may have in an equation: those of INSIDE are norms, those of SCALES numbers.
INSIDE = {
    "attention": ("q_latent", "kv_latent", "q", "k", "v", "head_norm", "ctx"),
    "mlp": ("hidden", "mid"),
}
SCALES = {"attention": ("head_scale",), "mlp": ("hidden_scale",)}
HEAD_SITES = ("q", "k", "v")
KV_SITES = ("kv_latent", "k", "v")  # on keys, on values, and on their latent
LATENT_SITES = {"q_latent": "q_rank", "kv_latent": "kv_rank"}  # with the config key of their width
# A norm at q, k or v acts on each head with one gain for all heads, on each head with its own
# gain, or on the concatenated heads.
SHARES = ("head", "per_head", "full")
EARLIER = ("start", "x0")  # the stream as it entered the block, and the embedded tokens
NORMED = "normed"  # pre(h), as a term of the skip
REST_OF_B = "1 - b"  # the skip's coefficient in a convex residual, (1 - b) * x + b * f

Coefficient = Any  # a number, the text of a formula, or the mapping of what is learned


@dataclass(frozen=True)
class Site:
    """The norm at a site. `norm` means the run's norm; another word is the name of a norm's file.
    `share` is one of SHARES."""

    norm: str
    share: str = "head"


@dataclass(frozen=True)
class NormPlace:
    """The place of a norm in a model. Assembly stores it as the `norm_place` of the norm.

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
    """The plan of one sub-layer of one block: its norms by site, and its coefficients.

    The keys of `scales` are
        a, b                          the skip's x and the branch, where the factor is not 1
        start, x0, normed             the other terms of the skip: earlier streams, and pre(h)
        enter.x, enter.start, enter.x0      the terms of the sum that f reads in the place of x
        SITE.scale                    the output of the norm at a site
        head_scale, hidden_scale      heads, and hidden units of the mlp
    `names` has the names of learned coefficients, by their keys. One name is one parameter.
    """

    sites: dict[str, Site] = field(default_factory=dict)
    scales: dict[str, Coefficient] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def adds(self) -> dict[str, Coefficient]:
        """The terms of the skip in addition to x."""
        return {name: self.scales[name] for name in (*EARLIER, NORMED) if name in self.scales}

    @property
    def enters(self) -> dict[str, Coefficient]:
        """The terms of the sum that the sub-layer reads as h; none where it reads x."""
        slots = {name: f"enter.{name}" for name in ("x", *EARLIER)}
        return {name: self.scales[slot] for name, slot in slots.items() if slot in self.scales}

    def site(self, name: str) -> Site:
        return self.sites.get(name, Site("none"))

    def scale(self, slot: str) -> Coefficient:
        return self.scales.get(slot, 1)
