"""Other libraries' models, and the leanest loop that trains one."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from contenders import CLIP, Batches, Size, parameters
from torch import Tensor, nn
from weights import copied

from transformer_norms.training.trainer import Trainer

LEAN, DOCUMENTED = "transformers, lean", "transformers"
COMPILED, LITGPT, X_TRANSFORMERS = "transformers, compiled", "litgpt", "x-transformers"
# The same function: several operators, which is what GPT2Config sets; and PyTorch's single one.
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")
ALIKE = 0.1  # a model with other parameters than ours by more than this share is no rival


class Lean:
    """A model from tokens to logits with our loss, our optimizer's class and numbers, and nothing
    else in its step."""

    def __init__(self, model: nn.Module, batches: Batches, like: torch.optim.Optimizer) -> None:
        self.model, self.batches, self.step = model.train(), batches, 0
        self.parameters = list(model.parameters())
        same = {key: like.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
        self.optimizer = torch.optim.AdamW(two_groups(self.parameters), **same, fused=True)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)

    def loss(self, batch: Tensor) -> Tensor:
        logits = self.logits(batch[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def train_step(self) -> float:
        loss = self.loss(self.batches(self.step))
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()


class LeanGPT2(Lean):
    """transformers' model answers with more than logits."""

    def logits(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


class AsDocumented(Lean):
    """transformers' model as its documentation trains it: `labels` given, its cache left on, AdamW
    as it comes."""

    def __init__(self, model: Any, batches: Batches, like: torch.optim.Optimizer) -> None:
        super().__init__(model, batches, like)
        model.config.use_cache = True
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=like.defaults["lr"])

    def loss(self, batch: Tensor) -> Tensor:
        tokens = batch[:, :-1]
        return self.model(input_ids=tokens, labels=tokens).loss


def two_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Decayed and not, as our optimizer has them."""
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    left = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [{"params": decayed}, {"params": left, "weight_decay": 0.0}]


def peers(
    size: Size, batches: Batches, gpt2: Trainer, activation: str, compiled: bool
) -> dict[str, Lean]:
    """All that can be built here, by name. What cannot is left out, with a line on stderr."""
    like, built = gpt2.optimizers[0], {}
    builders: dict[str, Callable[[], Lean]] = {
        LEAN: lambda: LeanGPT2(the_same(size, activation, gpt2), batches, like),
        DOCUMENTED: lambda: AsDocumented(the_same(size, activation, gpt2), batches, like),
        LITGPT: lambda: Lean(litgpt_gpt(size), batches, like),
        X_TRANSFORMERS: lambda: Lean(x_transformer(size), batches, like),
    }
    if compiled:
        builders[COMPILED] = lambda: compiled_gpt2(builders[LEAN]())
    for name, build in builders.items():
        try:
            built[name] = alike(build(), gpt2)
        except (ImportError, Unlike) as error:
            print(f"{size}: {name} is left out: {error}", file=sys.stderr)
    return built


class Unlike(Exception):
    """A model that has too many parameters for a comparison with ours, or too few."""


def alike(peer: Lean, gpt2: Trainer) -> Lean:
    theirs, own = parameters(peer.model), parameters(gpt2.model)
    if abs(theirs - own) > ALIKE * own:
        raise Unlike(f"it has {theirs:,} parameters, ours {own:,}")
    return peer


def compiled_gpt2(lean: Lean) -> Lean:
    lean.model.compile()
    return lean


def the_same(size: Size, activation: str, gpt2: Trainer) -> nn.Module:
    """With the weights of ours."""
    model = transformers_gpt2(size, activation)
    copied(gpt2.model, model)
    return model


def transformers_gpt2(size: Size, activation: str) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

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
    return GPT2LMHeadModel(config)


def litgpt_gpt(size: Size) -> nn.Module:
    """Rotary instead of learned positions, and weights of its own."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        n_layer=size.depth,
        n_embd=size.width,
        n_head=size.heads,
        block_size=size.context,
        vocab_size=size.vocabulary,
        padded_vocab_size=size.vocabulary,
        parallel_residual=False,
        norm_class_name="LayerNorm",
        norm_eps=1e-5,
        mlp_class_name="GptNeoxMLP",
        gelu_approximate="tanh",
        bias=True,
        lm_head_bias=False,
    )
    model = GPT(config)
    model.transformer.wte.weight = model.lm_head.weight  # as its train.tie_embeddings does
    return model


def x_transformer(size: Size) -> nn.Module:
    """Learned positions, and weights of its own; attention and norms without biases."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=size.width,
        depth=size.depth,
        heads=size.heads,
        attn_dim_head=size.width // size.heads,
        attn_flash=True,
    )
    return TransformerWrapper(
        num_tokens=size.vocabulary, max_seq_len=size.context, attn_layers=layers, tie_embedding=True
    )
