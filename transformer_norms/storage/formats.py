"""Names the format of a file by its first bytes, and says how to read it."""

import re
from pathlib import Path

# The last two are UTF-16 without a mark: eight letters of alphabets, one after the other.
_BINARY = {
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "is UTF-32; type iconv -f UTF-32 -t UTF-8 FILE > NEW",
    rb"\xff\xfe|\xfe\xff": "is UTF-16; type iconv -f UTF-16 -t UTF-8 FILE > NEW",
    rb"\x1f\x8b": "is gzip; type gzip -dc FILE > NEW",
    rb"BZh[1-9]1AY&SY": "is bzip2; type bzip2 -dc FILE > NEW",
    rb"\xfd7zXZ\0": "is xz; type xz -dc FILE > NEW",
    rb"\x28\xb5\x2f\xfd": "is zstd; type zstd -dc FILE > NEW",
    rb"PK\x03\x04": "is zip; type unzip -p FILE > NEW",
    rb"%PDF-": "is PDF; type pdftotext FILE NEW",
    rb"PAR1[\0-\x1f]": "is Parquet; data=parquet reads it",
    rb"(..){,999}?([^\0][\0-\6]){8}": "is UTF-16; type iconv -f UTF-16LE -t UTF-8 FILE > NEW",
    rb"(..){,999}?([\0-\6][^\0]){8}": "is UTF-16; type iconv -f UTF-16BE -t UTF-8 FILE > NEW",
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
