"""What experiments/ says is what its committed runs carry, and no more."""

import csv
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import fmean

import archives
import packing
import pytest
import results
import torch
import trained
from run_folders import skip_pictures
from scipy import stats

from transformer_norms.report.writing import write_report
from transformer_norms.run import machine

HERE = Path(__file__).parents[2] / "experiments"
HOMES = packing.find_homes()
STUDIES = [name for name, home in HOMES.items() if (home / packing.RUNS).exists()]
NOISE = 0.0069  # sd of pre's seeds in experiments/noise, nats
READMES = [home / "README.md" for home in HOMES.values()]
BLOCK = re.compile(r"<!-- results:[^>]*-->\n(.*?)<!-- /results -->", re.DOTALL)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_study_has_its_question_command_answer_and_limits(readme):
    text = readme.read_text()
    for part in (
        "**Question.**",
        "python ",
        "**Answer.**",
        "**Run**",
        "**What this does not show.**",
    ):
        assert part in text, part
    for shown in re.findall(r"\]\(([^)#]+)\)", text):
        assert shown.startswith("http") or (readme.parent / shown).exists(), shown


@pytest.mark.parametrize("study", STUDIES)
def test_a_studys_table_of_results_is_that_of_its_runs(study):
    with open(HOMES[study] / "results.csv") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    # A run that the newest command of a sweep does not ask for, and that never began, has no files.
    given_up = {run for run, row in rows.items() if row["stage"] == "given up"}
    assert {rows.pop(run)["status"] for run in given_up} <= {"missing"}
    with tarfile.open(HOMES[study] / packing.RUNS) as packed:
        names = [Path(name) for name in packed.getnames()]
        summaries = {
            Path(name).parts[1]: json.load(packed.extractfile(name))
            for name in packed.getnames()
            if name.endswith("/summary.json")
        }
    assert {name.name for name in names} <= {
        archives.COLUMNS, *packing.RECORDED,
        *(n.name for n in names if n.name.startswith("sweep-")),
    }  # fmt: skip
    assert summaries.keys() == rows.keys()
    for run, row in rows.items():
        for key in ("status", "val_loss", "commit", "identity", "batch_chain", "initial_loss"):
            assert row[key] == str("" if summaries[run][key] is None else summaries[run][key])
    assert {row["dirty"] for row in rows.values()} == {"False"}
    assert not {row["status"] for row in rows.values()} - {"finished", "diverged"}


GOLDEN = "norms depth qk_norm_edges eps".split()


@pytest.mark.parametrize("study", GOLDEN)
def test_the_tables_of_packed_studies_come_out_again_to_the_byte(study, tmp_path, monkeypatch):
    """They hold most sentences of a report: each verdict, failures, contrasts, tuning, notes."""
    skip_pictures(monkeypatch)
    packing.extract(HOMES[study] / packing.RUNS, tmp_path)
    write_report([tmp_path / study])
    for name in ("table.md", "results.csv"):
        assert (tmp_path / study / name).read_bytes() == (HOMES[study] / name).read_bytes()


@pytest.mark.parametrize("analysis", trained.ASKED)
@pytest.mark.parametrize("blocks", [4, 16])
def test_a_difference_of_trained_models_is_the_mean_of_its_pairs(analysis, blocks):
    asked, home = trained.ASKED[analysis], HERE / analysis
    with open(home / f"blocks_{blocks}" / f"{analysis}.csv") as file:
        values = {(r["model"], r["seed"]): float(r[asked.primary]) for r in csv.DictReader(file)}
    one, other = {"norm": ("rmsnorm", "layernorm"), "placement": ("hybrid", "pre")}[
        asked.baseline.partition("=")[0]
    ]
    with open(HERE / "claims.csv") as file:
        claimed = {row["part"]: row for row in csv.DictReader(file) if row["study"] == analysis}
    names = sorted({name for name, _ in values if one in name})
    assert len(names) == (3 if one == "rmsnorm" else 2)
    for name in names:
        row = claimed[f"{blocks} blocks {name}"]
        pairs = [values[name, seed] - values[name.replace(one, other), seed] for seed in "01234"]
        ends = stats.t.interval(0.95, 4, fmean(pairs), stats.sem(pairs))
        numbers = [float(row[key]) for key in ("difference", "low", "high")]
        assert numbers == pytest.approx([fmean(pairs), *ends], abs=1e-5)


