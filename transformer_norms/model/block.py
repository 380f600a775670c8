"""Computes a Transformer block. Read this file first.

`SubLayer.forward` is the equation of every placement with one residual stream. `ParallelBlock`
computes attention and mlp from one x. `StreamBlock` and `ConnectedBlock` have several streams.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.norms import Layer, nothing

Stream = Float[Tensor, "batch time width"]


class SubLayer(nn.Module):
    """y = post(a * h + c * start + c0 * x0 + b * out(f(pre(h))))      f is attention or mlp

    A placement chooses a norm or `nothing`, which returns its input, at `pre`, `out`, `post` and
    the sites inside f. It chooses a, c and c0 (`skip`) and b (`branch`). `start` is the stream as
    it entered the block, `x0` the embedded tokens. h is x, or the sum of x, start and x0 that
    `enter` computes. `skip` can also add a multiple of pre(h). Dropout acts before b. `connect`
    builds the connection to several streams, which is read before f and written to after it.
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
        connect: Callable[["SubLayer"], Any] | None = None,
    ) -> None:
        super().__init__()
        self.f, self.pre, self.out, self.post = f, pre, out, post
        self.enter, self.skip, self.branch, self.dropout = enter, skip, branch, dropout
        self.connection: Any = connect(self) if connect else None

    def forward(self, x: Stream, start: Stream, x0: Stream, *context: Any) -> Stream:
        h = self.enter(x, start, x0)
        return self.post(self.skip(h, start, x0) + self.update(h, *context))

    def update(self, x: Stream, *context: Any) -> Stream:
        """b * out(f(pre(x))), what the sub-layer adds to the stream"""
        return self.branch(self.dropout(self.out(self.f(self.pre(x), *context))))


class SerialBlock(nn.Module):
    """x -> attention -> mlp. `context` has what attention reads besides x: angles and cache."""

    def __init__(self, attention: SubLayer, mlp: SubLayer) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp

    def forward(self, x: Stream, x0: Stream, *context: Any) -> Stream:
        y = self.attention(x, x, x0, *context)
        return self.mlp(y, x, x0, *context)


class ParallelBlock(nn.Module):
    """y = x + attention(h) + mlp(h), h = pre(x)      GPT-J; PaLM, arXiv:2204.02311

    The block norms x once (`pre`), or each sub-layer norms x itself.
    """

    def __init__(self, attention: SubLayer, mlp: SubLayer, pre: Layer = nothing) -> None:
        super().__init__()
        self.attention, self.mlp, self.pre = attention, mlp, pre

    def forward(self, x: Stream, x0: Stream, *context: Any) -> Stream:
        h = self.pre(x)
        return x + self.attention.update(h, *context) + self.mlp.update(h, *context)


class StreamBlock(nn.Module):
    """x = read(X);  X = write(X, b * out(f(pre(x))))      for attention, and then for the mlp

    X holds any number of streams. The `connection` of each sub-layer reads and writes them, and
    applies the norm `post` of the two streams of `dual` (connections/).
    """

    def __init__(self, attention: SubLayer, mlp: SubLayer) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, streams: Any, x0: Stream, *context: Any) -> Any:
        for sub_layer in (self.attention, self.mlp):
            u = sub_layer.update(sub_layer.connection.read(streams), *context)
            streams = sub_layer.connection.write(streams, u)
        return streams


class ConnectedBlock(SerialBlock):
    """X = write(X, y), where y is the serial block's output for read(X)

    X holds any number of streams, and the block's own `connection` reads and writes them.
    """

    def __init__(self, attention: SubLayer, mlp: SubLayer, connection: Any) -> None:
        super().__init__(attention, mlp)
        self.connection = connection

    def forward(self, streams: Any, x0: Stream, *context: Any) -> Any:
        x = self.connection.read(streams)
        return self.connection.write(streams, super().forward(x, x0, *context))


BLOCKS = {
    "serial": SerialBlock,
    "parallel": ParallelBlock,
    "dual": StreamBlock,
    "streams": StreamBlock,
    "blocks": ConnectedBlock,
}
