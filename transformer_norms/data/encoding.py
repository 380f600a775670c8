"""Encodes slices of a corpus, on many processes if it is large, and joins what they wrote.

An encoded slice is the ids of its documents, sorted by the places that the split gives them, and an
index of the documents. Sorted slices are merged as in any external sort: a band of places after the
other is read from every slice. So the memory is bounded, and the ids do not depend on the slices.
Each encoded slice of a large corpus lies in a folder with a manifest. So a preparation that was
stopped goes on with the slices that are missing.
"""

import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms import signals
from transformer_norms.data.split import Placed, Work
from transformer_norms.data.token_cache import PARTS, TOKENIZER, dtype_for, open_or_build, pack_ids
from transformer_norms.data.tokenizer import Tokenizer, load_tokenizer
from transformer_norms.errors import InputError
from transformer_norms.progress import say, tell_nobody
from transformer_norms.storage.manifest import Draft
from transformer_norms.storage.reading import read_json
from transformer_norms.streams import guard_streams

BAND = 2**25  # ids that are merged at once
STRETCH = 256  # words of two bytes, each an id or half of one
AT_ONCE = 2**16  # stretches whose hashes fit into a cache of the processor
INDEX = np.dtype([("part", "u1"), ("place", "<u8"), ("bytes", "<u4"), ("tokens", "<u4"),
                  ("likeness", "<u8"), ("changed", "?")])  # fmt: skip
FITTED = "tokenizer"  # the entry in the folder of a preparation that has its tokenizer
_IDS, _DOCUMENTS = "ids.bin", "documents.bin"
Pool = Callable[[Callable[..., Any], Iterable[tuple]], Iterator[Any]]  # as itertools.starmap


@dataclass(frozen=True)
class EncodedSlice:
    """The documents of a slice in the order of their parts and places. The ids, in memory or in a
    file, hold one document after the other."""

    index: np.ndarray
    ids: np.ndarray | Path
    dtype: str

    def read(self, start: int, stop: int) -> Any:
        if isinstance(self.ids, np.ndarray):
            return self.ids[start:stop]
        offset = start * np.dtype(self.dtype).itemsize
        return np.fromfile(self.ids, self.dtype, stop - start, offset=offset)


def encode_work(
    work: Work,
    tokenizer: Tokenizer,
    separated: bool,
    threads: int | None = None,
    tell: Callable[[int], object] = lambda encoded: None,
) -> EncodedSlice:
    """Encodes a slice in memory, on so many threads. Calls `tell` with the bytes of each stretch
    that was encoded."""
    # Sorting keeps the order of the places.
    placed = sorted(work.placed(), key=lambda text: PARTS.index(text.part))
    index = np.array([_describe(text, separated) for text in placed], INDEX)
    size, dtype = tokenizer.vocab_size, dtype_for(tokenizer.vocab_size)
    packed = []
    for one in tokenizer.encode_documents((text.text for text in placed), separated, threads):
        packed.append(pack_ids(one, size))
        tell(int(tokenizer.byte_lengths[one].sum()))
    ids = np.frombuffer(b"".join(packed), dtype)
    del packed  # which is as large again
    if separated:
        index["tokens"] = np.diff(np.flatnonzero(ids == tokenizer.end), prepend=-1)
    else:
        assert len(placed) <= 1, "only an end tells documents apart"
        index["tokens"] = ids.size
    if not tokenizer.exact:
        for row, stop, text in zip(index, np.cumsum(index["tokens"]), placed, strict=True):
            pieces = map(tokenizer.pieces.__getitem__, ids[stop - row["tokens"] : stop].data)
            row["changed"] = b"".join(pieces) != text.text.encode()
    return EncodedSlice(index, ids, dtype)


def _describe(placed: Placed, separated: bool) -> tuple[int, int, int, int, int, bool]:
    """The row of a document in the index; its tokens and what they spell are left open. Only the
    likeness of separated documents is compared; running text may be as long as memory."""
    normalized = " ".join(placed.text.split()).casefold().encode() if separated else b""
    likeness = int.from_bytes(hashlib.blake2b(normalized, digest_size=8).digest(), "little")
    size = len(placed.text.encode())
    return PARTS.index(placed.part), placed.place, size, 0, likeness, False


