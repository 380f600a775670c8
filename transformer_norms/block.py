"""Read this file first: the block, for every placement that is one stream in series."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.norms import nothing

Stream = Float[Tensor, "batch time width"]


class SubLayer(nn.Module):
    """y = post(a * x + b * out(f(pre(x))))      f is the attention or the mlp

    Every placement is a choice of what stands at `pre`, `out` and `post` (a norm or nothing), at
    the sites inside f, and of the coefficients a (`skip`) and b (`branch`). `start` is the stream
    as it entered the block, for skips that reach that far back.
    """

    def __init__(
        self,
        f: nn.Module,
        pre: Callable[..., Any] = nothing,
        out: Callable[..., Any] = nothing,
        post: Callable[..., Any] = nothing,
        skip: Callable[..., Any] = nothing,
        branch: Callable[..., Any] = nothing,
        dropout: Callable[..., Any] = nothing,
    ) -> None:
        super().__init__()
        self.f, self.pre, self.out, self.post = f, pre, out, post
        self.skip, self.branch, self.dropout = skip, branch, dropout

    def forward(self, x: Stream, start: Stream, *context: Any) -> Stream:
        f = self.out(self.f(self.pre(x), *context))
        return self.post(self.skip(x, start) + self.branch(self.dropout(f)))


class SerialBlock(nn.Module):
    """x -> attention -> mlp. `context` is what attention needs besides x: angles and cache."""

    def __init__(self, attention: SubLayer, mlp: SubLayer) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp

    def forward(self, x: Stream, *context: Any) -> Stream:
        y = self.attention(x, x, *context)
        return self.mlp(y, x, *context)


TOPOLOGIES = {"serial": SerialBlock}
