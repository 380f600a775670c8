"""What rounding weights and the inputs of matrices to few bits costs a trained model."""

# x becomes s clamp(round(x / s), -L, L), L = 2^(bits - 1) - 1, s = max |x| / L, ties to even:
# symmetric rounding to nearest, the absmax rounding of LLM.int8() (Dettmers et al. 2022,
# arXiv:2208.07339) and of SmoothQuant (Xiao et al. 2023, arXiv:2211.10438). As there, a scale is
# that of a tensor, or that of an output channel of a weight and of a token of an input; QuaRot
# (Ashkboos et al. 2024, arXiv:2404.00456) rounds to int4 by the latter. No feature stays in more
# bits, and nothing is smoothed, rotated or clipped: it is the models that are compared.

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isfinite
from statistics import fmean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transformer_norms.analysis.command import (
    OF_SUBJECTS,
    add_subjects,
    analysis_parser,
    run_analysis,
    set_decades,
    svg_bytes,
)
from transformer_norms.analysis.trained.over_seeds import (
    DIFFERENCES,
    Numbers,
    Quantity,
    Tables,
    by_variant,
    compare_numbers,
    difference_rows,
    mean_rows,
    mean_text,
    numbers_csv,
    terminal_text,
)
from transformer_norms.analysis.trained.subjects import (
    Loaded,
    Subject,
    Subjects,
    Unmeasured,
    read_subjects,
)
from transformer_norms.commands.terminal import Parser
from transformer_norms.errors import ConfigError
from transformer_norms.model.initialization import Linear
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, line_style, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table

TITLE = "Weights and inputs of matrices, rounded"
PARTS = {"weights": (True, False), "inputs": (False, True), "both": (True, True)}
FEWEST_BITS, MOST_BITS = 2, 16
MARKS = "osD^v"
SMALLEST = 1e-4  # nats; the figure is linear below, where a rise may be negative
LEGEND = (
    "Loss in nats per token, or its rise, with the weights of the matrices of attention, of mlps "
    "and of the head rounded, with their inputs, and with both. per: there is one scale, the "
    "largest |value| / (2^(bits - 1) - 1), for a tensor, or for each row, an output channel of a "
    "weight or a token of an input. That of a whole input is read from all of the text before "
    "rounding. Rounded are query, key, value, output, gates, up, gate, down and the head (also "
    "one that is tied), in float32. Not rounded: tables as they are looked up, biases, norms, "
    "also those with matrices (gatednorm), coefficients, also of low rank (LAuReL), the matrices "
    "of connections (AltUp's router, gates of hyper-connections, inputs per layer), the stream, "
    "the products inside attention, softmax."
)
LEGEND_OF_OUTLIERS = (
    "Inputs of matrices before rounding. largest / rms: the largest |value| over the root mean "
    "square of all values, median over blocks, and the largest block's; in a token: the same "
    "inside one token, mean over tokens; kurtosis: mean(x^4) / mean(x^2)^2, 3 for a normal "
    "distribution; the last two are medians over blocks."
)
LEGEND_OF_KINDS = (
    "Largest |value| over rms of the inputs of matrices before rounding, median over blocks. Of "
    "matrices that read the same, as query, key and value do, the first stands for all. After ±: "
    "half of Student's 95 % interval."
)
COMPARED = (
    " W8A8: weights and inputs have 8 bits; row: a scale for each output channel and each token; "
    "outlier: largest / rms of the worst input of a block, median over blocks."
)
LIMITS = (
    "Rounding has no remedy here. Methods that move, split or rotate outliers lose less, and may "
    "reverse the order of two models.",
    "The scale of a whole input is read from the text that is measured, which helps it.",
    "The arithmetic is float32 on rounded numbers; integer kernels add up without rounding, so "
    "their sums differ in the last digits.",
)


@dataclass(frozen=True)
class Setting:
    """How a model is rounded: to how many bits, which `part`, and whether each row of a matrix and
    each token of an input has its scale (`by_row`), or all of it has one."""

    bits: int
    part: str
    by_row: bool

    @property
    def title(self) -> str:
        """`W8A8 row`, as the literature has it."""
        weights, inputs = PARTS[self.part]
        return f"{f'W{self.bits}' * weights}{f'A{self.bits}' * inputs} {self.per}"

    @property
    def key(self) -> str:
        return self.title.lower().replace(" ", "_")

    @property
    def per(self) -> str:
        return "row" if self.by_row else "tensor"


