"""From a trained model to one without norms: what each stage costs."""

# A norm's division by each token's own length becomes a division by one number, one norm after the
# other while the model is tuned on. What is then left of a norm is a matrix, which the weights that
# read it take in. Baroni et al. 2025, arXiv:2507.02559, after Heimersheim 2024, arXiv:2409.13710,
# who did it to GPT-2.
#
# Theirs differs in three points: queries and keys lose their norm before values do; the end-of-text
# token keeps its own length for a while, as the first token does here too; and some of their
# models had an auxiliary loss on the last lengths.

import copy
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from transformer_norms.analysis.command import run_analysis, tuned_parser
from transformer_norms.analysis.folded_model import check_exact, largest_difference
from transformer_norms.analysis.norm_freezing import (
    AT_ONCE,
    FIRST,
    STAGES,
    FreezingOrder,
    compose_normless,
    fold_norms,
    norm_stages,
    remove_in_order,
)
from transformer_norms.analysis.outcome import Analysis, Number, Row
from transformer_norms.analysis.trained.measuring import typed_keys
from transformer_norms.analysis.trained.subjects import Unmeasured
from transformer_norms.analysis.trained.tuned_models import (
    BEFORE,
    OF_TUNINGS,
    PANELS,
    Tunable,
    end_numbers,
    measure_tuned,
    tune,
    tuning_rows,
)
from transformer_norms.commands.terminal import Parser, number_from
from transformer_norms.progress import Tell

ANALYSIS = Analysis(
    "norm_removal",
    "Norms removed",
    numbers={
        BEFORE: Number(BEFORE, "as it was trained", ".3f"),
        AT_ONCE: Number(
            AT_ONCE,
            "all norms frozen at the step of the first, and nothing tuned after",
            ".3f",
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
        frozen = trainer.model.double().cpu().eval()
        folded = fold_norms(frozen, without)
        rounding = largest_difference(frozen, folded, next(tunable.windows())[:, :-1])
        check_exact(tunable.folder, rounding)
        if typed.save:
            yield tunable.save(folded, without, typed.save, FOLDED)
    yield from tuning_rows(FOLDED, tuned, control, rounding)
