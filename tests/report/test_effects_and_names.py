"""A report of two crossed axes, names for papers, the choice of panels, and a report in Python."""

import csv
import itertools
import re
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import yaml
from own_folder import own_folder  # noqa: F401
from reports import findings_of
from run_folders import PRE, SANDWICH, make_study, make_sweep, skip_pictures

from transformer_norms import build_model, compare, compose, runs
from transformer_norms.config.tree import flat
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain
from transformer_norms.report import writing
from transformer_norms.report.__main__ import main
from transformer_norms.report.curves import draw_curves
from transformer_norms.report.measured.effects import effect_table
from transformer_norms.report.writing import write_report
from transformer_norms.run.reader import SavedRun
from transformer_norms.sweep.question import read_question

NORMS, PLACEMENTS, SEEDS = ("layernorm", "rmsnorm", "dyt"), ("pre", "post"), 4
LOSSES = 2.3 + 0.05 * np.random.default_rng(0).standard_normal((3, 2, SEEDS)).round(4)
INTERACTION = "(dyt - layernorm) under post - (dyt - layernorm) under pre"
SHOWN = {"rmsnorm": "RMSNorm", "pre": "Pre-LN", "post": "Post-LN"}


@pytest.fixture(autouse=True)
def no_drawings(monkeypatch):
    skip_pictures(monkeypatch)


def factorial(study="study", left_out=(), **changed):
    results = [
        ({"norm": norm, "placement": placement}, seed, float(LOSSES[a, b, seed]))
        for (a, norm), (b, placement) in itertools.product(enumerate(NORMS), enumerate(PLACEMENTS))
        for seed in range(SEEDS)
        if (norm, placement) not in left_out
    ]
    return make_sweep(study, results, **{"baseline": {"norm": "layernorm"}} | changed)


def effects(study="study", **options):
    table = effect_table(findings_of(study, **options))
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return {row["contrast"]: row for row in rows}


def test_two_crossed_axes_show_their_main_effects_and_interactions_and_judge_what_is_declared():
    factorial(contrasts=[INTERACTION])
    found = effects()
    ln, rms, dyt = LOSSES
    wanted = {
        "rmsnorm - layernorm (mean over placement)": (rms - ln).mean(),
        "dyt - layernorm (mean over placement)": (dyt - ln).mean(),
        "post - pre (mean over norm)": (LOSSES[:, 1] - LOSSES[:, 0]).mean(),
        INTERACTION.replace("dyt", "rmsnorm"): np.diff(rms - ln, axis=0).mean(),
        INTERACTION: np.diff(dyt - ln, axis=0).mean(),
    }
    shown = {name: row["value"] for name, row in found.items()}
    assert shown == {name: f"{value:+.4f}" for name, value in wanted.items()}
    judged = {name: row["verdict"] for name, row in found.items()}
    assert judged.pop(INTERACTION) == "not told apart"
    assert {*judged.values()} == {"described"}
    assert [name for name, row in found.items() if row["p"]] == [INTERACTION]
    assert main(["study", "--contrast", "rmsnorm - layernorm"]) == 0
    text = Path("study/table.md").read_text()
    section = text.partition("## Main effects and interactions")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| .*described", section, re.M)) == 4
    value = f"{(rms - ln).mean():.3f}"
    assert f"rmsnorm - layernorm (mean over placement) is {value}" in text


@pytest.mark.parametrize("study", ["holes", "two seeds", "horizons"])
def test_what_is_not_crossed_or_must_not_be_compared_has_no_effect(study):
    if study == "horizons":
        results = [
            ({"trainer.steps": steps, "placement": placement}, seed, 2.3 + 0.01 * seed * n)
            for n, (steps, placement) in enumerate(itertools.product((40, 80), PLACEMENTS))
            for seed in range(3)
        ]
        make_sweep(study, results)
        names = ["post - pre (mean over trainer.steps)",
                 "(post - pre) under steps=80 - (post - pre) under steps=40"]  # fmt: skip
        assert [*effects(study)] == names
        return
    factorial(study, [("dyt", "post")] if study == "holes" else [])
    if study == "two seeds":
        for folder in Path(study).glob("*/summary.json"):
            if "-s2-" in str(folder) or "-s3-" in str(folder):
                folder.unlink()
    assert effects(study) == {}


