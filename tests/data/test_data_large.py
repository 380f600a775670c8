"""A corpus larger than memory: the same tokens from any number of processes, and after any kill."""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow
import pytest
from pyarrow import parquet

from transformer_norms.data import CORPORA, TOKENIZERS, documents, encoding, prepare, slices
from transformer_norms.data.slices import ReadTexts
from transformer_norms.errors import StorageError
from transformer_norms.storage.locks import wait_for_lock

ROOT = Path(__file__).resolve().parents[2]
BYTE = TOKENIZERS["byte"]()
SLICE = 4000


def written_texts():
    """Documents of all sizes, with empty ones, copies far apart, and copies but for case."""
    texts = [
        f"Text {n} is {'even' if n % 2 == 0 else 'odd'}, é! " * (1 + n % 9) for n in range(400)
    ]
    copies = [texts[n].upper() for n in range(0, 400, 9)]
    return ["", *texts, *texts[5::40], "", *copies, ""]


TEXTS = written_texts()


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The texts in two Parquet files, cut into slices that are much smaller than a corpus is."""
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(slices, "MOST_CHARACTERS", SLICE)
    monkeypatch.setattr(documents, "SLICE", SLICE)
    monkeypatch.setattr(encoding, "BAND", 1500)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, texts in zip(files, (TEXTS[:300], TEXTS[300:]), strict=True):
        table = pyarrow.table({"number": range(len(texts)), "text": texts})
        parquet.write_table(table, file, row_group_size=37)
    return CORPORA["parquet"](paths=tuple(map(str, files)), val_paths=(), field="text")


def hashed_number(text):
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256


def ready(corpus, tokenizer=BYTE, split="hash", workers=1, say=lambda line: None, **more):
    return prepare(corpus, tokenizer, split, 0.1, 0, say, workers=workers, **more)


def workplace(tmp_path):
    (folder,) = tmp_path.glob("cache/*.unfinished")
    return folder


def held_tokens(corpus, *arguments):
    """The tokens of the same corpus, encoded in memory and in another cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "MOST_CHARACTERS", 10**9)
        patch.setenv("TRANSFORMER_NORMS_CACHE", os.environ["TRANSFORMER_NORMS_CACHE"] + "-held")
        return ready(corpus, *arguments)


def test_the_tokens_of_many_slices_are_the_documents_in_the_order_of_their_hashes(corpus, tmp_path):
    parts = {"train": [], "val": [], "test": []}
    for text in TEXTS:
        number = hashed_number(text)
        part = "test" if number < 0.1 else "val" if number < 0.2 else "train"
        if text:
            parts[part].append((number, text))
    tokens = ready(corpus)
    assert len(list(corpus.slices())) > 10
    for name, numbered in parts.items():
        expected = [id for _, text in sorted(numbered) for id in [*text.encode(), 256]]
        assert getattr(tokens, name).tolist() == expected
        sizes = [len(text.encode()) for _, text in numbered]
        assert tokens.facts[name] == {
            "documents": len(sizes), "bytes": sum(sizes), "tokens": sum(sizes) + len(sizes)
        }  # fmt: skip
    likes = {text.casefold().split()[1] for _, text in parts["train"]}
    val = [text.casefold().split()[1] in likes for _, text in parts["val"]]
    assert 0 < sum(val) < len(val)
    assert tokens.facts["repeated"] == sum(val) / len(val)
    assert not list(tmp_path.glob("cache/*.unfinished"))


@pytest.mark.parametrize("split", ["hash", "tail"])
def test_slices_and_memory_give_the_same_tokens_and_facts(corpus, split):
    pairs = TOKENIZERS["bpe"](vocab_size=300)
    sliced, held = ready(corpus, pairs, split), held_tokens(corpus, pairs, split)
    assert sliced.fingerprint == held.fingerprint
    assert sliced.facts == held.facts


class Recorded:
    """A tokenizer that keeps the text it is fitted to."""

    def identity(self):
        return {"type": "recorded"}

    def fit(self, train, separated, say, tell):
        self.train = list(train)
        return BYTE.fit([], separated, say)


