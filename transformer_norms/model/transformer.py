"""Tokens in, logits out: embedding, position, blocks, final norm, head."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from transformer_norms.model.attentions.heads import Cache, ForwardState
from transformer_norms.model.initialization import Embedding, Linear
from transformer_norms.model.position import NoPosition, position_last
from transformer_norms.norms import Layer, nothing

Tokens = Int[Tensor, "batch time"]
States = Float[Tensor, "*batch width"]
Logits = Float[Tensor, "batch time vocab"]
Loss = Float[Tensor, ""]


def straight(block: nn.Module, *given: Any) -> Any:
    """Calls the block."""
    return block(*given)


def separate(given: Any) -> Any:
    """Returns the same numbers in contiguous tensors, all of them separate objects, as blocks
    return them. So the first compiled block shares the graph of the others."""
    met: set[int] = set()

    def own(x: Tensor) -> Tensor:
        again = id(x) in met
        met.add(id(x))
        return x.view_as(x) if again else x.contiguous()

    return tree_map_only(Tensor, own, given)


class Transformer(nn.Module):
    """x = smear(embed(position(scale * E[tokens])));  x = block(x) for each;
    logits = cap(logit_scale * head(final(x)))

    `enter_positions`, one of ORDERS, applies `scale` before or after positions are added. `smear`
    mixes each embedded token with the one before, or is nothing. A tied
    head reads the embedding's rows, and has no `bias`. `embed` and `final` hold a norm or nothing,
    and so does `rows`, for each row of E and of the head as they are read (fixnorm). `enter` is
    the start of several streams, before the first block; `constrain` is applied to the model at the
    start and after every optimizer step. `through` calls a block: plainly, compiled, or with
    activation checkpointing. The last of its inputs is a `ForwardState` if the model `gives` it.
    """

    config: Any = None  # what `build_model` built it from
    tokenizer: Any = None  # of its run, where `load` returned it
    through: Callable[..., Any] = staticmethod(straight)
    entering: Callable[..., Any] = staticmethod(nothing)  # `separate` where blocks are compiled

    def __init__(
        self,
        *,
        vocab_size: int,
        width: int,
        context: int,
        position: NoPosition,
        blocks: Sequence[nn.Module],
        tied: bool,
        bias: bool = False,
        scale: Layer = nothing,
        enter_positions: Callable[..., States] = position_last,
        embed: Layer = nothing,
        smear: Callable[..., States] = nothing,
        final: Layer = nothing,
        dropout: Layer = nothing,
        logit_scale: Layer = nothing,
        cap: Layer = nothing,
        rows: Layer = nothing,
        enter: Callable[..., Any] = nothing,
        constrain: Callable[..., Any] = nothing,
        gives: bool = False,
    ) -> None:
        super().__init__()
        self.vocab_size, self.width, self.context = vocab_size, width, context
        self.embedding = Embedding(vocab_size, width)
        self.position = position
        self.scale, self.embed, self.smear, self.dropout = scale, embed, smear, dropout
        self.enter_positions = enter_positions
        self.blocks = nn.ModuleList(blocks)
        self.final = final
        self.head = None if tied else Linear(width, vocab_size, bias=bias)
        self.logit_scale, self.cap = logit_scale, cap
        self.rows, self.enter, self.constrain = rows, enter, constrain
        self.gives = gives

    def forward(
        self, tokens: Tokens, targets: Tokens | None = None, *, cache: Sequence[Cache] | None = None
    ) -> Logits | tuple[Logits, Loss]:
        """Returns logits; with `targets`, the token that follows each, logits and the loss.

        The loss is the mean cross-entropy in nats, in float32 at least. Targets of -100 do not
        count. It is the loss that runs report, and with loss=cross_entropy the one they train on.
        `cache`, from `new_cache`, holds keys and values of the tokens before these.
        """
        logits = self.logits(self.states(tokens, cache))
        if targets is None:
            return logits
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, F.cross_entropy(wide.flatten(0, 1), targets.flatten())

    def states(self, tokens: Tokens, cache: Sequence[Cache] | None = None) -> States:
        """Returns the states that the head reads."""
        start, time = cache[0].length if cache else 0, tokens.shape[1]
        if start + time > self.context:
            raise ValueError(f"{start + time} tokens are more than the context of {self.context}")
        if tokens.is_cuda and cache is None and not torch.compiler.is_compiling():
            self.prepare(time, tokens.device)
        x = self.rows(self.embedding(tokens))
        if torch.is_autocast_enabled(x.device.type):  # else the stream would stay float32
            x = x.to(torch.get_autocast_dtype(x.device.type))
        x = self.embed(self.enter_positions(self.position, self.scale, x, start))
        x0 = self.dropout(self.smear(x, cache[0] if cache else None))
        x, angles = self.enter(x0, tokens), self.position.angles(start, time)
        x, x0 = self.entering((x, x0))
        state = (ForwardState(tokens),) if self.gives else ()
        for i, block in enumerate(self.blocks):
            x = self.through(block, x, x0, angles, cache[i] if cache else None, *state)
        return self.final(x)

    def prepare(self, time: int, device: torch.device) -> None:
        """Makes the masks that blocks read in a pass over `time` tokens. Call it before `states`
        where that is compiled whole. Else the compiled graph makes the masks in every call."""
        blocks: Any = self.blocks
        for block in blocks:
            getattr(block.attention.f.attend, "prepare", nothing)(time, device)

    def logits(self, states: States, aligned: int = 1) -> Float[Tensor, "*batch vocab"]:
        """Returns the logits of states. The product is padded to a multiple of `aligned` columns.
        The padding is cut off again."""
        weight: Tensor = self.embedding.weight
        bias: Tensor | None = None
        if self.head is not None:
            weight, bias = self.head.weight, self.head.bias
        rows = self.rows(weight)
        if more := -self.vocab_size % aligned:
            rows = F.pad(rows, (0, 0, 0, more))
            bias = None if bias is None else F.pad(bias, (0, more))
        logits = F.linear(states, rows, bias)[..., : self.vocab_size]
        return self.cap(self.logit_scale(logits))

    def __repr__(self) -> str:
        sizes = f"width {self.width}, context {self.context}, vocabulary {self.vocab_size}"
        count = sum(weight.numel() for weight in self.parameters())
        return f"Transformer({len(self.blocks)} blocks, {sizes}, {count:,} parameters)"

    __str__ = nn.Module.__repr__  # `print` shows all modules

    def norms(self) -> list[tuple[str, nn.Module]]:
        """Returns the name and the module of each norm; `place_of` says where it acts."""
        return [pair for pair in self.named_modules() if hasattr(pair[1], "norm_place")]

    def new_cache(self) -> list[Cache]:
        return [Cache() for _ in self.blocks]
