"""One run without its norms: from its folder to what that cost."""

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.norm_removal.cost import Cost, cost_of
from transformer_norms.analysis.norm_removal.folding import folded, normless
from transformer_norms.analysis.norm_removal.freezing import places
from transformer_norms.analysis.norm_removal.tuning import Timetable, tune
from transformer_norms.config.building import build_trainer
from transformer_norms.config.compose import compose, plain
from transformer_norms.data import Tokens
from transformer_norms.data.batches import Batches, windows
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import unknown
from transformer_norms.run.folder import summary_of
from transformer_norms.run.loading import load
from transformer_norms.run.plan import Plan

# How it is tuned on where nothing else is typed: a horizon of its own.
USUAL = ("trainer.steps=300", "schedule.warmup=20")
RATE = 1 / 3  # of the run's own peak
OURS = ("trainer.eval_every=0", "trainer.probe_every=0", "trainer.compile=false")
TYPED = (
    "trainer.steps trainer.batch_size trainer.accumulation trainer.clip optimizer schedule plugins"
).split()
EXACT = 1e-9  # of the largest logit: float64's rounding is far below, a wrong fold far above


class Subject:
    """A trained run, to be tuned on as `typed` says: KEY=VALUE as train.py takes them. Its
    optimizer starts afresh, with norms and without. ConfigError where it is no finished run, has
    norms that are not folded here, or its text has changed."""

    def __init__(self, folder: Path, typed: Sequence[str], start: int, gap: int) -> None:
        self.folder, file = folder, folder / "config.yaml"
        keys = dict(_checked(text) for text in typed)
        plugins = keys.get("plugins", "none")
        self.model, self.summary = load(folder, plugins), summary_of(folder)
        if (status := self.summary.get("status")) != "finished":
            raise ConfigError(f"{folder}: is {status or 'no run of train.py'}, not finished")
        try:
            self.timetable = Timetable(places(self.model), start, gap)
        except ValueError as error:
            raise ConfigError(f"{folder}: {error}") from None
        before = compose([f"config={file}", f"plugins={plugins}"])
        usual = [*USUAL, f"optimizer.lr={before.optimizer.lr * RATE:g}", *OURS]
        kept = [text for text in usual if text.partition("=")[0] not in keys]
        self.config = compose([f"config={file}", *kept, *typed])
        self.normless = normless(file, self.model, plugins)
        self.read = self.summary["step"] * before.trainer.batch_size  # sequences, by the run
        if self.timetable.end >= self.config.trainer.steps:
            raise ConfigError(
                f"trainer.steps={self.config.trainer.steps}: the last norm of {folder} goes at "
                f"step {self.timetable.end}; more steps, or a smaller --start or --gap"
            )
        self.tokens: Tokens = Plan(plain(self.config)).tokens()
        if self.tokens.fingerprint != self.summary["data"]["fingerprint"]:
            raise ConfigError(f"{folder}: its tokens are others than those it was trained on")

    def remove(self, name: str, tell: Callable[..., None]) -> tuple[Cost, Transformer | None]:
        """Tunes twice, folds, and compares. What it cost, and the model without norms: None where
        that diverged. ConfigError where folding has changed what the model computes."""
        torch.set_num_threads(self.summary["threads"])
        tuned, seed = {}, self.config.seed
        for words, remove in (("without norms", True), ("control", False)):
            told = partial(tell, f"{name} s{seed}, {words}: step {{:.0f}}/{{:.0f}}")
            trainer = self.trainer(copy.deepcopy(self.model).train())
            tuned[remove] = tune(trainer, self.timetable, remove, told)
        if tuned[True].diverged is not None:
            return cost_of(name, seed, self.timetable, tuned[True], tuned[False], None), None
        model = folded(tuned[True].model, self.normless)
        rounding = _rounding(tuned[True].model, model, next(iter(self.windows())))
        if not rounding < EXACT:
            raise ConfigError(
                f"{self.folder}: folding has changed the logits, by {rounding:.0e} of the largest; "
                "a fault of this program, or a norm of your own"
            )
        return cost_of(name, seed, self.timetable, tuned[True], tuned[False], rounding), model

    def trainer(self, model: Transformer) -> Any:
        """Reads on where the run's own training stopped."""
        size, config = self.config.trainer.batch_size, self.config
        read = Batches(self.tokens.train, config.model.context, size, config.data.seed)
        first = -(-self.read // size)
        return build_trainer(plain(config), model, lambda step: read(first + step), self.windows)

    def windows(self) -> Any:
        """What is validated on."""
        size = self.config.trainer.batch_size // self.config.trainer.accumulation
        context, limit = self.config.model.context, self.config.data.val_tokens
        return windows(self.tokens.val, context, limit, size)


def _checked(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if key not in TYPED and re.split(r"[.]", key)[0] not in TYPED:
        raise ConfigError(f"{text}: of a tuning {unknown('key', key, TYPED)}")
    return key, value


@torch.no_grad()
def _rounding(frozen: Transformer, without: Transformer, tokens: torch.Tensor) -> float:
    exact = copy.deepcopy(frozen).double().cpu().eval()
    wanted, found = exact(tokens[:, :-1]), without(tokens[:, :-1])
    return ((wanted - found).abs().max() / wanted.abs().max()).item()
