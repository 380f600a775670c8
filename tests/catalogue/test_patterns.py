"""Sliding windows, chunks, temperatures and ALiBi: which keys a query sees in which block, how its
position scales it, and what distances add to its logits, each against loops over single queries."""

import math

import pytest
import torch
from generating import from_a_cache
from new_process import run_python
from tiny_models import drawn, same_grads, some_tokens
from torch.nn.attention.flex_attention import flex_attention
from written_out import by_hand

from transformer_norms import build_model, compose
from transformer_norms.config.building import build_trainer
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.attentions import flex, kernels
from transformer_norms.model.attentions.heads import Temperature
from transformer_norms.model.attentions.kernels import Pattern, pattern_attention
from transformer_norms.model.position import LinearBias, alibi_slopes
from transformer_norms.training.flops import training_flops
from transformer_norms.training.graphs.recomputation import recompute

TIME, VOCABULARY, HEADS = 13, 31, 3
SMALL = ["model=nano", "model.depth=3", f"model.context={TIME}", "trainer.precision=fp64"]
SMALL += ["trainer.device=cpu", "trainer.threads=1", "trainer.batch_size=2", "init=megatron"]
WINDOW, CHUNK = "architecture.sliding_window", "architecture.attention_chunk"
FLOOR, SHARED = "architecture.temperature_floor", "architecture.kv_from_block=[0,1,0]"


def tokens(time=TIME, seed=0):
    return some_tokens(2, time, vocabulary=VOCABULARY, seed=seed)


def queries_keys_values(time, known):
    """Values have another width."""
    sizes = ((time, 16), (known, 16), (known, 20))
    return [drawn(2, HEADS, *size, seed=n).requires_grad_() for n, size in enumerate(sizes)]


# queries, keys: training, a piece of a text, one token
LENGTHS = [(13, 13), (4, 13), (1, 13)]
# Windows below half the tokens are computed in chunks, others under a mask.
SEEN = [(window, None) for window in (None, 1, 3, 5, 6, 12, 13)]
SEEN += [(None, 1), (None, 5), (None, 12), (None, 13), (2, 5), (4, 6)]


under_caps = pytest.mark.parametrize("cap", [None, 0.8])
with_slopes = pytest.mark.parametrize("slopes", [None, alibi_slopes(HEADS)])


def check_pattern(lengths, window, chunk, slopes, cap, near):
    inputs, how = queries_keys_values(*lengths), {"cap": cap, "scale": 0.7}
    pattern = Pattern(window, LinearBias(slopes) if slopes else None, chunk)
    found = pattern_attention(*inputs, pattern, dropout=0.0, **how)
    expected, *_ = by_hand(*inputs, window=window, slopes=slopes, chunk=chunk, **how)
    same_grads(found, expected, inputs, rtol=0, atol=near)


@under_caps
@with_slopes
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_pattern_and_its_gradients_are_the_formula(lengths, slopes, cap):
    for window, chunk in SEEN:
        check_pattern(lengths, window, chunk, slopes, cap, 1e-13)


@under_caps
@with_slopes
@pytest.mark.parametrize(("window", "chunk"), [(None, None), (4, 6)])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_one_kernel_of_a_gpu_computes_the_same(window, chunk, slopes, cap, monkeypatch):
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *of: None)
    monkeypatch.setattr(kernels, "has_one_kernel", lambda q, v: True)
    near = 1e-6 if slopes else 1e-13  # its bias is in float32
    check_pattern((TIME, TIME), window, chunk, slopes, cap, near)


