"""Measures the cost of rounding the weights and inputs of matrices to few bits.

python -m experiments.analyses.quantization runs/main --bits 8,4 --out DIR
"""

# x becomes s clamp(round(x / s), -L, L), L = 2^(bits - 1) - 1, s = max |x| / L, ties to even:
# symmetric rounding to nearest, the absmax rounding of LLM.int8() (Dettmers et al. 2022,
# arXiv:2208.07339) and of SmoothQuant (Xiao et al. 2023, arXiv:2211.10438). As there, a scale is
# that of a tensor, or that of an output channel of a weight and of a token of an input; QuaRot
# (Ashkboos et al. 2024, arXiv:2404.00456) rounds to int4 by the latter. No feature stays in more
# bits, and nothing is smoothed, rotated or clipped: it is the models that are compared.

import sys
from argparse import ArgumentTypeError, Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isfinite
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transformer_norms.analysis.command import models_parser, run_on_models
from transformer_norms.analysis.outcome import Analysis, Lines, Number, Row, Rows, View, of_kind
from transformer_norms.analysis.trained.subjects import Loaded, Unmeasured
from transformer_norms.model.initialization import Linear
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell

PARTS = {"weights": (True, False), "inputs": (False, True), "both": (True, True)}
FEWEST_BITS, MOST_BITS = 2, 16
SMALLEST = 1e-4  # nats; the figure is linear below, where a rise may be negative
LEGEND = (
    "Rise of the loss in nats per token, with the weights of the matrices of attention, of mlps "
    "and of the head rounded, with their inputs, and with both. per: there is one scale, the "
    "largest |value| / (2^(bits - 1) - 1), for a tensor, or for each row, an output channel of a "
    "weight or a token of an input. That of a whole input is read from all of the text before "
    "rounding. Rounded are query, key, value, output, gates, up, gate, down and the head (also "
    "one that is tied), in float32. Not rounded: tables as they are looked up, biases, norms, "
    "also those with matrices (gatednorm), coefficients, also of low rank (LAuReL), the matrices "
    "of connections (AltUp's router, gates of hyper-connections, inputs per layer), the stream, "
    "the products inside attention, softmax."
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


def settings_of(widths: Sequence[int]) -> list[Setting]:
    """All that is measured at some numbers of bits."""
    return [Setting(*each) for each in product(widths, PARTS, (False, True))]


def _per(word: str, rows: Rows) -> Rows:
    return [row for row in of_kind(rows, "rounding") if row["per"] == word]


# Each part with a scale for each row is compared, and both parts without.
RISES = {
    s.key: Number(s.title, format=".5f", compared=True)
    for s in settings_of(range(MOST_BITS, FEWEST_BITS - 1, -1))
    if s.by_row or s.part == "both"
}
OUTLIER = "largest / rms of the worst input of a block, median over blocks"
ANALYSIS = Analysis(
    "quantization",
    "Weights and inputs of matrices, rounded",
    numbers={
        "loss": Number("loss", "without rounding"),
        **RISES,
        "outlier": Number("outlier", OUTLIER, ".2f", compared=True),
    },
    legend="Rise of the loss, nats per token. W8A8: weights and inputs have 8 bits; row: a scale "
    "for each output channel and each token.",
    views=(
        View(
            "rounding",
            ("rounded", "per"),
            {f"int{b}": Number(f"int{b}", format="+.5f") for b in range(MOST_BITS, 1, -1)},
            LEGEND,
        ),
        View(
            lambda rows: by_kind(rows),
            ("matrices",),
            {
                "ratio": Number(
                    "largest / rms",
                    "the largest |value| over the root mean square of all values, median over "
                    "blocks",
                    ".2f",
                ),
                "largest": Number("largest block", format=".2f"),
                "in_a_token": Number(
                    "in a token", "the same inside one token, mean over tokens", ".2f"
                ),
                "kurtosis": Number(
                    "kurtosis",
                    "mean(x^4) / mean(x^2)^2, 3 for a normal distribution; the last two are "
                    "medians over blocks",
                    ".2f",
                ),
            },
            "Inputs of matrices before rounding.",
            alone=True,
        ),
    ),
    panels=(
        *(
            Lines(
                partial(_per, word),
                "rounded",
                bits,
                f"{bits}, a scale for each {word}",
                "rise of the loss, nats per token",
                level=0.0,
                linear=SMALLEST,
            )
            for word, bits in (
                ("tensor", "int8"),
                ("row", "int8"),
                ("tensor", "int4"),
                ("row", "int4"),
            )
        ),
    ),
    limits=(
        "Rounding has no remedy here. Methods that move, split or rotate outliers lose less, and "
        "may reverse the order of two models.",
        "The scale of a whole input is read from the text that is measured, which helps it.",
        "The arithmetic is float32 on rounded numbers; integer kernels add up without rounding, so "
        "their sums differ in the last digits.",
    ),
)


def by_kind(rows: Rows) -> Rows:
    """The inputs of each kind of matrix over blocks. Kinds that read the same are one row."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in of_kind(rows, "matrix"):
        kinds[row["matrix"].split(".")[-1]].append(row)
    same: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for kind, own in kinds.items():
        columns = ([row[key] for row in own] for key in ("ratio", "in_a_token", "kurtosis"))
        same[tuple(map(tuple, columns))].append(kind)
    return [
        {
            "matrices": ", ".join(names),
            "ratio": median(ratios),
            "largest": max(ratios),
            "in_a_token": median(inside),
            "kurtosis": median(kurtosis),
        }
        for (ratios, inside, kurtosis), names in same.items()
    ]


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
    """Holds the measures of one model: the loss without rounding and by setting, and the inputs of
    each matrix by its path."""

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

    @property
    def rows(self) -> Iterator[Row]:
        """The model, the rise of its loss by part and scale, and the input of each matrix."""
        yield self.numbers
        for part, by_row in product(PARTS, (False, True)):
            own = [s for s in self.losses if (s.part, s.by_row) == (part, by_row)]
            rises = {f"int{s.bits}": self.losses[s] - self.loss for s in own}
            yield {"kind": "rounding", "rounded": part, "per": own[0].per, **rises}
        for path, inputs in self.inputs.items():
            yield {"kind": "matrix", "matrix": path, **vars(inputs), "ratio": inputs.ratio}


def measure_rows(loaded: Loaded, tell: Tell, typed: Namespace) -> Iterator[Row]:
    yield from measure(loaded, typed.bits, tell).rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = models_parser(__doc__)
    parser.add_argument(
        "--bits", type=read_bits, default=[8, 4], metavar="8,4", help="the widths to round to"
    )
    return run_on_models(ANALYSIS, measure_rows, parser, arguments)


def read_bits(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    widths = [int(word) for word in words if word.isascii() and word.isdecimal()]
    if len(widths) < len(words) or not all(FEWEST_BITS <= b <= MOST_BITS for b in widths):
        raise ArgumentTypeError(
            f"{text}: whole numbers from {FEWEST_BITS} to {MOST_BITS} are wanted, such as 8,4"
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


@torch.no_grad()
def measure(loaded: Loaded, widths: Sequence[int], tell: Tell) -> Rounded:
    """Evaluates the model without rounding, reading the inputs, and then once for each setting."""
    wide = loaded if loaded.precision == "fp64" else replace(loaded, precision="fp32")
    settings = settings_of(widths)

    def evaluate(change: Any, words: str, place: int) -> float:
        what = f"{words} ({place}/{1 + len(settings)}), token {{:.0f}}/{{:.0f}}"
        with Products(wide.model, change):
            return wide.evaluate(partial(tell, what))

    reading = Reading()
    loss, inputs = evaluate(reading, "not rounded", 1), reading.inputs()
    if not all(map(isfinite, (loss, *(one.largest for one in inputs.values())))):
        raise Unmeasured("has values that are not finite; no grid holds them")
    losses = {
        setting: evaluate(Rounding(setting, reading.largest), setting.title, place)
        for place, setting in enumerate(settings, start=2)
    }
    return Rounded(loss, loaded.tokens_read, losses, inputs)


if __name__ == "__main__":
    sys.exit(main())
