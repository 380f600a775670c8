"""The order in which a model's norms are frozen while it is tuned on, and the removal of them."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from transformer_norms.analysis.folded_model import EXACT, largest_difference
from transformer_norms.analysis.norm_freezing import (
    STAGES,
    compose_normless,
    fold_norms,
    make_removable,
    norm_stages,
)
from transformer_norms.analysis.norm_tuning import BEFORE, TUNED, Cost, Timetable
from transformer_norms.analysis.outcome import Rows
from transformer_norms.analysis.trained.tunable import Tunable
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell

AT_ONCE, FIRST = "at once", "first token"
ORDER = (BEFORE, AT_ONCE, *STAGES, FIRST, TUNED)


@dataclass(frozen=True)
class FreezingOrder:
    """From step `start` on a norm is frozen every `gap` steps. Last the first token loses the
    length of its own. `norms` has the stage of each norm by its path, in the order of freezing."""

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


class Removal(Timetable):
    """Freezes the norms of a model in their order. At the step of the first one all are frozen for
    one validation, and then are norms again."""

    def __init__(self, order: FreezingOrder, model: Transformer) -> None:
        super().__init__(order.stages)
        self.order, self.norms = order, make_removable(model)

    def before(self, step: int) -> Iterator[str]:
        if step == self.order.start:
            self._freeze(True)
            yield AT_ONCE
            self._freeze(False)
        if step in self.order.steps:
            self.norms[self.order.steps[step]].frozen = True
        if step == self.order.end:
            for norm in self.norms.values():
                norm.unify_lengths()
        yield from super().before(step)

    def after(self) -> None:
        for norm in self.norms.values():
            norm.step()

    def _freeze(self, frozen: bool) -> None:
        for norm in self.norms.values():
            norm.frozen = frozen


class Removable:
    """A trained model whose norms are to be removed. `saved` is the config of what is left.

    Raises ConfigError if it has norms that are not folded here, or if the last one would go after
    the last step.
    """

    def __init__(self, tunable: Tunable, start: int, gap: int) -> None:
        self.tunable, folder = tunable, tunable.folder
        try:
            self.order = FreezingOrder(norm_stages(tunable.model), start, gap)
            self.saved: Config = compose_normless(tunable.own, tunable.model)
        except ValueError as error:
            raise ConfigError(f"{folder}: {error}") from None
        if self.order.end >= tunable.config.trainer.steps:
            raise ConfigError(
                f"trainer.steps={tunable.config.trainer.steps}: the last norm of {folder} goes at "
                f"step {self.order.end}; more steps, or a smaller --start or --gap"
            )

    rows: Rows = ()

    def change(self, title: str, tell: Tell) -> tuple[Cost, Transformer | None]:
        """Tunes twice, folds, and compares. Returns the cost, and the model without norms.

        The model is None if its tuning diverged. Raises ConfigError if folding has changed what the
        model computes.
        """
        tunable, order = self.tunable, self.order
        removed, frozen = tunable.tune(
            copy.deepcopy(tunable.model),
            tunable.config,
            lambda model: Removal(order, model),
            f"{title}, without norms",
            tell,
        )
        control, _ = tunable.tune_control(order.stages, title, tell)
        if removed.diverged:
            return Cost(removed, control), None
        folded = fold_norms(frozen, self.saved)
        exact = copy.deepcopy(frozen).double().cpu().eval()
        rounding = largest_difference(exact, folded, next(iter(tunable.windows()))[:, :-1])
        if not rounding < EXACT:
            raise ConfigError(
                f"{tunable.folder}: folding has changed the logits, by {rounding:.0e} of the "
                "largest; a fault of this program, or a norm of your own"
            )
        return Cost(removed, control, rounding), folded
