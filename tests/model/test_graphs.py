"""A compiled block is one graph, which all blocks of its kind share. A model that is compiled whole
is one graph without a break."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.nn.attention.flex_attention as attention_module
from new_process import run_python
from torch._dynamo.utils import counters

from transformer_norms import build_model, compose
from transformer_norms.model.attentions import flex, kernels
from transformer_norms.model.connections.attention_residuals import AttentionResidual
from transformer_norms.model.constraint import QKClip
from transformer_norms.model.transformer import separate, straight
from transformer_norms.names import distinct_norms, options
from transformer_norms.norms import nothing
from transformer_norms.training.graphs.recomputation import recompute

DEPTH, CONTEXT, VOCABULARY = 4, 16, 31
SMALL = ["model=nano", f"model.depth={DEPTH}", f"model.context={CONTEXT}", "model.width=32"]
SMALL += ["trainer.precision=fp64", "trainer.device=cpu", "trainer.threads=1", "model.heads=2"]
CLIPPED = "trainer.qk_clip=0.1"
# Graphs of four blocks, by reading the placement's file: its equations and numbers of i, l and N.
# The first block of lns divides by one, the one in the middle of backout leaves what is taken away,
# and two streams are read by turns.
ONE = "geonorm siamese nanochat residual_dual hyper_connections_static"
COUNTED = {CLIPPED: 1, **{f"placement={name}": 1 for name in ONE.split()}}
COUNTED |= {f"placement={name}": 2 for name in ("lns", "nanochat_backout", "altup")}
SOME = [f"placement={name}" for name in "geonorm nanochat_backout hyper_connections_static".split()]
SOME.append(CLIPPED)
OPTIONS = (
    "qk_norm=head qk_norm=per_head qk_norm=full qk_norm=l2 v_norm=head embed=rmsnorm embed=fixnorm "
    "architecture.attention_cap=0.5 architecture.logit_cap=30 architecture.sliding_window=5 "
    "architecture.sliding_window=[0,5,0,12] architecture.attention_chunk=5 model.kv_heads=1 "
    "architecture.temperature_floor=4*(i%2) architecture.attention_gate=per_head "
    "architecture.attention_gate=elementwise architecture.value_residual=0.5 architecture.smear=24 "
    "architecture.value_embedding=i%2 architecture.kv_from_block=[0,0,2,2] architecture.q_rank=8 "
    "architecture.kv_rank=8 architecture.values_from_keys=1 architecture.rope_base=[100,100,0,100] "
    "architecture.activation_sparsity=0.5*(i<2) model.dropout=0.1"
).split()
OPTIONS += [CLIPPED, "trainer.activation_checkpointing=true"]
# By its own share prmsnorm reads two coordinates of 32: rounding of 1e-15 then grows to 3e-8.
SETTINGS = {"batchnorm": " norm.allow_noncausal=true", "prmsnorm": " norm.share=0.25"}
AXES = {
    "norm": [f"norm={name}{SETTINGS.get(name, '')}" for name in distinct_norms()],
    "preset": [f"preset={name}" for name in options("preset") if name != "none"],
    "option": OPTIONS,
}
for axis in ("placement", "attention", "position", "mlp"):
    AXES[axis] = [f"{axis}={name}" for name in options(axis)]


def in_a_process(call):
    """Runs the call in a process without the shape checker, which cannot be compiled."""
    run_python(f"import test_graphs as t; t.{call}")


def test_blocks_of_a_kind_share_a_graph():
    in_a_process("compare_all(t.SOME, 'eager', whole=[t.CLIPPED])")


@pytest.mark.nightly
def test_a_mask_of_a_gpu_is_made_outside_of_the_graph():
    in_a_process("compare_fused()")


@pytest.mark.nightly
@pytest.mark.parametrize("axis", AXES)
def test_every_choice_is_compiled_without_a_break_and_is_the_same_function(axis):
    in_a_process(f"compare_all(t.AXES[{axis!r}], 'aot_eager', whole=t.AXES[{axis!r}])")


def compare_all(variants, backend, whole):
    faults = {}
    for typed in variants:
        try:
            kinds = compare(typed, backend, typed in whole)
            assert kinds == COUNTED.get(typed, kinds), f"{kinds} kinds of blocks"
        except Exception as error:  # all faults are told together
            faults[typed] = f"{type(error).__name__}: {error}"[:1000]
    assert not faults, "".join(f"\n{typed}: {fault}" for typed, fault in faults.items())


def compare(typed, backend, whole):
    """Compares states and gradients with those of compiled blocks, and of the `whole` model as one
    graph. Returns how many kinds of blocks there are."""
    config = compose([*SMALL, *typed.split()])
    model, most = build_model(config, VOCABULARY), config.trainer.qk_clip
    clip = None if most == "none" else QKClip(model, most, nothing)
    kinds = len(set(map(str, zip(map(described, model.blocks), entries(model), strict=True))))
    expected = results(model, model.states, clip)
    if whole and not config.trainer.activation_checkpointing:
        with graphs() as count:
            states = torch.compile(model.states, backend=backend, fullgraph=True)
            assert_same(results(model, states, clip), expected)
        assert count == [1], f"{count} graphs of the whole model"
    with graphs() as count:
        model.through = torch.compile(straight, backend=backend, fullgraph=True)
        model.entering = separate
        if config.trainer.activation_checkpointing:
            model.through = partial(recompute, run=model.through)
        assert_same(results(model, model.states, clip), expected)
        if not (config.model.dropout or clip or config.norm.type == "batchnorm"):
            results(model.eval(), model.states, clip)  # an evaluation
    assert count == [kinds], f"{count} graphs of {kinds} kinds of blocks"
    return kinds


def results(model, states, clip):
    """States, gradients, and the largest logits, which may be those of a bound where they are below
    the threshold."""
    model.zero_grad()
    if clip is not None:
        clip.forget()
    torch.manual_seed(0)
    found = states(torch.arange(2 * CONTEXT).view(2, CONTEXT) % VOCABULARY)
    found.backward(torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found))
    largest = [] if clip is None else [clip.found().clamp(min=clip.threshold)]
    return [found, *largest, *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same(one, other, near=1e-9):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near / 100)


@contextmanager
def graphs():
    """Yields a list that has, in the end, the number of graphs that were compiled meanwhile."""
    torch._dynamo.reset()
    counters.clear()
    count = []
    with torch._dynamo.config.patch(recompile_limit=64):
        yield count
    count.append(counters["stats"]["unique_graphs"])


def described(x, met=()):
    """All that a block is made of, but for its numbers: those are no reason for a second graph."""
    if id(x) in met:
        return "met before"
    met = (*met, id(x))
    if isinstance(x, torch.Tensor | float):
        return tuple(getattr(x, "shape", ()))
    if isinstance(x, dict):
        return {key: described(value, met) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return [described(value, met) for value in x]
    if isinstance(x, partial):
        return [described(value, met) for value in (x.func, x.args, x.keywords)]
    if isinstance(x, int | str | None):
        return x
    if hasattr(x, "__qualname__"):
        return x.__qualname__
    own = dict(vars(x)) if hasattr(x, "__dict__") else {}
    own.pop("norm_place", None)  # which no pass reads
    if own.get("shares_kv") is False:
        own.pop("index", None)  # which is read by those alone that keep something under it
    return type(x).__name__, described(own, met)


def entries(model):
    """How many tensors each block reads: all the same but where a list grows."""
    count = 1
    for block in model.blocks:
        yield count
        for sub_layer in (block.attention, block.mlp):
            if isinstance(getattr(sub_layer, "connection", None), AttentionResidual):
                count += sub_layer.connection.begins


def compare_fused():
    """On a CPU. Its flex attention refuses gradients, which only inductor's kernels lack."""
    attention_module._validate_device = lambda *of: None
    flex.compiled = lambda: torch.compile(attention_module.flex_attention, backend="aot_eager")
    fits = kernels.has_one_kernel
    for window, kinds in (("0", 1), ("[0,5,0,12]", 3)):
        typed = ["position=alibi", "architecture.attention_cap=0.5"]
        typed.append(f"architecture.sliding_window={window}")
        model = build_model(compose([*SMALL, *typed]), VOCABULARY)
        kernels.has_one_kernel, make = fits, flex.create_block_mask
        expected = results(model, model.states, None)
        kernels.has_one_kernel = lambda q, v: True
        model.prepare(CONTEXT, torch.device("cpu"))
        flex.create_block_mask = None  # which a graph cannot call
        whole = torch.compile(model.states, backend="aot_eager", fullgraph=True)
        with graphs() as count:
            assert_same(results(model, whole, None), expected, 1e-5)  # its bias is in float32
        assert count == [1]
        with graphs() as count:
            model.through = torch.compile(straight, backend="aot_eager", fullgraph=True)
            model.entering = separate
            assert_same(results(model, model.states, None), expected, 1e-5)
        assert count == [kinds]
        flex.create_block_mask, model.through, model.entering = make, straight, nothing
        for block in model.blocks:  # as in a pass that nobody has prepared
            block.attention.f.attend.seen = None
        assert_same(results(model, model.states, None), expected, 1e-5)
