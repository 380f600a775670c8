"""Blocks that use the keys and values of an earlier block, and have neither W_k nor W_v."""

import pytest
import shape_checker
import torch

from transformer_norms import build_model, compose
from transformer_norms.training.recomputation import recompute

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


@pytest.mark.parametrize(
    "more",
    [[], ["recomputed"], pytest.param(["compiled", "recomputed"], marks=pytest.mark.nightly)],
)
def test_the_gradient_of_a_source_is_the_slope_of_the_loss(more, monkeypatch):
    model, generator = model_of(SHARED), torch.Generator().manual_seed(3)
    direction = torch.randn(64, 64, generator=generator, dtype=torch.float64)

    def loss():
        return model(tokens_of(), tokens_of())[1]

    @torch.no_grad()
    def slope(weight):
        ends = []
        for change in (1e-6, -2e-6, 1e-6):
            weight.add_(change * direction)
            ends.append(loss().item())
        return (ends[0] - ends[1]) / 2e-6

    sources = [block.attention.f for block in model.blocks[:2]]
    weights = [linear.weight for f in sources for linear in (f.key, f.value)]
    slopes = [slope(weight) for weight in weights]
    if "recomputed" in more:
        model.through = recompute
    if "compiled" in more:  # or the checks are compiled as well, and differ in what they see
        monkeypatch.setattr(shape_checker, "shapes_are_checked", False)
        monkeypatch.setattr("torch._dynamo.config.recompile_limit", 64)
        for block in model.blocks:
            block.compile()
    loss().backward()
    found = [(weight.grad * direction).sum().item() for weight in weights]
    assert found == pytest.approx(slopes, rel=1e-6)
