"""A trained model that is tuned on: its text, the config of its tuning, and where it is saved.

It is a finished run, or a folder that transformers wrote, whose text is typed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.folded_model import save_model
from transformer_norms.analysis.trained.subjects import (
    WINDOWS,
    check_file,
    check_keys,
    check_vocabulary,
    context_of,
    is_checkpoint,
    load_model,
    split_context,
    tokenizer_keys,
    with_ids_of,
)
from transformer_norms.analysis.untrained_models import with_defaults
from transformer_norms.config.building import build_trainer
from transformer_norms.config.compose import compose, recompose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.data import CORPORA, Tokenizer, Tokens
from transformer_norms.data.batches import Batches, windows
from transformer_norms.data.prepare import identity_of
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell
from transformer_norms.run.plan import prepare_tokens
from transformer_norms.run.summary import read_summary
from transformer_norms.training.divergence import Divergence
from transformer_norms.training.loss import Batch
from transformer_norms.training.trainer import Trainer

# The defaults of the tuning: a horizon of its own.
DEFAULTS = {"trainer.steps": "300", "schedule.warmup": "20"}
RATE = 1 / 3  # of the run's own peak
# A checkpoint does not say at which rate it was trained: the default of transformers' own Trainer.
CHECKPOINT_RATE = 5e-5
OF_CHECKPOINTS = {"trainer.batch_size": f"{WINDOWS}", "data.val_tokens": "32768"}
FIXED = {"trainer.eval_every": "0", "trainer.probe_every": "0", "trainer.compile": "none"}
TYPED = (
    "trainer.steps trainer.batch_size trainer.accumulation trainer.clip optimizer schedule plugins"
).split()
TYPED_OF_CHECKPOINTS = "data model.context trainer.device trainer.precision seed".split()
OF_TUNINGS = f"""KEY=VALUE changes how it is tuned on, as for train. Where nothing is typed it is
  {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())}
