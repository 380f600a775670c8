"""Connections: how a sub-layer reads the streams of a residual path, and how it writes to them.

    x = read(X);  X = write(X, b * out(f(pre(x))))       around each sub-layer
    x = read(X);  X = write(X, mlp(attention(x)))        around each block, which may have any skips

A connection is a class with `read` and `write`, registered under its name. Each sub-layer has one
of its own, or each block. Its `enter` makes the streams X of the embedded tokens, before the first
block, and may read the tokens too. Its `leave` makes one stream of them, behind the last block, and
ends with the final norm. `parts` names the streams that a probe reads. A connection is `bounded` if
its streams cannot grow without a norm. The docstrings of the four are their formulas, which explain
shows.
Each of the three classes takes by name what it needs of these:

    width, index, count     features, and the number of this sub-layer or block, from 0, of `count`
    l                       the block's number, from 1
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
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Nothing, Number, Positive
from transformer_norms.model.coefficient import SCALAR
from transformer_norms.model.initialization import Linear, ZeroLinear
from transformer_norms.names import Registry
from transformer_norms.norms import Layer
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import exact
from transformer_norms.norms.rmsnorm import RMSNorm

CONNECTIONS = Registry("connection")
Stream = Float[Tensor, "batch time width"]
Streams = Float[Tensor, "batch time streams width"]
Pair = tuple[Stream, Stream]
Entries = tuple[Stream, ...]
Norm = Callable[[int], Layer]
MOST_STREAMS = 64
StreamCount = Annotated[Positive, Field(le=MOST_STREAMS)]
Iterations = Annotated[Positive, Field(le=1000)]
Scale = Annotated[Number, Field(ge=-100, le=100)]
FLOOR = 1e-5  # below which Gemma 3n takes no mean square to divide by


def build_part(part: Callable[..., Any], **given: Any) -> Any:
    """Returns part(...), with what it takes of what is given."""
    names = inspect.signature(part).parameters
    return part(**{name: value for name, value in given.items() if name in names})


def named_parts(block: Any, state: Any) -> Mapping[str, Tensor]:
    """Returns the streams that leave a block by name. A single stream has the empty name."""
    connection = getattr(block, "connection", None) or block.attention.connection
    parts: Mapping[str, Tensor] = {"": state} if connection is None else connection.parts(state)
    return parts


# ------------------------------------------------------------------------------------- one stream


class Same:
    """X = x0"""

    def __call__(self, x0: Stream, *_: Any) -> Stream:
        return x0


class Final(nn.Module):
    """final(X)"""

    def __init__(self, final: Layer) -> None:
        super().__init__()
        self.norm = final

    def forward(self, x: Stream) -> Stream:
        return self.norm(x)


@CONNECTIONS("geodesic")
class Geodesic(nn.Module):
    """X turns on its sphere towards u by an angle t, and keeps its length |X|. s = 1 and c = 0 at
    the start, both learned      GeoNorm, Zheng et al. 2026, arXiv:2601.22095

    v is what of u stands at right angles to X. Each length has eps added where it divides, so that
    u = 0 has a gradient.
    """

    enter, leave, bounded = Same, Final, True
    largest = math.pi / 4  # the angle

    def __init__(self, l: float, *, eps: Epsilon) -> None:  # noqa: E741
        super().__init__()
        self.l, self.eps = l, eps
        self.scale = nn.Parameter(torch.ones(SCALAR))
        self.bias = nn.Parameter(torch.zeros(SCALAR))

    def read(self, x: Stream) -> Stream:
        """X"""
        return x

    def write(self, x: Stream, u: Stream) -> Stream:
        """X = cos(t) X + sin(t) |X| v / |v|, v = u - (u . X) X / |X|**2, t = min((s * min(|v|/|X|,
        pi/4) + c) / l, pi/4)
        """
        z, y = wide(x), wide(u)
        size = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        divisor = size + self.eps
        across = y - (y * z).sum(-1, keepdim=True) / divisor.square() * z
        far = torch.linalg.vector_norm(across, dim=-1, keepdim=True) + self.eps
        angle = self.scale * (far / divisor).clamp(max=self.largest) + self.bias
        angle = (angle / self.l).clamp(max=self.largest)
        return (angle.cos() * z + angle.sin() * size * (across / far)).to(x.dtype)

    def parts(self, x: Stream) -> Mapping[str, Stream]:
        return {"": x}


# ------------------------------------------------------------------------------------ two streams


class Twice:
    """x = r = x0"""

    def __call__(self, x0: Stream, *_: Any) -> Pair:
        return x0, x0


class Join(nn.Module):
    """x + norm(r), norm being the final one"""

    def __init__(self, final: Layer) -> None:
        super().__init__()
        self.norm = final

    def forward(self, streams: Pair) -> Stream:
        x, r = streams
        return x + self.norm(r)


@CONNECTIONS("dual")
class Dual:
    """x is normed after every sub-layer, r is the plain sum      ResiDual, Xie et al. 2023,
    arXiv:2304.14802
    """

    enter, leave = Twice, Join

    def __init__(self, sub_layer: Any) -> None:
        self.sub_layer = sub_layer

    def read(self, streams: Pair) -> Stream:
        """x"""
        return streams[0]

    def write(self, streams: Pair, u: Stream) -> Pair:
        """x = post(x + u), r = r + u"""
        x, r = streams
        return self.sub_layer.post(x + u), r + u

    def parts(self, streams: Pair) -> Mapping[str, Stream]:
        return dict(zip("xr", streams, strict=True))


class NormedAndPlain(nn.Module):
    """x = norm(x0), r = x0"""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm(width)

    def forward(self, x0: Stream, *_: Any) -> Pair:
        return self.norm(x0), x0


class JoinNormed(nn.Module):
    """final(x + norm(r))"""

    def __init__(self, width: int, norm: Norm, final: Layer) -> None:
        super().__init__()
        self.second, self.norm = norm(width), final

    def forward(self, streams: Pair) -> Stream:
        x, r = streams
        return self.norm(x + self.second(r))


@CONNECTIONS("siamese")
class Siamese(nn.Module):
    """x is a post-norm's stream, r a pre-norm's      SiameseNorm, Li et al. 2026, arXiv:2602.08064

    The authors' code norms x before a sub-layer, here it is normed behind the one before: the same
    numbers.
    """

    enter, leave = NormedAndPlain, JoinNormed

    def __init__(self, width: int, l: float, norm: Norm) -> None:  # noqa: E741
        super().__init__()
        self.norm, self.post, self.divisor = norm(width), norm(width), math.sqrt(2 * l)

    def read(self, streams: Pair) -> Stream:
        """x + norm(r)"""
        x, r = streams
        return x + self.norm(r)

    def write(self, streams: Pair, u: Stream) -> Pair:
        """x = norm(x + u / sqrt(2*l)), r = r + u"""
        x, r = streams
        return self.post(x + u / self.divisor), r + u

    parts = Dual.parts


# -------------------------------------------------------------------------------------- n streams


class Copies:
    """X_1 = .. = X_n = x0"""

    def __init__(self, streams: int) -> None:
        self.streams = streams

    def __call__(self, x0: Stream, *_: Any) -> Streams:
        return x0.unsqueeze(-2).expand(-1, -1, self.streams, -1)


class Sum(nn.Module):
    """final(sum_i X_i)"""

    def __init__(self, final: Layer) -> None:
        super().__init__()
        self.norm = final

    def forward(self, streams: Streams) -> Stream:
        return self.norm(wide(streams).sum(-2).to(streams.dtype))


class Mixing(nn.Module):
    """n streams, each with its weights: `reading` gives a [.. n], `mixing` A [.. n n] and `writing`
    b [.. n], from the streams"""

    enter: Any = Copies
    leave: Any = Sum
    reading: Callable[[Tensor], Tensor]
    mixing: Callable[[Tensor], Tensor]
    writing: Callable[[Tensor], Tensor]

    def read(self, streams: Streams) -> Stream:
        """sum_i a_i X_i"""
        z = wide(streams)
        with exact(z.device.type):
            return torch.einsum("...i,...id->...d", self.reading(z), z).to(streams.dtype)

    def write(self, streams: Streams, u: Stream) -> Streams:
        """X_j = sum_i A_ij X_i + b_j u"""
        z = wide(streams)
        with exact(z.device.type):
            mixed = torch.einsum("...ij,...id->...jd", self.mixing(z), z)
            written = self.writing(z).unsqueeze(-1) * wide(u).unsqueeze(-2)
        return (mixed + written).to(streams.dtype)

    def parts(self, streams: Streams) -> Mapping[str, Streams]:
        return {"": streams}


@CONNECTIONS("hyper_connection")
class HyperConnection(Mixing):
    """a = e_(k mod n), A = 1, b = (1, .. 1) at the start, all learned; k is the number of the
    sub-layer      Hyper-Connections, Zhu et al. 2024, arXiv:2409.19606, static

    While all weights are what they start as, every stream is the
    stream of the residual block.
    """

    def __init__(self, width: int, index: int, *, streams: StreamCount) -> None:
        super().__init__()
        self.streams = streams
        self.read_weights = nn.Parameter(torch.eye(streams)[index % streams])
        self.mix_weights = nn.Parameter(torch.eye(streams))
        self.write_weights = nn.Parameter(torch.ones(streams))

    def reading(self, z: Tensor) -> Tensor:
        return self.read_weights

    def mixing(self, z: Tensor) -> Tensor:
        return self.mix_weights

    def writing(self, z: Tensor) -> Tensor:
        return self.write_weights


@CONNECTIONS("dynamic_hyper_connection")
class DynamicHyperConnection(HyperConnection):
    """a = e_(k mod n), A = 1, b = (1, .. 1) at the start, all learned, each + s * tanh(norm(X) W)
    with W = 0 at the start: one s for a and A, one for b; k is the sub-layer's number      Zhu et
    al. 2024, arXiv:2409.19606, dynamic

    The norm is a LayerNorm of each stream, without gain and bias.
    """

    def __init__(self, width: int, index: int, *, streams: StreamCount, scale: Scale) -> None:
        super().__init__(width, index, streams=streams)
        self.norm = LayerNorm(width, gain="none", bias=False)
        self.read_change = ZeroLinear(width, 1, bias=False)
        self.mix_change = ZeroLinear(width, streams, bias=False)
        self.write_change = ZeroLinear(width, 1, bias=False)
        self.read_scale = nn.Parameter(torch.full(SCALAR, scale))
        self.write_scale = nn.Parameter(torch.full(SCALAR, scale))

    def reading(self, z: Tensor) -> Tensor:
        change = self.read_change(self.norm(z)).squeeze(-1)
        return self.read_weights + self.read_scale * torch.tanh(change)

    def mixing(self, z: Tensor) -> Tensor:
        return self.mix_weights + self.read_scale * torch.tanh(self.mix_change(self.norm(z)))

    def writing(self, z: Tensor) -> Tensor:
        change = self.write_change(self.norm(z)).squeeze(-1)
        return self.write_weights + self.write_scale * torch.tanh(change)


class Gate(nn.Module):
    """scale * W z + bias, where z are the numbers of a token's streams, normed by their rms"""

    def __init__(self, width: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.projection = Linear(width, outputs, bias=False)
        self.scale = nn.Parameter(torch.full(SCALAR, scale))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * self.projection(z) + self.bias


class GatedSum(nn.Module):
    """final(sum_i a_i X_i), a = sigmoid(gate(X)) + eps"""

    def __init__(self, width: int, final: Layer, streams: int, scale: float, eps: float) -> None:
        super().__init__()
        self.rms = RMSNorm(streams * width, eps=eps, gain="none")
        self.gate, self.norm, self.eps = Gate(streams * width, streams, scale), final, eps

    def forward(self, streams: Streams) -> Stream:
        z = wide(streams)
        with exact(z.device.type):
            weights = torch.sigmoid(self.gate(self.rms(z.flatten(-2)))) + self.eps
            summed = torch.einsum("...i,...id->...d", weights, z)
        return self.norm(summed.to(streams.dtype))


@CONNECTIONS("manifold_hyper_connection")
class ManifoldHyperConnection(Mixing):
    """a = sigmoid(gate(X)) + eps, b = 2 * sigmoid(gate(X)), A = sinkhorn(exp(gate(X))), gate(X) =
    scale * W rms(X) + bias, rms over all streams of a token      mHC, Xie et al. 2025,
    arXiv:2512.24880

    The rows and columns of A sum to 1, so that the streams together neither grow nor shrink. As
    DeepSeek-V4 has it, the streams leave as a sum with weights such as a.
    """

    leave = GatedSum

    def __init__(
        self,
        width: int,
        *,
        streams: StreamCount,
        iterations: Iterations,
        scale: Scale,
        eps: Epsilon,
    ) -> None:
        super().__init__()
        self.streams, self.iterations, self.eps = streams, iterations, eps
        self.rms = RMSNorm(streams * width, eps=eps, gain="none")
        self.read_gate = Gate(streams * width, streams, scale)
        self.mix_gate = Gate(streams * width, streams**2, scale)
        self.write_gate = Gate(streams * width, streams, scale)

    def reading(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.read_gate(self.rms(z.flatten(-2)))) + self.eps

    def mixing(self, z: Tensor) -> Tensor:
        """Returns A. Its rows are divided by their sums, then its columns, and so on."""
        logits = self.mix_gate(self.rms(z.flatten(-2)))
        matrix = logits.unflatten(-1, (self.streams, self.streams)).softmax(-1) + self.eps
        matrix = matrix / (matrix.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.iterations - 1):
            matrix = matrix / (matrix.sum(-1, keepdim=True) + self.eps)
            matrix = matrix / (matrix.sum(-2, keepdim=True) + self.eps)
        return matrix

    def writing(self, z: Tensor) -> Tensor:
        return 2 * torch.sigmoid(self.write_gate(self.rms(z.flatten(-2))))


# ------------------------------------------------- n streams around a block: predict, then correct


@CONNECTIONS("altup")
class AltUp(nn.Module):
    """P_i = sum_j p_ij X_j, a = k mod n, p = 1 and g = (1, .. 1) at the start, all learned; k is
    the number of the block      AltUp, Baykal et al. 2023, arXiv:2301.13310

    The block k reads the stream a. What it makes of it corrects all streams, by the
    difference to what was predicted for a. Copies enter and their sum leaves, as in Recycled-AltUp.
    """

    enter: Any = Copies
    leave: Any = Sum

    def __init__(self, index: int, *, streams: StreamCount) -> None:
        super().__init__()
        self.active = index % streams
        self.predict_weights = nn.Parameter(torch.eye(streams))
        self.correct_weights = nn.Parameter(torch.ones(streams))

    def read(self, streams: Streams) -> Stream:
        """X_a"""
        return streams[..., self.active, :]

    def write(self, streams: Streams, u: Stream) -> Streams:
        """X_i = P_i + g_i (u - P_a)"""
        z, y = wide(streams), wide(u)
        with exact(z.device.type):
            predicted = self.predicted(z)
            innovation = y - predicted[..., self.active, :]
            corrected = predicted + self.gains(y).unsqueeze(-1) * innovation.unsqueeze(-2)
        return corrected.to(streams.dtype)

    def predicted(self, z: Tensor) -> Tensor:
        return torch.einsum("ij,...jd->...id", self.predict_weights, z)

    def gains(self, y: Tensor) -> Tensor:
        return self.correct_weights

    def parts(self, streams: Streams) -> Mapping[str, Streams]:
        return {"": streams}


def length(x: Tensor, floor: float = 0.0) -> Tensor:
    """sqrt(max(mean(x**2), floor)), over features"""
    return x.square().mean(-1, keepdim=True).clamp(min=floor).sqrt()


class Projections(nn.Module):
    """X_1 = x0; X_i = W_i x0, with the rms of x0, for the others"""

    def __init__(self, width: int, streams: int) -> None:
        super().__init__()
        linears = (Linear(width, width, bias=False) for _ in range(streams - 1))
        self.projections = nn.ModuleList(linears)

    def forward(self, x0: Stream, *_: Any) -> Streams:
        made = [wide(projection(x0)) for projection in self.projections]
        x = wide(x0)
        same = [y * (length(x) / length(y, FLOOR)) for y in made]
        return torch.stack([x, *same], -2).to(x0.dtype)


class MeanOfProjections(nn.Module):
    """final(mean of X_1 and the other W_i X_i, with the rms of X_1)"""

    def __init__(self, width: int, streams: int, final: Layer) -> None:
        super().__init__()
        linears = (Linear(width, width, bias=False) for _ in range(streams - 1))
        self.projections, self.norm = nn.ModuleList(linears), final

    def forward(self, streams: Streams) -> Stream:
        first, *rest = streams.unbind(-2)
        pairs = zip(self.projections, rest, strict=True)
        made = [wide(projection(x)) for projection, x in pairs]
        x = wide(first)
        same = [y * (length(x) / length(y, FLOOR)) for y in made]
        return self.norm(torch.stack([x, *same]).mean(0).to(first.dtype))


@CONNECTIONS("routed_altup")
class RoutedAltUp(AltUp):
    """P = (1 + W_p m(X_1)) X, g = 1 + W_g m(u), m(x) = tanh(W_m rmsnorm(x) / d), a = 1      AltUp
    of Gemma 3n, 2025; code huggingface/transformers, modeling_gemma3n.py

    The block reads what is predicted for the first stream.
    """

    enter, leave = Projections, MeanOfProjections

    def __init__(self, width: int, *, streams: StreamCount) -> None:
        nn.Module.__init__(self)
        self.active, self.streams, self.width = 0, streams, width
        self.norm = RMSNorm(width)
        self.router = Linear(width, streams, bias=False)
        self.predict_change = Linear(streams, streams**2, bias=False)
        self.correct_change = Linear(streams, streams, bias=False)

    def read(self, streams: Streams) -> Stream:
        """P_1"""
        z = wide(streams)
        with exact(z.device.type):
            return self.predicted(z)[..., 0, :].to(streams.dtype)

    def predicted(self, z: Tensor) -> Tensor:
        weights = self.predict_change(self.modalities(z[..., 0, :]))
        matrix = weights.unflatten(-1, (self.streams, self.streams))
        return z + torch.einsum("...ij,...jd->...id", matrix, z)

    def gains(self, y: Tensor) -> Tensor:
        return 1 + self.correct_change(self.modalities(y))

    def modalities(self, x: Tensor) -> Tensor:
        return torch.tanh(self.router(self.norm(x) / self.width))


# ------------------------------------------------------------------- all that sub-layers have added


class First:
    """X = (x0,)"""

    def __call__(self, x0: Stream, *_: Any) -> Entries:
        return (x0,)


class AttendingSum(nn.Module):
    """sum_i a_i X_i, a = softmax over i of w . rmsnorm(X_i), w = 0 at the start"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.norm = nn.Parameter(torch.zeros(width)), RMSNorm(width)

    def forward(self, entries: Entries) -> Stream:
        with exact(entries[0].device.type):
            keys = (self.norm(wide(entry)) for entry in entries)
            logits = [torch.einsum("...d,d->...", key, self.query) for key in keys]
            weights = torch.stack(logits).softmax(0).unsqueeze(-1)
            terms = [a * wide(x) for a, x in zip(weights, entries, strict=True)]
        return sum(terms[1:], terms[0]).to(entries[0].dtype)


class AttendAndNorm(nn.Module):
    """final(sum_i a_i X_i), a = softmax over i of w . rmsnorm(X_i)"""

    def __init__(self, width: int, final: Layer) -> None:
        super().__init__()
        self.attend, self.norm = AttendingSum(width), final

    def forward(self, entries: Entries) -> Stream:
        return self.norm(self.attend(entries))


@CONNECTIONS("attention_residual")
class AttentionResidual(nn.Module):
    """X has the embedded tokens and what each sub-layer added      Attention Residuals, Kimi Team
    2026, arXiv:2603.15031

    With `blocks`, it has one entry for each of so many groups of sub-layers, and u is added to the
    entry of its group. With w = 0 a sub-layer reads the mean of the entries, which is the stream of
    the residual block times a number.
    """

    enter, leave = First, AttendAndNorm

    def __init__(self, width: int, index: int, count: int, *, blocks: Nothing | Positive) -> None:
        super().__init__()
        size = 1 if blocks == "none" else -(-count // blocks)
        self.attend, self.begins = AttendingSum(width), index % size == 0

    def read(self, entries: Entries) -> Stream:
        """sum_i a_i X_i, a = softmax over i of w . rmsnorm(X_i)"""
        return self.attend(entries)

    def write(self, entries: Entries, u: Stream) -> Entries:
        """X = (*X, u), or u is added to the last entry"""
        return (*entries, u) if self.begins else (*entries[:-1], entries[-1] + u)

    def parts(self, entries: Entries) -> Mapping[str, Streams]:
        return {"": torch.stack(entries, -2)}


importlib.import_module(f"{__name__}.layer_inputs")  # which registers its own
