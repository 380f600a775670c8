"""Measures the worth of each block of a trained model: how far it turns and changes the stream,
and the loss without it.

    python -m experiments.analyses.depth_use runs/main --out DIR
"""

# angle: arccos(cos)/pi of the stream before and after blocks, at the last token of a sequence, as
# Gromov et al. 2024, arXiv:2403.17887, have it. The curse of depth (Sun et al. 2025,
# arXiv:2502.05795) and Mix-LN (Li et al. 2024, arXiv:2412.13795) show it by block, and beside it
# what a model loses without one block: here in nats, on all of the text. The length of what a block
# adds over the stream's is that of Csordas et al. 2025, arXiv:2505.13898, who compare the deeper
# half with the first, as the summaries here do. Gradients by block are probes of training. Muted
# blocks are this project's: they tell what a block's norms on the stream do from the rest.

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from transformer_norms.analysis.command import models_parser, run_on_models
from transformer_norms.analysis.outcome import Analysis, Lines, Number, Row, View
from transformer_norms.analysis.trained.subjects import Loaded, Unmeasured
from transformer_norms.model.placement import read_placement
from transformer_norms.progress import Tell
from transformer_norms.training.probes import watch_streams

ANALYSIS = Analysis(
    "depth_use",
    "What each block is worth",
    numbers={
        "loss": Number("loss", "nats per token"),
        "angle": Number(
            "angle",
            "arccos(cos) / pi of the stream before and after a block, at the last tokens of "
            "sequences",
            compared=True,
        ),
        "update": Number(
            "update",
            "length of what a block changes the stream by over the stream's own",
            ".3f",
            compared=True,
        ),
        "rise": Number("rise, nats", "of the loss, without a block, nats per token", compared=True),
        "ratio": Number(
            "deep / first",
            "angle of the deeper half over that of the first half",
            ".3f",
            compared=True,
        ),
        "angle_muted": Number(
            "muted angle",
            "the same, of blocks whose sub-layers add nothing, and whose norms on the stream stay",
        ),
        "update_muted": Number("muted update", format=".3f"),
        "rise_muted": Number("muted rise"),
    },
    legend="Means over the blocks of the deeper half.",
    views=(
        View(
            "block",
            ("block",),
            {
                "angle": Number(
                    "angle",
                    "arccos(cos) / pi of the stream before and after the block, mean over the last "
                    "tokens of sequences (0 the same, 0.5 orthogonal)",
                ),
                "angle_all_tokens": Number("of all", "of all tokens"),
                "update": Number(
                    "update",
                    "length of what the block changes the stream by over the stream's own, mean "
                    "over tokens",
                    ".4g",
                ),
                "rms": Number("rms", "of the stream after the block", ".4g"),
                "loss_without": Number("loss without"),
                "rise": Number("rise", "of the loss without the block, nats per token", "+.4f"),
            },
            alone=True,
        ),
        View(
            "block",
            ("block",),
            {
                "angle_muted": Number("angle", "of the stream before and after"),
                "update_muted": Number("update", "over the stream's own length", ".4g"),
                "loss_muted": Number("loss"),
                "rise_muted": Number("rise", "of the loss, with this block muted", "+.4f"),
            },
            "The same blocks, each muted: it computes what it keeps for later ones, and its "
            "sub-layers add nothing. Only its norms on the stream and the coefficients of its "
            "skips act.",
            alone=True,
        ),
    ),
    panels=(
        Lines("block", "block", "angle", "block", "angle across the block"),
        Lines("block", "block", "rise", "block", "rise of the loss without it, nats", level=0.0),
        Lines("block", "block", "update", "block", "update / stream", log="y"),
    ),
    limits=(
        "The rise of the loss without a block is that of this model, which never learned to do "
        "without it; a model trained without it may do as well.",
        "Two blocks may stand in for each other: rises do not add up.",
        "Where a norm stands on the stream, as in post-norm, the block that is left out takes its "
        "norm with it, and angle and update hold what the norm does; a muted block keeps the "
        "norm. Of two streams, x is measured.",
    ),
)


