"""A claim is said to be seen only where the comparison of a study carries it."""

import csv
import itertools
import re
from pathlib import Path
from typing import get_args

import claims
import claims_figure
import pytest
import yaml
from claims import Judged, Part
from run_folders import findings_of, make_study, make_sweep
from scipy import stats

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.verdict import Verdict
from transformer_norms.report.scope import regime

HERE = Path(__file__).parents[2] / "experiments"
SEEN, OTHER, NOT_TOLD = "seen here", "other sign here", "not told apart"


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
        return findings_of(tmp_path / name)

    return make


def losses(seeds, above=0.0):
    return [
        1.9 + 0.01 * seed + above + 0.001 * (-1) ** seed * (above != 0) for seed in range(seeds)
    ]


def found(study, *parts):
    return claims.finding([Judged(part, study) for part in parts])


# A row for each verdict; a column for each of SAYS.
SAYS = ["better", "worse", "equivalent", "different"]
WORDS = {
    "better": [SEEN, OTHER, OTHER, SEEN],
    "worse": [OTHER, SEEN, OTHER, SEEN],
    "equivalent": ["equivalent here", "equivalent here", SEEN, "equivalent here"],
    "not told apart": [NOT_TOLD] * 4,
    "described": ["not tested here"] * 4,
    **dict.fromkeys(
        ("failed", "not decided yet", "best rate not found"), ["not askable here"] * 4
    ),
}  # fmt: skip


def test_every_verdict_has_its_word_for_everything_that_a_claim_may_say():
    assert set(get_args(Verdict)) == set(WORDS)
    assert set(get_args(claims.Says)) == set(SAYS)
    for verdict, words in WORDS.items():
        for says, word in zip(SAYS, words, strict=True):
            assert claims.word_of(says, verdict) == word, (says, verdict)
    every = [word for word in get_args(claims.Word) if word != "mixed"]
    for first, second in itertools.product(every, repeat=2):
        assert claims.common_word([first, second]) == (first if first == second else "mixed")


@pytest.mark.parametrize(
    ("seeds", "above", "says", "word"),
    [
        (5, -0.1, "better", "seen here"),
        (5, 0.1, "better", "other sign here"),
        (5, 0.1, "equivalent", "other sign here"),
        (8, 0.0005, "equivalent", "seen here"),
        (8, 0.0005, "better", "equivalent here"),
        (2, -0.1, "better", "not askable here"),
    ],
)
def test_a_claim_is_seen_only_where_the_comparison_carries_it(study_of, seeds, above, says, word):
    study = study_of(pre=losses(seeds), out=losses(seeds, above))
    assert found(study, Part(says, "out")).startswith(f"*{word}*: out")


def test_parts_that_differ_are_mixed_and_each_has_its_word(study_of):
    study = study_of(pre=losses(5), post=losses(5, -0.1), out=[*losses(4, 0.1), 2.045])
    good, bad = Part("better", "post"), Part("better", "out")
    assert found(study, good, Part("worse", "out")).startswith("*seen here*: post -0.0998")
    mixed = found(study, good, bad)
    assert mixed.startswith("*mixed*: post -0.0998")
    assert mixed.count("*seen here*") == mixed.count("*other sign here*") == 1


def test_a_comparison_that_the_study_did_not_declare_is_described(study_of):
    """It has Student's interval of its pairs and no p. The study's own comparison is not described,
    in either way of asking for it."""
    study = study_of(pre=losses(5), post=losses(5, 0.3), out=[1.93, 1.92, 1.95, 1.93, 1.97])
    assert found(study, Part("better", "out", "post")).startswith(
        "*not tested here*: out - post -0.2"
    )
    assert Judged(Part("better", "out", "post"), study).comparison.p is None
    for part in (Part("worse", "post", "pre"), Part("worse", contrast="post - pre")):
        assert Judged(part, study).comparison is study.comparisons["post"]


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
    study = findings_of(tmp_path)
    words = {"better": SEEN, "different": SEEN, "worse": OTHER, "equivalent": OTHER}
    for says, word in words.items():
        said = found(study, Part(says, contrast=text))
        assert said.startswith(f"*{word}*: (post - pre) under megatron - (post - pre) under gpt2")
        assert " -0.0602 nats (95 % interval" in said
        short = found(study, Part(says, contrast=text, called="post"))
        assert short == said.replace(text, "post")
    assert regime(study).endswith("M training bytes; 2 inits; 5 seeds; not tuned")


