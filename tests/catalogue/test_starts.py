"""Where placements and norms start: the deviation of each weight in its authors' code, and the
stream's rms as their code makes it enter the first block."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from combinations import combined
from torch import nn

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.formula import Formula
from transformer_norms.model import initialization
from transformer_norms.names import options
from transformer_norms.training.probes import high_losses

WIDTH, VOCABULARY, CONTEXT, INNER = 128, 1024, 64, 512
SIZES = [f"model.width={WIDTH}", "model.heads=4", f"model.context={CONTEXT}", "mlp=gelu"]
SIZES += [f"model.mlp_width={INNER}"]
CUT = 0.98658  # the standard deviation of N(0, 1) cut at 3
Start = float | Callable[[int, int], float]  # a deviation, or that of a matrix by rows and columns


def xavier(gain: float = 1.0, matrices: int = 1) -> Start:
    """Xavier's, of one of so many matrices that the rule sees as one, their rows one below the
    other"""
    return lambda rows, columns: gain * math.sqrt(2 / (matrices * rows + columns))


def torch_linear(factor: float = 1.0) -> Start:
    """torch's own start of a linear layer, uniform up to 1/sqrt(columns), and a factor on it"""
    return lambda rows, columns: factor / math.sqrt(3 * columns)


ROWS, QKV, MATRICES = WIDTH**-0.5, ("query", "key", "value"), ("up", "down", "output")
TABLES: dict[str, Start] = dict.fromkeys(("embedding", "position", "head"), ROWS)


def fairseq(depth: int, factor: float = 1.0) -> dict[str, Start]:
    return {
        **TABLES,
        **dict.fromkeys(QKV, xavier(factor / math.sqrt(2))),
        "output": xavier(factor),
        **dict.fromkeys(("up", "down"), torch_linear(factor)),
    }


def gained(gain: Callable[[int], float], tables: dict[str, Start] = TABLES):
    """Xavier's draws, with a gain by the depth on all matrices but those of queries and keys."""
    plain, roles = dict.fromkeys(("query", "key"), xavier()), ("value", *MATRICES)
    return lambda depth: {**tables, **plain, **dict.fromkeys(roles, xavier(gain(depth)))}


def everywhere(start: Start, **others: Start) -> dict[str, Start]:
    return {**dict.fromkeys((*QKV, *MATRICES, "embedding", "position", "head"), start), **others}


def cogview(depth: int) -> dict[str, Start]:
    small = 0.02 / math.sqrt(2 * depth)
    return everywhere(0.02, output=small, down=small)


def hybridnorm(depth: int) -> dict[str, Start]:
    std = CUT * (2.5 * WIDTH) ** -0.5
    small = std / math.sqrt(2 * depth)
    return everywhere(std, output=small, down=small, head=CUT * ROWS)


def scalenorm(depth: int) -> dict[str, Start]:
    attention = dict.fromkeys((*QKV, "output"), math.sqrt(2 / (WIDTH + 4 * WIDTH)))
    return {**TABLES, "up": xavier(), "down": xavier(), **attention}


def nanochat(depth: int) -> dict[str, Start]:
    gate = 0.02 / math.sqrt(12)  # uniform from 0 to 0.02
    return {
        **dict.fromkeys((*QKV, "value_embedding"), ROWS),
        **dict.fromkeys(("output", "down"), 0.0),
        **dict.fromkeys(("value_gate", "smear_gate"), gate),
        "up": 0.4 * ROWS,
        "embedding": 0.8,
        "head": 0.001,
    }


def t5(depth: int) -> dict[str, Start]:
    """Mesh TensorFlow's and flaxformer's, of which the head is a dense layer by its fan-in. Heads
    have 16 features."""
    rest = {"query": (WIDTH * 16) ** -0.5, "output": (4 * 16) ** -0.5, "down": INNER**-0.5}
    return everywhere(ROWS, gate=ROWS, embedding=1.0, **rest)


