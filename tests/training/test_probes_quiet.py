"""Measuring what happens inside a model changes no bit of its training, and leaves no hook."""

import os
import subprocess
import sys

import pytest
import torch
from test_probes import trainer_of
from torch import nn

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
    plain, watched = (trainer.tensors() for trainer in trainers)
    for group, tensors in plain.items():
        assert tensors.keys() == watched[group].keys()
        assert all(torch.equal(tensors[name], watched[group][name]) for name in tensors)
    states = [trainer.state() | {"probed": None} for trainer in trainers]
    assert states[0] == states[1]
    assert torch.equal(*(torch.get_rng_state() for _ in trainers))


class Fire(nn.Module):
    def forward(self, x):
        raise RuntimeError("the roof is on fire")


@pytest.mark.parametrize("placement", ["pre", "parallel", "residual_dual"])
@pytest.mark.parametrize("burns", [True, False])
def test_no_hook_is_left_however_a_pass_ends(placement, burns):
    trainer = trainer_of("architecture.attention_cap=5", placement=placement)
    model, final = trainer.model, trainer.model.final
    own = {name: dict(vars(module)) for name, module in model.named_modules()}
    if burns:
        model.final = Fire()
        with pytest.raises(RuntimeError, match="the roof"):
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
    trainer = trainer_of()
    trainer.train_step()
    first = trainer.probed
    trainer.model.final.gain.register_hook(lambda grad: grad * float("inf"))
    assert "gradient's norm is" in trainer.train_step()
    assert trainer.probed is first


COMPILED = """
import torch, test_probes as t
from torch._dynamo.utils import counters
for every in (0, 1):
    torch._dynamo.reset(); counters.clear()
    trainer = t.trainer_of("trainer.compile=block", every=every, precision="fp32")
    for step in range(6):
        assert trainer.train_step() is None
    assert bool(trainer.probed) == every
    print(counters["stats"]["unique_graphs"], *trainer.losses)
"""


@pytest.mark.nightly
def test_compiled_blocks_are_compiled_as_often_and_give_the_same_losses():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    plain, watched = done.stdout.splitlines()
    assert plain == watched
    assert int(plain.split()[0]) > 0