def test_a_run_that_failed_is_named_and_bears_no_claim_about_losses(study_of):
    study = study_of({"out": [0, 2]}, pre=losses(5), out=losses(5))
    said = found(study, Part("worse", "out"))
    assert said.startswith("*not askable here*: out: failed to train, out in 2 of 5 (")
    assert "2 diverged" in said


def test_a_side_that_fails_where_the_other_trains_is_worse_if_chance_does_not_explain_it(study_of):
    """scipy's exact test of 5 of 5 against 0 of 5 is 0.008, of 2 of 5 against 0 of 5 is 0.44."""
    assert (
        stats.fisher_exact([[5, 0], [0, 5]]).pvalue
        < 0.05
        < stats.fisher_exact([[2, 3], [0, 5]]).pvalue
    )
    failing = study_of({"out": range(5)}, pre=losses(5), out=losses(5))
    assert found(failing, Part("worse", "out")).startswith("*seen here*: out: failed to train")
    assert found(failing, Part("better", "out")).startswith("*other sign here*")
    base = study_of({"pre": range(5)}, name="base", pre=losses(5), out=losses(5))
    assert found(base, Part("better", "out")).startswith("*seen here*")
    assert "Fisher's p 0.008" in found(base, Part("better", "out"))
    both = study_of({"pre": range(5), "out": range(5)}, name="both", pre=losses(5), out=losses(5))
    assert found(both, Part("better", "out")).startswith("*not askable here*")


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
    assert claims.contradictions("high", studies) == [
        "post is worse than pre here, and better in [low](../low) (post; 5 seeds)"
    ]
    assert claims.contradictions("near", studies) == []
    (line,) = claims.contradictions("low", studies)
    assert "worse in [high](../high) (post; 4 seeds), [same](../same) (post)" in line


def test_a_row_of_the_claims_says_word_regime_and_who_contradicts(study_of, tmp_path):
    studies = {
        "low": study_of(name="low", pre=losses(5), post=losses(5, -0.1)),
        "high": study_of(name="high", pre=losses(5), post=losses(5, 0.1)),
    }
    file = tmp_path / "claims.yaml"
    file.write_text(
        "- claim: Post-norm is better\n  source: Nobody 2020\n  study: low\n"
        "  parts: [{variant: post, says: better}]\n"
    )
    row = (
        claims.claims_table(claims.judge_claims(file, studies), studies, {})
        .splitlines()[-1]
        .split(" | ")
    )
    assert row[2].startswith("*seen here*: post -0.0998 nats")
    assert row[2].endswith("; other sign in [high](high)")
    # 115,072 parameters; 40 steps of 16 sequences of 32 tokens.
    assert row[3] == "0.12 M parameters, 0.02 M training bytes; 2 inits; 5 seeds; not tuned"


def test_the_figure_has_a_line_for_each_difference_that_has_an_interval(study_of, tmp_path):
    studies = {"low": study_of(name="low", pre=losses(5), post=losses(5, -0.1))}
    studies["two"] = study_of(name="two", pre=losses(2), post=losses(2, -0.1))
    file = tmp_path / "claims.yaml"
    part = "  parts: [{variant: post, says: better}]\n"
    file.write_text(
        f"- claim: A\n  source: Nobody 2020\n  study: two\n{part}"
        f"- claim: B\n  source: Nobody 2020\n  study: low\n{part}"
        "- claim: C\n  source: Nobody 2020\n  study: low\n  found: nothing\n"
    )
    claimed = claims.judge_claims(file, studies)
    lines = claims_figure.lines_of(claimed)
    assert [text for text, _ in lines] == ["B", "post"]
    assert claims_figure.passed_by(lines[1][1]) == "none"
    drawn = claims_figure.draw_claims(claimed)
    assert drawn.startswith(b"<?xml")
    assert drawn == claims_figure.draw_claims(claimed)


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
                rows = {row["variant"]: row for row in csv.DictReader(file) if row["variant"]}
            if "contrast" in part:
                variants = {name: _varied(row) for name, row in rows.items()}
                assert find_contrast(part["contrast"], variants)
            else:
                assert {part["variant"], part.get("baseline", part["variant"])} <= set(rows)


def _varied(row: dict[str, str]) -> dict[str, str | bool]:
    """The keys that a study varies and tunes: the columns between the variant and the seed."""
    keys, flags = list(row), {"True": True, "False": False}
    varied = keys[keys.index("variant") + 1 : keys.index("seed")]
    return {key: flags.get(row[key], row[key]) for key in varied}
