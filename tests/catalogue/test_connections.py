"""Connections against independent implementations: transformers' modules, and the pseudocode of the
papers, with every gradient, in float64."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from combinations import changed, combined
from test_block_equations import norm_of, randomize
from tiny_models import DEPTH, HEADS, SIZES, TIME, VOCABULARY, WIDTH, drawn, same_grads, some_tokens
from torch.utils._pytree import tree_leaves, tree_map
from trainers import trainer_of
from written_out import attention, mlp

from transformer_norms import compose
from transformer_norms.config.building import build_model
from transformer_norms.model.connections.attention_residuals import AttentionResidual
from transformer_norms.model.connections.geodesic import Geodesic, Orthogonal
from transformer_norms.model.connections.hyper_connections import (
    DynamicHyperConnection,
    GatedSum,
    HyperConnection,
    ManifoldHyperConnection,
)
from transformer_norms.norms import nothing
from transformer_norms.training.flops import flops_per_token
from transformer_norms.training.parameter_groups import groups

STREAMS = (
    "hyper_connections hyper_connections_static mhc siamese attention_residuals "
    "attention_residuals_block altup gemma3n geonorm nanochat_backout orthogonal"
).split()
OTHERWISE = ("siamese", "gemma3n", "geonorm", "nanochat_backout", "orthogonal")
AS_PRE = [name for name in STREAMS if name not in OTHERWISE]


def model_of(placement, *typed, init="gpt2", **keys):
    config = combined(*SIZES, *typed, placement=placement, init=init)
    for key, value in keys.items():
        config = changed(config, key.replace("__", "."), value)
    return build_model(config, vocab_size=VOCABULARY)


def shaken(module):
    torch.manual_seed(5)
    for name, parameter in module.named_parameters():
        start = 0 if name.endswith(".weight") else parameter.data  # not drawn yet
        parameter.data = start + 0.3 * torch.randn_like(parameter)
    return module.double()


def test_mhc_is_the_module_of_deepseek_v4(monkeypatch):
    """Their arithmetic is in float32 at least; here it is in float64. Gemma 3n's AltUp and LAuReL
    are compared, with all gradients, in tests/hf/test_hf.py."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    n, settings = 3, {"scale": 0.7, "eps": 1e-6}
    ours = shaken(ManifoldHyperConnection(WIDTH, streams=n, iterations=20, **settings))
    leave = shaken(GatedSum(WIDTH, nothing, n, **settings))
    names = {"hc_mult": n, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6}
    config = SimpleNamespace(hidden_size=WIDTH, **names)
    hyper, head = theirs.DeepseekV4HyperConnection(config), theirs.DeepseekV4HyperHead(config)
    gates = [ours.read_gate, ours.write_gate, ours.mix_gate]
    for module, prefix, of in ((hyper, "", gates), (head, "hc_", [leave.gate])):
        for name in list(dict(module.named_parameters())):
            delattr(module, name)
        setattr(module, f"{prefix}fn", torch.cat([gate.projection.weight for gate in of]))
        for their, name in (("base", "bias"), ("scale", "scale")):
            setattr(module, prefix + their, torch.cat([getattr(gate, name) for gate in of]))
    z, u = drawn(2, TIME, n, WIDTH), drawn(2, TIME, WIDTH, seed=1)
    post, comb, collapsed = hyper(z.requires_grad_())
    written = post.unsqueeze(-1) * u.requires_grad_().unsqueeze(-2) + comb.mT @ z
    given = [z, u, *ours.parameters(), *leave.parameters()]
    same_grads(ours.read(z), collapsed, given)
    same_grads(ours.write(z, u), written, given)
    same_grads(leave(z), head(z), given)


