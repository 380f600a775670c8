"""Finds the study of noise that lies beside a study: how losses scatter from seed to seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.report.gathering import read_study
from transformer_norms.report.study import Study

_NOISE = "noise"  # the name of a study that measures how losses scatter
# Losses scatter alike only where these are the same: nodes and keys of a config.
_SAME = (
    "data", "tokenizer", "model", "trainer.steps", "trainer.batch_size", "trainer.precision",
)  # fmt: skip


def noise_beside(study: Study) -> Study | None:
    """The study `noise` in the folder that holds the study, if its runs have the same data, size
    and horizon; None if there is no such study, or if it cannot be read."""
    home = study.home.resolve()
    if home.name == _NOISE or not study.results:
        return None
    return noise_in(home.parent, study.results[0].settings)


def noise_in(folder: Path, settings: Mapping[str, Any]) -> Study | None:
    """The study `noise` in a folder of studies, if its runs have the data, size and horizon of
    these settings, which are those of a run (`SavedRun.settings`)."""
    if not any((folder / _NOISE).glob("*/summary.json")):
        return None
    try:
        noise = read_study([folder / _NOISE])
    except ConfigError:
        return None  # it has its own report, which says what is wrong with it
    same = [_shared_settings(run.settings) for run in noise.results[:1]]
    return noise if same == [_shared_settings(settings)] else None


def _shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in settings.items()
        if any(key == same or key.startswith(f"{same}.") for same in _SAME)
    }
