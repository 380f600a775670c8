"""Noise on the outputs of norms, and how far it moves attention.

    vector: y + size * rms(y) * z      z ~ N(0, 1) for each feature of each token
    length: y * (1 + size * z)         z ~ N(0, 1) for each token

z depends on the typed seed, on the sub-layer that reads y, on the window of text, and on nothing
else: models of one shape get the same noise, whatever their norms, and so do all sizes.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_norms.model.attentions.heads import AllHeads, PerHead
from transformer_norms.model.coefficient import Scaled
from transformer_norms.model.sites import HEAD_SITES
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms.parts.affine import wide

Output = Float[Tensor, "batch time ..."]
KINDS = ("vector", "length")
# Whose norms are perturbed: those that attention reads, or those that any sub-layer reads.
READERS = {"attention": ("attention",), "sub-layers": ("attention", "mlp")}
QUERIES = 64  # of a window, whose attention is compared
SHARP = 0.5  # a query is sharp if one key has more weight than this
WRAPPERS = (Scaled, AllHeads, PerHead)  # what a norm stands in
# The norms whose outputs the sub-layer (block, name) reads: paths of modules by the name of the
# noise.
Read = Mapping[tuple[int, str], Mapping[str, str]]


@dataclass(frozen=True)
class Setting:
    """The noise of one pass: `readers` is one of READERS, `kind` one of KINDS, and `size` relative
    to the rms of what is perturbed."""

    readers: str
    kind: str
    size: float


# ------------------------------------------------------------------------ which norms are perturbed


@torch.no_grad()
def norms_read(model: Transformer, tokens: Int[Tensor, "batch time"]) -> Read:
    """Finds for each sub-layer the norm whose output is the very tensor that the sub-layer reads,
    wherever it stands: before it, behind the one before, on the embedding. Attention that reads no
    norm has those on its queries, keys and values instead, if it has these."""
    norms = dict(model.norms())
    norms |= {path: m for path, m in model.named_modules() if isinstance(m, WRAPPERS)}
    outputs: dict[tuple[int, Any], str] = {}
    kept: list[Tensor] = []  # a tensor that is gone would lend its memory to another one
    read: dict[tuple[int, str], dict[str, str]] = {}

    def keep(path: str, y: Tensor) -> None:
        kept.append(y)
        outputs[y.data_ptr(), y.shape] = path

    def find(i: int, name: str, f: nn.Module, x: Tensor) -> None:
        path = outputs.get((x.data_ptr(), x.shape))
        inside = () if path or name != "attention" else HEAD_SITES
        heads = {f"{i}.{name}.{site}": f"blocks.{i}.{name}.f.{site}" for site in inside}
        found = {f"{i}.{name}": path} if path else heads
        read[i, name] = {place: path for place, path in found.items() if path in norms}

    with ExitStack() as stack:
        for path, module in norms.items():
            hook = module.register_forward_hook(lambda m, given, y, path=path: keep(path, y))
            stack.callback(hook.remove)
        for i, block in enumerate(model.blocks):
            for name in READERS["sub-layers"]:
                f = getattr(block, name).f
                hook = f.register_forward_pre_hook(
                    lambda m, given, i=i, name=name: find(i, name, m, given[0])
                )
                stack.callback(hook.remove)
        model.states(tokens)
    return read


def sites_read(read: Read, name: str) -> str:
    """`mlp.post (15 of 16)`: the sites whose norms the sub-layers `name` read, and how many of
    these read one; `none` where none does."""
    own = [list(paths.values()) for (_, kind), paths in read.items() if kind == name]
    full = [paths for paths in own if paths]
    names = dict.fromkeys(
        re.sub(r"^blocks\.\d+\.|\.f(?=\.)|\.norm$", "", path) for paths in full for path in paths
    )
    if not names:
        return "none"
    return ", ".join(names) + ("" if len(full) == len(own) else f" ({len(full)} of {len(own)})")


# ---------------------------------------------------------------------------------------- the noise


class Noise:
    """Changes the outputs of norms as a setting says. `window` is the number of the first window
    of a batch."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed, self.window = setting, seed, 0

    def __call__(self, place: str, y: Output) -> Output:
        x, size, length = wide(y), self.setting.size, self.setting.kind == "length"
        shape = (*y.shape[1:-1], 1) if length else tuple(y.shape[1:])
        z = torch.stack([self.draw(place, self.window + n, shape) for n in range(len(y))])
        z = z.to(x.device, x.dtype)
        rms = x.square().mean(-1, keepdim=True).sqrt()
        return (x * (1 + size * z) if length else x + size * rms * z).to(y.dtype)

    def draw(self, place: str, window: int, shape: tuple[int, ...]) -> Tensor:
        """Normal numbers, drawn on the CPU and in float32 whatever the model's are."""
        words = f"{self.seed} {self.setting.kind} {place} {window}"
        digest = hashlib.sha256(words.encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.randn(shape, generator=generator)


@contextmanager
def perturb(model: Transformer, read: Read, noise: Noise) -> Iterator[None]:
    """Inside it `noise` changes what the norms give that a setting names. A norm that several
    sub-layers read has the noise of the first of them."""
    places: dict[str, str] = {}
    for (_, name), paths in read.items():
        if name in READERS[noise.setting.readers]:
            for place, path in paths.items():
                places.setdefault(path, place)
    with ExitStack() as stack:
        for path, place in places.items():
            hook = model.get_submodule(path).register_forward_hook(
                lambda m, given, y, place=place: noise(place, y)
            )
            stack.callback(hook.remove)
        yield


# ------------------------------------------------------------------------------------ the attention


@contextmanager
def watch_attention(
    model: Transformer, read: Callable[[int, Float[Tensor, "batch heads queries keys"]], None]
) -> Iterator[None]:
    """Calls `read` with a block and its attention: the softmax of the numbers that the model's own
    attention gives for QUERIES queries at even distances. A sink is the last key."""
    blocks: Any = model.blocks
    with ExitStack() as stack:
        for i, block in enumerate(blocks):

            def attend(module: Any, given: tuple[Tensor, ...], i: int = i) -> None:
                q, k, *_ = given
                at = query_positions(q.shape[2]).to(q.device)
                read(i, module.logits(q[:, :, at], k, at).softmax(-1))

            hook = block.attention.f.attend.register_forward_pre_hook(attend)
            stack.callback(hook.remove)
        yield


def query_positions(time: int) -> Int[Tensor, " queries"]:
    """All positions, or QUERIES of them at even distances, the first and the last among them."""
    if time <= QUERIES:
        return torch.arange(time)
    return torch.linspace(0, time - 1, QUERIES, dtype=torch.float64).round().long()


class Shift:
    """How far attention has moved from what it was, summed over queries and heads, by block."""

    def __init__(self, depth: int) -> None:
        # total variation, most attended key changed, sharp, sharp and changed, all
        self.sums = torch.zeros(depth, 5, dtype=torch.float64)

    def add(self, attention: Mapping[int, Tensor], i: int, after: Tensor) -> None:
        """Compares block i's attention with what it was."""
        before = attention[i]
        distance = (after - before).abs().sum(-1) / 2
        changed = after.argmax(-1) != before.argmax(-1)
        sharp = before.amax(-1) > SHARP
        each = (distance, changed, sharp, sharp & changed, torch.ones_like(sharp))
        self.sums[i] += torch.stack([x.sum(dtype=torch.float64) for x in each]).cpu()

    @property
    def means(self) -> "Moved":
        distance, changed, sharp, both, count = self.sums.T
        share = torch.where(sharp > 0, both / sharp, torch.zeros_like(both))
        columns = (distance / count, changed / count, sharp / count, share)
        return Moved(*(column.tolist() for column in columns))


@dataclass(frozen=True)
class Moved:
    """Block by block: the mean total variation distance, the share of queries and heads whose most
    attended key is another one, the share of sharp ones, and of these the share that changed."""

    distance: Sequence[float]
    changed: Sequence[float]
    sharp: Sequence[float]
    changed_sharp: Sequence[float]
