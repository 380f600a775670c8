"""Every placement by what it does: a table of properties that are measured, whatever its YAML says.

Each line is derived from a paper's equation, and no placement has another's lines: a YAML under a
wrong name, or a norm on the wrong side of an addition, fails here.
"""

import copy
import math
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from combinations import changed, combined
from tiny_models import DEPTH, SIZES, TIME, WIDTH, Instead, drawn, seeded, some_tokens
from torch import nn
from written_out import l2norm

from transformer_norms.config.building import build_model
from transformer_norms.model.block import SubLayer
from transformer_norms.model.coefficient import Learned, LowRank
from transformer_norms.model.placement import CONNECTED, Placement
from transformer_norms.names import options
from transformer_norms.norms.rmsnorm import RMSNorm

VOCAB = 29

WEIGHTS = {"q": "attention.f.query", "k": "attention.f.key", "v": "attention.f.value"}
WEIGHTS |= {"o": "attention.f.output", "u": "mlp.f.up", "d": "mlp.f.down", "g": "mlp.f.gate"}


def tables():
    """The lines of each table of fingerprints.txt, whose first line names the columns."""
    text = (Path(__file__).parent / "fingerprints.txt").read_text()
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    headers = [n for n, (word, *_) in enumerate(lines) if word == "placement"]
    for begin, end in pairwise([*headers, len(lines)]):
        header, *rows = lines[begin:end]
        yield [dict(zip(header, row, strict=True)) for row in rows]


SUB_LAYERS, MODELS = tables()


def lines_of(placement):
    """{(i, sub-layer): its line} for every block, and the line of the model."""
    found = {}
    for line in SUB_LAYERS:
        if line["placement"] == placement:
            some = {"0": [0], ">0": range(1, DEPTH), "<3": range(3), "3": [3]}
            blocks = {"all": range(DEPTH), **some}[line["i"]]
            names = ("attention", "mlp") if line["sub-layer"] == "both" else [line["sub-layer"]]
            found |= {(i, name): line for i in blocks for name in names}
    assert len(found) == 2 * DEPTH
    (model,) = (line for line in MODELS if line["placement"] == placement)
    return found, model


def norm(x):
    return x / (x * x).mean(-1, keepdim=True).sqrt()


def rms(x):
    return (x * x).mean(-1).sqrt()


@cache
def config_of(placement):
    config = combined(*SIZES, "init=xavier", placement=placement)
    # 0 but for the norm of 0, which is 0; also of a norm that an equation names
    for name in config.norms.keys() & {"rmsnorm_np", "rmsnorm_np_eps5"}:
        config = changed(config, f"norms.{name}", {**config.norms[name], "eps": 1e-30})
    return changed(config, "norm.eps", 1e-30)


def model_of(placement, *, coefficients=False, gains=False):
    """As it starts, or with random coefficients, or with random gains as well."""
    model = build_model(config_of(placement), VOCAB)
    kinds = [kind for kind, there in ((Learned, coefficients), (RMSNorm, gains)) if there]
    for seed, module in enumerate(model.modules()):
        if isinstance(module, tuple(kinds)) and module.gain is not None:
            value = drawn(module.gain.numel(), seed=seed).abs() + 0.3
            module.gain.data = value.view_as(module.gain)
        if coefficients and isinstance(module, LowRank):
            module.right.weight.data = drawn(*module.right.weight.shape, seed=seed) / 8
    return model


def alone(block, name):
    """The block with nothing in its other sub-layer, and the sub-layer that is left."""
    block = copy.deepcopy(block)
    nothing = SubLayer(Instead(zero), connect=lambda _: Untouched())
    setattr(block, {"attention": "mlp", "mlp": "attention"}[name], nothing)
    return block, getattr(block, name)


class Untouched:
    """A connection that leaves two streams as they are."""

    def read(self, streams):
        return streams[0]

    def write(self, streams, u):
        return streams


def zero(x, *context):
    return torch.zeros_like(x)


def run(model, block, x):
    return first_of(block(model.enter(x), x, model.position.angles(0, x.shape[1]), None))


def first_of(stream):
    """Of two streams the first, since both begin as x."""
    return stream[0] if isinstance(stream, tuple) else stream


def common(values):
    """The number that all of them are, or none."""
    values = values.flatten()
    return values[0].item() if close(values, values[0].expand_as(values)) else math.nan


def close(a, b):
    return torch.allclose(a, b, rtol=1e-9, atol=1e-10)


