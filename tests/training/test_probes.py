"""Each measure equals its formula. Measuring changes no bit of the training and leaves no hook."""

import copy
import math
from functools import partial

import pytest
import scipy.stats
import torch
from combinations import combined
from new_process import run_python
from small_studies import lively
from tiny_models import Instead, drawn, some_tokens
from written_out import by_hand, linear_of, rotated, same

from transformer_norms.config.building import build_trainer
from transformer_norms.model.attention import Softmax
from transformer_norms.names import distinct_norms, options
from transformer_norms.training import probes
from transformer_norms.training.measures import MEASURES, key_of, place_of
from transformer_norms.training.probes import SEQUENCES

WIDTH, HEADS, DEPTH, TIME, VOCAB = 12, 2, 2, 6, 17
SIZES = [f"model.width={WIDTH}", f"model.heads={HEADS}", f"model.depth={DEPTH}"]
SIZES += [f"model.context={TIME}", "trainer.batch_size=4", "trainer.clip=0.01"]
SIZES += ["schedule.warmup=3", "trainer.steps=30", "model=nano", "trainer.device=cpu"]


def trainer_of(*typed, every=1, precision="fp64", **words):
    own = [f"trainer.probe_every={every}", f"trainer.precision={precision}"]
    config = combined(*SIZES, *own, *typed, **words)
    model = lively(config, VOCAB, 0.2)  # no gain 1, no bias 0: else a wrong formula could be unseen
    size = {"vocabulary": VOCAB}
    batches = lambda step: some_tokens(4, TIME + 1, seed=step, **size)  # noqa: E731
    return build_trainer(config, model, batches, lambda: ())


def stepped(*typed, **words):
    """After one step, which nothing stopped."""
    trainer = trainer_of(*typed, **words)
    assert trainer.train_step() is None
    return trainer


def of_stream(x, end):
    tokens = x.detach().double().flatten(0, 1).numpy()
    cosines = [token.sum() / (token @ token * len(token)) ** 0.5 for token in tokens]
    x = tokens.flatten()
    rms, central = (x**2).mean() ** 0.5, x - x.mean()
    measures = {
        "rms": rms,
        "mean": x.mean(),
        "drift": (sum(c**2 for c in cosines) / len(cosines)) ** 0.5,
        "largest": abs(x).max() / rms,
        "kurtosis": (central**4).mean() / (central**2).mean() ** 2,
    }
    return {f"probe/stream_{name}/{end}": value for name, value in measures.items()}


def rms(x):
    return x.square().mean().sqrt().item()


# What a sub-layer s adds to what: of its function f, of what it is given, and the block's input.
SUMMANDS = {
    "pre": lambda s, f, x, start: (x, f(s.pre(x))),
    "post": lambda s, f, x, start: (x, f(x)),
    "sandwich": lambda s, f, x, start: (x, s.out(f(s.pre(x)))),
    "deepnorm": lambda s, f, x, start: ((2 * DEPTH) ** 0.25 * x, f(x)),
    "admin": lambda s, f, x, start: (s.skip.gain * x, f(x)),
    "layerscale": lambda s, f, x, start: (x, s.branch.gain * f(s.pre(x))),
    "b2t": lambda s, f, x, start: (x + start if hasattr(s.f, "up") else x, f(x)),
    "ngpt": lambda s, f, x, start: (x - step_of(s) * x, step_of(s) * s.out(f(x))),
}
# nGPT's, from 0.05 on, is kept as 1/sqrt(width).
step_of = lambda s: (s.branch.gain * 0.05 * WIDTH**0.5).abs()  # noqa: E731


def serial(block, x, f, placement, found):
    start = x
    for name in ("attention", "mlp"):
        s = getattr(block, name)
        skip, branch = SUMMANDS[placement](s, f[name], x, start)
        found[name] = rms(branch) / rms(skip)
        x = s.post(skip + branch)
    return x


def parallel(block, x, f, placement, found):
    h = block.pre(x)
    found |= {name: rms(f[name](h)) / rms(x) for name in f}
    return x + f["attention"](h) + f["mlp"](h)


def dual(block, streams, f, placement, found):
    x, r = streams
    for name in ("attention", "mlp"):
        branch = f[name](x)
        found[name] = rms(branch) / rms(x)
        x, r = getattr(block, name).post(x + branch), r + branch
    return x, r


BLOCKS = {"parallel": parallel, "residual_dual": dual}


