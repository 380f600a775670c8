"""README.md and docs/: blocks run, links lead somewhere, tables list every choice."""

import os
import re
import subprocess
import sys

import links  # of docs/
import pytest
import tables  # of docs/
import torch
import yaml
from guide import PAGES, ROOT, SMALL, blocks, commands, shrink

from transformer_norms import ConfigError, build_model, compose
from transformer_norms.names import AXES, options

CATALOGUE = ROOT / "docs" / "catalogue.md"
YOUR_OWN = ROOT / "docs" / "your_own.md"
OWN_FILE = re.compile(r"# (mine/\S+)\n")


def write_own_files(page, folder):
    for block in blocks(page):
        if first := OWN_FILE.match(block.text):
            file = folder / first[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)


def test_the_norm_of_ones_own_is_two_files_checked_and_named_like_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_own_files(YOUR_OWN, tmp_path)
    command = re.search(r"python train.py (plugins=mine .*)", YOUR_OWN.read_text())
    config = compose([*command[1].split(), "model=nano"])
    model = build_model(config, 31)
    x = torch.randn(3, 64)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6) ** (0.9 / 2)
    torch.testing.assert_close(model.blocks[0].attention.pre(x), expected)
    with pytest.raises(ConfigError, match="norm.power: 2"):
        compose(["plugins=mine", "norm=half", "norm.power=2"])


def test_the_table_of_axes_lists_every_choice_there_is():
    axes = CATALOGUE.read_text().partition("## Norms")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", axes, re.MULTILINE))
    assert set(rows) == set(AXES) - {"launcher", "parallel", "sweep"}
    for axis, said in rows.items():
        named = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", said)))
        assert set(options(axis)) - {"none"} <= named, axis


def test_its_tables_are_those_that_the_definitions_make(tmp_path, capsys):
    text, old = CATALOGUE.read_text(), tmp_path / "catalogue.md"
    assert tables.main([str(CATALOGUE), "--check"]) == 0
    old.write_text(text.replace("`norm(x + f(x))`", "`x + norm(f(x))`"))
    assert (tables.main([str(old), "--check"]), tables.main([str(old)])) == (1, 0)
    assert old.read_text() == text
    old.write_text("no marks")
    assert tables.main([str(old)]) == 2
    assert "there is no <!-- norms: ... -->" in capsys.readouterr().err


def test_every_link_leads_to_a_file_and_a_heading_that_exist(tmp_path, capsys):
    assert {*PAGES, ROOT / "CONTRIBUTING.md"} <= {*links.PAGES}
    assert links.main() == 0, capsys.readouterr().out
    (tmp_path / "there.md").write_text("# A head, in `code`\n")
    alive = "[a](there.md) [b](there.md#a-head-in-code) [c](https://x.y#z)"
    (tmp_path / "page.md").write_text(f"{alive} [d](gone.md) [e](there.md#gone) [f](#gone)")
    assert [*links.dead_links(tmp_path / "page.md")] == ["gone.md", "there.md#gone", "#gone"]


def test_each_of_at_most_fifteen_words_of_the_glossary_is_linked_where_it_is_used():
    words = links.heading_ids(ROOT / "docs" / "glossary.md") - {"glossary"}
    assert len(words) <= 15
    used = [link for page in PAGES for link in links.LINK.findall(page.read_text())]
    assert {link.partition("glossary.md#")[2] for link in used} - {""} == words


def test_the_site_has_every_page_of_the_guide():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = [page for group in site["nav"] for pages in group.values() for page in pages]
    made = ["index.md", "contributing.md", "api.md"]  # of README.md, CONTRIBUTING.md and docstrings
    assert sorted(named) == sorted([*made, *(page.name for page in PAGES[1:])])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_names_its_language_and_what_is_not_run_composes(page):
    for block in blocks(page):
        assert block.language in ("bash", "python", "yaml", "text"), block
        for name, *words in commands(block.text) if block.not_run else ():
            overrides = [word for word in words if re.match(r"[a-z_.]+=", word)]
            many = "-m" in words or any(word.startswith("sweep=") for word in overrides)
            if name == "train" and not many:
                compose([word for word in overrides if not word.startswith("launcher")])


def test_what_a_page_trains_is_made_small_for_the_test_and_nothing_else_of_it_changes():
    config = compose(shrink(["norm=layernorm", "model=124m", "trainer.steps=500"]))
    assert (config.norm.type, config.model.width, config.trainer.steps) == ("layernorm", 64, 10)
    continued = shrink(["continue_from=x", "trainer.steps=700"])
    assert continued == ["continue_from=x", "trainer.steps=14"]
    assert set(shrink(["norm=dyt"])) == {"norm=dyt", *(f"{k}={v}" for k, v in SMALL.items())}


MAKEFILE = (ROOT / "Makefile").read_text()
SHIMS = {
    "python": '[ "$1" != train.py ] || exec {python} {guide} "$@"\nexec {python} "$@"',
    "transformer-norms": '[ "$1" != train ] || exec {python} {guide} "$@"\n'
    'exec {python} -m transformer_norms "$@"',
    "torchrun": 'words=()\nfor word; do\n[ "$word" != train.py ] || words+=({guide})\n'
    'words+=("$word")\ndone\nexec {python} -m torch.distributed.run "${{words[@]}}"',
    # The packages are those of the test. The demo's run is that of the Makefile, in 12 steps.
    "make": '[ "$1" = demo ] || exit 0\nexec {python} {guide} train {demo} trainer.steps=600',
}
PRELUDE = """
import transformer_norms
from guide import shrink
whole = transformer_norms.compose
transformer_norms.compose = lambda overrides=(): whole(shrink(list(overrides)))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_in_its_order(page, tmp_path):
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text("")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    demo = re.search(r"train (study=demo [^|]*?) trainer.steps=600$", MAKEFILE, re.MULTILINE)[1]
    tools = {"python": sys.executable, "guide": ROOT / "tests" / "helpers" / "guide.py"}
    tools["demo"] = demo.replace("\\\n", " ")
    for name, script in SHIMS.items():
        file = bin_folder / name
        file.write_text(f"#!/bin/bash\n{script.format(**tools)}\n")
        file.chmod(0o755)
    write_own_files(page, tmp_path)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": paths}
    environment |= {"COLUMNS": "80"}
    programs = {"bash": ["bash", "-e", "-c"], "python": [sys.executable, "-c"]}
    for block in blocks(page):
        if block.not_run or OWN_FILE.match(block.text) or block.language not in programs:
            continue
        text = PRELUDE * (block.language == "python") + block.text
        program = [*programs[block.language], text]
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
