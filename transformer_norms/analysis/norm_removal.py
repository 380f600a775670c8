"""From a trained model to one without norms: what each stage costs."""

# A norm's division by each token's own length becomes a division by one number, one norm after the
# other while the model is tuned on. What is then left of a norm is a matrix, which the weights that
# read it take in. Baroni et al. 2025, arXiv:2507.02559, after Heimersheim 2024, arXiv:2409.13710,
# who did it to GPT-2.
#
# Theirs differs in three points: queries and keys lose their norm before values do; the end-of-text
# token keeps a length of its own for a while, as the first token does here too; and some of their
# models had an auxiliary loss on the last lengths.

from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from transformer_norms.analysis.command import models_parser, run_analysis
from transformer_norms.analysis.norm_freezing import AT_ONCE, FIRST, STAGES, prepare_removal
from transformer_norms.analysis.outcome import Analysis, Number, Outcome
from transformer_norms.analysis.trained.measuring import measure_models
from transformer_norms.analysis.trained.tunable import BEFORE, OF_TUNINGS, read_tunable
from transformer_norms.analysis.trained.tuned_models import (
    PANELS,
    end_numbers,
    measure_change,
    saved_folder,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.errors import ConfigError
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
are validation losses in nats per token. Files are written as runs are done.
"""


FOLDED = "folded"  # what becomes of the norms, in the name of a saved model


def make_parser() -> Parser:
    example = "rmsnorm --out DIR trainer.steps=300"
    parser = models_parser(__doc__, example, EPILOG, "norm_removal")
    parser.add_argument(
        "--start", type=int, default=20, metavar="STEP", help="of the first norm (%(default)s)"
    )
    parser.add_argument(
        "--gap", type=int, default=5, metavar="STEPS", help="between two norms (%(default)s)"
    )
    parser.add_argument("--save", type=typed_path, metavar="DIR", help="where the folded models go")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    for name in ("start", "gap"):
        if getattr(typed, name) < 1:
            raise ConfigError(f"--{name} {getattr(typed, name)}: at least 1 is wanted")
    prepare = partial(prepare_removal, start=typed.start, gap=typed.gap)
    measure = partial(measure_change, FOLDED, prepare)
    writes = partial(saved_folder, FOLDED, typed.save)
    return measure_models(ANALYSIS, measure, typed, tell, read_tunable, writes)
