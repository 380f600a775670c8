"""Where placements and norms start: the deviation of each weight in its paper or its authors' code,
and the stream's rms as their code makes it enter the first block."""

import math
from functools import cache
from itertools import product

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
SIZES = [f"model.width={WIDTH}", "model.heads=4", f"model.context={CONTEXT}"]
CUT, CUT_AT_2 = 0.98658, 0.8796  # the standard deviation of N(0, 1) cut at 3, and at 2


def built(typed, depth=1, usual=()):
    """The model of what is typed, and of what is usual where that is not typed."""
    typed = typed.split()
    own = {text.partition("=")[0] for text in typed}
    usual = [text for text in usual if text.partition("=")[0] not in own]
    return build_model(compose([*SIZES, f"model.depth={depth}", *usual, *typed]), VOCABULARY)


# A start: a deviation, that of a matrix by its rows and columns, or a list with one of each block.


def xavier(gain=1.0, matrices=1):
    """Xavier's, of one of so many matrices that the rule sees as one, their rows one below the
    other"""
    return lambda rows, columns: gain * math.sqrt(2 / (matrices * rows + columns))


def torch_linear(factor=1.0):
    """torch's own start of a linear layer, uniform up to 1/sqrt(columns), and a factor on it"""
    return lambda rows, columns: factor / math.sqrt(3 * columns)


ROWS, QKV, MATRICES = WIDTH**-0.5, ("query", "key", "value"), ("up", "down", "output")
TABLES = dict.fromkeys(("embedding", "position", "head"), ROWS)
BASE_WIDTH = dict.fromkeys(TABLES, 320**-0.5)  # 1/sqrt(2.5 * 128)


def fairseq(depth, factor=1.0):
    last = {"output": xavier(factor), **dict.fromkeys(("up", "down"), torch_linear(factor))}
    return {**TABLES, **dict.fromkeys(QKV, xavier(factor / math.sqrt(2))), **last}


def gained(gain, tables=TABLES):
    """Xavier's draws, with a gain by the depth on all matrices but those of queries and keys."""
    plain = dict.fromkeys(("query", "key"), xavier())
    roles = ("value", "gate", *MATRICES)
    return lambda depth: {**tables, **plain, **dict.fromkeys(roles, xavier(gain(depth)))}


def everywhere(start, **others):
    return {**dict.fromkeys((*QKV, *MATRICES, "gate", *TABLES), start), **others}


def same(start, **others):
    return lambda depth: everywhere(start, **others)


def scaled(std, **others):
    """The std of a matrix that writes to the residual stream follows from the number of blocks."""

    def authors(depth):
        small = std / math.sqrt(2 * depth)
        return everywhere(std, **{"output": small, "down": small, **others})

    return authors


def nanochat(depth):
    gates = dict.fromkeys(("value_gate", "smear_gate"), 0.02 / math.sqrt(12))  # uniform to 0.02
    rows, zero = dict.fromkeys((*QKV, "value_embedding"), ROWS), {"output": 0.0, "down": 0.0}
    return {**rows, **zero, **gates, "up": 0.4 * ROWS, "embedding": 0.8, "head": 0.001}


def simplegpt(depth):
    by_block = [0.02 / math.sqrt(2 * block) for block in range(1, depth + 1)]  # depth_init
    return everywhere(0.02, **dict.fromkeys(MATRICES, by_block), embedding=1.0, head=CUT * ROWS)


def depth_scaled(depth):
    by_block = [CUT / math.sqrt(2 * block) for block in range(1, depth + 1)]
    outputs = {"output": [std * ROWS for std in by_block]}
    return everywhere(CUT * ROWS, down=[std / math.sqrt(INNER) for std in by_block], **outputs)


