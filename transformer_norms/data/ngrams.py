"""N-grams counted on the training tokens: the losses of models that count and do not learn.

An n-gram of order k predicts a token from the k - 1 tokens before it. Each order leans on the
shorter one, the more so the rarer the history:

    P_k(w | h) = (c(h w) + t(h) P_{k-1}(w | h')) / (c(h) + t(h)),    P_0(w) = 1 / vocabulary

c(h w) counts how often the token w follows the history h, c(h) how often any token follows h, and
t(h) how many different tokens do. h' is h without its oldest token. Where h was never seen, P_k is
P_{k-1}. Because P_0 is uniform, no token has probability 0.

Sources: Witten & Bell 1991, IEEE Transactions on Information Theory 37(4), method C, in the
interpolated form of Chen & Goodman 1998, Harvard TR-10-98, section 2.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_norms.data.token_cache import Tokens, cache_folder, entry_key, open_or_build
from transformer_norms.progress import Say, Tell

ORDERS = 5
MOST_TOKENS = 5 * 10**6  # to be counted in seconds, in less than a gigabyte


def ngram_name(order: int) -> str:
    return {1: "unigram", 2: "bigram"}.get(order, f"{order}-gram")


def ngram_facts(
    tokens: Tokens, read: int, context: int, limit: int, say: Say, tell: Tell
) -> dict[str, Any]:
    """Returns the losses of the n-grams that saw as many training tokens as a run that reads
    `read` tokens: `ngrams`, in nats per token of val, and of test if there is one, for orders 1 to
    ORDERS; and `ngram_tokens`, how many tokens they were counted on, MOST_TOKENS at most.

    They are evaluated on the tokens that the run is evaluated on: `limit` at most of each part,
    without its first. They are counted once, and cached with the tokens.
    """
    count = min(read, len(tokens.train), MOST_TOKENS)
    about = {"tokens": tokens.fingerprint, "count": count, "context": context, "limit": limit}

    def facts() -> dict[str, Any]:
        tell("data: counting n-grams", 0, 0)
        stretches = spread_stretches(tokens.train, count, context)
        ngrams = NGrams(stretches, tokens.vocab_size)
        parts = {"val": tokens.val, "test": tokens.test}
        losses = {
            part: ngrams.losses(ids[: limit + 1]) for part, ids in parts.items() if len(ids) > 1
        }
        return {"ngrams": losses, "ngram_tokens": stretches.size}

    try:
        folder = cache_folder() / f"ngrams-{entry_key(about)}"
        return open_or_build(
            folder,
            lambda draft: {"facts": facts()},
            lambda folder, manifest: manifest["facts"],
            say,
            tell,
        )
    except OSError:  # the tokens may lie in a cache that cannot be written
        return facts()


def spread_stretches(train: np.ndarray, count: int, context: int) -> np.ndarray:
    """Returns about `count` training tokens as rows: the whole text in one row if it is not longer,
    else stretches of `context` tokens at even distances.

    A run that reads only a part of the text reads windows from everywhere in it. The first tokens
    of a text are another sample: where val is its tail, they lie far from val and tell less of it.
    """
    if count >= len(train):
        return train[None]
    rows = max(count // context, 1)
    starts = np.arange(rows) * len(train) // rows
    return train[starts[:, None] + np.arange(context)]


class NGrams:
    """The n-grams of orders 1 to ORDERS within the rows of `stretches`. None crosses two rows."""

    def __init__(self, stretches: np.ndarray, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.orders: list[_Order] = []
        histories, count = np.zeros(stretches.shape, np.int64), 1
        for order in range(ORDERS):
            codes = histories * vocab_size + stretches[:, order:]
            grams, numbers, counts = np.unique(codes, return_inverse=True, return_counts=True)
            self.orders.append(_Order(grams, counts, count, vocab_size))
            histories, count = numbers.reshape(codes.shape)[:, :-1], len(grams)

    def losses(self, tokens: np.ndarray) -> list[float]:
        """Returns the mean of -ln P of the tokens after the first, for each order."""
        return [float(-np.log(chances[1:]).mean()) for chances in self.probabilities(tokens)]

    def probabilities(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Yields, order by order, the probability of each token after those before it. The first
        tokens have shorter histories."""
        tokens = tokens.astype(np.int64)
        chances = np.full(len(tokens), 1 / self.vocab_size)
        histories = np.zeros(len(tokens), np.int64)
        for order in self.orders:
            chances, numbers = order.extend(chances, histories, tokens)
            histories = np.concatenate([[_UNSEEN], numbers[:-1]])
            yield chances


_UNSEEN = -1  # the number of a history that was not seen; it reads the last element of an array


class _Order:
    """The counts of one order. A history's number is its place among the n-grams that are one token
    shorter. An n-gram's code is (number of its history) * vocabulary + token, so no two share it.
    """

    def __init__(self, grams: np.ndarray, counts: np.ndarray, histories: int, vocab: int) -> None:
        self.vocab_size = vocab
        of = grams // vocab
        # The last elements are for what was not seen.
        self.grams = np.append(grams, np.iinfo(np.int64).max)
        self.counts = np.append(counts, 0)
        self.followed = np.append(np.bincount(of, counts, histories), 0)
        self.kinds = np.append(np.bincount(of, minlength=histories), 0)

    def extend(
        self, shorter: np.ndarray, histories: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns P_k of each token from P_{k-1}, and the number of the n-gram that it ends."""
        codes = histories * self.vocab_size + tokens
        places = np.searchsorted(self.grams, codes)
        numbers = np.where(self.grams[places] == codes, places, _UNSEEN)
        kinds = np.maximum(self.kinds[histories], 1)  # 1 where no token follows: P_k = P_{k-1}
        chances = self.counts[numbers] + kinds * shorter
        return chances / (self.followed[histories] + kinds), numbers