def sub_layer(model, started, i, name):
    """What a sub-layer does, from its outputs. `model` has random coefficients."""
    x = 3 * drawn(2, TIME, WIDTH, seed=1)
    block, layer = alone(model.blocks[i], name)
    coefficients = {
        key: site.used() if isinstance(site, Learned) else math.nan
        for key, site in (("a", layer.skip), ("b", layer.branch))
    }
    modules = layer.enter.modules() if isinstance(layer.enter, nn.Module) else ()
    enter = [module.used() for module in modules if isinstance(module, Learned)]
    found = {"x": x, "l": i + 1, "e": sum(enter), "c": matrix_of(layer.skip), **coefficients}
    if name == "mlp":
        layer.f.activation = torch.tanh
    f = layer.f
    layer.f = Instead(lambda h, *context: f(h, *context))
    y = run(model, block, x)
    found["reads"], found["rms"] = layer.f.given, common(rms(y))
    found["same x"] = close(y - x, run(model, block, 10 * x) - 10 * x)
    layer.f = Instead(lambda h, *context: 10 * f(h, *context))
    found["same f"] = close(y, run(model, block, x))
    layer.f = Instead(zero)
    found["f=0"] = run(model, block, x)
    found["skip/f"] = skip_over_branch(started, i, name)
    return found


def matrix_of(skip):
    """The function x + B A x of a skip's matrix of low rank; not a number where it has none."""
    if not isinstance(skip, LowRank):
        return lambda x: x * math.nan
    b_a = skip.right.weight @ skip.left.weight
    return lambda x: x + x @ b_a.T


def skip_over_branch(model, i, name):
    """p / q of y = p x + q f for each token, a plane that norms without a gain do not leave."""
    block, layer = alone(model.blocks[i], name)
    x, c = (norm(drawn(1, TIME, WIDTH, seed=seed)) for seed in (2, 3))
    layer.f = Instead(lambda h, *context: c)
    y = run(model, block, x)
    plane = torch.stack((x, c), -1)
    parts = torch.linalg.lstsq(plane, y.unsqueeze(-1)).solution
    assert close((plane @ parts).squeeze(-1), y)
    p, q = parts.squeeze(-1).unbind(-1)
    return math.inf if q.abs().max() < 1e-12 else common(p / q)


def free(placement):
    """The cosine of every weight and its gradient, and of each token's value and its own, the
    largest of a few batches: 0 where the loss knows no scale of the weight, or of the value."""
    model = model_of(placement, coefficients=True, gains=True)
    places = [(i, k, at) for i in range(DEPTH) for k, at in WEIGHTS.items()]
    modules = dict(model.named_modules())
    linear = {(i, k): modules.get(f"blocks.{i}.{at}") for i, k, at in places}
    weights = {key: module.weight for key, module in linear.items() if module is not None}
    values = {}
    for i in range(DEPTH):
        linear[i, "v"].register_forward_hook(lambda _, __, v, i=i: values.update({i: v}))
    largest = dict.fromkeys([*weights, *((i, "V") for i in range(DEPTH))], 0.0)
    for seed in range(4):
        tokens = some_tokens(2, TIME + 1, vocabulary=VOCAB, seed=seed)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        of_tokens = [values[i] for i in range(DEPTH)]
        grads = torch.autograd.grad(loss, [*weights.values(), *of_tokens])
        scaled = [*(weight.flatten() for weight in weights.values()), *of_tokens]
        for key, scales, grad in zip(largest, scaled, grads, strict=True):
            cosine = F.cosine_similarity(scales, grad.view_as(scales), dim=-1).abs().max().item()
            largest[key] = max(largest[key], cosine)
    return largest


def whole(placement, model, started):
    tokens, kept = some_tokens(2, TIME, vocabulary=VOCAB), {}
    started.blocks[0].register_forward_pre_hook(lambda _, given: kept.update(enters=given[0]))
    started(tokens)
    model.blocks[-1].register_forward_hook(lambda _, __, out: kept.update(last=out))
    model(tokens)
    return {
        "mlp": mlp_reads(model_of(placement, coefficients=True, gains=True)),
        "e": started.embedding.weight[tokens],
        "enters": first_of(kept["enters"]),
        "leaves": common(rms(model.final(kept["last"]))),
        "mean_square": growth(model_of(placement)),
    }


