import json
import random
import re
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusing import refused

from transformer_norms.data import TOKENIZERS, load_tokenizer
from transformer_norms.data.tokenizer import FileTokenizer, RankTokenizer, stretches

PROSE = "the cat sat on a mat and then it's gone, isn't it? Zebra naïve 日本語 x = 10**3;\n\n  def"
WORDS = PROSE.split(" ")
rng = random.Random(0)
TEXTS = [" ".join(rng.choices(WORDS, k=60)) for _ in range(40)]


def fitted(separated=True, texts=TEXTS, size=300):
    return TOKENIZERS["bpe"](vocab_size=size).fit(texts, separated, print, lambda *news: None)


BPE = fitted()
# The same ranks under the other pattern: what a published vocabulary would do with them.
OTHER = RankTokenizer("cl100k", "cl100k", BPE.ranks, len(BPE.ranks) + 20, len(BPE.ranks) + 1)
BYTE = TOKENIZERS["byte"]().fit([], True, print, print)
ALL = pytest.mark.parametrize("tokenizer", [BYTE, BPE, OTHER], ids=["byte", "bpe", "cl100k"])
unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
english = st.lists(st.sampled_from([*WORDS, " ", "\n", "<|endoftext|>", "'S", "\x00", "\u00a0"]))


@ALL
@given(text=unicode | english.map("".join) | english.map(" ".join))
@example("a<|endoftext|>b")
@example(" " * 10**6 + "x")
@example("a" * 10**5)
@example("\n" * 10**5 + ".")
@settings(max_examples=80, deadline=None)
def test_any_text_comes_back_and_its_bytes_are_counted(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert tokenizer.end not in ids  # what a text spells is text
    assert ids.size == 0 or ids.max() < tokenizer.vocab_size


@ALL
def test_a_text_cut_into_stretches_has_the_ids_of_the_whole(tokenizer):
    text = " ".join(TEXTS) + "  \n trailing  "
    parts = list(stretches(text, 50))
    assert len(parts) > 20
    assert "".join(parts) == text
    together = np.concatenate([tokenizer.encode(part) for part in parts])
    assert np.array_equal(together, tokenizer.encode(text))


@ALL
def test_documents_are_encoded_in_order_and_each_is_ended(tokenizer):
    for ends in [tokenizer.end], []:
        expected = [[*tokenizer.encode(text).tolist(), *ends] for text in TEXTS]
        ids = np.concatenate(list(tokenizer.encode_documents(TEXTS, separated=bool(ends))))
        assert ids.tolist() == sum(expected, [])


def test_bytes_are_ids_with_a_separator_only_where_documents_are_separated():
    assert BYTE.encode("é!").tolist() == [0xC3, 0xA9, 0x21]
    assert (BYTE.vocab_size, BYTE.end) == (257, 256)
    single = TOKENIZERS["byte"]().fit([], False, print, print)
    assert (single.vocab_size, single.end) == (256, None)
    assert BYTE.decode([0x61, 0xC3, 256]) == "a\ufffd"


def test_the_vocabulary_of_bpe_has_the_size_asked_for_the_end_included():
    assert (BPE.vocab_size, BPE.end, len(BPE.ranks)) == (300, 299, 299)
    assert BPE.byte_lengths[BPE.end] == 0
    assert fitted().save() == BPE.save()
    joined = fitted(separated=False)
    assert (joined.vocab_size, joined.end, len(joined.ranks)) == (300, None, 300)
    assert {bytes([value]) for value in range(256)} <= set(BPE.ranks)


def test_bpe_joins_the_pair_of_lowest_rank_first():
    """Against a plain loop over the whole text, which has no words to cut at."""
    tokenizer = fitted(texts=["lowlowlower newernewer"] * 3, size=268)
    ranks = {piece: rank for rank, piece in enumerate(tokenizer.ranks)}
    pieces = [bytes([value]) for value in b"lowernewlow"]
    while True:
        joined = [ranks.get(a + b, 10**9) for a, b in zip(pieces, pieces[1:], strict=False)]
        if min(joined) == 10**9:
            break
        at = joined.index(min(joined))
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    assert tokenizer.encode("lowernewlow").tolist() == [ranks[piece] for piece in pieces]


def test_a_train_text_too_small_for_the_vocabulary_is_refused_with_the_size_possible():
    line = refused(fitted, texts=["ab"], size=4096)
    assert re.fullmatch("tokenizer.vocab_size=4096: .* allows 258 at most.*", line)
    assert fitted(texts=["ab"], size=258).vocab_size == 258


@ALL
def test_a_saved_tokenizer_is_json_and_comes_back_the_same(tokenizer):
    again = load_tokenizer(json.loads(json.dumps(tokenizer.save())))
    assert again.end == tokenizer.end
    assert again.pieces == tokenizer.pieces
    text = " ".join(TEXTS[:5])
    assert np.array_equal(again.encode(text), tokenizer.encode(text))


def test_a_tokenizer_with_state_encodes_on_one_thread_and_the_fast_ones_on_many():
    class Plugin(type(BYTE)):
        def encode(self, text):
            threads.append(threading.get_ident())
            return super().encode(text)

    threads = []
    list(Plugin(separated=True).encode_documents(TEXTS, separated=True, threads=4))
    assert set(threads) == {threading.get_ident()}
    assert (RankTokenizer.threaded, FileTokenizer.threaded) == (True, True)


RANKS = BPE.save()["ranks"]
FORGED = [
    {"schema": 2}, {"type": "pickle"}, {"code": "import os"}, {"pattern": "(a+)+$"},
    {"end": "left out"}, {"end": 5}, {"end": 300}, {"vocab_size": 280}, {"vocab_size": 10**9},
    {"ranks": ["enp6eg==", *RANKS[1:]]},  # a byte is missing
    {"ranks": [*RANKS[:-1], RANKS[-2]]},
    {"ranks": [*RANKS[:-1], "!!!"]},
]  # fmt: skip
OF_BYTES = [
    {"vocab_size": size, "end": end}
    for size, end in ((256, 256), (257, None), (258, 257), (True, None))
]


@pytest.mark.parametrize(
    ("tokenizer", "changed"), [*((BPE, one) for one in FORGED), *((BYTE, one) for one in OF_BYTES)]
)
def test_a_damaged_or_forged_file_is_refused_in_one_line(tokenizer, changed):
    saved = tokenizer.save() | changed
    line = refused(load_tokenizer, {k: v for k, v in saved.items() if v != "left out"})
    assert line.startswith("tokenizer.json ")
    assert len(line) < 200
