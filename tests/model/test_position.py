"""Which dimensions turn together, by which base in which block, which matrices have a bias, and
which blocks have no W_v."""

import math
from itertools import product

import pytest
import torch
from tiny_models import drawn, some_tokens
from written_out import rotated

from transformer_norms import build_model, compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.model.architecture import PER_BLOCK
from transformer_norms.model.position import POSITIONS
from transformer_norms.model.sizes import block_values

SMALL = ["model=nano", "model.depth=3", "model.head_dim=6", "trainer.precision=fp64"]
SMALL += ["init=megatron"]


def built(*overrides):
    return build_model(compose([*SMALL, *overrides]), 31)


def rope(interleaved=False, proportional=False, scaling="none", **numbers):
    how = {"interleaved": interleaved, "proportional": proportional, "scaling": scaling}
    return POSITIONS["rope"](head_dim=6, **how, **numbers).double()


def neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def halves(x):
    return x.chunk(2, dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("proportional", [False, True])
def test_pairs_turn_by_base_and_share_of_their_block_and_the_rest_of_a_head_stands(
    proportional, interleaved
):
    """A share is that of a head, whose pairs are then its own, or that of the pairs of the whole
    head, of which the first turn."""
    bases, shares = [100.0, 0.0, 7.0, 100.0, 7.0], [2 / 3, 2 / 3, 1.0, 2 / 3, 0.4]
    how = {"interleaved": interleaved, "proportional": proportional}
    position = rope(bases=bases, fractions=shares, **how)
    pairs = neighbours if interleaved else halves
    x, angles = torch.randn(2, 5, 3, 6).double(), position.angles(0, 5)
    assert len(angles) == 3  # one for each base and share, however many blocks
    assert position.rotation(1)(x, angles) is x
    for i, count in {0: 2, 2: 3, 3: 2, 4: 1}.items():
        r = 6 if proportional else 2 * count
        found = position.rotation(i)(x, angles)
        whole = halves(rotated(torch.cat(pairs(x[..., :r]), -1), bases[i]))
        parts = zip(pairs(found[..., :r]), pairs(x[..., :r]), whole, strict=True)
        for part, stood, expected in parts:
            torch.testing.assert_close(part[..., :count], expected[..., :count], rtol=0, atol=1e-14)
            assert torch.equal(part[..., count:], stood[..., count:])
        assert torch.equal(found[..., r:], x[..., r:])


CUT = [{"beta_fast": 3.0, "beta_slow": 0.5, "truncate": cut} for cut in (True, False)]
SCALED = [("linear", {}), ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0})]
SCALED += [("yarn", own) for own in CUT]


