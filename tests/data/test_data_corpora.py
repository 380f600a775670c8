import hashlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from transformer_norms.data import CORPORA, SPLITS, TOKENIZERS
from transformer_norms.data.documents import ParquetRows
from transformer_norms.data.pydocs import module_docstrings, topics
from transformer_norms.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"type", "split", "val_fraction", "test_fraction", "val_tokens", "seed"}
DATA = sorted((ROOT / "configs/data").glob("*.yaml"))
TOKENIZER = sorted((ROOT / "configs/tokenizer").glob("*.yaml"))


def read(file):
    return yaml.safe_load(file.read_text())


@pytest.mark.parametrize("file", DATA, ids=lambda file: file.stem)
def test_every_data_yaml_sets_what_its_corpus_takes_and_nothing_else(file):
    content = read(file)
    parameters = inspect.signature(CORPORA[content["type"]]).parameters
    assert set(content) == SHARED | set(parameters)
    assert content["split"] in SPLITS
    assert all(value.default is value.empty for value in parameters.values())


@pytest.mark.parametrize("file", TOKENIZER, ids=lambda file: file.stem)
def test_every_tokenizer_yaml_builds(file):
    content = read(file)
    choice = TOKENIZERS[content.pop("type")](**content)
    if "none" in content.values():  # what the user has to name
        with pytest.raises(InputError, match="is missing"):
            choice.identity()
    else:
        assert choice.identity() == {"type": file.stem} | content


def test_every_corpus_and_tokenizer_has_a_yaml():
    assert {read(file)["type"] for file in DATA} == set(CORPORA)
    assert {read(file)["type"] for file in TOKENIZER} == set(TOKENIZERS)


# pydocs


@pytest.fixture(scope="module")
def pydocs():
    return list(CORPORA["pydocs"]().documents())


def test_pydocs_begins_with_english_and_holds_megabytes(pydocs):
    assert pydocs[: len(topics())] == topics()
    assert sum(map(len, pydocs)) > 5e6


def test_pydocs_is_the_same_twice(pydocs):
    assert list(CORPORA["pydocs"]().documents()) == pydocs


def test_no_text_of_pydocs_stands_in_two_documents(pydocs):
    texts = [text for text in pydocs if len(text) > 200]
    assert len(set(texts)) > 0.99 * len(texts)
    modules = module_docstrings()
    for shared in (str.__init__.__doc__, int.__add__.__doc__, str.join.__doc__):
        assert sum(shared.strip() in text for text in modules) == 1


def test_docstrings_of_modules_written_in_c_are_there_and_those_in_python_are_only_in_source(
    pydocs,
):
    from math import gcd

    modules = module_docstrings()
    assert sum(gcd.__doc__ in text for text in modules) == 1
    assert sum(json.dumps.__doc__[:200] in text for text in pydocs) == 1


def test_nothing_of_this_machine_is_in_pydocs(pydocs):
    text = "\n".join(pydocs)
    assert sys.prefix not in text
    assert not re.search(r"object at 0x[0-9a-f]{6,}>\n", "\n".join(module_docstrings()))
    assert "build_time_vars" not in "".join(text[:300] for text in pydocs)


def test_the_identity_of_pydocs_names_the_python():
    assert ".".join(map(str, sys.version_info[:3])) in str(CORPORA["pydocs"]().identity())


# files


def text_of(*paths):
    return CORPORA["text"](paths=tuple(str(path) for path in paths), val_paths=(), separator="none")


def test_text_is_the_bytes_of_the_file_exactly(tmp_path):
    content = "\ufeffone\r\ntwo\x00\n\n\n日本\n".encode()
    (tmp_path / "a[1].txt").write_bytes(content)
    assert [t.encode() for t in text_of(tmp_path / "a[1].txt").documents()] == [content]


