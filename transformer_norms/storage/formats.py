"""Names the format of a file by its first bytes, and says how to read it."""

import re
from pathlib import Path

ICONV = "file -i FILE guesses its ENCODING; then type iconv -f ENCODING -t UTF-8 FILE > NEW"
# UTF-16 may have no mark: then it is eight letters of alphabets, one after the other.
_BINARY = {
    rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|PK\x03\x04": (
        "is compressed; unpack it first, as with gzip -d"
    ),
    rb"PAR1[\0-\x1f]": "is Parquet; data=parquet reads it",
    rb"\xff\xfe|(\0\0)?\xfe\xff|(..){,999}?(([^\0][\0-\6]){8}|([\0-\6][^\0]){8})": (
        f"is UTF-16 or UTF-32; {ICONV}"
    ),
}
_SOURCES = {
    rb'\.(jsonl?|ndjson)\n|.*\n\s*\[?\s*\{\s*"[^"\n]*"\s*:': "is JSON; data=jsonl reads its texts",
    rb"\.[ct]sv\n": "is CSV; no corpus reads its texts, and data=jsonl reads lines of JSON",
    rb"\.x?html?\n|.*\n\s*<(!doctype|html)": "is HTML; no corpus reads its texts without tags",
}


def binary_format(head: bytes) -> str:
    """Says what a file is that is not text in UTF-8, and what makes text of it; or nothing."""
    return next((words for mark, words in _BINARY.items() if re.match(mark, head, re.DOTALL)), "")


def source_format(file: Path) -> str:
    """Says what a text is that holds other texts, by its suffix or its beginning; or nothing."""
    with file.open("rb") as stream:
        start = file.suffix.encode("utf-8", "replace") + b"\n" + stream.read(1000)
    return next((words for form, words in _SOURCES.items() if re.match(form, start, re.I)), "")
