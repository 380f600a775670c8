"""Read this file first: the block, for every placement that is one stream in series.

`ParallelBlock` and `DualBlock` below compute the other two forms: sub-layers side by side, and two
streams.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.norms import Layer, nothing

Stream = Float[Tensor, "batch time width"]


class SubLayer(nn.Module):
    """y = post(a * h + c * start + c0 * x0 + b * out(f(pre(h))))      f is attention or mlp

    Every placement is a choice of what stands at `pre`, `out` and `post` (a norm or nothing), at
    the sites inside f, and of the coefficients a, c and c0 (`skip`) and b (`branch`). `start` is
    the stream as it entered the block, `x0` the embedded tokens. h is x, unless `enter` mixes it
    with them. Dropout acts before b.
    """

    def __init__(
        self,
        f: nn.Module,
        pre: Layer = nothing,
        out: Layer = nothing,
        post: Layer = nothing,
        enter: Layer = nothing,
        skip: Layer = nothing,
        branch: Layer = nothing,
        dropout: Layer = nothing,
    ) -> None:
        super().__init__()
        self.f, self.pre, self.out, self.post = f, pre, out, post
        self.enter, self.skip, self.branch, self.dropout = enter, skip, branch, dropout

    def forward(self, x: Stream, start: Stream, x0: Stream, *context: Any) -> Stream:
        h = self.enter(x, start, x0)
        return self.post(self.skip(h, start, x0) + self.update(h, *context))

    def update(self, x: Stream, *context: Any) -> Stream:
        """b * out(f(pre(x))), what the sub-layer adds to the stream"""
        return self.branch(self.dropout(self.out(self.f(self.pre(x), *context))))


class SerialBlock(nn.Module):
    """x -> attention -> mlp. `context` is what attention needs besides x: angles and cache."""

    def __init__(self, attention: SubLayer, mlp: SubLayer) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp

    def forward(self, x: Stream, x0: Stream, *context: Any) -> Stream:
        y = self.attention(x, x, x0, *context)
        return self.mlp(y, x, x0, *context)


class ParallelBlock(nn.Module):
    """y = x + attention(h) + mlp(h), h = pre(x)      GPT-J; PaLM, arXiv:2204.02311

    Both sub-layers read the same x, through one norm (`pre`) or each through its own.
    """

    def __init__(self, attention: SubLayer, mlp: SubLayer, pre: Layer = nothing) -> None:
        super().__init__()
        self.attention, self.mlp, self.pre = attention, mlp, pre

    def forward(self, x: Stream, x0: Stream, *context: Any) -> Stream:
        h = self.pre(x)
        return x + self.attention.update(h, *context) + self.mlp.update(h, *context)


class DualBlock(nn.Module):
    """u = b * out(f(pre(x)));  x = post(x + u);  r = r + u      ResiDual, arXiv:2304.14802

    x is normed after every sub-layer, r is the plain sum. Both begin as the embedded tokens and
    meet at the end of the model, in `Join`.
    """

    def __init__(self, attention: SubLayer, mlp: SubLayer) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(
        self, streams: tuple[Stream, Stream], x0: Stream, *context: Any
    ) -> tuple[Stream, Stream]:
        x, r = streams
        for sub_layer in (self.attention, self.mlp):
            u = sub_layer.update(x, *context)
            x, r = sub_layer.post(x + u), r + u
        return x, r


class Join(nn.Module):
    """x + norm(r): the end of a model of `DualBlock`s, its final norm inside"""

    def __init__(self, norm: Layer) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, streams: tuple[Stream, Stream]) -> Stream:
        x, r = streams
        return x + self.norm(r)


def twice(x: Stream) -> tuple[Stream, Stream]:
    return x, x


class Topology(NamedTuple):
    """A block's class, and what stands before the first and after the last of them."""

    block: Callable[..., nn.Module]
    enter: Callable[..., Any] = nothing
    leave: Callable[..., Any] = nothing  # final norm -> what stands in its place


TOPOLOGIES = {
    "serial": Topology(SerialBlock),
    "parallel": Topology(ParallelBlock),
    "dual": Topology(DualBlock, enter=twice, leave=Join),
}
