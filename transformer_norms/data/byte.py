from collections.abc import Callable, Sequence

from transformer_norms.data.registries import TOKENIZERS
from transformer_norms.data.tokenizer import ByteTokenizer, Tokenizer
from transformer_norms.progress import Tell, untold


@TOKENIZERS("byte")
class Bytes:
    """id = byte: nothing to train and nothing to download."""

    def identity(self) -> dict:
        return {"type": "byte"}

    def fit(
        self,
        train: Sequence[str],
        separated: bool,
        say: Callable[[str], None],
        tell: Tell = untold,
    ) -> Tokenizer:
        return ByteTokenizer(separated)
