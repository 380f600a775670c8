"""Another norm in a trained model: its cost before and after tuning."""

# The swap is made before the first step, so that the optimizer knows the new norms' parameters. The
# control is the same model tuned on the same batches with its own norms. DyT (Zhu et al. 2025,
# arXiv:2503.10622) and Derf (Chen et al. 2025, arXiv:2512.10938) were trained from the start; what
# is measured here is whether a model that learned with one norm can go on with another.

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_norms.analysis.command import run_analysis, tuned_parser
from transformer_norms.analysis.norm_swapping import (
    compose_swapped,
    is_swap,
    swap_norms,
)
from transformer_norms.analysis.outcome import KIND, Analysis, Number, Outcome, Row, View
from transformer_norms.analysis.trained.measuring import typed_keys
from transformer_norms.analysis.trained.tuned_models import (
    BEFORE,
    OF_TUNINGS,
    PANELS,
    Tunable,
    end_numbers,
    measure_tuned,
    stay,
    tune,
    tuning_rows,
)
from transformer_norms.commands.terminal import Parser
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
        "What a norm brings with it (a start of weights, a separate head, a scale of the "
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
{OF_TUNINGS}The CSV file is written as models are done.
"""


def make_parser() -> Parser:
    return tuned_parser(__doc__, "runs/main norm=dyt --out DIR", EPILOG, "swap")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse, "stopped; finished runs are written")


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    typed.swap = [word for word in typed.where if is_swap(word)]
    if not typed.swap:
        raise ConfigError("type the norm that comes in, such as norm=dyt or final_norm=layernorm")
    typed.where = [word for word in typed.where if word not in typed.swap]
    return measure_tuned(ANALYSIS, measure, SWAPPED, typed, tell)


def measure(tunable: Tunable, tell: Tell, typed: Namespace) -> Iterator[Row | str | Path]:
    """Tunes a model with the norms that are typed, and as it is."""
    config, own = (compose_swapped(one, typed.swap) for one in (tunable.config, tunable.own))
    model, swaps = swap_norms(tunable.model, config)
    trainer = tunable.trainer(model, config)
    swapped = tune(trainer, stay({0: SWAPPED}), SWAPPED, tell)
    control = tunable.tune_control({0: BEFORE}, tell)
    yield " ".join([*typed.swap, *typed_keys(typed)])
    if typed.save and not swapped.diverged:
        yield tunable.save(trainer.model, own, typed.save, SWAPPED)
    yield from tuning_rows(SWAPPED, swapped, control)
    for swap, count in Counter(swaps).items():
        yield {KIND: "norm", "norms": count, **vars(swap)}
