"""The study `noise` that lies beside another one: what its runs say of the scatter of losses."""

from pathlib import Path

from transformer_norms.errors import ConfigError
from transformer_norms.report.gathering import read_study
from transformer_norms.report.study import Study
from transformer_norms.run.reader import SavedRun

NAME = "noise"
# Losses scatter alike only where these are the same: nodes and keys of a config.
_SAME = (
    "data", "tokenizer", "model", "trainer.steps", "trainer.batch_size", "trainer.precision",
)  # fmt: skip


def noise_beside(study: Study) -> Study | None:
    """The study `noise` in the folder that holds the study, if its runs have the same data, size
    and horizon; None if there is no such study, or if it cannot be read."""
    folder = study.home.resolve().parent / NAME
    if folder == study.home.resolve() or not _has_runs(folder):
        return None
    try:
        noise = read_study([folder])
    except ConfigError:
        return None  # it has its own report, which says what is wrong with it
    ours, theirs = study.results[:1], noise.results[:1]
    return noise if ours and theirs and _setting(ours[0]) == _setting(theirs[0]) else None


def _has_runs(folder: Path) -> bool:
    return any(folder.glob("*/summary.json"))


def _setting(run: SavedRun) -> dict[str, object]:
    return {
        key: value
        for key, value in run.settings.items()
        if any(key == same or key.startswith(f"{same}.") for same in _SAME)
    }
