"""Loads a run folder as Python objects: its trained model and its tokenizer."""

from pathlib import Path

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.config.finding import CONFIG, find_run
from transformer_norms.config.overrides import as_typed
from transformer_norms.data import Tokenizer, load_tokenizer
from transformer_norms.errors import ConfigError, NoUsableCheckpoint
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import say
from transformer_norms.run import checkpoint
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.manifest import DamagedError
from transformer_norms.storage.reading import read_json
from transformer_norms.training.tensors import load_weights


def load(folder: str | Path, plugins: str = "none", average: bool = False) -> Transformer:
    """Returns the model of a run as it was last saved, on the CPU, in eval mode, every file
    verified; with `average`, the average of its weights that trainer.average has kept. `folder` is
    the run's, or a part of its name below ./runs.

    `model.tokenizer` encodes and decodes, and `sample(model, "Once")` writes text. Raises
    ConfigError if there is no such run, if it has no average, or if it needs plugins that are not
    named here. Raises NoUsableCheckpoint if it has no checkpoint.
    """
    folder = _check_run_folder(find_run(folder))
    config = compose(saved_on_cpu(folder, plugins))
    if average and config.trainer.average == "none":
        raise ConfigError(f"{folder}: has no average of its weights; trainer.average is none")
    words, name = tokenizer(folder), "average" if average else "model"
    model = build_model(config, words.vocab_size)
    model.tokenizer = words
    summary = read_summary(folder)  # a model that was folded has none
    identity = summary.identity if summary else None
    saved = checkpoint.newest(folder / "checkpoints", identity, say, [name])
    if saved is None:
        raise NoUsableCheckpoint(f"{folder}: has no checkpoint yet")
    try:
        with saved.open(name) as weights:
            load_weights(model, weights)
    except DamagedError as error:
        raise NoUsableCheckpoint(str(error)) from None
    if average:
        model.constrain(model)
    return model.eval()


def saved_on_cpu(folder: Path, plugins: str) -> list[str]:
    """Returns the overrides that compose a run folder's config for this machine's processor."""
    pairs = {"config": str(folder / CONFIG), "plugins": plugins}
    return [*(as_typed(key, value) for key, value in pairs.items()), "trainer.device=cpu"]


def tokenizer(folder: str | Path) -> Tokenizer:
    """Returns the tokenizer of a run folder. Raises ConfigError if the folder is not a run."""
    return load_tokenizer(read_json(_check_run_folder(folder) / "tokenizer.json"))


def _check_run_folder(folder: str | Path) -> Path:
    for name in ("config.yaml", "tokenizer.json"):
        if not (Path(folder) / name).is_file():
            raise ConfigError(f"{folder}: is not a run folder; {name} is missing")
    return Path(folder)
