"""Blocks that use the keys and values of an earlier block, and have neither W_k nor W_v."""

import pytest
import shape_checker
import torch

from transformer_norms import build_model, compose

VOCABULARY, KEY = 31, "architecture.kv_from_block"
SMALL = ["model=nano", "model.depth=4", "trainer.precision=fp64", "trainer.device=cpu"]
SHARED = f"{KEY}=i*(i < 2) + i % 2*(2 <= i)"  # blocks 2 and 3 use those of 0 and 1
CASES = {
    "rope, norms": ["qk_norm=head", "v_norm=head", "model.kv_heads=2"],
    "latents": ["architecture.kv_rank=8", "architecture.rope_dim=4", "position=rope",
                "architecture.bias=true"],
    "values": ["architecture.value_residual=0.5", "architecture.values_from_keys=1"],
    "windows, two sizes": ["architecture.sliding_window=3*(i % 2)", "position=rope",
                           "architecture.rope_base=100**(1 + i % 2)", "model.head_dim=8*(1 + i%2)"],
}  # fmt: skip
OF_KEYS = ("key", "value", "rope_key", "kv_down", "kv_latent", "k", "v")


def model_of(*typed):
    return build_model(compose([*SMALL, *typed]), VOCABULARY)


def tokens_of(time=9):
    return torch.randint(VOCABULARY, (2, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CASES)
def test_attention_reads_the_keys_and_values_of_its_source(case):
    model, plain = model_of(*CASES[case], SHARED), model_of(*CASES[case])
    met = []
    for block in model.blocks:
        block.attention.f.attend.register_forward_pre_hook(lambda attend, given: met.append(given))
    model(tokens_of())
    for i, source in enumerate((0, 1, 0, 1)):
        assert all(torch.equal(met[i][at], met[source][at]) for at in (1, 2))
        own = {name for name, _ in model.blocks[i].attention.f.named_parameters()}
        wanted = {name for name, _ in plain.blocks[i].attention.f.named_parameters()}
        absent = {name for name in wanted if name.split(".")[0] in OF_KEYS}
        assert own == (wanted if i == source else wanted - absent)
    assert not torch.equal(met[0][1], met[1][1])


def gradients(model, more=()):
    from transformer_norms.training.recomputation import recompute

    if "recomputed" in more:
        model.through = recompute
    if "compiled" in more:
        for block in model.blocks:
            block.compile()
    model(tokens_of(), tokens_of())[1].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "more", [["recomputed"], pytest.param(["compiled", "recomputed"], marks=pytest.mark.nightly)]
)
def test_the_gradient_of_a_source_is_that_of_all_that_read_it(more, monkeypatch):
    """W_k and W_v of an independent model of four blocks, set equal, have the sum of gradients:
    where no block changes the stream, each computes the same keys."""
    if "compiled" in more:  # or the checks are compiled as well, and differ in what they see
        monkeypatch.setattr(shape_checker, "shapes_are_checked", False)
        monkeypatch.setattr("torch._dynamo.config.recompile_limit", 64)
    typed = ["placement.equation=x + 0*f(norm(x))", "architecture.tied=false"]
    for found, wanted in zip(
        *(gradients(model_of(SHARED), one).items() for one in (more, ())), strict=True
    ):
        assert found[0] == wanted[0]
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-9, atol=1e-12)
    shared, plain = model_of(*typed, SHARED), model_of(*typed)
    x = torch.randn(1, 7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    outputs = []
    for model in (shared, plain):
        given = type("State", (), {"shared_keys": {}, "first": None})()
        each = []
        for i, block in enumerate(model.blocks):
            f, source = block.attention.f, i % 2
            if model is plain:  # with the source's own weights
                f.key.weight.data.copy_(plain.blocks[source].attention.f.key.weight.data)
                f.value.weight.data.copy_(plain.blocks[source].attention.f.value.weight.data)
            f.query.weight.data.copy_(shared.blocks[i].attention.f.query.weight.data)
            f.output.weight.data.copy_(shared.blocks[i].attention.f.output.weight.data)
            each.append(f(x, model.position.angles(0, 7), None, given))
        sum(part.square().sum() for part in each).backward()
        outputs.append(torch.stack(each))
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    for source in (0, 1):
        for name in ("key", "value"):
            one = getattr(shared.blocks[source].attention.f, name).weight.grad
            both = [
                getattr(plain.blocks[at].attention.f, name).weight.grad
                for at in (source, source + 2)
            ]
            torch.testing.assert_close(one, sum(both), rtol=1e-10, atol=1e-12)


def test_the_own_keys_of_each_block_are_its_keys_without_the_choice():
    same, none = (model_of(typed).config.model for typed in (f"{KEY}=i", f"{KEY}=none"))
    assert same == none
