"""What the papers prove or promise of a model before it is trained: gradients of blocks, its loss,
counts of parameters, and of several placements the one thing that is theirs."""

import math
import re
from collections import Counter
from functools import cache, partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from combinations import combined
from test_fingerprints import PLACEMENTS, norm
from tiny_models import VOCABULARY, Instead, drawn, seeded, some_tokens
from torch.autograd import gradcheck
from torch.func import functional_call
from trainers import trainer_of

from transformer_norms.config.building import build_model
from transformer_norms.model.initialization import Embedding, Linear
from transformer_norms.model.placement import Placement
from transformer_norms.names import distinct_norms, options

DRAWN = "embedding query key value output up down".split()


def sizes(**model):
    return ["model=nano", *(f"model.{key}={value}" for key, value in model.items())]


def model_of(config, vocab_size=VOCABULARY):
    """In float64."""
    return build_model(config, vocab_size).double()


GRADIENTS = sizes(width=4, heads=2, depth=4, context=3, mlp_width=4)


def block_gradient_is_right(placement, i, *typed, **how):
    """Of a block with random parameters, gains among them, for its input and all of them."""
    model = model_of(combined(*GRADIENTS, *typed, "init=xavier", placement=placement))
    block = model.blocks[i]
    for module in block.modules():  # GPAS's own gradient is another: test_parity has it
        module.preserves = False
    names, parameters = zip(*block.named_parameters(), strict=True)
    values = [drawn(*parameter.shape, seed=seed) for seed, parameter in enumerate(parameters)]
    entered = model.enter(drawn(1, 3, 4, seed=99), torch.tensor([[3, 0, 1]]))
    pair = isinstance(entered, tuple)
    streams = entered if pair else [entered]
    streams = [drawn(*stream.shape, seed=100 + n) for n, stream in enumerate(streams)]
    x0, angles = drawn(1, 3, 4, seed=98), model.position.angles(0, 3)

    def run(*given):
        x = given[: len(streams)] if pair else given[0]
        first, *values = given[len(streams) :]
        own = dict(zip(names, values, strict=True))
        return functional_call(block, own, (x, first, angles, None))

    given = [t.requires_grad_() for t in (*streams, x0, *values)]
    return gradcheck(run, given, atol=1e-6, **how)


@pytest.mark.goal("A3")
@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("placement", options("placement"))
def test_the_gradient_of_every_block_is_that_of_differences(placement, each):
    """Along random directions; by night of all blocks and in each number."""
    scheduled = combined(*GRADIENTS, placement=placement).placement.get("where")
    for i in range(4) if each else (0, 3) if scheduled else (2,):
        assert block_gradient_is_right(placement, i, fast_mode=not each)


NIGHTLY = {"marks": pytest.mark.nightly}
LATENT = [
    ("pre", "value_dim=3"),
    pytest.param("hyper_connections", "value_dim=3 attention_gate=elementwise", **NIGHTLY),
    pytest.param("hybrid", "value_dim=5 attention_gate=per_head", **NIGHTLY),
    pytest.param("qk_cap", "value_dim=2 values_from_keys=1", **NIGHTLY),
]


@pytest.mark.goal("A3")
@pytest.mark.parametrize(("placement", "keys"), LATENT)
def test_the_gradient_of_attention_through_latents_is_that_of_differences(placement, keys):
    keys = f"q_rank=3 kv_rank=2 rope_dim=2 {keys}".split()
    typed = ["model.head_dim=4", *(f"architecture.{key}" for key in keys)]
    for attention in ("softmax", "sinks") if placement != "qk_cap" else ("softmax",):
        more = [*typed, f"attention={attention}"]
        assert block_gradient_is_right(placement, 2, *more, fast_mode=placement == "pre")


# Logits are the products of a stream of mean square 1 with rows of the head: their variance is
# d std^2, and the loss is half of it above ln(V). With a std of 0.02 that is little at our width,
# and so it is for ngpt, whose products of vectors of length 1 have a variance of 1/d. Megatron's
# std = 1/sqrt(2.5 d), cut at 3 deviations (by which it falls to 0.9866 of itself), promises no
# ln(V): it is 0.195 nats above at any width, and the wider the more, the head being tied, since
# the stream still holds the row of its own token, whose logit grows with sqrt(d).
EXCESS = dict.fromkeys(("hybrid", "hybrid_star", "hybrid_7b"), 0.9866**2 / 5)
# Where the table has rows of length 1, as in fairseq and tensor2tensor, the logits of a head of its
# own have the variance of what it reads, and the loss is half of that above ln(V).
UNIT_ROWS = ("transformer2017", "fairseq", "b2t", "admin", "deepnorm", "subln", "simplegpt")
# mup's head has a deviation of 1/sqrt(2.5 * 128), and its logits are multiplied by 128/d.


