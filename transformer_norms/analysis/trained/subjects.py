"""A trained model and the text that it is measured on, as both are read from a folder.

The folder is that of a run, of a model that an analysis saved, or one that transformers wrote.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from transformer_norms.analysis.untrained_models import with_defaults
from transformer_norms.config.compose import compose, recompose
from transformer_norms.config.finding import CONFIG
from transformer_norms.config.overrides import as_typed, parse
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import Config
from transformer_norms.data import TOKENIZERS, Tokenizer, Tokens
from transformer_norms.data.batches import windows
from transformer_norms.data.tokenizer import FileTokenizer
from transformer_norms.errors import ConfigError, missing_package
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import unknown
from transformer_norms.progress import say, tell_nobody
from transformer_norms.run import checkpoint
from transformer_norms.run.identity import run_hash
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.run.plan import prepare_tokens
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.files import make_folder, write_bytes, write_json
from transformer_norms.storage.reading import read_text
from transformer_norms.training.loss import LOSSES, ModelLoss
from transformer_norms.training.tensors import double, move_model, stored_tensors

TYPED = (
    "data trainer.device trainer.precision trainer.batch_size model.context plugins tracking"
).split()
LONGEST_TEXT = 1 << 30  # bytes
CONTEXT = 1024  # tokens of a window, where a folder of transformers allows more
WINDOWS = 8  # in a batch, for a folder of transformers
TOKENIZER = "tokenizer.json"


class Unmeasured(ConfigError):
    """The reason why an analysis cannot measure a model, as it follows the model's name."""


@contextmanager
def leave_out_refused() -> Iterator[None]:
    """Leaves out a model whose config refuses what the analysis composes."""
    try:
        yield
    except ConfigError as error:
        raise Unmeasured(str(error)) from None