def test_a_glob_is_read_in_sorted_order_and_identity_is_content_and_order(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert list(text_of(tmp_path / "*.txt").documents()) == ["a", "b", "c"]
    expected = [hashlib.sha256(name.encode()).hexdigest() for name in "abc"]
    assert text_of(tmp_path / "*.txt").identity() == {"type": "text", "sha256": expected}
    backwards = text_of(*(tmp_path / f"{name}.txt" for name in "cba"))
    assert backwards.identity()["sha256"] == expected[::-1]
    (tmp_path / "b.txt").rename(tmp_path / "bb.txt")
    assert text_of(tmp_path / "*.txt").identity()["sha256"] == expected


def wrong(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "good.txt").write_text("good")
    return {
        "missing.txt": "there is no file .*missing.txt",
        "*.csv": r"no file matches .*\*\.csv",
        "folder": ".*folder is a directory",
        "empty.txt": ".*empty.txt is empty",
        "/proc/version": "/proc/version is empty",  # as /proc/kmsg, whose readers wait
        "latin.txt": ".*latin.txt is not UTF-8 at byte 3",
    }


@pytest.mark.parametrize(
    "name", ["missing.txt", "*.csv", "folder", "empty.txt", "/proc/version", "latin.txt"]
)
def test_a_path_that_cannot_be_read_is_refused_in_one_line(tmp_path, name):
    expected = wrong(tmp_path)[name]
    with pytest.raises(InputError, match=rf"^data\.paths: {expected}") as e:
        list(text_of(tmp_path / "good.txt", tmp_path / name).documents())
    assert "\n" not in str(e.value)


def test_a_held_out_file_that_cannot_be_read_is_named_by_its_key(tmp_path):
    wrong(tmp_path)
    corpus = CORPORA["text"](
        paths=(str(tmp_path / "good.txt"),), val_paths=(str(tmp_path / "latin.txt"),),
        separator="none",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"^data\.val_paths: .*latin.txt is not UTF-8"):
        list(corpus.validation.documents())


def test_no_path_and_the_same_path_twice_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match=r"data\.paths is empty"):
        text_of()
    with pytest.raises(InputError, match=r"a\.txt is named twice"):
        text_of(tmp_path / "a.txt", tmp_path / "*.txt")


# rows


ROWS = [{"text": "one\n\nline é", "number": 1}, {"text": "two\r\n", "number": 2}]


@pytest.fixture(params=["jsonl", "parquet"])
def rows(request, tmp_path):
    """The same rows as a file of each kind, and what builds the corpus."""
    file = tmp_path / f"rows.{request.param}"
    if request.param == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)

    def build(field):
        return CORPORA[request.param](paths=(str(file),), val_paths=(), field=field)

    return build, file


def test_each_row_is_a_document(rows, capfd):
    build, file = rows
    assert list(build("text").documents()) == [row["text"] for row in ROWS]
    assert build("text").identity()["sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest()]
    assert capfd.readouterr().err == ""


def test_a_missing_field_is_refused_with_the_columns_and_the_nearest(rows):
    build, _ = rows
    with pytest.raises(
        InputError, match=r"data\.field=txet: did you mean 'text'\? .*; columns are text, number"
    ):
        list(build("txet").documents())
    with pytest.raises(InputError, match=r"data\.field=number: .* holds int64 and no text"):
        list(build("number").documents())


def test_a_file_that_is_no_table_is_refused_in_one_line(rows):
    build, file = rows
    file.write_bytes(b"\x00\x01 neither of the two\n{")
    with pytest.raises(InputError, match=file.name) as caught:
        list(build("text").documents())
    assert "\n" not in str(caught.value)


def test_a_row_without_text_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": null}\n')
    with pytest.raises(InputError, match="row 1 has no text"):
        list(CORPORA["jsonl"](paths=(str(file),), val_paths=(), field="text").documents())


def test_a_slice_reads_no_further_than_its_last_row(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    rows, iter_batches = [], parquet.ParquetFile.iter_batches

    def note(*arguments, **named):
        for batch in iter_batches(*arguments, **named):
            rows.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", note)
    file = tmp_path / "one_row_group.parquet"
    parquet.write_table(pyarrow.table({"text": [str(n) for n in range(5000)]}), file)
    texts = list(ParquetRows(file, "text", 1500, 600).documents())
    assert texts == [str(n) for n in range(1500, 2100)]
    assert sum(rows) == 3 * 1024
