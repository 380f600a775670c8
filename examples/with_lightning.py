"""A model, data, optimizer and rates of this project in Lightning's Trainer.

    pip install "transformer_norms[examples]"
    python examples/with_lightning.py

Lightning owns the loop, so devices, precision, loggers and callbacks are its own.
"""

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader

from transformer_norms import (
    build_batches,
    build_model,
    build_optimizers,
    build_schedulers,
    compose,
    prepare_tokens,
)
from transformer_norms.data.batches import windows


class LanguageModel(lightning.LightningModule):
    """Any config whose optimizer is one of torch's: Lightning steps several by hand only."""

    def __init__(self, config, vocab_size):
        super().__init__()
        self.config, self.model = config, build_model(config, vocab_size)

    def training_step(self, batch, index):
        logits, loss = self.model(batch[:, :-1], batch[:, 1:])
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        logits, loss = self.model(batch[:, :-1], batch[:, 1:])
        self.log("val/loss", loss, batch_size=batch[:, 1:].numel())  # a mean over tokens

    def configure_optimizers(self):
        optimizers = build_optimizers(self.config, self.model)
        schedulers = build_schedulers(self.config, optimizers)
        return optimizers, [{"scheduler": each, "interval": "step"} for each in schedulers]

    def on_train_batch_end(self, *_):
        self.model.constrain(self.model)  # after the optimizer's step


config = compose(
    ["model=nano", "norm=rmsnorm", "placement=pre", "data=stories", "trainer.steps=200"],
    device="cpu",
)
keys = config.trainer
tokens = prepare_tokens(config)
rows = DataLoader(
    build_batches(config, tokens),
    batch_size=keys.batch_size,
    sampler=range(keys.steps * keys.batch_size),
)
held_out = list(windows(tokens.val, config.model.context, config.data.val_tokens, 16))
held_out = DataLoader(held_out, batch_size=None)

torch.manual_seed(config.seed)  # of dropout; weights and batches have their own
trainer = lightning.Trainer(
    max_epochs=1,  # the sampler of the rows ends after the last step
    gradient_clip_val=keys.clip,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    num_sanity_val_steps=0,
)
trainer.fit(LanguageModel(config, tokens.vocab_size), rows, held_out)
print(f"validation loss {trainer.callback_metrics['val/loss']:.4f}")
