"""GPT-2 in the form of three other programs, with the parameters that each must have."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from contenders import Size
from peers import ACTIVATIONS, transformers_gpt2
from torch import Tensor, nn

ALIGNED = 64  # a vocabulary of a multiple of it has rows that are aligned in memory
BASE = 10000.0  # of the angles of rotated positions


class Style(NamedTuple):
    heads: int
    bias: bool
    norm: Callable[[int], nn.Module]
    activation: Callable[[Tensor], Tensor]
    turn: nn.Module  # of queries and keys


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), with one product for q, k and v"""

    def __init__(self, width: int, style: Style) -> None:
        super().__init__()
        self.heads, self.activation, self.turn = style.heads, style.activation, style.turn
        self.before_attention, self.before_mlp = style.norm(width), style.norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=style.bias)
        self.output = nn.Linear(width, width, bias=style.bias)
        self.up = nn.Linear(width, 4 * width, bias=style.bias)
        self.down = nn.Linear(4 * width, width, bias=style.bias)

    def forward(self, x: Tensor) -> Tensor:
        three = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in three)
        heads = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        x = x + self.output(heads.transpose(1, 2).flatten(2))
        return x + self.down(self.activation(self.up(self.before_mlp(x))))


class Rotation(nn.Module):
    """Normalizes the vectors of a head, and rotates each by the angles of its position."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, head_dim: int) -> None:
        super().__init__()
        rates = BASE ** -torch.linspace(0, 1, head_dim // 2 + 1)[:-1]
        angles = torch.outer(torch.arange(context).float(), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        low, high = F.rms_norm(x, x.shape[-1:]).chunk(2, -1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat((low * cos + high * sin, high * cos - low * sin), -1)


class Model(nn.Module):
    """Tokens to logits over a padded vocabulary, with tied embeddings; `learned` positions."""

    def __init__(self, size: Size, style: Style, *, learned: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(padded(size.vocabulary), size.width)
        self.positions = nn.Parameter(torch.empty(size.context, size.width)) if learned else 0
        self.blocks = nn.Sequential(*(Block(size.width, style) for _ in range(size.depth)))
        self.norm = style.norm(size.width)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)


def padded(vocabulary: int) -> int:
    return -(-vocabulary // ALIGNED) * ALIGNED


def transformers(size: Size) -> nn.Module:
    model: Any = transformers_gpt2(size, ACTIVATIONS[1])
    model.set_attn_implementation("sdpa")
    return model


def nanogpt(size: Size) -> nn.Module:
    """GPT-2 in the form of nanoGPT: LayerNorm, biases, learned positions, gelu.

    A. Karpathy, github.com/karpathy/nanoGPT
    """
    gelu = partial(F.gelu, approximate="tanh")
    return Model(size, Style(size.heads, True, nn.LayerNorm, gelu, nn.Identity()), learned=True)


def modded_nanogpt(size: Size) -> nn.Module:
    """The form of modded-nanogpt in October 2024: root mean squares without gains, on q and k too,
    rotated positions, squared ReLU, no biases, heads twice as wide.

    K. Jordan et al., github.com/KellerJordan/modded-nanogpt
    """
    heads = size.heads // 2
    norm = partial(nn.RMSNorm, elementwise_affine=False)
    turn = Rotation(size.context, size.width // heads)
    return Model(size, Style(heads, False, norm, squared_relu, turn), learned=False)


def squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


class Peer(NamedTuple):
    """`parameters` is the number that the built model must have, or there is nothing to compare."""

    build: Callable[[Size], nn.Module]
    parameters: Callable[[Size], int]


def product_weights(size: Size, vocabulary: int) -> int:
    """Returns the number of weights in the products of a step, those of the tied head included."""
    return 12 * size.depth * size.width**2 + vocabulary * size.width


def gpt2_parameters(size: Size, vocabulary: int) -> int:
    """Returns the parameters of GPT-2, whose products and norms have biases."""
    vectors = (13 * size.depth + 2) * size.width
    return product_weights(size, vocabulary) + vectors + size.context * size.width


TRANSFORMERS, NANOGPT, MODDED = "transformers", "nanoGPT", "modded-nanogpt"
PEERS = {
    TRANSFORMERS: Peer(transformers, lambda size: gpt2_parameters(size, size.vocabulary)),
    NANOGPT: Peer(nanogpt, lambda size: gpt2_parameters(size, padded(size.vocabulary))),
    MODDED: Peer(modded_nanogpt, lambda size: product_weights(size, padded(size.vocabulary))),
}
