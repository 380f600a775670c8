"""One run without its norms: from its folder to what that cost."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.norm_removal.cost import Cost, cost_of
from transformer_norms.analysis.norm_removal.folding import folded, normless
from transformer_norms.analysis.norm_removal.freezing import Place, places
from transformer_norms.analysis.norm_removal.tuning import Timetable, tune
from transformer_norms.building import build_trainer
from transformer_norms.config import compose, plain
from transformer_norms.data import Tokens
from transformer_norms.data.batches import Batches, windows
from transformer_norms.errors import ConfigError
from transformer_norms.folder import summary_of
from transformer_norms.loading import load
from transformer_norms.model import Transformer
from transformer_norms.plan import Plan
from transformer_norms.sweep.record import label

# How it is tuned on where nothing else is typed: a horizon of its own, with no run's evaluations.
USUAL = ("trainer.steps=300", "schedule.warmup=20", "trainer.eval_every=0", "trainer.probe_every=0")
RATE = 1 / 3  # of the run's own peak
TYPED = ("trainer", "optimizer", "schedule")  # the rest is the run's


@dataclass(frozen=True)
class Removal:
    """What it cost, and the model without norms that it came to: None where that diverged."""

    cost: Cost
    folded: Transformer | None


class Subject:
    """A trained run whose norms are to go. ConfigError where it is none, or they cannot.

    `typed` are keys of the tuning, as train.py takes them."""

    def __init__(self, folder: Path, typed: Sequence[str], start: int, gap: int) -> None:
        for text in typed:
            if re.split(r"[.=]", text)[0] not in TYPED:
                raise ConfigError(f"{text}: what can be typed here is of {', '.join(TYPED)}")
        self.folder, file = folder, f"config={folder / 'config.yaml'}"
        self.model, self.summary = load(folder), summary_of(folder)
        if self.summary.get("status") != "finished":
            raise ConfigError(f"{folder}: is {self.summary.get('status')}, not finished")
        try:
            found: list[Place] = places(self.model)
        except ValueError as error:
            raise ConfigError(f"{folder}: {error}") from None
        self.timetable = Timetable(found, start, gap)
        rate = f"optimizer.lr={compose([file]).optimizer.lr * RATE:g}"
        known = {text.partition("=")[0] for text in typed}
        usual = [text for text in (*USUAL, rate) if text.partition("=")[0] not in known]
        self.config = compose([file, *usual, *typed])
        self.normless = normless(folder / "config.yaml")
        steps = self.config.trainer.steps
        if self.timetable.end >= steps:
            raise ConfigError(
                f"trainer.steps={steps}: the last norm of {folder} goes at step "
                f"{self.timetable.end}; more steps, or a smaller --start or --gap"
            )

    @property
    def name(self) -> str:
        choices = self.summary["choices"]
        return label({key: choices[key] for key in ("norm", "placement")})

    def remove(self, tell: Callable[[str, int, int], None]) -> Removal:
        """Tunes twice, folds, and compares."""
        torch.set_num_threads(self.summary["threads"])
        tokens, tuned = self._tokens(), {}
        for name, remove in (("without norms", True), ("control", False)):
            trainer = self._trainer(copy.deepcopy(self.model).train(), tokens)
            told = partial(self._told, tell, name)
            tuned[remove] = tune(trainer, self.timetable, remove, told)
        model, rounding = None, None
        if tuned[True].diverged is None:
            model = folded(tuned[True].model, self.normless)
            rounding = _rounding(tuned[True].model, model, next(iter(self._windows(tokens))))
        seed, timetable = self.config.seed, self.timetable
        cost = cost_of(self.name, seed, timetable, tuned[True], tuned[False], rounding)
        return Removal(cost, model)

    def _told(self, tell: Callable[[str, int, int], None], name: str, step: int) -> None:
        words = f"{self.name} s{self.config.seed}, {name}: step {{:.0f}}/{{:.0f}}"
        tell(words, step, self.config.trainer.steps)

    def _tokens(self) -> Tokens:
        tokens = Plan(plain(self.config)).tokens()
        if tokens.fingerprint != self.summary["data"]["fingerprint"]:
            raise ConfigError(f"{self.folder}: the tokens have changed since it was trained")
        return tokens

    def _trainer(self, model: Transformer, tokens: Tokens) -> Any:
        """Reads on where the run's own training stopped."""
        keys, before = self.config.trainer, self.summary["step"]
        read = Batches(
            tokens.train, self.config.model.context, keys.batch_size, self.config.data.seed
        )
        return build_trainer(
            plain(self.config), model, lambda step: read(before + step),
            partial(self._windows, tokens),
        )  # fmt: skip

    def _windows(self, tokens: Tokens) -> Any:
        size = self.config.trainer.batch_size // self.config.trainer.accumulation
        context, limit = self.config.model.context, self.config.data.val_tokens
        return windows(tokens.val, context, limit, size)


@torch.no_grad()
def _rounding(frozen: Transformer, without: Transformer, tokens: torch.Tensor) -> float:
    exact = copy.deepcopy(frozen).double().cpu().eval()
    wanted, found = exact(tokens[:, :-1]), without(tokens[:, :-1])
    return ((wanted - found).abs().max() / wanted.abs().max()).item()
