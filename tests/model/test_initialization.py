"""Where runs start: drawn by name, alike in every placement, as wide as the rules state."""

import math

import pytest
import torch
from combinations import combined

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.formula import Formula
from transformer_norms.model.initialization import InitRule, draw, truncated
from transformer_norms.names import options

WIDE = ["model.width=256", "model.depth=3", "model.heads=4", "model.context=64"]
DRAWN = ("query", "key", "value", "output", "up", "down", "embedding", "position", "head")


def weights(*overrides, vocab_size=300):
    model = build_model(compose([*WIDE, *overrides]), vocab_size)
    return dict(model.named_parameters())


def test_another_seed_is_another_start_and_the_same_seed_the_same():
    first, again = weights("seed=1"), weights("seed=1", "data.seed=5")
    other = weights("seed=2")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_a_weight_is_drawn_from_its_name_seed_and_shape_alone():
    a = draw("blocks.0.mlp.f.up.weight", (400, 100), 3)
    assert torch.equal(a, draw("blocks.0.mlp.f.up.weight", (400, 100), 3))
    for other in (draw("blocks.1.mlp.f.up.weight", (400, 100), 3), draw("x", (400, 100), 4)):
        correlation = torch.corrcoef(torch.stack((a.flatten(), other.flatten())))[0, 1]
        assert abs(correlation) < 0.03
    assert abs(a.mean()) < 0.03
    assert abs(a.std() - 1) < 0.03


# Width 256, 3 blocks, a gated mlp of 688, 300 tokens, 64 positions. Each rule as its paper has it,
# in numbers: `stream` is what writes to the stream (W_o and the mlp's last), `rest` all else that
# is not named.
XAVIER = {"query": (2 / 512) ** 0.5, "mlp": (2 / (256 + 688)) ** 0.5}
EMBEDDINGS = {"embedding": 0.02, "position": 0.02}
ROWS = {"embedding": 1 / 16, "position": 1 / 16}  # 1/sqrt(d)
BETA = 24**-0.25


def xavier(gain_of_values_and_mlp, gain_of_queries_and_keys=1.0):
    own = dict.fromkeys(("value", "output"), gain_of_values_and_mlp * XAVIER["query"])
    own |= dict.fromkeys(("up", "gate", "down"), gain_of_values_and_mlp * XAVIER["mlp"])
    return own | {"rest": gain_of_queries_and_keys * XAVIER["query"]}


CUT = 0.9866  # the deviation of a normal cut off at 3
RULES = {
    "gpt2": {"rest": 0.02, "position": 0.01, "stream": 0.02 / 6**0.5},
    "bert": {"rest": 0.02 * 0.8796},  # the deviation of a normal cut off at 2
    "depth_scaled": {
        "rest": CUT / 16,
        "output": [CUT / (2 * 256 * block) ** 0.5 for block in (1, 2, 3)],
        "down": [CUT / (2 * 688 * block) ** 0.5 for block in (1, 2, 3)],
    },
    "xavier": {**xavier(1), **EMBEDDINGS},
    "deepnorm": {**xavier(BETA), **ROWS},  # beta = (8N)^(-1/4), not at q and k
    "gemma": {"rest": 0.01},
    "zero_out": {"rest": 0.02, "stream": 0.0},
    "width_scaled": {"rest": 1 / 640**0.5, "stream": 1 / (640 * 6) ** 0.5},
    "mup": {  # Tensor Programs V, table 8, with 1/sqrt(2.5 * 128) at its base width
        "rest": 1 / 640**0.5,
        "stream": 1 / (640 * 6) ** 0.5,
        **dict.fromkeys(("embedding", "position"), 1 / 320**0.5),
    },
    "spectral": {  # heads of 64, as many for keys as for queries
        "rest": 1 / 16,
        "down": 16 / 688,
        **dict.fromkeys(("embedding", "position"), 1.0),
    },
}


# test_starts.py has these by the arithmetic of their authors' code.
TRANSCRIBED = (
    "scaled normal truncated megatron transformer2017 fairseq b2t admin glm130b subln small ngpt "
    "mixln t5 nanochat simplegpt"
).split()


@pytest.mark.parametrize("rule", sorted(set(options("init")) - {"auto", *TRANSCRIBED}))
def test_a_rule_gives_each_role_the_deviation_of_its_paper(rule):
    typed = [f"init={rule}", "position=learned", "mlp=swiglu", "architecture.tied=true"]
    config = combined(*WIDE, *typed)
    found = dict(build_model(config, 300).named_parameters())
    expected, seen = RULES[rule], set()
    for name, parameter in found.items():
        role = name.split(".")[-2]
        if role in DRAWN:
            group = "stream" if role in ("output", "down") and "stream" in expected else "rest"
            deviation = expected.get(role, expected[group])
            if isinstance(deviation, list):
                deviation = deviation[int(name.split(".")[1])]
            assert parameter.std().item() == pytest.approx(deviation, rel=0.03, abs=1e-9), name
            seen.add(role)
    assert seen == set(DRAWN) - {"head"}


def test_biases_start_at_zero():
    found = weights("architecture.bias=true", "norm=layernorm")
    biases = [p for name, p in found.items() if name.endswith(".bias")]
    assert len(biases) == 3 * 8 + 1
    assert all(p.abs().max() == 0 for p in biases)


def test_truncation_moves_each_draw_to_its_quantile_of_the_normal_cut_off():
    z = draw("any", (100_000,), 0)
    cut = truncated(z, 2.0)
    assert cut.abs().max() <= 2.0
    assert (cut[z.argsort()].diff() >= 0).all()
    # The variance of a normal cut at +-2: 1 - 2 * 2 * pdf(2) / (cdf(2) - cdf(-2)).
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    variance = 1 - 4 * density / math.erf(2 / math.sqrt(2))
    assert cut.var().item() == pytest.approx(variance, rel=0.01)


def test_a_rule_that_names_no_role_of_the_model_is_refused():
    with pytest.raises(ValueError, match="querry"):
        InitRule(std={"default": 0.02, "querry": 1}, truncate="none")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(2*N)**0.25", 24**0.25),
        ("1/sqrt(l)", 3**-0.5),
        ("-log(d) + 2", 2 - math.log(256)),
        ("0.02", 0.02),
        ("10 + 5 * (l % 2 == 1)", 15),
        ("N % 5 + (l != 3)", 2),
        ("-7 % 4", 1),
        ("(l >= 3) + 10 * (l > 3) + 100 * (N > l)", 101),
    ],
)
def test_a_formula_is_the_number_that_it_says(text, value):
    assert Formula(text)({"N": 12, "l": 3, "d": 256}) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "N.real", "[1]", "f(N)", "sqrt(1, 2)", "N if N else 1", "1 +", "'a'",
     "N := 3", "lambda: 1", "sqrt", "x", "1/0", "9**9**9", "(-1)**0.5", "log(0)", "1e400", "N @ N",
     "N % 0", "N // 2", "N is 3"],
)  # fmt: skip
def test_what_is_no_formula_is_refused_and_nothing_runs(text):
    with pytest.raises(ValueError):  # noqa: PT011
        Formula(text)({"N": 12})