# Mesh TensorFlow's and flaxformer's: the head is a dense layer by its fan-in; heads of 16 features.
T5 = {"query": (WIDTH * 16) ** -0.5, "output": (4 * 16) ** -0.5, "down": INNER**-0.5}
SCALENORM = dict.fromkeys((*QKV, "output"), math.sqrt(2 / (WIDTH + 4 * WIDTH)))
ADMIN = dict.fromkeys(QKV, xavier(matrices=3))
MIXLN = same(0.02, embedding=math.sqrt(2 / 5))
MEGATRON = (2.5 * WIDTH) ** -0.5
# How many rows a matrix has counts in a root where it is wider than its input.
SPECTRAL = {"down": lambda rows, columns: math.sqrt(rows) / columns, "head": ROWS}
UNTIED = " architecture.tied=false"
GATED = f"{UNTIED} mlp=swiglu"
# The typed keys, and the std of each weight by depth, as the paper or its code has it.
AUTHORS = {
    "placement=mixln position=rope": MIXLN,
    "placement=lns position=rope": MIXLN,
    f"placement=normformer{UNTIED}": fairseq,
    f"placement=residual_dual{UNTIED}": fairseq,
    f"placement=b2t{UNTIED}": lambda depth: fairseq(depth, depth**-0.5) | TABLES,
    f"placement=post{UNTIED}": same(xavier(), **TABLES),
    f"placement=admin{UNTIED}": same(xavier(), **TABLES, **ADMIN),
    f"placement=deepnorm{GATED}": gained(lambda depth: (8 * depth) ** -0.25),
    f"placement=subln{UNTIED}": gained(lambda depth: math.log(2 * depth) ** 0.5),
    f"placement=glm130b{UNTIED} position=rope": gained(lambda depth: (2 * depth) ** -0.5, {}),
    "placement=out position=rope": same(CUT * 0.02),
    f"placement=sandwich{UNTIED}": scaled(0.02),
    f"placement=hybrid{UNTIED} position=rope": scaled(CUT * MEGATRON, head=CUT * ROWS),
    # The constraint of nGPT and the rows of fixnorm act after the draw.
    "placement=ngpt position=rope placement.weight_constraint=none": same(ROWS),
    f"norm=scalenorm{UNTIED} embed=none": same(xavier(), **TABLES, **SCALENORM),
    "norm=dyt position=rope": same(0.02),
    f"norm=derf{UNTIED}": scaled(0.02),
    "preset=nanochat position=rope": nanochat,
    "placement=simplenorm position=rope": simplegpt,
    "placement=gpas position=rope": MIXLN,
    "preset=t5_1_1 model.head_dim=16 position=rope": same(ROWS, **{**T5, "embedding": 1}),
    f"init=gpt2{GATED}": scaled(0.02, position=0.01),
    f"init=bert{UNTIED}": same(0.02 * CUT_AT_2),
    f"init=depth_scaled{UNTIED}": depth_scaled,
    f"init=xavier{GATED}": same(xavier(), **dict.fromkeys(TABLES, 0.02)),
    f"init=gemma{UNTIED}": same(0.01),
    f"init=zero_out{UNTIED}": same(0.02, output=0.0, down=0.0),
    f"init=width_scaled{UNTIED}": scaled(MEGATRON),
    f"init=mup{GATED}": scaled(MEGATRON, **BASE_WIDTH),
    "init=spectral": same(ROWS, embedding=1.0, position=1.0, **SPECTRAL),
}


@torch.no_grad()
@pytest.mark.parametrize("typed", ["init=t5", "preset=t5_norms init=t5", "preset=bloom init=t5"])
def test_the_tied_logits_of_t5_are_divided_by_the_root_of_the_width(typed):
    """flaxformer's t5_architecture.py, and Mesh TensorFlow's hidden_to_logits"""
    model = built(typed)
    states = model.states(torch.arange(CONTEXT)[None])
    expected = states @ model.embedding.weight.mT / math.sqrt(WIDTH)
    torch.testing.assert_close(model.logits(states), expected)


@pytest.mark.parametrize("typed", AUTHORS)
@pytest.mark.parametrize("depth", [6, pytest.param(24, marks=pytest.mark.nightly)])
@torch.no_grad()
def test_every_weight_starts_as_wide_as_the_paper_or_the_authors_code_draws_it(typed, depth):
    usual = [
        f"model.mlp_width={INNER}",
        "position=learned",
        *["mlp=gelu"] * ("preset" not in typed),
    ]
    weights, expected = {}, AUTHORS[typed](depth)
    for path, parameter in built(typed, depth, usual).named_parameters():
        if path.endswith(".weight"):
            weights.setdefault(path.split(".")[-2], []).append(parameter)
    assert expected.keys() - {"position", "gate"} <= weights.keys()
    for role in expected.keys() & weights.keys():
        start = expected[role]
        starts, of = (
            (start, weights[role]) if isinstance(start, list) else ([start], weights[role][-1:])
        )
        for weight, start in zip(of, starts, strict=True):
            std = start(*weight.shape) if callable(start) else start
            # Four standard errors of a standard deviation.
            error = 4 / math.sqrt(2 * weight.numel())
            assert weight.std().item() == pytest.approx(std, rel=error, abs=1e-12), role