@pytest.mark.parametrize("prepared", [ready, held_tokens], ids=["sliced", "held"])
def test_a_tokenizer_is_fitted_to_all_of_train_and_to_nothing_else(corpus, prepared):
    choice = Recorded()
    prepared(corpus, choice)
    train = [text for text in TEXTS if text and hashed_number(text) >= 0.2]
    assert choice.train == sorted(train, key=hashed_number)
    prepared(corpus, choice, "tail")
    text = "".join(TEXTS)
    words = text[: int(len(text) * 0.9)].split(" ")
    assert sorted(" ".join(choice.train).split()) == sorted(filter(None, words))


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 3))]
)
@pytest.mark.parametrize("split", ["hash", pytest.param("tail", marks=pytest.mark.nightly)])
def test_any_number_of_processes_writes_the_same(corpus, workers, split):
    pairs = TOKENIZERS["bpe"](vocab_size=300)
    tokens = ready(corpus, pairs, split, workers)
    assert tokens.fingerprint == held_tokens(corpus, pairs, split).fingerprint


class Gaps:
    """A corpus that cuts itself, and some of its slices hold nothing."""

    floor, size = None, 0

    def identity(self):
        return {"type": "gaps"}

    def documents(self):
        return iter(TEXTS)

    def slices(self):
        for at in range(0, len(TEXTS), 50):
            yield ReadTexts([])
            yield ReadTexts(TEXTS[at : at + 50])
        yield ReadTexts([""])


def test_empty_slices_add_nothing(corpus):
    assert ready(Gaps()).fingerprint == held_tokens(corpus).fingerprint


# Preparations that are stopped.

KILLED = """
import os, signal, sys
from transformer_norms.data import CORPORA, TOKENIZERS, documents, encoding, prepare, slices
if __name__ == "__main__":
    slices.MOST_CHARACTERS = documents.SLICE = {slice}
    corpus = CORPORA["parquet"](paths={paths}, val_paths=(), field="text")
    count = 0
    def tell(what, done, total):
        global count
        count += {point!r} in what
        if count == {count}:
            print(os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    choice = TOKENIZERS["bpe"](vocab_size=300)
    prepare(corpus, choice, "hash", 0.1, 0, print, tell, workers={workers})
"""


def kill_at(corpus, tmp_path, point, count, workers=1):
    """Runs a preparation that kills itself at the `count`-th news of a kind."""
    paths = tuple(map(str, corpus.files))
    script = tmp_path / "killed.py"
    script.write_text(
        KILLED.format(slice=SLICE, paths=paths, point=point, count=count, workers=workers)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment
    )
    assert process.returncode == -signal.SIGKILL, process.stderr


POINTS = [("learning", 1), ("encoding", 1), ("encoding", 7), ("writing val", 1)]
FEW = [
    pytest.param(*point, marks=[pytest.mark.nightly] * (at < 2)) for at, point in enumerate(POINTS)
]


@pytest.mark.parametrize(("point", "count"), FEW)
def test_a_killed_preparation_goes_on_with_the_slices_that_are_missing(
    corpus, tmp_path, monkeypatch, point, count
):
    kill_at(corpus, tmp_path, point, count)
    stored = [file.parent.name for file in tmp_path.glob("cache/*.unfinished/run-*/manifest.json")]
    encoded, encode_work = [], encoding.encode_work
    monkeypatch.setattr(
        encoding, "encode_work", lambda *a, **k: encoded.append(a) or encode_work(*a, **k)
    )
    pairs, lines = TOKENIZERS["bpe"](vocab_size=300), []
    tokens = ready(corpus, pairs, say=lines.append)
    total = len(list(corpus.slices()))
    assert len(stored) == {"learning": 0, "encoding": count, "writing val": total}[point]
    assert len(encoded) == total - len(stored)
    assert any("going on" in line for line in lines) == (point != "learning")
    assert tokens.fingerprint == held_tokens(corpus, pairs).fingerprint
    assert [path.name for path in tmp_path.glob("cache/*/")] == [tokens.folder.name]


@pytest.mark.nightly
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_a_killed_preparation_takes_its_processes_with_it(corpus, tmp_path, point, count):
    kill_at(corpus, tmp_path, point, count, workers=3)
    # The pipes of stdout and stderr are closed, so that every process that wrote to them has ended.
    pairs = TOKENIZERS["bpe"](vocab_size=300)
    assert ready(corpus, pairs, workers=2).fingerprint == held_tokens(corpus, pairs).fingerprint


