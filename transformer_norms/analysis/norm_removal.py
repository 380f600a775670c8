"""From a trained model to one without norms: what each stage costs."""

# A norm's division by each token's own length becomes a division by one number, one norm after the
# other while the model is tuned on. The rest of a norm is then a matrix, which the weights that
# read it take in. Baroni et al. 2025, arXiv:2507.02559, after Heimersheim 2024, arXiv:2409.13710,
# who did it to GPT-2.
#
# Theirs differs in three points: queries and keys lose their norm before values do; the end-of-text
# token keeps its own length for a while, as the first token does here too; and some of their
# models had an auxiliary loss on the last lengths.

import copy
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.analysis.command import run_analysis, tuned_parser
from transformer_norms.analysis.folded_model import check_exact, empty_model, largest_difference
from transformer_norms.analysis.norm_folding import READERS, absorb, readers
from transformer_norms.analysis.outcome import Analysis, Number, Row
from transformer_norms.analysis.trained.measuring import typed_keys
from transformer_norms.analysis.trained.subjects import Unmeasured, leave_out_refused
from transformer_norms.analysis.trained.tuned_models import (
    BEFORE,
    OF_TUNINGS,
    PANELS,
    Timetable,
    Tunable,
    end_numbers,
    measure_tuned,
    stay,
    tune,
    tuning_rows,
)
from transformer_norms.commands.terminal import Parser, number_from
from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import recompose
from transformer_norms.config.tree import Config
from transformer_norms.hf.facts import biasable_roles
from transformer_norms.model.initialization import biased
from transformer_norms.model.sites import NormPlace, place_of
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.rmsnorm import RMSNorm
from transformer_norms.progress import Tell

MOMENTUM = 0.9  # of the average length, from step to step
FREEZABLE = (LayerNorm, RMSNorm)
AT_ONCE, FIRST = "at once", "first token"
STAGES = ("mlp", "attention", "final")  # in this order; within a stage from the first block on
ANALYSIS = Analysis(
    "norm_removal",
    "Norms removed",
    numbers={
        BEFORE: Number(BEFORE, "as it was trained", ".3f"),
        AT_ONCE: Number(
            AT_ONCE, "all norms frozen at the step of the first, and nothing tuned after", ".3f"
        ),
        **{stage: Number(stage, format=".3f") for stage in STAGES},
        FIRST: Number(FIRST, "once these had gone, one by one", ".3f"),
        **end_numbers(".3f"),
        "rounding": Number(
            "rounding",
            "the largest difference between logits before and after folding, in float64, over the "
            "largest logit",
            ".0e",
        ),
    },
    legend="Validation losses in nats per token.",
    panels=PANELS,
    size=lambda rows: (9.6, 3.4),
)
EPILOG = f"""
MODEL is a finished run, by its folder or a part of its name below ./runs, or a
folder that transformers loads. Its norms are LayerNorms or RMSNorms before
sub-layers and before the head (placement=pre, parallel, lns, ...).
{OF_TUNINGS}From step --start on, every --gap steps, one norm after the other divides by its
average length instead of each token's own: those before the mlps, then those
before attention, then the one before the head; the sequence's first token last.
The control is the same model, tuned on the same batches with its norms. Losses
are validation losses in nats per token. The CSV file is written as models are done.
"""

FOLDED = "folded"  # the change of the norms, in the name of a saved model


