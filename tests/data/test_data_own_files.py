"""The user's own files: text that a typed separator cuts, and validation text of their own."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusing import refused

from transformer_norms import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.data import TOKENIZERS
from transformer_norms.data.documents import JsonLines, TextFiles
from transformer_norms.data.prepare import prepare
from transformer_norms.errors import InputError
from transformer_norms.run.identity import run_hash
from transformer_norms.run.plan import Plan

STORIES = [f"story {n} tells of {n * n} cats.\nIt ends." for n in range(120)]
NONE = {"val_paths": (), "separator": "none"}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    Path("train.txt").write_text("\n\n".join(STORIES))
    Path("val.txt").write_text("a held out story\n\nand another one\n\nstory 3")


def tokens_of(corpus, split="hash", shares=(0.1, 0)):
    return prepare(corpus, TOKENIZERS["byte"](), split, *shares, print)


def documents(ids):
    ends = np.flatnonzero(ids == 256)
    return [bytes(part[:-1].astype("u1")).decode() for part in np.split(ids, ends + 1)[:-1]]


def test_only_a_typed_separator_cuts_a_file():
    assert list(TextFiles(paths=("train.txt",), **NONE).documents()) == ["\n\n".join(STORIES)]
    plain = tokens_of(TextFiles(paths=("train.txt",), **NONE))
    assert (plain.facts["split"], plain.vocab_size) == ("position", 256)
    whole = b"".join(bytes(part.astype("u1")) for part in (plain.train, plain.val, plain.test))
    assert whole.decode() == "\n\n".join(STORIES)
    cut = tokens_of(TextFiles(paths=("train.txt",), val_paths=(), separator="\\n\\n"))
    assert (cut.facts["split"], cut.vocab_size) == ("hash", 257)
    parts = [documents(np.array(part)) for part in (cut.train, cut.val, cut.test)]
    assert sorted(sum(parts, [])) == sorted(STORIES)
    with pytest.raises(InputError, match=r"3 document\(s\) with it"):
        tokens_of(TextFiles(paths=("val.txt",), val_paths=(), separator="\\n\\n"))


@pytest.mark.parametrize(
    ("typed", "text"),
    [("\\n\\n", "\n\n"), ("\n\n", "\n\n"), ("<|endoftext|>", "<|endoftext|>"), ("'\\n'", "\n"),
     ("\\t, [x]", "\t, [x]"), ("---", "---"), ("a\\\\n", "a\\n"), ("=", "=")],
)  # fmt: skip
def test_a_separator_is_read_as_it_is_typed(typed, text):
    keys = ["data=text", "data.paths=train.txt", "tracking=none"]
    config = compose([*keys, f"data.separator={typed}"])
    corpus = Plan(config).corpus
    assert corpus.separator == text
    again = compose([*keys, as_typed("data.separator", config.data.separator)])
    assert again.data.separator == config.data.separator
    bare = compose(keys)
    assert run_hash(bare, {}) != run_hash(config, {})


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_new_line_of_a_separator_is_found_in_files_of_either_line_end(newline):
    Path("windows.txt").write_bytes("\n\n".join(STORIES).replace("\n", "\r\n").encode())
    Path("mixed.txt").write_bytes(b"a\r\n\nb\n\r\nc\n \nd")
    crlf = [story.replace("\n", "\r\n") for story in STORIES]
    paths, separator = ("train.txt", "windows.txt", "mixed.txt"), repr(newline * 2)[1:-1]
    corpus = TextFiles(paths=paths, val_paths=(), separator=separator)
    assert list(corpus.documents()) == [*STORIES, *crlf, "a", "b", "c\n \nd"]
    assert list(corpus.notes()) == []
    assert list(TextFiles(paths=("windows.txt",), **NONE).documents()) == ["\r\n\r\n".join(crlf)]


def test_a_file_without_the_separator_that_others_have_is_named():
    Path("mac.txt").write_bytes("\n\n".join(STORIES).replace("\n", "\r").encode())
    corpus = TextFiles(paths=("train.txt", "mac.txt"), val_paths=("val.txt",), separator="\\n\\n")
    assert list(corpus.notes()) == ["data.separator is not in 1 of 2 files: mac.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", "not even JSON", "JSON; data=jsonl reads its texts"),
        ("x.json", '[{"text": "a"}]', "JSON; data=jsonl reads its texts"),
        ("x.txt", ' {"text": "a"}\n', "JSON; data=jsonl reads its texts"),
        ("x", '[\n {"text": "a"}]', "JSON; data=jsonl reads its texts"),
        ("x.CSV", "text,n\n", "CSV; no corpus reads its texts"),
        ("x.tsv", "text\tn\n", "CSV; no corpus reads its texts"),
        ("x.html", "<p>", "HTML; no corpus reads its texts without tags"),
        ("x.txt", "\n<!DOCTYPE html>", "HTML; no corpus reads its texts without tags"),
        ("x.txt", "{a set} [1] <b> a, b\n", ""),
        ("x.py", "{1: 2}\n", ""),
        ("x.parquet.txt", "PAR1, a text", ""),
    ],
)
def test_a_file_whose_source_would_be_trained_on_is_named_with_what_reads_it(name, content, words):
    Path(name).write_text(content)
    said = []
    corpus = TextFiles(paths=("train.txt", name), val_paths=("val.txt",), separator="none")
    notes = prepare(corpus, TOKENIZERS["byte"](), "hash", 0.1, 0, said.append).facts["notes"]
    assert len(notes) == bool(words)
    assert all(note.startswith(f"data.paths: {name} is {words}") for note in notes)
    assert set(notes) <= set(said)


def test_with_validation_files_all_other_text_is_train():
    both = TextFiles(paths=("train.txt",), val_paths=("val.txt",), separator="none")
    tokens = tokens_of(both)
    assert bytes(tokens.train.astype("u1")).decode() == "\n\n".join(STORIES)
    assert bytes(tokens.val.astype("u1")).decode() == Path("val.txt").read_text()
    assert (len(tokens.test), tokens.facts["split"]) == (0, "files")
    apart = tokens_of(TextFiles(paths=("train.txt",), val_paths=("val.txt",), separator="\\n\\n"))
    assert sorted(documents(np.array(apart.train))) == sorted(STORIES)
    held_out = sorted(Path("val.txt").read_text().split("\n\n"))
    assert sorted(documents(np.array(apart.val))) == held_out
    rows = [{"text": "one"}, {"text": "two"}]
    Path("a.jsonl").write_text("\n".join(json.dumps(row) for row in rows * 9))
    Path("b.jsonl").write_text(json.dumps({"text": "two"}))
    kept = tokens_of(JsonLines(paths=("a.jsonl",), val_paths=("b.jsonl",), field="text"))
    assert documents(np.array(kept.val)) == ["two"]
    assert sorted(documents(np.array(kept.train))) == sorted(["one", "two"] * 9)
    assert kept.facts["repeated"] == 1  # which is said, and recorded


def test_the_content_of_validation_files_is_in_the_identity_and_their_name_is_not():
    def plan_of(*more):
        keys = ["data=text", "data.paths=train.txt", "tracking=none", *more]
        return Plan(compose(keys))

    Path("renamed.txt").write_bytes(Path("val.txt").read_bytes())
    Path("other.txt").write_text("other")
    first, same, other = (
        plan_of(f"data.val_paths={name}.txt") for name in ("val", "renamed", "other")
    )
    assert first.hash == same.hash != other.hash
    assert plan_of().hash not in (first.hash, other.hash)


@pytest.mark.parametrize(
    ("typed", "fragment"),
    [
        ("data.val_paths=train.txt", "has the content of train.txt"),
        ("data.val_paths=nowhere.txt", "data.val_paths: there is no file nowhere.txt"),
        ("data.val_paths=val.txt data.split=tail", "data.split: tail is not allowed"),
        ("data.separator=x data.split=tail", "data.separator: is not allowed with data.split"),
        ("data.separator=a\\q", "is none of"),
        ("data=stories data.val_paths=val.txt", "val_paths"),
    ],
)
def test_what_makes_no_sense_is_one_line(typed, fragment):
    keys = ["tracking=none"]
    keys += [] if "stories" in typed else ["data=text", "data.paths=train.txt"]
    assert fragment in refused(lambda: Plan(compose([*keys, *typed.split()])))


def prose(words, seed):
    return " ".join(np.random.default_rng(seed).integers(0, 10**6, words).astype(str))


@pytest.mark.parametrize(
    ("copied", "tokenizer", "separator"),
    [*(((place,), "byte", "none") for place in range(3)), ((), "byte", "none"),
     ((0, 2), "byte", "none"), ((0, 2), "byte", "\\n\\n"), ((0, 2), "bpe", "none")],
)  # fmt: skip
def test_text_of_train_is_found_wherever_it_lies_in_val(copied, tokenizer, separator):
    text = prose(9000, 1)
    source = {third: text[9001 + 7000 * third :] for third in copied}
    thirds = [source.get(third, prose(600, 2 + third))[:4001] for third in range(3)]
    Path("train.txt").write_text(text)
    Path("val.txt").write_text("".join(thirds))
    corpus = TextFiles(paths=("train.txt",), val_paths=("val.txt",), separator=separator)
    choice = TOKENIZERS[tokenizer](**{"vocab_size": 300} if tokenizer == "bpe" else {})
    notes = prepare(corpus, choice, "hash", 0.1, 0, print).facts["notes"]
    shares = [float(note.split("%")[0].split()[-1]) for note in notes if "is also in train" in note]
    assert len(shares) == bool(copied)
    if copied:  # a stretch across an end of what was copied is not one of train
        assert 100 * len(copied) / 3 - 14 < shares[0] <= 100 * len(copied) / 3 + 1


@pytest.mark.parametrize(("split", "parts"), [("hash", ["val", "test"]), ("tail", ["val"])])
def test_a_text_that_is_named_twice_puts_train_into_the_parts_that_are_cut_off(split, parts):
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(prose(2000, 1))
    corpus = TextFiles(paths=("a.txt", "b.txt"), **NONE)
    notes = [note for note in tokens_of(corpus, split).facts["notes"] if "also in train" in note]
    assert [note.split("'s text")[0].split()[-1] for note in notes] == parts
    assert all("100.00%" in note for note in notes)
    alone = tokens_of(TextFiles(paths=("a.txt",), **NONE), split)
    assert not any("also in train" in note for note in alone.facts["notes"])
