"""Connections: how a sub-layer reads the streams of a residual path, and how it writes to them.

    x = read(X);  X = write(X, b * out(f(pre(x))))       around each sub-layer
    x = read(X);  X = write(X, mlp(attention(x)))        around each block, which may have any skips

A connection is a class with `read` and `write`, registered under its name. Each sub-layer or each
block has its own. Its `enter` makes the streams X of the embedded tokens, before the first
block, and may read the tokens too. Its `leave` makes one stream of them, after the last block, and
ends with the final norm. `parts` names the streams that a probe reads. The docstrings of
`enter`, `read`, `write` and `leave` are their formulas, which explain shows.
The connection and the classes of its `enter` and `leave` take by name what they need of these:

    width, index, count     features, and the number of this sub-layer or block, from 0, of `count`
    l, depth                the block's number, from 1, of `depth`
    norm                    norm(width) builds the run's norm
    sub_layer               the sub-layer itself, whose norm at post an equation may state
    activation              that of the mlp
    vocab_size              how many tokens there are, for `enter`
    final                   the final norm, for `leave`
    the settings            of placement.connection

Weights that mix streams, and the sums that they weigh, are computed in float32 at least.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Number, Positive
from transformer_norms.names import Registry
from transformer_norms.norms import Layer

CONNECTIONS = Registry("connection")
Stream = Float[Tensor, "batch time width"]
Streams = Float[Tensor, "batch time streams width"]
Norm = Callable[[int], Layer]
MOST_STREAMS = 64
StreamCount = Annotated[Positive, Field(le=MOST_STREAMS)]
Scale = Annotated[Number, Field(ge=-100, le=100)]


class Connection(nn.Module):
    """A connection, of which a probe reads the first of what it keeps, under the empty name."""

    def parts(self, streams: Any) -> Mapping[str, Tensor]:
        return {"": streams[0] if isinstance(streams, tuple) else streams}


class Leave(nn.Module):
    """The end of a connection, which makes one stream and ends with the final norm, `norm`."""

    def __init__(self, final: Layer) -> None:
        super().__init__()
        self.norm = final


def build_part(part: Callable[..., Any], **given: Any) -> Any:
    """Returns part(...), with what it takes of what is given."""
    names = inspect.signature(part).parameters
    return part(**{name: value for name, value in given.items() if name in names})


def in_one_layout(streams: Streams) -> Streams:
    """Returns streams that a block has written, contiguous where it is compiled: else the blocks
    that read them have another graph than the first."""
    return streams.contiguous() if torch.compiler.is_compiling() else streams


def named_parts(block: Any, state: Any) -> Mapping[str, Tensor]:
    """Returns the streams that leave a block by name. A single stream has the empty name."""
    connection = getattr(block, "connection", None) or block.attention.connection
    parts: Mapping[str, Tensor] = {"": state} if connection is None else connection.parts(state)
    return parts


for _module in pkgutil.iter_modules(__path__):  # each registers its own
    importlib.import_module(f"{__name__}.{_module.name}")
