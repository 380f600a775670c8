"""What a report is about: runs that sweeps planned, or that lie in folders, by variant."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformer_norms.run.reader import SavedRun
from transformer_norms.run.sweep_record import EFFECT, Tuned, Values

RATE = "optimizer.lr"
# unplanned: no sweep needs it; superseded: a later attempt, or a better point of the
# tuning grid, stands beside it
Stage = Literal["result", "tune", "unplanned", "superseded"]


@dataclass(frozen=True)
class StudyRun:
    """A run that was planned or found; `run` is None where its folder is not there."""

    folder: Path
    run: SavedRun | None
    stage: Stage
    variant: Values
    tuned: Values
    seed: int

    @property
    def status(self) -> str:
        return self.run.summary.status if self.run else "missing"

    @property
    def ended(self) -> bool:
        return self.run is not None and self.run.ended


@dataclass(frozen=True)
class Variant:
    """`baseline` is the name of the variant that this one is compared with, its own for a baseline;
    None where nothing is to be compared. `tuned` is what tuning chose."""

    name: str
    values: Values
    results: list[StudyRun]
    trials: list[StudyRun] = field(default_factory=list)
    baseline: str | None = None
    tuned: Tuned | None = None

    @property
    def compared(self) -> bool:
        return self.baseline not in (None, self.name)

    @property
    def lost(self) -> bool:
        """Whether it diverged at every value that tuning tried, and so has no results."""
        return self.tuned is not None and self.tuned.best is None

    @property
    def ended(self) -> list[SavedRun]:
        """The runs that have a result."""
        return [member.run for member in self.results if member.run and member.ended]


@dataclass(frozen=True)
class Study:
    """`home`: the first folder named. `effect`: the smallest difference worth naming, in nats per
    token. `tune`: what was tried of each tuned key."""

    home: Path
    axes: list[str]
    runs: list[StudyRun]
    variants: list[Variant]
    effect: float = EFFECT
    question: str = ""
    tune: dict[str, list[Any]] = field(default_factory=dict)

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def rate(self) -> str | None:
        """The tuned key whose curve is shown: the learning rate, else the first with numbers."""
        keys = [key for key, values in self.tune.items() if values and all(map(finite, values))]
        return RATE if RATE in keys else next(iter(keys), None)

    def count(self) -> dict[str, int]:
        """Of the runs that count, how many there should be and what has become of them."""
        counted = [member for member in self.runs if member.stage in ("result", "tune")]
        runs = {member.folder: member for member in counted}.values()
        ended = [member.status for member in runs if member.ended]
        return {
            "runs": len(runs),
            "finished": ended.count("finished"),
            "diverged": ended.count("diverged"),
            "missing": len(runs) - len(ended),
        }

    @property
    def unfinished(self) -> bool:
        """Whether runs are missing, or a variant waits for its results to be planned."""
        return self.count()["missing"] > 0 or self._waits

    @property
    def goes_on(self) -> bool:
        """Whether something is unfinished that has not failed: only a person tries that again."""
        states = {m.status for m in self.runs if m.stage in ("result", "tune") and not m.ended}
        return bool(states - {"failed"}) or (self._waits and not states)

    @property
    def _waits(self) -> bool:
        return any(v.trials and not v.results and not v.lost for v in self.variants)


def finite(value: Any) -> bool:
    """Whether it is a number that a figure has room for; not every integer is."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -1e300 < value < 1e300
