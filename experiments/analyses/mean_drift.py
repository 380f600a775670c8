"""How far each token's features have a mean that is not zero, and what centring removes of it.

python -m experiments.analyses.mean_drift runs/main --out DIR
"""

# c = mean(x) / rms(x) is the cosine of a token's stream x and the all-ones vector, and c^2 is the
# share of |x|^2 that LayerNorm's centring removes. Under random signs of the features, whatever
# their sizes, E[c^2] = 1/width. Gupta et al. 2024, arXiv:2409.12951, ask the same of public models.

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from transformer_norms.analysis.command import models_parser, run_on_models
from transformer_norms.analysis.outcome import Analysis, Lines, Number, Row, Rows, View, of_kind
from transformer_norms.analysis.trained.subjects import Loaded
from transformer_norms.model.sites import place_of
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.progress import Tell
from transformer_norms.training.probes import ones_cosine, watch_streams

COSINES = {
    "median": Number("median", "of |mean| / rms of a token's stream over tokens"),
    "quantile_90": Number("90 %"),
    "largest": Number("largest"),
    "signed": Number("signed", "mean over tokens of mean / rms", "+.4f"),
    "share": Number(
        "share",
        "mean over tokens of (mean / rms)^2, the part of a token's energy along the all-ones "
        "vector",
        ".3%",
    ),
    "over_chance": Number("/ chance", "times the number of features", ".2f"),
}


def by_site(rows: Rows) -> Rows:
    """For each site of norms the energy that centring removes of its input, in %."""
    sites: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in of_kind(rows, "norm"):
        sites[row["site"], row["centring"]].append(row)
    return [
        {
            "norm": site,
            "centring": word,
            "mean": 100 * np.mean([row["share"] for row in own]),
            "largest": 100 * max(row["share"] for row in own),
            "over_chance": np.mean([row["over_chance"] for row in own]),
        }
        for (site, word), own in sites.items()
    ]


def by_block(rows: Rows) -> Rows:
    """The mean over the norms of each block of their share over chance."""
    blocks: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in of_kind(rows, "norm"):
        first, *rest = row["place"].split(".")
        if first == "blocks":
            place = row["model"], row.get("seed"), int(rest[0]) + 1
            blocks[place].append(row["over_chance"])
    return [
        {"model": name, "seed": seed, "block": block, "over_chance": float(np.mean(each)), "one": 1}
        for (name, seed, block), each in blocks.items()
    ]


def first_streams(rows: Rows) -> Rows:
    """Returns the rows of x where a model has two streams: both enter the first block alike."""
    return [row for row in of_kind(rows, "stream") if row.get("part") != "r"]


