import errno
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from corpora import DAMAGES, TEXTS, Listed, damage, files_of_at_most, ready, stop_at

from transformer_norms.data import TOKENIZERS, token_cache
from transformer_norms.data.token_cache import dtype_for, entry_key, pack_ids, read_ids
from transformer_norms.errors import InputError, StorageError
from transformer_norms.storage.files import sha256
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.storage.manifest import DamagedError, verify_folder


def entry_of(cache):
    (folder,) = cache.glob("tokens-*/")
    return folder


def test_a_corpus_of_your_own_that_is_edited_has_other_tokens(cache, tmp_path, monkeypatch):
    """Its identity says what it said before."""
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("one", "other"):
        (tmp_path / "own_corpus.py").write_text(
            "class Own:\n    floor = None\n    def identity(self): return {'type': 'own'}\n"
            f"    def documents(self): return ['{text} text ' + str(i) for i in range(40)]\n"
        )
        sys.modules.pop("own_corpus", None)
        importlib.invalidate_caches()
        ready(importlib.import_module("own_corpus").Own())
    assert len(list(cache.glob("tokens-*/"))) == 2


def test_what_a_long_build_has_is_kept_where_its_entry_cannot_get_its_name(cache, monkeypatch):
    kept = token_cache.workplace(cache / "tokens-key")
    kept.mkdir(parents=True)

    def full(*paths):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "rename", full)
    arguments = cache / "tokens-key", lambda draft: {}, lambda *opened: opened, print, print
    with pytest.raises(StorageError):
        token_cache.open_or_build(*arguments)
    assert kept.is_dir()


def test_a_second_opening_reads_no_text():
    corpus = Listed()
    first, second = ready(corpus), ready(corpus)
    assert corpus.reads == 1
    assert np.array_equal(first.train, second.train)
    assert not first.train.flags.writeable
    assert first.fingerprint == second.fingerprint
    assert (first.facts["floor"], first.facts["uniform"]) == (0.5, np.log(257))


def mutations():
    longer = [*TEXTS[:-1], TEXTS[-1] + "."]
    yield "a letter", {"corpus": Listed(longer)}
    yield "a document less", {"corpus": Listed(TEXTS[:-1])}
    yield "a document twice", {"corpus": Listed([*TEXTS, TEXTS[0]])}
    yield "another corpus", {"corpus": Listed(name="other")}
    yield "split", {"split": "tail"}
    yield "share", {"shares": (0.2, 0)}
    yield "split and test", {"split": "tail", "shares": (0.1, 0.1)}
    yield "tokenizer", {"tokenizer": TOKENIZERS["bpe"](vocab_size=270)}
    yield "its size", {"tokenizer": TOKENIZERS["bpe"](vocab_size=271)}


def edited_sources():
    """Each file of the code that makes tokens, edited; the schema decides the type of the ids."""
    folder = Path(token_cache.__file__).parent
    for file in (*folder.rglob("*.py"), folder / "stories.yaml"):
        yield "sha256", lambda path, file=file: sha256(path) + "#" * (path == file)
    yield "SCHEMA", token_cache.SCHEMA + 1


@pytest.mark.goal("T3")
def test_each_change_of_the_input_and_of_the_code_is_another_entry(cache, monkeypatch, measured):
    ready()
    for count, (name, change) in enumerate(mutations(), start=2):
        ready(**change)
        assert len(list(cache.glob("tokens-*/"))) == count, name
    keys = [entry_key({})]
    for name, value in edited_sources():
        with monkeypatch.context() as patch:
            patch.setattr(token_cache, name, value)
            keys.append(entry_key({}))
    assert len(set(keys)) == len(keys)
    assert count - 1 + len(keys) - 1 >= 20
    measured(f"{count - 1} changes of the input and {len(keys) - 1} of the code, as many misses")


def test_the_fingerprint_is_of_content_alone():
    same = [Listed(list(reversed(TEXTS))), Listed(name="other")]
    assert {ready(corpus).fingerprint for corpus in same} == {ready().fingerprint}
    others = {"corpus": Listed([*TEXTS, "new"])}, {"tokenizer": TOKENIZERS["bpe"](vocab_size=270)}
    assert len({ready(**other).fingerprint for other in ({}, *others)}) == 3


