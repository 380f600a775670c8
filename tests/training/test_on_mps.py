"""trainer.device=mps, on a fake of it: none of these tests ran on a Mac (helpers/no_float64.py)."""

import pytest
import torch
from no_float64 import fake_mps
from short_runs import go, here, same, stop_at  # noqa: F401
from test_on_a_gpu import VARIANTS, name_of, trained

from transformer_norms import ConfigError, compose


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
    typed = ["trainer.average={type: ema, decay: 0.9}", "trainer.qk_clip=1"]
    usual = go("study=cpu", "trainer.device=cpu", *typed)
    with fake_mps() as seeds:
        stop_at(9)
        for status in ("preempted", "finished"):
            run = go("study=mps", "trainer.device=mps", *typed)
            assert run["status"] == status
    assert same(usual["folder"], run["folder"])
    assert run["device"].startswith("mps, ")
    assert len(set(seeds)) >= 24  # dropout is seeded there in each step


@pytest.mark.nightly
@pytest.mark.parametrize("variant", [*VARIANTS, {"optimizer": "muon"}], ids=name_of)
def test_every_norm_placement_and_part_trains_there_in_float32(variant):
    losses, weights = trained("cpu", "fp32", variant)
    with fake_mps():
        again, moved = trained("mps", "fp32", variant)
    assert losses == again
    assert all(map(torch.equal, weights, moved))


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (
            "trainer.precision=fp64",
            "trainer.precision: fp64 is not allowed with trainer.device=mps",
        ),
        ("parallel=ddp", "parallel: ddp is not allowed with trainer.device=mps"),
    ],
)
def test_what_mps_cannot_do_is_refused_in_one_line(typed, line):
    with fake_mps(), pytest.raises(ConfigError, match=line):
        compose(["trainer.device=mps", typed])


def test_a_machine_without_mps_says_which_devices_it_has():
    with pytest.raises(ConfigError, match="^trainer.device: mps is not available here; allowed"):
        compose(["trainer.device=mps"])
