"""Heads of several sizes: a block is that of a model in which all have its sizes."""

import re

import pytest
import torch
from generating import from_a_cache
from refusing import refused

from transformer_norms import Block, build_model, compose

VOCABULARY = 31
SMALL = ["model=nano", "model.depth=3", "trainer.precision=fp64", "trainer.device=cpu"]
SIZES = ["model.head_dim=d/H*(1 + (i == 1))", "model.kv_heads=[H/2,H/8,4]"]
ALONE = [(16, 2), (32, 1), (16, 4)]  # head_dim and kv_heads of each block
CASES = {
    "rope, gains of heads": ["qk_norm=per_head", "v_norm=full", "init=t5"],
    "rope over a share": ["qk_norm=head", "architecture.rope_fraction=0.5", "position=rope"],
    "a share of the pairs": ["architecture.rope_fraction=0.25", "architecture.rope_proportional=1"],
    "latents, a gate": ["architecture.kv_rank=12", "architecture.rope_dim=dh/2",
                        "architecture.value_dim=dh/4", "architecture.attention_gate=elementwise"],
    "mup": ["init=mup", "architecture.attention_scale=sqrt(32)/dh",
            "architecture.value_embedding=i"],
    "learned scales of queries": ["placement=ngpt"],
    "learned scales of heads": ["placement=normformer"],
}  # fmt: skip


def model_of(*typed):
    typed = [text.replace("proportional=1", "proportional=true") for text in typed]
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
    from transformer_norms.model.attention import ForwardState

    given = (ForwardState(tokens),) if model.gives else ()
    return model.blocks[i](x, x, model.position.angles(0, 9), None, *given)


def test_a_cache_holds_the_keys_and_values_of_each_size():
    model = model_of(*SIZES, "qk_norm=head")
    tokens = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    found, cache = from_a_cache(model, tokens, 3)
    torch.testing.assert_close(found, model(tokens), rtol=1e-12, atol=1e-12)
    assert [tuple(one.k.shape[2:]) for one in cache] == [(2, 16), (1, 32), (4, 16)]


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


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("model.kv_heads=[2,3,4]", "model.kv_heads: 3 in block i=1 does not divide model.heads, 4"),
        ("model.kv_heads=l+H", "model.kv_heads: .l.H. is not allowed; in block i=0 it is 5; it is"),
        ("model.kv_heads=[2,4]", "model.kv_heads: .* there are 2 sizes for 3 blocks"),
        ("model.head_dim=9+i position=rope", "model.head_dim: 9 in block i=0 is odd, and position"),
        ("model.head_dim=dh", "model.head_dim: 'dh' names dh; known here are"),
        ("model.head_dim=8*l architecture.embed_scale=dh", "embed_scale: 'dh' names dh; known"),
        (
            "model.head_dim=8*l architecture.value_residual=0.5",
            "value_residual: 0.5 is not allowed",
        ),
        ("model.head_dim=8*l architecture.rope_dim=8", "rope_dim: 8 .* part of model.head_dim=8"),
        ("model.head_dim=4+2*i v_norm=group_rmsnorm", "groups: 4 does not divide 6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_line_that_names_the_block(typed, line):
    assert re.search(line, refused(compose, [*SMALL, *typed.split()]))
