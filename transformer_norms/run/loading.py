"""Run folders as Python objects: a trained model, a table of runs."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.data import Tokenizer, load_tokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.files import read_json, read_metrics
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import say
from transformer_norms.run import checkpoint
from transformer_norms.training.trainer import load_weights


def load(folder: str | Path, plugins: str = "none") -> Transformer:
    """The model of a run folder as it was last saved, every file verified. ConfigError where the
    folder is no run or its norm is a plugin's that is not named here, NoUsableCheckpoint where it
    has none."""
    folder = _run(folder)
    # Where it trained does not matter: what is loaded stands on the CPU.
    here = [f"config={folder / 'config.yaml'}", "trainer.device=cpu", f"plugins={plugins}"]
    config = compose(here)
    saved = checkpoint.newest(folder / "checkpoints", say)
    if saved is None:
        raise checkpoint.NoUsableCheckpoint(f"{folder}: has no checkpoint yet")
    model = build_model(config, tokenizer(folder).vocab_size)
    load_weights(model, saved.tensors("model"))
    return model.eval()


def tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a run folder; ConfigError where the folder is no run."""
    return load_tokenizer(read_json(_run(folder) / "tokenizer.json"))


def _run(folder: str | Path) -> Path:
    for name in ("config.yaml", "tokenizer.json"):
        if not (Path(folder) / name).is_file():
            raise ConfigError(f"{folder}: is no run folder; {name} is missing")
    return Path(folder)


def runs(folder: str | Path) -> list[dict[str, Any]]:
    """Every run below a folder, as {folder, config, summary, metrics}; of runs with one identity
    in one study, the newest attempt."""
    newest: dict[Any, dict[str, Any]] = {}
    for file in sorted(Path(folder).rglob("summary.json"), key=_attempt):
        summary = read_json(file)
        newest[file.parent.parent, summary["identity"], summary.get("continued_from")] = {
            "folder": file.parent,
            "config": OmegaConf.to_container(OmegaConf.load(file.parent / "config.yaml")),
            "summary": summary,
            "metrics": read_metrics(file.parent / "metrics.jsonl"),
        }
    return list(newest.values())


def _attempt(file: Path) -> tuple[str, int]:
    """NAME-HASH before NAME-HASH-2 before NAME-HASH-10."""
    name, _, number = str(file.parent).rpartition("-")
    return (name, int(number)) if number.isdigit() and len(number) < 8 else (str(file.parent), 1)
