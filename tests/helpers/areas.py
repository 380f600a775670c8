"""The areas of the tests: their folders, and the CPU seconds that each may take."""

from pathlib import Path

# CPU seconds of all workers together, their child processes included: 560 in all. An area is one
# folder of tests or some.
BUDGETS = {
    "config": (50, "config security"),
    "catalogue": (123, "catalogue model"),
    "planted": (2, "planted"),
    "protections": (0, "protections"),
    "versions": (0, "versions"),
    "training": (38, "training"),
    "data": (32, "data storage"),
    "sweep": (128, "sweep run judge house"),
    "report": (50, "report page comparison experiments"),
    "tracking": (15, "tracking"),
    "explain": (10, "explain"),
    "analysis": (46, "analysis hf"),
    "scale": (30, "scale"),
    "imports and collection": (36, ""),
}
AREAS = {folder: area for area, (_, folders) in BUDGETS.items() for folder in folders.split()}


def area_of(file: Path) -> str:
    """The area of a test's folder. KeyError for a folder without one."""
    return AREAS[file.parent.name]