def test_names_are_shown_and_identities_contrasts_and_csv_keep_their_words(capsys):
    factorial(names={**SHOWN, "sandwich": "not asked for now"}, contrasts=["post - pre"])
    variants = write_report([Path("study")])[1].study.variants
    before = Path("study/results.csv").read_bytes()
    asked = ["study", "--contrast", "rmsnorm pre - dyt pre", "--names", "dyt=DyT $t$", "pre=Pre_LN"]
    assert main(asked) == 0
    assert Path("study/results.csv").read_bytes() == before
    assert "rmsnorm pre" in {row["variant"] for row in csv.DictReader(before.decode().splitlines())}
    assert {v.name: v.words for v in variants}["RMSNorm Pre-LN"] == "rmsnorm pre"
    for name, words in (("table.md", "RMSNorm Pre_LN"), ("table.tex", r"RMSNorm Pre\_LN"),
                        ("table-seeds.tex", r"DyT \$t\$ Post-LN")):  # fmt: skip
        text = Path("study", name).read_text()
        assert words in text, name
        assert not re.search(r"rmsnorm pre|\bpost\b", text.partition("## Where this")[0]), name
    contrasts = Path("study/table.md").read_text().partition("## Contrasts")[2]
    assert "Post-LN - Pre_LN (mean over norm)" in contrasts
    assert "RMSNorm Pre_LN - DyT" in contrasts
    assert "RMSNorm Post-LN" in capsys.readouterr().err


