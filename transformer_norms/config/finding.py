"""Finds a run or a study by what a user types: a folder, a file in it, or a part of its name."""

import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.names import nearest
from transformer_norms.storage.reading import is_there
from transformer_norms.text_tables import printable

RUNS = Path("runs")  # in the current folder
CONFIG = "config.yaml"
_OF_A_RUN = (CONFIG, "summary.json")
_SHOWN = 4  # names in a message
_ALIKE = 0.7  # quik is alike to quick, and nope not to norm


def find_run(text: str | Path, origin: bool = False) -> Path:
    """Returns the folder of the run that `text` names.

    `text` is the folder of a run, a file in it such as its config.yaml, or a part of the name
    (STUDY/NAME) of one run below ./runs. A part that only
    attempts at one run have in their names (NAME, NAME-2, ...) names the newest attempt. As an
    `origin`, to be continued, a run that continues another one counts only where no other fits:
    the same command has to mean the same run when it is typed again. Raises ConfigError, one line,
    where no run or more than one has that name.
    """
    path = _existing(text)
    if path is None:
        runs = runs_below()
        begun = [run for run in runs if "-from-" not in run.name]
        return _find_below(text, *([begun, runs] if origin else [runs]))
    folder = path if path.is_dir() else path.parent
    if is_run(folder):
        return folder
    inside = runs_in(path)
    way = f"name one in it: {_names_text(inside)}" if inside else f"{CONFIG} is missing"
    raise ConfigError(f"{text}: is not a run folder; {way}")


def find_study(text: str | Path) -> Path:
    """Returns the folder of runs, the run folder or the sweep-NAME.json that `text` names.

    `text` is one of these, a run's config.yaml, or a part of the name of one study below ./runs or,
    where no study has it, of one run. Raises ConfigError, one line, where nothing or more than one
    thing has that name.
    """
    path = _existing(text)
    if path is None:
        return _find_below(text, studies_below(), runs_below())
    return path if path.is_dir() or path.suffix == ".json" else find_run(path)


def find_config(text: str | Path) -> Path:
    """Returns the file that `config=TEXT` names: a file, or the config.yaml of the run that
    `find_run` finds. Raises ConfigError, one line."""
    path = _existing(text)
    return path if path is not None and path.is_file() else find_run(text) / CONFIG


def with_runs(words: Iterable[str]) -> list[str]:
    """Returns KEY=VALUEs, where a word without `=` has named a run: it becomes config=RUN. Raises
    ConfigError, one line, where it names none."""
    try:
        return [
            word if "=" in word else as_typed("config", str(find_run(word) / CONFIG))
            for word in words
        ]
    except ConfigError as error:
        raise ConfigError(f"{error}; a choice is typed as KEY=VALUE") from None


def is_run(folder: Path) -> bool:
    return any(is_there(folder / name) for name in _OF_A_RUN)


def runs_in(study: Path) -> list[Path]:
    return [folder for folder in sorted(study.glob("*")) if folder.is_dir() and is_run(folder)]


def studies_below() -> list[Path]:
    """Returns the folders of runs below ./runs, by name."""
    return [study for study in sorted(RUNS.glob("*")) if not is_run(study) and runs_in(study)]


def runs_below() -> list[Path]:
    """Returns the folders of the runs of all studies below ./runs, by name."""
    return [run for study in sorted(RUNS.glob("*")) for run in runs_in(study)]


def _existing(text: str | Path) -> Path | None:
    name = os.path.expanduser(text)
    if not os.path.lexists(name):  # also what cannot be a path
        return None
    path = Path(name)
    # A link to a folder that the user has named is followed, and none within that folder.
    return path.resolve() if path.is_symlink() and path.is_dir() else path


def _find_below(text: str | Path, *groups: Sequence[Path]) -> Path:
    """Returns the folder below ./runs that has `text` in its name, of the first group that has
    one, and the newest of several attempts at one run. Raises ConfigError, with the nearest
    names."""
    for folders in groups:
        fitting = _folders_with(text, folders)
        # NAME-HASH-2 -> NAME-HASH
        if len({re.sub(r"(-[0-9a-f]{8})-\d{1,7}$", r"\1", str(folder)) for folder in fitting}) > 1:
            fit = f"{len(fitting)} fit: {_names_text(fitting)}"
            raise ConfigError(f"{text}: type more of one name; {fit}")
        if fitting:
            return max(fitting, key=lambda folder: (len(folder.name), folder.name))
    raise ConfigError(f"{text}: {_neighbours(text, list(dict.fromkeys(chain(*groups))))}")


def _neighbours(text: str | Path, folders: Sequence[Path]) -> str:
    """Returns what to say of a name that no folder has: the nearest names, or those that exist."""
    none = "there is no such file or folder"
    if not folders:
        return f"{none}, and no run below ./{RUNS}"
    parts = {part for folder in folders for part in re.split("[-/]", folder.as_posix())}
    near = [one for word in re.split("[-/]", str(text)) for one in nearest(word, parts, _ALIKE)]
    fits = [sum(part in folder.as_posix() for part in near) for folder in folders]
    similar = [folder for folder, fit in zip(folders, fits, strict=True) if 0 < fit == max(fits)]
    none = f"{none}, and no run below ./{RUNS} has that in its name"
    if similar:
        return f"did you mean {_names_text(similar)}? {none}"
    return f"{none}; there are {_names_text(folders)}"


def _folders_with(text: str | Path, folders: Sequence[Path]) -> list[Path]:
    """Returns the folders that have `text` for a name, else those with it in their names, else
    those with it in their paths."""
    part = str(text).rstrip("/")
    if not part:
        return []
    return (
        [folder for folder in folders if part in (folder.name, str(folder.relative_to(RUNS)))]
        or [folder for folder in folders if part in folder.name]
        or [folder for folder in folders if part in folder.as_posix()]
    )


def _names_text(folders: Sequence[Path]) -> str:
    names = ", ".join(printable(folder) for folder in folders[:_SHOWN])
    return f"{names} and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else names
