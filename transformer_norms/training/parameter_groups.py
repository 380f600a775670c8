"""The groups of a model's parameters, and the rate and the weight decay of each. A group follows
from the type of a module, not from its name."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from transformer_norms.formula import Formula
from transformer_norms.kinds import Number, Text
from transformer_norms.model.initialization import Embedding, Linear, own_values
from transformer_norms.model.sizes import formula_values
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.matrix import Matrix
from transformer_norms.training.settings import GROUPS, check_factor

# What the learning rate of each of GROUPS is multiplied by: a number, or a formula of N, d, .. and,
# for weights, of fan_in and fan_out. Where a matrix reads a latent, d is the latent's width.
LearningRateFactors = Mapping[str, Number | Text]
Groups = dict[str, list[tuple[str, nn.Parameter]]]


def groups(model: nn.Module) -> Groups:
    """Returns every parameter in exactly one of five groups: `matrices` (weights of sub-layers and
    inside norms), `embeddings` (of tokens, also where the head is tied, and of positions), `head`
    (an untied one), `norms` (what else a norm or a coefficient learns), `biases`.
    """
    by_group: Groups = {name: [] for name in GROUPS}
    seen = set[nn.Parameter]()  # modules may share a parameter
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                by_group[_group(module, name)].append((name, parameter))
    return by_group


def _group(module: nn.Module, name: str) -> str:
    if isinstance(module, (Linear, Matrix)):
        if name.endswith(".bias"):
            return "biases"
        return "head" if name.startswith("head.") else "matrices"
    return "embeddings" if isinstance(module, Embedding) else "norms"


def decay_by_group(
    model: nn.Module, decay_norms: bool, decay_embeddings: bool = True
) -> dict[str, bool]:
    """Returns on which groups weight decay acts: weights unless a constraint holds their length,
    embeddings and norms where asked, biases never."""
    free = getattr(model, "constrain", nothing) is nothing
    weights = {"matrices": free, "embeddings": free and decay_embeddings, "head": free}
    return {**weights, "norms": decay_norms, "biases": False}


def divide_parameters(
    model: nn.Module,
    names: Sequence[str],
    decays: Mapping[str, bool],
    lr: float,
    weight_decay: float,
    lr_factor: Mapping[str, str | float],
) -> list[dict[str, Any]]:
    """Returns the parameters of the groups `names` as torch's groups of one rate and one decay.

    A factor of the rate leaves lr * weight_decay, the share of a weight that decays in a step, as
    it is, like the authors' code of muP (microsoft/mup, optim.py).
    """
    alike: dict[tuple[bool, float], list[nn.Parameter]] = {}
    by_group = groups(model)
    for name in names:
        undecayed, factor = not decays[name], lr_factor[name]
        for key, parameter in by_group[name]:
            kind = undecayed, factor_of(model, key, factor)
            alike.setdefault(kind, []).append(parameter)
    return [
        {
            "params": alike[undecayed, factor],
            "lr": lr * factor,
            "base_lr": lr,
            "weight_decay": 0.0 if undecayed else weight_decay / factor,
        }
        for undecayed, factor in sorted(alike)
    ]


def factor_of(model: nn.Module, key: str, formula: str | float) -> float:
    """Returns what the learning rate of the parameter `key` is multiplied by."""
    if not isinstance(formula, str):
        return formula
    module = model.get_submodule(key.rpartition(".")[0])
    own = own_values(module) if isinstance(module, (nn.Linear, nn.Embedding)) else {}
    config: Any = model.config
    return check_factor(float(Formula(formula)({**formula_values(config.model), **own})))