@pytest.mark.parametrize("analysis", trained.ASKED)
def test_a_declared_difference_has_the_p_of_each_family_that_it_may_be_counted_in(analysis):
    """By scipy's test of the pairs, and by Holm's rule written out: the k-th smallest of m, times
    m - k + 1, is no less than the one before."""
    asked, home = trained.ASKED[analysis], HERE / analysis
    one, other = {"norm": ("rmsnorm", "layernorm"), "placement": ("hybrid mixln", "pre")}[
        asked.baseline.partition("=")[0]
    ]
    p, means = {}, {}
    for blocks in (4, 16):
        with open(home / f"blocks_{blocks}" / f"{analysis}.csv") as file:
            models = {(row["model"], row["seed"]): row for row in csv.DictReader(file)}
        for name in {name for name, _ in models}:
            if not (changed := set(name.split()) & set(one.split())):
                continue
            base = name.replace(changed.pop(), other)
            numbers = asked.analysis.numbers.items()
            for key in (key for key, one in numbers if one.compared and key in models[name, "0"]):
                pairs = [float(models[name, s][key]) - float(models[base, s][key]) for s in "01234"]
                p[blocks, name, key] = stats.ttest_1samp(pairs, 0).pvalue
                means[blocks, name, key] = f"{name} - {base}", pairs

    def adjusted(family):
        ordered = sorted(family, key=p.get)
        steps = [min(1, p[one] * (len(ordered) - k)) for k, one in enumerate(ordered)]
        return dict(zip(ordered, itertools.accumulate(steps, max), strict=True))

    declared = {place for place in p if place[2] == asked.primary}
    families = [
        p,
        *(
            {
                at: x
                for blocks in (4, 16)
                for at, x in adjusted([place for place in p if place[0] == blocks]).items()
            },
            adjusted(declared),
            adjusted(p),
        ),
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in (home / "README.md").read_text().splitlines()]  # fmt: skip
    for place in declared:
        name, pairs = means[place]
        half = stats.t.ppf(1 - 0.025 / len(declared), 4) * stats.sem(pairs)
        ends = (fmean(pairs) - half, fmean(pairs) + half)
        wide = " to ".join(map(asked.number.show_signed, ends))
        own = [row for row in rows if row[:2] == [str(place[0]), name] and len(row) == 9]
        assert [row[4:] for row in own] == [[wide, *(f"{one[place]:.2g}" for one in families)]]


@pytest.mark.parametrize("study", [*STUDIES, "norm_removal", *trained.ASKED])
def test_no_number_in_prose_is_other_than_what_was_computed(study):
    """A number with decimals that a README states of losses stands among those that are written by
    the command, or rounds one of them."""
    text = (HOMES[study] / "README.md").read_text()
    block = BLOCK.search(text)
    prose = text.replace(block[1], "")
    # The answer and the limits; the setting's numbers are those of the command.
    said = re.search(r"\*\*Answer\.\*\*(.*)\*\*Run\*\*", prose, re.DOTALL)[1]
    tables = [HOMES[study] / name for name in ("table.md", "joined.md")]
    claims = (HERE / "claims.csv").read_text().splitlines()
    known = "\n".join([
        block[1],
        *(table.read_text() for table in tables if table.exists()),
        *(line for line in claims if f",{study}," in line),
    ])  # fmt: skip
    computed = [abs(float(number)) for number in re.findall(r"\d+\.\d+", known)]
    for number in re.findall(r"(?<![\w./:])\d+\.\d+(?![\w:])", said):
        half = 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9
        assert any(abs(float(number) - one) <= half for one in computed), number


