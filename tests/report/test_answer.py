"""What a page says first, and that it says no more than the numbers carry."""

import pytest
from run_folders import (
    PRE,
    by_placement,
    edit,
    make_study,
    make_sweep,
)

from transformer_norms.comparison.sweep_record import Tuned
from transformer_norms.report.answer import answer
from transformer_norms.report.fairness import confounds
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.left_out import left_out_summary
from transformer_norms.report.table import unusual_runs


def test_a_better_variant_is_the_lead(tmp_path):
    better = {seed: loss - 0.02 - seed / 1000 for seed, loss in PRE.items()}
    make_study(tmp_path, {"pre": PRE, "sandwich": better, "peri": {s: PRE[s] + 0.3 for s in PRE}})
    evidence = findings(read_study([tmp_path]))
    result = answer(evidence)
    assert result.lead.startswith("sandwich is better than pre by 0.02")
    assert [(g.verdict, [v.name for v, _ in g.members]) for g in result.groups][0] == (
        "better", ["sandwich"]
    )  # fmt: skip
    assert "Each variant is compared with its baseline, and not with the others." in result.notes


POST = {seed: loss - 0.02 - seed / 1000 for seed, loss in PRE.items()}


@pytest.mark.parametrize(
    ("losses", "end"),
    [
        ({"pre": PRE, "post": POST}, "; post and pre have different starts "
         "(init=transformer2017 and init=mup)."),
        ({"pre": PRE, "peri": POST}, " 3 seeds)."),
        ({"pre": POST, "post": PRE, "peri": PRE, "deepnorm": PRE}, " with 3 seeds; 2 of 3 variants "
         "have another start (init) than their baseline."),
        ({"pre": {0: 2.3}, "post": {0: 2.2}}, "; post and pre have different starts "
         "(init=transformer2017 and init=mup)."),
        ({"pre": {0: 2.3, 1: None}, "post": {0: 2.2, 1: 2.3}}, "; post and pre have different "
         "starts (init=transformer2017 and init=mup)."),
    ],
)  # fmt: skip
def test_the_lead_says_in_its_sentence_that_variants_have_different_starts(tmp_path, losses, end):
    make_study(tmp_path, losses)
    lead = answer(findings(read_study([tmp_path]))).lead
    assert lead.endswith(end)
    assert lead.count(".  ") == lead.count(". ") == 0


def test_the_lead_says_nothing_of_starts_that_were_asked_about(tmp_path):
    losses = {"mup": PRE, "gpt2": POST}
    results = [({"init": one}, seed, losses[one][seed]) for one in losses for seed in PRE]
    make_sweep(tmp_path, results, baseline={"init": "mup"})
    assert answer(findings(read_study([tmp_path]))).lead.endswith(" 3 seeds).")


def test_a_lower_mean_is_named_with_what_it_does_not_carry(tmp_path):
    make_study(tmp_path, {"pre": PRE, "sandwich": {0: 2.2, 1: 2.33, 2: 2.29}})
    (note, *_) = answer(findings(read_study([tmp_path]))).notes
    p = findings(read_study([tmp_path])).comparisons["sandwich"].p_holm
    assert note == (
        "The lowest mean is that of sandwich, which these seeds do not show to be better: "
        f"p {p:.2g} after Holm's correction."
    )


def test_an_unfinished_study_says_so_first(tmp_path):
    make_study(tmp_path, {"pre": PRE, "post": PRE})
    for run in list(tmp_path.glob("post*"))[:2]:
        edit(run, status="running")
    assert left_out_summary(read_study([tmp_path])) == [
        "not finished: 2 of 6 runs have no result (2 running)"
    ]


def test_a_run_that_finished_above_where_it_began_is_pointed_out(tmp_path):
    make_study(tmp_path, {"pre": PRE, "post": {**PRE, 1: 6.25}})
    (line,) = unusual_runs(findings(read_study([tmp_path])))
    assert "post-s1" in line
    assert "a validation loss of 6.2500, above its initial loss of 5.5000" in line