@dataclass(frozen=True)
class Inputs:
    """The values that one matrix reads on the text, before rounding."""

    largest: float
    rms: float
    in_a_token: float
    kurtosis: float

    @property
    def ratio(self) -> float:
        return self.largest / self.rms if self.rms else 0.0


@dataclass(frozen=True)
class Rounded:
    """What was measured in one model: the loss without rounding and by setting, and the inputs of
    each matrix by its path."""

    subject: Subject
    loss: float
    tokens: int
    losses: Mapping[Setting, float]
    inputs: Mapping[str, Inputs]

    @property
    def by_kind(self) -> dict[str, list[Inputs]]:
        """The inputs of the matrices of a kind, block by block."""
        kinds: dict[str, list[Inputs]] = defaultdict(list)
        for path, inputs in self.inputs.items():
            kinds[path.split(".")[-1]].append(inputs)
        return kinds

    @property
    def outlier(self) -> float:
        blocks: dict[str, list[float]] = defaultdict(list)
        for path, inputs in self.inputs.items():
            if path != "head":
                blocks[path.split(".")[1]].append(inputs.ratio)
        return median(map(max, blocks.values()))

    @property
    def numbers(self) -> dict[str, float]:
        """The rise of the loss by setting, and the outliers by kind."""
        rises = {setting.key: loss - self.loss for setting, loss in self.losses.items()}
        kinds = {kind: median(i.ratio for i in each) for kind, each in self.by_kind.items()}
        return {"loss": self.loss, **rises, "outlier": self.outlier, **kinds}


def make_parser() -> Parser:
    out = "also write .csv, .md and .svg"
    parser = analysis_parser("quantization", __doc__, out, "runs/main --out DIR", OF_SUBJECTS)
    add_subjects(parser)
    parser.add_argument("--bits", default="8,4", metavar="8,4", help="the widths to round to")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    widths = read_bits(typed.bits)
    subjects = read_subjects(typed, tell)
    subjects, found = subjects.measure(tell, partial(measure, widths=widths, tell=tell))
    paths = write_files(typed.out, files(subjects, found)) if typed.out else []
    facts = {"numbers": [{"model": one.subject.title, **one.numbers} for one in found]}
    return terminal(subjects, found), {**facts, "files": paths}


