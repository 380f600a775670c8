"""Which runs of a study have failed to train: one rule, by its own arithmetic."""

import math

from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import DATA, PRE, edit, folder, make_study, rows, text

from transformer_norms.comparison.outcomes import Share
from transformer_norms.report.answer import answer
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.page import runs_table
from transformer_norms.report.table import regime_notes, summary_lines, table
from transformer_norms.report.writing import write_report
from transformer_norms.run.failure import bigram_horizons, failure, horizon, ngram_losses
from transformer_norms.run.summary import Data, Summary

LINES = [3.3, 2.5, 2.2, 2.1, 2.15]
SHORT = "no better than the bigram (2.500)"


def summary(loss, *, lines=LINES, tokens=1000, test=None):
    """The record of a run, which diverged if it has no loss."""
    ngrams = {"val": lines, "test": [line + 1 for line in lines]} if lines else {}
    data = Data(identity={}, fingerprint="f", ngrams=ngrams)
    own = {"val_loss": loss, "test_loss": test, "status": "finished" if loss else "diverged"}
    return Summary(tokens=tokens, identity="0" * 16, data=data, **own)


def reason(of, bigrams=(), loss="val_loss"):
    return failure(of, loss, bigrams)


def test_the_unigram_always_counts_and_the_bigram_where_a_baseline_passes_it():
    bar, worse = {horizon(summary(1.0))}, "no better than the unigram (3.300)"
    for loss, alone, beside in (
        (2.4, None, None),
        (2.496, None, SHORT),
        (3.2949, None, SHORT),
        (3.2951, worse, worse),
        (9.0, worse, worse),
    ):
        assert reason(summary(loss)) == alone
        assert reason(summary(loss), bar) == beside
        assert reason(summary(loss, tokens=2000), bar) == alone  # another horizon
    assert reason(summary(None)) == "diverged"
    # A test loss is held against the lines of its split, a record without n-grams against nothing.
    assert reason(summary(2.0, test=4.0), loss="test_loss") is None
    assert reason(summary(2.0, test=4.4), loss="test_loss") == "no better than the unigram (4.300)"
    assert reason(summary(9.9, lines=None)) is None
    assert list(ngram_losses(summary(1.0, lines=None), "test_loss")) == []


def test_more_than_half_of_a_baselines_runs_have_to_pass_the_bigram():
    # A baseline that is stuck does not lower the bar that another one sets.
    for baselines, pass_ in (
        ([[2.4, 2.4, 3.3]], True),
        ([[2.4, 3.3]], False),
        ([[2.4, None, None]], False),
        ([[2.498, 2.499]], False),
        ([[2.4], [3.3]], True),
    ):
        found = bigram_horizons([[*map(summary, one)] for one in baselines], "val_loss")
        assert found == ({("f", 1000)} if pass_ else set()), baselines


def judged(study, losses, **changed):
    """The findings of a study whose runs have n-grams."""
    make_study(study, losses, **changed)
    record = {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA, "ngrams": {"val": LINES}}
    for placement, by_seed in losses.items():
        for seed in by_seed:
            edit(study / folder(placement, seed).name, data=record)
    return findings(read_study([study]))


STUCK = {0: 3.29, 1: 2.6, 2: 2.31}


def test_a_stuck_variant_is_counted_and_no_difference_of_it_is_named(tmp_path):
    found = judged(tmp_path, {"pre": PRE, "post": STUCK})
    post, compared = found.outcomes["post"], found.comparisons["post"]
    assert post.losses == {2: 2.31}
    assert post.failed == dict.fromkeys((0, 1), SHORT)
    assert (post.failure, post.median) == (Share(2, 3), math.inf)
    assert (compared.verdict, compared.difference) == ("failed", None)
    assert summary_lines(found)[2].endswith("failed in 2")
    assert "failed to train: post (2 no better than the bigram)" in summary_lines(found)
    assert (found.passed("pre"), found.passed("post")) == ("bigram", "bigram")


def test_a_baseline_that_fails_bears_no_claim(tmp_path):
    far = {seed: loss - 0.2 - seed / 1000 for seed, loss in PRE.items()}
    found = judged(tmp_path, {"pre": {**PRE, 1: 2.9}, "post": far, "peri": PRE})
    assert answer(found).lead == (
        "The baseline pre failed to train in 1 of 3 (1 to 91 %; 1 no better than the bigram): no "
        "loss is compared with it. No variant is shown to be better than its baseline (failed 2); "
        "1 of 2 variants have another start (init) than their baseline."
    )
    assert table(found)["verdict"] == ["baseline", *["baseline failed"] * 2]


def test_where_every_run_fails_there_is_no_mean_and_a_report(tmp_path):
    every = dict.fromkeys(PRE, 3.3)
    found = judged(tmp_path, {"pre": every, "post": every, "peri": every})
    assert (found.outcomes["post"].mean, regime_notes(found)) == (None, [])
    assert write_report([tmp_path])[0].exists()


def test_the_table_says_which_n_grams_were_passed_and_old_runs_have_none(tmp_path):
    good = {seed: loss - 0.2 for seed, loss in PRE.items()}
    found = judged(tmp_path / "new", {"pre": PRE, "post": good})
    # 2.11 is better than the third and no better than the fourth, 2.1
    assert regime_notes(found) == [
        "n-grams counted on the training tokens: unigram 3.300, bigram 2.500, 3-gram 2.200, 4-gram "
        "2.100, 5-gram 2.150 nats; the best that a mean has passed: 3-gram by post; bigram by pre"
    ]
    assert regime_notes(found)[0] in text(tmp_path / "new")
    by_run = {(row["variant"], row["seed"]): row for row in rows(tmp_path / "new")}
    assert [by_run["post", str(s)]["passed"] for s in PRE] == ["3-gram"] * 3
    assert {row["outcome"] for row in by_run.values()} == {"trained"}
    make_study(tmp_path / "old", {"pre": PRE, "post": good})
    assert "n-gram" not in text(tmp_path / "old")


def test_each_run_has_its_outcome_and_its_reason(tmp_path):
    found = judged(tmp_path, {"pre": PRE, "post": {**STUCK, 2: None}})
    statuses = runs_table(found)["status"]
    assert (statuses.count(f"finished, {SHORT}"), statuses.count("finished")) == (2, 3)
    text(tmp_path)
    post = [row for row in rows(tmp_path) if row["variant"] == "post"]
    said = {row["seed"]: (row["outcome"], row["failure"], row["passed"]) for row in post}
    short = ("failed", SHORT, "unigram")
    assert said == {"0": short, "1": short, "2": ("failed", "diverged", "none")}


def test_failures_that_chance_does_not_explain_stand_before_what_no_variant_shows(tmp_path):
    five = {seed: 2.3 + seed / 100 for seed in range(5)}
    near = {seed: loss + 0.02 * (-1) ** seed for seed, loss in five.items()}
    found = judged(tmp_path, {"pre": five, "peri": near, "post": dict.fromkeys(five, 3.0)})
    assert answer(found).lead == (
        "post failed to train in 5 of 5 runs (48 to 100 %; 5 no better than the bigram), pre in 0 "
        "of 5 (at most 45 %); Fisher's p 0.008. No variant is shown to be better than "
        "its baseline (not told apart 1, failed 1); 1 of 2 variants have another start (init) "
        "than their baseline."
    )
