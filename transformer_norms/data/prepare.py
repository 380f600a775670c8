"""Prepares the tokens of a corpus: from the cache, or read, split, encoded and put there."""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer_norms.data.documents import Corpus
from transformer_norms.data.encoding import (
    FITTED,
    EncodedSlice,
    MergedSlices,
    Pool,
    encode_work,
    open_pool,
    slice_folder,
    store_slice,
)
from transformer_norms.data.split import (
    LowestTexts,
    ReadTexts,
    Split,
    read_corpus,
    split_corpus,
    train_texts,
)
from transformer_norms.data.token_cache import (
    ELSEWHERE,
    PARTS,
    TOKENIZER,
    Tokens,
    cache_folder,
    canonical_json,
    dtype_for,
    entry_key,
    open_entry,
    open_or_build,
    workplace,
)
from transformer_norms.data.tokenizer import Tokenizer, load_tokenizer
from transformer_norms.errors import InputError, StorageError
from transformer_norms.processes import cores
from transformer_norms.progress import Say, Tell, tell_nobody
from transformer_norms.storage.files import as_storage_error, preflight
from transformer_norms.storage.loaded_code import hash_loaded
from transformer_norms.storage.manifest import Draft
from transformer_norms.storage.reading import read_json

PACKAGE = __name__.partition(".")[0]
_VOCABULARY = 4 << 20  # bytes of the largest tokenizer, and of small files


@runtime_checkable
class TokenizerChoice(Protocol):
    """A tokenizer that a config names. `fit` makes it, and sees only the train part: all of it, or
    a fair sample where it is long. A tokenizer that learns nothing does not read it."""

    def identity(self) -> dict: ...
    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer: ...


def prepare(
    corpus: Corpus,
    tokenizer: TokenizerChoice,
    split: str,
    val_fraction: float,
    test_fraction: float,
    say: Say,
    tell: Tell = tell_nobody,
    workers: int | None = None,
    elsewhere: Mapping[Path, int] | None = None,
) -> Tokens:
    """Returns the tokens of a corpus. Raises InputError, or StorageError for an unusable cache.

    `tell` is called often while encoding, and while waiting for another process. If it raises an
    exception, the preparation ends. A corpus that fits into memory leaves no trace then; a larger
    one is encoded by `workers` processes, one a core if it is None, and goes on later from the
    slices that are done. The tokens do not depend on `workers`. There has to be space on the disk
    for what the same command will write `elsewhere`, too.
    """
    content = {
        "corpus": identity_of(corpus),
        "tokenizer": tokenizer.identity(),
        "split": split,
        "val_fraction": val_fraction,
        "test_fraction": test_fraction,
    }
    folder = cache_folder() / f"tokens-{entry_key(content | own_code(corpus, tokenizer))}"
    count = workers or cores()
    preparation = Preparation(
        corpus, tokenizer, content, workplace(folder), count, say, tell, elsewhere
    )
    try:
        return open_or_build(folder, preparation.write, open_entry, say, tell)
    except OSError as error:
        if refusal := as_storage_error(error):
            raise StorageError(f"{refusal}; {ELSEWHERE}") from error
        raise


def own_code(*makers: object) -> dict[str, dict[str, str]]:
    """Returns the hashes of the files of classes that are not this package's, or nothing: a corpus
    that reads otherwise after an edit of its file has other tokens, also where its identity is the
    same. Imports of the file do not count."""
    files = {}
    for own in map(type, makers):
        if own.__module__.partition(".")[0] != PACKAGE:
            with suppress(OSError, TypeError):  # a notebook's has no file
                file = Path(inspect.getfile(own))
                files[f"{file.name}/{own.__name__}"] = file
    return {"code": hash_loaded(files)} if files else {}


def identity_of(corpus: Corpus) -> dict:
    """Returns what identifies the corpus in hashes. Raises InputError if the corpus, which may be a
    plugin's, has no `type` in its identity or no `floor`."""
    identity, name = corpus.identity(), type(corpus).__name__
    if not isinstance(identity, dict) or not isinstance(identity.get("type"), str):
        raise InputError(
            f"data: {name}.identity() returns {identity!r}; wanted is a dict with type"
        )
    if not hasattr(corpus, "floor"):
        raise InputError(f"data: {name}.floor is missing: nats per UTF-8 byte, or None")
    return identity