def stop_at(point, count):
    seen = 0

    def tell(what, done, total):
        nonlocal seen
        seen += point in what
        if seen == count:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize("name", ["ids.bin", "documents.bin", "manifest.json"])
def test_a_damaged_slice_is_said_in_one_line_and_encoded_again(corpus, tmp_path, name):
    with pytest.raises(KeyboardInterrupt):
        ready(corpus, tell=stop_at("encoding", 5))
    file = workplace(tmp_path) / "run-000002" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    lines = []
    tokens = ready(corpus, say=lines.append)
    damaged = [line for line in lines if "a slice was damaged" in line]
    assert len(damaged) == 1
    assert f"run-000002/{name}" in damaged[0]
    assert "\n" not in damaged[0]
    assert tokens.fingerprint == held_tokens(corpus).fingerprint


def test_a_damaged_tokenizer_is_fitted_again(corpus, tmp_path):
    pairs = TOKENIZERS["bpe"](vocab_size=300)
    with pytest.raises(KeyboardInterrupt):
        ready(corpus, pairs, tell=stop_at("encoding", 2))
    file = workplace(tmp_path) / "tokenizer" / "tokenizer.json"
    saved = json.loads(file.read_text())
    saved["ranks"][256:258] = saved["ranks"][257:255:-1]
    file.write_text(json.dumps(saved, sort_keys=True, separators=(",", ":")))
    assert ready(corpus, pairs).fingerprint == held_tokens(corpus, pairs).fingerprint


@pytest.mark.goal("D2")
def test_a_disk_that_refuses_is_one_line_and_what_is_done_stays(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ready(corpus, tell=stop_at("encoding", 2))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"ids\.bin: file too large") as caught:
            ready(corpus)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert len(list(workplace(tmp_path).glob("run-*"))) == 2
    assert ready(corpus).fingerprint == held_tokens(corpus).fingerprint


@pytest.mark.goal("D3")
def test_a_disk_too_small_is_seen_after_the_first_slice(corpus, tmp_path, monkeypatch):
    class Huge(Gaps):
        # Its ids are asked for as a byte of text each before the first slice, and are four times
        # as many bytes.
        size = shutil.disk_usage(tmp_path).free // 2

    with pytest.raises(
        StorageError, match=r"no space left \(\d+ bytes needed, \d+ bytes free\)"
    ) as e:
        ready(Huge())
    needed = int(str(e.value).partition("(")[2].split()[0])
    sizes = [len(text.encode()) for text in TEXTS[:50] if text]
    ids = sum(sizes) + len(sizes)
    assert needed == pytest.approx(2 * Huge.size * 2 * ids / sum(sizes), rel=1e-6)


def test_what_a_finished_preparation_left_is_removed_by_the_next(corpus, tmp_path):
    folder = ready(corpus).folder
    finished, other = (
        folder.parent / f"{name}.unfinished" for name in (folder.name, "tokens-other")
    )
    finished.mkdir()
    other.mkdir()
    with wait_for_lock(folder.with_suffix(".lock")):  # as a process that builds it again
        ready(corpus, split="tail")
    assert finished.exists()
    shutil.rmtree(ready(corpus, split="tail").folder)
    ready(corpus, split="tail")
    assert (finished.exists(), other.exists()) == (False, True)


MEASURED = """
import resource
from transformer_norms.data import CORPORA, TOKENIZERS, prepare
if __name__ == "__main__":
    corpus = CORPORA["parquet"](paths=({pattern!r},), val_paths=(), field="text")
    tokens = prepare(corpus, TOKENIZERS["byte"](), "hash", 0.05, 0, print, workers={workers})
    # The kernel counts a parent into the ru_maxrss of what it starts, so VmHWM is read here.
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    own, workers = int(lines["VmHWM"].split()[0]), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(max(own, workers.ru_maxrss) * 1024)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_the_memory_of_a_process_does_not_grow_with_the_corpus(tmp_path, monkeypatch, workers):
    """200 MB of text under a cap that the text and its ids break: 200 MB and 400 MB."""
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    random = Random(0)
    for name in "abcd":
        texts = [random.randbytes(2000).hex() for _ in range(12_500)]
        table = pyarrow.table({"text": texts})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)
    script = tmp_path / "measured.py"
    script.write_text(MEASURED.format(pattern=str(tmp_path / "*.parquet"), workers=workers))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert int(out.splitlines()[-1]) < 500e6