def of_attention(f, x, how):
    order, scale, cap = how.get("order", "before"), how.get("scale", 6**-0.5), how.get("cap")
    turn = rotated if how.get("rope", True) else same
    q, k = (linear_of(linear, x).unflatten(-1, (-1, 6)) for linear in (f.query, f.key))
    q, k = (f.q(turn(q)), f.k(turn(k))) if order == "after" else (turn(f.q(q)), turn(f.k(k)))
    q, k = q.transpose(1, 2), k.transpose(1, 2).expand(-1, HEADS, -1, -1)
    return by_hand(q, k, k, scale=scale, cap=cap)[1:]


@torch.no_grad()
def of_forward(model, tokens, placement, how):
    """The numbers at each place of the model, whose pieces are put together here."""
    x = model.scale(model.embedding.weight[tokens])
    if hasattr(model.position, "position"):
        x = x + model.position.position.weight[:TIME]
    x = model.embed(x)
    found = of_stream(x, "embedding")
    angles = model.position.angles(0, TIME)
    for i, block in enumerate(model.blocks):
        branches, attention = {}, Instead(partial(block.attention.f, angles=angles))
        x = (x, x) if placement == "residual_dual" and i == 0 else x
        f = {"attention": attention, "mlp": block.mlp.f}
        x = BLOCKS.get(placement, serial)(block, x, f, placement, branches)
        streams = {"x/": x[0], "r/": x[1]} if isinstance(x, tuple) else {"": x}
        for part, stream in streams.items():
            found |= of_stream(stream, f"{part}{i}")
        found |= {f"probe/branch_over_stream/{name}/{i}": share for name, share in branches.items()}
        entropy, largest = of_attention(block.attention.f, attention.given, how)
        found |= {f"probe/attention_entropy/{i}": entropy, f"probe/attention_logit/{i}": largest}
    return found


def of_matrices(before, after, batch):
    """Norms of the gradient, and of the change over the weight's, by each matrix's name."""
    logits = before(batch[:, :-1]).log_softmax(-1)
    (-logits.gather(-1, batch[:, 1:, None]).mean()).backward()
    changed, found = dict(after.named_parameters()), {}
    for name, weight in before.named_parameters():
        if weight.ndim == 2 and name.endswith("weight"):
            block, _, inside = name.removeprefix("blocks.").removesuffix(".weight").partition(".")
            end = f"{inside.replace('.f.', '.')}/{block}" if block.isdigit() else block
            change = (changed[name] - weight).square().sum().sqrt() / weight.square().sum().sqrt()
            found[f"probe/gradient_norm/{end}"] = weight.grad.square().sum().sqrt().item()
            found[f"probe/update_over_weight/{end}"] = change.item()
    return found