def simplegpt(depth: int) -> dict[str, Start]:
    small = 0.02 / math.sqrt(2 * depth)  # the last block's: depth_init
    own = {"output": small, "up": small, "down": small, "embedding": 1.0}
    return everywhere(0.02, **own, head=CUT * ROWS)


UNTIED = ["architecture.tied=false"]
ADMIN: dict[str, Start] = dict.fromkeys(QKV, xavier(matrices=3))
MIXLN = everywhere(0.02, embedding=math.sqrt(2 / 5))
# Each case has the typed choices and the authors' deviations, a function of depth.
AUTHORS: dict[str, tuple[list[str], Callable[[int], dict[str, Start]]]] = {
    "mixln": (["placement=mixln"], lambda depth: MIXLN),
    "lns": (["placement=lns"], lambda depth: MIXLN),
    "normformer": (["placement=normformer", *UNTIED], fairseq),
    "residual_dual": (["placement=residual_dual", *UNTIED], fairseq),
    "b2t": (["placement=b2t", *UNTIED], lambda depth: fairseq(depth, depth**-0.5) | TABLES),
    "post": (["placement=post", *UNTIED], lambda depth: everywhere(xavier()) | TABLES),
    "admin": (["placement=admin", *UNTIED], lambda depth: everywhere(xavier()) | TABLES | ADMIN),
    "deepnorm": (["placement=deepnorm", *UNTIED], gained(lambda depth: (8 * depth) ** -0.25)),
    "subln": (["placement=subln", *UNTIED], gained(lambda depth: math.log(2 * depth) ** 0.5)),
    "glm130b": (["placement=glm130b", *UNTIED], gained(lambda depth: (2 * depth) ** -0.5, {})),
    "out": (["placement=out"], lambda depth: everywhere(CUT * 0.02)),
    "sandwich": (["placement=sandwich", *UNTIED], cogview),
    "hybrid": (["placement=hybrid", *UNTIED], hybridnorm),
    "ngpt": (["placement=ngpt"], lambda depth: everywhere(ROWS)),
    "scalenorm": (["norm=scalenorm", *UNTIED], scalenorm),
    "dyt": (["norm=dyt"], lambda depth: everywhere(0.02)),
    "derf": (["norm=derf", *UNTIED], cogview),
    "nanochat": (["preset=nanochat"], nanochat),
    "simplenorm": (["placement=simplenorm"], simplegpt),
    "gpas": (["placement=gpas"], lambda depth: MIXLN),
    "t5_1_1": (["preset=t5_1_1", "model.head_dim=16"], t5),
}


@torch.no_grad()
@pytest.mark.parametrize("typed", ["init=t5", "preset=t5_norms init=t5", "preset=bloom init=t5"])
def test_the_tied_logits_of_t5_are_divided_by_the_root_of_the_width(typed):
    """flaxformer's t5_architecture.py, and Mesh TensorFlow's hidden_to_logits"""
    model = build_model(compose([*SIZES[:3], "model.depth=1", *typed.split()]), VOCABULARY)
    states = model.states(torch.arange(CONTEXT)[None])
    expected = states @ model.embedding.weight.mT / math.sqrt(WIDTH)
    torch.testing.assert_close(model.logits(states), expected)