@pytest.mark.parametrize("dynamic", [False, True])
def test_hyper_connections_are_the_papers_algorithm(dynamic):
    """Algorithm 2 of Zhu et al. 2024: one alpha for what is read and for what is mixed."""
    n, index = 3, 7
    kind, scale = (DynamicHyperConnection, {"scale": 0.7}) if dynamic else (HyperConnection, {})
    ours = kind(WIDTH, index, streams=n, **scale)
    start = [torch.eye(n)[index % n], torch.eye(n), torch.ones(n)]
    for weight, expected in zip(ours.parameters(), start, strict=False):
        assert torch.equal(weight.data, expected)
    ours = shaken(ours)
    z, u = drawn(2, TIME, n, WIDTH), drawn(2, TIME, WIDTH, seed=1)
    alpha = torch.cat([ours.read_weights[:, None], ours.mix_weights], 1)
    beta = ours.write_weights
    if dynamic:
        normed = F.layer_norm(z.requires_grad_(), (WIDTH,), ours.norm.gain, ours.norm.bias)
        alpha_fn = torch.cat([ours.read_change.weight, ours.mix_change.weight]).mT
        alpha = alpha + ours.read_scale * torch.tanh(normed @ alpha_fn)
        beta = beta + ours.write_scale * torch.tanh(normed @ ours.write_change.weight[0])
    mixed = alpha.mT @ z.requires_grad_()
    written = u.requires_grad_()[:, :, None] * beta[..., None] + mixed[..., 1:, :]
    given = [z, u, *ours.parameters()]
    same_grads(ours.read(z), mixed[..., 0, :], given)
    same_grads(ours.write(z, u), written, given)


def test_the_papers_matrix_of_low_rank_starts_as_the_identity():
    """Menghani et al. 2024, section 3.3: B starts at 0, and A does not."""
    start = model_of("laurel").blocks[1].mlp.skip
    assert start.left.weight.abs().min() > 0
    assert not start.right.weight.any()
    tokens = some_tokens()
    assert torch.equal(model_of("laurel")(tokens), model_of("pre")(tokens))


def test_the_input_of_a_block_of_gemma_4_gates_what_is_added_before_its_number():
    """s * (u + norm(W_o (activation(W_g u) * e)))"""
    model = randomize(model_of("gemma4_inputs", init="xavier"))
    held, norm = model.blocks[1].connection, norm_of("rmsnorm")
    x, u, e = (drawn(2, TIME, width, seed=n) for n, width in enumerate((WIDTH, WIDTH, 256)))
    gate = held.gated.activation(u @ held.gated.gate.weight.T)
    expected = held.scale * (u + norm((gate * e) @ held.gated.output.weight.T))
    assert held.read((x, e)) is x
    torch.testing.assert_close(held.write((x, e), u)[0], expected, rtol=1e-12, atol=1e-12)


LIMIT = torch.pi / 4


def turned(x, u, s, c, block):
    """exp(t (b a' - a b')) turns the plane of the unit vectors a and b by t, from a towards b. Here
    a is the stream's and b that of the branch's rest. Returns the ratio of the lengths too."""
    length = x.norm(dim=-1, keepdim=True)
    a, rest = x / length, u - (x * u).sum(-1, keepdim=True) * x / length**2
    ratio = rest.norm(dim=-1, keepdim=True) / length
    t, b = ((s * ratio.clamp(max=LIMIT) + c) / block).clamp(max=LIMIT), rest / (ratio * length)
    plane = t.unsqueeze(-1) * (b[..., None] * a[..., None, :] - a[..., None] * b[..., None, :])
    return (torch.matrix_exp(plane) @ x.unsqueeze(-1)).squeeze(-1), ratio


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("far", [0.2, 5.0])
def test_geonorm_turns_the_stream_as_the_exponential_of_a_rotation_does(far, block):
    """`far` angles are beyond the limit."""
    ours = Geodesic(block, eps=1e-15)
    assert [parameter.item() for parameter in ours.parameters()] == [1, 0]
    (s, c), x = shaken(ours).parameters(), drawn(2, TIME, WIDTH).requires_grad_()
    u = (far * drawn(2, TIME, WIDTH, seed=1)).requires_grad_()
    expected, ratio = turned(x, u, s, c, block)
    assert (ratio < 0.7).all() or (ratio > LIMIT).sum() > TIME
    assert ours.read(x) is x
    same_grads(ours.write(x, u), expected, [x, u, s, c])
    torch.testing.assert_close(ours.write(x, u).norm(dim=-1), x.norm(dim=-1))