@dataclass(frozen=True)
class Depth:
    """Holds the measures of a model of N blocks. `angles` [N + 1, N + 1] has the mean angular
    distance between all boundaries, at last tokens, `of_all` at all tokens. The rest has a number
    for each block: `update`, `rms`, the loss `without` it (nan if later blocks use what it keeps),
    and of the muted block the loss and what it does to the stream."""

    loss: float
    tokens: int
    angles: np.ndarray
    of_all: np.ndarray
    update: np.ndarray
    rms: np.ndarray
    without: np.ndarray
    muted: np.ndarray
    muted_turns: np.ndarray
    muted_update: np.ndarray

    @property
    def turns(self) -> np.ndarray:
        """The angular distance across each block."""
        return np.diagonal(self.angles, 1)

    @property
    def rises(self) -> np.ndarray:
        return self.without - self.loss

    @property
    def notes(self) -> list[str]:
        """Says which blocks are not left out, and why."""
        notes = ["of two blocks, the deeper half is block 2 alone"] * (len(self.rms) == 2)
        if kept := [str(i) for i, loss in enumerate(self.without, start=1) if np.isnan(loss)]:
            blocks = f"block{'s' * (len(kept) > 1)} {', '.join(kept)}"
            why = "later blocks use values, or keys and values, that are computed there"
            notes.append(f"{blocks} cannot be left out, only muted: {why}")
        return notes

    @property
    def numbers(self) -> dict[str, float]:
        """Means over the deeper half. Its last block can be left out in every model."""
        half = len(self.rms) // 2  # of an odd number the middle one is deep
        first = max(self.turns[:half].mean(), np.finfo(float).tiny)
        return {
            "angle": float(self.turns[half:].mean()),
            "update": float(self.update[half:].mean()),
            "rise": float(np.nanmean(self.rises[half:])),
            "ratio": float(self.turns[half:].mean() / first),
            "angle_muted": float(self.muted_turns[half:].mean()),
            "update_muted": float(self.muted_update[half:].mean()),
            "rise_muted": float((self.muted - self.loss)[half:].mean()),
        }

    @property
    def rows(self) -> Iterator[Row]:
        """The model, its blocks, and each pair of boundaries: after block `first` and `last`."""
        yield {"loss": self.loss, **self.numbers}
        columns = {
            "angle": self.turns,
            "angle_all_tokens": np.diagonal(self.of_all, 1),
            "update": self.update,
            "rms": self.rms,
            "loss_without": self.without,
            "rise": self.rises,
            "loss_muted": self.muted,
            "angle_muted": self.muted_turns,
            "update_muted": self.muted_update,
            "rise_muted": self.muted - self.loss,
        }
        for i in range(len(self.rms)):
            numbers = {key: float(each[i]) for key, each in columns.items()}
            shown = {key: None if np.isnan(x) else x for key, x in numbers.items()}
            yield {"kind": "block", "block": i + 1, **shown}
        for i, j in zip(*np.triu_indices(len(self.angles), 1), strict=True):
            ends = {"first": int(i), "last": int(j), "angle": float(self.angles[i, j])}
            yield {"kind": "span", **ends, "angle_all_tokens": float(self.of_all[i, j])}


def measure_rows(loaded: Loaded, tell: Tell, typed: Namespace) -> Iterator[Row | str]:
    depth = measure(loaded, tell)
    yield from depth.notes
    yield from depth.rows


def main(arguments: Sequence[str] | None = None) -> int:
    return run_on_models(ANALYSIS, measure_rows, models_parser(__doc__), arguments)


