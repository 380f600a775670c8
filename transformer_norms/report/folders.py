"""What the folders named to a report hold: runs, and the records of sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell, untold
from transformer_norms.run.reader import SavedRun, newest_attempts
from transformer_norms.run.sweep_record import SweepRecord, read_record


@dataclass
class Found:
    """`home` is the first folder named; `older` are runs with a later attempt beside them."""

    home: Path
    records: dict[Path, SweepRecord] = field(default_factory=dict)
    runs: dict[Path, SavedRun] = field(default_factory=dict)
    older: set[Path] = field(default_factory=set)
    tell: Tell = untold
    expected: int = 0  # runs, as far as is known

    def run(self, folder: Path) -> SavedRun | None:
        """The run in `folder`, read once; None where none has begun there."""
        if folder not in self.runs:
            if folder.is_symlink():
                raise ConfigError(f"{folder}: is a link; name the folder that it leads to")
            if not (folder / "summary.json").exists():
                return None
            self.runs[folder] = SavedRun(folder)
            self.tell("reading runs {:.0f}/{:.0f}", len(self.runs), self.expected)
        return self.runs[folder]


def find(folders: Sequence[Path], tell: Tell = untold) -> Found:
    """Of run folders, folders of runs, and sweep-*.json files; ConfigError for any other."""
    if not folders:
        raise ConfigError("name at least one FOLDER, such as runs/main")
    first = folders[0]
    found = Found(first if first.is_dir() else first.parent, tell=tell)
    for folder in folders:
        try:
            _add(found, folder.resolve(), str(folder))
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror}") from None
    newest = newest_attempts(found.runs.values())
    found.older = found.runs.keys() - {run.folder for run in newest}
    return found


def _add(found: Found, folder: Path, typed: str) -> None:
    if not folder.is_dir():
        if not _is_record(folder):
            raise ConfigError(f"{typed}: is no run folder, no folder of runs, no sweep-NAME.json")
        found.records[folder] = read_record(folder)
        found.expected += len(found.records[folder].runs)
        return
    inside = [folder]
    if not (folder / "summary.json").exists():
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        for path in sorted(filter(_is_record, folder.iterdir())):
            found.records[path] = read_record(path)
    found.expected += len(inside)
    runs = [found.run(path) for path in inside]
    if not any(runs) and not any(path.parent == folder for path in found.records):
        studies = [path.name for path in inside if any(path.glob("*/summary.json"))]
        hint = f"; it holds studies, name one: {typed}/{studies[0]}" if studies else ""
        raise ConfigError(f"{typed}: there is no run in it{hint}")


def _is_record(path: Path) -> bool:
    return path.name.startswith("sweep-") and path.suffix == ".json"
