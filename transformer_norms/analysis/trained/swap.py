"""Another norm in a trained model: its cost before and after tuning."""

# The swap is made before the first step, so that the optimizer knows the new norms' parameters. The
# control is the same model tuned on the same batches with its own norms. DyT (Zhu et al. 2025,
# arXiv:2503.10622) and Derf (Chen et al. 2025, arXiv:2512.10938) were trained from the start; what
# is measured here is whether a model that learned with one norm can go on with another.

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.analysis.command import run_analysis, tuned_parser
from transformer_norms.analysis.outcome import KIND, Analysis, Number, Outcome, Row, View
from transformer_norms.analysis.trained.measuring import typed_keys
from transformer_norms.analysis.trained.subjects import Unmeasured, leave_out_refused
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
from transformer_norms.config.building import build_model, build_uninitialized
from transformer_norms.config.compose import recompose
from transformer_norms.config.overrides import as_typed, parse
from transformer_norms.config.resolution import NORM_KEYS
from transformer_norms.config.tree import AUTO_ARCHITECTURE, Config, diff, flat
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain, value_at
from transformer_norms.model.placement import read_placement
from transformer_norms.model.sites import place_of
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.training.tensors import stored_tensors

# The keys that say which norm is at which site.
TYPED = ("norm", *NORM_KEYS, "placement.equation", "placement.where")
# These nodes follow from the typed norms: the norms themselves, and the record of the choices.
FOLLOWS = ("norm", "norms", "qkv", "choices", "chosen", "warnings", "placement")
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
    with leave_out_refused():
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


# -------------------------------------------------------------------------------------- the config


def is_swap(word: str) -> bool:
    """Whether KEY=VALUE says which norm is at which site."""
    key = word.partition("=")[0]
    return key in TYPED or key.startswith("norm.")


def compose_swapped(own: Config, typed: Sequence[str]) -> Config:
    """Returns `own` with the norms that are typed. All else that a norm brings stays as `own` has
    it.

    Raises Unmeasured if anything else would change than the norms that are there.
    """
    keys = {pair.key for pair in parse(typed)}
    config = recompose(own, typed)
    kept = [*AUTO_ARCHITECTURE, *NORM_KEYS]
    stays = [
        as_typed(key, plain(value_at(own, key)))
        for key in kept
        if key not in keys and value_at(own, key) != value_at(config, key)
    ]
    if own.init != config.init:
        stays.append(f"init={own.choices['init']}")
    config = recompose(own, [*typed, *stays]) if stays else config
    before, after = (flat({k: v for k, v in plain(c).items() if k not in FOLLOWS})
                     for c in (own, config))  # fmt: skip
    for key, (was, would_be) in diff(before, after).items():
        if key not in keys:
            raise Unmeasured(
                f"{' '.join(typed)}: {key} would become {would_be}, and it is {was} where the "
                "weights were trained"
            )
    if _without_norms(own) != _without_norms(config):
        raise Unmeasured(
            "placement.equation: a swap changes names of norms, and nothing else of the equation"
        )
    return config


def _without_norms(config: Config) -> list[Any]:
    """Returns all that a config's placement says but which norms are at its sites."""
    placement, depth = read_placement(config.placement), config.model.depth
    plans = []
    for i in range(depth):
        plans += [placement.block_plan(i, depth), *placement.plans(i, depth).values()]
    said = [placement.topology, placement.connection, placement.weight_constraint]
    return [*map(plain, (*said, placement.learned))] + [
        replace(plan, sites={name: replace(site, norm="norm") for name, site in plan.sites.items()})
        for plan in plans
    ]


# ----------------------------------------------------------------------------------- the weights


@dataclass(frozen=True)
class Swap:
    """One norm in the place of another. `carried` names its parameters that come from the other
    one, `started` those at their own start, and `left` parameters of the other that it has no place
    for."""

    site: str
    before: str
    after: str
    carried: str
    started: str
    left: str


@torch.no_grad()
def swap_norms(model: Transformer, config: Config) -> tuple[Transformer, list[Swap]]:
    """Returns a model of `config` (of `compose_swapped`) with the weights of `model`, and what
    became of each norm.

    A norm of the same class takes over all parameters of the same shape. One of another class
    takes the gain, each relative to its start, and the bias. Raises Unmeasured where `config` has
    a norm that replaces none of the model's.
    """
    assert model.config is not None
    swapped = build_model(config, model.vocab_size)
    norms, new = dict(model.norms()), dict(swapped.norms())
    places = [place_of(norm) for norm in norms.values()]
    named = any(place.norm == "norm" or place.site == "connection" for place in places)
    if config.norm != model.config.norm and not named:
        raise Unmeasured("no site has the run's norm; each names its own")
    if added := [path for path in new if path not in norms]:
        raise Unmeasured(f"{added[0]}: there is no norm that another one could replace")
    there = stored_tensors(model)
    for name, tensor in stored_tensors(swapped).items():
        if not any(name.startswith(f"{path}.") for path in new):
            assert there[name].shape == tensor.shape, name
            tensor.copy_(there[name])
    starts = dict(build_uninitialized(model.config, model.vocab_size).norms())
    swaps = [_carry(norm, new.get(path), starts[path]) for path, norm in norms.items()]
    return swapped.eval(), swaps


def _carry(old: nn.Module, new: nn.Module | None, start: nn.Module) -> Swap:
    """Puts into the new norm what it takes over of the old one, which began as `start`."""
    held, there = _tensors(old), {} if new is None else _tensors(new)
    sources: dict[str, str] = {}  # of what is carried over: its name in the old norm
    for name, tensor in there.items():
        value, source = _value(name, tensor, old, new, start)
        if value is not None:
            tensor.copy_(value)
            sources[name] = source
    kind = "none" if new is None else type(new).__name__
    started = " ".join(name for name in there if name not in sources)
    left = " ".join(name for name in held if name not in sources.values())
    site = place_of(old).title
    return Swap(site, type(old).__name__, kind, " ".join(sources), started, left)


def _value(
    name: str, tensor: Tensor, old: nn.Module, new: nn.Module | None, start: nn.Module
) -> tuple[Tensor | None, str]:
    """The value of a norm's parameter that comes from the norm before it, and its name there."""
    held = _tensors(old)
    same = name in held and held[name].shape == tensor.shape
    if same and (type(new) is type(old) or name == "bias"):
        return held[name], name
    if name not in ("gain", "offset"):
        return None, ""
    source = next((one for one in ("gain", "offset") if one in held), "")
    if not source or held[source].numel() not in (1, tensor.numel()):
        return None, ""
    gain = 1 + held[source] if source == "offset" else held[source]
    if source == "gain":
        gain = gain / _tensors(start)["gain"]
    return (gain - 1 if name == "offset" else gain * tensor), source


def _tensors(norm: nn.Module) -> dict[str, Tensor]:
    return dict(chain(norm.named_parameters(), norm.named_buffers()))
