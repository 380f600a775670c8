"""Training on while a model's norms change, and the same training in which they stay."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from transformer_norms.training.divergence import Divergence
from transformer_norms.training.trainer import Trainer

BEFORE, TUNED = "before", "tuned"
CONTROL = "control"


# Does to the model that is tuned on what is due before a step. Yields the name of each stage in
# which the model is to be validated, while it is in it.
Timetable = Callable[[int], Iterable[str]]


def stay(stages: Mapping[int, str]) -> Timetable:
    """The timetable of the control, whose norms stay: the stage of a step, if it has one."""
    return lambda step: [stages[step]] if step in stages else []


@dataclass
class Tuning:
    """One model tuned on: step and validation loss by stage, and the training loss of each step,
    in nats per token. `diverged` says why it ended early, and is empty where it did not."""

    steps: dict[str, int] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)
    diverged: str = ""

    def validate(self, stage: str, trainer: Trainer) -> None:
        measured = trainer.evaluate(trainer.validation())
        assert measured is not None
        nats, tokens = measured
        self.steps[stage], self.validation[stage] = trainer.step, nats / tokens


def tune(trainer: Trainer, timetable: Timetable, tell: Callable[[int, int], None]) -> Tuning:
    """Tunes the trainer's model on to its last step, as the timetable says. `tell` is called with
    the steps that are done, and their number."""
    tuning, steps = Tuning(), trainer.settings.steps
    # A loss above the first one is what is to be measured here; only what is not finite ends it.
    trainer.divergence = Divergence(warmup=steps)
    for step in range(steps):
        tell(step, steps)
        for stage in timetable(step):
            tuning.validate(stage, trainer)
        tuning.diverged = trainer.train_step() or ""
        if tuning.diverged:
            return tuning
        tuning.training.append(trainer.last_loss)
    tuning.validate(TUNED, trainer)
    return tuning
