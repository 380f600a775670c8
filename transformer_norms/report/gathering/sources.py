"""Reads what lies in the folders that a report is of: runs, and the records of sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformer_norms.comparison.sweep_record import SweepRecord, read_record
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell
from transformer_norms.report.study import below_here
from transformer_norms.run.identity import digest
from transformer_norms.run.reader import SavedRun
from transformer_norms.storage.reading import is_there

_LISTED = 8  # damaged runs
_LONGEST = 100  # characters of the name of a report's folder


@dataclass
class Sources:
    """The runs and the sweeps in the named folders. `typed` are the folders of runs that no sweep
    has to plan: they were named themselves, or lie in a folder without the record of a sweep.
    `damaged` says of each run and record that cannot be read why."""

    tell: Tell
    records: dict[Path, SweepRecord] = field(default_factory=dict)
    runs: dict[Path, SavedRun] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    typed: list[Path] = field(default_factory=list)
    expected: int = 0  # runs, as far as is known

    def add(self, path: Path, typed: str) -> None:
        """Reads what a folder or file holds. `typed` is its name on the command line."""
        if _is_record(path) and not path.is_dir():
            records, places = [path], []
        elif is_there(path / "summary.json"):
            records, places = [], [path]
        elif path.is_dir():
            records = sorted(filter(_is_record, path.iterdir()))
            places = sorted(inside for inside in path.iterdir() if inside.is_dir())
        else:
            raise ConfigError(f"{typed}: is not a run, a folder of runs or a sweep-NAME.json")
        records = [file for file in records if self._read_record(file)]
        self.expected += len(places) or sum(len(self.records[file].runs) for file in records)
        runs = [self.read_run(place) for place in places]
        if not any(runs) and not records:
            if damaged := [self.damaged[one] for one in (path, *places) if one in self.damaged]:
                raise ConfigError(damaged[0])
            studies = [place.name for place in places if any(place.glob("*/summary.json"))]
            hint = f"; it holds studies, name one: {typed}/{studies[0]}" if studies else ""
            raise ConfigError(f"{typed}: there is no run in it{hint}")
        self.typed += [] if records else [run.folder for run in runs if run]

    def read_run(self, folder: Path) -> SavedRun | None:
        """The run in `folder`, read once; None if no run has begun there, or if it is damaged."""
        if folder not in self.runs and folder not in self.damaged:
            try:
                if not is_there(folder / "summary.json"):
                    return None
                run = SavedRun(folder)
                run.settings  # noqa: B018  raises ConfigError where keys are missing
                if run.finished:
                    run.final_loss("val_loss")  # raises it where there is none
                self.runs[folder] = run
            except ConfigError as error:
                self.damaged[folder] = str(error)
            self.tell("reading runs {:.0f}/{:.0f}", len(self.runs), self.expected)
        return self.runs.get(folder)

    def _read_record(self, file: Path) -> bool:
        try:
            self.records[file] = read_record(file)
        except ConfigError as error:
            self.damaged[file] = str(error)
        return file in self.records

    def damage_lines(self) -> list[str]:
        """Returns a line for each damaged run and record, the first of many."""
        lines = [f"left out, as it is damaged: {below_here(why)}" for why in self.damaged.values()]
        more = len(lines) - _LISTED
        return [*lines[:_LISTED], f"left out: {more} more that are damaged"] if more > 0 else lines


def _is_record(path: Path) -> bool:
    return path.name.startswith("sweep-") and path.suffix == ".json"


def home_of(folders: Sequence[Path]) -> Path:
    """The folder of the report of `folders`: the folder itself; of several, a folder next to the
    first that has the names of all, so that the report of none is written over."""
    own = (path if path.is_dir() else path.parent for path in folders)
    homes = {folder.resolve(): folder for folder in own}
    if len(homes) == 1:
        return next(iter(homes.values()))
    first, *others = homes
    name = "-".join(["report", *(place.name for place in homes)])
    if len(name) > _LONGEST:
        name = f"report-{first.name[:60]}-and-{len(others)}-more-{digest([*map(str, homes)])[:8]}"
    return (first if homes[first].name in ("", "..") else homes[first]).parent / name