def test_every_init_is_among_them():
    chosen = {compose(typed.split()).choices.init for typed in AUTHORS}
    assert chosen == set(options("init")) - {"auto"}


# google-deepmind/gemma 7691fd4, gemma3n/_modules.py: flax's 0.01 but for what predicts.
GEMMA = (
    "router correct_change projections.0 scale.left scale.right input_embedding input_projection"
)
GEMMA = {
    "predict_change": 1e-4,
    **dict.fromkeys([*GEMMA.split(), "gated.gate", "gated.output"], 0.01),
}


@torch.no_grad()
@pytest.mark.parametrize("init", ["auto", "mup", "bert"])
@pytest.mark.parametrize(
    ("placement", "roles"), [("gemma3n", 6), ("gemma3n_inputs", 10), ("gemma4_inputs", 4)]
)
def test_the_connections_of_gemma_start_as_in_their_code_whatever_the_init(placement, roles, init):
    drawn = {}
    for name, parameter in built(f"placement={placement} init={init}", 6).named_parameters():
        for role in GEMMA:
            if name.endswith(f".{role}.weight"):
                drawn.setdefault(role, []).append(parameter.flatten())
    assert len(drawn) == roles
    for role, weights in drawn.items():
        whole = torch.cat(weights)
        error = 4 * math.sqrt(1 / whole.numel())
        assert whole.std().item() == pytest.approx(GEMMA[role], rel=error), role


@pytest.mark.parametrize(
    ("depth", "start"), [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6), (48, 1e-6)]
)
def test_layerscale_starts_by_depth_as_its_paper_and_its_code_say(depth, start):
    spec = compose(["placement=layerscale", f"model.depth={depth}"]).placement.learned.b
    assert Formula(spec.init)({"N": depth}) == pytest.approx(start)


# The rms of what enters the first block, from their code: table times scale, and positions, of
# which sinusoids have a mean square of 1/2.
SINUSOIDS = "normformer residual_dual b2t post deepnorm subln".split()
STREAMS = {
    "placement=mixln": math.sqrt(2 / 5),
    **{f"placement={name} position=sinusoidal": math.sqrt(1.5) for name in SINUSOIDS},
    "norm=scalenorm position=sinusoidal": math.sqrt(1.5),
    "preset=transformer2017": math.sqrt(1.5),
    "placement=admin position=learned": math.sqrt(1 + 1 / WIDTH),
    "placement=sandwich position=learned": 0.02 * math.sqrt(2),  # CogView
    "placement=sandwich init=gemma": 0.01 * math.sqrt(WIDTH),
    "placement=out": 0.02 * CUT,  # OLMo 2
    "placement=hybrid": CUT / math.sqrt(2.5 * WIDTH),
    **dict.fromkeys((f"placement={name}" for name in ("peri", "nanochat", "simplenorm")), 1.0),
    "preset=nanochat": 1.0,
    "placement=ngpt": WIDTH**-0.5,
    "norm=dyt": 0.02 * math.sqrt(WIDTH),
    "norm=derf position=learned": 0.02 * math.sqrt(2 * WIDTH),
    # init.stream, by a table, a scale, or both
    "init.stream=0.3": 0.3,
    "placement=post init.stream=0.3": 0.3,
    "init=truncated init.stream=0.3": 0.3,
    "init.stream='sqrt(d)/8' init.stream_by=scale": math.sqrt(2),
    "norm=dyt init.stream=0.3 init.stream_by=scale": 0.3,
}


def entering(model, tokens):
    """The stream that the first block is given."""
    entered = []
    model.blocks[0].register_forward_pre_hook(lambda block, given: entered.append(given[0]))
    model(tokens)
    return entered[0][0] if isinstance(entered[0], tuple) else entered[0]


@pytest.mark.parametrize("typed", STREAMS)
@torch.no_grad()
def test_the_stream_enters_the_first_block_with_the_rms_of_the_authors_code(typed):
    stream = entering(built(typed).eval(), torch.arange(VOCABULARY).reshape(-1, CONTEXT))
    assert stream.square().mean().sqrt().item() == pytest.approx(STREAMS[typed], rel=0.02)


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


def too_high(config):
    """the loss at the start where it is too high, of a model that no author starts so high"""
    tokens = torch.randint(TOKENS, (17,), generator=torch.Generator().manual_seed(0))
    logits = build_model(config, TOKENS)(tokens[None, :-1])[0]
    limit = math.log(TOKENS) + 3
    if config.architecture.tied and any(config.choices[axis] in of for axis, of in SHARED.items()):
        limit += 2 * math.sqrt(config.model.width)
    if config.choices.placement == "none":  # nothing bounds the stream there, and a line says so
        assert "final_norm: the stream reaches the head without a norm" in config.warnings
        return None
    loss = nn.functional.cross_entropy(logits, tokens[1:]).item()
    return None if loss < limit else loss


