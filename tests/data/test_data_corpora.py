import bz2
import gzip
import hashlib
import inspect
import json
import lzma
import math
import os
import re
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from corpora import write_rows
from pyarrow.parquet import ParquetFile
from refusing import refused

from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.data.documents import ParquetRows
from transformer_norms.data.pydocs import module_docstrings, topics
from transformer_norms.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"type", "split", "val_fraction", "test_fraction", "val_tokens", "seed"}
DATA = sorted((ROOT / "configs/data").glob("*.yaml"))
TOKENIZER = sorted((ROOT / "configs/tokenizer").glob("*.yaml"))


def read(file):
    return yaml.safe_load(file.read_text())


def test_every_corpus_has_a_yaml_that_sets_what_it_takes_and_nothing_else():
    found = {content["type"]: set(content) for content in map(read, DATA)}
    ours = {name for name, corpus in CORPORA.items() if "plugin" not in corpus.__module__}
    assert found.keys() == ours
    for name, keys in found.items():
        parameters = inspect.signature(CORPORA[name]).parameters
        assert keys == SHARED | set(parameters), name
        assert all(value.default is value.empty for value in parameters.values()), name


def test_every_tokenizer_has_a_yaml_which_builds_it():
    found = {content.pop("type"): content for content in map(read, TOKENIZER)}
    assert found.keys() == TOKENIZERS.keys()
    for name, content in found.items():
        choice = TOKENIZERS[name](**content)
        if "none" in content.values():  # what the user has to name
            with pytest.raises(InputError, match="is missing"):
                choice.identity()
        else:
            assert choice.identity() == {"type": name} | content


@pytest.fixture(scope="module")
def pydocs():
    return list(CORPORA["pydocs"]().documents())


def test_pydocs_is_megabytes_that_begin_with_english_and_the_same_twice(pydocs):
    assert pydocs[: len(topics())] == topics()
    assert sum(map(len, pydocs)) > 5e6
    assert list(CORPORA["pydocs"]().documents()) == pydocs
    assert ".".join(map(str, sys.version_info[:3])) in str(CORPORA["pydocs"]().identity())


def test_no_text_of_pydocs_is_in_two_documents(pydocs):
    texts = [text for text in pydocs if len(text) > 200]
    assert len(set(texts)) > 0.99 * len(texts)
    modules = module_docstrings()
    for shared in (str.__init__, int.__add__, str.join, math.gcd):
        assert sum(shared.__doc__.strip() in text for text in modules) == 1
    assert sum(json.dumps.__doc__[:200] in text for text in pydocs) == 1  # only in the source


def test_nothing_of_this_machine_is_in_pydocs(pydocs):
    text = "\n".join(pydocs)
    assert sys.prefix not in text
    assert not re.search(r"object at 0x[0-9a-f]{6,}>\n", "\n".join(module_docstrings()))
    assert "build_time_vars" not in "".join(text[:300] for text in pydocs)


def text_of(*paths):
    return CORPORA["text"](paths=tuple(str(path) for path in paths), val_paths=(), separator="none")


def json_texts(*files):
    paths = tuple(map(str, files))
    return list(CORPORA["jsonl"](paths=paths, val_paths=(), field="text").documents())


