"""metrics.jsonl: a JSON object for each row of measurements, appended while a run trains."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError, StorageError
from transformer_norms.kinds import is_finite
from transformer_norms.progress import say
from transformer_norms.storage.files import storage, write_bytes
from transformer_norms.storage.reading import is_there, parse_json, read_bytes

LONGEST = 1 << 30  # bytes; 570,000 steps of 36 blocks, probed each 50, take 460 MB


class MetricsFile:
    """Appends rows at once. Its file never holds NaN, Infinity or half a line between two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        before = read_bytes(path, LONGEST) if is_there(path) else b""
        self._open()
        _, torn = _split(before)
        if torn:
            say(f"{path}: a last line that was not written whole is left out")
            self._file.truncate(len(before) - len(torn))

    def _open(self) -> None:
        with storage(self.path):
            # Unbuffered: a kept buffer would be written again after a full disk had refused it.
            self._file = open(self.path, "ab", buffering=0, opener=open_plain)  # noqa: SIM115

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes null for a number that is not finite, and lists its key under `nonfinite`."""
        assert "step" in row, "truncate_after could not place this row"
        line: dict[str, Any] = {key: finite_or_none(value) for key, value in row.items()}
        if bad := [key for key, value in row.items() if line[key] != value]:
            line["nonfinite"] = bad
        self._write((json.dumps(line, allow_nan=False) + "\n").encode())

    def _write(self, line: bytes) -> None:
        start = os.fstat(self._file.fileno()).st_size
        with storage(self.path, len(line)):
            try:
                written = 0
                while written < len(line):
                    written += self._file.write(line[written:]) or 0
            except OSError:
                # Half a line would swallow the next one.
                self._file.truncate(start)
                raise

    def sync(self) -> None:
        """Raises StorageError if the file was deleted meanwhile: the run's folder is gone, too."""
        with storage(self.path):
            os.fsync(self._file.fileno())
        if not os.fstat(self._file.fileno()).st_nlink:
            raise StorageError(f"{self.path}: was deleted while the run wrote to it")

    def truncate_after(self, step: int) -> None:
        """Keeps the rows whose step is at most `step`, byte for byte."""
        lines, _ = _split(read_bytes(self.path, LONGEST))
        earlier = [line for line in lines if parse_row(line, str(self.path))["step"] <= step]
        if len(earlier) == len(lines):
            return
        write_bytes(self.path, b"".join(earlier))
        self._file.close()
        self._open()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a metrics file, without a last line that a killed writer left torn.

    Raises ConfigError for any other bad line.
    """
    lines, _ = _split(read_bytes(path, LONGEST))
    return [parse_row(line, f"{path} line {number}") for number, line in enumerate(lines, 1)]


def parse_row(line: bytes, name: str) -> dict[str, Any]:
    row = parse_json(line, name)
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ConfigError(f"{name}: is not a row of measurements, an object with a step")
    return row


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Returns the complete lines, each with its newline, and what a killed writer left."""
    *lines, torn = data.split(b"\n")
    return [line + b"\n" for line in lines], torn


def open_plain(path: str, flags: int) -> int:
    """Opens no link, which may lead out of the run, and waits for no reader of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def finite_or_none(value: Any) -> Any:
    """Returns `value`, or None for a number that is not finite."""
    return None if isinstance(value, float) and not is_finite(value) else value
