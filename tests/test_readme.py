"""What the README says is so: its norm of one's own works, its table lists every choice."""

import re
from pathlib import Path

import pytest
import torch

from transformer_norms import ConfigError, build_model, compose, readme
from transformer_norms.config.compose import AXES, options

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
AXES_OF_README = README.partition("## Norms")[0]


def test_the_norm_of_ones_own_is_two_files_checked_and_named_like_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, comment in (("python", "# "), ("yaml", "# ")):
        for block in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL):
            first = block.splitlines()[0]
            if first.startswith(f"{comment}mine/"):
                file = Path(first.removeprefix(comment))
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block)
    command = re.search(r"python train.py (plugins=mine .*)", README)
    config = compose([*command[1].split(), "model=tiny"])
    model = build_model(config, 31)
    x = torch.randn(3, 64)
    norm = model.blocks[0].attention.pre
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6) ** (0.9 / 2)
    torch.testing.assert_close(norm(x), expected)
    with pytest.raises(ConfigError, match="norm.power: 2"):
        compose(["plugins=mine", "norm=half", "norm.power=2"])
    with pytest.raises(ConfigError, match="did you mean 'half'"):
        compose(["plugins=mine", "norm=halff"])


def test_the_table_of_axes_lists_every_choice_there_is():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", AXES_OF_README, re.MULTILINE))
    assert set(rows) == set(AXES) - {"launcher", "parallel", "sweep"}
    for axis, said in rows.items():
        named = set(re.findall(r"[a-z]\w*", re.sub(r"\(.*?\)", "", said)))
        assert set(options(axis)) - {"none"} <= named, axis


def test_its_tables_are_those_that_the_definitions_make(tmp_path, capsys):
    assert readme.main([str(ROOT / "README.md"), "--check"]) == 0
    old = tmp_path / "README.md"
    old.write_text(README.replace("`norm(x + f(x))`", "`x + norm(f(x))`"))
    assert readme.main([str(old), "--check"]) == 1
    assert readme.main([str(old)]) == 0
    assert old.read_text() == README
    old.write_text("no marks")
    assert readme.main([str(old)]) == 2
    assert "there is no <!-- norms: ... -->" in capsys.readouterr().err


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "compose" in b]
    lines = block.replace('"norm=rmsnorm"', '"norm=rmsnorm", "trainer.steps=2", "data=stories"')
    lines = lines.replace('"trainer.steps=2"', '"trainer.steps=2", "data.documents=150"')
    lines = lines.replace('"data=stories"', '"data=stories", "tracking=none", "trainer.threads=1"')
    scope: dict = {}
    exec(lines, scope)
    assert scope["summary"]["status"] == "finished"
    assert len(scope["table"]) == 1
    assert scope["model"](torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 512)
