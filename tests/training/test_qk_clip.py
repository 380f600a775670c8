"""QK-Clip: heads whose largest logit was above a threshold shrink after the step, and no others."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import trainers
from new_process import run_python
from refusing import refused
from trainers import losses

from transformer_norms import compose
from transformer_norms.config.saved import to_yaml

CONTEXT, THRESHOLD = 16, 1.15
CLIP = f"trainer.qk_clip={THRESHOLD}"
trainer_of = partial(trainers.trainer_of, "trainer.precision=fp64")


def largest_logits(model, batch, window=CONTEXT):
    """S of each block and head."""
    found = []

    def read(attend, given):
        q, k, *_ = given
        distance = torch.arange(CONTEXT)[:, None] - torch.arange(CONTEXT)
        seen = (distance >= 0) & (distance < window)
        logits = torch.where(seen, q @ k.mT * attend.scale, -math.inf)
        found.append(logits.amax((0, 2, 3)))

    for block in model.blocks:
        block.attention.f.attend.register_forward_pre_hook(read)
    with torch.no_grad():
        model.eval()(batch[:, :-1])
    return found


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
    "compiled": ["trainer.compile=block"],
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [*[*CASES][:-1], pytest.param("compiled", marks=pytest.mark.nightly)]
)
def test_a_head_above_the_threshold_is_scaled_by_the_papers_factor_and_no_other(case):
    """Compiled in a separate process: what checks shapes here is not compiled."""
    if case == "compiled":
        run_python("import test_qk_clip as t; t.assert_scaled('compiled')")
    else:
        assert_scaled(case)


def assert_scaled(case):
    replicas = 1 + (case == "replicas")
    clipped, plain = (trainer_of(*CASES[case], *more, replicas=replicas) for more in ([CLIP], []))
    window = 5 if "windows" in case else CONTEXT
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
    losses(low, 1)
    # The second step reads the logits of the weights that the first one left.
    first, left = list(low.clips), copy.deepcopy(low.model)
    largest = torch.stack(largest_logits(left, low.batches(0)))
    for trainer, steps in ((high, 2), (plain, 2), (low, 1)):
        losses(trainer, steps)
    second = THRESHOLD / largest[largest > THRESHOLD]
    assert low.clips[: len(first)] == first
    assert low.clips[len(first) :] == pytest.approx(second.tolist(), rel=1e-12)
    torch.testing.assert_close(high.parameters, plain.parameters, rtol=0, atol=0)
    assert low.state()["clips"] == low.clips != []
    for trainer, heads, factor in ((high, 0, 1.0), (low, len(low.clips), min(low.clips))):
        record = Record()
        trainer.settings = replace(trainer.settings, log_every=1, eval_every=0)
        trainer.measure(record)
        assert (record[0]["qk_clip/heads"], record[0]["qk_clip/factor"]) == (heads, factor)
        assert trainer.clips == []
    assert "qk_clip" not in str(plain.state().keys())


def test_a_wrong_threshold_is_refused_and_the_default_is_none():
    for typed, said in (("trainer.qk_clip=0", "trainer.qk_clip"), ("trainer.qk_clp=1", "qk_clip'")):
        assert said in refused(compose, [typed])
    assert "qk_clip: none" in to_yaml(compose([]))
