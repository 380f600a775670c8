"""No call in the package can run what a file holds."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "transformer_norms").rglob("*.py"))
FILES.append(ROOT / "train.py")

NEVER = set(
    "eval exec __import__ compile extractall unsafe_load unsafe_load_all full_load popen getoutput "
    "getstatusoutput".split()
)
NEVER_OF = {
    "pickle": {"load", "loads", "Unpickler"},
    "dill": {"load", "loads"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "torch": {"load"},
    "yaml": {"load", "load_all", "FullLoader", "Loader", "UnsafeLoader"},
    "os": {"system", "popen"},
    "numpy": {"load"},
    "np": {"load"},
}
BUILTINS = {"compile"}  # as a name alone: a module's own .compile() and re.compile() are no such


def violations(source: str) -> list[str]:
    """`line: call` for each that could run code out of a file or a string."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            bad = node.attr in NEVER - BUILTINS - {"eval"} or node.attr in NEVER_OF.get(owner, ())
            found += [f"{node.lineno}: {owner}.{node.attr}"] * bad
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NEVER:
            found.append(f"{node.lineno}: {node.id}")
        if isinstance(node, ast.ImportFrom) and node.module in NEVER_OF:
            bad_names = [a.name for a in node.names if a.name in NEVER_OF[node.module]]
            found += [f"{node.lineno}: {node.module}.{name}" for name in bad_names]
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            loads = getattr(node.func, "attr", getattr(node.func, "id", "")).endswith("load")
            if (keyword.arg, _value(keyword)) in KEYWORDS and (
                keyword.arg != "weights_only" or loads  # a summary has a field of that name
            ):
                found.append(f"{keyword.value.lineno}: {keyword.arg}={_value(keyword)}")
    return found


KEYWORDS = {(key, True) for key in ("shell", "allow_pickle", "trust_remote_code")}
KEYWORDS |= {("weights_only", False)}


def _value(node: ast.keyword) -> object:
    # What is not written out counts as the dangerous one.
    if isinstance(node.value, ast.Constant):
        return node.value.value
    return node.arg != "weights_only"


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
