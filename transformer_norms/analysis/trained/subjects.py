"""The models that an analysis measures, and the text that each is measured on.

A word names a run, a study of runs, a model that an analysis saved, or a folder that transformers
wrote. Runs are grouped by variant and paired by seed, as in a report.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from transformer_norms.analysis.untrained_models import with_defaults
from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.compose import compose
from transformer_norms.config.finding import CONFIG, find_run, find_study, is_run
from transformer_norms.config.overrides import as_typed, parse
from transformer_norms.config.tree import Config
from transformer_norms.data import TOKENIZERS, Tokenizer
from transformer_norms.data.batches import windows
from transformer_norms.data.tokenizer import FileTokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import unknown
from transformer_norms.progress import Tell, say, tell_nobody
from transformer_norms.report.gathering import read_study
from transformer_norms.report.study import Study
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.run.plan import prepare_tokens
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.reading import is_there, read_text
from transformer_norms.training.loss import LOSSES, ModelLoss

TYPED = (
    "data trainer.device trainer.precision trainer.batch_size model.context plugins tracking"
).split()
LONGEST_TEXT = 1 << 30  # bytes
CONTEXT = 1024  # tokens of a window, where a folder of transformers allows more
WINDOWS = 8  # in a batch, for a folder of transformers
TOKENIZER = "tokenizer.json"
# Reads the model of a folder, with typed KEY=VALUE, and its text, which may be a file.
Load = Callable[[Path, Sequence[str], Path | None], Any]


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode on its device, and the tokens that it is measured on."""

    model: Transformer
    config: Config  # the model's own, with the typed keys
    tokens: np.ndarray
    context: int  # tokens of a window
    batch_size: int
    precision: str
    words: Callable[[], Tokenizer]

    def encode(self, option: str, file: Path) -> np.ndarray:
        """The tokens of a text that `option` names, in the model's own tokenizer."""
        tokens = _encode(option, file, self.words())
        check_vocabulary(file, int(tokens.max()), self.model)
        return tokens

    @property
    def device(self) -> str:
        return str(self.config.trainer.device)

    @property
    def tokens_read(self) -> int:
        """How many tokens are predicted, each once."""
        return min(self.config.data.val_tokens, len(self.tokens) - 1)

    @property
    def text_line(self) -> str:
        return f"{self.tokens_read} tokens of text were read, in windows of {self.context}"

    def windows(self) -> Iterator[Int64[Tensor, "batch time"]]:
        """The text window by window, one token more than the model reads, on the CPU."""
        return windows(self.tokens, self.context, self.config.data.val_tokens, self.batch_size)

    @property
    def loss(self) -> ModelLoss:
        """The cross-entropy of a batch, in the precision of the run."""
        criterion = LOSSES.maker(self.config.loss)()
        return ModelLoss(self.model, criterion, device=self.device, precision=self.precision)

    @torch.no_grad()
    def evaluate(self, tell: Callable[[int, int], None] = lambda done, total: None) -> float:
        """Returns the mean cross-entropy in nats per token over all windows. `tell` is called with
        the tokens that are done, and their number."""
        nats, done, loss = torch.zeros((), dtype=torch.float64, device=self.device), 0, self.loss
        for batch in self.windows():
            tell(done, self.tokens_read)
            nats += loss.sum(batch).double()
            done += batch[:, 1:].numel()
        return nats.item() / done


@dataclass(frozen=True)
class Subject:
    """One model. `name` is its variant's; `seed` is None where there is one model of a kind.
    `origin` says where it comes from. `load` reads the model and its text."""

    name: str
    seed: int | None
    folder: Path
    origin: str
    load: Callable[[], Any]

    @property
    def title(self) -> str:
        return self.name if self.seed is None else f"{self.name} s{self.seed}"

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of each row that is measured of the model."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {"kind": "model", "model": self.name, **seed}


class Unmeasured(ConfigError):
    """The reason why an analysis cannot measure a model, as it follows the model's name."""


