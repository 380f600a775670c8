"""Which runs of a study have failed to train: one rule, by its own arithmetic."""

import math

import pytest
from run_folders import DATA, PRE, edit, folder, make_study

from transformer_norms.comparison.outcomes import Share
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.run.failure import bigram_horizons, failure, horizon, ngram_losses
from transformer_norms.run.summary import Data, Summary

LINES = [3.3, 2.5, 2.2, 2.1, 2.15]
EFFECT = 0.005


def summary(loss, *, status="finished", lines=LINES, tokens=1000, test=None, **data):
    ngrams = {"val": lines, "test": [line + 1 for line in lines]} if lines else {}
    record = Data(identity={}, fingerprint="f", ngrams=ngrams, **data)
    return Summary(
        status=status, val_loss=loss, test_loss=test, tokens=tokens, identity="0" * 16, data=record
    )


def reason(of, bigrams=(), loss="val_loss", effect=EFFECT):
    return failure(of, loss, bigrams, effect)


def test_the_unigram_always_counts_and_the_bigram_where_a_baseline_passes_it():
    bar = {horizon(summary(1.0))}
    for loss, alone, beside in (
        (2.4, None, None),
        (2.496, None, "no better than the bigram (2.500)"),
        (2.9, None, "no better than the bigram (2.500)"),
        (3.296, "no better than the unigram (3.300)", "no better than the unigram (3.300)"),
        (9.0, "no better than the unigram (3.300)", "no better than the unigram (3.300)"),
    ):
        assert reason(summary(loss)) == alone
        assert reason(summary(loss), bar) == beside
        assert reason(summary(loss, tokens=2000), bar) == alone  # another horizon
    assert reason(summary(None, status="diverged")) == "diverged"


def test_a_difference_below_the_effect_is_none():
    assert reason(summary(3.2949)) is None
    assert reason(summary(3.2951)) == "no better than the unigram (3.300)"
    assert reason(summary(3.2951), effect=0.0) is None


def test_the_test_loss_is_held_against_the_lines_of_the_test_split():
    assert reason(summary(2.0, test=4.0), loss="test_loss") is None
    assert reason(summary(2.0, test=4.4), loss="test_loss") == "no better than the unigram (4.300)"


def test_a_record_without_ngrams_is_judged_by_the_unigram_of_validation_or_by_nothing():
    old = {"lines": None, "unigram": 3.3}
    assert reason(summary(3.3, **old)) == "no better than the unigram (3.300)"
    assert reason(summary(3.3, test=2.0, **old), loss="test_loss") is not None
    assert reason(summary(2.9, **old), {horizon(summary(1.0))}) is None
    assert reason(summary(9.9, lines=None)) is None
    assert list(ngram_losses(summary(1.0, lines=None), "test_loss")) == []


def test_more_than_half_of_a_baselines_runs_have_to_pass_the_bigram():
    def horizons(*losses):
        runs = [summary(x, status="finished" if x else "diverged") for x in losses]
        return bigram_horizons([runs], "val_loss", EFFECT)

    assert horizons(2.4, 2.4, 3.3)
    assert not horizons(2.4, 3.3)
    assert not horizons(2.4, None, None)
    assert not horizons(2.498, 2.499)
    # A baseline that is stuck does not lower the bar that another one sets.
    pair = [[summary(2.4)], [summary(3.3)]]
    assert bigram_horizons(pair, "val_loss", EFFECT) == {("f", 1000)}


def judged(study, losses, lines=LINES):
    make_study(study, losses)
    record = {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA, "ngrams": {"val": lines}}
    for placement, by_seed in losses.items():
        for seed in by_seed:
            edit(study / folder(placement, seed).name, data=record)
    return findings(read_study([study]))


def test_a_stuck_variant_is_counted_and_no_difference_of_it_is_named(tmp_path):
    found = judged(tmp_path, {"pre": PRE, "post": {0: 3.29, 1: 2.6, 2: 2.31}})
    post, compared = found.outcomes["post"], found.comparisons["post"]
    assert post.losses == {2: 2.31}
    assert post.failed == dict.fromkeys((0, 1), "no better than the bigram (2.500)")
    assert (post.failure, post.median) == (Share(2, 3), math.inf)
    assert (compared.verdict, compared.difference, compared.p) == ("failed", None, None)
    assert compared.fisher == pytest.approx(0.4)
