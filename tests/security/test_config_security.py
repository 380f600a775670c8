"""No call in the package can run what a file holds."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "transformer_norms").rglob("*.py"))
FILES.append(ROOT / "train.py")

# The names of what runs code out of a file or a string. A method eval or compile does not.
NEVER = re.compile(
    r"(eval|compile)"
    r"|(.*\.)?(exec|__import__|extractall|unsafe_load(_all)?|full_load|popen|get(status)?output)"
    r"|(pickle|dill|marshal)\.(loads?|Unpickler)|(joblib|torch|numpy|np)\.load|shelve\.open"
    r"|yaml\.(load(_all)?|(Full|Unsafe)?Loader)|os\.system"
)
ALLOWED = {"shell=False", "allow_pickle=False", "trust_remote_code=False"}


def violations(source: str) -> list[str]:
    """`line: name` for each that could run code out of a file or a string."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [f"{node.lineno}: {name}" for name in names if NEVER.fullmatch(name)]
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            text = ast.unparse(keyword)  # what is not written out counts as the dangerous one
            bad = text.partition("=")[0] in {one.partition("=")[0] for one in ALLOWED}
            # A summary has a field weights_only, too.
            unsafe = text == "weights_only=False" and ast.unparse(node.func).endswith("load")
            found += [f"{node.lineno}: {text}"] * (unsafe or (bad and text not in ALLOWED))
    return found


@pytest.mark.goal("X2")
@pytest.mark.parametrize(
    "source",
    (
        "pickle.load(f); pickle.loads(b); from pickle import loads; torch.load(f); eval(x); "
        "exec(x); yaml.load(t); yaml.unsafe_load(t); from yaml import load; run(x, shell=True); "
        "run(x, shell=flag); tar.extractall(); os.system(x); __import__(name); "
        "np.load(f, allow_pickle=True); torch.load(f, weights_only=False); "
        "module.exec_module and exec"
    ).split("; "),
)
def test_the_search_finds_what_it_is_for(source):
    assert violations(source) != []


def test_the_search_finds_nothing_in_harmless_code():
    harmless = "re.compile(x); model.eval(); block.compile(); json.loads(t); yaml.safe_load(t)"
    assert violations(harmless + "\nrun(x, shell=False)\nyaml.parse(t, Loader=l)") == []


@pytest.mark.goal("X2")
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_in_the_package_runs_what_a_file_or_a_string_holds(file):
    assert violations(file.read_text()) == []