and {RATE:.2g} of the run's own peak rate, its optimizer afresh. A folder of
transformers is tuned on --text FILE or on the corpus of typed data keys, in
windows of model.context tokens, with optimizer.lr={CHECKPOINT_RATE:g} if none is typed.
"""
BEFORE, TUNED, CONTROL = "before", "tuned", "control"
# Does to the model that is tuned on what is due before a step. Yields the name of each stage in
# which the model is to be validated, while it is in it.
Timetable = Callable[[int], Iterable[str]]


def stay(stages: Mapping[int, str]) -> Timetable:
    """The timetable of the control, whose norms stay: the stage of a step, if it has one."""
    return lambda step: [stages[step]] if step in stages else []


@dataclass
class TuningLosses:
    """One model tuned on: step and validation loss by stage, and the training loss of each step,
    in nats per token. `diverged` says why it ended early, and is empty where it did not."""

    steps: dict[str, int] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    training: list[float] = field(default_factory=list)
    diverged: str = ""

    def validate(self, stage: str, trainer: Trainer) -> None:
        measured = trainer.evaluate(trainer.validation())
        assert measured is not None
        self.steps[stage] = trainer.step
        self.validation[stage] = measured.nats / measured.tokens


def tune(trainer: Trainer, timetable: Timetable, tell: Callable[[int, int], None]) -> TuningLosses:
    """Tunes the trainer's model on to its last step, as the timetable says. `tell` is called with
    the steps that are done, and their number."""
    tuning, steps = TuningLosses(), trainer.settings.steps
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


@dataclass(frozen=True)
class Tunable:
    """A trained model, in eval mode on the CPU, that is tuned on.

    `own` is the config that a folder of the model has, `config` that of the tuning; its optimizer
    starts afresh. Training has made `step` steps and read `sequences` of `tokens`; the tuning reads
    those after them, `context` tokens at a time.
    """

    folder: Path
    model: Transformer
    own: Config
    config: Config
    tokens: Tokens
    words: Tokenizer
    context: int
    identity: Mapping[str, Any]  # of the text
    step: int = 0
    sequences: int = 0
    threads: int = 0

    def tune(
        self,
        model: Transformer,
        config: Config,
        timetable: Callable[[Transformer], Timetable],
        words: str,
        tell: Tell,
    ) -> tuple[TuningLosses, Transformer]:
        """Tunes a model on, as its timetable says. `timetable` is called with the model once its
        optimizer is made, and may put other modules around its norms."""
        if self.threads:
            torch.set_num_threads(self.threads)
        trainer = self.trainer(model.train(), config)
        what = f"{words}: step {{:.0f}}/{{:.0f}}"
        tuning = tune(trainer, timetable(trainer.model), lambda a, b: tell(what, a, b))
        return tuning, trainer.model

    def trainer(self, model: Transformer, config: Config) -> Trainer:
        """A trainer that reads on where the model's own training stopped."""
        size = config.trainer.batch_size
        batches = Batches(self.tokens.train, self.context, size, config.data.seed)
        first = -(-self.sequences // size)
        return build_trainer(config, model, lambda step: batches(first + step), self.windows)

    def windows(self) -> Iterator[Batch]:
        """The validation text, window by window."""
        size = self.config.trainer.batch_size // self.config.trainer.accumulation
        return windows(self.tokens.val, self.context, self.config.data.val_tokens, size)

    @property
    def text_line(self) -> str:
        """How much text the tuning and the validation read."""
        tuned = self.config.trainer.steps * self.config.trainer.batch_size * self.context
        read = min(self.config.data.val_tokens, len(self.tokens.val) - 1)
        return f"tuned on {tuned} tokens of text, validated on {read}"

    def save(self, model: Transformer, config: Config, folder: Path, by: str) -> None:
        """Writes the model of a config into a new folder that `load`, sampling and analyses read.
        Its record says which folder it was made of, and `by` what."""
        step, made_of = self.step + self.config.trainer.steps, self.folder.resolve().name
        extra = {f"{by}_from": made_of}
        save_model(folder, model, config, self.words, step, self.identity, extra)


def read_tunable(folder: Path, typed: Sequence[str], text: Path | None = None) -> Tunable:
    """Returns the trained model of a folder, to be tuned on as `typed` says: KEY=VALUE as train.py
    takes them. `text` is that of a folder of transformers.

    Raises ConfigError if it is no finished run, or if its text has changed.
    """
    of_checkpoint = is_checkpoint(folder)
    check_keys(typed, "a tuning", [*TYPED, *(TYPED_OF_CHECKPOINTS if of_checkpoint else ())])
    if text is not None and not of_checkpoint:
        raise ConfigError(f"--text {text}: {folder} is a run, which is tuned on its own text")
    kept, context = split_context([*_words_of_text(typed, text), *typed])
    plugins = next((word for word in typed if word.startswith("plugins=")), "plugins=none")
    model, summary = load_model(folder, plugins.removeprefix("plugins=")), read_summary(folder)
    if of_checkpoint:
        texts = [word for word in kept if word.split("=")[0].split(".")[0] in ("data", "seed")]
        own = recompose(model.config, [*tokenizer_keys(folder), "trainer.device=auto", *texts])
        usual = {"optimizer.lr": f"{CHECKPOINT_RATE:g}", **OF_CHECKPOINTS}
    else:
        if summary is None or summary.status != "finished":
            status = summary.status if summary else "no run of train.py"
            raise ConfigError(f"{folder}: is {status}, not finished")
        own = compose([as_typed("config", str(folder / "config.yaml")), plugins])
        usual = {"optimizer.lr": f"{own.optimizer.lr * RATE:g}"}
    config = recompose(own, with_defaults(kept, {**DEFAULTS, **usual, **FIXED}))
    tokens, context = prepare_tokens(config), context_of(context, model, folder)
    tokens.check(context)
    if summary is not None and tokens.fingerprint != summary.data.fingerprint:
        raise ConfigError(f"{folder}: its tokens are others than those it was trained on")
    largest = max(int(part.max()) for part in (tokens.train, tokens.val))
    check_vocabulary(folder, largest, model)
    model = model.double() if config.trainer.precision == "fp64" else model
    words = with_ids_of(model, tokens.tokenizer)
    begun: tuple[Any, ...] = (identity_of(CORPORA.maker(config.data)()),)
    if summary is not None:
        read = summary.step * own.trainer.batch_size
        begun = summary.data.identity, summary.step, read, summary.threads or 1
    return Tunable(folder, model, own, config, tokens, words, context, *begun)


def _words_of_text(typed: Sequence[str], text: Path | None) -> list[str]:
    """The data keys of a text that is named as a file."""
    if text is None:
        return []
    check_file("--text", text)
    keys = [word.partition("=")[0] for word in typed]
    if key := next((key for key in keys if key in ("data", "data.paths")), None):
        raise ConfigError(f"--text {text}: {key} names a text, too; type one")
    split = [] if "data.split" in keys else ["data.split=tail"]
    return ["data=text", as_typed("data.paths", [str(text.resolve())]), *split]
