"""A claim is said to be seen only where the comparison of a study carries it."""

import csv
import itertools
import re
from pathlib import Path
from typing import get_args

import claims
import claims_figure
import numpy as np
import pytest
import results
import yaml
from claims import Claim, Judged, Part
from pydantic import TypeAdapter
from run_folders import make_study, make_sweep
from scipy import stats

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.verdict import Comparison, Verdict
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.scope import regime

HERE = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def study_of(tmp_path):
    """The findings of placements against `pre`: losses by variant, and seeds that diverged."""

    def make(failed=None, name="study", **losses):
        lost = failed or {}
        make_study(
            tmp_path / name,
            {
                placement: {s: None if s in lost.get(placement, ()) else loss
                            for s, loss in enumerate(values)}
                for placement, values in losses.items()
            },
        )  # fmt: skip
        return findings(read_study([tmp_path / name]))

    return make


def losses(seeds, above=0.0):
    return [
        1.9 + 0.01 * seed + above + 0.001 * (-1) ** seed * (above != 0) for seed in range(seeds)
    ]


def claim_of(*parts, **rest):
    told = {"claim": "A claim", "asked": "published", "question": "norms", "source": "Nobody 2020"}
    return Claim(**told | {"study": "study", "parts": [*parts]} | rest)


def judged(study, says, *named, **rest):
    """The one part of a claim on a study."""
    part = Part(*named, says=says, **rest)
    return Judged(claim_of(part), part, {"study": study}, {})


def said(one):
    return f"{one.word}: {one.numbers}"


# A row for each verdict; a column for each of SAYS.
SAYS = ["better", "worse", "equivalent", "different"]
WORDS = {
    "better": ["seen", "contrary", "contrary", "seen"],
    "worse": ["contrary", "seen", "contrary", "seen"],
    "equivalent": ["equal", "equal", "seen", "equal"],
    "not told apart": ["unclear"] * 4,
    "described": ["untested"] * 4,
    **dict.fromkeys(("failed", "not decided yet", "best rate not found"), ["failed"] * 4),
}


def test_every_verdict_has_its_word_for_everything_that_a_claim_may_say():
    assert set(get_args(Verdict)) == set(WORDS)
    assert set(get_args(claims.Says)) == set(SAYS)
    for verdict, words in WORDS.items():
        for says, word in zip(SAYS, words, strict=True):
            assert claims.word_of(says, verdict) == word, (says, verdict)
    assert set(itertools.chain(*WORDS.values())) == set(get_args(claims.Word)) == {*claims.COLOURS}


@pytest.mark.parametrize(
    ("seeds", "above", "says", "word"),
    [
        (5, -0.1, "better", "seen"),
        (5, 0.1, "better", "contrary"),
        (5, 0.1, "equivalent", "contrary"),
        (8, 0.0005, "equivalent", "seen"),
        (8, 0.0005, "better", "equal"),
        (2, -0.1, "better", "failed"),
    ],
)
def test_a_claim_is_seen_only_where_the_comparison_carries_it(study_of, seeds, above, says, word):
    study = study_of(pre=losses(seeds), out=losses(seeds, above))
    assert judged(study, says, "out").word == word


def test_a_claim_has_one_word_and_counts_the_parts_that_have_it_too(study_of):
    """The one of the first part, with its difference and the interval of the pairs: Student's, for
    two variants alone."""
    study = study_of(pre=losses(5), out=[*losses(4, 0.1), 2.045])
    other = study_of(name="other", pre=losses(5), out=losses(5, -0.1))
    parts = [Part("out"), Part("out", study="other"), Part("out"), Part("out", study="other")]
    claim = claim_of(*parts, says="worse", published=0.45)
    found = {"study": study, "other": other}
    text = claims.claims_text(
        [[Judged(claim, one, found, {}) for one in parts]], {"study": "old/study"}
    )
    (row,) = [line.split(" | ") for line in text.splitlines() if line.startswith("| A claim")]
    differences = [0.1 + 0.001 * (-1) ** seed for seed in range(4)] + [2.045 - 1.94]
    assert row[2:4] == ["🟢 seen", interval_text(differences)]
    assert row[4].endswith(" < 0.1000 published")  # 4.5 bytes a token
    # 115,072 parameters; 40 steps of 16 sequences of 32 tokens.
    tags = "`0.12 M, 0.02 MB` `2 inits, 5 seeds, untuned`"
    assert row[5:] == ["1 of 3, 2 contrary", tags, "[study](old/study) |"]
    assert text.count("1 🟢 seen.") == 1


