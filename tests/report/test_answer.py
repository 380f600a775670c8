"""What a page says first, and that it says no more than the numbers carry."""

import numpy as np
import pytest
from reports import findings_of, study_of
from run_folders import PRE, SANDWICH, by_placement, edit, make_study, make_sweep, trials_at
from scipy import stats

from transformer_norms.comparison.sweep_record import Tuned
from transformer_norms.report.answer import answer, sentence
from transformer_norms.report.fairness import confounds
from transformer_norms.report.left_out import left_out_lines
from transformer_norms.report.table import table

POST = {seed: loss - 0.02 - seed / 1000 for seed, loss in PRE.items()}


def test_an_unfinished_study_says_so_first(tmp_path):
    make_study(tmp_path / "begun", {"pre": PRE, "post": PRE})
    for run in list((tmp_path / "begun").glob("post*"))[:2]:
        edit(run, status="running")
    make_sweep(tmp_path / "tuned", trials=trials_at({"pre": {1e-3: 2.5}}))
    said = [left_out_lines(study_of(tmp_path / name), by_name=False) for name in ("begun", "tuned")]
    assert said == [["not finished: 2 of 6 runs have no result (2 running)"],
                    ["not finished: results are not planned yet"]]  # fmt: skip
    assert answer(findings_of(tmp_path / "tuned")).lead == "1 variant ran; nothing is compared."


def test_what_was_tuned_is_no_unasked_difference_and_inits_are_one(tmp_path):
    rates = {"pre": 1e-3, "deepnorm": 1e-2}
    make_sweep(
        tmp_path, [({"placement": p}, 0, 2.3, {"optimizer.lr": rates[p]}) for p in rates],
        tune={"optimizer.lr": [*rates.values()]}, tune_seeds=[9],
    )  # fmt: skip
    evidence = findings_of(tmp_path)
    deepnorm = evidence.study.variant("deepnorm")
    brought = ["embed_scale", "logit_scale", "final_norm", "init", "lr_factor"]
    assert confounds(evidence.study, deepnorm, evidence.study.variant("pre")) == brought
    texts = [text.replace("optimizer.lr_factor", "") for text in evidence.differences["deepnorm"]]
    assert not any("optimizer.lr" in text for text in texts)


@pytest.mark.parametrize(
    ("placements", "groups", "lead"),
    [
        (["pre", "post", "peri"], ["failed", "not decided yet"],
         "the same with each of 3 seeds, which therefore count as one (0 nats so far)."),
        (["pre", "post"], ["failed"], "post failed to train at every value tried (2 runs)."),
    ],
    ids=["with others", "alone"],
)  # fmt: skip
def test_what_diverged_at_every_rate_is_in_the_answer(tmp_path, placements, groups, lead):
    """Each is tuned at two rates; post diverged at both, and so has no results planned."""
    best = {"optimizer.lr": 1e-2}
    at = {p: None if p == "post" else 2.5 for p in placements}
    trials = trials_at({p: {1e-3: at[p], 1e-2: at[p]} for p in placements})
    results = by_placement({p: PRE for p in placements if p != "post"}, best)
    chosen = [Tuned({"placement": p}, None if p == "post" else best, []) for p in placements]
    make_sweep(tmp_path, results, trials, tuned=chosen)
    found = findings_of(tmp_path)
    result = answer(found)
    assert table(found)["verdict"][placements.index("post")] == "failed"
    assert sentence(found, found.study.variant("post")) == (
        "post failed to train at every value tried (2 runs)"
    )
    assert [v.name for v in result.groups["failed"]] == ["post"]
    assert [*result.groups] == groups
    assert result.lead.endswith(lead)


STARTS = "; post and pre have different starts (init=transformer2017 and init=mup)."