class MergedSlices:
    """All slices of a corpus as one: the index of all documents, and the ids of each part."""

    def __init__(self, slices: Sequence[EncodedSlice]) -> None:
        self.reads = [one.read for one in slices]
        sizes = [len(one.index) for one in slices]
        self.source = np.repeat(np.arange(len(slices), dtype=np.uint32), sizes)
        self.index = np.concatenate([one.index for one in slices])
        tokens = (one.index["tokens"] for one in slices)
        self.stops = np.concatenate([np.cumsum(counts, dtype=np.int64) for counts in tokens])
        self.starts = self.stops - self.index["tokens"]

    def sizes(self, part: str) -> dict[str, int]:
        """How many documents, bytes and tokens a part has."""
        rows = self.index[self.index["part"] == PARTS.index(part)]
        sums = {key: int(rows[key].sum(dtype=np.int64)) for key in ("bytes", "tokens")}
        return {"documents": len(rows), **sums}

    def repeated_share(self) -> float:
        """The share of val's documents that are also in train, but for case and white space."""
        likeness, part = self.index["likeness"], self.index["part"]
        train, val = (likeness[part == PARTS.index(name)] for name in ("train", "val"))
        return float(np.isin(val, train).sum() / max(len(val), 1))

    def share_in_train(self, part: str) -> float:
        """The share of a part's stretches whose ids are in train too, at any place."""
        stretches = [one for some in _hashes(self.ids(part)) for one in some[::STRETCH].tolist()]
        wanted, known = set(stretches), set[int]()
        maybe = np.zeros(2**20, bool)  # rules out most hashes of train by their first 20 bits
        maybe[[one >> 44 for one in wanted]] = True
        for hashes in _hashes(self.ids("train") if wanted else ()):
            known |= wanted.intersection(hashes[maybe[hashes >> np.uint64(44)]].tolist())
        return sum(one in known for one in stretches) / max(len(stretches), 1)

    def ids(self, part: str) -> Iterator[bytes]:
        """Yields the ids of a part in the order of its places, a band of documents at a time."""
        chosen = np.flatnonzero(self.index["part"] == PARTS.index(part))
        if not chosen.size:
            return
        order = chosen[np.argsort(self.index["place"][chosen], kind="stable")]
        bands = np.cumsum(self.index["tokens"][order], dtype=np.int64) // BAND
        for rows in np.split(order, np.flatnonzero(np.diff(bands)) + 1):
            source, starts, stops = self.source[rows], self.starts[rows], self.stops[rows]
            first, ids = {}, {}
            by_slice = np.argsort(source, kind="stable")
            for mine in np.split(by_slice, np.flatnonzero(np.diff(source[by_slice])) + 1):
                # A slice is sorted too, so all that it has of a band lies in one stretch.
                one, start = int(source[mine[0]]), int(starts[mine[0]])
                first[one], ids[one] = start, self.reads[one](start, int(stops[mine[-1]]))
            documents = zip(source.tolist(), starts.tolist(), stops.tolist(), strict=True)
            yield b"".join(
                ids[one][start - first[one] : stop - first[one]] for one, start, stop in documents
            )


def _hashes(bands: Iterable[bytes]) -> Iterator[np.ndarray]:
    """The hashes of the STRETCH words from each word on: polynomials of the words modulo 2^64."""
    for ids in bands:
        for start in range(0, len(ids), 2 * AT_ONCE):
            words = np.frombuffer(ids[start : start + 2 * (AT_ONCE + STRETCH - 1)], "<u2")
            hashes, width = words.astype(np.uint64), 1
            while width < STRETCH:
                factor = np.uint64(pow(0x9E3779B97F4A7C15, width, 2**64))
                hashes, width = hashes[:-width] * factor + hashes[width:], 2 * width
            yield hashes


# These functions read the files that a stopped preparation has left in its folder.


@cache
def _stored_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(read_json(folder / FITTED / TOKENIZER))


def slice_folder(folder: Path, work: Work) -> Path:
    """Returns the folder of a slice. Its name has the hash of the slice's file and rows, or of its
    text where it is read: what a corpus names may change, as a branch on the hub."""
    return folder / f"slices-{hashlib.sha256(pickle.dumps(work)).hexdigest()}"


def store_slice(work: Work, folder: Path) -> EncodedSlice:
    """Returns the encoded documents of a slice, which are stored in `folder` unless they are."""
    tokenizer = _stored_tokenizer(folder.parent)
    dtype = dtype_for(tokenizer.vocab_size)

    def build(draft: Draft) -> dict[str, Any]:
        encoded = encode_work(work, tokenizer, separated=True, threads=1)
        ids = encoded.read(0, int(encoded.index["tokens"].sum()))
        draft.write(_IDS, [memoryview(ids).cast("B")])
        draft.write(_DOCUMENTS, [encoded.index.tobytes()])
        return {}

    def read(entry: Path, manifest: dict[str, Any]) -> EncodedSlice:
        return EncodedSlice(np.fromfile(entry / _DOCUMENTS, INDEX), entry / _IDS, dtype)

    return open_or_build(folder, build, read, say, tell_nobody)


# Processes.


@contextmanager
def open_pool(count: int) -> Iterator[Pool]:
    """Gives what calls a function with each tuple of arguments on `count` processes, or in this one
    if `count` is 1, during a `with`. The results are in the order of the arguments.

    All of them can be pickled. Two tuples a process are read ahead.
    """
    # The children of a daemon could outlive it, so that Python forbids them.
    if count == 1 or multiprocessing.current_process().daemon:
        yield starmap
        return
    from pebble import ProcessPool

    signals.start_tracker()
    with signals.withhold_signals():
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPool(count, initializer=_prepare_worker, context=spawn)
        pool.active  # noqa: B018  starts processes, and the thread that starts others

    def call_ahead(call: Callable[..., Any], arguments: Iterable[tuple]) -> Iterator[Any]:
        waiting: deque[Any] = deque()
        for given in arguments:
            waiting.append(pool.submit(call, None, *given))
            if len(waiting) == 2 * count:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())

    try:
        yield call_ahead
    except BaseException:
        pool.stop()
        raise
    else:
        pool.close()
    finally:
        pool.join()


def _result(future: Any) -> Any:
    from pebble import ProcessExpired

    try:
        return future.result()
    except ProcessExpired as error:
        raise InputError(
            f"data: a process that encoded was ended from outside ({error}); where memory is short "
            "use fewer cores, e.g. taskset -c 0-3 and the same command, which goes on"
        ) from None


def _prepare_worker() -> None:
    guard_streams()
    signals.let_through(signal.SIGTERM)  # by which the pool ends it; the others are its parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