@dataclass(frozen=True)
class Subjects:
    """All models of a command, variant by variant. `missing` has the reason for each seed of a
    variant that has no trained model. `study` is None where no word named a run. `notices` says
    which models an analysis could not measure."""

    members: Sequence[Subject]
    study: Study | None = None
    missing: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    notices: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(subject.name for subject in self.members))

    @property
    def baselines(self) -> dict[str, str]:
        """The variant that each compared variant is compared with."""
        variants = self.study.variants if self.study else []
        pairs = {v.name: v.baseline for v in variants if v.compared and v.baseline}
        return {a: b for a, b in pairs.items() if a in self.names and b in self.names}

    @property
    def notes(self) -> list[str]:
        """What was left out, and why nothing is compared where nothing is."""
        if self.study is None:
            return []
        left = [
            f"{name}: seed {seed} is left out, it {reason}"
            for name, seeds in self.missing.items()
            for seed, reason in seeds.items()
        ]
        unasked = [self.study.unasked] if self.study.unasked and len(self.names) > 1 else []
        return [*self.study.damaged, *left, *unasked, *self.study.left_out]

    @property
    def words(self) -> str:
        """The one model, or the number of models."""
        return self.members[0].title if len(self.members) == 1 else f"{len(self.members)} models"

    def without(self, reasons: Mapping[int, str]) -> "Subjects":
        """The models less those that cannot be measured, by their places, which are missing then.
        Its notices name them, a line for each variant and reason."""
        missing = {name: dict(seeds) for name, seeds in self.missing.items()}
        lines: dict[tuple[str, str], list[int]] = {}
        for place, why in reasons.items():
            subject = self.members[place]
            seeds = lines.setdefault((subject.name, why), [])
            if subject.seed is not None:
                seeds.append(subject.seed)
                missing.setdefault(subject.name, {})[subject.seed] = why
        members = [each for place, each in enumerate(self.members) if place not in reasons]
        left_out = [
            f"LEFT OUT: {name}"
            + (f" (seed{'s' * (len(own) > 1)} {', '.join(map(str, own))})" if own else "")
            + f": {why}"
            for (name, why), own in lines.items()
        ]
        return replace(self, members=members, missing=missing, notices=left_out)


# ---------------------------------------------------------------------- a model and its text


