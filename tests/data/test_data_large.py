"""A corpus larger than memory: the same tokens from any number of processes, and after any kill."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
from functools import partial
from random import Random

import corpora
import pytest
from corpora import BYTE, Branch, damage, files_of_at_most, stop_at, write_rows
from new_process import run_python

from transformer_norms.data import CORPORA, TOKENIZERS, documents, encoding, split
from transformer_norms.data.token_cache import PARTS
from transformer_norms.errors import StorageError

FORK = multiprocessing.get_context("fork")
SLICE = 4000
PAIRS = TOKENIZERS["bpe"](vocab_size=300)
ready = partial(corpora.ready, workers=1)


# Documents of all sizes, empty ones, copies far apart, and copies but for case and white space.
TEXTS = [f"Text {n} is {'even' if n % 2 == 0 else 'odd'}, é! " * (1 + n % 9) for n in range(400)]
COPIES = [f"\t{TEXTS[n].upper()}\n" for n in range(0, 400, 9)]
TEXTS = ["", *TEXTS, *TEXTS[5::40], "", *COPIES, ""]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The texts in two Parquet files, cut into slices that are much smaller than a corpus is."""
    monkeypatch.setattr(split, "MOST_CHARACTERS", SLICE)
    monkeypatch.setattr(documents, "SLICE", SLICE)
    monkeypatch.setattr(encoding, "BAND", 1500)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, texts in zip(files, (TEXTS[:300], TEXTS[300:]), strict=True):
        rows = [{"number": number, "text": text} for number, text in enumerate(texts)]
        write_rows(file, rows, row_group_size=37)
    return CORPORA["parquet"](paths=tuple(map(str, files)), val_paths=(), field="text")


def hashed_number(text):
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256


def workplace(tmp_path):
    return next(tmp_path.glob("cache/*.unfinished"))


def held_tokens(corpus, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "MOST_CHARACTERS", 10**9)
        patch.setenv("TRANSFORMER_NORMS_CACHE", os.environ["TRANSFORMER_NORMS_CACHE"] + "-held")
        return ready(corpus, *arguments)


@pytest.mark.goal("T5")
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
        count, size = len(numbered), sum(len(text.encode()) for _, text in numbered)
        assert tokens.facts[name] == {"documents": count, "bytes": size, "tokens": size + count}
    likes = {text.casefold().split()[1] for _, text in parts["train"]}
    val = [text.casefold().split()[1] in likes for _, text in parts["val"]]
    assert 0 < sum(val) < len(val)
    assert tokens.facts["repeated"] == sum(val) / len(val)
    assert not list(tmp_path.glob("cache/*.unfinished"))


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_memory_and_any_number_of_processes_give_the_same_tokens_and_facts(corpus, workers):
    sliced, held = ready(corpus, PAIRS, workers=workers), held_tokens(corpus, PAIRS)
    assert sliced.fingerprint == held.fingerprint
    assert sliced.facts == held.facts


class Recorded:
    """A tokenizer that keeps the text it is fitted to."""

    def identity(self):
        return {"type": "recorded"}

    def fit(self, train, separated, say, tell):
        self.train = list(train)
        return BYTE.fit([], separated, say, tell)


@pytest.mark.parametrize("prepared", [ready, held_tokens], ids=["sliced", "held"])
def test_a_tokenizer_is_fitted_to_all_of_train_and_to_nothing_else(corpus, prepared):
    choice = Recorded()
    prepared(corpus, choice)
    train = [text for text in TEXTS if text and hashed_number(text) >= 0.2]
    assert choice.train == sorted(train, key=hashed_number)
    prepared(corpus, choice, "tail")
    text = "".join(TEXTS)
    words = text[: int(len(text) * 0.9)].split()
    assert sorted(" ".join(choice.train).split()) == sorted(words)


def test_empty_slices_add_nothing(corpus):
    assert ready(Branch(TEXTS)).fingerprint == held_tokens(corpus).fingerprint


# Preparations that are stopped.


def kill_at(corpus, point, count, workers=1):
    """Runs a preparation that kills itself at the `count`-th news of a kind. Returns once its own
    processes have ended, too."""
    left, (reader, writer) = iter(range(count - 1)), os.pipe()

    def tell(what, done, total):
        if point in what and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def prepare():
        os.dup2(writer, 2)  # stderr, which its processes have too
        os.close(writer)
        ready(corpus, PAIRS, tell=tell, workers=workers)

    process = FORK.Process(target=prepare)
    process.start()
    os.close(writer)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with open(reader) as stderr:
        stderr.read()  # until nobody holds the other end


POINTS = [("learning", 1), ("MB", 1), ("MB", 7), ("writing val", 1)]
FEW = [
    pytest.param(*point, marks=[pytest.mark.nightly] * (at < 2)) for at, point in enumerate(POINTS)
]


