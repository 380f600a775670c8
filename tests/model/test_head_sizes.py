"""Heads of several sizes: a block is that of a model in which all have its sizes."""

import pytest
import torch
from tiny_models import drawn

from transformer_norms import Block, build_model, compose
from transformer_norms.model.attentions.heads import ForwardState

VOCABULARY = 31
SMALL = ["model=nano", "model.depth=3", "trainer.precision=fp64", "trainer.device=cpu"]
SIZES = ["model.head_dim=d/H*(1 + (i == 1))", "model.kv_heads=[H/2,H/8,4]"]
ALONE = [(16, 2), (32, 1), (16, 4)]  # head_dim and kv_heads of each block
CASES = {
    "rope, gains of heads": ["qk_norm=per_head", "v_norm=full", "init=t5"],
    "rope over a share": ["qk_norm=head", "architecture.rope_fraction=0.5", "position=rope"],
    "a share of the pairs": ["architecture.rope_fraction=0.25",
                             "architecture.rope_proportional=true"],
    "latents, a gate": ["architecture.kv_rank=12", "architecture.rope_dim=dh/2",
                        "architecture.value_dim=dh/4", "architecture.attention_gate=elementwise"],
    "mup": ["init=mup", "architecture.attention_scale=sqrt(32)/dh",
            "architecture.value_embedding=i"],
    "learned scales of queries": ["placement=ngpt"],
    "learned scales of heads": ["placement=normformer"],
}  # fmt: skip


def model_of(*typed):
    return build_model(compose([*SMALL, *typed]), VOCABULARY)


@pytest.mark.parametrize("case", CASES)
def test_a_block_is_that_of_a_model_whose_blocks_all_have_its_sizes(case):
    several = model_of(*CASES[case], *SIZES)
    x = drawn(2, 9, 64)
    for i, (head_dim, kv_heads) in enumerate(ALONE):
        sizes = [f"model.head_dim={head_dim}", f"model.kv_heads={kv_heads}"]
        models = several, model_of(*CASES[case], *sizes)
        own, wanted = (model.blocks[i].state_dict() for model in models)
        torch.testing.assert_close(own, wanted, rtol=0, atol=0)
        assert torch.equal(*(run(model, i, x) for model in models))


def run(model, i, x):
    given = (ForwardState(torch.zeros(2, 9, dtype=torch.int64)),) if model.gives else ()
    return model.blocks[i](x, x, model.position.angles(0, 9), None, *given)


def test_a_formula_that_is_the_same_in_all_blocks_is_a_number():
    typed = ["model=nano", "model.head_dim=d/H", "model.kv_heads=H/2"]
    assert compose(typed).model == compose(["model=nano", "model.kv_heads=2"]).model
    assert compose(["model=nano", "model.kv_heads=H/3"]).model.kv_heads == 2  # 4/3, rounded up
    assert compose(["model=nano", "model.head_dim=d/5"]).model.head_dim == 14  # 12.8, rounded up


@pytest.mark.parametrize(("index", "dim"), [(0, 16), (1, 24)])
def test_a_block_alone_has_the_sizes_of_its_index(index, dim):
    typed = ["model.head_dim=16+8*i"]
    block = Block("x + f(norm(x))", 64, 4, depth=2, index=index, settings=typed)
    assert block.block.attention.f.query.out_features == 4 * dim
