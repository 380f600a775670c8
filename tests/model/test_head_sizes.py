"""Heads of several sizes: a block is that of a model in which all have its sizes."""

import pytest
import torch

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
    x = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0)).double()
    for i, (head_dim, kv_heads) in enumerate(ALONE):
        sizes = [f"model.head_dim={head_dim}", f"model.kv_heads={kv_heads}"]
        alike = model_of(*CASES[case], *sizes)
        own, wanted = several.blocks[i].state_dict(), alike.blocks[i].state_dict()
        assert own.keys() == wanted.keys()
        assert all(torch.equal(own[key], wanted[key]) for key in own)
        tokens = torch.zeros(2, 9, dtype=torch.int64)
        outputs = [run(model, i, x, tokens) for model in (several, alike)]
        assert torch.equal(*outputs)


def run(model, i, x, tokens):
    given = (ForwardState(tokens),) if model.gives else ()
    return model.blocks[i](x, x, model.position.angles(0, 9), None, *given)


def test_a_formula_that_is_the_same_in_all_blocks_is_a_number():
    typed = ["model.head_dim=d/H", "model.kv_heads=H/2"]
    config, plain = compose([*SMALL, *typed]), compose([*SMALL, "model.kv_heads=2"])
    assert config.model == plain.model
    assert compose(["model=nano", "model.kv_heads=H/3"]).model.kv_heads == 2  # 4/3, rounded up
    assert compose(["model=nano", "model.head_dim=d/5"]).model.head_dim == 14  # 12.8, rounded up


def test_a_block_alone_has_the_sizes_of_its_index():
    config = ["model.head_dim=16+8*i"]
    for index, dim in enumerate((16, 24)):
        block = Block("x + f(norm(x))", 64, 4, depth=2, index=index, settings=config)
        assert block.block.attention.f.query.out_features == 4 * dim
