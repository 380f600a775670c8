"""A GPU trains what a CPU trains, to rounding, and gives the same digits each time.

The tests of Apple's mps have a fake of it, and none ran on a Mac (helpers/no_float64.py).
"""

import pytest
import torch
from combinations import combined
from new_process import run_python
from no_float64 import fake_mps
from short_runs import go, here, same, stop_at  # noqa: F401
from trainers import SIZES, losses, trainer_from, trainer_of

from transformer_norms import ConfigError, compose
from transformer_norms.names import distinct_norms, options
from transformer_norms.run import machine
from transformer_norms.training.graphs.ahead import StepsAhead

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
VARIANTS = [{"norm": name} for name in distinct_norms()]
VARIANTS += [{"placement": name} for name in options("placement")]
VARIANTS += [{axis: name} for axis in ("attention", "mlp", "position") for name in options(axis)]
MUON = {"optimizer": "muon", "attention": "sinks"}  # on a GPU it iterates in bfloat16


def trained(device, precision, variant, steps=3):
    """The losses of a few steps, and the weights after them. A rate on a GPU is a float32, and so
    this one is a power of two."""
    typed = [text for text in SIZES if not text.startswith("schedule.")]
    typed += ["model.depth=4", f"trainer.device={device}", f"trainer.precision={precision}"]
    typed += [f"optimizer.lr={2**-10}", "schedule=constant", "schedule.warmup=0"]
    trainer = trainer_from(combined(*typed, **variant))
    with machine.deterministic(device):
        return losses(trainer, steps), weights_of(trainer)


def weights_of(trainer):
    return [parameter.detach().cpu() for parameter in trainer.model.parameters()]