@pytest.mark.parametrize("name", AUTHORS)
@pytest.mark.parametrize("depth", [6, pytest.param(24, marks=pytest.mark.nightly)])
@torch.no_grad()
def test_every_weight_starts_as_wide_as_the_authors_code_draws_it(name, depth):
    typed, authors = AUTHORS[name]
    rotary = "t5_1_1 mixln lns out hybrid ngpt dyt nanochat glm130b simplenorm gpas".split()
    position = [] if name == "nanochat" else [f"position={'rope' if name in rotary else 'learned'}"]
    sizes = [size for size in SIZES if not (size == "mlp=gelu" and "preset=" in typed[0])]
    # The constraint of nGPT and the rows of fixnorm act after the draw.
    typed = [*typed, *(["placement.weight_constraint=none"] if name == "ngpt" else [])]
    typed += ["embed=none"] if name == "scalenorm" else []
    model = build_model(compose([*sizes, f"model.depth={depth}", *position, *typed]), VOCABULARY)
    weights = {
        path.split(".")[-2]: p for path, p in model.named_parameters() if path.endswith(".weight")
    }
    expected = authors(depth)
    assert expected.keys() - {"position"} <= weights.keys()
    for role in expected.keys() & weights.keys():
        weight, start = weights[role], expected[role]
        std = start(*weight.shape) if callable(start) else start
        # Four standard errors of a standard deviation.
        error = 4 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(std, rel=error, abs=1e-12), role


# google-deepmind/gemma 7691fd4, gemma3n/_modules.py: flax's 0.01 but for what predicts.
GEMMA = {
    "router": 0.01,
    "predict_change": 1e-4,
    "correct_change": 0.01,
    **dict.fromkeys(("projections.0", "scale.left", "scale.right"), 0.01),
    **dict.fromkeys(("input_embedding", "input_projection", "gated.gate", "gated.output"), 0.01),
}


@torch.no_grad()
@pytest.mark.parametrize("init", ["auto", "mup", "bert"])
@pytest.mark.parametrize("placement", ["gemma3n", "gemma3n_inputs", "gemma4_inputs"])
def test_the_connections_of_gemma_start_as_in_their_code_whatever_the_init(placement, init):
    typed = [*SIZES[:3], "model.depth=6", f"placement={placement}", f"init={init}"]
    model = build_model(compose(typed), VOCABULARY)
    drawn: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        for role in GEMMA:
            if name.endswith(f".{role}.weight"):
                drawn.setdefault(role, []).append(parameter.flatten())
    assert len(drawn) == {"gemma3n": 6, "gemma3n_inputs": 10, "gemma4_inputs": 4}[placement]
    for role, weights in drawn.items():
        all_ = torch.cat(weights)
        error = 4 * math.sqrt(1 / all_.numel())
        assert all_.std().item() == pytest.approx(GEMMA[role], rel=error), role


@pytest.mark.parametrize(
    ("depth", "start"), [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6), (48, 1e-6)]
)
def test_layerscale_starts_by_depth_as_its_paper_and_its_code_say(depth, start):
    spec = compose(["placement=layerscale", f"model.depth={depth}"]).placement.learned.b
    assert Formula(spec.init)({"N": depth}) == pytest.approx(start)


# The rms of what enters the first block, from their code: table times scale, and positions.
SINUSOIDS, LEARNED = 0.5, 0.02**2  # the mean square of positions
STREAMS = {
    "mixln": (["placement=mixln"], math.sqrt(2 / 5)),
    "normformer": (["placement=normformer", "position=sinusoidal"], math.sqrt(1 + SINUSOIDS)),
    "residual_dual": (["placement=residual_dual", "position=sinusoidal"], math.sqrt(1.5)),
    "b2t": (["placement=b2t", "position=sinusoidal"], math.sqrt(1.5)),
    "admin": (["placement=admin", "position=learned"], math.sqrt(1 + 1 / WIDTH)),
    "post": (["placement=post", "position=sinusoidal"], math.sqrt(1.5)),
    "transformer2017": (["preset=transformer2017"], math.sqrt(1.5)),
    "deepnorm": (["placement=deepnorm", "position=sinusoidal"], math.sqrt(1.5)),
    "subln": (["placement=subln", "position=sinusoidal"], math.sqrt(1.5)),
    "scalenorm": (["norm=scalenorm", "position=sinusoidal"], math.sqrt(1.5)),
    "cogview": (["placement=sandwich", "position=learned"], 0.02 * math.sqrt(2)),
    "gemma": (["placement=sandwich", "init=gemma"], 0.01 * math.sqrt(WIDTH)),
    "olmo2": (["placement=out"], 0.02 * CUT),
    "hybrid": (["placement=hybrid"], CUT / math.sqrt(2.5 * WIDTH)),
    "peri": (["placement=peri"], 1.0),
    "ngpt": (["placement=ngpt"], WIDTH**-0.5),
    "dyt": (["norm=dyt"], 0.02 * math.sqrt(WIDTH)),
    "derf": (["norm=derf", "position=learned"], 0.02 * math.sqrt(2 * WIDTH)),
    "nanochat": (["preset=nanochat"], 1.0),
    "nanochat's placement": (["placement=nanochat"], 1.0),
    "simplenorm": (["placement=simplenorm"], 1.0),
    # init.stream, by either way
    "table": (["init.stream=0.3"], 0.3),
    "table beside a scale": (["placement=post", "init.stream=0.3"], 0.3),
    "truncated table": (["init=truncated", "init.stream=0.3"], 0.3),
    "scale": (["init.stream='sqrt(d)/8'", "init.stream_by=scale"], math.sqrt(2)),
    "learned scale": (["norm=dyt", "init.stream=0.3", "init.stream_by=scale"], 0.3),
}


