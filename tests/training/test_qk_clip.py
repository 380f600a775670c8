"""QK-Clip: heads whose largest logit was above a threshold shrink after the step, and no others."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import trainers
from new_process import run_python

from transformer_norms import ConfigError, compose
from transformer_norms.config.saved import to_yaml

CONTEXT, THRESHOLD = 16, 1.15
CLIP = f"trainer.qk_clip={THRESHOLD}"
trainer_of = partial(trainers.trainer_of, "trainer.precision=fp64")


def largest_logits(model, batch, window=None):
    """S of each block and head, pair by pair."""
    met = []
    hooks = [
        block.attention.f.attend.register_forward_pre_hook(lambda attend, given: met.append(given))
        for block in model.blocks
    ]
    with torch.no_grad():
        model.eval()(batch[:, :-1])
    for hook in hooks:
        hook.remove()
    scales = [block.attention.f.attend.scale for block in model.blocks]
    found = []
    for (q, k, *_), scale in zip(met, scales, strict=True):
        seen = torch.full(q.shape[1:2], -math.inf, dtype=q.dtype)
        for i in range(CONTEXT):
            for j in range(0 if window is None else max(0, i + 1 - window), i + 1):
                seen = torch.maximum(seen, (q[:, :, i] * k[:, :, j]).sum(-1).amax(0) * scale)
        found.append(seen)
    return found


COMPILED = "compiled"
CASES = {
    "plain": [],
    "micro-batches": ["trainer.accumulation=4"],
    "replicas": ["trainer.accumulation=2"],
    "biases": ["architecture.bias=true"],
    "shared keys": ["model.kv_heads=2"],
    "another block's keys": ["architecture.kv_from_block=0"],
    "heads of two sizes": ["model.head_dim=16+8*i"],
    "values from keys": ["architecture.values_from_keys=1"],
    "recomputed": ["trainer.activation_checkpointing=true"],
    "windows, cap, ALiBi": ["architecture.sliding_window=5", "position=alibi",
                            "architecture.attention_cap=0.01"],
    COMPILED: ["trainer.compile=block"],
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case != COMPILED])
def test_a_head_above_the_threshold_is_scaled_by_the_papers_factor_and_no_other(case):
    assert_scaled(case)


@pytest.mark.nightly
def test_a_head_of_a_compiled_model_is_scaled_too():
    """In a separate process: what checks shapes here is not compiled."""
    run_python("import test_qk_clip as t; t.assert_scaled(t.COMPILED)")


def assert_scaled(case):
    replicas = 1 + (case == "replicas")
    clipped, plain = (trainer_of(*CASES[case], *more, replicas=replicas) for more in ([CLIP], []))
    window = 5 if "windows" in case else None
    largest = largest_logits(trainer_of(*CASES[case]).model, plain.batches(0), window)
    assert clipped.train_step() is None is plain.train_step()
    wanted, near = [], {"rtol": 1e-12, "atol": 1e-15}
    for one, other, seen in zip(clipped.model.blocks, plain.model.blocks, largest, strict=True):
        for h, largest_here in enumerate(seen.tolist()):
            g = THRESHOLD / largest_here if largest_here > THRESHOLD else 1.0
            wanted += [g] * (g < 1)
            shared = case in ("shared keys", "values from keys", "another block's keys")
            dim = one.attention.f.output.in_features // 4
            rows = slice(dim * h, dim * h + dim)
            for name, factor in (("query", g if shared else math.sqrt(g)), ("key", math.sqrt(g))):
                if name == "key" and shared:
                    continue
                a, b = (getattr(block.attention.f, name) for block in (one, other))
                for x, y in zip(a.parameters(), b.parameters(), strict=True):
                    torch.testing.assert_close(x[rows], factor * y[rows], **near)
                    assert g < 1 or torch.equal(x[rows], y[rows])
        for name in ("key", "value") if shared else ("value",):
            a, b = (getattr(block.attention.f, name) for block in (one, other))
            assert a is b is None or torch.equal(a.weight, b.weight)
    assert 0 < len(wanted) < 8  # heads of both kinds
    assert sorted(clipped.clips) == pytest.approx(sorted(wanted), rel=1e-12)


def test_below_the_threshold_no_digit_changes_and_a_row_tells_what_was_clipped():
    class Record(list):
        written = 0
        row = list.append

    high, plain, low = (trainer_of(*typed) for typed in (["trainer.qk_clip=100"], [], [CLIP]))
    for trainer in (high, plain, low):
        assert trainer.train_step() is None
    # The second step reads the logits of the weights that the first one left.
    first, largest = list(low.clips), torch.stack(largest_logits(low.model, low.batches(0)))
    low.model.train()
    for trainer in (high, plain, low):
        assert trainer.train_step() is None
    second = THRESHOLD / largest[largest > THRESHOLD]
    assert low.clips[: len(first)] == first
    assert low.clips[len(first) :] == pytest.approx(second.tolist(), rel=1e-12)
    for one, other in zip(high.parameters, plain.parameters, strict=True):
        assert torch.equal(one, other)
    assert low.state()["clips"] == low.clips != []
    for trainer, heads, factor in ((high, 0, 1.0), (low, len(low.clips), min(low.clips))):
        record = Record()
        trainer.settings = replace(trainer.settings, log_every=1, eval_every=0)
        trainer.measure(record)
        assert (record[0]["qk_clip/heads"], record[0]["qk_clip/factor"]) == (heads, factor)
        assert trainer.clips == []
    assert "qk_clip" not in str(plain.state().keys())


def test_the_largest_logit_of_a_head_is_that_of_the_keys_that_its_queries_see():
    attend = trainer_of().model.blocks[0].attention.f.attend
    q, k = torch.randn(2, 2, 4, CONTEXT, 16, dtype=torch.float64)
    seen = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * attend.scale
    expected = torch.where(seen, logits, -math.inf).amax((0, 2, 3))
    torch.testing.assert_close(attend.largest(q, k), expected)


def test_a_wrong_threshold_is_refused_and_the_default_is_none():
    for typed, said in (("trainer.qk_clip=0", "trainer.qk_clip"), ("trainer.qk_clp=1", "qk_clip'")):
        with pytest.raises(ConfigError, match=said) as error:
            compose([typed])
        assert "\n" not in str(error.value)
    assert "qk_clip: none" in to_yaml(compose([]))
