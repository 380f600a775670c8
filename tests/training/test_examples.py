"""What stands in examples/ runs, and trains as `train` does."""

import ast
import os
import re
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path

import pytest

from transformer_norms import compose, train

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "first_hour.ipynb"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
LAUNCH = "-m accelerate.commands.launch --cpu --num_machines 1 --num_processes 2".split()
PLAIN = "--mixed_precision no --dynamo_backend no".split()


def nodes_of(program, kind):
    return [node for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, kind)]


def config_of(program):
    """What a program passes to compose."""
    (call,) = [c for c in nodes_of(program, ast.Call) if ast.unparse(c.func) == "compose"]
    return ast.literal_eval(call.args[0])


def test_there_are_three_examples_and_a_small_notebook():
    assert [p.stem for p in PROGRAMS] == ["plain_loop", "with_accelerate", "with_lightning"]
    assert NOTEBOOK.stat().st_size < 200_000


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_says_what_it_shows_and_imports_what_is_there(program):
    (module,) = nodes_of(program, ast.Module)
    assert f"python examples/{program.name}" in ast.get_docstring(module)
    assert compose(config_of(program)) == compose(config_of(PROGRAMS[0]))
    nodes = nodes_of(program, ast.ImportFrom)
    assert (ours := [node for node in nodes if node.module.startswith("transformer_norms")])
    for node in ours:
        assert {name.name for name in node.names} <= {*dir(import_module(node.module))}, node.module


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The validation loss of the run that all programs train."""
    with chdir(tmp_path_factory.mktemp("trained")):
        return train(compose([*config_of(PROGRAMS[0]), "tracking=none"], device="cpu"))["val_loss"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "arguments",
    [*([program] for program in PROGRAMS), [*LAUNCH, *PLAIN, EXAMPLES / "with_accelerate.py"]],
    ids=[*(program.stem for program in PROGRAMS), "two processes"],
)
def test_a_loop_of_ones_own_reaches_the_loss_of_train(arguments, trained, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = re.search(r"validation loss (\S+)", done.stdout)
    assert float(printed[1]) == pytest.approx(trained, abs=2e-3)


@pytest.mark.nightly
def test_the_notebook_runs_in_a_kernel_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for study, count in (("one", 1), ("notebook", 9), ("own_norm", 6)):
        assert len([*tmp_path.glob(f"runs/{study}/*/summary.json")]) == count, study
