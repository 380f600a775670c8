"""stdout and stderr that end no work: where a reader leaves, a disk fills up, or a terminal lacks
letters. They show no secret of the environment.
"""

import codecs
import io
import os
import select
import sys
from contextlib import suppress
from typing import Any

from transformer_norms.errors import hide_secrets
from transformer_norms.processes import hold_stream_numbers

SPELLING = "transformer_norms.ascii"
# Lines and signs keep their width, so that drawings and tables stay straight.
_ASCII = dict(zip("│─╭╮╰╯┬┴├┤┼►◄⊕…·×−–—≈‘’′“”µ", "|-+++++++++><+~.x---~'''\"\"u", strict=True))
_ASCII |= {"±": "+-", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≠": "!=", "δ": "d", "ᵀ": "^T"}


def spell(error: UnicodeError) -> tuple[str, int]:
    r"""Replaces what an encoding lacks: known signs by ASCII, anything else as \u20ac."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    spelled = [_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking]
    return "".join(spelled), error.end


codecs.register_error(SPELLING, spell)


class _Lines(io.TextIOWrapper):
    """Text that is shown without the secrets of the environment, also in a traceback."""

    def write(self, text: str) -> int:
        super().write(hide_secrets(text))
        return len(text)


class _Descriptor(io.FileIO):
    """A file that drops what it cannot pass on. `refusal` is the last error."""

    refusal: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # a pipe that must not block is full
                select.select([], [self], [])
        except OSError as error:
            self.refusal = error
            return memoryview(data).nbytes
        return count


def guard_streams() -> None:
    """Puts streams that raise nothing in the place of stdout and stderr, once a process.

    Streams that somebody else has put there stay.
    """
    hold_stream_numbers()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        if stream is None:  # it was closed when Python started; the number may be another file's
            number = os.open(os.devnull, os.O_WRONLY)
        else:
            with suppress(OSError):
                stream.flush()
        descriptor = _Descriptor(number, "w", closefd=False)
        guarded = _Lines(
            io.BufferedWriter(descriptor),
            encoding=stream.encoding if stream else "utf-8",
            errors=SPELLING,
            line_buffering=name == "stderr" or descriptor.isatty(),
            write_through=getattr(stream, "write_through", False),
        )
        setattr(sys, name, guarded)


def refusal_of(stream: Any) -> OSError | None:
    """Returns why a guarded stream dropped text, if it did."""
    return getattr(getattr(getattr(stream, "buffer", None), "raw", None), "refusal", None)
