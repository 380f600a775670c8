"""Writes a tokenizer of ours as a JSON of the tokenizers library, which transformers loads.

GPT-2's letters spell the bytes. Our encoder joins the neighbours whose bytes together are the piece
of lowest rank. Their encoder joins only pairs that it lists, so every split of a piece into two
pieces is listed, in the order of ranks. If three neighbours p q r can join as p q and as q r, our
encoder takes the left pair and theirs the pair listed first, which has the shorter left part. So
only pairs with a longer left part can differ (`uncertain`).
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from transformer_norms.data import Tokenizer
from transformer_norms.data.tokenizer import PATTERNS, FileTokenizer, RankTokenizer, byte_letters
from transformer_norms.data.vocabularies import END

# In Oniguruma's syntax {1,3}+ repeats a repetition: ours -> theirs.
_REPEATED = r"\p{N}{1,3}+", r"(?>\p{N}{1,3})"
Spelled = TypeVar("Spelled", str, bytes)


def fast_tokenizer(ours: Tokenizer, context: int) -> Any:
    """transformers' PreTrainedTokenizerFast with our ids; nothing in a text is special to it.

    eos and pad are the end of a document. A run whose text is one stretch has no such id; there
    they are the byte 0. Batches are padded on the left, from where a continuation is read.
    """
    from transformers import PreTrainedTokenizerFast

    fast, end = _of_file(ours) if isinstance(ours, FileTokenizer) else _of_pieces(ours)
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        eos_token=end,
        pad_token=end,
        padding_side="left",
    )


def _of_file(ours: FileTokenizer) -> tuple[Any, str | None]:
    """The tokenizer of the file, without what it puts before or after a text: the model has read no
    text with it. And the piece that ends a document."""
    from tokenizers import Tokenizer as Fast

    fast = Fast.from_str(json.dumps(json.loads(ours.text) | {"post_processor": None}))
    return fast, fast.id_to_token(ours.end or 0)


def _of_pieces(ours: Tokenizer) -> tuple[Any, str]:
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    letters = {byte: letter for letter, byte in byte_letters().items()}
    pieces = ours.ranks if isinstance(ours, RankTokenizer) else ours.pieces[:256]
    words = ["".join(letters[byte] for byte in piece) for piece in pieces]
    vocabulary = {word: id for id, word in enumerate(words)}
    end = letters[0]
    if ours.end is not None:
        vocabulary[END], end = ours.end, END
    # A word that is a piece is one token, however it is joined, as in tiktoken.
    fast = Fast(models.BPE(vocab=vocabulary, merges=splits(words), ignore_merges=True))
    if end == END:
        fast.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if isinstance(ours, RankTokenizer):
        pattern = Regex(PATTERNS[ours.pattern].replace(*_REPEATED))
        split = pre_tokenizers.Split(pattern, "isolated")
        fast.pre_tokenizer = pre_tokenizers.Sequence([split, fast.pre_tokenizer])
    fast.decoder = decoders.ByteLevel()
    return fast, end


def splits(pieces: Sequence[Spelled]) -> list[tuple[Spelled, Spelled]]:
    """Every way to make a piece of two others, in the order of the pieces."""
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def uncertain(pieces: Sequence[bytes]) -> int:
    """How many pieces p q = q r there are with a p longer than q: see above."""
    both = set(splits(pieces))
    longer = [(p + q, q) for p, q in both if len(p) > len(q)]
    return len({piece for piece, q in longer if (q, piece.removeprefix(q)) in both})
