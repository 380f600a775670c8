"""The vocabularies of GPT-2 and of GPT-4, as tiktoken downloads or has cached them."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from transformer_norms.data.network import answers, within
from transformer_norms.data.registries import TOKENIZERS
from transformer_norms.data.tokenizer import RankTokenizer, Tokenizer
from transformer_norms.errors import InputError
from transformer_norms.progress import Tell, untold

HOST = "https://openaipublic.blob.core.windows.net"
DOWNLOAD_SECONDS = 120.0


class _Published:
    type: str
    encoding: str
    pattern: str
    # Addresses and SHA-256, as in tiktoken_ext/openai_public.py.
    files: ClassVar[dict[str, str]]

    def identity(self) -> dict:
        return {"type": self.type}

    def fit(
        self,
        train: Sequence[str],
        separated: bool,
        say: Callable[[str], None],
        tell: Tell = untold,
    ) -> Tokenizer:
        missing = [url for url, digest in self.files.items() if not _cached(url, digest, say)]
        if missing and not answers(HOST):
            raise InputError(self._unavailable(f"{HOST} does not answer"))
        try:
            encoding = within(DOWNLOAD_SECONDS, self._load)
        except (OSError, ValueError) as error:  # requests' errors and TimeoutError are OSErrors
            raise InputError(self._unavailable(str(error).split("\n")[0][:200])) from None
        # Nobody else has these: tiktoken gives no other way to all of its ranks at once.
        numbered = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
        ranks = [piece for piece, _ in numbered]
        return RankTokenizer(self.type, self.pattern, ranks, encoding.n_vocab, encoding.eot_token)

    def _load(self) -> Any:
        import tiktoken

        return tiktoken.get_encoding(self.encoding)

    def _unavailable(self, why: str) -> str:
        return (
            f"tokenizer={self.type}: its vocabulary is not at hand ({why}); use tokenizer=bpe or "
            f"tokenizer=byte, or TIKTOKEN_CACHE_DIR=FOLDER with tiktoken's files"
        )


@TOKENIZERS("gpt2")
class Gpt2(_Published):
    """GPT-2's byte pairs; Radford et al. 2019."""

    type, encoding, pattern = "gpt2", "gpt2", "r50k"
    files: ClassVar = {
        f"{HOST}/gpt-2/encodings/main/vocab.bpe": (
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
        ),
        f"{HOST}/gpt-2/encodings/main/encoder.json": (
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
        ),
    }


@TOKENIZERS("cl100k")
class Cl100k(_Published):
    """The byte pairs of GPT-3.5 and GPT-4."""

    type, encoding, pattern = "cl100k", "cl100k_base", "cl100k"
    files: ClassVar = {
        f"{HOST}/encodings/cl100k_base.tiktoken": (
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
        ),
    }


def _cached(url: str, digest: str, say: Callable[[str], None]) -> bool:
    """Whether tiktoken will find this file. It deletes one with other content: a copy stays."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # tiktoken's way to say: no cache
        return False
    place = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"))
    file = place / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    if not file.is_file():
        return False
    if hashlib.sha256(file.read_bytes()).hexdigest() == digest:
        return True
    kept = file.with_name(file.name + ".unexpected")
    shutil.copyfile(file, kept)
    say(f"tokenizer: {file} is not {url.rsplit('/', 1)[1]} as published; a copy stays in {kept}")
    return False
