"""The parts that a run compiles, its way on where it cannot, and kernels that runs share."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from trainers import trainer_of

from transformer_norms import compose, train
from transformer_norms.run.identity import kind_of_kernels, run_hash
from transformer_norms.training import loss as loss_module
from transformer_norms.training.graphs import compiling
from transformer_norms.training.graphs.compiling import Compilation, choose_mode, share_kernels

TINY = (
    "model=nano model.width=32 model.heads=2 model.depth=1 model.context=16 trainer.steps=2 "
    "trainer.batch_size=2 trainer.probe_every=0 trainer.threads=1 trainer.device=cpu "
    "tracking=none data=stories data.documents=300 data.val_tokens=64 tokenizer=byte"
).split()
MINUTE = 1.5e14 * 60  # FLOPs, of a GPU that is not compiled


def traced(x):
    return torch.sin(x) + 1


def not_traced(x):
    torch._dynamo.graph_break()
    return torch.sin(x) + 1


@pytest.mark.parametrize(
    ("minutes", "more", "expected"),
    [
        (0.5, {}, "none"),
        (5, {}, "block"),
        (50, {"activation_checkpointing": True}, "block"),
        (50, {"device": "cpu"}, "none"),
        (0.5, {"compile": "whole"}, "whole"),
        (50, {"compile": "none"}, "none"),
    ],
)
def test_the_flops_of_a_run_decide_what_a_gpu_compiles(minutes, more, expected):
    keys = {"device": "cuda", "compile": "auto", "activation_checkpointing": False, **more}
    settings = replace(compose(TINY).trainer, steps=1000, batch_size=16, **keys)
    parameters = round(minutes * MINUTE / 6 / (1000 * 16 * 1024))
    assert choose_mode(settings, parameters, 1024) == expected


@pytest.fixture
def eager(monkeypatch):
    """Traces what is compiled, and runs it as it is."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def test_what_cannot_be_compiled_runs_all_the_same_and_the_record_says_so(eager, capsys):
    compilation, x = Compilation("block"), torch.arange(3.0)
    block = compilation(not_traced, "a block", "block")
    head = compilation(traced, "the head", "block", "whole")
    assert compilation(traced, "the model", "whole") is traced
    assert torch.equal(head(x), traced(x))
    for _ in range(2):
        assert torch.equal(block(x), traced(x))
    assert compilation.text.startswith("block; a block was not: Unsupported: ")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer.compile: a block is not compiled, and slower: Unsupported")


def test_a_function_of_more_kinds_than_the_limit_says_so(eager, capsys, monkeypatch):
    monkeypatch.setattr(compiling, "GRAPHS", 2)
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        function = Compilation("block")(traced, "a block", "block")
        for size in range(2, 6):
            assert function(torch.ones(size)).shape == (size,)
    assert "a block is not compiled, and slower: FailOnRecompileLimitHit" in capsys.readouterr().err


def test_the_first_run_of_a_kind_compiles_and_the_others_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path))
    entered, order = threading.Event(), []

    def second():
        entered.set()
        with share_kernels({"norm": "a"}, "cpu"):
            order.append("second")

    with share_kernels({"norm": "b"}, "cpu"), share_kernels({"norm": "a"}, "cpu") as release:
        waiting = threading.Thread(target=second)
        waiting.start()
        entered.wait()
        waiting.join(0.3)
        order.append("first")
        release()
        waiting.join(30)
    with share_kernels({"norm": "a"}, "cpu"), share_kernels({"norm": "a"}, "cpu"):
        order.append("at once")  # there is nothing to wait for
    assert order == ["first", "second", "at once"]


def test_a_run_that_ends_before_its_first_step_leaves_the_kernels_to_the_next(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path))
    with pytest.raises(OSError, match="ends"), share_kernels({}, "cpu"):
        raise OSError("ends")
    with share_kernels({}, "cpu") as release:
        assert [file.read_bytes() for file in tmp_path.rglob("*.kind")] == [b""]
        release()
    assert [file.read_bytes() for file in tmp_path.rglob("*.kind")] == [b"compiled"]


def test_runs_of_one_kind_differ_in_seed_rate_and_text_alone():
    kind, alike = (
        kind_of_kernels(compose(TINY)),
        "seed=3 optimizer.lr=1 schedule=linear data.seed=5",
    )
    for typed in f"{alike} norm=layernorm placement=post architecture.bias=true mlp=swiglu".split():
        assert (kind_of_kernels(compose([*TINY, typed])) == kind) == (typed in alike), typed


def test_compiling_is_no_part_of_the_identity_and_the_record_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modes = ("auto", "none", "block", "whole")
    assert len({run_hash(compose([*TINY, f"trainer.compile={one}"]), {}) for one in modes}) == 1
    assert train(compose(TINY))["compile"] == "none"


@pytest.mark.nightly
@pytest.mark.parametrize("typed", ["architecture.tied=true", "architecture.tied=false"])
def test_a_compiled_step_whose_heads_rows_are_filled_up_has_the_gradients_of_an_eager_one(
    typed, monkeypatch, tmp_path
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = []
    for mode, aligned in (("none", 1), ("whole", 64)):
        trainer = trainer_of(f"trainer.compile={mode}", typed)
        monkeypatch.setitem(loss_module.ALIGNED, "cpu", aligned)
        total = trainer.loss.backward(trainer.batches(0), 1)
        assert trainer.loss.compilation.text == mode
        gradients = [total, *(parameter.grad for parameter in trainer.parameters)]
        found.append(torch.cat([gradient.flatten() for gradient in gradients]).double())
    eager, compiled = found
    assert (eager - compiled).norm() <= 1e-6 * eager.norm()