def make_parser() -> Parser:
    example = "rmsnorm --out DIR trainer.steps=300"
    parser = tuned_parser(__doc__, example, EPILOG, "norm_removal")
    add = partial(parser.add_argument, type=number_from(1))
    add("--start", default=20, metavar="STEP", help="of the first norm (%(default)s)")
    add("--gap", default=5, metavar="STEPS", help="between two norms (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    analyse = partial(measure_tuned, ANALYSIS, measure, FOLDED)
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def measure(tunable: Tunable, tell: Tell, typed: Namespace) -> Iterator[Row | str | Path]:
    """Tunes a model while its norms are frozen, and as it is. Then folds the frozen norms."""
    order = FreezingOrder(norm_stages(tunable.model), typed.start, typed.gap)
    with leave_out_refused():
        without = compose_normless(tunable.own, tunable.model)
    if order.end >= tunable.config.trainer.steps:
        raise Unmeasured(
            f"trainer.steps={tunable.config.trainer.steps}: the last norm goes at step {order.end};"
            " more steps, or a smaller --start or --gap"
        )
    trainer = tunable.trainer(copy.deepcopy(tunable.model), tunable.config)
    tuned = tune(trainer, remove_in_order(order, trainer.model), FOLDED, tell)
    control = tunable.tune_control(order.stages, tell)
    words = f"a norm is frozen every {typed.gap} steps from step {typed.start} on"
    yield " ".join([words, *typed_keys(typed)])
    rounding = None
    if not tuned.diverged:
        frozen = trainer.model.cpu().double().eval()
        folded = fold_norms(frozen, without)
        rounding = largest_difference(frozen, folded, next(tunable.windows())[:, :-1])
        check_exact(tunable.folder, rounding)
        if typed.save:
            yield tunable.save(folded, without, typed.save, FOLDED)
    yield from tuning_rows(FOLDED, tuned, control, rounding)


# --------------------------------------------------------------------- which norms can be removed


def norm_stages(model: Transformer) -> dict[str, str]:
    """The stage in which each norm of the model is frozen, by its path, in the order of freezing.

    Raises Unmeasured if no weight can take in one of its norms: on the stream itself, on a
    query or key on its way to a product, or inside or after a sub-layer.
    """
    norms = dict(model.norms())
    stages = {path: _stage(path, place_of(norm)) for path, norm in norms.items()}
    inside = ", inside the last step of its connection"
    staying = [
        f"{place_of(norm).title} ({type(norm).__name__}{inside * path.startswith('final.')})"
        for path, norm in norms.items()
        if stages[path] is None or type(norm) not in FREEZABLE  # a subclass may compute anything
    ]
    if staying:
        raise Unmeasured(
            f"these norms are not folded here: {', '.join(dict.fromkeys(staying))}; folded are "
            "LayerNorms and RMSNorms that only a sub-layer or the head reads, as they are"
        )
    if not norms:
        raise Unmeasured("there is no norm in it")
    if any(path.endswith(".value_gate") for path, _ in model.named_modules()):
        raise Unmeasured("a value gate reads some channels of a norm, which is not folded here")
    return {path: stage for stage in STAGES for path in norms if stages[path] == stage}


def _stage(path: str, place: NormPlace) -> str | None:
    """Returns the stage of a norm before a sub-layer or before the head, None for any other norm. A
    norm that both sub-layers of a parallel block read goes with attention."""
    if place.site == "pre":
        return "attention" if place.sub_layer == "block" else place.sub_layer
    return "final" if path == "final" else None


# -------------------------------------------------------------------------------------- freezing


class RemovableNorm(nn.Module):
    """norm(x), and once it is frozen

        gain * (x - mean(x)) / length + bias      LayerNorm; RMSNorm is not centred

    `lengths` has two numbers: the average length of a sequence's first token, which attention may
    have made unlike all others, and that of the rest. They follow the lengths by which the norm
    divides while the model trains. For a frozen norm they are constants.
    """

    lengths: Tensor | None

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.frozen = norm, False
        self.register_buffer("lengths", None)
        self.passes: list[Tensor] = []  # the lengths in each forward pass since the last step

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        if self.frozen:
            return self._divide(x)
        if self.training:
            self._watch(x)
        y: Tensor = self.norm(x)
        return y

    def _divide(self, x: Tensor) -> Tensor:
        y, norm = wide(x), self.norm
        assert self.lengths is not None
        assert isinstance(norm, FREEZABLE)
        gain, bias = norm.gain_and_bias(y.dtype)
        y = y - y.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else y
        at_start = torch.arange(x.shape[1], device=x.device)[:, None] == 0
        first, rest = self.lengths.to(y.dtype)
        y = y / torch.where(at_start, first, rest)
        y = y if gain is None else y * gain
        return (y if bias is None else y + bias).to(x.dtype)

    @torch.no_grad()
    def _watch(self, x: Tensor) -> None:
        each = length_of(self.norm, x)
        rest = each[:, 1:] if each.shape[1] > 1 else each
        self.passes.append(torch.stack((each[:, 0].mean(), rest.mean())))

    def step(self) -> None:
        """Takes the passes since the last step, however many, into the average."""
        if self.passes:
            here = torch.stack(self.passes).mean(0)
            before = here if self.lengths is None else self.lengths
            self.lengths = before + (1 - MOMENTUM) * (here - before)
            self.passes.clear()

    def unify_lengths(self) -> None:
        """Makes the norm divide a sequence's first token as it divides the others."""
        assert self.lengths is not None
        self.lengths = self.lengths[1].repeat(2)


def make_removable(model: Transformer) -> dict[str, RemovableNorm]:
    """Puts a RemovableNorm in the place of every norm. Returns them by path, in the order of
    freezing. Each holds the norm that was there, with its gain and bias."""
    removable = {}
    for path in norm_stages(model):
        owner, _, name = path.rpartition(".")
        removable[path] = RemovableNorm(model.get_submodule(path))
        setattr(model.get_submodule(owner), name, removable[path])
    return removable


def length_of(norm: nn.Module, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time"]:
    """sqrt(var(x) + eps) for a LayerNorm, sqrt(mean(x**2) + eps) for an RMSNorm"""
    x = wide(x)
    if isinstance(norm, LayerNorm):
        return (x.var(-1, correction=0) + norm.eps).sqrt()
    assert isinstance(norm, RMSNorm)
    return 1 / norm.length.inverse(x.square().sum(-1))


# --------------------------------------------------------------------------------------- folding


def compose_normless(own: Config, model: Transformer) -> Config:
    """The config of the folded model: `own`, without norms, with a separate head.

    Each matrix that reads a norm has a bias where a norm of `model` has one. Raises Unmeasured if
    the placement names a norm, which would stay.
    """
    roles = biased(model.config.architecture.bias)
    if any(getattr(norm, "bias", None) is not None for _, norm in model.norms()):
        inputs = {role for group in READERS.values() for role in group} | {"head"}
        roles |= inputs - {*model.config.blocks[0].latent_ranks}
    roles &= biasable_roles(model.config)
    bias = f"[{','.join(sorted(roles))}]" if roles else "false"
    changed = ["norm=none", "final_norm=none", "architecture.tied=false"]
    config = recompose(own, [*changed, f"architecture.bias={bias}"])
    norms = build_uninitialized(config, model.vocab_size).norms()
    if staying := dict.fromkeys(place_of(norm).title for _, norm in norms):
        raise Unmeasured(f"its placement names its own norms: {', '.join(staying)}")
    return config


@torch.no_grad()
def fold_norms(model: Transformer, config: Config) -> Transformer:
    """A model of `config` (of `compose_normless`) that computes what `model` does, in float64.

    All norms of `model` are frozen and divide the first token as all others. A frozen norm is
    x -> M x + c, and W (M x + c) + b = (W M) x + (W c + b). A constant that multiplies the norm's
    output stays where it is; c has met it already.
    """
    model = copy.deepcopy(model).cpu().double()
    folded = empty_model(config, model)
    zeros = torch.zeros(1, 1, config.model.width, dtype=torch.float64)
    units = torch.eye(config.model.width, dtype=torch.float64)[None]
    for path, norm in model.named_modules():
        if isinstance(norm, RemovableNorm):
            matrix = (norm(units) - norm(zeros))[0].mT
            constant = model.get_submodule(path.removesuffix(".norm"))(zeros)[0, 0]
            for name in readers(folded, place_of(norm.norm)):
                linear = folded.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                absorb(linear, matrix, constant)
    return folded


# ------------------------------------------------------------ the order in which norms are frozen


@dataclass(frozen=True)
class FreezingOrder:
    """From step `start` on a norm is frozen every `gap` steps. Last the first token loses the
    separate length. `norms` has the stage of each norm by its path, in the order of freezing."""

    norms: Mapping[str, str]
    start: int
    gap: int

    @property
    def steps(self) -> dict[int, str]:
        """The path of the norm that is frozen at a step."""
        return {self.start + n * self.gap: path for n, path in enumerate(self.norms)}

    @property
    def end(self) -> int:
        return self.start + len(self.norms) * self.gap

    @property
    def stages(self) -> dict[int, str]:
        """The stage whose last norm is frozen at a step, and the stage before all."""
        last = {self.norms[path]: step for step, path in self.steps.items()}
        return {0: BEFORE} | {step: stage for stage, step in last.items()} | {self.end: FIRST}


def remove_in_order(order: FreezingOrder, model: Transformer) -> Timetable:
    """Freezes the norms of a model in their order. At the step of the first one all are frozen for
    one validation, and then are norms again."""
    norms = make_removable(model)

    def before(step: int) -> Iterator[str]:
        for norm in norms.values():
            norm.step()
        if step == order.start:
            for norm in norms.values():
                norm.frozen = True
            yield AT_ONCE
            for norm in norms.values():
                norm.frozen = False
        if step in order.steps:
            norms[order.steps[step]].frozen = True
        if step == order.end:
            for norm in norms.values():
                norm.unify_lengths()
        yield from stay(order.stages)(step)

    return before