def test_a_branch_of_nothing_leaves_geonorms_stream_and_has_a_gradient():
    ours, u = Geodesic(2, eps=1e-8), torch.zeros(1, 1, 3, requires_grad=True)
    x = torch.tensor([[[2.0, 0, 0]]])
    y = ours.write(x, u)
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad(y.sum(), u)
    torch.testing.assert_close(gradient, torch.tensor([[[0, 0.5, 0.5]]]))


def test_an_orthogonal_update_divides_by_a_length_that_may_be_zero():
    """At X = 0 all of u is added; eps is added to the square of the length."""
    ours = Orthogonal(eps=0.5)
    u = torch.tensor([[[1.0, 2, 3]]])
    assert torch.equal(ours.write(torch.zeros(1, 1, 3), u), u)
    found = ours.write(torch.tensor([[[2.0, 0, 0]]]), u)
    torch.testing.assert_close(found, torch.tensor([[[2 + 1 - 2 / 4.5 * 2, 2, 3]]]))


def siamese(model, norm, x):
    """The order of the authors' code: x is normed before a sub-layer, and before it leaves."""
    y = x
    for i, block in enumerate(model.blocks):
        c = ((i + 1) * 2) ** 0.5
        for f in sub_layers(block):
            x = norm(x)
            z = f(norm(x + norm(y)))
            x, y = x + z / c, y + z
    return norm(norm(x) + norm(y))


def attention_residuals(size):
    """Figure 2 of the paper: completed groups of `size` sub-layers, and the sum within the last."""

    def attend(values, attending, norm):
        logits = torch.einsum("d,nbtd->nbt", attending.attend.query, norm(torch.stack(values)))
        return torch.einsum("nbt,nbtd->btd", logits.softmax(0), torch.stack(values))

    def whole(model, norm, x):
        blocks, partial, number = [], x, 0
        for block in model.blocks:
            for f, layer in zip(sub_layers(block), (block.attention, block.mlp), strict=True):
                h = attend([*blocks, partial], layer.connection, norm)
                if number % size == 0:
                    blocks, partial = [*blocks, partial], 0
                partial, number = partial + f(norm(h)), number + 1
        return norm(attend([*blocks, partial], model.final, norm))

    return whole


def altup(model, norm, x):
    """Algorithm 1 of Baykal et al. 2023: predict, compute, correct, and another stream in turn."""
    streams = [x, x, x]
    for k, block in enumerate(model.blocks):
        p, g = block.connection.predict_weights, block.connection.correct_weights
        predicted = [sum(p[i, j] * streams[j] for j in range(3)) for i in range(3)]
        y = streams[k % 3]
        for f in sub_layers(block):
            y = y + f(norm(y))
        streams = [x + g[i] * (y - predicted[k % 3]) for i, x in enumerate(predicted)]
    return norm(sum(streams))


def geonorm(model, norm, x):
    for number, block in enumerate(model.blocks, 1):
        for f, layer in zip(sub_layers(block), (block.attention, block.mlp), strict=True):
            x, _ = turned(x, f(x), layer.connection.scale, layer.connection.bias, number)
    return norm(x)


def orthogonal(model, norm, x):
    """A matrix takes the part along x away from what is added."""
    for block in model.blocks:
        for f in sub_layers(block):
            along = x[..., :, None] * x[..., None, :] / (x * x).sum(-1)[..., None, None]
            x = x + torch.einsum("btij,btj->bti", torch.eye(WIDTH) - along, f(norm(x)))
    return norm(x)


def sub_layers(block):
    yield lambda x: attention(block.attention.f, x, heads=HEADS)
    yield lambda x: mlp(block.mlp.f, x)


def groups_of(blocks):
    return {"type": "attention_residual", "blocks": blocks}