def assert_same_digits(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def name_of(variant):
    return " ".join(f"{axis}={name}" for axis, name in variant.items())


@pytest.mark.goal("R4")
@pytest.mark.nightly
@on_a_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", [*VARIANTS, MUON], ids=name_of)
def test_twice_the_same_steps_on_a_gpu_give_the_same_digits(variant, precision):
    assert_same_digits(*(trained("cuda", precision, variant) for _ in range(2)))


@pytest.mark.nightly
@on_a_gpu
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_a_gpu_takes_the_steps_of_a_cpu(variant):
    """In float64, which leaves rounding far below any error of a kernel's arithmetic."""
    (found, weights), (expected, others) = (trained(x, "fp64", variant) for x in ("cuda", "cpu"))
    assert found == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(weights, others, rtol=0, atol=1e-9)


@pytest.mark.goal("R4")
def test_what_a_gpu_computes_with_other_digits_each_time_is_an_error_that_names_it(monkeypatch):
    """`put_` is such an operation on every device."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    places, values = torch.tensor([0, 0]), torch.tensor([1.0, 2.0])
    with machine.deterministic("cuda"), pytest.raises(RuntimeError, match="put_"):
        torch.zeros(3).put_(places, values)
    with machine.deterministic("cpu"):
        torch.zeros(3).put_(places, values)
    torch.zeros(3).put_(places, values)


FRESH = """
import sys
import torch
from transformer_norms.run import machine
from transformer_norms.training.graphs.ahead import StepsAhead
entered = machine.deterministic
machine.deterministic = lambda kind: entered("cuda")
from short_runs import TEXT, config_of
from transformer_norms import train
open("corpus.txt", "w").write(TEXT)
assert "torch._dynamo" not in sys.modules
seen = []
def follow(folder):
    seen.append(torch.are_deterministic_algorithms_enabled())
assert train(config_of("trainer.steps=2"), follow)["status"] == "finished"
assert seen == [True]
assert not torch.are_deterministic_algorithms_enabled()
"""


@pytest.mark.goal("R4")
def test_a_fresh_process_trains_deterministically(tmp_path):
    """What this imports, a thread of the run would import at the same time."""
    run_python(FRESH, cwd=tmp_path)


def ahead_of(trainer, steps, sync="default"):
    """The losses and weights of a trainer whose steps begin before the one before has ended."""
    ahead = trainer.ahead = StepsAhead(trainer)
    for step in range(steps):
        if step == 2:  # the first steps allocate, and read what the first step leaves
            torch.cuda.set_sync_debug_mode(sync)
        assert trainer.train_step() is None
    torch.cuda.set_sync_debug_mode("default")
    assert ahead.end() is None
    return trainer.losses, weights_of(trainer)


EMA = "trainer.average={type: ema, decay: 0.9}"


@pytest.mark.nightly
@on_a_gpu
@pytest.mark.parametrize("typed", [[], ["optimizer=muon"], ["trainer.qk_clip=1"], [EMA]], ids=str)
def test_a_step_on_a_gpu_waits_for_no_number(typed):
    on_device = "trainer.device=cuda", "trainer.log_every=1000", "model.dropout=0.1"
    trainer = trainer_of(*on_device, *typed)
    ahead_of(trainer, 8, "error")
    assert trainer.step == 8


@pytest.mark.nightly
@on_a_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "typed",
    ["", "trainer.compile=block", "trainer.compile=whole", "model.dropout=0.1", "optimizer=muon",
     "trainer.accumulation=2", "trainer.qk_clip=1", "norm=batchnorm norm.allow_noncausal=true",
     "trainer.compile=whole model.dropout=0.1", "placement=ngpt", "attention=sinks"],
)  # fmt: skip
def test_a_captured_step_has_the_digits_of_one_that_is_not(typed, precision):
    typed = ["trainer.device=cuda", f"trainer.precision={precision}", *typed.split()]
    captured, plain = trainer_of(*typed), trainer_of(*typed)
    with machine.deterministic("cuda"):
        found = ahead_of(captured, 12)
        expected = losses(plain, 12)
    assert captured.loss.compilation.captured
    assert_same_digits(found, (expected, weights_of(plain)))


def test_the_fake_refuses_what_the_device_refuses():
    with fake_mps():
        x = torch.ones(2, 3).to("mps")
        assert (x.device.type, (x * torch.tensor(2.0).double()).dtype) == ("mps", torch.float32)
        assert x.cpu().device.type == "cpu"
        for wrong in (x.double, lambda: torch.zeros(2, dtype=torch.float64, device="mps")):
            with pytest.raises(TypeError, match="mps has no float64"):
                wrong()
        with pytest.raises(RuntimeError, match="a tensor of the CPU"):
            x + torch.ones(3)


def test_a_run_on_mps_has_no_float64_there_and_the_digits_of_a_cpu(stop_at):  # noqa: F811
    """A whole run: data, probes, dropout, evaluation, average, checkpoints, and going on."""
    typed = [EMA, "trainer.qk_clip=1", "trainer.steps=12"]
    usual = go("study=cpu", "trainer.device=cpu", *typed)
    with fake_mps() as seeds:
        stop_at(9)
        for status in ("preempted", "finished"):
            run = go("study=mps", "trainer.device=mps", *typed)
            assert run["status"] == status
    assert same(usual["folder"], run["folder"])
    assert run["device"].startswith("mps, ")
    assert len(set(seeds)) >= 12  # dropout is seeded there in each step


@pytest.mark.nightly
@pytest.mark.parametrize("variant", [*VARIANTS, {"optimizer": "muon"}], ids=name_of)
def test_every_norm_placement_and_part_trains_there_in_float32(variant):
    expected = trained("cpu", "fp32", variant)
    with fake_mps():
        found = trained("mps", "fp32", variant)
    assert_same_digits(found, expected)


def test_what_mps_cannot_do_and_that_there_is_none_is_refused_in_one_line():
    for typed in ("trainer.precision=fp64", "parallel=ddp"):
        line = typed.replace("=", ": ") + " is not allowed with trainer.device=mps"
        with fake_mps(), pytest.raises(ConfigError, match=line):
            compose(["trainer.device=mps", typed])
    with pytest.raises(ConfigError, match="^trainer.device: mps is not available here; allowed"):
        compose(["trainer.device=mps"])
