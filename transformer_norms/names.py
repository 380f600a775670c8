"""The names that there are, and what to say of one that there is not."""

import difflib
from collections.abc import Iterable
from pathlib import Path

import yaml

AXES_OF_A_RUN = (
    "norm placement init position attention mlp preset model data tokenizer loss optimizer "
    "schedule tracking"
).split()
AXES = [*AXES_OF_A_RUN, "launcher", "parallel", "sweep"]


def folder_of_configs() -> Path:
    """configs/ beside the package in a clone, inside it in a wheel."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


def options(axis: str, folder: Path | None = None) -> list[str]:
    """The names that AXIS=NAME may take."""
    return sorted(option_files(axis, folder))


def option_files(axis: str, folder: Path | None = None) -> dict[str, Path]:
    """The file of each of an axis's names: ours, and those of a folder of plugins."""
    roots = [folder_of_configs(), *([folder / "configs"] if folder else [])]
    return {file.stem: file for root in roots for file in sorted((root / axis).glob("*.yaml"))}


def distinct_norms(folder: Path | None = None) -> list[str]:
    """The options of norm=, without those that differ from one of a shorter name in eps and its
    source alone. `folder` is one of plugins."""
    found: dict[str, str] = {}
    for name, file in sorted(option_files("norm", folder).items(), key=lambda item: len(item[0])):
        held = yaml.safe_load(file.read_text(encoding="utf-8"))
        kept = {key: value for key, value in held.items() if key not in ("eps", "source")}
        found.setdefault(str(kept), name)
    return sorted(found.values())


def nearest(name: str, known: Iterable[str], how_many: int = 1) -> list[str]:
    return difflib.get_close_matches(name.lower()[:200], list(known), how_many, cutoff=0.5)


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """`there is no norm 'rmsnrm'; there are layernorm, none, rmsnorm (did you mean 'rmsnorm'?)`"""
    known = list(known)
    return f"there is no {kind} {str(name)!r}; there are {', '.join(known)}{hint(name, known)}"


def hint(name: object, known: Iterable[str]) -> str:
    """` (did you mean 'rmsnorm'?)`, or nothing where no known name is near."""
    near = nearest(str(name), known)
    return f" (did you mean '{near[0]}'?)" if near else ""