def entering(model, tokens):
    """Returns what the first block is given."""
    entered = []
    model.blocks[0].register_forward_pre_hook(lambda block, given: entered.append(given[0]))
    model(tokens)
    return entered[0]


@pytest.mark.parametrize("name", STREAMS)
@torch.no_grad()
def test_the_stream_enters_the_first_block_with_the_rms_of_the_authors_code(name):
    typed, expected = STREAMS[name]
    sizes = [*SIZES[:3], "model.depth=1"]
    model = build_model(compose([*sizes, *typed]), VOCABULARY).eval()
    entered = entering(model, torch.arange(VOCABULARY).reshape(-1, CONTEXT))
    stream = entered[0] if isinstance(entered, tuple) else entered
    assert stream.square().mean().sqrt().item() == pytest.approx(expected, rel=0.02)


# Where authors share the table with the head, a token's own logit starts near sqrt(width).
SHARED = {
    "init": {
        "admin": "LiyuanLucasLiu/Transformer-Clinic 70f72b7, nmt-experiments/iwslt14_de-en.md:24",
        "b2t": "takase/b2t_connection c8e2ad4, README.md:46",
        "deepnorm": "microsoft/torchscale 4d1e0e8, examples/fairseq/README.md:185",
        "depth_scaled": "allenai/OLMo 394bb22, configs/official/OLMo-1B.yaml:14",
        "fairseq": "facebookresearch/fairseq 3d262bb, examples/language_model/README.md:82",
        "megatron": "BryceZhuo/HybridNorm f0dd605, dense_model/.../1.2B-dense-HybriedNorm.yaml:16",
        "small": "tnq177/transformers_without_tears c2dfaaa, model.py:87",
        "subln": "microsoft/torchscale 4d1e0e8, examples/fairseq/README.md:185",
        "t5": "tensorflow/mesh da90793, transformer.py:923",
        "transformer2017": "tensorflow/tensor2tensor bafdc1b, models/transformer.py:1793",
        "width_scaled": "EleutherAI/gpt-neox ea7aefd, configs/neox_arguments.md:549",
    },
    "placement": {"residual_dual": "microsoft/ResiDual 8682f75, hydra_config/iwslt.yaml"},
}
TOKENS, BASE = 2000, ["model.depth=2", "model.heads=4", "model.context=16", "model.mlp_width=64"]


