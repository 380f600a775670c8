"""Every placement computes the equation that its YAML states, with whichever norm."""

import math
from collections.abc import Mapping
from functools import cache, partial
from operator import attrgetter

import pytest
import torch
import written_out
from combinations import combined, norms_in_turn
from generating import from_a_cache
from tiny_models import DEPTH, HEADS, SIZES, TIME, WIDTH, Instead, drawn, same_grads, some_tokens
from torch import nn
from written_out import l2norm, own_rmsnorm

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.model.attentions.heads import ForwardState
from transformer_norms.model.coefficient import Learned, LowRank
from transformer_norms.model.connections import CONNECTIONS
from transformer_norms.model.connections.attention_residuals import AttendingSum
from transformer_norms.model.connections.hyper_connections import StreamGate
from transformer_norms.model.placement import read_placement
from transformer_norms.model.sites import INSIDE
from transformer_norms.names import distinct_norms, options
from transformer_norms.norms import NORMS, NOT_ARGUMENTS, nothing
from transformer_norms.training.causality import lookahead, noise_in

CONNECTED = (StreamGate, AttendingSum, LowRank, *CONNECTIONS.values())


@cache
def config_of(placement="pre", norm="rmsnorm", init="xavier", **words):
    typed = [*typed_of(words), f"init={init}"]
    return combined(*SIZES, *typed, placement=placement, norm=norm)


def typed_of(words):
    return [f"{key.replace('__', '.')}={value}" for key, value in words.items()]


def model_of(**choices):
    """A float64 model whose norms have the same random parameters everywhere, as far as they go,
    and whose coefficients and biases are random."""
    return randomize(build_model(config_of(**choices), vocab_size=11))


def randomize(model):
    seed(3)
    for module in model.modules():
        if type(module) in NORMS.values():
            shake(module)
        elif isinstance(module, Learned):
            module.gain.data = torch.randn_like(module.gain) + 0.3
        elif isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data = torch.randn_like(module.bias)
        elif type(module) in CONNECTED:
            for parameter in module.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def seed(number):
    """As torch.manual_seed, which formats its caller's stack for each kind of device."""
    torch.default_generator.manual_seed(number)


def shake(norm):
    for name, parameter in norm.named_parameters():
        seed(sum(name.encode()))
        values = torch.randn(max(WIDTH * 64, parameter.numel()), dtype=parameter.dtype)
        parameter.data = values[: parameter.numel()].view(parameter.shape) + 0.2
    return norm


def norm_of(name):
    """The run's norm at any width: tests/model/test_norms.py compares each with its formula."""
    spec = config_of(norm=name).norm
    own = {key: value for key, value in spec.items() if key not in NOT_ARGUMENTS}
    make = cache(lambda width: shake(NORMS[spec["type"]](width, **own).double()))
    return (lambda x: x) if name == "none" else (lambda x: make(x.shape[-1])(x))


class Norm:
    """A norm as an equation writes it: norm(x), norm@full, s * norm."""

    def __init__(self, function, share="head"):
        self.function, self.share = function, share

    def __call__(self, x):
        if self.share == "full":
            return self.function(x.flatten(2)).view_as(x)
        return self.function(x)  # with one gain for all heads, which `per_head` starts with

    def __matmul__(self, share):
        return Norm(self.function, share)

    def __rmul__(self, scale):
        return Norm(lambda x: scale * self.function(x), self.share)


def number(text, values):
    return eval(str(text), {"sqrt": math.sqrt, "log": math.log, **values})


def learned(spec, parameter, values):
    """Returns the factor of a learned coefficient, from its YAML and its parameter."""
    stored = spec.get("stored", spec["init"])
    factor = 1 if spec["init"] == stored else number(spec["init"], values) / number(stored, values)
    shaped = {"absolute": torch.abs, "square": lambda g: g * g, "same": lambda g: g}
    shaped["one_minus_silu"] = lambda g: 1 - g / (1 + (-g).exp())
    return shaped[spec.get("function", "same")](factor * parameter)


# Where the block holds what is learned: the plan says what a name multiplies.
HELD = {"a": "skip", "b": "branch", "start": "skip.start", "x0": "skip.x0", "enter.x": "enter"}
HELD |= {"normed": "skip.normed.scale", "hidden_scale": "f.up_scale"}
HELD |= {name: f"f.{name}" for name in ("q.scale", "head_scale")}


