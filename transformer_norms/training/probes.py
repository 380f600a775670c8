"""What is measured inside a model while it trains; `measures.py` says what each number means.

Nothing here changes a result: the forward pass that is measured is one of its own, without dropout,
gradients or anything drawn, and what else is measured is only read.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.model.coefficient import Learned
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.forward_probes import Readings, watched
from transformer_norms.training.measures import Place, key_of
from transformer_norms.training.optimizer import groups

SEQUENCES = 2  # of the step's batch, for the forward pass
DIGITS = 5
Values = dict[str, float | None]  # by key; None where there is no such number, as of 0 / 0


class Probes:
    """`probes(step)` measures the first step and every `every`-th; 0 is never."""

    def __init__(self, model: Transformer, every: int) -> None:
        self.model, self.every = model, every

    def __call__(self, step: int) -> "Probe | Unprobed":
        due = self.every > 0 and (step == 1 or step % self.every == 0)
        return Probe(self.model) if due else Unprobed()


class Unprobed:
    """A step of which nothing is measured."""

    def forward(self, batch: Tensor, loss: Callable[[Tensor], Any]) -> None: ...

    def gradients(self) -> None: ...

    def update(self) -> AbstractContextManager[None]:
        return nullcontext()

    def values(self) -> Values:
        return {}


class Probe:
    """One step's: of the weights that it begins with, their gradients, and their change."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        found = groups(model)
        named = [*found["tables"], *found["matrices"]]
        self.matrices = {name.removesuffix(".weight"): weight for name, weight in named}
        self.readings: Readings = {}

    def forward(self, batch: Tensor, loss: Callable[[Tensor], Any]) -> None:
        """Before anything is drawn. `loss` runs the model, in the precision of training."""
        self.readings |= spreads(self.model)
        self.model.eval()
        try:
            # Compiled blocks stay as they are: they neither run nor see the hooks.
            with (
                torch.no_grad(),
                torch.compiler.set_stance("force_eager"),
                watched(self.model) as readings,
            ):
                loss(batch[:SEQUENCES])
        finally:
            self.model.train()
        self.readings |= readings

    def gradients(self) -> None:
        """After the backward pass and before clipping."""
        of = {p: w.grad for p, w in self.matrices.items() if w.grad is not None}
        self._read("gradient_norm", of, torch._foreach_norm(list(of.values())))

    @contextmanager
    def update(self) -> Iterator[None]:
        """Round all that changes the weights."""
        weights = [weight.detach() for weight in self.matrices.values()]
        change = [weight.clone() for weight in weights]
        norms = torch._foreach_norm(change)
        yield
        torch._foreach_sub_(change, weights)
        ratios = torch._foreach_div(torch._foreach_norm(change), norms)
        self._read("update_over_weight", self.matrices, ratios)

    def _read(self, measure: str, paths: Iterable[str], values: Any) -> None:
        for path, value in zip(paths, values, strict=True):
            self.readings[key_of(place(measure, path))] = value

    def values(self) -> Values:
        numbers = torch.stack([value.double() for value in self.readings.values()]).tolist()
        return {key: rounded(x) for key, x in zip(self.readings, numbers, strict=True)}


@torch.no_grad()
def spreads(model: nn.Module) -> Readings:
    """How far each norm's gains lie apart; 1 + offset lies as far apart as the offset."""
    gains: dict[Place, list[Tensor]] = {}
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        gain = own.get("gain", own.get("offset"))
        # A learned coefficient is no norm, and a norm with one number has nothing to lie apart.
        if gain is not None and gain.numel() > 1 and not isinstance(module, Learned):
            gains.setdefault(place("gain_spread", path), []).append(gain.flatten())
    return {key_of(at): torch.cat(of).double().std(correction=0) for at, of in gains.items()}


# What a path has besides the site: the sub-layer's function, and wrappers round the norm.
_WRAPPERS = re.compile(r"\.(f|norm|heads\.\d+)(?=\.|$)")


def place(measure: str, path: str) -> Place:
    """`blocks.3.attention.f.query` -> attention.query in block 3; `final.norm` -> final"""
    first, *rest = _WRAPPERS.sub("", path).split(".")
    if first == "blocks":
        return Place(measure, ".".join(rest[1:]), int(rest[0]))
    return Place(measure, first, None)


def rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