def mlp_reads(model):
    block = model.blocks[1]
    f, g = block.attention.f, block.mlp.f
    block.attention.f = attention = Instead(lambda h, *context: sign * f(h, *context))
    block.mlp.f = mlp = Instead(lambda h, *context: g(h))
    x, sign = drawn(2, TIME, WIDTH, seed=4), 1
    run(model, block, x)
    first, sign = mlp.given, -1
    run(model, block, x)
    if not close(mlp.given, first):
        block.mlp.f, y = Instead(zero), {}
        for sign in (1, -1):
            y[sign] = run(model, block, x)
        return "only" if torch.equal(y[1], y[-1]) else "after"
    return "shared" if torch.equal(mlp.given, attention.given) else "beside"


def growth(model):
    """The mean square of every stream after each block."""
    generator = seeded(5)

    def noise(x, *context):
        fresh = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return rms(x)[..., None] * fresh

    x0, squares = norm(drawn(1000, TIME, WIDTH, seed=6)), []
    stream = model.enter(x0)
    for block in model.blocks:
        block.attention.f, block.mlp.f = Instead(noise), Instead(noise)
        stream = block(stream, x0, None, None)
        streams = stream if isinstance(stream, tuple) else (stream,)
        squares.append(tuple(s.square().mean().item() for s in streams))
    return squares


@cache
@torch.enable_grad()
def measured(placement):
    model, started = model_of(placement, coefficients=True), model_of(placement)
    with torch.no_grad():
        parts = {
            (i, name): sub_layer(model, started, i, name)
            for i in range(DEPTH)
            for name in ("attention", "mlp")
        }
        of_model = whole(placement, model, started)
    return parts, of_model, free(placement)


def differences(placement, claimed):
    """Where what `placement` does is not what the tables say of `claimed`."""
    parts, of_model, cosines = measured(placement)
    lines, model = lines_of(claimed)
    for (i, name), line in lines.items():
        found, where = parts[i, name], f"blocks.{i}.{name}"
        names = {**found, "norm": norm, "l2norm": l2norm, "sqrt": math.sqrt, "log": math.log}
        for column in ("reads", "f=0"):
            if not close(found[column], value(line[column], names) * torch.ones(())):
                yield f"{where} {column}"
        for column in ("rms", "skip/f"):
            if not same_number(found[column], value(line[column], names)):
                yield f"{where} {column}: {found[column]}"
        for letter in "xf":
            if found[f"same {letter}"] != (letter in line["same"]):
                yield f"{where} same {letter}"
        for letter in {"attention": "qkvVo", "mlp": "ud"}[name]:
            if is_free(cosines[i, letter]) != (letter in line["free"]):
                yield f"{where} free {letter}: {cosines[i, letter]}"
    if not close(of_model["enters"], value(model["enters"], {**of_model, "norm": norm})):
        yield "enters"
    if not same_number(of_model["leaves"], value(model["leaves"], {})):
        yield f"leaves: {of_model['leaves']}"
    if of_model["mlp"] != model["mlp"]:
        yield f"mlp: {of_model['mlp']}"
    for nth, found in enumerate(of_model["mean_square"], start=1):
        names = {"l": nth, "H": lambda n: sum(1 / j for j in range(1, n + 1)), "mixed": mixed}
        expected = [value(text, names) for text in model["mean_square"].split(",")]
        if found != pytest.approx(expected, rel=0.04):
            yield f"mean_square after block {nth}: {found}"


def mixed(blocks):
    """The mean square of k * x0 and of the noise beside it: before each block x is a * x + c * x0,
    and two sub-layers add noise of size 1."""
    k, noise = 1, 0
    for i in range(blocks):
        a, c = 1.15 - 0.1 * i / (DEPTH - 1), 0.2 - 0.15 * i / (DEPTH - 1)
        k, noise = a * k + c, a * a * noise + 2
    return k * k + noise


def is_free(cosine):
    return True if cosine < 1e-10 else False if cosine > 1e-4 else None


def value(text, names):
    return math.nan if text == "-" else eval(text, {"inf": math.inf, **names})


def same_number(found, expected):
    """To 1e-7: what is learned starts as a float32."""
    return found == pytest.approx(expected, rel=1e-7, nan_ok=True)


# The streams of most connections start as pre-norm's stream. In test_connections they are compared
# with the papers' algorithms, with random weights.
PLACEMENTS = [
    name
    for name in options("placement")
    if Placement(**combined(placement=name).placement).topology not in CONNECTED
]


@pytest.mark.goal("A3")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_has_its_own_fingerprint_and_no_other(placement):
    stated = [line["placement"] for line in MODELS]
    if placement in stated:
        assert list(differences(placement, placement)) == []
    alike = [other for other in stated if not any(differences(placement, other))]
    assert alike == [placement] * (placement in stated)