def interval_text(differences):
    low, high = stats.t.interval(0.95, 4, np.mean(differences), stats.sem(differences))
    return f"{np.mean(differences):+.4f} ({low:.4f} to {high:.4f})"


def test_a_comparison_that_the_study_did_not_declare_is_described(study_of):
    """It has Student's interval of its pairs and no p. The study's own comparison is not described,
    in either way of asking for it."""
    study = study_of(pre=losses(5), post=losses(5, 0.3), out=[1.93, 1.92, 1.95, 1.93, 1.97])
    one = judged(study, "better", "out", "post")
    assert said(one).startswith("untested: -0.2")
    assert one.comparison.p is None
    for one in (
        judged(study, "worse", "post", "pre"),
        judged(study, "worse", contrast="post - pre"),
    ):
        assert one.comparison is study.comparisons["post"]


def test_a_contrast_of_a_claim_is_judged_by_its_own_test(tmp_path):
    """The gains in two settings differ clearly; neither is clearly the other's sign."""
    values, results = {"gpt2": 0.03, "megatron": -0.03}, []
    for (init, gain), placement, seed in itertools.product(
        values.items(), ("pre", "post"), range(5)
    ):
        added = gain * (1 + 0.02 * (-1) ** seed) if placement == "post" else 0.0
        variant = {"init": init, "placement": placement}
        results.append((variant, seed, 1.9 + 0.01 * seed + added))
    text = "(post - pre) under megatron - (post - pre) under gpt2"
    make_sweep(tmp_path, results, contrasts=[text])
    study = findings(read_study([tmp_path]))
    words = {"better": "seen", "different": "seen", "worse": "contrary", "equivalent": "contrary"}
    for says, word in words.items():
        one = judged(study, says, contrast=text)
        assert (one.word, one.name, one.numbers[:8]) == (word, text, "-0.0602 ")
        assert judged(study, says, contrast=text, called="post").name == "post"
    assert regime(study).endswith("M training bytes; 2 inits; 5 seeds; not tuned")


def test_a_run_that_failed_is_named_and_bears_no_claim_about_losses(study_of):
    study = study_of({"out": [0, 2]}, pre=losses(5), out=losses(5))
    assert said(judged(study, "worse", "out")).startswith("failed: 2 of 5 runs failed")


def test_a_side_that_fails_where_the_other_trains_is_worse_if_chance_does_not_explain_it(study_of):
    """scipy's exact test of 5 of 5 against 0 of 5 is 0.008, of 2 of 5 against 0 of 5 is 0.44."""
    assert (
        stats.fisher_exact([[5, 0], [0, 5]]).pvalue
        < 0.05
        < stats.fisher_exact([[2, 3], [0, 5]]).pvalue
    )
    failing = study_of({"out": range(5)}, pre=losses(5), out=losses(5))
    assert said(judged(failing, "worse", "out")) == "seen: 5 of 5 runs failed, p 0.008"
    assert judged(failing, "better", "out").word == "contrary"
    base = study_of({"pre": range(5)}, name="base", pre=losses(5), out=losses(5))
    assert said(judged(base, "better", "out")) == "seen: 5 of 5 runs failed, p 0.008"
    both = study_of({"pre": range(5), "out": range(5)}, name="both", pre=losses(5), out=losses(5))
    assert judged(both, "better", "out").word == "failed"


@pytest.mark.parametrize(
    ("says", "word"), [("worse", "seen"), ("better", "contrary"), (None, "untested")]
)
def test_what_a_tool_measured_is_judged_by_its_own_test(says, word):
    value = Comparison((0, 1, 2), difference=0.1, interval=(0.05, 0.15), p=0.01, verdict="worse")
    part = Part(measured="4 blocks", says=says)
    one = Judged(claim_of(part), part, {}, {"study": {"4 blocks": value}})
    assert said(one) == f"{word}: +0.100 (0.050 to 0.150)"


