"""The package's files lie in rooms, and a room imports only the rooms before it, lazily or not."""

import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from areas import AREAS
from rooms import FILES, ORDER, PACKAGE, ROOT, imports, levels, measured, path_files, room_of

README = (ROOT / "README.md").read_text()
MOST_FILES = 15  # in a folder
# A room's settings are its part of the typed config.
SAME_EVERYWHERE = ("__init__", "__main__", "settings")
TESTS = sorted(Path(__file__).parents[1].rglob("test_*.py"))


def test_every_file_is_in_a_room():
    folders = {path.name for path in PACKAGE.iterdir() if list(path.glob("*.py"))}
    assert folders == set(ORDER) - {"helpers"}
    assert [str(file.relative_to(PACKAGE)) for file in FILES if room_of(file) not in ORDER] == []


def test_a_room_imports_only_the_rooms_before_it_and_a_helper_none():
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line} imports {imported.relative_to(PACKAGE)}"
        for file in FILES
        for line, imported in imports(file)
        if ORDER.index(room_of(imported)) > ORDER.index(room_of(file))
    ]
    assert wrong == [], "\n" + "\n".join(wrong)
    assert ORDER[0] == "helpers"
    assert sum(room_of(file) == "helpers" for file in FILES) > 5


def test_no_two_files_import_each_other_in_a_circle():
    assert levels()[1] == []


def test_no_room_has_more_lines_than_its_budget():
    over = {name: lines for name, lines, budget in measured() if lines > budget}
    assert over == {}, "see tests/house/budget.yaml"


def test_the_readme_names_the_files_that_explain_the_core_in_the_order_of_reading():
    linked = re.findall(
        r"\]\((transformer_norms/\S+\.py)\)", README.partition("### In an afternoon")[2]
    )
    assert linked == [str(file.relative_to(ROOT)) for file in path_files()]


@pytest.mark.parametrize("files", [FILES, TESTS], ids=["package", "tests"])
def test_a_folder_holds_a_dozen_files_or_little_more(files):
    count = Counter(file.parent for file in files if file.name != "__init__.py")
    assert {f"{folder}": n for folder, n in count.items() if n > MOST_FILES} == {}


def test_every_test_lies_in_a_folder_of_an_area():
    assert {file.parent.name for file in TESTS} == {*AREAS}


def test_no_two_rooms_have_a_file_of_one_name():
    rooms = defaultdict(set)
    for file in FILES:
        if file.stem not in SAME_EVERYWHERE:
            rooms[file.stem].add(room_of(file))
    assert {name: where for name, where in rooms.items() if len(where) > 1} == {}


def test_no_two_classes_have_one_name():
    found = [re.findall(r"^ *class (\w+)", file.read_text(), re.MULTILINE) for file in FILES]
    assert [name for name, count in Counter(sum(found, [])).items() if count > 1] == []


def run_tool(folder, typed):
    command = [sys.executable, "-m", *typed.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_by_ruff(folder):
    lines = run_tool(folder, "ruff check --no-cache --show-files .").splitlines()
    return {Path(line).relative_to(folder.resolve()).as_posix() for line in lines}


def test_the_check_reads_every_file_of_the_project():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    command = ["git", "ls-files", "*.py", "*.ipynb"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(tracked.splitlines()) <= read_by_ruff(ROOT)


def test_the_check_passes_where_a_user_has_files_of_their_own(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ours = {"train.py", "transformer_norms/a.py", "benchmarks/speed.py", "tests/data/test_a.py"}
    own = {"mine/half.py", "mine/train.py", "mine/tests/test_half.py", "my_train.py", "a.ipynb",
           "eng/transformer_norms/a.py", "datasets/corpus/read.py"}  # fmt: skip
    for name in ours | own:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import os,sys\nx = (" if name in own else "")
    # A folder with the name of a package changes neither the order of imports nor their types.
    (tmp_path / "train.py").write_text(
        "import datasets\n\nimport transformer_norms\n\n"
        "print(datasets.load_dataset, transformer_norms)\n"
    )
    assert read_by_ruff(tmp_path) == ours
    for tool in "ruff format --no-cache --check .", "ruff check --no-cache .":
        run_tool(tmp_path, tool)
    run_tool(tmp_path, "mypy --cache-dir=/dev/null")