CAP = "architecture.attention_cap"
MODELS = {
    "window": ([f"{WINDOW}=4*(i != 1)"], [4, 0, 4]),
    "windows": ([f"{WINDOW}=[5,9,0]", "model.kv_heads=2", f"{CAP}=0.4"], [5, 9, 0]),
    "chunks": ([f"{CHUNK}=[5,0,4]", f"{WINDOW}=[0,0,3]", f"{FLOOR}=[0,3,0]"], [0, 0, 3]),
    "alibi": (["position=alibi", "model.heads=8", "qk_norm=head"], [0, 0, 0]),
    "latents": (
        [f"{WINDOW}=[5,9,0]", "architecture.q_rank=14", "architecture.kv_rank=10",
         "architecture.rope_dim=4", "architecture.value_dim=20", f"{CAP}=0.4"], [5, 9, 0],
    ),
    "both": (["position=alibi", f"{WINDOW}='L - 10'", f"{CAP}=0.3"], [3, 3, 3]),
    "12 heads": (["position=alibi", "model.width=48", "model.heads=12", "qk_norm=l2"], [0, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_a_model_computes_them_in_training_in_probes_and_from_a_cache(case):
    typed, windows = MODELS[case]
    config = compose([*SMALL, "trainer.probe_every=1", *typed])
    batch = torch.cat((tokens(), tokens(1)), 1)
    trainer = build_trainer(config, build_model(config, VOCABULARY), lambda step: batch, lambda: ())
    met = [[] for _ in windows]
    for block, into in zip(trainer.model.blocks, met, strict=True):
        block.attention.f.attend.register_forward_hook(
            lambda attend, given, context, into=into: into.append((*given[:3], context))
        )
    assert trainer.train_step() is None
    alibi, cap = config.position.type == "alibi", config.architecture.attention_cap
    attend = trainer.model.blocks[0].attention.f.attend
    how = {"cap": None if cap == "none" else cap, "scale": attend.scale}
    how["slopes"] = alibi_slopes(config.model.heads) if alibi else None
    chunks = [5, 0, 4] if case == "chunks" else [0, 0, 0]
    for i, ((*qkv, context), *_) in enumerate(met):  # the probe's pass came first
        seen = {"window": windows[i] or None, "chunk": chunks[i]}
        wanted, entropy, largest = by_hand(*qkv, **seen, **how)
        torch.testing.assert_close(context, wanted, rtol=1e-10, atol=1e-12)
        assert trainer.probed[f"probe/attention_entropy/{i}"] == pytest.approx(entropy, rel=1e-4)
        assert trainer.probed[f"probe/attention_logit/{i}"] == pytest.approx(largest, rel=1e-4)
    model = trainer.model.eval()
    with torch.no_grad():
        whole, (found, _) = model(tokens()), from_a_cache(model, tokens(), [5, 1, 4, 1, 2])
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-11)
        # A token after a query changes nothing, nor does one that no window reaches.
        later, first = tokens(), tokens()
        for changed, at in ((later, 8), (first, 0)):
            changed[:, at] = (changed[:, at] + 1) % VOCABULARY
        assert torch.equal(model(later)[:, :8], whole[:, :8])
        if all(windows):
            reach = 1 + sum(window - 1 for window in windows)
            assert (model(first) - whole)[:, reach:].abs().max() < 1e-12


@pytest.mark.parametrize("lengths", LENGTHS)
@with_slopes
def test_sinks_stand_beside_the_keys_of_a_window(slopes, lengths):
    bias = LinearBias(slopes) if slopes else None
    for window, chunk in ((None, None), (4, None), (4, 5)):
        seen = {"sliding_window": window, "attention_chunk": chunk, "position_bias": bias}
        attend = ATTENTIONS["sinks"](heads=HEADS, scale=0.7, cap=None, dropout=0.0, **seen).double()
        attend.sinks.data = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
        inputs = queries_keys_values(*lengths)
        found = attend(*inputs, inputs[0].transpose(1, 2).flatten(2))
        how = {"window": window, "slopes": slopes, "sinks": attend.sinks, "chunk": chunk}
        expected, *_ = by_hand(*inputs, scale=0.7, **how)
        same_grads(found, expected, (*inputs, attend.sinks), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("typed", "windows"),
    [
        ("none", [0, 0]),
        ("0", [0, 0]),
        ("8*(i%2==0)", [8, 0, 8]),
        ("L/4*(l%4!=0)", [4, 4, 4, 0]),
        ("[3,2*l]", [3, 4]),
        ("16", [0, 0]),
        ("4096", [0, 0]),
    ],
)
def test_windows_are_numbers_formulas_or_lists_and_a_long_one_is_none(typed, windows):
    sizes = ["model=nano", f"model.depth={len(windows)}", "model.context=16"]
    blocks = compose([*sizes, f"{WINDOW}={typed}"]).blocks
    assert [own.sliding_window for own in blocks] == windows


def test_the_slopes_are_those_of_bloom_and_of_the_papers_code():
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    for heads in range(1, 41):
        theirs = modeling.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs, rtol=1e-5, atol=0)
    assert alibi_slopes(8) == tuple(2.0**-h for h in range(1, 9))
    assert alibi_slopes(3) == (2**-4, 2**-8, 2**-2)


@pytest.mark.parametrize("typed", [[], [f"{CAP}=5"]])
@pytest.mark.parametrize("window", [3, 5, 11])
def test_under_a_window_a_query_counts_as_many_keys(window, typed):
    """Whatever a kernel computes beside them: 3 and 5 are cut into chunks, 11 is not."""
    whole, *some = (
        training_flops(build_model(compose([*SMALL, *typed, *more]), VOCABULARY), tokens()[:1])
        for more in ([], [f"{WINDOW}={window}"], [f"{CHUNK}={window}"])
    )
    fewer = 3 * 3 * 2 * 2 * TIME * (TIME - window) * 64  # passes, blocks, products, FLOPs
    assert some == [whole - fewer] * 2


def test_steps_and_blocks_share_one_mask():
    kernels._kept_mask.cache_clear()
    model = build_model(compose([*SMALL, f"{WINDOW}=8", "position=alibi"]), VOCABULARY)
    for _ in range(3):
        model(tokens())
    assert kernels._kept_mask.cache_info().misses == 1
    assert kernels._kept_mask.cache_info().hits == 3 * 3 - 1
    with torch.inference_mode():
        model(tokens(12))
    model(tokens(12)).sum().backward()  # nothing that inference made is left


def test_a_query_is_scaled_by_its_position_in_training_and_from_a_cache():
    temperature = Temperature(4, 0.3)
    q = torch.randn(2, TIME, HEADS, 8, dtype=torch.float64)
    factors = [1 + 0.3 * math.log(1 + (t + 1) // 4) for t in range(TIME)]
    expected = q * torch.tensor(factors, dtype=q.dtype)[:, None, None]
    torch.testing.assert_close(temperature(q, TIME), expected, rtol=1e-14, atol=0)
    last = temperature(q[:, -3:], TIME)
    torch.testing.assert_close(last, expected[:, -3:], rtol=1e-14, atol=0)
    half = temperature(q.bfloat16(), TIME)  # its numbers are not rounded before the product
    wanted = q.bfloat16().float() * (expected / q).float()
    assert torch.equal(half, wanted.bfloat16())


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["windows", "chunks", "both", "latents", SHARED])
def test_compiled_they_compute_the_same(case):
    run_python(f"import test_patterns; test_patterns.compare_compiled('{case}')")


def compare_compiled(case):
    """Blocks that use the keys of another run again as well."""
    typed = [SHARED] if case == SHARED else MODELS[case][0]
    model = build_model(compose([*SMALL, *typed]), VOCABULARY)
    pull = torch.randn(2, TIME, VOCABULARY, dtype=torch.float64)
    results = []
    for compiled in (False, True):
        for block in model.blocks if compiled else ():
            block.compile()
            model.through = recompute if case == SHARED else model.through
        model.zero_grad()
        logits = model(tokens())
        (logits * pull).sum().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)
