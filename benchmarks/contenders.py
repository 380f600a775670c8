"""What is compared: a Trainer of this project, and transformers' GPT-2 in the leanest loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_norms.building import build_model, build_trainer
from transformer_norms.config import compose, plain
from transformer_norms.errors import ConfigError
from transformer_norms.machine import cores
from transformer_norms.trainer import Trainer

CLIP = 1.0
Batches = Callable[[int], Tensor]


@dataclass(frozen=True)
class Size:
    """depth-width-context-batch-vocabulary; heads of 32 dimensions, above width 128 of 64."""

    depth: int
    width: int
    context: int
    batch: int
    vocabulary: int

    @classmethod
    def read(cls, text: str) -> "Size":
        numbers = text.split("-")
        if len(numbers) != 5 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ConfigError(f"--sizes {text}: five numbers above 0 as in 4-128-64-12-65")
        return cls(*(int(number) for number in numbers))

    def __str__(self) -> str:
        return f"{self.depth}-{self.width}-{self.context}-{self.batch}-{self.vocabulary}"

    @property
    def heads(self) -> int:
        return max(1, self.width // (32 if self.width <= 128 else 64))

    def overrides(self) -> list[str]:
        sizes = {key: getattr(self, key) for key in ("depth", "width", "heads", "context")}
        return [f"model.{key}={value}" for key, value in sizes.items()]

    def batches(self) -> Batches:
        """The same few random batches for all, one token longer than the context."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, self.context + 1)
        few = [torch.randint(self.vocabulary, shape, generator=generator) for _ in range(8)]
        return lambda step: few[step % len(few)]


def ours(size: Size, overrides: list[str], batches: Batches) -> Trainer:
    """A run's own Trainer, fed from memory."""
    fixed = [f"trainer.clip={CLIP}", "trainer.device=cpu", f"trainer.batch_size={size.batch}"]
    config = plain(compose([*size.overrides(), *fixed, *overrides]))
    keys = config["trainer"]
    torch.set_num_threads(cores() if keys["threads"] == "auto" else keys["threads"])
    model = build_model(config, size.vocabulary)
    trainer = build_trainer(config, model, batches, lambda: ())
    # Random tokens cannot be learned, which is no divergence here.
    trainer.divergence.warmup = keys["steps"]
    return trainer


class Theirs:
    """GPT2LMHeadModel with our optimizer's class and numbers, and nothing else in its step."""

    def __init__(
        self, size: Size, batches: Batches, like: torch.optim.Optimizer, activation: str
    ) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel  # takes seconds

        config = GPT2Config(
            vocab_size=size.vocabulary,
            n_layer=size.depth,
            n_embd=size.width,
            n_head=size.heads,
            n_positions=size.context,
            activation_function=activation,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,  # GPT-2's own lies beyond this vocabulary
            eos_token_id=None,
        )
        self.model = GPT2LMHeadModel(config).train()
        self.parameters = list(self.model.parameters())
        self.batches, self.step = batches, 0
        same = {key: like.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
        self.optimizer = torch.optim.AdamW(two_groups(self.model), **same, fused=True)

    def loss(self, batch: Tensor) -> Tensor:
        logits = self.model(batch[:, :-1], use_cache=False).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def train_step(self) -> float:
        loss = self.loss(self.batches(self.step))
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()


class AsDocumented(Theirs):
    """The same model as its documentation trains it: `labels` given, its cache left on, AdamW as it
    comes."""

    def __init__(
        self, size: Size, batches: Batches, like: torch.optim.Optimizer, activation: str
    ) -> None:
        super().__init__(size, batches, like, activation)
        self.model.config.use_cache = True
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=like.defaults["lr"])

    def loss(self, batch: Tensor) -> Tensor:
        tokens = batch[:, :-1]
        return self.model(input_ids=tokens, labels=tokens).loss


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Decayed and not, as our optimizer has them."""
    named = list(model.named_parameters())
    left = [p for name, p in named if name.endswith(".bias") or ".ln_" in name]
    kept = {id(p) for p in left}
    decayed = [p for _, p in named if id(p) not in kept]
    return [{"params": decayed}, {"params": left, "weight_decay": 0.0}]


@torch.no_grad()
def shaken(model: nn.Module) -> None:
    """No weight equal to another, no bias 0, no gain 1: else a wrong copy could go unseen."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)


@torch.no_grad()
def copied(source: nn.Module, target: nn.Module) -> None:
    """Our GPT-2's weights in theirs, whose Conv1D holds [in, out] and q, k, v side by side."""
    from_ours, theirs = dict(source.named_parameters()), dict(target.named_parameters())
    names = {"wte.weight": "embedding.weight", "wpe.weight": "position.position.weight"}
    names |= {"ln_f.weight": "final.gain", "ln_f.bias": "final.bias"}
    for name, own in names.items():
        theirs.pop(f"transformer.{name}").copy_(from_ours.pop(own))
    for name, tensor in theirs.items():
        _, _, i, rest = name.split(".", 3)
        tensor.copy_(_of_block(from_ours, f"blocks.{i}.", rest))
    assert not from_ours, f"not copied: {', '.join(from_ours)}"


def _of_block(ours: dict[str, nn.Parameter], block: str, name: str) -> Tensor:
    module, _, end = name.rpartition(".")
    if module in ("ln_1", "ln_2"):
        sub = "attention" if module == "ln_1" else "mlp"
        return ours.pop(f"{block}{sub}.pre.{'gain' if end == 'weight' else 'bias'}")
    inside = {
        "attn.c_attn": ["attention.f.query", "attention.f.key", "attention.f.value"],
        "attn.c_proj": ["attention.f.output"],
        "mlp.c_fc": ["mlp.f.up"],
        "mlp.c_proj": ["mlp.f.down"],
    }[module]
    stacked = torch.cat([ours.pop(f"{block}{linear}.{end}") for linear in inside])
    return stacked.T if end == "weight" else stacked