def test_studies_with_other_signs_name_each_other(study_of):
    studies = {
        "low": study_of(name="low", pre=losses(5), post=losses(5, -0.1), out=losses(5, 0.1)),
        "high": study_of(name="high", pre=losses(4), post=losses(4, 0.1), out=losses(4, 0.1)),
        "same": study_of(name="same", pre=losses(5), post=losses(5, 0.2)),
        "near": study_of(name="near", pre=losses(8), post=losses(8, 0.0005)),
    }
    opposite = claims.opposite_signs(studies)
    assert opposite == {
        ("low", "post"): [("high", "post"), ("same", "post")],
        ("high", "post"): [("low", "post")],
        ("same", "post"): [("low", "post")],
    }
    homes = {name: name for name in studies} | {"low": "old/low"}
    assert claims.contradictions("high", studies, homes) == [
        "post is worse than pre here, and better in [low](../old/low) (post; 5 seeds)"
    ]
    assert claims.contradictions("near", studies, homes) == []
    (line,) = claims.contradictions("low", studies, homes)
    assert "worse in [high](../../high) (post; 4 seeds), [same](../../same) (post)" in line


def test_the_file_has_every_part_of_a_claim_with_all_that_is_known_of_it(study_of, tmp_path):
    studies = {
        "low": study_of(name="low", pre=losses(5), post=losses(5, -0.1)),
        "high": study_of(name="high", pre=losses(5), post=losses(5, 0.1)),
    }
    file = tmp_path / "claims.yaml"
    file.write_text(
        "- claim: Post-norm is better\n  asked: own\n  question: placements\n"
        "  source: Nobody 2020\n"
        "  study: low\n  says: better\n  parts: [{variant: post}, {variant: post, study: high}]\n"
    )
    judged = claims.judge_claims(file, studies, {})
    one, other = csv.DictReader(claims.claims_csv(judged, studies).decode().splitlines())
    assert [one["row"], one["here"], one["other_sign_in"]] == ["yes", "seen", "high"]
    assert [other["row"], other["here"], other["other_sign_in"]] == ["no", "contrary", "low"]
    differences = [-0.1 + 0.001 * (-1) ** seed for seed in range(5)]
    low, high = stats.t.interval(0.95, 4, np.mean(differences), stats.sem(differences))
    expected = [np.mean(differences), low, high]
    assert [float(one[key]) for key in ("difference", "low", "high")] == pytest.approx(
        expected, abs=1e-5
    )
    assert one["p"] == f"{round(stats.ttest_1samp(differences, 0).pvalue, 5)}"
    assert one["regime"] == "0.12 M parameters, 0.02 M training bytes; 2 inits; 5 seeds; not tuned"


def test_the_figure_has_a_line_for_each_claim_whose_difference_has_an_interval(study_of):
    studies = {"low": study_of(name="low", pre=losses(5), post=losses(5, -0.1))}
    studies["two"] = study_of(name="two", pre=losses(2), post=losses(2, -0.1))
    part = Part("post", says="better")
    claimed = [
        [Judged(claim_of(part, claim=claim, **rest), part, studies, {})]
        for claim, rest in {
            "few seeds": {"study": "two"},
            "shown": {"study": "low", "published": 0.01},
            "another unit": {"study": "low", "unit": "slope"},
            "another question": {"study": "low", "question": "changes"},
        }.items()
    ]
    assert [one.claim.claim for one in claims_figure.lines_of(claimed, "norms")] == ["shown"]
    drawn = claims_figure.draw_claims(claimed, "norms")
    assert drawn.startswith(b"<?xml")
    assert drawn == claims_figure.draw_claims(claimed, "norms")


def test_every_claim_here_is_short_and_names_its_source_and_studies_that_are_here():
    listed = TypeAdapter(list[Claim]).validate_python(
        yaml.safe_load((HERE / "claims.yaml").read_text())
    )
    homes = results.find_homes()
    assert len({claim.claim for claim in listed}) == len(listed) > 10
    for claim in listed:
        assert len(claim.claim.split()) <= 8
        assert claim.asked == "own" or re.search(r"\b(19|20)\d\d\b", claim.source)
        for part in claim.parts:
            home = homes[part.study or claim.study]
            if part.measured:
                continue
            assert part.says or claim.says
            with open(home / "results.csv") as file:
                rows = {row["variant"]: row for row in csv.DictReader(file) if row["variant"]}
            if part.contrast:
                variants = {name: _varied(row) for name, row in rows.items()}
                assert find_contrast(part.contrast, variants)
            else:
                assert {part.variant, part.baseline or part.variant} <= set(rows)


def _varied(row: dict[str, str]) -> dict[str, str | bool | int]:
    """The keys that a study varies and tunes: the columns between the variant and the seed."""
    keys, flags = list(row), {"True": True, "False": False}
    varied = keys[keys.index("variant") + 1 : keys.index("seed")]
    return {
        key: int(text) if (text := row[key]).isdigit() else flags.get(text, text) for key in varied
    }
