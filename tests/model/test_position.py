"""Which dimensions turn together, by which base in which block, which matrices have a bias, and
which blocks have no W_v."""

import pytest
import torch

from transformer_norms import ConfigError, build_model, compose
from transformer_norms.commands.sampling import generate
from transformer_norms.config.saved import to_yaml
from transformer_norms.model.position import (
    POSITIONS,
    rotary_bases,
    rotary_fractions,
    shared_blocks,
)

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
        head_dim=6, bases=bases, fractions=[r / 6] * 4, interleaved=interleaved, proportional=False
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


@pytest.mark.parametrize("interleaved", [False, True])
def test_proportional_turns_the_first_pairs_of_the_whole_head(interleaved):
    """As the whole head is turned, and the pairs behind the share stand. Blocks differ in it."""
    position = POSITIONS["rope"](
        head_dim=6,
        bases=[100.0] * 3,
        fractions=[1 / 3, 1.0, 0.7],
        interleaved=interleaved,
        proportional=True,
    ).double()
    x, angles = torch.randn(2, 5, 3, 6).double(), position.angles(0, 5)
    pairs = neighbours if interleaved else halves
    for i, count in enumerate((1, 3, 2)):
        found, whole = pairs(position.rotation(i)(x, angles)), turned(x, 100.0, pairs)
        for part, stood, expected in zip(found, pairs(x), whole, strict=True):
            torch.testing.assert_close(part[..., :count], expected[..., :count], rtol=0, atol=1e-14)
            assert torch.equal(part[..., count:], stood[..., count:])


def test_a_share_of_a_head_is_a_number_a_formula_or_a_list_and_blocks_may_differ():
    assert rotary_fractions(0.5, 2) == rotary_fractions("1/N", 2) == [0.5, 0.5]
    assert rotary_fractions([1, "0.25*l"], 2) == [1, 0.5]
    position = POSITIONS["rope"](
        head_dim=6, bases=[7.0] * 2, fractions=[2 / 3, 1], interleaved=False, proportional=False
    ).double()
    x, angles = torch.randn(2, 5, 3, 6).double(), position.angles(0, 5)
    for i, r in enumerate((4, 6)):
        found = torch.cat((*turned(x[..., :r], 7.0, halves), x[..., r:]), -1)
        torch.testing.assert_close(position.rotation(i)(x, angles), found, rtol=0, atol=1e-14)


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


KEY = "architecture.values_from_keys"
SHARED = ["model=nano", "model.depth=2", "model.context=9", "trainer.precision=fp64"]
SHARED += ["model.kv_heads=2", "qk_norm=head", "v_norm=rmsnorm_np"]


def model_of(*typed):
    return build_model(compose([*SHARED, *typed]), 31)


def test_values_from_keys_are_those_of_w_v_equal_to_w_k_and_the_gradient_is_the_sum():
    """Values are taken before the keys' norm and their rotation."""
    shared, own = model_of(f"{KEY}=l-1"), model_of()
    assert shared.blocks[1].attention.f.value is None
    state = shared.state_dict()
    key, value = (f"blocks.1.attention.f.{name}.weight" for name in ("key", "value"))
    assert value not in state
    own.load_state_dict({**state, value: state[key]})
    tokens = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    pull = torch.randn(2, 9, 31, generator=torch.Generator().manual_seed(1)).double()
    results = []
    for model in (shared, own):
        logits = model(tokens)
        (logits * pull).sum().backward()
        results.append((logits, {name: p.grad for name, p in model.named_parameters()}))
    (found, grads), (expected, parts) = results
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    parts[key] = parts[key] + parts.pop(value)
    assert grads.keys() == parts.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, parts[name], rtol=1e-9, atol=1e-12)


def test_a_cache_holds_values_from_keys_as_all_values():
    model = model_of(f"{KEY}=[1,0]").eval()
    tokens = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = model.new_cache()
        pieces = [model(piece, cache=cache) for piece in tokens.split([4, 1, 4], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=1e-9, atol=1e-11)


def test_blocks_are_marked_by_a_formula_or_a_list_and_a_mark_is_0_or_1():
    assert shared_blocks("none", 2) == [False, False]
    assert shared_blocks("l % 2 == 0", 3) == [False, True, False]
    assert shared_blocks([1, "i - 1"], 2) == [True, False]
    with pytest.raises(
        ConfigError, match="values_from_keys: 'l' is not allowed; in block i=1 it is 2"
    ):
        compose([*SHARED, f"{KEY}=l"])
