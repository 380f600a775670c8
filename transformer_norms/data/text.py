from collections.abc import Iterator

from transformer_norms.data.files import find_files, sha256_of
from transformer_norms.data.registries import CORPORA
from transformer_norms.errors import InputError
from transformer_norms.kinds import Texts


@CORPORA("text")
class TextFiles:
    """Each file one document, its bytes exactly: no newline is translated and no mark left out."""

    floor = None

    def __init__(self, *, paths: Texts) -> None:
        self.files = find_files(paths)

    def identity(self) -> dict:
        return {"type": "text", "sha256": [sha256_of(file) for file in self.files]}

    def documents(self) -> Iterator[str]:
        for file in self.files:
            try:
                yield file.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"data.paths: {file} is not UTF-8 at byte {error.start}; convert it first, "
                    f"e.g. iconv -f LATIN1 -t UTF-8"
                ) from None
