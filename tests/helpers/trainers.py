"""A trainer of a tiny model that reads one batch of random tokens again and again."""

import torch

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose

SIZES = ["model=nano", "model.context=16", "trainer.batch_size=4", "trainer.threads=1"]
SIZES += ["schedule.warmup=5", "trainer.steps=300", "trainer.probe_every=0"]


def trainer_of(*overrides):
    """A typed key takes the place of the one here."""
    keys = {text.partition("=")[0] for text in overrides}
    usual = [text for text in SIZES if text.partition("=")[0] not in keys]
    config = compose([*usual, *overrides])
    fixed = torch.randint(31, (4, 17), generator=torch.Generator().manual_seed(0))
    return build_trainer(config, build_model(config, 31), lambda step: fixed, lambda: ())


def losses(trainer, steps):
    for _ in range(steps):
        assert trainer.train_step() is None
    return trainer.losses
