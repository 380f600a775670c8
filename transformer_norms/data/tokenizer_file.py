"""Reading a saved tokenizer: JSON that holds all it takes, published vocabularies included.

So the folder of a run can be mailed, and works without a network. Whoever sent it is not trusted:
what does not fit is refused, and nothing in it is run or imported.
"""

import base64
import binascii
from typing import Any

from transformer_norms.data.tokenizer import (
    PATTERNS,
    SCHEMA,
    ByteTokenizer,
    RankTokenizer,
    Tokenizer,
)
from transformer_norms.errors import InputError

MOST_RANKS = 2**20
MOST_GAPS = 1024  # ids beyond the ranks: separators, and the holes between published ones


def load_tokenizer(saved: Any) -> Tokenizer:
    """The tokenizer that `save` described; InputError, in one line, for anything else."""
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise _wrong(f"its schema is not {SCHEMA}")
    size, end = saved.get("vocab_size"), saved.get("end")
    if saved.get("type") == "byte":
        if set(saved) != {"schema", "type", "vocab_size", "end"}:
            raise _wrong("its keys are not those of a byte tokenizer")
        if (size, end) not in ((256, None), (257, 256)) or type(size) is not int:
            raise _wrong("a byte tokenizer has 256 ids, or 257 of which the last is the end")
        return ByteTokenizer(separated=end is not None)
    if saved.get("type") not in ("bpe", "gpt2", "cl100k"):
        raise _wrong("its type is none of byte, bpe, gpt2, cl100k")
    if set(saved) != {"schema", "type", "vocab_size", "end", "pattern", "ranks"}:
        raise _wrong("its keys are not schema, type, vocab_size, end, pattern, ranks")
    if not isinstance(saved["pattern"], str) or saved["pattern"] not in PATTERNS:
        raise _wrong(f"its pattern is none of {', '.join(PATTERNS)}")
    ranks = _ranks(saved["ranks"])
    if type(size) is not int or not len(ranks) <= size <= len(ranks) + MOST_GAPS:
        raise _wrong(f"its vocab_size does not go with its {len(ranks)} ranks")
    if end is not None and (type(end) is not int or not len(ranks) <= end < size):
        raise _wrong("its end is no id beyond the ranks")
    return RankTokenizer(saved["type"], saved["pattern"], ranks, size, end)


def _ranks(listed: Any) -> list[bytes]:
    if not isinstance(listed, list) or not 256 <= len(listed) <= MOST_RANKS:
        raise _wrong("its ranks are no list of a plausible length")
    try:
        ranks = [base64.b64decode(piece, validate=True) for piece in listed]
    except (TypeError, ValueError, binascii.Error):
        raise _wrong("its ranks are not all base64") from None
    if len(set(ranks)) != len(ranks) or b"" in ranks:
        raise _wrong("two of its ranks are the same, or one is empty")
    missing = {bytes([value]) for value in range(256)} - set(ranks)
    if missing:
        # tiktoken panics when it meets such a byte.
        raise _wrong(f"its ranks lack {len(missing)} of the 256 bytes")
    return ranks


def _wrong(what: str) -> InputError:
    return InputError(f"tokenizer.json is no tokenizer of ours: {what}")