@pytest.mark.parametrize(
    ("placement", "chosen", "whole"),
    [
        ("siamese", None, siamese),
        ("geonorm", {"type": "geodesic", "eps": 1e-30}, geonorm),
        ("orthogonal", {"type": "orthogonal", "eps": 1e-30}, orthogonal),
        ("attention_residuals", None, attention_residuals(1)),
        ("attention_residuals_block", groups_of(8), attention_residuals(2)),
        ("attention_residuals_block", groups_of(3), attention_residuals(4)),
        ("attention_residuals_block", groups_of(1), attention_residuals(8)),
        ("altup", {"type": "altup", "streams": 3}, altup),
    ],
)
def test_a_whole_model_is_the_papers(placement, chosen, whole):
    keys = {"placement__connection": chosen} if chosen else {}
    model = randomize(model_of(placement, init="xavier", **keys))
    tokens = some_tokens()
    expected = whole(model, norm_of("rmsnorm"), model.embedding.weight[tokens])
    expected = expected @ model.embedding.weight.T
    found = model(tokens)
    # The expected norms have gains of their own.
    parameters = [p for name, p in model.named_parameters() if not name.endswith("gain")]
    same_grads(found, expected, parameters)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_backout_takes_the_stream_of_the_block_in_the_middle_away(depth):
    """The branches are nothing and the numbers of the skip 1, but in the block in the middle."""
    keys = {"model__depth": depth, "norm__eps": 1e-30}
    model = model_of("nanochat_backout", "architecture.tied=true", "embed=none", **keys)
    randomize(model)
    for i, block in enumerate(model.blocks):
        mixing = block.attention.enter
        mixing.x0.gain.data.fill_(0)
        mixing.skip.gain.data.fill_(3 if i == depth // 2 else 1)
        for name in ("attention.f.output", "mlp.f.down"):
            block.get_submodule(name).weight.data.zero_()
        assert (block.connection.scale is None) == (i != depth // 2)
    middle = model.blocks[depth // 2].connection.scale
    middle.data.fill_(1.5)  # 3 x - 1.5 * 3 x is the stream the other way round
    x = model.embedding.weight[some_tokens()]
    expected = -model.final.norm(x) @ model.embedding.weight.T
    torch.testing.assert_close(model(some_tokens()), expected, rtol=1e-12, atol=1e-12)


def test_groups_of_attention_residuals_are_of_whole_blocks_and_no_more_than_was_said():
    for depth, most in itertools.product(range(1, 31), range(1, 13)):
        fits = (size for size in range(1, depth + 1) if len(range(0, depth, size)) <= most)
        expected = [2 * i for i in range(0, depth, next(fits))]
        sizes = {"count": 2 * depth, "depth": depth, "blocks": most}
        all_of_them = (AttentionResidual(1, index, **sizes) for index in range(2 * depth))
        assert [i for i, one in enumerate(all_of_them) if one.begins] == expected


@pytest.mark.parametrize("placement", AS_PRE)
def test_the_first_step_is_that_of_pre(placement):
    """Sums and means of the streams are pre's stream times a number, which norms forget. The
    weights of mhc's gates start at little, and not at zero: they move equal streams alike."""
    expected = model_of("pre", norm__eps=1e-30)(some_tokens())
    model = model_of(placement, norm__eps=1e-30)
    if placement == "mhc":
        for name, parameter in model.named_parameters():
            if "gate.projection" in name:
                parameter.data.zero_()
    small = 1e-3 if placement == "mhc" else 1e-9  # its rows sum to 1 to eps
    torch.testing.assert_close(model(some_tokens()), expected, rtol=small, atol=1e-3 * small)


n, d, R = 4, WIDTH, 2 * DEPTH
K, r = 2, 64  # streams of altup, and the rank of LAuReL in gemma3n
ROUTED = n * d + n**3 + n * n * d  # products of one prediction
LEARNED = {  # numbers besides those of pre
    "hyper_connections_static": R * (n + n * n + n),
    "hyper_connections": R * (n + n * n + n + d * (n + 2) + 2 + 2 * d),
    "mhc": R * ((n * d + 1) * (n * n + 2 * n) + 3) + (n * d + 1) * n + 1,
    "siamese": R * 2 * d + 2 * d,
    "geonorm": R * (2 - d),
    "orthogonal": 0,
    "nanochat_backout": 2 * DEPTH + 1 + d,  # and the gains of the norm on the embedded tokens
    "attention_residuals": (R + 1) * 2 * d,
    "attention_residuals_block": (R + 1) * 2 * d,
    "altup": DEPTH * (K * K + K),
    "laurel": R * 2 * d * r,
    "gemma3n": R * d + DEPTH * (d + d * n + n**3 + n**2 + 2 * d * r + d) + 2 * (n - 1) * d * d,
}
MIX = 2 * n * d * (n + 1)  # a sub-layer reads one stream of n, and makes n of n
PRODUCTS = {  # FLOPs of a token, forward, besides those of pre
    "hyper_connections_static": R * MIX,
    "hyper_connections": R * (MIX + 2 * n * d * (n + 2)),
    "mhc": R * (MIX + 2 * n * d * (n * n + 2 * n)) + 2 * n * d * (n + 1),
    "attention_residuals": 2 * d * sum(range(1, R + 2)),
    "attention_residuals_block": 2 * d * sum(1 + math.ceil(k / 2) for k in range(R + 1)),
    "altup": DEPTH * 2 * K * K * d,
    "laurel": R * 2 * 2 * d * r,
    "gemma3n": DEPTH * 2 * (2 * ROUTED + n * d + n * n + 2 * d * r) + 2 * (n - 1) * 2 * d * d,
}


@pytest.mark.parametrize("placement", [*STREAMS, "laurel"])
def test_parameters_and_flops_are_the_closed_form(placement):
    pair = (placement, "pre")
    learned = [sum(p.numel() for p in model_of(name).parameters()) for name in pair]
    assert learned[0] - learned[1] == LEARNED[placement]
    typed = [f"model.width={d}", f"model.depth={DEPTH}"]
    flops = [flops_per_token(trainer_of(*typed, f"placement={name}"), 16) for name in pair]
    assert flops[0] - flops[1] == 3 * PRODUCTS.get(placement, 0)


@pytest.mark.parametrize("placement", ["hyper_connections", "mhc"])
def test_weight_decay_acts_on_the_matrices_of_the_weights_and_on_nothing_else(placement):
    by_group = groups(model_of(placement))
    kept = {name for name, _ in by_group["norms"] if ".connection." in name}
    decayed = {name for name, _ in by_group["matrices"] if ".connection." in name}
    assert {name.rpartition(".")[2] for name in decayed} == {"weight"}
    names = "scale bias"
    if placement == "hyper_connections":
        names = "read_weights mix_weights write_weights read_scale write_scale gain bias"
    assert {name.rpartition(".")[2] for name in kept} == set(names.split())


@pytest.mark.parametrize("placement", STREAMS)
def test_streams_are_mixed_in_float32_under_autocast(placement):
    typed = [size for size in SIZES if "precision" not in size]
    model = build_model(combined(*typed, placement=placement), vocab_size=VOCABULARY)
    block, x0 = model.blocks[1], torch.randn(2, TIME, WIDTH)
    connection = getattr(block, "connection", None) or block.mlp.connection
    connection, u = shaken(connection).float(), torch.randn(2, TIME, WIDTH)
    entered = model.enter(x0)
    rounded = tree_map(torch.Tensor.bfloat16, (entered, u))
    wide = tree_map(torch.Tensor.float, rounded)
    with torch.autocast("cpu", torch.bfloat16):
        found = connection.read(rounded[0]), connection.write(*rounded)
    expected = connection.read(wide[0]), connection.write(*wide)
    # One rounding at the end; sums of two roundings in a pair of streams.
    ulps = 1 if placement not in ("siamese", "attention_residuals_block") else 4
    for one, two in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), two, rtol=ulps * 2**-8, atol=1e-6)


HYPER = "placement=hyper_connections_static"


def test_streams_and_a_connection_go_together():
    typed = compose([HYPER, "placement.equation=write(X, f(read(X)))"], device="cpu")
    assert typed.placement.connection == {"type": "hyper_connection", "streams": 4}
    # An equation without read and write leaves the connection out.
    typed = compose([HYPER, "placement.equation=x + f(norm(x))+x"], device="cpu")
    assert "connection" not in typed.placement


def test_a_norm_of_a_connection_around_a_block_starts_as_those_of_mlps():
    starts = "norm.alpha_init={attention:0.8,mlp:0.2,final:0.3}"
    config = compose([*SIZES, "placement=gemma4_inputs", "norm=dyt", starts])
    model = build_model(config, vocab_size=VOCABULARY)
    assert model.blocks[0].connection.gated.norm.alpha.item() == pytest.approx(0.2)
