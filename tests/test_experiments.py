"""What experiments/ says is what its committed runs carry, and no more."""

import csv
import json
import re
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import claims
import ngrams
import pytest
import results
import yaml
from claims import Part, _finding
from losses import compare_pairs

from transformer_norms.comparison.outcomes import Outcomes

HERE = Path(__file__).parents[1] / "experiments"
STUDIES = sorted(archive.parent.name for archive in HERE.glob(f"*/{results.RUNS}"))
READMES = sorted(HERE.glob("*/README.md"))
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
    with open(HERE / study / "results.csv") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    with tarfile.open(HERE / study / results.RUNS) as packed:
        names = [Path(name) for name in packed.getnames()]
        summaries = {
            Path(name).parts[1]: json.load(packed.extractfile(name))
            for name in packed.getnames()
            if name.endswith("/summary.json")
        }
    assert {name.name for name in names} <= {
        *results.RECORDED, *(n.name for n in names if n.name.startswith("sweep-"))
    }  # fmt: skip
    assert summaries.keys() == rows.keys()
    for run, row in rows.items():
        for key in ("status", "val_loss", "commit", "identity", "batch_chain", "initial_loss"):
            assert row[key] == str("" if summaries[run][key] is None else summaries[run][key])
    assert {row["dirty"] for row in rows.values()} == {"False"}
    assert not {row["status"] for row in rows.values()} - {"finished", "diverged"}


def test_a_packed_run_without_n_grams_gets_those_of_its_data_and_of_the_tokens_it_would_read(
    tmp_path,
):
    results._unpack(HERE / "norms" / results.RUNS, tmp_path)
    known = json.loads((HERE / "ngrams.json").read_text())
    summaries = [json.loads(file.read_text()) for file in tmp_path.glob("norms/*/summary.json")]
    assert {summary["status"] for summary in summaries} == {"finished", "diverged"}
    for summary in summaries:
        data = summary["data"]
        assert data["ngram_tokens"] == 600 * 12 * 64
        assert data["ngrams"] == known[data["fingerprint"]]["460800"]["ngrams"]
        # The unigram of the record is of all the text, and smoothed in another way.
        assert data["ngrams"]["val"][0] == pytest.approx(data["unigram"], abs=1e-3)


def test_n_grams_are_counted_on_no_other_text_than_that_of_the_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ngrams, "FILE", tmp_path / "ngrams.json")
    results._extract(HERE / "very_deep" / results.RUNS, tmp_path)
    (tmp_path / "other.txt").write_text("another text\n" * 1000)
    with pytest.raises(ValueError, match=r"other\.txt: is not the text of rmsnorm-deepnorm"):
        ngrams.write_ngrams(tmp_path, tmp_path / "other.txt")
    assert not ngrams.FILE.exists()


@pytest.mark.parametrize("study", [*STUDIES, "norm_removal"])
def test_no_number_in_prose_is_other_than_what_was_computed(study):
    """A number with decimals that a README states of losses stands among those that are written by
    the command, or rounds one of them."""
    text = (HERE / study / "README.md").read_text()
    block = BLOCK.search(text)
    prose = text.replace(block[1], "")
    # The answer and the limits; the setting's numbers are those of the command.
    said = re.search(r"\*\*Answer\.\*\*(.*)\*\*Run\*\*", prose, re.DOTALL)[1]
    table = HERE / study / "table.md"  # norm_removal, which is no sweep, has none
    known = block[1] + (table.read_text() if table.exists() else "")
    computed = [abs(float(number)) for number in re.findall(r"\d+\.\d+", known)]
    for number in re.findall(r"(?<![\w./:])\d+\.\d+(?![\w:])", said):
        half = 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9
        assert any(abs(float(number) - one) <= half for one in computed), number


@pytest.mark.nightly
def test_everything_is_regenerated_to_the_same_bytes(tmp_path, monkeypatch):
    copied = tmp_path / "experiments"
    shutil.copytree(HERE, copied, ignore=shutil.ignore_patterns("report.html", "__pycache__"))
    monkeypatch.setattr(results, "HERE", copied)
    results.regenerate()
    for file in HERE.rglob("*"):
        anew = file.parent.name in ("init_gradients", "invariances")  # another processor rounds
        if file.is_file() and file.suffix in (".md", ".csv", ".svg") and not anew:
            assert (copied / file.relative_to(HERE)).read_bytes() == file.read_bytes(), file


# ------------------------------------------------------------------------------------- claims


def study_of(failed=None, **losses):
    """Outcomes by variant, each compared with `pre`, as a report has them."""
    lost = failed or {}
    outcomes = {
        name: Outcomes(
            {s: loss for s, loss in enumerate(values) if s not in lost.get(name, ())},
            dict.fromkeys(lost.get(name, ()), "diverged"),
        )
        for name, values in losses.items()
    }
    pairs = {name: (own, outcomes["pre"]) for name, own in outcomes.items() if name != "pre"}
    variants = {name: SimpleNamespace(name=name, baseline="pre") for name in losses}
    study = SimpleNamespace(effect=0.005, variants=[*variants.values()], variant=variants.get)
    return SimpleNamespace(outcomes=outcomes, comparisons=compare_pairs(pairs, 0.005), study=study)