@pytest.mark.parametrize(("kind", "own"), SCALED)
@pytest.mark.parametrize("more", ["", "architecture.rope_fraction=0.5", "preset=deepseek_v3"])
def test_a_scaling_turns_each_pair_as_transformers_does_in_the_blocks_whose_factor_is_not_1(
    kind, own, more
):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ours = {"type": kind, "factor": "1 + 7*(l == 2) + 2*(l == 3)", **own}  # 1, 8, 3
    ours |= {"original_context": 40} if own else {}
    ours |= {"attention_factor": "0.1*log(factor) + 1"} if kind == "yarn" else {}
    sizes = ["model=nano", "model.depth=3", "model.head_dim=24", *more.split()]
    model = build_model(compose([*sizes, as_typed("position.scaling", ours)]), 31)
    position, turned = model.position, 24 if not more else 12 if "fraction" in more else 8
    assert [turn[-1] for turn in position.turns] == [1, 8, 3]
    found = (position.frequencies, position.distinct, position.attention_factors)
    for row, (_, count, _, factor), attention in zip(*found, strict=True):
        spec = {"rope_type": kind, "rope_theta": 1e4, "factor": float(factor), **own}
        spec["original_max_position_embeddings"] = 40
        config = LlamaConfig(head_dim=turned, rope_parameters=spec)
        wanted, wanted_attention = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        assert (count, attention) == (turned // 2, pytest.approx(wanted_attention))
        torch.testing.assert_close(row[:count].float(), wanted.float(), rtol=1e-5, atol=0)


def test_cos_and_sin_are_multiplied_by_the_attention_factor_and_what_does_not_turn_is_not():
    scaling = {"type": "yarn", "factor": [2, 1], "original_context": 9, "beta_fast": 32}
    scaling |= {"beta_slow": 1, "truncate": True, "attention_factor": 1.5}
    sizes = {"bases": [7.0] * 2, "fractions": [2 / 3] * 2}
    scaled, plain = rope(**sizes, scaling=scaling), rope(**sizes)
    x = torch.randn(2, 5, 3, 6).double()
    first, second = (scaled.rotation(i)(x, scaled.angles(0, 5)) for i in range(2))
    length = first[..., :4].square().sum(-1)
    torch.testing.assert_close(length, 1.5**2 * x[..., :4].square().sum(-1))
    assert torch.equal(first[..., 4:], x[..., 4:])
    assert torch.equal(second, plain.rotation(1)(x, plain.angles(0, 5)))


@pytest.mark.parametrize(
    ("key", "spec", "numbers"),
    [
        ("rope_base", 500.0, [500.0, 500.0]),
        ("rope_base", "10000 + 990000 * (l % 6 == 0)", [1e4] * 5 + [1e6, 1e4]),
        ("rope_base", "10000 * (l % 4 != 0)", [1e4, 1e4, 1e4, 0]),
        ("rope_base", [10.0, "5 * N"], [10.0, 10.0]),
        ("rope_fraction", 0.5, [0.5, 0.5]),
        ("rope_fraction", "1/N", [0.5, 0.5]),
        ("rope_fraction", [1, "0.25*l"], [1, 0.5]),
        ("values_from_keys", "none", [False, False]),
        ("values_from_keys", "l % 2 == 0", [False, True, False]),
        ("values_from_keys", [1, "i - 1"], [True, False]),
        ("activation_sparsity", "none", [0, 0]),
        ("kv_from_block", "none", [0, 1, 2]),
        ("kv_from_block", "i", [0, 1, 2]),
    ],
)
def test_a_key_with_a_number_for_each_block_is_a_number_a_formula_or_a_list(key, spec, numbers):
    sizes = compose(["model=nano", f"model.depth={len(numbers)}"]).model
    values = [block_values(sizes, i) for i in range(len(numbers))]
    assert PER_BLOCK[key].numbers(spec, values) == numbers


@pytest.mark.parametrize(
    "spelled", ["'100 * (i == 0) + 50 * (i == 2)'", "[1e2,0,'25*(i%2==0)+25']"]
)
def test_every_spelling_of_the_bases_is_the_same_model(spelled):
    model = built(f"architecture.rope_base={spelled}", "architecture.rope_interleaved=true")
    same = built("architecture.rope_base=[100,0,50]", "architecture.rope_interleaved=true")
    tokens = torch.randint(31, (2, 9))
    assert torch.equal(model(tokens), same(tokens))
    assert not torch.equal(model(tokens), built("architecture.rope_base=100")(tokens))


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
    if "head" in names:
        logits = model(torch.zeros(1, 2, dtype=torch.int64))
        model.head.bias.data += 1
        torch.testing.assert_close(model(torch.zeros(1, 2, dtype=torch.int64)), logits + 1)


SHARED = ["model=nano", "model.depth=2", "model.context=9", "trainer.precision=fp64"]
HEADS = ["model.kv_heads=2", "qk_norm=head", "v_norm=rmsnorm_np"]
LATENT = ["architecture.kv_rank=4", "architecture.rope_dim=2", "architecture.value_dim=4"]


@pytest.mark.parametrize("typed", [HEADS, [*LATENT, "model.head_dim=6"]])
def test_values_from_keys_are_those_of_w_v_equal_to_w_k_and_the_gradient_is_the_sum(typed):
    """Values are taken before the keys' norm, their rotation and the dimensions that all share."""
    of_keys = "architecture.values_from_keys=l-1"
    shared, own = (build_model(compose([*SHARED, *typed, *m]), 31) for m in ([of_keys], []))
    assert shared.blocks[1].attention.f.value is None
    state = shared.state_dict()
    key, value = (f"blocks.1.attention.f.{name}.weight" for name in ("key", "value"))
    assert value not in state
    own.load_state_dict({**state, value: state[key]})
    logits = [model(some_tokens(2, 9, vocabulary=31)) for model in (shared, own)]
    torch.testing.assert_close(*logits, rtol=1e-12, atol=1e-13)
    for y in logits:
        (y * drawn(2, 9, 31)).sum().backward()
    found, parts = ({name: p.grad for name, p in m.named_parameters()} for m in (shared, own))
    parts[key] = parts[key] + parts.pop(value)
    torch.testing.assert_close(found, parts, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_the_embedding_is_scaled_and_the_position_is_not(position):
    """Vaswani et al. 2017, section 3.4: sqrt(d) E[token] + P[time]."""
    typed = [*SMALL[:-1], "placement=post", "init=transformer2017", f"position={position}"]
    model, seen = build_model(compose(typed), 31), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    tokens = torch.randint(31, (2, 6))
    model(tokens)
    table = model.position.position.weight if position == "learned" else model.position.table
    rows = model.embedding.weight[tokens]
    expected = math.sqrt(rows.shape[-1]) * rows + table[:6]
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=1e-12)


def test_sinusoidal_positions_are_the_papers_table():
    """Vaswani et al. 2017: PE(t, 2j) = sin(t / 10000^(2j/d)), PE(t, 2j + 1) = its cosine."""
    position = built("position=sinusoidal", "model.width=16", "model.heads=2").position
    moved = position(torch.zeros(1, 6, 16, dtype=torch.double), 0)[0]
    for t, j in product(range(6), range(8)):
        angle = t / 10_000 ** (2 * j / 16)
        assert moved[t, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-12)
        assert moved[t, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