def scope_of(config, block, name, i, norm):
    """What the equation of sub-layer `name` of block i may name."""
    values = {"N": DEPTH, "R": 2 * DEPTH, "i": i, "l": i + 1, "d": WIDTH, "dh": WIDTH // HEADS}
    plan = read_placement(config.placement).plans(i, DEPTH)[name]
    layer, how = getattr(block, name), config.architecture
    scope = {"norm": Norm(norm), "l2norm": Norm(l2norm), "sqrt": math.sqrt, **values}
    scope |= {name: Norm(norm_of(name)) for name in ("layernorm", "rmsnorm_np", "rmsnorm_np_eps5")}
    scope |= {share: share for share in ("head", "per_head", "full")}
    scope |= dict.fromkeys(config.placement.get("learned", {}))  # some are the other sub-layer's
    for slot, of in plan.names.items():
        spec, module = config.placement.learned[of], attrgetter(HELD.get(slot, slot))(layer)
        module = getattr(module, "skip", module)
        if spec["learn"] == "low_rank":
            inside = norm if spec["normed"] else written_out.same
            scope[of] = written_out.LowRank(module, number(spec["init"], values), inside)
            continue
        if slot == "a" and plan.names.get("b") == of:
            assert module.gain is layer.branch.gain
        scope[of] = learned(spec, module.gain, values)
    stand_in = Norm(norm_of("rmsnorm") if config.qkv == "rmsnorm" else norm)

    def f(x, **inside):
        """The sub-layer; at q, k and v stands rmsnorm for norms that cannot stand there."""
        inside = {k: v for k, v in inside.items() if k in WORDS[name].split()}
        of_heads = {k: v for k, v in inside.items() if k in "qkv" and v.function is norm}
        inside |= {k: stand_in @ v.share for k, v in of_heads.items()}
        if name == "mlp":
            return written_out.mlp(layer.f, x, **inside)
        scale, cap = how.attention_scale, how.attention_cap
        scale = layer.f.scale.gain if isinstance(scale, Mapping) else number(scale, values)
        inside |= {"scale": scale, "cap": None if cap == "none" else cap}
        return written_out.attention(layer.f, x, heads=HEADS, order=how.qk_norm_order, **inside)

    return {**scope, "f": f}


WORDS = {"attention": "q k v head_norm head_scale ctx", "mlp": "hidden mid hidden_scale"}


def computes_its_equation(model, config, norm):
    """Compares blocks with the equations' text, which Python's own eval works out. What connections
    read and write is compared with their papers in test_connections."""
    plan = read_placement(config.placement)
    seed(0)
    x, r, x0 = torch.randn(3, 2, TIME, WIDTH, dtype=torch.double)
    context = (model.position.angles(0, TIME), None)
    for i in (0, 1, DEPTH - 1):  # of every condition in `where`, a block that meets it or not
        block, equation = model.blocks[i], plan.equation(i, DEPTH)
        scopes = {n: scope_of(config, block, n, i, norm) for n in ("attention", "mlp")}

        def in_series(x, equation=equation, scopes=scopes):
            y = eval(equation["attention"], {**scopes["attention"], "x": x, "start": x, "x0": x0})
            return eval(equation["mlp"], {**scopes["mlp"], "x": y, "start": x, "x0": x0})

        if plan.topology == "serial":
            expected, found = in_series(x), block(x, x0, *context)
        elif plan.topology == "parallel":
            scope = {name: s["f"] for name, s in scopes.items()}
            scope = {**scopes["mlp"], **scopes["attention"], **scope}
            expected = eval(equation["block"], {**scope, "x": x})
            found = block(x, x0, *context)
        elif plan.topology in ("blocks", "streams"):
            expected = spread(model.enter(x, some_tokens(2, TIME)), r)
            found = block(expected, x0, *context)
            for name in ("attention", "mlp") if plan.topology == "streams" else ("block",):
                held = getattr(block, name, block).connection
                here = {"read": held.read, "write": held.write, "X": expected}
                expected = eval(equation[name], {"f": in_series, **scopes.get(name, {}), **here})
        else:
            y, s = x, r
            for name in ("attention", "mlp"):
                here = {**scopes[name], "x": y, "r": s}
                y, s = eval(equation["x"], here), eval(equation["r"], here)
            expected = eval(equation["end"], {**scopes["mlp"], "x": y, "r": s})
            found = model.final(block((x, r), x0, *context))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def norms_in_part(placement, part):
    """A twelfth of the norms, for each placement and claim another."""
    return norms_in_turn(placement, part)


def every_norm(*_):
    return distinct_norms()


def spread(streams, r):
    """The streams, each moved by another number of r. The inputs of blocks stay as they are."""
    if isinstance(streams, tuple) and streams[-1].shape[-1] != WIDTH:
        return (streams[0] if streams[0].ndim == 3 else spread(streams[0], r), *streams[1:])
    if isinstance(streams, tuple):
        return tuple(stream + i * r for i, stream in enumerate((*streams, r)[:2]))
    if streams.ndim == r.ndim:
        return streams + r
    return streams + torch.arange(streams.shape[-2])[:, None] * r.unsqueeze(-2)


NIGHTLY = {"marks": pytest.mark.nightly}


every_placement = pytest.mark.parametrize("placement", options("placement"))
some_norms = pytest.mark.parametrize("norms", [norms_in_part, pytest.param(every_norm, **NIGHTLY)])


@some_norms
@every_placement
def test_every_placement_computes_its_equation(placement, norms):
    for norm in norms(placement, 0):
        config, model = (make(placement=placement, norm=norm) for make in (config_of, model_of))
        computes_its_equation(model, config, norm_of(norm))


@pytest.mark.parametrize("word", ["none", "head", "per_head", "full", "l2", "rmsnorm_np"])
@pytest.mark.parametrize(("sites", "order"), [("qk", "before"), ("qk", "after"), ("v", "before")])
def test_attention_is_the_softmax_written_out_with_its_norms(sites, order, word):
    """The norm is of queries and keys, before or after positions turn them, or of values."""
    chosen = {"v_norm" if sites == "v" else "qk_norm": word}
    model = model_of(**chosen, architecture__qk_norm_order=order)
    f, one_head, how = model.blocks[0].attention.f, norm_of("rmsnorm"), {}
    for site in sites if word == "per_head" else ():
        for head, norm in enumerate(getattr(f, site).heads):  # each head's own gain
            norm.gain.data += head
    if word == "l2" and sites == "qk":
        how = {"scale": f.scale.gain}
    norm = {
        "none": written_out.same,
        "head": one_head,
        "per_head": lambda q: one_head(q) + torch.arange(HEADS)[:, None] * own_rmsnorm(q),
        "full": lambda q: one_head(q.flatten(2)).view_as(q),
        "l2": l2norm,
        "rmsnorm_np": norm_of("rmsnorm_np"),
    }[word]
    x = drawn(2, TIME, WIDTH)
    inside = dict.fromkeys(sites, norm)
    expected = written_out.attention(f, x, heads=HEADS, order=order, **inside, **how)
    found = f(x, model.position.angles(0, TIME), None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert {getattr(f, site) for site in {*"qkv"} - {*sites}} == {nothing}


@pytest.mark.parametrize("gate", ["elementwise", "per_head"])
def test_a_gate_multiplies_heads_before_w_o_by_a_sigmoid_of_what_q_k_and_v_read(gate):
    """Also after a norm on heads and before one on the context, and without later tokens."""
    words = {"architecture__attention_gate": gate, "architecture__bias": "[attention_gate]"}
    for equation in ("x + f(norm(x))", "x + f(x, head_norm=norm, ctx=norm, head_scale=2)"):
        config = compose([*SIZES, *typed_of(words), f"placement.equation='{equation}'"])
        model = randomize(build_model(config, vocab_size=11))
        computes_its_equation(model, config, norm_of("rmsnorm"))
        assert lookahead(model, 11) == 0


NANOCHAT = "'3*((N - 1 - i) % 2 == 0)'"  # has_ve: every other block, the last one among them


@pytest.mark.parametrize(("gate", "v_norm"), [(12, "none"), ("none", "head")])
def test_rows_of_a_table_are_added_to_values_as_in_nanochat(gate, v_norm):
    """v + 3 sigmoid(W x[:12]) E[tokens] in every other block, before a norm on v."""
    words = {"architecture__value_embedding": NANOCHAT, "architecture__value_gate": gate}
    model, tokens = model_of(**words, v_norm=v_norm), torch.randint(11, (2, TIME))
    tables = [getattr(b.attention.f.values, "value_embedding", None) for b in model.blocks]
    assert [table is not None for table in tables] == [False, True, False, True]
    f, x = model.blocks[3].attention.f, torch.randn(2, TIME, WIDTH, dtype=torch.double)

    def values(v):
        rows = 3 * f.values.value_embedding.weight[tokens].unflatten(-1, (HEADS, -1))
        if gate != "none":
            assert f.values.value_gate.weight.shape == (HEADS, 12)
            logits = torch.einsum("btc,hc->bth", x[..., :12], f.values.value_gate.weight)
            rows = rows / (1 + (-logits).exp())[..., None]
        return norm_of("rmsnorm")(v + rows) if v_norm == "head" else v + rows

    found = f(x, model.position.angles(0, TIME), None, ForwardState(tokens))
    expected = written_out.attention(f, x, heads=HEADS, v=values)
    same_grads(found, expected, learned_by(f))
    assert lookahead(model, 11) == 0


def test_learned_shares_of_own_and_first_values_are_the_papers():
    """ResFormer, arXiv:2410.17897: V_n = lambda1 V_n + lambda2 V_1, in all blocks but the first."""
    own, first = (f"{{learn: scalar, init: {share}}}" for share in (0.25, 0.75))
    words = {"architecture__value_scale": own, "architecture__value_residual": first}
    begins = build_model(config_of(**words), vocab_size=11).blocks[1].attention.f.values
    assert (begins.own.gain.item(), begins.first.gain.item()) == (0.25, 0.75)
    model, norm = model_of(**words, v_norm="head"), norm_of("rmsnorm")
    assert not [*model.blocks[0].attention.f.values.parameters()]
    tokens = torch.randint(11, (2, TIME))
    x, firsts = model.embedding(tokens), []

    def values(v, mix):
        firsts.append(v)
        own_and_first = (mix.own.gain, mix.first.gain) if len(firsts) > 1 else (1, 0)
        return norm(own_and_first[0] * v + own_and_first[1] * firsts[0])

    for block in model.blocks:
        f = block.attention.f
        own = partial(values, mix=f.values)
        x = x + written_out.attention(f, norm(x), heads=HEADS, v=own)
        x = x + written_out.mlp(block.mlp.f, norm(x))
    expected = norm(x) @ model.embedding.weight.T
    same_grads(model(tokens), expected, learned_by(model))
    assert lookahead(model, 11) == 0


def test_rows_of_a_table_of_values_keep_their_length_where_the_streams_vectors_have_length_one():
    model = model_of(placement="ngpt", architecture__value_embedding=3, architecture__value_gate=4)
    mix = model.blocks[1].attention.f.values
    for weight in (mix.value_embedding.weight, mix.value_gate.weight):
        assert (weight.norm(dim=1) - 1).abs().min() > 1e-3


def learned_by(module):
    """The norms of what is expected have gains of their own."""
    named = module.named_parameters()
    return [p for name, p in named if "values" in name or not name.endswith("gain")]


def test_queries_and_keys_of_length_one_meet_henrys_learned_scale():
    """Henry et al. 2020: g = log2(L^2 - L), learned, one for each attention, and no 1/sqrt(dh)."""
    model = build_model(config_of(qk_norm="l2"), vocab_size=11)
    scales = [block.attention.f.scale.gain for block in model.blocks]
    assert all(scale.item() == pytest.approx(math.log2(TIME**2 - TIME)) for scale in scales)
    assert len({id(scale) for scale in scales}) == DEPTH


@every_placement
def test_an_empty_site_is_absent_from_the_module_tree(placement):
    plans = read_placement(config_of(placement=placement).placement).plans
    sites = {*"pre out post head_scale up_norm".split(), *INSIDE["attention"], *INSIDE["mlp"]}
    for i, block in enumerate(model_of(placement=placement).blocks):
        for name, plan in plans(i, DEPTH).items():
            layer = getattr(block, name)
            there = {part for module in (layer, layer.f) for part, _ in module.named_children()}
            scales = {"head_scale"} if plan.scale("head_scale") != 1 else set()
            named = {"up_norm" if site == "hidden" else site for site in plan.sites}
            assert there & sites == named | scales


@pytest.mark.goal("A1")
@some_norms
@every_placement
def test_later_tokens_move_earlier_logits_by_exactly_nothing(placement, norms):
    """init=gpt2, so that attention takes part. The probe changes every token and all after it, and
    is itself tested below: in float64 a causal model moves by exactly 0."""
    for norm in norms(placement, 1):
        model = model_of(placement=placement, norm=norm, init="gpt2").train()
        kinds = {type(module).__name__ for module in model.modules()}
        looks_ahead = norm == "batchnorm" and "BatchNorm" in kinds
        assert (lookahead(model, 11) == 0) != looks_ahead


LEAKS = {
    "a norm over time": lambda x: x / (x.square().mean((1, 2), keepdim=True) + 1e-6).sqrt(),
    "the mean over time": lambda x: x - x.mean(1, keepdim=True),
    "the mean of a chunk": lambda x: x - x.unflatten(1, (2, -1)).mean(2).repeat_interleave(3, 1),
    "the mean of the batch": lambda x: x - x.mean(0, keepdim=True),
    "the next token": lambda x: x.roll(-1, 1),
}


@pytest.mark.goal("A1")
@pytest.mark.parametrize("begun", [{}, {"init": "zero_out"}, {"placement": "rezero"}])
@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_caught(name, begun):
    """Also inside a block that begins as nothing."""
    model = model_of(**begun)
    assert lookahead(model, 11) == 0
    model.blocks[0].mlp.f.mid = Instead(LEAKS[name])
    assert lookahead(model, 11) > 1e-3


class Bearing(torch.nn.Module):
    """Gives what is not a number where the first vector of `model` has noise."""

    def __init__(self, vector):
        super().__init__()
        self.kept = vector.detach().clone(), vector

    def forward(self, x):
        return x if torch.equal(*self.kept) else x * torch.nan


def test_noise_that_a_model_does_not_bear_is_taken_back_and_the_model_asked_as_it_is():
    model = model_of(placement="rezero")
    before = [p.detach().clone() for p in model.parameters()]
    model.blocks[0].mlp.f.mid = Bearing(next(p for p in model.parameters() if p.dim() < 2))
    assert lookahead(model, 11) == 0
    with noise_in(model):
        assert not all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("every", [len(options("position")), pytest.param(1, **NIGHTLY)])
@every_placement
def test_generating_from_a_cache_gives_the_logits_of_the_full_forward(placement, every):
    """With one kind of positions, each time another; with every kind, nightly."""
    first = options("placement").index(placement) % every
    for position in options("position")[first::every]:
        model = model_of(placement=placement, position=position, model__kv_heads=1)
        tokens = torch.randint(11, (2, TIME))
        found, _ = from_a_cache(model, tokens, [3, 1, 2])
        torch.testing.assert_close(found, model(tokens), rtol=0, atol=1e-12)


def test_dropout_is_for_training_alone_and_for_every_branch():
    tokens = torch.randint(11, (2, TIME))
    dropping, plain = model_of(model__dropout=0.5), model_of()
    assert torch.equal(dropping.eval()(tokens), plain(tokens))
    x, angles = torch.randn(2, TIME, WIDTH).double(), plain.position.angles(0, TIME)
    block = dropping.train().blocks[0]
    for drops in (block.attention.f, lambda *of: block.mlp.dropout(block.mlp.f(*of))):
        assert not torch.equal(drops(x, angles, None), drops(x, angles, None))


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(ValueError, match=f"{TIME + 1} tokens are more than the context of {TIME}"):
        model_of()(torch.zeros(1, TIME + 1, dtype=torch.long))


def test_logits_are_scaled_and_then_capped():
    both = model_of(architecture__logit_scale="'0.75*sqrt(d)'", architecture__logit_cap=0.7)
    tokens = torch.randint(11, (2, TIME))
    expected = 0.7 * torch.tanh(3 * model_of()(tokens) / 0.7)
    torch.testing.assert_close(both(tokens), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_fixnorm_reads_every_row_of_embedding_and_head_at_length_one(tied):
    """Nguyen & Chiang 2018; Nguyen & Salazar 2019: input sqrt(d) e/|e|, logits h . e/|e|."""
    model = model_of(embed="fixnorm", architecture__tied=str(tied).lower())
    tokens = torch.randint(11, (2, TIME))
    assert torch.allclose(
        model.scale(model.rows(model.embedding(tokens))), 4 * l2norm(model.embedding.weight)[tokens]
    )
    model.final = Instead(torch.ones_like)
    head = model.embedding if tied else model.head
    expected = l2norm(head.weight).sum(1).expand(2, TIME, 11)
    assert torch.allclose(model(tokens), expected)
