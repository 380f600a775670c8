"""How noise on the outputs of norms moves attention and raises the loss, and the loss on longer and
on foreign text.

    python -m experiments.analyses.collapse runs/main --foreign page.txt --out DIR
"""

# Menary et al. 2024, arXiv:2406.17837, model the interference of subspaces through their common
# norm as noise on the lengths of queries, keys and values. They call it circuit collapse if sparse
# attention shifts to another token, and report a rate of 1 % where lengths are perturbed by about
# 10 %, in models of addition. Here the noise is on what norms give: noise of length scales a token,
# hence its query, key and value alike, and noise of the whole vector is ours, as are the measures
# on all attention, on text, and on the loss. README.md says more.

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_norms.analysis.command import models_parser, run_on_models
from transformer_norms.analysis.outcome import Analysis, Lines, Number, Row, Rows, View, of_kind
from transformer_norms.analysis.trained.subjects import Loaded, Unmeasured
from transformer_norms.commands.terminal import typed_path
from transformer_norms.progress import Tell

from .longer_text import Positions, losses_by_position, multiples
from .norm_noise import (
    KINDS,
    READERS,
    Moved,
    Noise,
    Read,
    Setting,
    Shift,
    norms_read,
    perturb,
    sites_read,
    watch_attention,
)

SIZES = "0.01,0.03,0.1,0.3"
TENTH = 0.1  # the size that is always measured, and that models are compared at
LARGEST = 10.0
PRIMARY = Setting("sub-layers", "vector", TENTH)
COLUMNS = {  # of the rises of the loss
    (readers, kind): f"{'all' if readers == 'sub-layers' else readers}, {kind}"
    for readers, kind in product(READERS, KINDS)
}


def at_a_tenth(kind: str, rows: Rows) -> Rows:
    """How far attention moved in each block by noise of a tenth on what attention reads."""
    return [
        row for row in of_kind(rows, "block")
        if (row["norms"], row["noise"], row["size"]) == ("attention", kind, TENTH)
    ]  # fmt: skip


def blocks(rows: Rows) -> Rows:
    """The same with noise of both kinds in one row."""
    pairs = zip(at_a_tenth("vector", rows), at_a_tenth("length", rows), strict=True)
    return [{**length, "vector_distance": vector["distance"], "vector_changed": vector["changed"]}
            for vector, length in pairs]  # fmt: skip


def longest(rows: Rows) -> Rows:
    """The positions of the longest windows of each model."""
    own = [row for row in of_kind(rows, "position") if row["text"] == "own"]
    most = max((row["tokens"] for row in own), default=0)
    usual = min((row["tokens"] for row in own), default=0)
    return [row for row in own if row["tokens"] == most > usual]