def zipped(data):
    with zipfile.ZipFile(stream := BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", data)
    return stream.getvalue()


def test_text_is_the_bytes_of_the_file_exactly(tmp_path):
    (tmp_path / "a[1].txt").write_bytes("\ufeffone\r\ntwo\x00\n\n\n日本\n".encode())
    assert list(text_of(tmp_path / "a[1].txt").documents()) == ["\ufeffone\r\ntwo\x00\n\n\n日本\n"]


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


@pytest.mark.parametrize("key", ["paths", "val_paths"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.txt", "there is no file .*missing.txt"),
        ("*.csv", r"there is no file .*\*\.csv"),
        ("folder", r".*/folder: is not a file, but a folder; name files, e.g. FOLDER/\*.txt$"),
        ("pipe", ".*/pipe: is not a file, but a pipe$"),
        ("circle", ".*/circle: is a link; name what it leads to$"),
        ("broken.txt", ".*/broken.txt: No such file or directory$"),
        ("empty.txt", ".*empty.txt is empty"),
        ("/proc/version", "/proc/version is empty"),  # as /proc/kmsg, whose readers wait
        ("latin.txt", ".*latin.txt is not UTF-8 at byte 3"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_in_one_line_with_its_key(tmp_path, key, name, said):
    for file, text in {"empty.txt": b"", "good.txt": b"good", "latin.txt": b"caf\xe9 au"}.items():
        (tmp_path / file).write_bytes(text)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for link, target in ("circle", "circle"), ("broken.txt", "gone.txt"):
        (tmp_path / link).symlink_to(target)
    good, wrong = str(tmp_path / "good.txt"), str(tmp_path / name)
    given = {"paths": (good,), "val_paths": (good,)} | {key: (wrong,)}

    def read_all():
        corpus = CORPORA["text"](**given, separator="none")
        return [*corpus.documents(), *corpus.validation.documents()]

    assert re.match(rf"data\.{key}: {said}", refused(read_all))


PROSE = "It ends.\r\nThe café is open\n" * 9


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (PROSE.encode("utf-16"), "is UTF-16 or UTF-32; file -i FILE guesses"),
        (PROSE.encode("utf-16-le"), "is UTF-16 or UTF-32"),
        (("\u65e5 " + PROSE).encode("utf-16-be"), "is UTF-16 or UTF-32"),
        ("Привет, мир\n".encode("utf-16-le"), "is UTF-16 or UTF-32"),
        (PROSE.encode("utf-32"), "is UTF-16 or UTF-32"),
        (gzip.compress(PROSE.encode()), "is compressed; unpack it first"),
        (b"\x28\xb5\x2f\xfd\x24\x00", "is compressed; unpack it first"),
        (b"PAR1\x15\x04", "is Parquet; data=parquet reads it"),
        (PROSE.encode("latin-1"), "is not UTF-8 at byte 17; file -i FILE guesses its ENCODING"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_utf_8_is_named_by_its_first_bytes_with_what_to_type(data, words, tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    assert f"data.paths: {file} {words}" in refused(lambda: list(text_of(file).documents()))
    if words.startswith(("is UTF", "is Par")):
        assert f"data.paths: {file}, line 1 {words}" in refused(json_texts, file)


def test_no_path_and_the_same_path_twice_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    assert "data.paths is empty" in refused(text_of)
    assert "a.txt is named twice" in refused(text_of, tmp_path / "a.txt", tmp_path / "*.txt")


ROWS = [{"text": "one\n\nline é", "number": 1}, {"text": "two\r\n", "number": 2}]


@pytest.fixture(params=["jsonl", "parquet"])
def rows(request, tmp_path):
    file = tmp_path / f"rows.{request.param}"
    write_rows(file, ROWS)
    keys = {"paths": (str(file),), "val_paths": ()}
    return lambda field: CORPORA[request.param](**keys, field=field), file


def test_each_row_is_a_document_and_what_has_none_is_refused_in_one_line(rows, capfd):
    build, file = rows
    assert list(build("text").documents()) == [row["text"] for row in ROWS]
    assert build("text").identity()["sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest()]
    assert capfd.readouterr().err == ""
    for field, nearest in (("txet", "did you mean 'text'\\? "), ("number", "")):
        line = refused(lambda field=field: list(build(field).documents()))
        said = rf"data\.field={field}: {nearest}.* no such string; strings are under text"
        assert re.fullmatch(said, line)
    file.write_bytes(b"\x00\x01 neither of the two\n{")
    assert file.name in refused(lambda: list(build("text").documents()))


@pytest.mark.parametrize(
    ("files", "texts"),
    [
        # Other keys hold anything, in any order.
        (['{"text": "a", "m": null}\n', '{"text": "b", "m": "x"}\n'], ["a", "b"]),
        (['{"text": "a", "m": 1}\n{"text": "b", "m": "x"}\n'], ["a", "b"]),
        (['{"text": "a"}', '{"m": [1, {"n": 2}], "text": "b"}'], ["a", "b"]),
        (['{"text": "a", "text": "b", "m": NaN, "n": -Infinity}'], ["b"]),
        (['{"text": "a", "m": ' + "1" * 6000 + ', "n": "\\ud800"}'], ["a"]),
        # Strings that look like something else.
        (['{"text": "2024-01-01"}', '{"text": "2024-01-01T02:03:04Z"}\n{"text": "x"}'],
         ["2024-01-01", "2024-01-01T02:03:04Z", "x"]),
        (['{"text": "007"}\n{"text": "null"}\n{"text": ""}'], ["007", "null", ""]),
        # Some characters end a line, and others do not.
        (['\ufeff{"text": "a\\r\\nb"}\r\n\n \t\r\n{"text": "\\ud83d\\ude00"}\r\n\n'],
         ["a\r\nb", "\U0001f600"]),
        (['{"text": "a\u2028b\x85c\x0bd"}'.replace("\x0b", "\\u000b")], ["a\u2028b\x85c\x0bd"]),
        (['\n [{"text": "a"},\n{"text": "b"}]'], ["a", "b"]),
        ([' [{"text": "a", "m": 1},\n {"m": "x", "text": "[b]"}]\n'], ["a", "[b]"]),
    ],
)  # fmt: skip
def test_the_text_of_a_json_line_is_its_string_and_no_other_key_matters(files, texts, tmp_path):
    paths = [tmp_path / f"{number}.jsonl" for number in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content.encode())
    assert json_texts(*paths) == texts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": null}', "line 3 has no such string"),
        (b'{"text": ["a"], "url": "b"}', "line 3 has no such string; strings are under url"),
        (b'{"txet": "a"}', "line 3 has no such string; strings are under txet"),
        (b'["text"]', "line 3 has no such string"),
        (b'{"text": "a"} {"text": "b"}', "line 3 cannot be read as JSON: Extra data"),
        (b'{"text": "a', "line 3 cannot be read as JSON: Unterminated string"),
        (b'{"text": "caf\xe9"}', "line 3 cannot be read as JSON: 'utf-8' codec can't decode"),
        (b'{"text": "\\ud800"}', "line 3 cannot be read as JSON: 'utf-8' codec can't encode"),
        (b'{"text": "a", "m": ' + b"[" * 100_000, "line 3 cannot be read as JSON: maximum"),
    ],
)  # fmt: skip
def test_a_line_of_json_without_a_text_is_refused_with_its_file_and_number(line, words, tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"text": "a"}\n' * 5)
    bad.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    assert f"{bad}, {words}" in refused(json_texts, good, bad)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zip", zipped)],
)
def test_a_compressed_file_is_read_or_named_in_one_line_where_it_is_damaged(
    suffix, compress, tmp_path
):
    texts = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(300)]
    data = "".join(json.dumps({"text": text, "m": None}) + "\n" for text in texts).encode()
    file, packed = tmp_path / f"rows.jsonl{suffix}", compress(data)
    file.write_bytes(packed)
    assert json_texts(file) == texts
    flipped = packed[:1000] + bytes([packed[1000] ^ 255]) + packed[1001:]
    for damaged in (packed[: len(packed) // 2], data, flipped, packed[:20]):
        file.write_bytes(damaged)
        assert refused(json_texts, file).startswith(f"data.paths: {file}")


def test_a_slice_reads_no_further_than_its_last_row(tmp_path, monkeypatch):
    rows, iter_batches = [], ParquetFile.iter_batches

    def note(*arguments, **named):
        for batch in iter_batches(*arguments, **named):
            rows.append(len(batch))
            yield batch

    monkeypatch.setattr(ParquetFile, "iter_batches", note)
    file = tmp_path / "one_row_group.parquet"
    write_rows(file, [{"text": str(n)} for n in range(5000)])
    texts = list(ParquetRows(file, "text", 1500, 600).documents())
    assert texts == [str(n) for n in range(1500, 2100)]
    assert sum(rows) == 3 * 1024