@pytest.mark.goal("T3")
@pytest.mark.parametrize("name", ["train.bin", "val.bin", "tokenizer.json", "manifest.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_said_in_one_line_and_built_again(cache, name, how):
    before = ready()
    train = before.train.copy()
    damage(entry_of(cache) / name, how)
    lines, corpus = [], Listed()
    after = ready(corpus, say=lines.append)
    assert corpus.reads == 1
    assert [bool(line.isprintable()) for line in lines if "damaged" in line] == [True]
    assert after.fingerprint == before.fingerprint
    assert np.array_equal(train, after.train)


@pytest.mark.goal("T3")
def test_every_bit_flip_in_a_shard_is_seen(cache, measured):
    ready()
    file = entry_of(cache) / "val.bin"
    good = file.read_bytes()
    places = range(0, len(good), max(1, len(good) // 40))
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        file.write_bytes(bad)
        with pytest.raises(DamagedError, match=r"val\.bin"):
            verify_folder(file.parent, token_cache.SCHEMA)
    measured(f"{len(places)} of {len(places)} flipped bits of a shard seen")


@pytest.mark.goal("T4")
def test_ids_beyond_two_bytes_are_stored_in_four(tmp_path, measured):
    assert [dtype_for(size) for size in (257, 65_536, 65_537)] == ["<u2", "<u2", "<u4"]
    for size in (65_536, 65_537):
        packed = pack_ids(np.array([0, size - 1], np.uint32), size)
        (tmp_path / "train.bin").write_bytes(packed)
        assert read_ids(tmp_path, "train", dtype_for(size)).tolist() == [0, size - 1]
    with pytest.raises(AssertionError):
        pack_ids(np.array([65_536]), 65_536)
    measured("id 65,536 of 65,537 comes back as itself, and is refused of 65,536")


@pytest.mark.goal("D2")
def test_a_disk_that_refuses_raises_and_leaves_nothing_that_passes_as_complete(cache):
    said = r"train\.bin: file too large \(\d+ bytes free\)"
    with files_of_at_most(2000), pytest.raises(StorageError, match=said):
        ready()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert len(ready().train) > 2000


def test_what_progress_raises_ends_the_building_and_leaves_no_trace(cache):
    with pytest.raises(KeyboardInterrupt):
        ready(tell=stop_at(""))
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_progress_counts_all_bytes():
    seen = []
    ready(tell=lambda what, *far: seen.append(far) if "MB" in what else None)
    assert len(seen) >= len(TEXTS)  # one for each stretch
    total = sum(len(text) for text in TEXTS) / 1e6
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_what_dead_builders_left_is_removed_and_what_live_ones_write_is_not(cache):
    for key in ("dead", "live"):
        (cache / f".tmp-1-tokens-{key}").mkdir(parents=True)
    with wait_for_lock(cache / ".tmp-1-tokens-live"):
        ready()
    assert {path.name for path in cache.glob(".tmp-*")} == {".tmp-1-tokens-live"}


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    home = tmp_path / "home"
    names = {"TRANSFORMER_NORMS_CACHE": tmp_path, "XDG_CACHE_HOME": tmp_path, "HOME": home}
    for name, folder in names.items():
        monkeypatch.setenv(name, str(folder))
    parts = ("",), ("transformer_norms",), (".cache", "transformer_norms")
    for (name, folder), below in zip(names.items(), parts, strict=True):
        assert token_cache.cache_folder() == folder.joinpath(*below)
        monkeypatch.delenv(name)


def test_too_short_a_text_for_a_context_is_refused_with_both_numbers():
    tokens = ready(Listed(["abc" * 100]))
    tokens.check(120)
    with pytest.raises(InputError, match=r"listed: train has 240 tokens.*context=121 needs 242"):
        tokens.check(121)


@pytest.mark.goal("T5")
@pytest.mark.parametrize(
    ("texts", "part", "split", "shares"),
    [
        ([], "train", "hash", (0.1, 0)),
        (["a" * 9], "val", "hash", (0.001, 0)),
        (["a" * 9], "test", "tail", (0.1, 0.001)),
    ],
)
def test_a_part_without_text_is_refused(texts, part, split, shares):
    class NeverFitted(TOKENIZERS["byte"]):
        def fit(self, *given):
            raise AssertionError

    with pytest.raises(InputError, match=rf"no text falls into {part} with data\.split="):
        ready(Listed(texts), NeverFitted(), split=split, shares=shares)


def test_hashes_are_computed_once_a_process(cache, monkeypatch):
    ready()
    entry, hashed = entry_of(cache), []
    recorded = lambda file: hashed.append(file) or sha256(file)  # noqa: E731
    monkeypatch.setattr(token_cache, "sha256", recorded)
    ready()
    assert not [file for file in hashed if file.parent == entry]
    os.utime(entry / "val.bin")
    ready()
    assert [file for file in hashed if file.parent == entry] == [entry / "val.bin"]


def test_notes_of_a_corpus_that_cannot_be_called_are_left_out():
    corpus = Listed()
    corpus.notes = "some text"
    assert ready(corpus).facts["notes"] == ready(Listed(name="other")).facts["notes"]
