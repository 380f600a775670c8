"""Training on while the norms go, and the same training beside it in which they stay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transformer_norms.analysis.norm_removal.freezing import STAGES, Lengths, Place, one_length
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.divergence import Divergence
from transformer_norms.training.trainer import Trainer

BEFORE, AT_ONCE, FIRST, TUNED = "before", "at once", "first token", "tuned"
ORDER = (BEFORE, AT_ONCE, *STAGES, FIRST, TUNED)


@dataclass
class Tuned:
    """One model tuned on: the validation loss at each stage and the training loss of each step, in
    nats per token. `diverged` says why it ended early, where it did."""

    model: Transformer
    validation: dict[str, float] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)
    diverged: str | None = None


@dataclass(frozen=True)
class Timetable:
    """From step `start` on a norm is frozen every `gap` steps: those before the mlps, from the
    first block on, those before attention, the one before the head. Last the first token loses the
    length of its own."""

    places: Sequence[Place]
    start: int
    gap: int

    @property
    def steps(self) -> dict[int, Place]:
        """Of each norm."""
        return {self.start + n * self.gap: place for n, place in enumerate(self.places)}

    @property
    def end(self) -> int:
        return self.start + len(self.places) * self.gap

    @property
    def stages(self) -> dict[int, str]:
        """The step at which the last norm of a stage is frozen -> the stage."""
        last = {place.stage: step for step, place in self.steps.items()}
        return {last[stage]: stage for stage in STAGES if stage in last} | {self.end: FIRST}


def tune(
    trainer: Trainer, timetable: Timetable, remove: bool, tell: Callable[[int, int], None]
) -> Tuned:
    """The trainer's model tuned on while its norms are frozen one by one; or, the control, the same
    steps on the same batches, validated at the same steps."""
    tuned, stages = Tuned(trainer.model), timetable.stages
    # A loss above the first one is what is to be measured here; only what is not finite ends it.
    trainer.divergence = Divergence(warmup=trainer.settings.steps)
    lengths = Lengths(trainer.model) if remove else None
    tuned.validation[BEFORE] = _loss(trainer, trainer.model)
    for step in range(trainer.settings.steps):
        tell(step, trainer.settings.steps)
        if lengths is not None:
            if step == timetable.start:
                tuned.validation[AT_ONCE] = _loss(trainer, lengths.all_at_once())
            _remove(trainer.model, timetable, lengths, step)
        if step in stages:
            tuned.validation[stages[step]] = _loss(trainer, trainer.model)
        tuned.diverged = trainer.train_step()
        if tuned.diverged is not None:
            return tuned
        if lengths is not None:
            lengths.step()
        tuned.training.append(trainer.last_loss)
    tuned.validation[TUNED] = _loss(trainer, trainer.model)
    return tuned


def _remove(model: Transformer, timetable: Timetable, lengths: Lengths, step: int) -> None:
    """What the timetable has for this step."""
    if step in timetable.steps:
        lengths.freeze(timetable.steps[step].path)
    if step == timetable.end:
        one_length(model)


def _loss(trainer: Trainer, model: Transformer) -> float:
    """Validation loss of `model`, in nats per token, evaluated as the trainer's own is."""
    own, trainer.loss.model = trainer.loss.model, model
    model.eval()
    measured = trainer.evaluate(trainer.validation())
    trainer.loss.model = own
    own.train()
    assert measured is not None
    nats, tokens = measured
    return nats / tokens