def losses(seeds, above=0.0):
    return [
        1.9 + 0.01 * seed + above + 0.001 * (-1) ** seed * (above != 0) for seed in range(seeds)
    ]


def found(study, *parts):
    return _finding(parts, study)


@pytest.mark.parametrize(
    ("seeds", "above", "says", "word"),
    [
        (5, -0.1, "better", "reproduced: "),
        (3, -0.1, "better", "screened, and for it: "),
        (5, 0.1, "better", "not reproduced: "),
        (3, 0.1, "better", "screened, and against it: "),
        (5, 0.1, "worse", "reproduced: "),
        (5, 0.1, "equivalent", "not reproduced: "),
        (5, 0.0005, "better", "not reproduced: "),  # it is shown to be as good
        (8, 0.0005, "equivalent", "reproduced: "),
        (2, -0.002, "better", "not distinguishable at this size: "),
        (1, -0.1, "better", "not distinguishable at this size: "),
    ],
)
def test_a_claim_is_said_to_be_reproduced_only_where_the_comparison_carries_it(
    seeds, above, says, word
):
    study = study_of(pre=losses(seeds), other=losses(seeds, above))
    assert found(study, Part("other", says)).startswith(word)


def test_every_part_of_a_claim_must_show_and_one_that_is_against_it_decides():
    scattered, bad = [1.9, 1.94, 1.89, 1.96, 1.93], [2.0, 2.012, 2.02, 2.033, 2.04]
    study = study_of(pre=losses(5), good=losses(5, -0.1), bad=bad, scattered=scattered)
    good, bad = Part("good", "better"), Part("bad", "better")
    noisy = Part("scattered", "worse")
    assert found(study, good, Part("bad", "worse")).startswith("reproduced: ")
    assert found(study, good, bad).startswith("not reproduced: ")
    assert found(study, good, noisy).startswith("not distinguishable")
    assert found(study, Part("good", "better", "bad")).startswith("reproduced: good - bad -0.2")


def test_a_pair_of_a_claims_own_is_one_more_of_the_studys_comparisons():
    """Behind a clearer one, Holm takes its p twice, and the same pair's in the report."""
    values = [1.9 + 0.01 * n for n in range(5)]
    near = [value + 0.02 + 0.014 * (-1) ** n for n, value in enumerate(values)]
    study = study_of(pre=values, near=near, far=[value + 0.5 for value in near])
    alone = compare_pairs({"near": (study.outcomes["near"], study.outcomes["pre"])}, 0.005)["near"]
    assert alone.verdict == "worse"
    own = claims._compared(Part("near", "worse", "pre"), study)
    assert own.p_holm == pytest.approx(2 * alone.p)
    assert found(study, Part("near", "worse", "pre")).startswith("not distinguishable")


def test_a_run_that_failed_is_named_and_bears_no_claim_about_losses():
    study = study_of({"other": [0, 2]}, pre=losses(5), other=[5.5, *losses(5)[1:2], 5.5, 1.9, 1.9])
    said = found(study, Part("other", "worse"))
    assert said.startswith("not distinguishable at this size: other: failed, other in 2 of 5 (")
    assert "pre in 0 of 5" in said


def test_every_published_claim_here_names_its_source_and_a_study_that_is_here():
    listed = yaml.safe_load((HERE / "claims.yaml").read_text())
    assert len(listed) > 10
    for one in listed:
        claim = claims.Claim(**{**one, "parts": None})
        assert re.search(r"\b(19|20)\d\d\b", claim.source)
        assert (HERE / claim.study / "README.md").exists()
        assert bool(one.get("parts")) != bool(claim.found)
        for part in one.get("parts", []):
            with open(HERE / claim.study / "results.csv") as file:
                there = {row["variant"] for row in csv.DictReader(file)}
            assert {part["variant"], part.get("baseline", part["variant"])} <= there


def test_only_runs_that_have_ended_are_packed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "HERE", tmp_path)
    assert results.main(["pack", str(tmp_path / "typo")]) == 2
    run = tmp_path / "study" / "run"
    run.mkdir(parents=True)
    (tmp_path / "study" / "sweep-study.json").write_text("{}")
    for name, text in {"summary.json": '{"status": "running"}', "config.yaml": ""}.items():
        (run / name).write_text(text)
    (run / "metrics.jsonl").write_text("")
    assert results.main(["pack", str(tmp_path / "study")]) == 2
    assert "is running; run the sweep again" in capsys.readouterr().err
    assert not (tmp_path / "study" / results.RUNS).exists()
    (run / "summary.json").write_text('{"status": "diverged"}')
    assert results.main(["pack", str(tmp_path / "study")]) == 0
    first = (tmp_path / "study" / results.RUNS).read_bytes()
    assert results.main(["pack", str(tmp_path / "study")]) == 0
    assert (tmp_path / "study" / results.RUNS).read_bytes() == first