@pytest.mark.parametrize(("point", "count"), FEW)
def test_a_killed_preparation_goes_on_with_the_slices_that_are_missing(
    corpus, tmp_path, monkeypatch, point, count
):
    kill_at(corpus, point, count)
    stored = list(tmp_path.glob("cache/*.unfinished/slices-*/manifest.json"))
    encoded, encode_work, lines = [], encoding.encode_work, []
    counted = lambda *a, **k: encoded.append(a) or encode_work(*a, **k)  # noqa: E731
    monkeypatch.setattr(encoding, "encode_work", counted)
    tokens = ready(corpus, PAIRS, say=lines.append)
    total = len(list(corpus.slices()))
    assert len(stored) == {"learning": 0, "MB": count, "writing val": total}[point]
    assert len(encoded) == total - len(stored)
    assert any("going on" in line for line in lines) == (point != "learning")
    assert tokens.fingerprint == held_tokens(corpus, PAIRS).fingerprint
    assert [path.name for path in tmp_path.glob("cache/*/")] == [tokens.folder.name]


@pytest.mark.nightly
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_a_killed_preparation_takes_its_processes_with_it(corpus, point, count):
    kill_at(corpus, point, count, workers=3)
    assert ready(corpus, PAIRS, workers=2).fingerprint == held_tokens(corpus, PAIRS).fingerprint


FILES = [f"slices-*/{name}" for name in ("ids.bin", "documents.bin", "manifest.json")]


@pytest.mark.parametrize("name", [*FILES, "tokenizer/tokenizer.json"])
def test_a_damaged_file_of_a_stopped_preparation_is_made_again_and_named_in_one_line(
    corpus, tmp_path, name, capfd
):
    with pytest.raises(KeyboardInterrupt):
        ready(corpus, PAIRS, tell=stop_at("MB", 5))
    file = sorted(workplace(tmp_path).glob(name))[2 * (name in FILES)]
    damage(file)
    tokens = ready(corpus, PAIRS, say=lambda line: print(line, file=sys.stderr))
    lines = capfd.readouterr().err.splitlines()
    assert [str(file) in line for line in lines if line.startswith("data: damaged")] == [True]
    assert tokens.fingerprint == held_tokens(corpus, PAIRS).fingerprint


@pytest.mark.goal("D2")
def test_a_disk_that_refuses_is_one_line_and_what_is_done_stays(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ready(corpus, tell=stop_at("MB", 2))
    said = r"ids\.bin: file too large"
    with files_of_at_most(100), pytest.raises(StorageError, match=said) as caught:
        ready(corpus)
    assert "\n" not in str(caught.value)
    assert len(list(workplace(tmp_path).glob("slices-*/"))) == 2
    assert ready(corpus).fingerprint == held_tokens(corpus).fingerprint


@pytest.mark.goal("D3")
def test_a_disk_too_small_is_seen_after_the_first_slice(corpus, tmp_path, monkeypatch):
    class Huge(Branch):
        # Its ids are asked for as a byte of text each before the first slice, and are four times
        # as many bytes.
        size = shutil.disk_usage(tmp_path).free // 2

    said = r"no space left \(\d+ bytes needed, \d+ bytes free\)"
    with pytest.raises(StorageError, match=said) as e:
        ready(Huge(TEXTS))
    needed = int(str(e.value).partition("(")[2].split()[0])
    sizes = [len(text.encode()) for text in TEXTS[:50] if text]
    expected = 2 * Huge.size * 2 * (sum(sizes) + len(sizes)) / sum(sizes)
    assert needed == pytest.approx(expected, rel=1e-6)


def test_a_preparation_that_goes_on_mixes_no_two_states_of_a_branch(monkeypatch):
    monkeypatch.setattr(split, "MOST_CHARACTERS", 1000)
    monday, tuesday = (
        Branch([f"{day}, text {number} " * 10 for number in range(200)])
        for day in ("Monday", "Tuesday")
    )
    with pytest.raises(KeyboardInterrupt):
        ready(monday, tell=stop_at("MB", 4))
    tokens = ready(tuesday)
    text = "".join(tokens.tokenizer.decode(getattr(tokens, part)) for part in PARTS)
    assert (text.count("Monday"), text.count("Tuesday")) == (0, 2000)


MEASURED = """
import resource, sys
from transformer_norms.data import CORPORA, TOKENIZERS, prepare
corpus = CORPORA["parquet"](paths=(sys.argv[1],), val_paths=(), field="text")
tokens = prepare(corpus, TOKENIZERS["byte"](), "hash", 0.05, 0, print, workers=int(sys.argv[2]))
# The kernel counts a parent into the ru_maxrss of what it starts, so VmHWM is read here.
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
own, workers = int(lines["VmHWM"].split()[0]), resource.getrusage(resource.RUSAGE_CHILDREN)
print(max(own, workers.ru_maxrss) * 1024)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_the_memory_of_a_process_does_not_grow_with_the_corpus(tmp_path, workers):
    """200 MB of text under a cap that the text and its ids break: 200 MB and 400 MB."""
    random = Random(0)
    for name in "abcd":
        rows = [{"text": random.randbytes(2000).hex()} for _ in range(12_500)]
        write_rows(tmp_path / f"{name}.parquet", rows, row_group_size=1000)
    out = run_python(MEASURED, tmp_path / "*.parquet", workers)
    assert int(out.splitlines()[-1]) < 500e6