INITS, PLACEMENTS = options("init"), options("placement")
PRESETS = [name for name in options("preset") if name != "none"]
FEW = list(zip(PLACEMENTS[::2], INITS, strict=False))
WIDE = ["mixln", "nanochat", "simplegpt", "spectral", "t5"]  # tables of a deviation near 1
FEW_PRESETS = list(zip(["bloom", "cohere", "gpt1", "opt", "t5_1_1"], WIDE, strict=True))
ALL = [list(product(names, INITS)) for names in (PLACEMENTS, PRESETS)]
NIGHTLY = {"marks": pytest.mark.nightly}


@torch.no_grad()
@pytest.mark.parametrize(
    ("width", "placed", "presets"),
    [
        (512, FEW, FEW_PRESETS),
        (64, FEW[::9], []),
        *(pytest.param(w, *ALL, **NIGHTLY) for w in (64, 512)),
    ],
)
def test_no_model_starts_far_above_the_loss_of_chance_unless_its_authors_model_does(
    width, placed, presets, monkeypatch
):
    monkeypatch.setattr(initialization, "draw", cache(initialization.draw))
    typed = [*BASE, f"model.width={width}"]
    high = {
        (placement, init): too_high(combined(*typed, placement=placement, init=init))
        for placement, init in placed
    }
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
    config, file = compose([*BASE, *typed.split()]), tmp_path / "config.yaml"
    assert config.architecture.tied is tied
    file.write_text(to_yaml(config))
    assert compose([f"config={file}"]).architecture.tied is tied


@torch.no_grad()
def test_the_scale_reaches_the_stream_and_leaves_the_table_and_its_tied_head_alone():
    typed = ("", "init.stream=1", "init.stream=1 init.stream_by=scale")
    plain, table, scale = (built(text).embedding.weight for text in typed)
    assert torch.equal(plain, scale)
    assert table.std() == pytest.approx(1.0, rel=0.02)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_the_learned_scale_multiplies_tokens_and_learned_positions(norm):
    model = built(f"norm={norm} position=learned")
    model.scale.gain.fill_(3.0)
    expected = 3.0 * (model.embedding.weight[:CONTEXT] + model.position.position.weight)
    torch.testing.assert_close(entering(model, torch.arange(CONTEXT)[None])[:1], expected[None])


@torch.no_grad()
def test_dyt_may_lack_its_bias_and_alpha_may_start_by_site():
    starts = {"attention": 0.8, "mlp": 0.2, "final": 0.05}
    table = "norm.alpha_init={attention:0.8,mlp:0.2,final:0.05}"
    named = dict(built(f"norm=dyt norm.bias=false {table}", 2).named_parameters())
    alphas = {name: p.item() for name, p in named.items() if name.endswith(".alpha")}
    places = [f"blocks.{i}.{part}.pre" for i in (0, 1) for part in ("attention", "mlp")]
    expected = {f"{place}.alpha": starts[place.split(".")[-2]] for place in places}
    assert alphas == pytest.approx({**expected, "final.alpha": 0.05}, rel=1e-6)
    assert not any(name.endswith(".bias") for name in named)


@torch.no_grad()
def test_the_norms_of_2026_start_as_their_papers_and_code_say():
    model = built("norm=bhyt qk_norm=head")
    bounds = {name: p.item() for name, p in model.named_parameters() if name.endswith(".bound")}
    assert bounds == {"blocks.0.attention.pre.bound": 2.0, "blocks.0.mlp.pre.bound": 1.0}
    norms = (model.final, model.blocks[0].attention.f.q)
    assert {type(norm).__name__ for norm in norms} == {"RMSNorm"}
    assert not hasattr(built("norm=bhyt placement=post").final, "gain")
    gains = [p for name, p in built("norm=ssnorm").named_parameters() if name.endswith("gain")]
    assert [gain.tolist() for gain in gains] == [[1.0]] * 3
    model = built("norm=gatednorm init=normal")
    down, up = (getattr(model.final, f"gate_{word}").weight for word in ("down", "up"))
    assert (down.shape, up.shape) == ((16, WIDTH), (WIDTH, 16))
    assert down.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(down, model.blocks[0].mlp.pre.gate_down.weight)
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
