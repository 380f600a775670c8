"""A run folder read as values: nothing in it is executed, imported, or followed elsewhere."""

import json
import stat
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader
from pydantic import TypeAdapter, ValidationError

from transformer_norms.config import saved
from transformer_norms.errors import ConfigError
from transformer_norms.files import read_json, read_metrics
from transformer_norms.report.summary import Summary
from transformer_norms.run import identity

Config = dict[str, Any]
_CONFIG, _SUMMARY, _METRICS, _DEPTH = 1 << 18, 1 << 22, 1 << 29, 20  # bytes, but for the depth
# Of what the frequencies of tokens alone score: from there on a model has learned little else.
FREQUENCIES = 0.99
# What is read of a config by name, besides its identity.
_READ = (
    "choices words seed model.context data.split data.val_tokens tokenizer.type trainer.steps "
    "trainer.batch_size trainer.precision"
).split()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader in C, with OmegaConf's rule for floats: 1e-5 is one."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


_SUMMARIES = TypeAdapter(Summary)


class Run:
    """A run folder: its `config` and `summary`. ConfigError, one line, where it is no run's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary = _summary(folder / "summary.json")
        self.config = _config(folder / "config.yaml")

    @property
    def ended(self) -> bool:
        return self.summary.status in ("finished", "diverged")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Each dotted key that can change the result, but for the seed and what follows it."""
        try:
            settings = identity.flat(identity.identified(self.config, self.summary.data.identity))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{self.folder}/config.yaml: is no run's config: {error}") from None
        del settings["seed"]
        if self.config["words"].get("data.seed", "auto") == "auto":
            settings.pop("data.seed", None)
        return settings

    @property
    def flops_per_token(self) -> float | None:
        tokens, flops = self.summary.tokens, self.summary.flops
        return flops / tokens if tokens and flops is not None else None

    @property
    def stuck(self) -> bool:
        """Whether it finished no better than the frequencies of tokens alone: no rule calls that
        diverged, and yet it learned little else."""
        loss, unigram = self.summary.val_loss, self.summary.data.unigram
        if self.summary.status != "finished" or loss is None or unigram is None:
            return False
        return loss >= FREQUENCIES * unigram

    def final_loss(self, name: str) -> float:
        """In nats per token; of a diverged run its initial loss, infinity where it has none."""
        if self.summary.status == "diverged":
            return inf if self.summary.initial_loss is None else self.summary.initial_loss
        found: float | None = getattr(self.summary, name)
        if found is None:
            raise ConfigError(f"{self.folder}/summary.json: {name}: a finished run has one")
        return found

    def value(self, key: str) -> Any:
        """The choice of an axis, as it was typed or resolved, or the value of a dotted key."""
        if key in self.config["choices"]:
            word = self.config["words"].get(key, "auto")
            return self.config["choices"][key] if word == "auto" else word
        try:
            return saved.get(self.config, key)
        except (KeyError, TypeError):
            raise ConfigError(f"{key}: there is no such key in {self.folder}") from None

    def has(self, key: str) -> bool:
        try:
            self.value(key)
        except ConfigError:
            return False
        return True

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; none where there is no such file."""
        file = self.folder / "metrics.jsonl"
        if not file.exists():
            return []
        try:
            return read_metrics(plain_file(file, _METRICS))
        except (OSError, ValueError) as error:
            raise ConfigError(" ".join(str(error).split())) from None


def plain_file(path: Path, most: int) -> Path:
    """`path`, if it is a file itself, not a link or a pipe, of no more than `most` bytes."""
    try:
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path}: is a link, which a report does not follow; name its target")
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: is no file")
    if found.st_size > most:
        raise ConfigError(f"{path}: is longer than {most} bytes; no run's file is")
    return path


def _summary(path: Path) -> Summary:
    try:
        return _SUMMARIES.validate_json(json.dumps(read_json(plain_file(path, _SUMMARY))))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg'].lower()}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None


def _config(path: Path) -> Config:
    """As `saved.read_saved` reads it, in a tenth of the time, and of any version of the project."""
    try:
        text = plain_file(path, _CONFIG).read_bytes().decode()
        _refuse_more_than_values(text)
        loader = _Loader(text)
        try:
            config = loader.get_single_data()
        finally:
            loader.dispose()
        for key in _READ:
            saved.get(config, key)
        json.dumps(config)
        names = config["choices"].values()
        if not all(isinstance(name, str) for name in names) or type(config["seed"]) is not int:
            raise TypeError("choices are names, and the seed is a whole number")
        config["words"].get("init")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}" if str(path) not in str(error) else error) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: is no run's config: {error}") from None
    return dict(config)


def _refuse_more_than_values(text: str) -> None:
    """Looks at the events, before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise ConfigError("a saved config holds no anchors, aliases or tags")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ConfigError("is nested too deeply")
