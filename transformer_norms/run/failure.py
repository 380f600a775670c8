"""When a run has failed to train: one rule, for sweeps and for reports.

A run failed if it diverged, or if its loss is not better, by NGRAM_LEAD, than that of n-grams that
were counted on the same training tokens: the unigram, and the bigram at a horizon where a baseline
passes the bigram. A run whose record has no n-grams can only have diverged.
"""

from collections.abc import Collection, Iterable, Sequence

from transformer_norms.data.ngrams import ngram_name
from transformer_norms.run.summary import Summary

NGRAM_LEAD = 0.005  # nats per token

Horizon = tuple[str, int | None]  # the fingerprint of the data, and the tokens of training


def ngram_losses(summary: Summary, loss: str) -> list[float]:
    """Returns the losses of the n-grams of order 1, 2, ... on the tokens of which `loss` is the
    model's: val_loss or test_loss."""
    return summary.data.ngrams.get(loss.removesuffix("_loss"), [])


def passes(loss: float, ngram: float) -> bool:
    """Returns whether a loss is better than that of an n-gram by NGRAM_LEAD: a model that knows
    only the frequencies of tokens ends a little above or below the unigram."""
    return loss <= ngram - NGRAM_LEAD


def best_ngram(summary: Summary, loss: str) -> int | None:
    """Returns the highest order k so that a run passes the n-grams of all orders up to k: 0 if it
    does not pass the unigram, or diverged. None: it has no loss, or no n-gram is known."""
    lines, reached = ngram_losses(summary, loss), getattr(summary, loss)
    if summary.status == "diverged":
        return 0
    if reached is None or not lines:
        return None
    return passed_orders(reached, lines)


def passed_orders(loss: float, lines: Sequence[float]) -> int:
    """Returns the highest order k so that a loss passes the lines of all orders up to k."""
    return [*(passes(loss, line) for line in lines), False].index(False)


def horizon(summary: Summary) -> Horizon:
    return summary.data.fingerprint, summary.tokens


def bigram_horizons(baselines: Iterable[Sequence[Summary]], loss: str) -> set[Horizon]:
    """Returns the horizons at which more than half of the runs of a baseline pass the bigram.
    `baselines` are the ended runs of each, at one setting."""
    horizons = set()
    for summaries in baselines:
        passing = [
            summary
            for summary in summaries
            if summary.status == "finished" and (best_ngram(summary, loss) or 0) >= 2
        ]
        if 2 * len(passing) > len(summaries):
            horizons |= {horizon(summary) for summary in passing}
    return horizons


def failure(summary: Summary, loss: str, bigrams: Collection[Horizon] = ()) -> str | None:
    """Returns why an ended run failed, such as `no better than the bigram (2.482)`, or None if it
    trained. At the horizons `bigrams` it has to pass the bigram, too."""
    if summary.status == "diverged":
        return "diverged"
    if loss == "test_loss" and not ngram_losses(summary, loss):
        loss = "val_loss"  # an old record has no n-grams for the test split
    reached = getattr(summary, loss)
    orders = 2 if horizon(summary) in bigrams else 1
    for order, line in enumerate(ngram_losses(summary, loss)[:orders], start=1):
        if reached is not None and not passes(reached, line):
            return f"no better than the {ngram_name(order)} ({line:.3f})"
    return None