def test_no_number_in_the_findings_is_other_than_what_was_computed():
    """Each is in a table that the command writes, or rounds a number there. A reader of ten minutes
    has 900 words."""
    said = (HERE / "FINDINGS.md").read_text()
    assert len(said.split()) <= 900
    known = "\n".join([
        (HERE / "claims.csv").read_text(),
        *(BLOCK.search((HOMES[name] / "README.md").read_text())[1]
          for name in re.findall(r"\]\((\w+)\)", said)),
    ])  # fmt: skip
    computed = [abs(float(number)) for number in re.findall(r"\d+\.\d+", known)]
    own = "0.02 0.056 0.82 0.46 0.03 4.5".split()  # inits, scope, what is far, bytes of a token
    for number in set(re.findall(r"(?<![\w./:])\d+\.\d+(?![\w:])", said)) - {*own}:
        half = 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9
        assert any(abs(float(number) - one) <= half for one in computed), number


def test_the_counts_in_prose_are_those_of_the_table_of_protocols():
    """They grow with each study that tunes the rate alone."""
    table = BLOCK.search((HERE / "usual_protocol" / "README.md").read_text())[1]
    pairs, studies = re.search(r"(\d+) pairs of (\d+) studies", table).groups()
    off = [int(far) for far in re.findall(r"\| one rate, .* (\d+) % \|$", table, re.MULTILINE)]
    findings, front = (
        " ".join(file.read_text().split())
        for file in (HERE / "FINDINGS.md", HERE.parent / "README.md")
    )
    assert f"{pairs} differences, from {studies} studies" in findings
    assert f"Of {pairs} differences" in front
    assert f"{min(off)} to {max(off)} % of" in findings
    assert f"{min(off)} to {max(off)} % are" in front


def rows_of(study, **wanted):
    with open(HOMES[study] / "results.csv") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.goal("Q8")
def test_post_fails_without_a_warm_up_and_query_and_key_norms_allow_larger_rates(measured):
    """Xiong et al. 2020, arXiv:2002.04745, and Wortsman et al. 2023, arXiv:2309.14322"""

    def trained(study, **wanted):
        outcomes = [row["outcome"] == "trained" for row in rows_of(study, **wanted)]
        return f"{sum(outcomes)} of {len(outcomes)}"

    warmed = {(placement, steps): trained("warmup", variant=f"{placement} lr=0.002 warmup={steps}")
              for placement in ("post", "pre") for steps in (0, 200)}  # fmt: skip
    assert warmed == {
        ("post", 0): "0 of 5", ("post", 200): "5 of 5", ("pre", 0): "5 of 5", ("pre", 200): "5 of 5"
    }  # fmt: skip
    edges = {name: trained("qk_norm_edges", variant=f"lr=0.1 qk_norm={name}")
             for name in ("none", "head")}  # fmt: skip
    assert edges == {"none": "0 of 5", "head": "5 of 5"}
    measured("post trains in 0 of 5 without and 5 of 5 with a warm-up, pre in 10 of 10")
    measured("at the rate 0.1 5 of 5 train with norms of queries and keys, 0 of 5 without")


@pytest.mark.nightly
@pytest.mark.goal("Q7")
def test_a_committed_row_comes_out_again_from_its_saved_config(tmp_path, measured):
    """By the code of its commit, bitwise; by today's, as near as the noise of seeds."""
    if not (text := os.environ.get("TINYSHAKESPEARE")):
        pytest.skip("needs the text of the studies: TINYSHAKESPEARE=FILE")
    study, here = "warmup", HERE.parent
    row = rows_of(study, variant="pre lr=0.002 warmup=200", seed="0")[0]
    packing.extract(HOMES[study] / packing.RUNS, tmp_path)
    code = subprocess.run(
        ["git", "archive", "--prefix=then/", row["commit"]], cwd=here, capture_output=True
    )
    if code.returncode:
        pytest.skip("needs the history of git")
    with tarfile.open(fileobj=io.BytesIO(code.stdout)) as packed:
        packed.extractall(tmp_path, filter="data")
    found = []
    for root in (tmp_path / "then", here):
        command = [sys.executable, str(root / "train.py"), f"data.paths={text}", "tracking=none"]
        command += [f"config={study}/{row['run']}/config.yaml", f"study={root.name}"]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        found.append(json.loads(done.stdout)["val_loss"])
    device = f"{machine.device('cpu')}"
    alike = (row["device"], row["torch"]) == (device, torch.__version__)
    then, now = (abs(loss - float(row["val_loss"])) for loss in found)
    assert then == 0 or (not alike and then <= 2 * NOISE)
    assert now <= 2 * NOISE
    measured(f"{'bitwise' if then == 0 else f'{then:.0e} nats apart'} by the code of its commit")
    measured(f"{now:.0e} nats apart by today's, on {device}")


