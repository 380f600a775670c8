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
from reports import findings_of
from run_folders import make_study, make_sweep
from scipy import stats

from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.verdict import Verdict
from transformer_norms.report.scope import regime

HERE = Path(__file__).parents[2] / "experiments"
CLAIM = {"claim": "Post-norm is better", "source": "Nobody 2020",
         "parts": [{"variant": "post", "says": "better"}]}  # fmt: skip
SEEN, OTHER, NOT_TOLD = "seen here", "other sign here", "not told apart"


@pytest.fixture
def study_of(tmp_path):
    """The findings of placements against `pre`: losses by variant, and seeds that diverged."""

    def make(failed={}, name="study", **losses):
        make_study(tmp_path / name, {
            placement: {s: None if s in failed.get(placement, ()) else loss
                        for s, loss in enumerate(values)}
            for placement, values in losses.items()
        })  # fmt: skip
        return findings_of(tmp_path / name)

    return make


def losses(seeds, above=0.0):
    return [1.9 + 0.01 * s + above + 0.001 * (-1) ** s * (above != 0) for s in range(seeds)]


def found(study, *parts):
    return claims.finding([Judged(part, study) for part in parts])


# A row for each verdict; a column for each of SAYS.
SAYS = ["better", "worse", "equivalent", "different"]
EQUIVALENT, FAILED = "equivalent here", ("failed", "not decided yet", "best rate not found")
WORDS = {
    "better": [SEEN, OTHER, OTHER, SEEN],
    "worse": [OTHER, SEEN, OTHER, SEEN],
    "equivalent": [EQUIVALENT, EQUIVALENT, SEEN, EQUIVALENT],
    "not told apart": [NOT_TOLD] * 4,
    "described": ["not tested here"] * 4,
} | dict.fromkeys(FAILED, ["not askable here"] * 4)


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
        (5, -0.1, "better", SEEN),
        (5, 0.1, "better", OTHER),
        (5, 0.1, "equivalent", OTHER),
        (8, 0.0005, "equivalent", SEEN),
        (8, 0.0005, "better", EQUIVALENT),
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
    said = found(study, Part("better", "out", "post"))
    assert said.startswith("*not tested here*: out - post -0.2")
    assert Judged(Part("better", "out", "post"), study).comparison.p is None
    for part in (Part("worse", "post", "pre"), Part("worse", contrast="post - pre")):
        assert Judged(part, study).comparison is study.comparisons["post"]


def test_a_contrast_of_a_claim_is_judged_by_its_own_test(tmp_path):
    """The gains in two settings differ clearly; neither is clearly the other's sign."""
    values, text = (
        {"gpt2": 0.03, "megatron": -0.03},
        "(post - pre) under megatron - (post - pre) under gpt2",
    )
    make_sweep(tmp_path, [
        ({"init": init, "placement": placement}, seed,
         1.9 + 0.01 * seed + gain * (1 + 0.02 * (-1) ** seed) * (placement == "post"))
        for init, gain in values.items() for placement in ("pre", "post") for seed in range(5)
    ], contrasts=[text])  # fmt: skip
    study = findings_of(tmp_path)
    words = {"better": SEEN, "different": SEEN, "worse": OTHER, "equivalent": OTHER}
    for says, word in words.items():
        said = found(study, Part(says, contrast=text))
        assert said.startswith(f"*{word}*: {text} -0.0602 nats (95 % interval")
        short = found(study, Part(says, contrast=text, called="post"))
        assert short == said.replace(text, "post")
    assert regime(study).endswith("M training bytes; 2 inits; 5 seeds; not tuned")


@pytest.mark.parametrize(
    ("failed", "says", "said"),
    [
        ({"out": range(5)}, "worse", "*seen here*: out: failed to train"),
        ({"out": range(5)}, "better", "*other sign here*"),
        ({"pre": range(5)}, "better", "*seen here*"),
        ({"pre": range(5), "out": range(5)}, "better", "*not askable here*"),
        ({"out": [0, 2]}, "worse", "*not askable here*: out: failed to train, out in 2 of 5 ("),
    ],
)
def test_a_side_that_fails_where_the_other_trains_is_worse_if_chance_does_not_explain_it(
    study_of, failed, says, said
):
    """By scipy's exact test of so many of 5 against so many."""
    text = found(study_of(failed, pre=losses(5), out=losses(5)), Part(says, "out"))
    assert text.startswith(said)
    counts = [len(failed.get(side, ())) for side in ("pre", "out")]
    p = stats.fisher_exact([[n, 5 - n] for n in counts]).pvalue
    assert (p < 0.05) == ("askable" not in said)
    assert p >= 0.05 or f"Fisher's p {p:.3f}" in text
    assert f"{max(counts)} diverged" in text


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
    studies = {name: study_of(name=name, pre=losses(5), post=losses(5, above))
               for name, above in (("low", -0.1), ("high", 0.1))}  # fmt: skip
    file = tmp_path / "claims.yaml"
    file.write_text(yaml.safe_dump([CLAIM | {"study": "low"}]))
    table = claims.claims_table(claims.judge_claims(file, studies), studies, {})
    row = table.splitlines()[-1].split(" | ")
    assert row[2].startswith("*seen here*: post -0.0998 nats")
    assert row[2].endswith("; other sign in [high](high)")
    # 115,072 parameters; 40 steps of 16 sequences of 32 tokens.
    assert row[3] == "0.12 M parameters, 0.02 M training bytes; 2 inits; 5 seeds; not tuned"


def test_the_figure_has_a_line_for_each_difference_that_has_an_interval(study_of, tmp_path):
    studies = {name: study_of(name=name, pre=losses(seeds), post=losses(seeds, -0.1))
               for name, seeds in (("low", 5), ("two", 2))}  # fmt: skip
    listed = [CLAIM | {"claim": "A", "study": "two"}, CLAIM | {"claim": "B", "study": "low"}]
    listed.append({"claim": "C", "source": "Nobody 2020", "study": "low", "found": "nothing"})
    file = tmp_path / "claims.yaml"
    file.write_text(yaml.safe_dump(listed))
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