def read_bits(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    widths = [int(word) for word in words if word.isascii() and word.isdecimal()]
    if len(widths) < len(words) or not all(FEWEST_BITS <= b <= MOST_BITS for b in widths):
        raise ConfigError(
            f"--bits {text}: whole numbers from {FEWEST_BITS} to {MOST_BITS} are wanted, such as "
            "8,4"
        )
    return list(dict.fromkeys(widths))


# ------------------------------------------------------------------------------------- measuring


def round_to_grid(x: Tensor, bits: int, largest: Tensor) -> Tensor:
    """s clamp(round(x / s), -L, L), s = largest / L, L = 2^(bits - 1) - 1, where `largest` is that
    of a tensor or of each row; values of 0 where it is 0."""
    levels = 2 ** (bits - 1) - 1
    scale = largest.to(x.dtype) / levels
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (x / scale).round_().clamp_(-levels, levels).mul_(scale)


class Products(TorchFunctionMode):
    """Inside, `change(name, x, W)` gives what is multiplied in the place of x and W, for each
    product x W^T of a matrix of attention, of an mlp, or of the head.

    A tied head's W is the embedding's, which is looked up as it is.
    """

    def __init__(
        self, model: Transformer, change: Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.change = change
        self.names = {id(weight): "" for weight in model.parameters()}  # "" is left alone
        self.names |= {
            id(module.weight): path
            for path, module in model.blocks.named_modules(prefix="blocks")
            if isinstance(module, Linear) and ".f." in path
        }
        head = model.embedding if model.head is None else model.head
        self.names[id(head.weight)] = "head"

    def __torch_function__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if function is F.linear:
            x, weight, *bias = given
            # What is no parameter is the head's rows, each of which has gone through a norm.
            if name := self.names.get(id(weight), "head"):
                given = (*self.change(name, x, weight), *bias)
        return function(*given, **(named or {}))


class Reading:
    """The sums over tokens that `Inputs` are made of, for each matrix."""

    def __init__(self) -> None:
        self.largest: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}  # of x^2, of x^4, of a token's largest / rms
        self.count: dict[str, tuple[int, int]] = {}  # of tokens, and of their values

    def __call__(self, name: str, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        squares = x.square()
        largest, rms = x.abs().amax(-1), squares.mean(-1).sqrt()
        tiny = torch.finfo(x.dtype).tiny
        sums = [
            each.sum(dtype=torch.float64)
            for each in (squares, squares.square(), largest / rms.clamp_min(tiny))
        ]
        self.sums[name] = self.sums.get(name, 0) + torch.stack(sums)
        self.largest[name] = torch.maximum(largest.max(), self.largest.get(name, largest.max()))
        tokens, values = self.count.get(name, (0, 0))
        self.count[name] = tokens + largest.numel(), values + x.numel()
        return x, weight

    def inputs(self) -> dict[str, Inputs]:
        found = {}
        for name, (squares, fourth, ratios) in ((n, s.tolist()) for n, s in self.sums.items()):
            tokens, values = self.count[name]
            kurtosis = fourth * values / squares**2 if squares else 0.0
            rms = (squares / values) ** 0.5
            found[name] = Inputs(self.largest[name].item(), rms, ratios / tokens, kurtosis)
        return found


class Rounding:
    """Rounds weights, each once, and inputs as a setting says. `largest` has the largest |value|
    of each matrix's input."""

    def __init__(self, setting: Setting, largest: Mapping[str, Tensor]) -> None:
        self.setting, self.largest = setting, largest
        self.weights: dict[str, Tensor] = {}

    def __call__(self, name: str, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        of_weights, of_inputs = PARTS[self.setting.part]
        if of_inputs:
            x = self.rounded(x, self.largest[name])
        if of_weights:
            if name not in self.weights:
                self.weights[name] = self.rounded(weight, weight.abs().max())
            weight = self.weights[name]
        return x, weight

    def rounded(self, x: Tensor, of_all: Tensor) -> Tensor:
        by_row = self.setting.by_row
        largest = x.abs().amax(-1, keepdim=True) if by_row else of_all
        return round_to_grid(x, self.setting.bits, largest)


def settings_of(widths: Sequence[int]) -> list[Setting]:
    """All that is measured at some numbers of bits."""
    return [Setting(*each) for each in product(widths, PARTS, (False, True))]


@torch.no_grad()
def measure(subject: Subject, loaded: Loaded, widths: Sequence[int], tell: Tell) -> Rounded:
    """Evaluates the model without rounding, reading the inputs, and then once for each setting."""
    wide = loaded if loaded.precision == "fp64" else replace(loaded, precision="fp32")
    settings = settings_of(widths)

    def evaluate(change: Any, words: str, place: int) -> float:
        what = f"{subject.title}, {words} ({place}/{1 + len(settings)}): token {{:.0f}}/{{:.0f}}"
        with Products(wide.model, change):
            return wide.evaluate(partial(tell, what))

    reading = Reading()
    loss, inputs = evaluate(reading, "not rounded", 1), reading.inputs()
    if not all(map(isfinite, (loss, *(one.largest for one in inputs.values())))):
        raise Unmeasured(subject, "has values that are not finite; no grid holds them")
    losses = {
        setting: evaluate(Rounding(setting, reading.largest), setting.title, place)
        for place, setting in enumerate(settings, start=2)
    }
    return Rounded(subject, loss, loaded.tokens_read, losses, inputs)


# --------------------------------------------------------------------------- tables and sentences


def bits_of(found: Sequence[Rounded]) -> list[int]:
    return list(dict.fromkeys(setting.bits for setting in found[0].losses))


def kinds_of(found: Sequence[Rounded]) -> list[str]:
    """The kinds of matrices that all models have. Of those that read the same, it is the first."""
    kinds: dict[Any, str] = {}
    for kind in found[0].by_kind:
        if all(kind in one.by_kind for one in found):
            kinds.setdefault(tuple(tuple(one.by_kind[kind]) for one in found), kind)
    return list(kinds.values())


def loss_rows(one: Rounded) -> list[list[str]]:
    """A heading, and a row for each part and scale, with the loss and its rise at each width."""
    widths = bits_of([one])
    rows = [["rounded", "per", *(w for b in widths for w in (f"int{b} loss", "rise"))]]
    for part, by_row in product(PARTS, (False, True)):
        losses = [one.losses[Setting(bits, part, by_row)] for bits in widths]
        cells = [cell for x in losses for cell in (f"{x:.4f}", f"{x - one.loss:+.5f}")]
        rows.append([part, Setting(widths[0], part, by_row).per, *cells])
    return rows


def outlier_rows(one: Rounded) -> list[list[str]]:
    """A heading, and a row for each kind of matrix. Kinds that read the same are one row."""
    same: dict[tuple[Inputs, ...], list[str]] = defaultdict(list)
    for kind, each in one.by_kind.items():
        same[tuple(each)].append(kind)
    rows = [["input of", "largest / rms", "largest block", "in a token", "kurtosis"]]
    for inputs, kinds in same.items():
        ratios = [each.ratio for each in inputs]
        numbers = [median(ratios), max(ratios), median(each.in_a_token for each in inputs)]
        numbers.append(median(each.kurtosis for each in inputs))
        rows.append([", ".join(kinds), *(f"{number:.2f}" for number in numbers)])
    return rows


def rise_rows(found: Sequence[Rounded], numbers: Numbers) -> list[list[str]]:
    """A heading, and for each variant, part and scale the mean rise at each width."""
    widths = bits_of(found)
    rows = [["model", "rounded", "per", *(f"int{bits} rise" for bits in widths)]]
    for name, seeds in numbers.items():
        for part, by_row in product(PARTS, (False, True)):
            settings = [Setting(bits, part, by_row) for bits in widths]
            cells = [mean_text([one[s.key] for one in seeds.values()], 5) for s in settings]
            rows.append([name, part, settings[0].per, *cells])
    return rows


def compared(widths: Sequence[int]) -> dict[str, Quantity]:
    """The rises that are compared: of each part with a scale for each row, and of both without."""
    settings = [s for s in settings_of(widths) if s.by_row or s.part == "both"]
    return {
        **{s.key: Quantity(s.title, 5) for s in settings},
        "outlier": Quantity("outlier", 2),
    }


def tables(subjects: Subjects, found: Sequence[Rounded]) -> Tables:
    """The tables of one model, or those of several over seeds."""
    if len(found) == 1:
        return [(loss_rows(found[0]), LEGEND), (outlier_rows(found[0]), LEGEND_OF_OUTLIERS)]
    numbers = by_variant((one.subject, one.numbers) for one in found)
    kinds = {kind: Quantity(kind, 1) for kind in kinds_of(found)}
    means: Tables = [
        (rise_rows(found, numbers), f"{LEGEND} After ±: half of Student's 95 % interval."),
        (mean_rows(numbers, kinds), LEGEND_OF_KINDS),
    ]
    asked = compared(bits_of(found))
    differences = difference_rows(subjects, compare_numbers(subjects, numbers, asked), asked)
    return [*means, (differences, DIFFERENCES + COMPARED)] if differences else means


def sentences(found: Sequence[Rounded]) -> list[str]:
    if len(found) > 1:
        return []
    one = found[0]
    path, worst = max(one.inputs.items(), key=lambda item: item[1].ratio)
    return [
        f"loss {one.loss:.4f} nats per token on {one.tokens} tokens without rounding; the largest "
        f"outlier is {worst.ratio:.2f} times the rms, at {path.replace('.f.', '.')}"
    ]


def terminal(subjects: Subjects, found: Sequence[Rounded]) -> str:
    """The tables and their legends within 80 columns."""
    remarks = [*sentences(found), *subjects.notes]
    titles = [one.subject.title for one in found]
    return terminal_text(TITLE, titles, subjects.notices, tables(subjects, found), remarks)


# ------------------------------------------------------------------------------------- the files


def files(subjects: Subjects, found: Sequence[Rounded]) -> dict[str, bytes]:
    """The contents of quantization.csv, of quantization_inputs.csv and quantization_runs.csv, .md
    and .svg."""
    numbers = by_variant((one.subject, one.numbers) for one in found)
    return {
        "quantization.csv": losses_csv(found),
        "quantization_inputs.csv": inputs_csv(found),
        "quantization_runs.csv": numbers_csv(numbers),
        "quantization.md": page(subjects, found).encode(),
        "quantization.svg": figure(found),
    }


def losses_csv(found: Sequence[Rounded]) -> bytes:
    """A row for each setting of each model."""
    rows: list[list[Any]] = ["model seed bits rounded scale loss loss_before".split()]
    for one in found:
        for setting, loss in one.losses.items():
            how = [setting.bits, setting.part, setting.per]
            rows.append([one.subject.name, one.subject.seed, *how, loss, one.loss])
    return csv_table(rows)


def inputs_csv(found: Sequence[Rounded]) -> bytes:
    """A row for each matrix of each model."""
    rows: list[list[Any]] = ["model seed matrix largest rms ratio in_a_token kurtosis".split()]
    for one in found:
        for path, i in one.inputs.items():
            numbers = [i.largest, i.rms, i.ratio, i.in_a_token, i.kurtosis]
            rows.append([one.subject.name, one.subject.seed, path, *numbers])
    return csv_table(rows)


def page(subjects: Subjects, found: Sequence[Rounded]) -> str:
    sections = [f"# {TITLE}", markdown_list([*subjects.notices, *sentences(found)])]
    for rows, legend in tables(subjects, found):
        sections += [markdown_table(rows), legend]
    sections += [f"![{TITLE.lower()}](quantization.svg)"]
    sections += [markdown_list(subjects.notes)] if subjects.notes else []
    sections += ["## What this does not show", markdown_list(LIMITS)]
    origins = [
        f"{one.subject.origin}; loss {one.loss:.4f} nats per token on {one.tokens} tokens"
        for one in found
    ]
    return "\n\n".join([*sections, "## Models", markdown_list(origins)]) + "\n"


# ------------------------------------------------------------------------------------ the figure


def figure(found: Sequence[Rounded]) -> bytes:
    """A panel as SVG for each scale with the rises, and one with the outliers. A small mark is a
    seed, a large one the mean of a variant."""
    drawing, panels = pyplot().subplots(1, 3, figsize=(10.4, 3.4), layout="constrained")
    numbers = by_variant((one.subject, one.numbers) for one in found)
    *rises, outliers = panels
    for axes, by_row in zip(rises, (False, True), strict=True):
        settings = [s for s in found[0].losses if s.by_row == by_row]
        draw_marks(axes, numbers, {s.key: s.title.split()[0] for s in settings})
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_yscale("symlog", linthresh=SMALLEST)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        words = "output channel and token" if by_row else "tensor"
        axes.set(ylabel="rise of the loss, nats per token", title=f"a scale for each {words}")
    rises[1].sharey(rises[0])
    draw_marks(outliers, numbers, {kind: kind for kind in kinds_of(found)})
    outliers.set_yscale("log")
    outliers.set(ylabel="largest / rms, median of blocks", title="inputs of matrices")
    set_decades(outliers)
    for axes in panels:
        axes.title.set_fontsize(FONT + 1)
        style_axes(axes)
    names = rises[0].get_legend_handles_labels()
    drawing.legend(*names, loc="outside lower center", ncols=4, fontsize=FONT, frameon=False)
    return svg_bytes(drawing)


def draw_marks(axes: Any, numbers: Numbers, titles: Mapping[str, str]) -> None:
    """Draws the numbers of the given keys side by side, and all variants at each, a little apart.
    A colour that returns has another mark."""
    axes.set_xticks(range(len(titles)), list(titles.values()))
    for place, (name, seeds) in enumerate(numbers.items()):
        colour, mark = line_style(place)[0], MARKS[place % len(MARKS)]
        apart = 0.5 * (place - (len(numbers) - 1) / 2) / max(1, len(numbers) - 1)
        at = [x + apart for x in range(len(titles))]
        for one in seeds.values() if len(seeds) > 1 else ():
            axes.plot(at, [one[key] for key in titles], mark, color=colour, markersize=1.5)
        means = [fmean(one[key] for one in seeds.values()) for key in titles]
        axes.plot(at, means, mark, color=colour, markersize=4.5, label=name, fillstyle="none")


if __name__ == "__main__":
    sys.exit(main())