@pytest.mark.nightly
def test_everything_is_regenerated_to_the_same_bytes(tmp_path, monkeypatch):
    copied = tmp_path / "experiments"
    shutil.copytree(HERE, copied, ignore=shutil.ignore_patterns("report.html", "__pycache__"))
    monkeypatch.setattr(results, "HERE", copied)
    monkeypatch.setattr(packing, "HERE", copied)
    results.regenerate()
    for file in HERE.rglob("*"):
        anew = file.parent.name == "invariances"  # another processor rounds
        if file.is_file() and file.suffix in (".md", ".csv", ".svg") and not anew:
            assert (copied / file.relative_to(HERE)).read_bytes() == file.read_bytes(), file


def make_packable(study, **statuses):
    """A study of runs by name, each with its status and without a row."""
    for name, status in statuses.items():
        (study / name).mkdir(parents=True)
        texts = f'{{"status": "{status}"}}', "a: 1", ""
        for file, text in zip(("summary.json", "config.yaml", "metrics.jsonl"), texts, strict=True):
            (study / name / file).write_text(text)
    (study / "sweep-study.json").write_text("{}")


def test_only_runs_that_have_ended_are_packed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(packing, "HERE", tmp_path)
    assert results.main(["pack", str(tmp_path / "typo")]) == 2
    make_packable(tmp_path / "study", run="running")
    run = tmp_path / "study" / "run"
    assert results.main(["pack", str(tmp_path / "study")]) == 2
    assert "is running; run the sweep again" in capsys.readouterr().err
    assert not (tmp_path / "study" / packing.RUNS).exists()
    (run / "summary.json").write_text('{"status": "diverged"}')
    assert results.main(["pack", str(tmp_path / "study")]) == 0
    first = (tmp_path / "study" / packing.RUNS).read_bytes()
    assert results.main(["pack", str(tmp_path / "study")]) == 0
    assert (tmp_path / "study" / packing.RUNS).read_bytes() == first


def test_a_study_that_is_packed_unfinished_is_unpacked_where_its_command_goes_on(
    tmp_path, monkeypatch, capsys
):
    home = tmp_path / "experiments"
    monkeypatch.setattr(packing, "HERE", home)
    monkeypatch.chdir(tmp_path)
    home.mkdir()
    study = tmp_path / "runs" / "study"
    make_packable(study, first="finished", second="running")
    assert results.main(["unpack", "study"]) == 2
    assert "there are no packed runs" in capsys.readouterr().err
    assert results.main(["pack", "--unfinished", "runs/study"]) == 0
    assert not (home / "study" / packing.RUNS).exists()
    assert results.main(["unpack", "study"]) == 2
    assert "runs/study: is there already" in capsys.readouterr().err
    study.rename(tmp_path / "away")
    assert results.main(["unpack", "study"]) == 0
    left = {str(file.relative_to(study)) for file in study.rglob("*") if file.is_file()}
    run = {f"first/{name}" for name in packing.RECORDED}
    assert left == {"sweep-study.json", *run}
    assert (study / "first" / "config.yaml").read_text() == "a: 1"
    assert results.main(["pack", "runs/study"]) == 0
    assert not (home / "study" / packing.UNFINISHED).exists()