ANALYSIS = Analysis(
    "collapse",
    "Noise on norms, and longer text",
    numbers={
        "loss": Number("loss", "without noise"),
        "rise": Number(
            "rise",
            "rise of the loss when every norm that a sub-layer reads has noise of a tenth of its "
            "rms, in nats per token",
            compared=True,
        ),
        "rise_length": Number(
            "by length", "the same when the noise is on its length only", compared=True
        ),
        "longer": Number(
            "4x text",
            "loss on windows of 4 times the length less that on the usual, same text",
            ".3f",
            compared=True,
        ),
        "foreign": Number(
            "foreign", "loss on the foreign text less that on the own", ".3f", compared=True
        ),
        "distance": Number(
            "distance",
            "total variation of attention, mean over blocks, heads and tokens, when the norms "
            "that attention reads have noise of a tenth of their rms",
            compared=True,
        ),
        "changed": Number(
            "changed, %",
            "share of heads and tokens whose most attended key is then another one",
            ".2f",
            compared=True,
        ),
        "changed_length": Number(
            "by length, %", "the same when the noise is on their length only", ".3f", compared=True
        ),
    },
    views=(
        View(
            "noise",
            ("noise",),
            {heading: Number(heading) for heading in COLUMNS.values()},
            "Rise of the loss in nats per token, by the size of the noise over the rms of what a "
            "norm gives. attention: the norms that attention reads; all: those that attention or "
            "an mlp reads. vector: independent noise on each feature; length: a token's features "
            "are multiplied by one number, 1 + noise.",
        ),
        View(
            blocks,
            ("block",),
            {
                "vector_distance": Number(
                    "distance",
                    "total variation, half of the summed changes of weights, mean over heads and "
                    "tokens",
                ),
                "vector_changed": Number(
                    "changed",
                    "share of heads and tokens whose most attended key is another one",
                    ".2%",
                ),
                "distance": Number("length: distance"),
                "changed": Number("changed", format=".2%"),
                "sharp": Number(
                    "sharp", "share of those that gave one key more than half before", ".2%"
                ),
                "changed_sharp": Number(
                    "of sharp",
                    "how many of these changed, under noise on the length only (circuit collapse)",
                    ".2%",
                ),
            },
            "Attention by block, when the norms that attention reads have noise of a tenth of "
            "their rms.",
            alone=True,
        ),
        View(
            "windows",
            ("windows",),
            {
                "tokens": Number("tokens", format="d"),
                "loss": Number("loss", "of all tokens"),
                "loss_after": Number("after", "of the tokens after the usual length"),
                "loss_usual": Number(
                    "in usual",
                    "of the same tokens, read in windows of the usual length, with fewer tokens "
                    "before them",
                ),
                "rise": Number("rise", "after less in usual", "+.4f"),
            },
            "Loss on the same text in windows of more tokens. Tokens up to the usual length read "
            "there what they read in long windows.",
            alone=True,
        ),
        View(
            "norms",
            (),
            {"attention_reads": Number("attention reads"), "mlp_reads": Number("an mlp reads")},
            "The norms that are perturbed, by their sites: those whose output a sub-layer reads as "
            "it is. Attention that reads none has those on its queries, keys and values. A norm "
            "on the stream gives noise to the stream as well.",
        ),
    ),
    panels=(
        Lines("noise", "noise", COLUMNS["sub-layers", "vector"], "noise / rms, all norms",
              "rise of the loss, nats", log="x", level=0.0, linear=1e-3),
        Lines(partial(at_a_tenth, "vector"), "block", "distance", "block",
              "distance of attention, noise 0.1"),
        Lines(partial(at_a_tenth, "length"), "block", "changed", "block",
              "other key first, length noise 0.1"),
        Lines(longest, "end", "rise", "position", "loss less that in usual windows, nats",
              log="x", level=0.0),
    ),
    limits=(
        "Noise that is random in all directions is not the interference that training left in a "
        "model, and has not its size.",
        "A norm on the stream, as in post-norm, hands its noise on to all that follows; before a "
        "sub-layer it ends in that sub-layer. Their rises say what noise does there, and not which "
        "placement makes less of it.",
        "Norms on queries, keys and values have three noises, after the matrices, where a norm "
        "before attention has one, before them: the distances of such placements are not of one "
        "noise.",
        "Attention of a block also moves since the blocks before it were perturbed. A block whose "
        "attention reads no norm counts in means all the same; the first one has zero.",
        "A most attended key that changes among equals means little: `sharp` says how many had "
        "one.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Collapse:
    """Holds the measures of one model: the loss without noise, and by setting the loss and how far
    attention moved; the loss by position on windows of several lengths, and on foreign text."""

    loss: float
    tokens: int
    losses: Mapping[Setting, float]
    moved: Mapping[Setting, Moved]
    sites: Mapping[str, str]
    longer: Sequence[Positions]
    foreign: Positions | None
    too_long: Sequence[str]

    def rise(self, setting: Setting) -> float:
        return self.losses[setting] - self.loss

    @property
    def numbers(self) -> dict[str, float]:
        vector, length = (Setting("attention", kind, TENTH) for kind in KINDS)
        numbers = {
            "loss": self.loss,
            "rise": self.rise(PRIMARY),
            "rise_length": self.rise(replace(PRIMARY, kind="length")),
            "distance": fmean(self.moved[vector].distance),
            "changed": 100 * fmean(self.moved[vector].changed),
            "changed_length": 100 * fmean(self.moved[length].changed),
            "changed_sharp_length": 100 * fmean(self.moved[length].changed_sharp),
        }
        usual = self.longer[0]
        for text in self.longer[1:]:
            name = "longer" if text.multiple == 4 else f"longer_{text.multiple}"
            numbers[name] = text.loss() - usual.loss()
        if self.foreign is not None:
            numbers["foreign"] = self.foreign.loss() - usual.loss()
        return numbers

    @property
    def rows(self) -> Iterator[Row]:
        """The model; by size the rises of its loss; by setting and block how far attention moved;
        its loss by length of windows and by position; and the norms that are perturbed."""
        yield self.numbers
        for size in dict.fromkeys(setting.size for setting in self.losses):
            rises = {name: self.rise(Setting(*pair, size)) for pair, name in COLUMNS.items()}
            yield {"kind": "noise", "noise": size, **rises}
        for s, moved in self.moved.items():
            setting = {"norms": s.readers, "noise": s.kind, "size": s.size}
            for i in range(len(moved.distance)):
                numbers = {name: each[i] for name, each in vars(moved).items()}
                yield {"kind": "block", "block": i + 1, **setting, **numbers}
        yield from self.rows_of_text
        yield {"kind": "norms", **{f"{name}_reads": sites for name, sites in self.sites.items()}}

    @property
    def rows_of_text(self) -> Iterator[Row]:
        usual = self.longer[0]
        for text in self.longer if len(self.longer) > 1 else ():
            after, numbers = text.tokens_at(usual.context), {}
            if after.any():
                numbers = {"loss_after": text.loss(after), "loss_usual": usual.loss(after)}
                numbers["rise"] = numbers["loss_after"] - numbers["loss_usual"]
            words = {"windows": f"{text.multiple}x", "tokens": text.multiple * usual.context}
            yield {"kind": "windows", **words, "loss": text.loss(), **numbers}
        texts = [("own", text, usual) for text in self.longer]
        texts += [("foreign", self.foreign, self.foreign)] if self.foreign is not None else []
        for name, text, same in texts:
            for (first, last), tokens in text.bins.items():
                losses = {"loss": text.loss(tokens), "loss_usual": same.loss(tokens)}
                places = {"tokens": text.multiple * text.context, "first": first, "end": last + 1}
                rise = losses["loss"] - losses["loss_usual"]
                yield {"kind": "position", "text": name, **places, **losses, "rise": rise}

    @property
    def notes(self) -> list[str]:
        nothing = set(self.sites.values()) == {"none"}
        return ["no sub-layer reads a norm, nothing is perturbed"] * nothing + [*self.too_long]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = models_parser(__doc__)
    parser.add_argument(
        "--noise", type=sizes_of, default=SIZES, metavar="SIZES",
        help=f"sizes of noise over the rms of what a norm gives, as in {SIZES}; {TENTH:g} is "
        "always measured",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument(
        "--foreign", type=typed_path, metavar="FILE", help="another text, after the own"
    )
    return run_on_models(ANALYSIS, measure_rows, parser, arguments)


def measure_rows(loaded: Loaded, tell: Tell, typed: Namespace) -> Iterator[Row | str]:
    foreign = None if typed.foreign is None else loaded.encode("--foreign", typed.foreign)
    found = measure(loaded, typed.noise, typed.seed, foreign, tell)
    yield from found.notes
    yield from found.rows


def sizes_of(text: str) -> list[float]:
    """The sizes that were typed, and TENTH, in order."""
    try:
        sizes = [float(word) for word in text.split(",")]
    except ValueError:
        sizes = [-1.0]
    if not all(isfinite(size) and 0 <= size <= LARGEST for size in sizes):
        raise ArgumentTypeError(
            f"{text}: numbers from 0 to {LARGEST:g} are wanted, such as {SIZES}"
        )
    return sorted({*sizes, TENTH})


# ------------------------------------------------------------------------------------- measuring


def measure(
    loaded: Loaded, sizes: Sequence[float], seed: int, foreign: np.ndarray | None, tell: Tell
) -> Collapse:
    """`foreign` holds the tokens of another text, or is None."""
    loaded = loaded if loaded.precision == "fp64" else replace(loaded, precision="fp32")
    blocks: Any = loaded.model.blocks
    if not all(hasattr(block.attention.f.attend, "logits") for block in blocks):
        raise Unmeasured("its attention has no logits that could be read")
    read = norms_read(loaded.model, next(loaded.windows())[:1, :-1].to(loaded.device))
    noises = [Noise(Setting(*each), seed) for each in product(READERS, KINDS, sizes)]
    loss, losses, moved = evaluate(loaded, read, noises, tell)
    reasons = multiples(loaded)

    def text(words: str, tokens: np.ndarray, multiple: int) -> Positions:
        what = f"{words}, token {{:.0f}}/{{:.0f}}"
        return losses_by_position(loaded, tokens, multiple, partial(tell, what))

    return Collapse(
        loss,
        loaded.tokens_read,
        losses,
        moved,
        {name: sites_read(read, name) for name in READERS["sub-layers"]},
        [text(f"{n}x", loaded.tokens, n) for n, reason in reasons.items() if not reason],
        None if foreign is None else text("foreign text", foreign, 1),
        [f"no windows of {n} times the length: {why}" for n, why in reasons.items() if why],
    )


@torch.no_grad()
def evaluate(
    loaded: Loaded, read: Read, noises: Sequence[Noise], tell: Tell
) -> tuple[float, dict[Setting, float], dict[Setting, Moved]]:
    """Evaluates the model on each batch without noise, and then with each noise. Returns the loss
    without, and by setting the loss and how far attention moved."""
    model = loaded.model
    shifts = [Shift(len(model.blocks)) for _ in noises]
    nats = torch.zeros(1 + len(noises), dtype=torch.float64)
    done = windows = 0
    for batch in loaded.windows():
        tell("noise, token {:.0f}/{:.0f}", done, loaded.tokens_read)
        before: dict[int, Tensor] = {}
        with watch_attention(model, before.__setitem__):
            nats[0] += loaded.loss.sum(batch).double().cpu()
        for place, (noise, shift) in enumerate(zip(noises, shifts, strict=True), start=1):
            noise.window = windows
            watching = watch_attention(model, partial(shift.add, before))
            with perturb(model, read, noise), watching:
                nats[place] += loaded.loss.sum(batch).double().cpu()
        done, windows = done + batch[:, 1:].numel(), windows + len(batch)
    loss, *losses = (nats / done).tolist()
    if not isfinite(loss):
        raise Unmeasured("its loss is not finite")
    settings = [noise.setting for noise in noises]
    moved = {s: shift.means for s, shift in zip(settings, shifts, strict=True)}
    return loss, dict(zip(settings, losses, strict=True)), moved


if __name__ == "__main__":
    sys.exit(main())