@dataclass
class Preparation:
    """One preparation of a corpus that is not in the cache. `folder` is the workplace of a large
    one, `notes` are lines that also belong to the record of a run."""

    corpus: Corpus
    choice: TokenizerChoice
    content: dict
    folder: Path
    workers: int
    say: Say
    tell: Tell
    elsewhere: Mapping[Path, int] | None = None
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.notes.append(line)
        self.say(line)

    def write(self, draft: Draft) -> dict[str, Any]:
        self.say(f"data: reading {self.content['corpus']['type']}")
        held = read_corpus(self.corpus, self.content["split"], self.tell)
        # A word that takes two bytes as an id has more in a text. A slice of a corpus that is not
        # held tells its ids in a byte later.
        size = held.size + len(held.texts) if held else getattr(self.corpus, "size", 0) // 2
        preflight(self.folder, 2 * size + _VOCABULARY, self.elsewhere)
        keys = ("split", "val_fraction", "test_fraction")
        split = split_corpus(held or self.corpus, *(self.content[key] for key in keys))
        notes = getattr(self.corpus, "notes", None)  # of a plugin's corpus it may be anything
        for line in filter(None, (*(notes() if callable(notes) else ()), split.note)):
            self.note(line)
        if split.sizes:
            self._check_parts(split, split.sizes)
        tokenizer, encoded = self._encode(split, held)
        return self._write_parts(draft, split, tokenizer, MergedSlices(encoded))

    def _check_parts(self, split: Split, sizes: Mapping[str, int]) -> None:
        """Raises InputError where a part that is asked for has no text."""
        test = self.content["test_fraction"]
        shares = f"data.val_fraction={self.content['val_fraction']:g}"
        shares += f" data.test_fraction={test:g}" if test else ""
        for part in PARTS if test else ("train", "val"):
            if not sizes[part]:
                raise InputError(
                    f"data={self.content['corpus']['type']}: no text falls into {part} with "
                    f"data.split={split.rule} {shares}; use more text or other shares"
                )

    def _encode(self, split: Split, held: ReadTexts | None) -> tuple[Tokenizer, list[EncodedSlice]]:
        """Encodes the corpus slice by slice: in memory if it is held there, else on all workers,
        where each slice that is done is on disk."""
        slices: list[EncodedSlice] = []
        done, size = 0, held.size if held else getattr(self.corpus, "size", 0)

        def tell(count: int) -> None:
            nonlocal done
            done += count
            self.tell("data: encoding {:.0f}/{:.0f} MB", done / 1e6, max(size, done) / 1e6)

        with open_pool(1 if held else self.workers) as pool:
            tokenizer = self._fit(split, pool) if held else self._fit_once(split, pool)
            self.tell("data: encoding", 0, 0)
            if held:
                works = split.work()
                slices += [encode_work(one, tokenizer, split.separated, tell=tell) for one in works]
                return tokenizer, slices
            jobs = ((work, slice_folder(self.folder, work)) for work in split.work())
            for one in pool(store_slice, jobs):
                slices.append(one)
                if done == 0:
                    self._check_space(one)
                tell(int(one.index["bytes"].sum(dtype=np.int64)))
        return tokenizer, slices

    def _fit_once(self, split: Split, pool: Pool) -> Tokenizer:
        """Returns the tokenizer that a stopped preparation has stored, or stores a fresh one."""
        before = len(self.notes)
        if list(self.folder.glob("slices-*/")):
            self.say(f"data: going on with what a stopped preparation left in {self.folder}")

        def build(draft: Draft) -> dict[str, Any]:
            tokenizer = self._fit(split, pool)
            draft.write(TOKENIZER, [canonical_json(tokenizer.save())])
            return {"notes": self.notes[before:]}

        def read(entry: Path, manifest: dict[str, Any]) -> Tokenizer:
            self.notes[before:] = manifest["notes"]
            return load_tokenizer(read_json(entry / TOKENIZER))

        return open_or_build(self.folder / FITTED, build, read, self.say, tell_nobody)

    def _fit(self, split: Split, pool: Pool) -> Tokenizer:
        train = self._train_texts(split, pool)
        return self.choice.fit(train, split.separated, self.note, self.tell)

    def _train_texts(self, split: Split, pool: Pool) -> Iterator[str]:
        """Yields the text of train that a tokenizer is fitted to. Until then nothing is read."""
        lowest = LowestTexts()
        asked = ((work, split.separated, lowest.below) for work in split.work())
        for texts in pool(train_texts, asked):
            lowest.add(texts)
            phrase = "data: choosing {:.0f} million characters of train"
            self.tell(phrase, lowest.characters / 1e6, 0)
        chosen = lowest.texts()
        if lowest.left_out:
            self.note(
                f"tokenizer: fitted to {lowest.characters / 1e6:.0f} million characters of train, "
                "the texts of lowest hash"
            )
        yield from chosen

    def _check_space(self, first: EncodedSlice) -> None:
        """Raises StorageError unless there is space for the ids of all slices, twice: before and
        after they are joined. The first tells how many bytes of ids there are in a byte."""
        tokens, size = (int(first.index[key].sum(dtype=np.int64)) for key in ("tokens", "bytes"))
        ids = tokens * np.dtype(first.dtype).itemsize
        whole = getattr(self.corpus, "size", 0) * ids // max(size, 1)
        stored = sum(file.stat().st_size for file in self.folder.glob("slices-*/ids.bin"))
        preflight(self.folder, 2 * whole - stored, self.elsewhere)

    def _write_parts(
        self, draft: Draft, split: Split, tokenizer: Tokenizer, joined: MergedSlices
    ) -> dict[str, Any]:
        """Writes the ids of each part. Returns what is to be known about them."""
        facts: dict[str, Any] = self.content | {"split": split.rule, "separated": split.separated}
        facts |= {part: joined.sizes(part) for part in PARTS}
        self._check_parts(split, {part: facts[part]["bytes"] for part in PARTS})
        for part in PARTS:
            self.tell(f"data: writing {part}", 0, 0)
            draft.write(f"{part}.bin", joined.ids(part))
        facts["uniform"] = math.log(tokenizer.vocab_size)
        facts["repeated"] = joined.repeated_share()
        if split.separated and facts["repeated"]:
            self.note(f"data: {facts['repeated']:.1%} of val's documents are also in train, nearly")
        for part in ("val", "test"):
            if split.rule != "hash" and (share := joined.share_in_train(part)) >= 1e-4:
                self.note(
                    f"data: {share:.2%} of {part}'s text is also in train; a loss on text that was "
                    "trained on says nothing about new text"
                )
        if changed := int(joined.index["changed"].sum()):
            self.note(
                f"tokenizer: changes {changed:,} of {len(joined.index):,} texts (a normalizer, or "
                "characters without a token); bits per byte are of the text that its tokens spell, "
                "and cannot be compared with those of another tokenizer"
            )
        facts |= {"floor": self.corpus.floor, "notes": self.notes}
        draft.write(TOKENIZER, [canonical_json(tokenizer.save())])
        return {"dtype": dtype_for(tokenizer.vocab_size), "facts": facts}