def load_measured(folder: Path, keys: Sequence[str], text: Path | None) -> Loaded:
    """The model of a folder on its device, with its text. Raises ConfigError where the text of a
    run has changed."""
    check_keys(keys, "an analysis", TYPED)
    kept, context = split_context(keys)
    own, usual = [as_typed("config", str(folder / CONFIG))], {"trainer.device": "auto"}
    if is_checkpoint(folder):
        own, usual = (
            tokenizer_keys(folder),
            {"tracking": "none", "trainer.batch_size": f"{WINDOWS}"},
        )
    config = compose([*own, *with_defaults(kept, usual)])
    words = partial(tokenizer_of, folder)
    if text is not None:
        tokens = _encode("--text", text, words())
    else:
        prepared, summary = prepare_tokens(config), read_summary(folder)
        if summary is not None and summary.data.fingerprint != prepared.fingerprint:
            raise ConfigError(
                f"{folder}: its text is another than the one it was trained on; --text FILE is how "
                "another is typed"
            )
        tokens = prepared.val
    model = load_model(folder, config.plugins)
    context = context_of(context, model, folder)
    check_vocabulary(folder, int(tokens.max()), model)
    doubled = next(model.parameters()).dtype == torch.float64
    precision = "fp64" if doubled else config.trainer.precision
    model = model.double() if precision == "fp64" else model
    rows = max(1, config.trainer.batch_size // config.trainer.accumulation)
    model = model.to(config.trainer.device).eval()
    return Loaded(model, config, tokens, context, rows, precision, words)


def is_checkpoint(folder: Path) -> bool:
    """Whether transformers wrote the folder."""
    return (folder / "config.json").is_file() and not (folder / "config.yaml").is_file()


def find_model(word: str) -> Path:
    """The folder of a run that `word` names, or a folder that transformers wrote."""
    folder = Path(os.path.expanduser(word))
    if is_checkpoint(folder):
        return folder
    check_model(word)
    return find_run(word)


def check_model(word: str, more: str = "") -> None:
    """Raises ConfigError if `word` names a file or folder in which there is no model. `more` names
    what would do besides."""
    path = Path(os.path.expanduser(word))
    file = path.is_file() and path.suffix != ".json"
    folders = [path.parent] if file else [path, *path.glob("*/"), *path.glob("*/*/")]
    if (file or path.is_dir()) and not any(map(is_run, folders)):
        raise ConfigError(
            f"{word}: there is no model in it, {CONFIG} of a run or config.json of transformers is "
            f"missing; name a run, {more}or a folder that transformers wrote"
        )


def check_tokenizer(folder: Path) -> None:
    """Raises ConfigError if a folder of transformers has no tokenizer."""
    if not (folder / TOKENIZER).is_file():
        raise ConfigError(
            f"{folder}: has no {TOKENIZER}; save the model's tokenizer into it "
            "(tokenizer.save_pretrained)"
        )


def check_file(option: str, file: Path) -> None:
    """Raises ConfigError if the text that `option` names is not there, or empty."""
    if not file.is_file():
        raise ConfigError(f"{option} {file}: there is no such file")
    if not file.stat().st_size:
        raise ConfigError(f"{option} {file}: is empty")


def check_text(folder: Path, keys: Sequence[str], text: Path | None) -> None:
    """Raises ConfigError unless a text is typed for a folder of transformers, and has a tokenizer
    that reads it."""
    if text is None and not any(key.startswith("data") for key in keys):
        raise ConfigError(
            f"{folder}: has no text of its own; type --text FILE, or a corpus such as data=pydocs"
        )
    check_tokenizer(folder)


def tokenizer_keys(folder: Path) -> list[str]:
    """The keys of the tokenizer.json in a folder."""
    return ["tokenizer=file", as_typed("tokenizer.path", str(folder.resolve()))]


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a run, or of a folder that transformers wrote."""
    if not is_checkpoint(folder):
        return tokenizer(folder)
    check_tokenizer(folder)
    config = compose(["tracking=none", *tokenizer_keys(folder)])
    return TOKENIZERS.maker(config.tokenizer)().fit((), False, say, tell_nobody)


def with_ids_of(model: Transformer, words: Tokenizer) -> Tokenizer:
    """A tokenizer.json with as many ids as the model, which may have more."""
    if isinstance(words, FileTokenizer) and words.vocab_size < model.vocab_size:
        return FileTokenizer(words.text, words.end, model.vocab_size)
    return words


def load_model(folder: Path, plugins: str = "none") -> Transformer:
    """Returns the model of a run, or ours of a folder that transformers wrote. Raises ConfigError,
    and NoUsableCheckpoint as `load` does."""
    if not is_checkpoint(folder):
        return load(folder, plugins)
    from transformer_norms.hf.conversion import load_hf

    try:
        return load_hf(folder)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{folder}: {error}") from None


def context_of(typed: int | None, model: Transformer, folder: Path) -> int:
    """Returns the length of a window. Raises ConfigError where the model reads less than typed."""
    if typed is not None and typed > model.context:
        raise ConfigError(f"model.context={typed}: {folder} reads {model.context} at most")
    return typed or (min(model.context, CONTEXT) if is_checkpoint(folder) else model.context)


def check_vocabulary(named: object, largest: int, model: Transformer) -> None:
    """Raises ConfigError where a text has a token that the model does not know."""
    if largest >= model.vocab_size:
        raise ConfigError(
            f"{named}: the text has the token {largest}, and the model knows {model.vocab_size}"
        )


def split_context(keys: Sequence[str]) -> tuple[list[str], int | None]:
    """The typed keys, and apart from them the length of a window. A model's own context stays: a
    table of positions has its length."""
    name = "model.context="
    typed = next((key.removeprefix(name) for key in keys if key.startswith(name)), None)
    if typed is not None and not (typed.isdecimal() and int(typed) > 0):
        raise ConfigError(f"{name}{typed}: a whole number of tokens is wanted")
    rest = [key for key in keys if not key.startswith(name)]
    return rest, None if typed is None else int(typed)


def _encode(option: str, file: Path, words: Tokenizer) -> np.ndarray:
    """The tokens of a text that the user named by `option`."""
    check_file(option, file)
    tokens = words.encode(read_text(file.resolve(), LONGEST_TEXT))
    if len(tokens) < 2:
        raise ConfigError(f"{option} {file}: has fewer than two tokens")
    return tokens


# ------------------------------------------------------------------------------------ what is typed


def read_subjects(typed: Namespace, tell: Tell, load: Load = load_measured) -> Subjects:
    """Returns the models that were typed, each with `load`. Reads no weights, but all that can be
    wrong before."""
    keys = typed_keys(typed)
    words = list(dict.fromkeys(word for word in typed.where if word not in keys))
    if not words:
        raise ConfigError("name at least one run, study or folder of transformers")
    if typed.text is not None:
        check_file("--text", typed.text)

    def subject(name: str, seed: int | None, folder: Path, origin: str) -> Subject:
        read = partial(load, folder, keys, typed.text)
        return Subject(name, seed, folder, f"{folder.resolve().name}: {origin}", read)

    alone, places = [], []
    for word in words:
        folder = Path(os.path.expanduser(word))
        saved = (folder / CONFIG).is_file() and not is_there(folder / "summary.json")
        if is_checkpoint(folder):
            check_text(folder, keys, typed.text)
        if saved or is_checkpoint(folder):
            origin = "saved by an analysis" if saved else "a folder of transformers"
            alone.append(subject(folder.resolve().name, None, folder, origin))
        else:
            check_model(word, "a study of several runs, ")
            places.append(find_study(word))
    names = [one.name for one in alone]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{repeated}: two folders have this name; rename one of them")
    if not places:
        return Subjects(alone)
    study = read_study(places, _baseline(typed.baseline), tell=tell)
    return _subjects_of(study, alone, subject)


def typed_keys(typed: Namespace) -> list[str]:
    """The words KEY=VALUE, which name no folder."""
    return [word for word in typed.where if "=" in word and not Path(word).exists()]


def check_keys(typed: Iterable[str], what: str, known: Sequence[str]) -> None:
    """Raises ConfigError for KEY=VALUE whose key, or whose group of keys, is not known."""
    for key in (word.partition("=")[0] for word in typed):
        if key not in known and key.split(".")[0] not in known:
            raise ConfigError(f"{key}: {unknown(f'key of {what}', key, known)}")


def _baseline(typed: Sequence[str] | None) -> dict[str, Any] | None:
    if typed is None:
        return None
    return {pair.key: pair.value for pair in ([] if list(typed) == ["none"] else parse(typed))}


def _subjects_of(
    study: Study, alone: Sequence[Subject], subject: Callable[..., Subject]
) -> Subjects:
    """The finished runs of a study, and the models that are no runs."""
    members: list[Subject] = []
    missing: dict[str, dict[int, str]] = {}
    for variant in study.variants:
        for member in variant.results:
            if member.run is not None and member.status == "finished":
                choices = {axis: member.run.choice(axis) for axis in ("norm", "placement")}
                unnamed = not variant.values or variant.name == label({})
                name = label(choices) if unnamed else variant.name
                summary = member.run.summary
                origin = (
                    f"identity {summary.identity}, commit {summary.commit}, torch "
                    f"{summary.versions.get('torch')}"
                )
                members.append(subject(name, member.seed, member.folder, origin))
            elif member.ended:
                missing.setdefault(variant.name, {})[member.seed] = member.status
    if not members and not alone:
        states = sorted({member.status for v in study.variants for member in v.results})
        raise ConfigError(f"{study.home}: no run in it is finished; runs are {', '.join(states)}")
    return Subjects([*members, *alone], study, missing)
