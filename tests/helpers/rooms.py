"""The rooms of the package and their budgets of lines. `python tests/helpers/rooms.py` prints both,
and fails where a room has more lines than tests/house/budget.yaml gives it."""

import ast
import sys
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "transformer_norms"
BUDGET = yaml.safe_load((ROOT / "tests/house/budget.yaml").read_text())
ROOMS = BUDGET["rooms"]
ORDER = list(ROOMS)  # a room imports itself and the rooms before it
LONE_FILES = {name: room for room, its in ROOMS.items() for name in its.get("files", "").split()}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(file):
    """Returns the room of a file of the package. A command of a folder is a command."""
    path = file.relative_to(PACKAGE).with_suffix("")
    if str(path) in LONE_FILES or path.name == "__main__":
        return LONE_FILES.get(str(path), "commands")
    return path.parts[0] if len(path.parts) > 1 else None


@cache
def imports(file):
    """Returns (line, imported file) of each import of the package's own files, lazy ones too."""
    package = [PACKAGE.name, *file.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(node.lineno, path) for name in names if (path := file_of(name))]
    return found


def file_of(name):
    """Returns the file that `import a.b.c` or `from a.b import c` reads, if it is the package's."""
    parts = name.split(".")
    if parts[0] != PACKAGE.name:
        return None
    for end in (len(parts), len(parts) - 1):  # the last may be a function
        path = PACKAGE.joinpath(*parts[1:end])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file() and end:
                return file
    raise AssertionError(f"{name}: there is no such file")


def levels():
    """Returns how many levels of files import each other, and the files that import in a circle. A
    lazy import counts, since a circle that it hides is a circle."""
    graph, count = {file: {path for _, path in imports(file)} - {file} for file in FILES}, 0
    while leaves := {file for file, imported in graph.items() if not imported}:
        graph = {file: graph[file] - leaves for file in graph.keys() - leaves}
        count += 1
    return count, sorted(str(file.relative_to(PACKAGE)) for file in graph)


def path_files():
    """Returns the files that are read in an afternoon, in the order of reading."""
    return [
        PACKAGE / folder / f"{name}.py"
        for folder, names in BUDGET["path"]["files"].items()
        for name in names.split()
    ]


def lines_of(files):
    return sum(len(file.read_text().splitlines()) for file in files)


def measured():
    """Returns (name, lines, budget) of each room, of the path and of the tests."""
    path, tests = path_files(), (ROOT / "tests").rglob("*.py")
    own = [(room, [file for file in FILES if room_of(file) == room]) for room in ORDER]
    rows = [(room, lines_of(files), ROOMS[room]["lines"]) for room, files in own]
    rows.append(("package", lines_of(FILES), BUDGET["package"]))
    named = f"read in an afternoon, {len(path)} files"
    rows.append((named, lines_of(path), BUDGET["path"]["lines"]))
    return [*rows, ("tests", lines_of(tests), BUDGET["tests"])]


def main():
    rows = measured()
    wide = max(len(name) for name, _, _ in rows)
    for name, lines, budget in rows:
        above = "" if lines <= budget else f"  {lines - budget:,} above its budget"
        print(f"{name:{wide}} {lines:7,} of {budget:7,}{above}")
    count, circles = levels()
    print(f"{len(FILES)} files in {count} levels, {len(circles)} of them in circles")
    return int(any(lines > budget for _, lines, budget in rows))


if __name__ == "__main__":
    sys.exit(main())
