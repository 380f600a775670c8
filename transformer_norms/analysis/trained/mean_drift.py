"""How far each token's features have a mean that is not zero, and what centring removes of it."""

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

from transformer_norms.analysis.command import (
    OF_SUBJECTS,
    add_subjects,
    analysis_parser,
    run_analysis,
    set_decades,
    svg_bytes,
)
from transformer_norms.analysis.norm_freezing import norm_places
from transformer_norms.analysis.trained.over_seeds import (
    Quantity,
    Tables,
    by_variant,
    draw_seeds,
    numbers_csv,
    seed_tables,
    terminal_text,
)
from transformer_norms.analysis.trained.subjects import Loaded, Subject, Subjects, read_subjects
from transformer_norms.commands.terminal import Parser
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import (
    csv_table,
    markdown_list,
    markdown_table,
)
from transformer_norms.training.probes import ones_cosine, watch_streams

TITLE = "The mean of the stream"
QUANTITIES = {
    "median": Quantity("median"),
    "last": Quantity("last block"),
    "chance": Quantity("share / chance", 2),
    "norms": Quantity("at norms, %", 3),
}
# It follows from the places of the norms, and is not compared.
BESIDE = {"norms_chance": Quantity("at norms / chance", 2)}
LEGEND = (
    "|mean| / rms of each token's stream, by the block that it leaves (0 enters the first): "
    "median, 90 % and largest over tokens. signed: mean over tokens of mean / rms. share: mean "
    "over tokens of (mean / rms)^2, the part of a token's energy along the all-ones vector."
)
LEGEND_OF_NORMS = (
    "Energy that centring removes of a norm's input, or would remove where the norm does not "
    "centre: mean over tokens, in %, mean over blocks and the largest block. / chance: times the "
    "number of features that the norm reads, as few as a head has."
)
LEGEND_OF_MEANS = (
    "median: of |mean| / rms over tokens, mean over blocks; last block: the same after the last; "
    "share / chance: energy along the all-ones vector times the width, mean over blocks; at norms: "
    "energy that centring removes or would remove of a norm's input, mean over norms; at norms / "
    "chance: the same, each norm's times the number of features that it reads. Of two streams, x "
    "is meant. After ±: half of Student's 95 % interval."
)
LIMITS = (
    "It measures a trained model, not what would have been learned with another norm.",
    "A mean that is shared by all tokens and one that differs between tokens count alike; the "
    "signed mean tells them apart only in part.",
    "No token is put before a text that the text does not have.",
)


