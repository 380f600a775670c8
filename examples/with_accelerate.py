"""A model, data, optimizer and rates of this project in a loop of Hugging Face's accelerate.

    pip install "transformer_norms[examples]"
    python examples/with_accelerate.py
    accelerate launch --num_processes 2 examples/with_accelerate.py

Each step's batch is divided among the processes, so that their number changes no loss.
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
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

config = compose(
    ["model=nano", "norm=rmsnorm", "placement=pre", "data=stories", "trainer.steps=200"],
    device="cpu",
)
keys = config.trainer
divided = DataLoaderConfiguration(split_batches=True)
accelerator = Accelerator(cpu=True, dataloader_config=divided)
with accelerator.main_process_first():  # the first one writes the tokens, the rest read them
    tokens = prepare_tokens(config)
rows = DataLoader(
    build_batches(config, tokens),
    batch_size=keys.batch_size,
    sampler=range(keys.steps * keys.batch_size),
)
model = build_model(config, tokens.vocab_size).to(accelerator.device)
(optimizer,) = build_optimizers(config, model)
(scheduler,) = build_schedulers(config, [optimizer])
plain_model = model
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)

for step, batch in enumerate(rows, 1):
    logits, loss = model(batch[:, :-1], batch[:, 1:])
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), keys.clip)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    plain_model.constrain(plain_model)
    if step % 50 == 0:
        accelerator.print(f"step {step}  loss {accelerator.reduce(loss, 'mean'):.4f}")

plain_model.eval()
nats = predicted = 0
with torch.no_grad():
    for window in windows(tokens.val, config.model.context, config.data.val_tokens, 16):
        window = window.to(accelerator.device)
        count = window[:, 1:].numel()
        nats += plain_model(window[:, :-1], window[:, 1:])[1] * count
        predicted += count
accelerator.print(f"validation loss {nats / predicted:.4f}")