# ------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def measure(loaded: Loaded, tell: Tell) -> Depth:
    """Reads the stream at all boundaries, and evaluates the model with each block muted, and
    without it."""
    model, depth = loaded.model, len(loaded.model.blocks)
    if depth < 2:
        raise Unmeasured("has one block; depth is measured from two blocks on")
    connection = read_placement(loaded.config.placement).connection
    if connection.get("inputs"):
        raise Unmeasured("its blocks take their inputs in turn, and none can be left out")

    def evaluate(words: str) -> float:
        return loaded.evaluate(partial(tell, f"{words}, token {{:.0f}}/{{:.0f}}"))

    whole = Boundaries(range(depth + 1))
    with watch_streams(model, whole):
        loss = evaluate("whole")
    blocks, muted, without = model.blocks, [], []
    around = [Boundaries(range(i, i + 2)) for i in range(depth)]
    for i, block in enumerate(blocks):
        with mute(block), watch_streams(model, around[i]):
            muted.append(evaluate(f"block {i + 1} of {depth} muted"))
        if any(getattr(module, "shares_kv", False) for module in block.modules()):
            without.append(np.nan)
            continue
        if not (connection or around[i].sums.update.any()):  # it does nothing at all
            without.append(muted[i])
            continue
        try:
            model.blocks = nn.ModuleList(other for other in blocks if other is not block)
            without.append(evaluate(f"without block {i + 1} of {depth}"))
        finally:
            model.blocks = blocks
    angles, _, updates, _ = map(np.array, zip(*(b.sums.means() for b in around), strict=True))
    return Depth(
        loss,
        loaded.tokens_read,
        *whole.sums.means(),
        np.array(without),
        np.array(muted),
        np.where(updates[:, 0], angles[:, 0, 1], 0.0),  # where rounding would make an angle
        updates[:, 0],
    )


@contextmanager
def mute(block: Any) -> Iterator[None]:
    """Inside it the sub-layers of the block add nothing to the stream. They are computed all the
    same, for what they keep for later blocks."""
    sub_layers = block.attention, block.mlp
    for sub_layer in sub_layers:
        vars(sub_layer)["update"] = partial(_nothing_of, sub_layer.update)
    try:
        yield
    finally:
        for sub_layer in sub_layers:
            del vars(sub_layer)["update"]


def _nothing_of(update: Any, *given: Any) -> Tensor:
    return torch.zeros_like(update(*given))


class Boundaries:
    """Adds the streams at the boundaries `places` to sums: 0 enters the first block, and n leaves
    block n. Unmeasured where blocks hand on several streams at once."""

    def __init__(self, places: range) -> None:
        self.places = places
        self.sums, self.streams = Sums(len(places) - 1), list[Tensor]()

    def __call__(self, part: str, i: int | None, x: Tensor) -> None:
        if part == "r" or (0 if i is None else i + 1) not in self.places:
            return
        if x.dim() > 3:
            why = "its blocks hand on several streams at once, and depth is measured of one"
            raise Unmeasured(why)
        self.streams.append(x.detach())
        if len(self.streams) == len(self.places):
            for rows in zip(*self.streams, strict=True):
                self.sums.add(torch.stack([row.double() for row in rows]))
            self.streams.clear()


class Sums:
    """Sums over sequences of what is measured of the streams at the boundaries of a sequence."""

    def __init__(self, depth: int) -> None:
        self.angles = np.zeros((depth + 1, depth + 1))
        self.of_all = np.zeros((depth + 1, depth + 1))
        self.update, self.squares = np.zeros(depth), np.zeros(depth)
        self.sequences = self.tokens = 0

    def add(self, x: Float64[Tensor, "boundaries time width"]) -> None:
        lengths = x.norm(dim=-1)
        unit = x / lengths[..., None].clamp_min(torch.finfo(x.dtype).tiny)
        cosines = torch.einsum("itd,jtd->ijt", unit, unit).clamp(-1, 1)
        angles = (cosines.arccos() / torch.pi).cpu().numpy()
        for n in range(len(angles)):
            angles[n, n] = 0.0  # where rounding would make an angle
        self.angles += angles[..., -1]
        self.of_all += angles.sum(-1)
        changes = (x[1:] - x[:-1]).norm(dim=-1) / lengths[:-1]
        self.update += changes.sum(-1).cpu().numpy()
        self.squares += x[1:].square().mean(-1).sum(-1).cpu().numpy()
        self.sequences += 1
        self.tokens += x.shape[1]

    def means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Angles at last tokens and at all, updates, and the rms of the stream."""
        return (
            self.angles / self.sequences,
            self.of_all / self.tokens,
            self.update / self.tokens,
            (self.squares / self.tokens) ** 0.5,
        )


if __name__ == "__main__":
    sys.exit(main())