@pytest.mark.parametrize(
    ("losses", "end"),
    [
        ({"pre": PRE, "post": POST}, STARTS),
        ({"pre": PRE, "peri": POST}, " 3 seeds)."),
        ({"pre": POST, "post": PRE, "peri": PRE, "deepnorm": PRE}, "; 2 of 3 variants have "
         "another start (init) than their baseline."),
        ({"pre": {0: 2.3}, "post": {0: 2.2}}, STARTS),
        ({"pre": {0: 2.3, 1: None}, "post": {0: 2.2, 1: 2.3}}, STARTS),
        ({"mup": PRE, "gpt2": POST}, " 3 seeds)."),  # it was asked about starts
    ],
)  # fmt: skip
def test_the_lead_says_in_its_sentence_that_variants_have_different_starts(tmp_path, losses, end):
    axis = "init" if "mup" in losses else "placement"
    results = [({axis: name}, seed, loss)
               for name, own in losses.items() for seed, loss in own.items()]  # fmt: skip
    make_sweep(tmp_path, results, baseline={axis: [*losses][0]})
    lead = answer(findings_of(tmp_path)).lead
    assert lead.endswith(end)
    assert lead.count(".  ") == lead.count(". ") == 0


def test_a_verdict_that_another_variant_changed_says_so_with_both_words(tmp_path):
    """The level is halved. The variance is shrunk to the mean of two with the weight of a seed."""
    far = {0: 2.3, 1: 2.9, 2: 2.4}
    make_study(tmp_path / "one", {"pre": PRE, "sandwich": SANDWICH})
    make_study(tmp_path / "two", {"pre": PRE, "sandwich": SANDWICH, "post": far})
    alone, both = (findings_of(tmp_path / name) for name in ("one", "two"))
    x, y = (np.array([one[seed] - PRE[seed] for seed in PRE]) for one in (SANDWICH, far))
    for found, variance, freedom, k in (
        (alone, x.var(ddof=1), 2, 1),
        (both, ((x.var(ddof=1) + y.var(ddof=1)) / 2 + 2 * x.var(ddof=1)) / 3, 3, 2),
    ):
        half = stats.t.ppf(1 - 0.05 / k / 2, freedom) * np.sqrt(variance / 3)
        bounds = found.comparisons["sandwich"].bounds
        assert bounds == pytest.approx((x.mean() - half, x.mean() + half))
    changed = "; judged alone, by its own variance, it would be better"
    first, second = answer(alone), answer(both)
    assert first.lead.startswith("sandwich is better than pre by 0.0187 nats (95 % interval")
    assert changed not in first.lead
    assert {word: len(members) for word, members in second.groups.items()} == {"not told apart": 2}
    assert "Each variant is compared with its baseline, and not with the others." in second.notes
    said = sentence(both, both.study.variant("sandwich"))
    assert said.startswith("sandwich is not told apart from pre")
    assert said.endswith(changed)
    assert changed not in sentence(both, both.study.variant("post"))


def test_declared_contrasts_are_the_family_and_all_else_is_described(tmp_path):
    losses = {"pre": PRE, "sandwich": SANDWICH, "peri": PRE, "post": {0: None, 1: None, 2: 2.31}}
    make_study(tmp_path, losses, contrasts=["sandwich - peri"])
    found = findings_of(tmp_path, contrasts=["peri - sandwich"])
    declared, typed = (found.contrasts[text] for text in ("sandwich - peri", "peri - sandwich"))
    pairs = found.comparisons
    assert (declared.verdict, typed.verdict, found.compared_together) == ("better", "described", 1)
    assert [pairs[n].verdict for n in ("sandwich", "post")] == ["described", "failed"]
    for c in (typed, *pairs.values()):
        assert c.p is c.bounds is c.fisher is None
    assert pairs["sandwich"].interval == declared.interval
    lead = answer(found).lead
    assert lead.startswith("sandwich is better than peri by 0.0187 nats (95 % interval")
    make_study(tmp_path / "two", losses, contrasts=["sandwich - peri", "pre - sandwich"])
    assert answer(findings_of(tmp_path / "two")).lead == (
        "2 contrasts are declared (better 1, worse 1); 2 of 2 variants have "
        "another start (init) than their baseline."
    )