def too_high(config) -> float | None:
    """the loss at the start where it is too high, of a model that no author starts so high"""
    model = build_model(config, TOKENS)
    tokens = torch.randint(TOKENS, (17,), generator=torch.Generator().manual_seed(0))
    loss = nn.functional.cross_entropy(model(tokens[None, :-1])[0], tokens[1:]).item()
    limit = math.log(TOKENS) + 3
    if config.architecture.tied and any(config.choices[axis] in of for axis, of in SHARED.items()):
        limit += 2 * math.sqrt(config.model.width)
    if config.choices.placement == "none":  # nothing bounds the stream there, and a line says so
        assert "final_norm: the stream reaches the head without a norm" in config.warnings
        return None
    return None if loss < limit else loss


INITS, PLACEMENTS = options("init"), options("placement")
PRESETS = [name for name in options("preset") if name != "none"]
FEW = list(zip(PLACEMENTS[::2], INITS, strict=False))
ALL = [(placement, init) for placement in PLACEMENTS for init in INITS]
WIDE = ["mixln", "nanochat", "simplegpt", "spectral", "t5"]  # tables of a deviation near 1
FEW_PRESETS = list(zip(["bloom", "cohere", "gpt1", "opt", "t5_1_1"], WIDE, strict=True))
ALL_PRESETS = [(preset, init) for preset in PRESETS for init in INITS]
NIGHTLY = {"marks": pytest.mark.nightly}


@torch.no_grad()
@pytest.mark.parametrize(
    ("width", "placed", "presets"),
    [
        (512, FEW, FEW_PRESETS),
        (64, FEW[::9], []),
        pytest.param(512, ALL, ALL_PRESETS, **NIGHTLY),
        pytest.param(64, ALL, ALL_PRESETS, **NIGHTLY),
    ],
)
def test_no_model_starts_far_above_the_loss_of_chance_unless_its_authors_model_does(
    width, placed, presets, monkeypatch
):
    monkeypatch.setattr(initialization, "draw", cache(initialization.draw))
    typed = [*BASE, f"model.width={width}"]
    high = {}
    for placement, init in placed:
        config = combined(*typed, placement=placement, init=init)
        high[placement, init] = too_high(config)
    for preset, init in presets:
        high[preset, init] = too_high(compose([*typed, f"preset={preset}", f"init={init}"]))
    assert {names: loss for names, loss in high.items() if loss is not None} == {}


@torch.no_grad()
@pytest.mark.parametrize(
    ("typed", "high"),
    [
        ("placement=deepnorm", True),
        ("placement=deepnorm architecture.tied=false", False),
        ("placement=deepnorm init=mup", False),
        ("init=mixln architecture.tied=true", True),
        ("init=spectral architecture.tied=false init.std.head=5", True),
    ],
)
def test_a_line_says_that_a_loss_starts_high(typed, high):
    model = build_model(compose([*BASE, "model.width=512", *typed.split()]), TOKENS)
    tokens = torch.randint(TOKENS, (2, 17), generator=torch.Generator().manual_seed(0))
    lines = high_losses(model, tokens)
    assert len(lines) == high
    assert all("far above ln V = 7.6; another init= may start lower" in x for x in lines)


@pytest.mark.parametrize(
    ("typed", "tied"),
    [
        ("preset=bloom init=mixln", False),
        ("preset=bloom placement=mixln", False),
        ("preset=cohere init=spectral", False),
        ("preset=granite init=t5", False),  # its own scale takes the place of the init's
        ("preset=t5_norms init=t5", True),
        ("preset=bloom init=t5", True),
        ("preset=bloom placement=mixln architecture.tied=true", True),
        ("preset=bloom placement=out", True),
        ("preset=gpt2 norm=dyt", True),
    ],
)
def test_a_table_that_is_too_wide_for_a_head_unties_a_preset(typed, tied, tmp_path):
    """It does so for an init that brings a separate head, and not for a placement or a norm."""
    config = compose([*BASE, *typed.split()])
    assert config.architecture.tied is tied
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert compose([f"config={file}"]).architecture.tied is tied


