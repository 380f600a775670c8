"""Text to batches: corpus -> documents -> split -> tokens on disk -> batches.

A corpus yields documents and says what stands for its text (`identity`). A split puts them into
train, val and test before anything else sees them. A tokenizer is fitted to train alone. The
tokens are written once, verified at every opening, and read as batches that are a pure function of
(seed, step). Only `batches` makes tensors, so nothing else here imports torch.

Importing this package registers every corpus, split and tokenizer.
"""

from transformer_norms.data import (
    bpe,
    byte,
    hub,
    published,
    pydocs,
    rows,
    split,
    stories,
    text,
)
from transformer_norms.data.prepare import Tokens, prepare
from transformer_norms.data.registries import CORPORA, SPLITS, TOKENIZERS
from transformer_norms.data.tokenizer import Tokenizer
from transformer_norms.data.tokenizer_file import load_tokenizer

__all__ = [
    "CORPORA",
    "SPLITS",
    "TOKENIZERS",
    "Tokenizer",
    "Tokens",
    "bpe",
    "byte",
    "hub",
    "load_tokenizer",
    "prepare",
    "published",
    "pydocs",
    "rows",
    "split",
    "stories",
    "text",
]