ANALYSIS = Analysis(
    "mean_drift",
    "The mean of the stream",
    numbers={
        "loss": Number("loss", "nats per token"),
        "median": Number(
            "median", "of |mean| / rms over tokens, mean over blocks", compared=True
        ),
        "last": Number("last block", "the same after the last", compared=True),
        "chance": Number(
            "share / chance",
            "energy along the all-ones vector times the width, mean over blocks",
            ".2f",
            compared=True,
        ),
        "norms": Number(
            "at norms, %",
            "energy that centring removes or would remove of a norm's input, mean over norms",
            ".3f",
            compared=True,
        ),
        # It follows from the places of the norms, and is not compared.
        "norms_chance": Number(
            "at norms / chance",
            "the same, each norm's times the number of features that it reads. Of two streams, x "
            "is meant",
            ".2f",
        ),
    },
    views=(
        View(
            "stream", ("place",), COSINES,
            "By the block that the stream leaves (0 enters the first).", alone=True,
        ),
        View(
            by_site,
            ("norm", "centring"),
            {
                "mean": Number("mean, %", "over blocks", ".3f"),
                "largest": Number("largest, %", "block", ".3f"),
                "over_chance": Number(
                    "/ chance",
                    "times the number of features that the norm reads, as few as a head has",
                    ".2f",
                ),
            },
            "Energy that centring removes of a norm's input, or would remove where the norm does "
            "not centre, mean over tokens.",
            alone=True,
        ),
    ),
    panels=(
        Lines(
            first_streams, "block", "median", "after block", "|mean| / rms, median of tokens",
            log="y", level="chance_median",
        ),
        Lines(
            first_streams, "block", "share", "after block", "share along all-ones",
            log="y", level="chance_share",
        ),
        Lines(by_block, "block", "over_chance", "in block", "removed at norms / chance",
              log="y", level="one"),
    ),
    limits=(
        "It measures a trained model, not what would have been learned with another norm.",
        "A mean that is shared by all tokens and one that differs between tokens count alike; the "
        "signed mean tells them apart only in part.",
        "No token is put before a text that the text does not have.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """Holds the measures of one model. `streams` has mean / rms of each token by part and block, in
    order, `norms` the same at each norm's input by its path, `widths` the features that the norm
    reads, `centres` whether it centres."""

    width: int
    loss: float
    streams: dict[tuple[str, int | None], np.ndarray]
    norms: dict[str, np.ndarray]
    widths: dict[str, int]
    centres: dict[str, bool]
    sites: dict[str, str]

    @property
    def by_block(self) -> dict[int, np.ndarray]:
        """The stream by the block that it leaves; 0 enters the first. Of two streams it is x."""
        found: dict[int, np.ndarray] = {}
        for (_, i), c in self.streams.items():
            found.setdefault(0 if i is None else i + 1, c)
        return found

    @property
    def over_chance(self) -> dict[str, float]:
        """The share that centring removes at each norm, over that of a random direction there."""
        return {path: float(np.mean(c**2)) * self.widths[path] for path, c in self.norms.items()}

    @property
    def numbers(self) -> dict[str, float]:
        after = [c for block, c in self.by_block.items() if block]
        medians = [np.median(abs(c)) for c in after]
        numbers = {
            "median": float(np.mean(medians)),
            "last": float(medians[-1]),
            "chance": float(np.mean([np.mean(c**2) for c in after])) * self.width,
        }
        removed = [np.mean(c**2) for c in self.norms.values()]
        return {
            **numbers,
            "norms": 100 * float(np.mean(removed)) if removed else 0.0,
            "norms_chance": float(np.mean([*self.over_chance.values()])) if removed else 0.0,
        }

    @property
    def rows(self) -> Iterator[Row]:
        """The model, each boundary of blocks, and each norm."""
        yield {"loss": self.loss, **self.numbers}
        median, root = chance(self.width)
        levels = {"chance_median": median, "chance_share": root**2}
        for (part, i), c in self.streams.items():
            block = 0 if i is None else i + 1
            where = {"place": f"{part} {block}".strip(), "part": part or None, "block": block}
            yield {"kind": "stream", **where, **_row(c, self.width), **levels}
        for path, c in self.norms.items():
            word = "removes" if self.centres[path] else "would remove"
            where = {"place": path, "site": self.sites[path], "centring": word}
            yield {"kind": "norm", **where, **_row(c, self.widths[path])}


def _row(c: np.ndarray, width: int) -> Row:
    share = float(np.mean(c**2))
    median, quantile = np.median(abs(c)), np.quantile(abs(c), 0.9)
    numbers = {"median": median, "quantile_90": quantile, "largest": abs(c).max()}
    numbers |= {"signed": c.mean(), "share": share, "over_chance": share * width}
    return {"tokens": len(c), **{k: float(x) for k, x in numbers.items()}, "width": width}


def measure_rows(loaded: Loaded, tell: Tell, typed: Namespace) -> Iterator[Row | str]:
    drift = measure(loaded, tell)
    yield (
        "a random direction of {} features has |mean| / rms {:.4f} (median) and {:.4f} (root mean "
        "square, 1/sqrt(width))".format(drift.width, *chance(drift.width))
    )
    yield from drift.rows


def main(arguments: Sequence[str] | None = None) -> int:
    return run_on_models(ANALYSIS, measure_rows, models_parser(__doc__), arguments)


# ------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def measure(loaded: Loaded, tell: Tell) -> Drift:
    """Reads every stream and every norm's input on the whole text, each token in float64."""
    streams: dict[tuple[str, int | None], list[Tensor]] = defaultdict(list)
    norms: dict[str, list[Tensor]] = defaultdict(list)
    widths: dict[str, int] = {}

    def read_stream(part: str, i: int | None, x: Tensor) -> None:
        streams["" if i is None else part, i].append(ones_cosine(x.double()).flatten().cpu())

    def read_norm(path: str, x: Tensor) -> None:
        norms[path].append(ones_cosine(x.double()).flatten().cpu())
        widths[path] = x.shape[-1]

    with watch_streams(loaded.model, read_stream), watch_norms(loaded, read_norm):
        loss = loaded.evaluate(partial(tell, "token {:.0f}/{:.0f}"))
    read = {path: norm for path, norm in loaded.model.norms() if path in norms}
    return Drift(
        loaded.model.width,
        loss,
        {place: _finite(torch.cat(each)) for place, each in streams.items()},
        {path: _finite(torch.cat(each)) for path, each in norms.items()},
        widths,
        {path: isinstance(norm, LayerNorm) for path, norm in read.items()},
        {path: place_of(norm).title for path, norm in read.items()},
    )


def _finite(cosines: Tensor) -> np.ndarray:
    """The cosines, 0 for a stream of zeros: it has no mean."""
    return cosines.nan_to_num(0.0).numpy()


@contextmanager
def watch_norms(loaded: Loaded, read: Any) -> Iterator[None]:
    """Calls `read` with the path and the input of each norm that reads tokens."""
    with ExitStack() as stack:
        for path, norm in loaded.model.norms():
            if path.split(".")[0] != "rows":  # fixnorm norms rows of a table, not tokens
                hook = norm.register_forward_pre_hook(
                    lambda module, given, path=path: read(path, given[0])
                )
                stack.callback(hook.remove)
        yield


def chance(width: int) -> tuple[float, float]:
    """The median and the root mean square of |cos| of a random direction and the all-ones vector:
    cos^2 has the distribution Beta(1/2, (width - 1)/2)."""
    return float(special.betaincinv(0.5, (width - 1) / 2, 0.5)) ** 0.5, width**-0.5


if __name__ == "__main__":
    sys.exit(main())
