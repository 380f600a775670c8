"""A trainer of a tiny model that reads one batch of random tokens again and again."""

import torch

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose

VOCABULARY = 31
SIZES = ["model=nano", "model.context=16", "trainer.batch_size=4", "trainer.threads=1"]
SIZES += ["schedule.warmup=5", "trainer.steps=300", "trainer.probe_every=0"]


def trainer_of(*typed, sizes=SIZES, **keys):
    """A key that is typed takes the place of the same one of the sizes."""
    own = {text.partition("=")[0] for text in typed}
    usual = [text for text in sizes if text.partition("=")[0] not in own]
    return trainer_from(compose([*usual, *typed]), **keys)


def trainer_from(config, replicas=1, vocabulary=VOCABULARY):
    batch = tokens(config.trainer.batch_size, config.model.context + 1, vocabulary)
    model = build_model(config, vocabulary)
    return build_trainer(config, model, lambda step: batch, lambda: [batch[:3]], replicas)


def tokens(rows=4, time=17, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (rows, time), generator=generator)


def losses(trainer, steps):
    for _ in range(steps):
        assert trainer.train_step() is None
    return trainer.losses