def test_a_name_that_no_word_or_two_words_would_have_is_refused_in_one_line(capsys):
    factorial()
    for typed, line in {
        "rmsnrom=RMSNorm": "--names: did you mean 'rmsnorm'? there is no word 'rmsnrom'; there are",
        "dyt=rmsnorm": "--names: rmsnorm and dyt would have one name, rmsnorm",
        "rmsnorm": "--names rmsnorm: WORD=NAME is wanted, such as pre=Pre-LN",
    }.items():
        assert main(["study", "--names", typed]) == 2
        said = capsys.readouterr().err
        assert said.startswith(line)
        assert said.count("\n") == 1
    assert not Path("study/report.html").exists()
    factorial("recorded", names={"rmsnorm": "X"})
    assert main(["recorded", "--names", "dyt=X"]) == 2
    assert "--names: rmsnorm and dyt would have one name, X" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({"pst": "Post-LN"}, "names: did you mean 'post'? there is no word 'pst'"),
        ({"pre": "LN", "post": "LN"}, "names: pre and post would have one name, LN"),
        ({"pre": 1}, "names.pre: "),
        ({"pre": " "}, "names: pre has the name"),
        (SHOWN | {"depth=2": "two blocks"}, ""),
    ],
)
def test_names_of_a_sweeps_file_are_checked_before_it_runs(names, line):
    asked = {"question": "", "baseline": {"placement": "pre"}, "names": names,
             "vary": {"norm": ["rmsnorm", "dyt"], "placement": ["pre", "post"],
                      "model.depth": [2, 4]}}  # fmt: skip
    file = Path("mine/configs/sweep/own.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(asked))
    if not line:
        assert read_question("own", "mine").names == names
        return
    with pytest.raises(ConfigError) as refusal:
        read_question("own", "mine")
    assert str(refusal.value).startswith(f"sweep=own: {line}")


def test_three_panels_are_written_unless_others_are_typed(monkeypatch, capsys):
    make_study("study", {"pre": PRE, "post": SANDWICH})
    make_study("alone", {"pre": PRE})
    files = lambda panel, sheet: {f"{panel.name}.{kind}": b"" for kind in sheet.formats}  # noqa: E731
    monkeypatch.setattr(writing, "panel_files", files)

    def written(*typed, study="study"):
        folder = "-".join(["drawn", study, *typed])
        assert main([study, "--figures", folder, *typed]) == 0
        return {path.name for path in Path(folder).iterdir()}

    three = {"differences.pdf", "loss-by-steps.pdf", "final-loss.pdf"}
    assert written() == three
    assert written(study="alone") == three - {"differences.pdf"}  # nothing is compared
    two = {"differences.pdf", "loss-by-flops.pdf"}
    assert written("--panels", "differences,loss-by-flops") == two
    assert written("--panels", "all") > three
    Path("study/report.html").unlink()
    capsys.readouterr()
    assert main(["study", "--figures", "none", "--panels", "differences,loss-by-stps"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "--panels loss-by-stps: did you mean 'loss-by-steps'? there is no such panel; there are "
        "all, differences, final-loss, "
    )
    assert not Path("none").exists()
    assert not Path("study/report.html").exists()


def test_compare_has_the_table_and_the_figure_of_the_report(monkeypatch):
    monkeypatch.setattr(writing, "draw_curves", draw_curves)
    make_study("study", {"pre": PRE, "post": SANDWICH})
    shown = compare(runs("study"))
    path, found = write_report([Path("study")])
    assert shown.figure == path.with_name("curves.svg").read_bytes()
    table = path.with_name("table.md").read_text()
    for name, row in shown.table.iterrows():
        line = next(line for line in table.splitlines() if line.startswith(f"| {name} "))
        assert [cell.strip() for cell in line.strip("|").split("|")] == [name, *row]
    html = shown._repr_html_()
    assert "<table" in html
    assert "data:image/svg+xml;base64," in html
    assert shown.answer in html
    assert "sandwich" not in repr(shown)
    assert repr(shown).startswith(shown.answer)
    folders = [row["folder"] for row in runs("study")]
    for same in ("study", Path("study"), folders, [*runs("study")]):
        assert [v.name for v in compare(same).findings.study.variants]
    named = compare("study", names={"pre": "Pre-LN"}, baseline={"placement": "post"})
    assert [*named.table.index] == ["Pre-LN", "post"]
    assert named.findings.comparisons["Pre-LN"].difference == pytest.approx(0.0187, abs=1e-4)
    for wrong in ({"margin": -1}, {"contrasts": "post - pst"}):
        with pytest.raises(ConfigError, match=r"margin -1|did you mean 'post'"):
            compare("study", **wrong)


def test_runs_are_a_list_and_have_a_table_of_numbers():
    make_study("study", {"pre": PRE, "post": SANDWICH})
    every = runs("study")
    assert isinstance(every, list)
    assert {*every[0]} == {"folder", "config", "summary", "metrics"}
    frame = every.frame()
    assert [*frame][:4] == ["study", "name", "placement", "seed"]
    assert frame["val_loss"].dtype == "float64"
    assert frame["model.depth"].dtype == "int64"
    means = frame.groupby("placement")["val_loss"].mean().to_dict()
    assert means == pytest.approx({"pre": fmean(PRE.values()), "post": fmean(SANDWICH.values())})
    Path("empty").mkdir()
    assert runs("empty").frame().empty


def test_a_repr_is_a_line_and_print_shows_all():
    make_study("study", {"pre": PRE, "post": SANDWICH})
    config = compose(["model=nano", "norm=layernorm"])
    model = build_model(config, 64)
    found = findings_of("study")
    run = SavedRun(runs("study")[0]["folder"])
    count = sum(p.numel() for p in model.parameters())
    assert repr(config) == "Config(layernorm, pre, pydocs, depth 2, width 64, 2500 steps, seed 0)"
    sizes = f"width 64, context 32, vocabulary 64, {count:,} parameters"
    assert repr(model) == f"Transformer(2 blocks, {sizes})"
    assert repr(run) == f"SavedRun({run.folder}: finished, val_loss {run.summary.val_loss:.4f})"
    assert repr(found) == "Findings(2 variants: better 1)"
    assert repr(runs("study")) == "Runs(study: 6 finished)"
    assert "(final): LayerNorm(" in str(model)
    resolved = {key: value for key, value in plain(config).items() if key != "chosen"}
    assert yaml.safe_load(str(config)) == resolved


def test_a_config_says_what_differs_from_another():
    first = compose(["model=nano", "norm=layernorm"])
    second = compose(["model=nano", "norm=rmsnorm", "trainer.steps=80", "norm.gain=none"])
    assert first.diff(first) == {}
    differing = first.diff(second)
    assert differing["norm.type"] == ("layernorm", "rmsnorm")
    assert differing["trainer.steps"] == (2500, 80)
    values = [flat(plain(one)) for one in (first, second)]
    for key, pair in differing.items():
        assert pair == tuple(one.get(key) for one in values)
    with pytest.raises(ConfigError, match="a config is wanted"):
        first.diff({"norm": "rmsnorm"})
