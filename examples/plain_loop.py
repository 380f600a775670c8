"""A training loop of your own, with the model, data, optimizers and rates of this project.

    python examples/plain_loop.py

The losses are those of `train(config)`, to rounding. What `train` does besides: it writes a run
folder with checkpoints, it resumes, it watches for divergence, it measures inside the model.
"""

import torch
from torch import nn

from transformer_norms import (
    build_batches,
    build_model,
    build_optimizers,
    build_schedulers,
    compose,
    generate,
    prepare_tokens,
)
from transformer_norms.data.batches import windows

config = compose(
    ["model=nano", "norm=rmsnorm", "placement=pre", "data=stories", "trainer.steps=200"],
    device="cpu",
)
tokens = prepare_tokens(config)
batches = build_batches(config, tokens)
model = build_model(config, tokens.vocab_size)
optimizers = build_optimizers(config, model)
schedulers = build_schedulers(config, optimizers)

for step in range(config.trainer.steps):
    batch = batches(step)  # [batch, time + 1]
    logits, loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), config.trainer.clip)
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    model.constrain(model)  # does something in placements that hold the length of weights: ngpt
    if (step + 1) % 50 == 0:
        print(f"step {step + 1}  loss {loss:.4f}")

model.eval()
nats = predicted = 0
with torch.no_grad():
    for window in windows(tokens.val, config.model.context, config.data.val_tokens, 16):
        count = window[:, 1:].numel()
        nats += model(window[:, :-1], window[:, 1:])[1] * count
        predicted += count
print(f"validation loss {nats / predicted:.4f}")

prompt = torch.tensor(tokens.tokenizer.encode("The "))
print("The " + tokens.tokenizer.decode(list(generate(model, prompt, 80, temperature=0.8))))
