"""The user's own files: text that a typed separator cuts, and validation text of their own; and
python -m transformer_norms.data, which prepares their tokens before a run."""

import json
from pathlib import Path

import numpy as np
import pytest
from corpora import ready
from refusing import refused

from transformer_norms import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.data import TOKENIZERS
from transformer_norms.data.__main__ import main
from transformer_norms.data.documents import JsonLines, TextFiles
from transformer_norms.run.identity import run_hash
from transformer_norms.run.plan import Plan

STORIES = [f"story {n} tells of {n * n} cafés.\nIt ends." for n in range(120)]
TYPED = ["data=text", "data.paths=train.txt", "tracking=none"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("\n\n".join(STORIES))
    Path("val.txt").write_text("a held out story\n\nand another one\n\nstory 3")


def text_files(*paths, val=(), separator="none"):
    return TextFiles(paths=paths, val_paths=val, separator=separator)


def documents(*parts):
    """The texts of parts, sorted. Each has an end, or a part without ends is one text."""
    pieces = [one for ids in parts for one in np.split(ids, np.flatnonzero(ids == 256) + 1)]
    return sorted(bytes(one[one < 256].astype("u1")).decode() for one in pieces if one.size)


def test_only_a_typed_separator_cuts_a_file():
    whole, separator = "\n\n".join(STORIES), "\\n\\n"
    assert list(text_files("train.txt").documents()) == [whole]
    plain = ready(text_files("train.txt"))
    assert (plain.facts["split"], plain.vocab_size) == ("position", 256)
    assert documents(np.concatenate([plain.train, plain.val, plain.test])) == [whole]
    cut = ready(text_files("train.txt", separator=separator))
    assert (cut.facts["split"], cut.vocab_size) == ("hash", 257)
    assert documents(cut.train, cut.val, cut.test) == sorted(STORIES)
    assert "3 document(s) with it" in refused(ready, text_files("val.txt", separator=separator))


@pytest.mark.parametrize(
    ("typed", "text"),
    [("\\n\\n", "\n\n"), ("\n\n", "\n\n"), ("<|endoftext|>", "<|endoftext|>"), ("'\\n'", "\n"),
     ("\\t, [x]", "\t, [x]"), ("---", "---"), ("a\\\\n", "a\\n"), ("=", "=")],
)  # fmt: skip
def test_a_separator_is_read_as_it_is_typed(typed, text):
    config = compose([*TYPED, f"data.separator={typed}"])
    assert Plan(config).corpus.separator == text
    again = compose([*TYPED, as_typed("data.separator", config.data.separator)])
    assert again.data.separator == config.data.separator
    assert run_hash(compose(TYPED), {}) != run_hash(config, {})


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_new_line_of_a_separator_is_found_in_files_of_either_line_end(newline):
    Path("windows.txt").write_bytes("\n\n".join(STORIES).replace("\n", "\r\n").encode())
    Path("mixed.txt").write_bytes(b"a\r\n\nb\n\r\nc\n \nd")
    crlf = [story.replace("\n", "\r\n") for story in STORIES]
    separator = repr(newline * 2)[1:-1]
    corpus = text_files("train.txt", "windows.txt", "mixed.txt", separator=separator)
    assert list(corpus.documents()) == [*STORIES, *crlf, "a", "b", "c\n \nd"]
    assert list(corpus.notes()) == []
    assert list(text_files("windows.txt").documents()) == ["\r\n\r\n".join(crlf)]


def test_a_file_without_the_separator_that_others_have_is_named():
    Path("mac.txt").write_bytes("\n\n".join(STORIES).replace("\n", "\r").encode())
    corpus = text_files("train.txt", "mac.txt", val=("val.txt",), separator="\\n\\n")
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
    notes = ready(text_files("train.txt", name, val=("val.txt",)), say=said.append).facts["notes"]
    assert len(notes) == bool(words)
    assert all(note.startswith(f"data.paths: {name} is {words}") for note in notes)
    assert set(notes) <= set(said)


def test_with_validation_files_all_other_text_is_train():
    held_out = Path("val.txt").read_text()
    for separator, train, val in (
        ("none", ["\n\n".join(STORIES)], [held_out]),
        ("\\n\\n", sorted(STORIES), sorted(held_out.split("\n\n"))),
    ):
        tokens = ready(text_files("train.txt", val=("val.txt",), separator=separator))
        assert (documents(tokens.train), documents(tokens.val)) == (train, val)
        assert (len(tokens.test), tokens.facts["split"]) == (0, "files")
    Path("a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n' * 9)
    Path("b.jsonl").write_text('{"text": "two"}')
    kept = ready(JsonLines(paths=("a.jsonl",), val_paths=("b.jsonl",), field="text"))
    assert (documents(kept.train), documents(kept.val)) == (["one"] * 9 + ["two"] * 9, ["two"])
    assert kept.facts["repeated"] == 1  # which is said, and recorded


def test_the_content_of_validation_files_is_in_the_identity_and_their_name_is_not():
    Path("renamed.txt").write_bytes(Path("val.txt").read_bytes())
    Path("other.txt").write_text("other")
    first, same, other, none = (
        Plan(compose([*TYPED, *more])).hash
        for more in (*([f"data.val_paths={name}.txt"] for name in ("val", "renamed", "other")), [])
    )
    assert first == same
    assert len({first, other, none}) == 3
    Path("copy.txt").write_bytes(Path("train.txt").read_bytes())
    assert Plan(compose([TYPED[0], "data.paths=copy.txt", TYPED[2]])).hash == none


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
    keys = [] if "stories" in typed else TYPED
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
    corpus = text_files("train.txt", val=("val.txt",), separator=separator)
    choice = TOKENIZERS[tokenizer](**{"vocab_size": 300} if tokenizer == "bpe" else {})
    notes = ready(corpus, choice).facts["notes"]
    shares = [float(note.split("%")[0].split()[-1]) for note in notes if "is also in train" in note]
    assert len(shares) == bool(copied)
    if copied:  # a stretch across an end of what was copied is not one of train
        assert 100 * len(copied) / 3 - 14 < shares[0] <= 100 * len(copied) / 3 + 1


@pytest.mark.parametrize(("split", "parts"), [("hash", ["val", "test"]), ("tail", ["val"])])
def test_a_text_that_is_named_twice_puts_train_into_the_parts_that_are_cut_off(split, parts):
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(prose(2000, 1))
    notes, alone = (
        [note for note in ready(corpus, split=split).facts["notes"] if "also in train" in note]
        for corpus in (text_files("a.txt", "b.txt"), text_files("a.txt"))
    )
    assert [note.split("'s text")[0].split()[-1] for note in notes] == parts
    assert all("100.00%" in note for note in notes)
    assert alone == []


def test_the_data_command_prints_what_lies_in_the_cache_and_a_run_finds_it(capsys):
    typed = [*TYPED, "data.split=tail", "model=nano"]
    assert main(typed) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out.splitlines()[-1])
    text = "\n\n".join(STORIES)
    train, val = text[: int(len(text) * 0.95)], text[int(len(text) * 0.95) :]
    assert answer["bytes"] == {"train": len(train.encode()), "val": len(val.encode()), "test": 0}
    assert answer["tokens"] == answer["bytes"]
    assert documents(np.fromfile(Path(answer["folder"], "train.bin"), "<u2")) == [train]
    assert "reading" in err
    assert not Path("runs").exists()
    assert Plan(compose(typed)).tokens().fingerprint == answer["fingerprint"]
    assert "reading" not in capsys.readouterr().err