SCALED, GEMMA2 = {"cap": 0.5, "scale": 3.0}, "architecture.attention_cap=0.5 trainer.accumulation=2"
GEMMA2 += (
    " architecture.attention_scale=3 architecture.embed_scale='sqrt(d)' architecture.tied=false"
)
CASES = {name: (name, {}, {}) for name in ("pre", "admin", "layerscale", *BLOCKS)} | {
    "post": ("post", {"norm": "layernorm"}, {}),
    "deepnorm": ("deepnorm", {"mlp": "swiglu"}, {}),
    "b2t": ("b2t", {"optimizer": "muon"}, {}),
    "ngpt": ("ngpt", {}, {"order": "after", "scale": 6**0.5}),
    "learned positions": ("pre", {"position": "learned"}, {"rope": False}),
    "qk_norm": ("pre", {"qk_norm": "head"}, {}),
    "batchnorm": ("pre", {"norm": "batchnorm"}, {}),
    "gemma2": ("sandwich", {"norm": "rmsnorm_1p", "mlp": "geglu_tanh"}, SCALED, *GEMMA2.split()),
    "shared keys": ("pre", {}, {}, "model.kv_heads=1"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_its_formula_written_out(case):
    """Of the second step, for which the optimizer has moments."""
    placement, words, how, *typed = CASES[case]
    trainer = stepped(*typed, placement=placement, **words)
    before = copy.deepcopy(trainer.model)
    trainer.train_step()
    batch = trainer.batches(1)
    expected = of_forward(before.eval(), batch[:SEQUENCES, :-1], placement, how)
    expected |= of_matrices(before.train(), trainer.model, batch)
    found = {key: value for key, value in trainer.probed.items() if "gain_spread" not in key}
    assert found == pytest.approx(expected, rel=5.1e-5, abs=1e-12)
    outside = {key.rpartition("/")[2] for key in trainer.probed} - {"0", "1", "final"}
    tables = {"learned positions": {"position"}, "gemma2": {"head"}, "ngpt": {"head"}}
    assert outside == {"embedding"} | tables.get(case, set())


K = "attention.f.k"
GAINS = [
    ({}, "attention.pre.gain", "attention.pre"),
    ({}, "mlp.pre.gain", "mlp.pre"),
    ({"placement": "sandwich"}, "mlp.out.gain", "mlp.out"),
    ({"norm": "rmsnorm_1p"}, "mlp.pre.offset", "mlp.pre"),
    ({"placement": "lns"}, "attention.pre.norm.gain", "attention.pre"),
    ({"placement": "parallel"}, "pre.gain", "pre"),
    ({"placement": "subln"}, "attention.f.ctx.gain", "attention.ctx"),
    ({"placement": "subln"}, "mlp.f.mid.gain", "mlp.mid"),
    ({"qk_norm": "head"}, "attention.f.q.gain", "attention.q"),
    ({"qk_norm": "full"}, f"{K}.norm.gain", "attention.k"),
    ({"qk_norm": "per_head"}, f"{K}.heads.0.gain {K}.heads.1.gain", "attention.k"),
    ({"norm": "seednorm"}, "attention.pre.gain", "attention.pre"),
]
SPREADS = [  # the parts that have a spread
    ({"norm": "scalenorm"}, ""),
    ({"norm": "rmsnorm_np"}, ""),
    ({"placement": "layerscale"}, "attention.pre mlp.pre final"),  # and no coefficient
    ({"placement": "residual_dual"}, "attention.post mlp.post final"),
    ({"placement": "none", "embed": "norm"}, "embed"),
]


@pytest.mark.parametrize(("words", "paths", "part"), GAINS, ids=str)
def test_the_spread_of_gains_is_their_standard_deviation_in_any_wrapping(words, paths, part):
    trainer = trainer_of(**words)
    block = trainer.model.blocks[1]
    gains = torch.cat([block.get_parameter(path).detach() for path in paths.split()])
    expected = gains.numpy().std()
    trainer.train_step()
    assert trainer.probed[f"probe/gain_spread/{part}/1"] == pytest.approx(expected, rel=5.1e-5)


@pytest.mark.parametrize(("words", "there"), SPREADS, ids=str)
def test_only_a_norm_with_a_gain_for_each_feature_has_a_spread(words, there):
    places = [place_of(key) for key in stepped(**words).probed if "gain_spread" in key]
    assert {place.part for place in places} == set(there.split())


def test_what_is_no_number_is_null():
    """A matrix of zeros has no size that its change could be compared with."""
    trainer = trainer_of("init=zero_out", precision="fp32")
    with torch.no_grad():
        trainer.model.blocks[0].mlp.f.down.weight.zero_()
    trainer.train_step()
    assert trainer.probed["probe/update_over_weight/mlp.down/0"] is None
    assert trainer.probed["probe/branch_over_stream/mlp/0"] == 0


def test_under_autocast_the_numbers_are_near_those_of_float32():
    half, full = (stepped(precision=precision).probed for precision in ("bf16", "fp32"))
    assert half != full
    for key, number in full.items():
        near = 0.1 if "mean" in key or "update" in key else 0.03
        assert half[key] == pytest.approx(number, rel=near, abs=0.01), key


def test_under_autocast_logits_are_those_of_the_rounded_queries_and_not_rounded_again():
    q, k = (drawn(2, HEADS, TIME, 8, seed=seed).bfloat16() for seed in (0, 1))
    with torch.autocast("cpu", torch.bfloat16):
        softmax = Softmax(scale=1 / math.sqrt(8), cap=None, dropout=0.0)
        logits = softmax.logits(q, k, torch.arange(TIME))
    exact = q.double() @ k.double().mT / math.sqrt(8)
    exact += torch.full((TIME, TIME), -math.inf).triu(1)
    torch.testing.assert_close(logits.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("typed", [[], ["architecture.attention_cap=2"]])
def test_of_a_long_context_queries_at_even_distances_are_read_with_all_keys(typed, monkeypatch):
    read, logits_of = {TIME: [], 3: []}, Softmax.logits

    def recorded(*given):
        read[probes.QUERIES].append(logits_of(*given))
        return read[probes.QUERIES][-1]

    monkeypatch.setattr(Softmax, "logits", recorded)
    for queries in (TIME, 3):  # all six, and the first, one in the middle and the last
        monkeypatch.setattr(probes, "QUERIES", queries)
        probed = stepped(*typed).probed
        for block, logits in enumerate(read[queries]):
            entropy = scipy.stats.entropy(logits.softmax(-1).numpy(), axis=-1).mean()
            found = [probed[f"probe/attention_{what}/{block}"] for what in ("entropy", "logit")]
            assert found == pytest.approx([entropy, logits.max().item()], rel=1e-4)
    for every, some in zip(read[TIME], read[3], strict=True):
        assert some.shape == (SEQUENCES, HEADS, 3, TIME)
        torch.testing.assert_close(some, every[:, :, [0, 2, 5]], rtol=1e-12, atol=1e-12)


EVERY = [{"placement": placement} for placement in options("placement")]
EVERY += [{"norm": norm} for norm in distinct_norms()]


@pytest.mark.parametrize("words", EVERY, ids=lambda words: "".join(words.values()))
def test_every_placement_and_every_norm_is_probed_by_the_measures_that_are_explained(words):
    probed = stepped(precision="fp32", **words).probed
    places = [place_of(key) for key in probed]
    assert [key_of(place) for place in places] == list(probed)
    assert {place.measure for place in places} | {"gain_spread"} == MEASURES.keys()
    for measure in MEASURES.keys() - {"gain_spread"}:
        assert {0, 1} <= {place.block for place in places if place.measure == measure}


QUIET = {
    "dropout": (["model.dropout=0.3"], {}),
    "batchnorm": (["model.dropout=0.1"], {"norm": "batchnorm", "placement": "post"}),
    "muon": (["trainer.accumulation=2"], {"optimizer": "muon"}),
    "ngpt": ([], {"placement": "ngpt"}),
    "two streams": (["trainer.accumulation=4"], {"placement": "residual_dual"}),
}


@pytest.mark.goal("R5")
@pytest.mark.parametrize("case", QUIET)
@pytest.mark.parametrize("every", [1, 3])
def test_weights_moments_and_losses_are_the_same_bits_measured_or_not(case, every):
    typed, words = QUIET[case]
    trainers = [trainer_of(*typed, every=n, precision="fp32", **words) for n in (0, every)]
    probed = []
    for _ in range(7):
        assert [trainer.train_step() for trainer in trainers] == [None, None]
        probed.append(bool(trainers[1].probed))
        assert trainers[0].probed == {}
    assert probed == [step == 1 or step % every == 0 for step in range(1, 8)]
    torch.testing.assert_close(*(trainer.tensors() for trainer in trainers), rtol=0, atol=0)
    states = [trainer.state() | {"probed": None} for trainer in trainers]
    assert states[0] == states[1]


@pytest.mark.parametrize("placement", ["pre", "parallel", "residual_dual"])
@pytest.mark.parametrize("burns", [True, False])
def test_no_hook_is_left_however_a_pass_ends(placement, burns):
    trainer = trainer_of("architecture.attention_cap=5", placement=placement)
    model, final = trainer.model, trainer.model.final
    own = {name: dict(vars(module)) for name, module in model.named_modules()}
    if burns:
        model.final = Instead(lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.train_step()
        model.final = final
    else:
        trainer.train_step()
    assert all(module.training for module in model.modules())
    for name, module in model.named_modules():
        assert vars(module).keys() == own[name].keys()
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_step_that_diverges_has_no_probe():
    trainer = stepped()
    first = trainer.probed
    trainer.model.final.gain.register_hook(lambda grad: grad * float("inf"))
    assert "gradient's norm is" in trainer.train_step()
    assert trainer.probed is first


COMPILED = """
import torch, test_probes as t
from torch._dynamo.utils import counters
for every in (0, 1):
    torch._dynamo.reset(); counters.clear()
    trainer = t.stepped("trainer.compile=block", every=every, precision="fp32")
    for step in range(5):
        assert trainer.train_step() is None
    assert bool(trainer.probed) == every
    print(counters["stats"]["unique_graphs"], *trainer.losses)
"""


@pytest.mark.nightly
def test_compiled_blocks_are_compiled_as_often_and_give_the_same_losses():
    plain, watched = run_python(COMPILED).splitlines()
    assert plain == watched
    assert int(plain.split()[0]) > 0
