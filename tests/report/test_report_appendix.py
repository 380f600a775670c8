"""report --appendix writes what the runs recorded, as Markdown and as LaTeX."""

import json
import re
from pathlib import Path

import pytest
import yaml
from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import (
    PRE,
    SANDWICH,
    config_of,
    edit,
    edit_each,
    folder,
    make_run,
    make_study,
    text,
    tree,
    tuning_study,
)

from transformer_norms.report.__main__ import main

EVIL = "50%_a & b #\n# x\n| y |\t$z$ \\input{x} [3] * <script> ~ \u202e"


def written(kind="md", **options):
    text(appendix=True, **options)
    return Path(f"study/appendix.{kind}").read_text()


def tables(markdown):
    """The rows of each table, by the first heading, their cells by heading."""
    found = {}
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
            head, _, *cells = [[cell.strip() for cell in row] for row in rows]
            found[head[0]] = [dict(zip(head, row, strict=True)) for row in cells]
    return found


def headings(markdown):
    return [line[3:] for line in markdown.splitlines() if line.startswith("#")]


def test_runs_and_their_cost_are_those_of_the_summaries():
    tuning_study()
    files = sorted(Path("study").glob("*/summary.json"))
    for number, file in enumerate(files):
        edit(file.parent, seconds=1000.0 + number, evaluation_seconds=500.0)
    summaries = [json.loads(file.read_text()) for file in files]
    found = tables(written())
    tuning, results, every = found["runs of"]
    assert [row["planned"] for row in (tuning, results, every)] == ["7", "6", "13"]
    assert [row["failed to train"] for row in (tuning, results, every)] == ["1", "0", "1"]
    assert (tuning["seeds"], results["seeds"]) == ("100", "0, 1, 2")
    assert every["tokens"] == f"{sum(one['tokens'] for one in summaries):,}"
    assert float(every["FLOPs"]) == pytest.approx(sum(s["flops"] for s in summaries), rel=5e-3)
    hours = sum(one["seconds"] + 500 for one in summaries) / 3600
    assert float(every["hours"]) == pytest.approx(hours, abs=0.005)
    pre, post = found["variant"]  # the later one of two tables: of tuning
    assert (pre["optimizer.lr"], post["optimizer.lr"]) == ("0.01", "0.001 (edge)")
    assert (pre["points"], pre["failed"], post["points"], post["failed"]) == ("4", "0", "3", "1")
    losses = "0.001: 2.5000, 0.01: 2.3000, 0.1: 2.6000, 1: 5.0000"
    assert pre["validation loss at each optimizer.lr"] == losses


def test_settings_are_those_of_the_configs_and_each_choice_has_its_formula():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH, "post": {0: 2.5, 1: 2.53, 2: 2.51}})
    markdown = written()
    found = tables(markdown)
    config = yaml.safe_load((folder("pre", 0) / "config.yaml").read_text())["resolved"]
    rows = {row["part"]: row["settings"].split("; ") for row in found["part"]}
    for node, keys in {"model": ("width", "depth"), "trainer": ("steps", "batch_size")}.items():
        assert {f"{key} {config[node][key]}" for key in keys} <= {*rows[node]}
    assert not any("none" in one for pairs in rows.values() for one in pairs)
    formulas = {row["choice"]: row["formula"].replace("\\", "") for row in found["choice"]}
    assert formulas["norm=rmsnorm"] == f"formula: {config['norm']['formula']}"
    assert formulas["placement=sandwich"] == "equation: x + norm(f(norm(x)))"
    assert "Tuning" not in headings(markdown)
    assert "shrunk toward a standard deviation" in markdown
    assert "Licence: not recorded. TODO" in markdown


def test_anybodys_text_is_inert_in_both_formats():
    make_study("study", {"pre": PRE, "post": PRE}, question="plain")
    plain = headings(written())
    record = Path("study/sweep-quick.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"question": EVIL}))
    edit_each(
        {folder(placement, seed) for placement in ("pre", "post") for seed in PRE},
        lambda summary: {
            "warnings": [EVIL], "device": EVIL, "commit": EVIL, "versions": {EVIL: EVIL},
            "process": {"command": EVIL}, "data": summary["data"] | {"corpus": {EVIL: EVIL}},
        },
    )  # fmt: skip
    markdown, tex = written(), written("tex")
    assert headings(markdown) == plain == re.findall(r"\\subsection\{(.*)\}", tex)
    tables(markdown)  # each row has as many cells as its heading
    assert all(c.isprintable() or c == "\n" for c in markdown + tex)
    assert "<script>" not in markdown.replace("\\<", "")
    bare = re.sub(r"\\[%&#_${}]|\\text\w+\{\}|\$(-|\\pm)\$", "", tex)
    assert "\\input" not in bare
    inside = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", bare, re.S)
    assert inside
    for one in inside:
        bare = bare.replace(one, "")
        assert len({line.count("&") for line in one.splitlines() if line.endswith(r"\\")}) == 1
    assert not set("&#~^") & set(bare)
    assert not re.search(r"\\item *\[", tex)
    assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")


def test_runs_without_a_record_have_an_appendix_and_written_again_it_is_the_same(capsys):
    for placement, losses in (("pre", PRE), ("sandwich", SANDWICH)):
        for seed, loss in losses.items():
            make_run("study", config_of([f"placement={placement}"], seed), loss)
    assert main(["study"]) == 0
    assert not Path("study/appendix.md").exists()
    assert main(["study", "--appendix"]) == 0
    before = tree("study")
    markdown = Path("study/appendix.md").read_text()
    assert "Registration. None is recorded." in markdown
    assert "Error bars. ± is the standard deviation over seeds" in markdown
    assert not {"Registration", "Tuning"} & {*headings(markdown)}
    assert [row["runs of"] for row in tables(markdown)["runs of"]] == ["results"]
    assert main(["study", "--appendix"]) == 0
    assert tree("study") == before
    assert main(["study", "study", "--join", "--appendix"]) == 2
    assert "--appendix: is not for --join" in capsys.readouterr().err
