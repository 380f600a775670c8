"""Text to batches: corpus -> documents -> split -> tokens on disk -> batches.

A corpus yields documents and says what identifies its text (`identity`). A split puts them into
train, val and test before anything else sees them. A tokenizer is fitted to train alone. The
tokens are written once, verified at every opening, and read as batches that are a pure function of
(seed, step). Only `batches` makes tensors, so nothing else here imports torch. `ngrams` counts
tokens, for losses that a model has to be better than.

Importing this package registers every corpus, split and tokenizer.
"""

from transformer_norms.data import downloads, pydocs, stories  # noqa: F401
from transformer_norms.data.documents import CORPORA
from transformer_norms.data.prepare import prepare
from transformer_norms.data.token_cache import Tokens
from transformer_norms.data.tokenizer import Tokenizer, load_tokenizer
from transformer_norms.data.vocabularies import TOKENIZERS

__all__ = ["CORPORA", "TOKENIZERS", "Tokenizer", "Tokens", "load_tokenizer", "prepare"]