def test_what_was_tuned_is_no_unasked_difference_and_inits_are_one(tmp_path):
    rates = {"pre": 1e-3, "deepnorm": 1e-2}
    make_sweep(
        tmp_path, [({"placement": p}, 0, 2.3, {"optimizer.lr": rates[p]}) for p in rates],
        tune={"optimizer.lr": [*rates.values()]}, tune_seeds=[9],
    )  # fmt: skip
    evidence = findings(read_study([tmp_path]))
    deepnorm = evidence.study.variant("deepnorm")
    brought = ["embed_scale", "logit_scale", "final_norm", "init", "lr_factor"]
    assert confounds(evidence.study, deepnorm) == brought
    texts = [text.replace("optimizer.lr_factor", "") for text in evidence.differences["deepnorm"]]
    assert not any("optimizer.lr" in text for text in texts)


def lost_study(study, *placements):
    """Each tuned at two rates; post diverged at both, and so has no results planned."""
    best = {"optimizer.lr": 1e-2}
    trials = [
        ({"placement": p}, 100, None if p == "post" else 2.5, {"optimizer.lr": rate})
        for p in placements
        for rate in (1e-3, 1e-2)
    ]
    results = by_placement({p: PRE for p in placements if p != "post"}, best)
    chosen = [Tuned({"placement": p}, None if p == "post" else best, []) for p in placements]
    return make_sweep(study, results, trials, tuned=chosen)


def test_what_diverged_at_every_rate_is_in_the_answer(tmp_path):
    lost_study(tmp_path, "pre", "post", "peri")
    result = answer(findings(read_study([tmp_path])))
    (lost,) = [group for group in result.groups if group.verdict == "failed"]
    assert [(v.name, by) for v, by in lost.members] == [("post", "at every value tried")]
    assert [group.verdict for group in result.groups] == ["failed", "identical"]


def test_what_diverged_at_every_rate_is_the_answer_where_nothing_else_was_asked(tmp_path):
    lost_study(tmp_path, "pre", "post")
    result = answer(findings(read_study([tmp_path])))
    assert result.lead == "post failed to train at every value tried (2 runs)."
    assert [group.verdict for group in result.groups] == ["failed"]


def test_variants_that_were_only_tuned_so_far_have_run(tmp_path):
    make_sweep(tmp_path, trials=[({"placement": "pre"}, 100, 2.5, {"optimizer.lr": 1e-3})])
    result = answer(findings(read_study([tmp_path])))
    assert left_out_summary(read_study([tmp_path])) == ["not finished: results are not planned yet"]
    assert result.lead == "1 variant ran; nothing is compared."


def test_seeds_that_carry_a_difference_too_small_to_name_are_not_called_too_few(tmp_path):
    """Told from zero, smaller than the effect, and its interval reaches beyond that."""
    small = {seed: PRE[seed] - 0.0045 + (0.0003, -0.0004, 0.0001)[seed] for seed in PRE}
    make_study(tmp_path, {"pre": PRE, "sandwich": small})
    evidence = findings(read_study([tmp_path]))
    assert evidence.comparisons["sandwich"].verdict == "below the effect"
    assert evidence.comparisons["sandwich"].p_holm < 0.05
    (note,) = answer(evidence).notes
    assert note.endswith(
        "is that of sandwich, less than the 0.005 worth naming below its baseline's."
    )


def test_a_variant_that_is_equivalent_and_lower_is_not_said_to_be_undecided(tmp_path):
    near = {seed: loss - 0.001 - (-1) ** seed * 1e-5 for seed, loss in PRE.items()}
    make_study(tmp_path, {"pre": PRE, "sandwich": near})
    evidence = findings(read_study([tmp_path]))
    assert evidence.comparisons["sandwich"].verdict == "equivalent"
    assert not any("do not show" in note for note in answer(evidence).notes)


def test_a_mean_is_not_called_the_lowest_where_another_is_lower(tmp_path):
    base = {seed: 2.3 + seed / 100 for seed in range(5)}
    scattered = {s: x - (0.03, -0.02, 0.01, -0.015, 0.0)[s] for s, x in base.items()}
    steady = {s: x - 0.003 + (1e-4, -1e-4, 2e-4, 0, -2e-4)[s] for s, x in base.items()}
    make_study(tmp_path, {"pre": base, "peri": scattered, "post": steady})
    notes = answer(findings(read_study([tmp_path]))).notes
    assert notes[0].startswith("The lowest mean is that of post")
