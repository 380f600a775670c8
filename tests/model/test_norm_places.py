"""Each norm of a model knows its place, and `model.norms()` lists them all."""

import pytest
import torch
from torch import nn

from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.model.assembly import Assembly
from transformer_norms.model.position import NoPosition
from transformer_norms.model.sites import INSIDE
from transformer_norms.names import options
from transformer_norms.norms import NORMS

SMALL = ["model=nano", "model.width=32", "model.heads=2", "model.context=8", "trainer.device=cpu"]
MORE = [
    "placement.equation=norm(x + f(norm(x), hidden=norm, mid=norm))",
    "qk_norm=per_head",
    "v_norm=full",
    "embed=fixnorm",
    "embed=rmsnorm",
    "preset=deepseek_v3",
    "preset=nanochat",
]
NAMES = {"hidden": ("up_norm", "gate_norm")}  # of the modules at this site
ENDS = {"enter": "enter", "leave": "final"}  # of a connection
KINDS = tuple(kind for kind in NORMS.values() if isinstance(kind, type))


def parts_at(model, place):
    """The modules at a place, found by the names in the tree."""
    owner = model if place.block is None else model.blocks[place.block]
    if place.sub_layer in ("attention", "mlp"):
        owner = getattr(owner, place.sub_layer)
    if place.site.startswith("inside "):
        return [owner.skip, owner.branch]
    if place.sub_layer in ENDS:
        return [getattr(model, ENDS[place.sub_layer])]
    owner = owner.f if place.site in INSIDE.get(place.sub_layer, ()) else owner
    return [getattr(owner, name) for name in NAMES.get(place.site, (place.site,))]


@pytest.mark.parametrize("typed", [*(f"placement={name}" for name in options("placement")), *MORE])
def test_a_norm_is_where_its_place_says_and_no_norm_is_without_one(typed):
    config = compose([*SMALL, "mlp=swiglu", typed])
    with torch.device("meta"):
        model = build_uninitialized(config, 31)
    places = {norm: norm.norm_place for _, norm in model.norms()}
    for norm, place in places.items():
        parts = [part for part in parts_at(model, place) if isinstance(part, nn.Module)]
        assert any(norm is module for part in parts for module in part.modules()), place
        spec = config.norm if place.norm == "norm" else config.norms.get(place.norm, {})
        assert type(norm) is NORMS[spec.get("type", place.norm)]
    inner = {part for norm in places for part in norm.modules()} - places.keys()
    assert {m for m in model.modules() if isinstance(m, KINDS)} - inner == places.keys()


def test_a_norm_may_keep_the_word_that_it_was_built_with_as_its_place():
    class Keeping(nn.RMSNorm):
        def __init__(self, width):
            super().__init__(width)
            self.place = "attention"

    config = compose([*SMALL, "placement=pre"])
    block = Assembly(config, NoPosition(), Keeping)(0)
    norms = [module for module in block.modules() if isinstance(module, Keeping)]
    assert [norm.place for norm in norms] == ["attention", "attention"]
    assert [norm.norm_place.title for norm in norms] == ["attention.pre", "mlp.pre"]
