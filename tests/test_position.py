"""Which dimensions turn together, by which base in which block, and which matrices have a bias."""

import pytest
import torch

from transformer_norms import build_model, compose
from transformer_norms.commands.sampling import generate
from transformer_norms.config.saved import to_yaml
from transformer_norms.model.position import POSITIONS, rotary_bases

SMALL = ["model=nano", "model.depth=3", "model.head_dim=6", "trainer.precision=fp64"]
SMALL += ["init=megatron"]


def built(*overrides):
    return build_model(compose([*SMALL, *overrides]), 31)


def turned(x, base, pairs):
    """Complex numbers made of the two of each pair, times exp(i t / base^(2j/r))."""
    first, second = pairs(x)
    half = first.shape[-1]
    exponent = torch.arange(half, dtype=torch.float32) / half
    angle = torch.arange(x.shape[1]).double()[:, None, None] * (1 / base**exponent).double()
    pair = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return pair.real, pair.imag


def neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def halves(x):
    return x.chunk(2, dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("r", [4, 6])
def test_pairs_turn_by_the_base_of_their_block_and_the_rest_of_a_head_stands(interleaved, r):
    bases = [100.0, 0.0, 7.0, 100.0]
    position = POSITIONS["rope"](
        head_dim=6, bases=bases, fraction=r / 6, interleaved=interleaved
    ).double()
    x, angles = torch.randn(2, 5, 3, 6).double(), position.angles(0, 5)
    pairs = neighbours if interleaved else halves
    assert len(angles) == 2  # one for each base, however many blocks
    for i, base in enumerate(bases):
        found = position.rotation(i)(x, angles)
        if base == 0:
            assert found is x
            continue
        for part, expected in zip(
            pairs(found[..., :r]), turned(x[..., :r], base, pairs), strict=True
        ):
            torch.testing.assert_close(part, expected, rtol=1e-14, atol=1e-14)
        assert torch.equal(found[..., r:], x[..., r:])


def test_a_base_is_a_number_a_formula_or_a_list():
    assert rotary_bases(500.0, 2) == [500.0, 500.0]
    assert rotary_bases("10000 + 990000 * (l % 6 == 0)", 7) == [1e4] * 5 + [1e6, 1e4]
    assert rotary_bases("10000 * (l % 4 != 0)", 4) == [1e4, 1e4, 1e4, 0]
    assert rotary_bases([10.0, "5 * N"], 2) == [10.0, 10.0]


@pytest.mark.parametrize(
    "spelled", ["'[100,0,50]'", "'100 * (i == 0) + 50 * (i == 2)'", "[1e2,0,'25*(i%2==0)+25']"]
)
def test_every_spelling_of_the_bases_is_the_same_model_which_the_cache_does_not_change(spelled):
    spelled = spelled.strip("'") if spelled.startswith("'[") else spelled
    model = built(f"architecture.rope_base={spelled}", "architecture.rope_interleaved=true")
    same = built("architecture.rope_base=[100,0,50]", "architecture.rope_interleaved=true")
    tokens = torch.randint(31, (2, 9))
    assert torch.equal(model(tokens), same(tokens))
    assert not torch.equal(model(tokens), built("architecture.rope_base=100")(tokens))
    found = list(generate(model.eval(), tokens[0], 9, temperature=0))
    seen = tokens[0].tolist()
    for chosen in found:
        assert chosen == int(model(torch.tensor([seen]))[0, -1].argmax())
        seen.append(chosen)


@pytest.mark.parametrize(
    ("roles", "names"),
    [
        ("true", "query key value output up gate down"),
        ("false", ""),
        ("[query,key,value]", "query key value"),
        ("[key,up,down,head]", "key up down head"),
        ("[gate,output,attention_gate]", "gate output attention_gate"),
    ],
)
def test_the_roles_that_have_a_bias_are_those_of_the_key(roles, names):
    gate = f"architecture.attention_gate={'per_head' if 'attention_gate' in roles else 'none'}"
    model = built(f"architecture.bias={roles}", "architecture.tied=false", "mlp=swiglu", gate)
    found = {name.split(".")[-2] for name, _ in model.named_parameters() if name.endswith(".bias")}
    assert found == set(names.split())
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data += 1
    if "head" in names:
        shifted = model(torch.zeros(1, 2, dtype=torch.int64))
        model.head.bias.data -= 1
        torch.testing.assert_close(
            shifted - model(torch.zeros(1, 2, dtype=torch.int64)), 1 + 0 * shifted
        )


def test_a_saved_run_takes_them_up_again_and_changes_them(tmp_path):
    typed = ["architecture.bias=[query,key]", "architecture.rope_base=[100,0,50]"]
    (tmp_path / "config.yaml").write_text(to_yaml(compose([*SMALL, *typed])))
    again = compose([f"config={tmp_path}/config.yaml"])
    assert again.architecture.bias == ("query", "key")
    assert again.architecture.rope_base == (100.0, 0.0, 50.0)
    changed = [f"config={tmp_path}/config.yaml", "architecture.bias=true"]
    changed = compose([*changed, "architecture.rope_base='10*l'"])
    assert (changed.architecture.bias, changed.architecture.rope_base) == (True, "10*l")


def test_a_model_carries_the_config_that_it_was_built_from():
    config = compose(SMALL)
    model = build_model(config, 31)
    assert model.config == config