@dataclass(frozen=True)
class Loaded:
    """A trained model in eval mode, and the text that it is measured on.

    `own` is the config of the folder's model, and `config` the same with the typed keys. A window
    has `context` tokens, of which the model may read more.
    """

    folder: Path
    model: Transformer
    own: Config
    config: Config
    tokens: np.ndarray
    context: int
    precision: str

    def encode(self, option: str, file: Path) -> np.ndarray:
        """The tokens of a text that `option` names, in the model's own tokenizer."""
        tokens = _encode(option, file, tokenizer_of(self.folder))
        check_vocabulary(file, self.model, tokens)
        return tokens

    @property
    def device(self) -> str:
        return str(self.config.trainer.device)

    @property
    def batch_size(self) -> int:
        """How many windows are read at once."""
        return max(1, self.config.trainer.batch_size // self.config.trainer.accumulation)

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
        nats, done, loss = list[Tensor](), 0, self.loss
        for batch in self.windows():
            tell(done, self.tokens_read)
            nats.append(double(loss.sum(batch)))
            done += batch[:, 1:].numel()
        return float(sum(nats)) / done


def load_measured(folder: Path, keys: Sequence[str], text: Path | None) -> Loaded:
    """The model of a folder on its device, with its text. Raises ConfigError where the text of a
    run has changed."""
    check_keys(keys, "an analysis", TYPED)
    kept, context = split_context(keys)
    typed_text = None if text is None else _encode("--text", text, tokenizer_of(folder))
    model, own = load_own(folder, kept)
    usual = {"trainer.batch_size": f"{WINDOWS}"} if is_checkpoint(folder) else {}
    config = recompose(own, with_defaults(kept, usual))
    tokens = read_tokens(folder, config).val if typed_text is None else typed_text
    context = context_of(context, model, folder)
    check_vocabulary(folder, model, tokens)
    doubled = next(model.parameters()).dtype == torch.float64
    doubled = doubled and config.trainer.device != "mps"  # which has no float64
    precision = "fp64" if doubled else config.trainer.precision
    model = model.double() if precision == "fp64" else model
    model = move_model(model, config.trainer.device).eval()
    return Loaded(folder, model, own, config, tokens, context, precision)


# -------------------------------------------------------------------------------- what a folder has


def is_checkpoint(folder: Path) -> bool:
    """Whether transformers wrote the folder."""
    return (folder / "config.json").is_file() and not (folder / CONFIG).is_file()


def load_model(folder: Path, plugins: str = "none") -> Transformer:
    """Returns the model of a run, or ours of a folder that transformers wrote. Raises ConfigError,
    and NoUsableCheckpoint as `load` does."""
    if not is_checkpoint(folder):
        return load(folder, plugins)
    from transformer_norms.hf.conversion import load_hf

    try:
        return load_hf(folder)
    except (ValueError, ImportError) as error:
        raise missing_package(error) or ConfigError(f"{folder}: {error}") from None


def load_own(folder: Path, typed: Sequence[str]) -> tuple[Transformer, Config]:
    """Returns the model of a folder and its config on this machine. The config of a folder of
    transformers names the typed text."""
    pairs = {pair.key: pair for pair in parse(typed)}
    model = load_model(folder, pairs["plugins"].word if "plugins" in pairs else "none")
    texts = [word for word in typed if word.split("=")[0].split(".")[0] in ("data", "seed")]
    more = [*tokenizer_keys(folder), *texts] if is_checkpoint(folder) else []
    return model, recompose(model.config, ["trainer.device=auto", *more])


def read_tokens(folder: Path, config: Config) -> Tokens:
    """Returns the tokens of a config's text. Raises ConfigError where a run was trained
    on others."""
    tokens, summary = prepare_tokens(config), read_summary(folder)
    if summary is not None and summary.data.fingerprint != tokens.fingerprint:
        raise ConfigError(
            f"{folder}: its text is another than the one it was trained on; an analysis that does "
            "not train it reads another one with --text FILE"
        )
    return tokens


def tokenizer_keys(folder: Path) -> list[str]:
    """The keys of the tokenizer.json in a folder."""
    return ["tokenizer=file", as_typed("tokenizer.path", str(folder.resolve()))]


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a run, or of a folder that transformers wrote. Raises ConfigError if such a
    folder has none."""
    if not is_checkpoint(folder):
        return tokenizer(folder)
    if not (folder / TOKENIZER).is_file():
        raise ConfigError(
            f"{folder}: has no {TOKENIZER}; save the model's tokenizer into it "
            "(tokenizer.save_pretrained)"
        )
    config = compose(["tracking=none", *tokenizer_keys(folder)])
    return TOKENIZERS.maker(config.tokenizer)().fit((), False, say, tell_nobody)


def save_changed(
    folder: Path, model: Transformer, config: Config, source: Path, by: str, steps: int = 0
) -> None:
    """Writes a model of `config` into a new folder that `load`, sampling and analyses read.

    The model was made of the one in `source` by a change, of which `by` is the name, and was
    trained on for `steps`. Raises ConfigError where the tokenizer of `source` has more ids.
    """
    words, summary = tokenizer_of(source), read_summary(source)
    if isinstance(words, FileTokenizer) and words.vocab_size < model.vocab_size:
        words = FileTokenizer(words.text, words.end, model.vocab_size)
    if words.vocab_size != model.vocab_size:
        ids = words.vocab_size, model.vocab_size
        raise ConfigError("{}: its tokenizer has {} ids, and its model {}".format(source, *ids))
    step, text = (summary.step, summary.data.identity) if summary else (0, {})
    config = recompose(config, tokenizer_keys(folder) if is_checkpoint(source) else [])
    make_folder(folder)
    write_bytes(folder / CONFIG, to_yaml(config).encode())
    write_json(folder / TOKENIZER, words.save())
    dtype = stored_dtype(config)
    tensors = {name: tensor.to(dtype) for name, tensor in stored_tensors(model).items()}
    identity, extra = run_hash(config, text), {f"{by}_from": source.resolve().name}
    checkpoint.save(
        folder / "checkpoints", identity, step + steps, {"model": tensors}, {}, extra, keep=1
    )


def stored_dtype(config: Config) -> torch.dtype:
    """The dtype in which the weights of a model are saved."""
    return torch.float64 if config.trainer.precision == "fp64" else torch.float32


# ------------------------------------------------------------------------ checks of typed words


def check_keys(typed: Iterable[str], what: str, known: Sequence[str]) -> None:
    """Raises ConfigError for KEY=VALUE whose key, or whose group of keys, is not known."""
    for key in (word.partition("=")[0] for word in typed):
        if key not in known and key.split(".")[0] not in known:
            raise ConfigError(f"{key}: {unknown(f'key of {what}', key, known)}")


def check_vocabulary(named: object, model: Transformer, *texts: np.ndarray) -> None:
    """Raises ConfigError where a text has a token that the model does not know."""
    largest = max(int(text.max()) for text in texts)
    if largest >= model.vocab_size:
        raise ConfigError(
            f"{named}: the text has the token {largest}, and the model knows {model.vocab_size}"
        )


def split_context(keys: Sequence[str]) -> tuple[list[str], int | None]:
    """The typed keys, and apart from them the length of a window. A model's own context stays: a
    table of positions has its length."""
    typed = {pair.key: pair for pair in parse(keys)}.get("model.context")
    if typed is not None and not (isinstance(typed.value, int) and typed.value > 0):
        raise ConfigError(f"{typed}: a whole number of tokens is wanted")
    rest = [key for key in keys if not key.startswith("model.context=")]
    return rest, None if typed is None else typed.value


def context_of(typed: int | None, model: Transformer, folder: Path) -> int:
    """Returns the length of a window. Raises ConfigError where the model reads less than typed."""
    if typed is not None and typed > model.context:
        raise ConfigError(f"model.context={typed}: {folder} reads {model.context} at most")
    return typed or (min(model.context, CONTEXT) if is_checkpoint(folder) else model.context)


def _encode(option: str, file: Path, words: Tokenizer) -> np.ndarray:
    """The tokens of a text that the user named by `option`."""
    if not file.is_file():
        raise ConfigError(f"{option} {file}: there is no such file")
    tokens = words.encode(read_text(file.resolve(), LONGEST_TEXT))
    if len(tokens) < 2:
        raise ConfigError(f"{option} {file}: has fewer than two tokens")
    return tokens