@torch.no_grad()
def test_the_scale_reaches_the_stream_and_leaves_the_table_and_its_tied_head_alone():
    plain, table, scale = (
        build_model(compose([*SIZES, "model.depth=1", *typed]), VOCABULARY)
        for typed in ([], ["init.stream=1"], ["init.stream=1", "init.stream_by=scale"])
    )
    assert torch.equal(plain.embedding.weight, scale.embedding.weight)
    assert table.embedding.weight.std() == pytest.approx(1.0, rel=0.02)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_the_learned_scale_multiplies_tokens_and_learned_positions(norm):
    config = compose([*SIZES, "model.depth=1", f"norm={norm}", "position=learned"])
    model = build_model(config, VOCABULARY)
    model.scale.gain.fill_(3.0)
    expected = 3.0 * (model.embedding.weight[:CONTEXT] + model.position.position.weight)
    torch.testing.assert_close(entering(model, torch.arange(CONTEXT)[None])[0], expected)


@torch.no_grad()
def test_dyt_may_lack_its_bias_and_alpha_may_start_by_site():
    table = "norm.alpha_init={attention:0.8,mlp:0.2,final:0.05}"
    config = compose([*SIZES, "model.depth=2", "norm=dyt", "norm.bias=false", table])
    model = build_model(config, VOCABULARY)
    starts = {
        name.removesuffix(".alpha"): round(parameter.item(), 6)
        for name, parameter in model.named_parameters()
        if name.endswith(".alpha")
    }
    pre = {f"blocks.{i}.{part}.pre": start for i in (0, 1)
           for part, start in (("attention", 0.8), ("mlp", 0.2))}  # fmt: skip
    assert starts == {**pre, "final": 0.05}
    assert not any(name.endswith(".bias") for name, _ in model.named_parameters())
    norm, x = model.final, torch.randn(3, WIDTH)
    norm.gain.copy_(torch.randn(WIDTH))
    torch.testing.assert_close(norm(x), norm.gain * torch.tanh(0.05 * x))


@torch.no_grad()
def test_the_norms_of_2026_start_as_their_papers_and_code_say():
    def model_of(*typed):
        model = build_model(compose([*SIZES, "model.depth=1", *typed]), VOCABULARY)
        return model, dict(model.named_parameters())

    model, named = model_of("norm=bhyt", "qk_norm=head")
    bounds = {name: p.item() for name, p in named.items() if name.endswith(".bound")}
    assert bounds == {"blocks.0.attention.pre.bound": 2.0, "blocks.0.mlp.pre.bound": 1.0}
    norms = (model.final, model.blocks[0].attention.f.q)
    assert {type(norm).__name__ for norm in norms} == {"RMSNorm"}
    assert "final.gain" not in model_of("norm=bhyt", "placement=post")[1]
    _, named = model_of("norm=ssnorm")
    assert [p.tolist() for name, p in named.items() if name.endswith("gain")] == [[1.0]] * 3
    model, named = model_of("norm=gatednorm", "init=normal")
    down, up = (named[f"final.gate_{word}.weight"] for word in ("down", "up"))
    assert (down.shape, up.shape) == ((16, WIDTH), (WIDTH, 16))
    assert down.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(down, named["blocks.0.mlp.pre.gate_down.weight"])
    x = torch.randn(9, WIDTH)
    half = x / x.square().mean(-1, keepdim=True).sqrt() / 2
    torch.testing.assert_close(model.final(x), half, rtol=0.01, atol=0.01)


def test_every_role_can_be_typed_and_follows_the_default():
    def std(*typed):
        return dict(compose(list(typed)).init.std)

    assert std("init=gpt2", "init.std.embedding=0.5")["embedding"] == 0.5
    assert std("init.std.head=0.1")["head"] == 0.1  # of the rule that auto stands for
    small = dict.fromkeys(("output", "down"), "0.05/sqrt(2*N)")
    assert std("init=scaled", "init.std.default=0.05") == {"default": 0.05, **small}
    assert std("init=normal", "init.std.up='default*sqrt(d)'")["up"] == "0.02*sqrt(d)"
