"""Another norm in a trained model: its cost before and after tuning."""

# The swap is made before the first step, so that the optimizer knows the new norms' parameters. The
# control is the same model tuned on the same batches with its own norms. DyT (Zhu et al. 2025,
# arXiv:2503.10622) and Derf (Chen et al. 2025, arXiv:2512.10938) were trained from the start; what
# is measured here is whether a model that learned with one norm can go on with another.

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from functools import partial

from transformer_norms.analysis.command import models_parser, run_analysis
from transformer_norms.analysis.norm_swapping import (
    compose_swapped,
    is_swap,
    swap_norms,
)
from transformer_norms.analysis.outcome import KIND, Analysis, Number, Outcome, View
from transformer_norms.analysis.trained.measuring import measure_models
from transformer_norms.analysis.trained.tunable import (
    BEFORE,
    OF_TUNINGS,
    Tunable,
    read_tunable,
    stay,
)
from transformer_norms.analysis.trained.tuned_models import (
    PANELS,
    Change,
    end_numbers,
    measure_change,
    saved_folder,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell

SWAPPED = "swapped"
ANALYSIS = Analysis(
    "swap",
    "Norms swapped",
    numbers={
        BEFORE: Number(BEFORE, "as it was trained"),
        SWAPPED: Number(SWAPPED, "with the new norm, before any tuning"),
        **end_numbers(".4f"),
    },
    legend="Validation losses in nats per token.",
    views=(
        View(
            "norm",
            ("norms", "site", "before", "after"),
            {
                "carried": Number("carried over", "parameters that the new norm has taken over"),
                "started": Number("at its start", "parameters of the new norm at its own start"),
                "left": Number("left out", "parameters for which the new norm has no place"),
            },
            "All other weights are those that were trained.",
        ),
    ),
    panels=PANELS,
    limits=(
        "A norm that a model was trained with from the start may do better or worse than one that "
        "it was tuned to.",
        "The rate and the length of the tuning are the control's, and were not tuned for the new "
        "norm.",
        "What a norm brings with it (a start of weights, a head of its own, a scale of the "
        "embedding) is not swapped.",
    ),
    size=lambda rows: (9.6, 3.4),
)
EPILOG = f"""
MODEL is a finished run, a study of several runs, or a folder that transformers
loads. A run or a study is named by its path or by a part of its name below ./runs.
norm=NEW is put at each site that has the run's norm; norm.KEY=VALUE are its own
keys. One site is typed as in a config: final_norm=NEW, qk_norm=NEW, or
  placement.equation="{{attention: x + f(norm(x)), mlp: x + f(NEW(x))}}"
in which nothing changes but names of norms. Gain and bias are carried over,
other parameters of the new norm are at their own start.
{OF_TUNINGS}Files are written as models are done.
"""


def make_parser() -> Parser:
    parser = models_parser(__doc__, "runs/main norm=dyt --out DIR", EPILOG, "swap")
    parser.add_argument("--save", type=typed_path, metavar="FOLDER", help="where tuned models go")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    swap = [word for word in typed.where if is_swap(word)]
    if not swap:
        raise ConfigError("type the norm that comes in, such as norm=dyt or final_norm=layernorm")
    typed.where = [word for word in typed.where if word not in swap]
    measure = partial(measure_change, SWAPPED, partial(prepare_swap, typed=swap))
    writes = partial(saved_folder, SWAPPED, typed.save)
    return measure_models(ANALYSIS, measure, typed, tell, read_tunable, writes)


def prepare_swap(tunable: Tunable, typed: Sequence[str]) -> Change:
    """Returns the swap of a trained model's norms as typed. Raises ConfigError where no norm can be
    swapped."""
    config, saved = (compose_swapped(own, typed) for own in (tunable.config, tunable.own))
    model, swaps = swap_norms(tunable.model, config)
    alike = [{KIND: "norm", "norms": count, **vars(s)} for s, count in Counter(swaps).items()]
    swapped = stay({0: SWAPPED})
    words = " ".join(typed)
    return Change(model, config, lambda _: swapped, {0: BEFORE}, saved, words, rows=alike)