@pytest.mark.goal("A5")
@pytest.mark.parametrize("norm", ["rmsnorm", pytest.param("layernorm", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("placement", options("placement"))
def test_the_loss_starts_at_the_logarithm_of_the_vocabulary_or_as_far_above_as_it_must(
    placement, norm
):
    config = combined(*sizes(), placement=placement, norm=norm)
    own_head = {**dict.fromkeys(UNIT_ROWS, 1.0), "mup": 128**2 / (320 * config.model.width)}
    half_variance = own_head.get(config.choices.init, 0) / 2
    if half_variance:
        untied = "architecture.tied=false"
        config = combined(*sizes(), untied, placement=placement, norm=norm)
    model, tokens = model_of(config, vocab_size=300), some_tokens(16, 33, vocabulary=300)
    with torch.no_grad():
        states = model.states(tokens[:, :-1])
    loss = F.cross_entropy(model.logits(states).flatten(0, 1), tokens[:, 1:].flatten()).item()
    above, half = loss - math.log(300), states.square().mean().item() * half_variance
    if half_variance:
        assert above == pytest.approx(half, rel=0.15, abs=0.01)
    elif placement in EXCESS:
        assert above == pytest.approx(EXCESS[placement], abs=0.08)
    else:
        assert loss == pytest.approx(math.log(300), rel=0.05)


N, D, H, DH, M, V = 4, 24, 3, 8, 40, 37
COUNTED = sizes(width=D, heads=H, mlp_width=M, depth=N, context=8)
INSIDE = {**dict.fromkeys("qkv", DH), "hidden": M, "mid": M}  # widths at sites of f, else D


def learned_sizes(placement):
    """Returns {size: how many} of the gains of norms, and of the learned coefficients: one for
    each time that the equations of a block name it."""
    gains, coefficients = Counter(), Counter()
    for i in range(N):
        texts = placement.equation(i, N)
        end = texts.get("end", [*texts.values()][-1])
        if "r" in texts:  # both sub-layers have the equations of the two streams
            texts = {"attention": texts["x"], "mlp": texts["x"]}
        for text in texts.values():
            for site, full in re.findall(r"(?:(\w+)=)?\bnorm\b(@full)?", text):
                gains[D if full else INSIDE.get(site, D)] += 1
        for name, spec in placement.learned.items():
            sites = [s for text in texts.values() for s in re.findall(rf"(\w+=)?\b{name}\b", text)]
            for site in sites[:1] if spec.get("share") == "block" else sites:
                vector = M if site == "hidden_scale=" else D
                coefficients[{"scalar": 1, "head": H, "vector": vector}[spec["learn"]]] += 1
    ends_normed = end.startswith("norm(") or placement.brings.get("final_norm") == "none"
    gains[D] += (placement.brings.get("embed") == "norm") + (not ends_normed)
    return gains, coefficients


@pytest.mark.goal("Q5")
@pytest.mark.parametrize(("norm", "times"), [("rmsnorm", 1), ("layernorm", 2)])
@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "laurel"])
def test_the_number_and_sizes_of_what_is_learned_are_the_closed_form(placement, norm, times):
    """laurel's matrices, and what connections learn, are counted in test_connections."""
    tied = placement != "ngpt"
    config = combined(*COUNTED, *["architecture.tied=true"] * tied, placement=placement, norm=norm)
    model = model_of(config, vocab_size=V)
    gains, expected = learned_sizes(Placement(**config.placement))
    expected += Counter({size: times * n for size, n in gains.items()})
    expected += Counter({V: 1} if placement == "ngpt" else {})  # the scale of its logits
    matrices = {m.weight for m in model.modules() if isinstance(m, (Linear, Embedding))}
    rest = {*model.parameters()} - matrices
    assert Counter(parameter.numel() for parameter in rest) == expected
    weights = (1 if tied else 2) * V * D + N * (4 * D**2 + 2 * D * M)
    total = weights + sum(size * n for size, n in expected.items())
    assert sum(parameter.numel() for parameter in model.parameters()) == total


@cache
def start(placement="pre", norm="rmsnorm", **words):
    typed = [f"{key}={value}" for key, value in words.items()]
    config = combined(*sizes(), *typed, "init=gpt2", placement=placement, norm=norm)
    named = build_model(config, 31).named_parameters()
    return {name: p.detach() for name, p in named if name.split(".")[-2] in DRAWN}


@pytest.mark.parametrize(
    ("placement", "norm"),
    [*product(options("placement"), ["rmsnorm"]), *product(["pre", "hybrid"], distinct_norms())],
)
def test_of_one_seed_every_variant_has_the_weights_of_pre(placement, norm):
    expected, found = start(), start(placement, norm)
    assert len(expected) == 1 + 6 * 2
    for name, weight in expected.items():
        weight = weight / lengths(name, weight) if placement == "ngpt" else weight
        assert torch.equal(found[name], weight)


def lengths(name, weight):
    """Returns the norms of rows. A matrix that writes to the stream has those of its columns."""
    axis = 0 if name.split(".")[-2] in ("output", "down") else 1
    return torch.linalg.vector_norm(weight, dim=axis, keepdim=True)


def test_another_seed_gives_every_weight_another_start():
    first, other, of_data = start(), start(seed=1), start(**{"data.seed": 1})
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert all(torch.equal(first[name], of_data[name]) for name in first)


AT_ONCE = ["schedule.warmup=0", "optimizer.lr=0.01"]
DECAYED = ["schedule.warmup=0", "optimizer.weight_decay=0.1"]


@pytest.mark.parametrize("optimizer", options("optimizer"))
def test_every_vector_of_ngpt_has_length_one_before_and_after_a_step(optimizer):
    trainer = trainer_of("placement=ngpt", f"optimizer={optimizer}", *AT_ONCE)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    assert trainer.train_step() is None
    for name, weight in trainer.model.named_parameters():
        if name.split(".")[-2] in (*DRAWN, "head"):
            for vectors in (before[name], weight):
                assert (lengths(name, vectors) - 1).abs().max() < 1e-6
        assert not torch.equal(weight, before[name])


@pytest.mark.parametrize("optimizer", options("optimizer"))
def test_no_weight_of_ngpt_is_decayed_and_every_weight_of_pre_is(optimizer):
    for placement in ("ngpt", "pre"):
        trainer = trainer_of(f"placement={placement}", f"optimizer={optimizer}", *DECAYED)
        groups = [group for o in trainer.optimizers for group in o.param_groups]
        decay = {p: g["lr"] * g["weight_decay"] for g in groups for p in g["params"]}
        share = trainer.model.config.optimizer.lr * 0.1  # of a weight in a step
        for name, parameter in trainer.model.named_parameters():
            weight = name.split(".")[-2] in (*DRAWN, "head")
            expected = share if weight and placement == "pre" else 0
            assert decay[parameter] == pytest.approx(expected, rel=1e-12)


def orthogonal_noise(generator, x, *context):
    """Of the root mean square 1, at right angles to x for each token."""
    fresh = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    along = (fresh * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    return norm(fresh - along * x)


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_the_branches_of_admin_are_together_the_logarithm_of_the_depth(depth):
    """Of the variance that a sub-layer hands on, its branch is 1 / (omega^2 + 1): R times that is
    R / (R + 1) ln(R + 1), O(ln R) where post-norm has R / 2. Each sub-layer learns its own omega,
    a number for each feature."""
    model = model_of(combined(*sizes(depth=depth), "init=xavier", placement="admin"))
    omegas = [layer.skip.gain for block in model.blocks for layer in (block.attention, block.mlp)]
    assert {omega.shape for omega in omegas} == {(64,)}
    assert len({id(omega) for omega in omegas}) == 2 * depth
    x = norm(drawn(2, 3, 64))
    branch, noise = 0.0, Instead(partial(orthogonal_noise, seeded(9)))
    for block in model.blocks:
        for layer in (block.attention, block.mlp):
            layer.f = noise
            y = layer(x, x, x)
            branch += 1 - (y * x).mean().item() ** 2
    r = 2 * depth
    assert branch == pytest.approx(r / (r + 1) * math.log(r + 1), rel=1e-6)
    model(some_tokens(2, 8)).square().sum().backward()
    assert all(omega.grad.abs().min() > 0 for omega in omegas)


@pytest.mark.parametrize(("depth", "posts"), [(3, 0), (4, 1), (7, 1), (8, 2), (12, 3), (24, 6)])
def test_mixln_is_post_norm_in_the_first_quarter_of_its_blocks_rounded_down(depth, posts):
    """The authors' 3 of 12 and 6 of 24. The norm before the head is there however few they are."""
    config = combined(*sizes(depth=depth), placement="mixln")
    names = ("mixln", "post", "pre")
    mixed, post, pre = (Placement(**combined(placement=name).placement) for name in names)
    for i in range(depth):
        assert mixed.equation(i, depth) == (post if i < posts else pre).equation(i, depth)
    assert config.final_norm == "norm"
