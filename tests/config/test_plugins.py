"""A user's own folder of norms, placements and presets: chosen and refused as ours are."""

import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml
from plugin_folders import write_plugins
from refusing import refused

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.names import AXES, options
from transformer_norms.sweep.question import read_request


def test_an_option_in_a_folder_of_plugins_extends_another_and_has_one_content(tmp_path):
    typed = write_plugins(tmp_path, "", {
        "norm/mine": "defaults: [rmsnorm, _self_]\neps: 3e-5\n",
        "preset/mine": "defaults:\n  - gpt2\n  - override /norm: mine\n"
        "seed: 48\narchitecture: {logit_cap: 30}\n",
        "preset/tied": "defaults:\n  - override /init: ngpt\narchitecture: {tied: true}\n",
    })  # fmt: skip
    (tmp_path / "config.yaml").write_text(to_yaml(compose(["placement=post"])))
    file = f"config={tmp_path / 'config.yaml'}"
    config = compose([typed, "norm=mine", "placement=post"])
    assert (config.norm.type, config.norm.eps) == ("rmsnorm", 3e-5)
    assert compose([file, typed, "norm=mine"]).norm == config.norm
    # A preset may state a tied head for its own init; a typed init brings what it brings.
    assert compose([typed, "preset=tied"]).architecture.tied
    assert not compose([typed, "preset=tied", "init=ngpt"]).architecture.tied
    config = compose([typed, "preset=mine"])
    assert (config.norm.eps, config.seed, config.architecture.logit_cap) == (3e-5, 48, 30)
    assert config.position.type == "learned"
    assert compose([typed, "preset=mine", "norm=dyt"]).norm.type == "dyt"


NORM = """
from torch import nn
from transformer_norms.kinds import Rate
from transformer_norms.norms import NORMS

@NORMS("{name}")
class Mine(nn.Module):
    def __init__(self, width: int, zeta: Rate) -> None:
        super().__init__()
        self.zeta = zeta

    def forward(self, x):
        return self.zeta * x
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A user's own folder, in a place whose name needs quotes."""
    folder = tmp_path_factory.mktemp("it's mine, ü=1")
    placement = "source: me\nequation: x + norm(f(x))\n"
    files = {"norm/mynorm": "type: mynorm\nzeta: 2\n", "placement/mine": placement}
    write_plugins(folder, NORM.format(name="mynorm"), files)
    return folder


def typed_folder(folder: Path) -> str:
    quoted = str(folder).replace("'", "\\'")
    return f"plugins='{quoted}'"


def test_a_users_own_norm_and_placement_are_chosen_typed_and_built_like_ours(mine):
    assert {"mynorm", "rmsnorm"} <= set(options("norm", mine))
    typed = [typed_folder(mine), "norm=mynorm", "placement=mine", "norm.zeta=3", "model=nano"]
    config = compose(typed)
    assert config.norm == {"type": "mynorm", "zeta": 3.0}
    assert config.choices.placement == "mine"
    assert config.plugins == str(mine)
    assert build_model(config, vocab_size=8).blocks[0].attention.out.zeta == 3.0
    line = refused(compose, [typed_folder(mine), "norm=mynrm"])
    assert re.search(f"did you mean 'mynorm'.*; your own are in {mine}/configs/norm$", line)


@pytest.mark.goal("X3")
def test_a_saved_config_never_loads_plugins_and_says_what_to_type(mine, tmp_path):
    config, path = compose([typed_folder(mine), "norm=mynorm"]), tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert compose([f"config={path}", typed_folder(mine)]) == config
    fresh = mine.parent / "never"
    shutil.copytree(mine, fresh)
    (fresh / "mine.py").write_text("raise SystemExit('loaded')")
    text = path.read_text().replace("type: mynorm", "type: other").replace(str(mine), str(fresh))
    path.write_text(text.replace(str(mine).replace("'", "''"), str(fresh)))
    line = refused(compose, [f"config={path}"])
    assert re.search("type plugins=.*no norm 'other'", line)
    assert "loaded" not in line


BROKEN = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())["plugins"]
BROKEN += [["broken.py", NORM.format(name="rmsnorm"), "'rmsnorm' is taken"]]


@pytest.mark.parametrize(("file", "text", "fragment"), BROKEN)
def test_a_broken_plugin_is_one_line_that_says_what_is_wrong(
    file, text, fragment, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path.parent)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    axis = path.parent.name
    typed = [f"plugins={tmp_path.name}", *([f"{axis}={path.stem}"] if axis in AXES else [])]
    line = refused(read_request if axis == "sweep" else compose, typed)
    assert fragment in line
    if axis in AXES and "layernrm" not in text:  # a choice of another axis, which has no file
        assert line.startswith(f"plugins={tmp_path.name}: {file}: ")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (os.mkfifo, "is not a file, but a pipe"),
        (os.mkdir, "is not a file, but a folder"),
        (partial(os.symlink, "/dev/zero"), "is not a file, but a device"),
        (partial(os.symlink, "new.yaml"), "new.yaml: is a link; name what it leads to"),
    ],
)
def test_a_config_of_plugins_that_is_no_file_is_refused_and_never_waited_for(make, line, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    circle = refused(compose, [f"plugins={tmp_path}/circle"])
    assert circle.endswith("circle: there is no such folder")
    (tmp_path / "configs/norm").mkdir(parents=True)
    make(tmp_path / "configs/norm/new.yaml")
    assert line in refused(compose, [f"plugins={tmp_path}", "norm=new"])
