"""The core is eight packages; what lacks another one says in a line which extra brings it."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from new_process import run_python
from run_folders import config_of, make_run
from short_runs import TEXT

from transformer_norms import __version__
from transformer_norms.__main__ import main
from transformer_norms.tracking.mirror import Mirror

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: {re.match(r"[\w-]+", text)[0].replace("-", "_") for text in texts}
    for extra, texts in PROJECT["optional-dependencies"].items()
}
OPTIONAL = set.union(*(EXTRAS[extra] for extra in ("data", "hf", "report", "slurm", "wandb")))


def without(*kept):
    """Code that makes every optional package absent, but those of the extras in `kept`: neither
    Python nor the record of installed packages finds it."""
    brought = set().union(*(EXTRAS[extra] for extra in kept))
    missing = sorted({*OPTIONAL, "argcomplete", "pyarrow", "huggingface_hub"} - brought)
    return f"""
import sys
from importlib import metadata
missing, version = {missing}, metadata.version
sys.modules.update(dict.fromkeys(missing))
metadata.version = lambda name: version("absent" if name in missing else name)
"""


def test_the_core_has_eight_requirements_and_all_has_the_rest():
    assert len(PROJECT["dependencies"]) <= 8
    everything = [line for line in metadata.requires("transformer-norms") if "'all'" in line]
    assert {re.match(r"[\w-]+", line)[0] for line in everything} == OPTIONAL | {"argcomplete"}


@pytest.mark.parametrize(
    ("typed", "package", "extra"),
    [
        ("runs", "pandas", "report"),
        ("train tokenizer=bpe", "tokenizers", "data"),
        ("train tokenizer=file tokenizer.path=tokenizer.json", "tokenizers", "data"),
        ("train tokenizer=gpt2", "tiktoken", "data"),
        ("train data=tinystories data.documents=9", "datasets", "data"),
        ("train data=jsonl data.paths=text.jsonl", "datasets", "data"),
        ("train tracking.mode=offline", "wandb", "wandb"),
        ("analysis fold exported", "transformers", "hf"),
    ],
)
def test_a_command_that_lacks_a_package_names_its_extra_in_one_line(
    typed, package, extra, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    make_run(Path("runs/main"), config_of())
    Path("exported").mkdir()
    files = {"text.txt": TEXT, "text.jsonl": '{"text": "once"}\n', "tokenizer.json": "{}"}
    for name, text in (files | {"exported/config.json": "{}"}).items():
        Path(name).write_text(text)
    usual = ["data=text", "data.paths=text.txt"] if "tok" in typed or "tracking" in typed else []
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*typed.split(), *usual]) == 2
    told = capsys.readouterr().err
    line = f"{package} is not installed; type pip install 'transformer-norms[{extra}]'"
    assert (told.splitlines()[-1], "Traceback" in told) == (line, False)


def test_a_run_that_may_be_mirrored_says_that_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    told = []
    mirror = Mirror({"mode": "auto"}, told.append)
    for name in ("one", "another"):
        mirror.follow(Path(name))
    mirror.close()
    assert told == ["W&B: wandb is not installed, nothing is mirrored (the extra wandb adds it)"]
    with pytest.raises(ModuleNotFoundError):
        Mirror({"mode": "offline"})


def test_the_version_is_written_once_and_the_other_files_agree():
    assert metadata.version("transformer-norms") == __version__
    assert "version" in PROJECT["dynamic"]
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == __version__


CORE = """
import time
import torch
begun = time.perf_counter()
from transformer_norms import Block, RMSNorm, compose, train
x = torch.randn(2, 5, 64)
y = Block("x + f(norm(x))", width=64, heads=4)(RMSNorm(64)(x))
assert y.shape == x.shape
print(time.perf_counter() - begun)
import importlib, pkgutil
import transformer_norms
for room in "norms model data training config run explain".split():
    package = importlib.import_module(f"transformer_norms.{room}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
config = compose(["model=nano", "trainer.steps=3", "data.val_tokens=2000", "trainer.probe_every=0"])
assert train(config)["status"] == "finished"
"""
SWEEP = """
from transformer_norms.__main__ import main
small = "model.depth=1 model.width=16 model.heads=2 trainer.steps=20 data.val_tokens=2000"
sys.exit(main(["train", "sweep=quick", *small.split()]))
"""


@pytest.mark.nightly
def test_the_core_alone_imports_builds_and_trains(tmp_path):
    run_python(without() + CORE, cwd=tmp_path)
    (curve,) = tmp_path.glob("runs/main/*")
    assert not (curve / "curve.svg").exists()


@pytest.mark.nightly
def test_with_the_extra_report_a_sweep_of_the_built_in_text_ends_in_a_report(tmp_path):
    assert "report.html" in run_python(without("report") + SWEEP, cwd=tmp_path)
    assert (tmp_path / "runs/quick/report.html").is_file()
    with pytest.raises(AssertionError, match="scipy is not installed"):
        run_python(without() + SWEEP, cwd=tmp_path)