@dataclass(frozen=True)
class Drift:
    """What was measured in one model. `streams` has mean / rms of each token by part and block, in
    order, `norms` the same at each norm's input by its path, `widths` the features that the norm
    reads, `centres` whether it centres."""

    subject: Subject
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
        behind = [c for block, c in self.by_block.items() if block]
        medians = [np.median(abs(c)) for c in behind]
        numbers = {
            "median": float(np.mean(medians)),
            "last": float(medians[-1]),
            "chance": float(np.mean([np.mean(c**2) for c in behind])) * self.width,
        }
        removed = [np.mean(c**2) for c in self.norms.values()]
        return {
            **numbers,
            "norms": 100 * float(np.mean(removed)) if removed else 0.0,
            "norms_chance": float(np.mean([*self.over_chance.values()])) if removed else 0.0,
        }


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("mean_drift", __doc__, out, "runs/main --out DIR", OF_SUBJECTS)
    add_subjects(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    subjects, drifts = read_subjects(typed, tell).measure(tell, partial(measure, tell=tell))
    paths = write_files(typed.out, files(subjects, drifts)) if typed.out else []
    facts = {"numbers": [{"model": d.subject.title, **d.numbers} for d in drifts]}
    return terminal(subjects, drifts), {**facts, "files": paths}


# ------------------------------------------------------------------------------------- measuring


@torch.no_grad()
def measure(subject: Subject, loaded: Loaded, tell: Tell) -> Drift:
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
        what = f"{subject.title}: token {{:.0f}}/{{:.0f}}"
        loss = loaded.evaluate(lambda done, total: tell(what, done, total))
    modules = {path: norm for path, _, norm in norm_places(loaded.model)}
    return Drift(
        subject,
        loaded.model.width,
        loss,
        {place: _finite(torch.cat(each)) for place, each in streams.items()},
        {path: _finite(torch.cat(each)) for path, each in norms.items()},
        widths,
        {path: isinstance(modules[path], LayerNorm) for path in norms},
        {path: site for path, site, _ in norm_places(loaded.model) if path in norms},
    )


def _finite(cosines: Tensor) -> np.ndarray:
    """The cosines, 0 for a stream of zeros: it has no mean."""
    return cosines.nan_to_num(0.0).numpy()


@contextmanager
def watch_norms(loaded: Loaded, read: Any) -> Iterator[None]:
    """Calls `read` with the path and the input of each norm that reads tokens."""
    with ExitStack() as stack:
        for path, _, norm in norm_places(loaded.model):
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


# --------------------------------------------------------------------------- tables and sentences


def stream_rows(drift: Drift) -> list[list[str]]:
    """A heading, and a row for each boundary."""
    rows = [["after block", "median", "90 %", "largest", "signed", "share, %", "/ chance"]]
    for (part, i), c in drift.streams.items():
        share = np.mean(c**2)
        rows.append(
            [
                f"{part} {0 if i is None else i + 1}".strip(),
                *(f"{q:.4f}" for q in (np.median(abs(c)), np.quantile(abs(c), 0.9), abs(c).max())),
                f"{c.mean():+.4f}",
                f"{100 * share:.3f}",
                f"{share * drift.width:.2f}",
            ]
        )
    return rows


def norm_rows(drift: Drift) -> list[list[str]]:
    """A heading, and a row for each site of norms."""
    sites: dict[str, list[str]] = defaultdict(list)
    for path, site in drift.sites.items():
        sites[site].append(path)
    rows = [["norm", "centring", "mean, %", "largest, %", "/ chance"]]
    for site, paths in sites.items():
        shares = [100 * np.mean(drift.norms[path] ** 2) for path in paths]
        word = "removes" if drift.centres[paths[0]] else "would remove"
        over = np.mean([drift.over_chance[path] for path in paths])
        rows.append([site, word, f"{np.mean(shares):.3f}", f"{max(shares):.3f}", f"{over:.2f}"])
    return rows


def sentences(drifts: Sequence[Drift]) -> list[str]:
    widths = list(dict.fromkeys(drift.width for drift in drifts))
    return [
        "A random direction of {} features has |mean| / rms {:.4f} (median) and {:.4f} (root mean "
        "square, 1/sqrt(width)).".format(width, *chance(width))
        for width in widths
    ]


def tables(subjects: Subjects, drifts: Sequence[Drift]) -> Tables:
    """Each table and its legend: of one model by block and by norm, of several over seeds."""
    if len(drifts) == 1:
        of_norms = [(norm_rows(drifts[0]), LEGEND_OF_NORMS)] if drifts[0].norms else []
        return [(stream_rows(drifts[0]), LEGEND), *of_norms]
    numbers = by_variant((d.subject, d.numbers) for d in drifts)
    return seed_tables(subjects, numbers, QUANTITIES | BESIDE, LEGEND_OF_MEANS, QUANTITIES)


def terminal(subjects: Subjects, drifts: Sequence[Drift]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(drifts), *subjects.notes]
    titles = [drift.subject.title for drift in drifts]
    return terminal_text(TITLE, titles, subjects.notices, tables(subjects, drifts), remarks)


# ------------------------------------------------------------------------------------- the files


def files(subjects: Subjects, drifts: Sequence[Drift]) -> dict[str, bytes]:
    """The contents of mean_drift.csv, of mean_drift_runs.csv, .md and .svg."""
    return {
        "mean_drift.csv": places_csv(drifts),
        "mean_drift_runs.csv": numbers_csv(by_variant((d.subject, d.numbers) for d in drifts)),
        "mean_drift.md": page(subjects, drifts).encode(),
        "mean_drift.svg": figure(drifts),
    }


def places_csv(drifts: Sequence[Drift]) -> bytes:
    """A row for each boundary of blocks and for each norm of each model."""
    heading = "model seed place centring tokens median quantile_90 largest signed share width"
    rows: list[list[Any]] = [heading.split()]
    for drift in drifts:
        places = {f"{p} {0 if i is None else i + 1}".strip(): (c, "", drift.width)
                  for (p, i), c in drift.streams.items()}  # fmt: skip
        for path, c in drift.norms.items():
            word = "removes" if drift.centres[path] else "would remove"
            places[path] = (c, word, drift.widths[path])
        for place, (c, centring, width) in places.items():
            numbers = np.median(abs(c)), np.quantile(abs(c), 0.9), abs(c).max(), c.mean()
            rows.append(
                [drift.subject.name, drift.subject.seed, place, centring, len(c)]
                + [float(n) for n in numbers]
                + [float(np.mean(c**2)), width]
            )
    return csv_table(rows)


def page(subjects: Subjects, drifts: Sequence[Drift]) -> str:
    sections = [f"# {TITLE}", markdown_list([*subjects.notices, *sentences(drifts)])]
    for rows, legend in tables(subjects, drifts):
        sections += [markdown_table(rows), legend]
    sections += [f"![{TITLE.lower()}](mean_drift.svg)"]
    sections += [markdown_list(subjects.notes)] if subjects.notes else []
    sections += ["## What this does not show", markdown_list(LIMITS)]
    origins = [
        f"{drift.subject.origin}; loss {drift.loss:.4f} nats per token on "
        f"{len(next(iter(drift.streams.values())))} tokens"
        for drift in drifts
    ]
    return "\n\n".join([*sections, "## Models", markdown_list(origins)]) + "\n"


# ------------------------------------------------------------------------------------ the figure


def figure(drifts: Sequence[Drift]) -> bytes:
    """Three logarithmic panels as SVG by block: |mean| / rms, the share of energy along the
    all-ones vector, and what centring removes at norms over chance there. A thin line is a seed, a
    thick one the mean of a variant."""
    plt = pyplot()
    drawing, panels = plt.subplots(1, 3, figsize=(10.4, 3.4), layout="constrained")
    median, share, norms = panels
    names = list(dict.fromkeys(drift.subject.name for drift in drifts))
    for place, name in enumerate(names):
        own = [drift for drift in drifts if drift.subject.name == name]
        for axes, lines in (
            (median, [{i: np.median(abs(c)) for i, c in d.by_block.items()} for d in own]),
            (share, [{i: np.mean(c**2) for i, c in d.by_block.items()} for d in own]),
            (norms, [_norms_by_block(d) for d in own]),
        ):
            draw_seeds(axes, lines, name, place)
    for width in dict.fromkeys(drift.width for drift in drifts):
        middle, square = chance(width)
        for axes, level in ((median, middle), (share, square**2)):
            axes.axhline(level, color=GREY, linewidth=0.8, linestyle=":", label=None)
    norms.axhline(1, color=GREY, linewidth=0.8, linestyle=":", label=None)
    for axes, words in zip(
        panels,
        ("|mean| / rms, median of tokens", "share along all-ones", "removed at norms / chance"),
        strict=True,
    ):
        axes.set_yscale("log", nonpositive="mask")
        axes.set(xlabel="after block" if axes is not norms else "in block", ylabel=words)
        axes.xaxis.get_major_locator().set_params(integer=True)
        set_decades(axes)
        style_axes(axes)
    median.legend(fontsize=FONT, frameon=False)
    share.annotate("dotted: chance", (0.98, 0.02), xycoords="axes fraction", ha="right",
                   fontsize=FONT, color=GREY)  # fmt: skip
    return svg_bytes(drawing)


def _norms_by_block(drift: Drift) -> dict[int, float]:
    """The mean share at the norms of each block, over chance."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for path, share in drift.over_chance.items():
        first, *rest = path.split(".")
        if first == "blocks":
            blocks[int(rest[0]) + 1].append(share)
    return {i: float(np.mean(shares)) for i, shares in blocks.items()}


if __name__ == "__main__":
    sys.exit(main())
