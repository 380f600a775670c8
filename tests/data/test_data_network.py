import socket
from contextlib import closing
from pathlib import Path

import pytest
from corpora import write_rows
from refusing import refused

from transformer_norms.data import CORPORA, TOKENIZERS, downloads, load_tokenizer, vocabularies

OFFLINE = "datasets.config.HF_HUB_OFFLINE"


def hub(part="train", documents="all", field="page"):
    keys = {"name": "some/corpus", "subset": "none", "revision": "main"}
    return CORPORA["hub"](**keys, field=field, part=part, documents=documents)


@pytest.fixture(params=["accepts and never answers", "nothing there"])
def network_down(request, monkeypatch, tmp_path):
    """Every request goes to a port of this machine that is silent, or closed."""
    monkeypatch.setattr(downloads, "SECONDS", 0.3)
    monkeypatch.setattr(OFFLINE, False)
    for key in ("no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if request.param.startswith("accepts"):
            server.listen(16)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", address)
        yield address


def test_without_an_answer_the_hub_is_refused_with_what_to_do_instead(network_down):
    line = refused(lambda: list(hub().documents()))
    for hint in "data.name=some/corpus data=pydocs data.paths=FILE HF_DATASETS_OFFLINE=1".split():
        assert hint in line


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_without_an_answer_a_published_vocabulary_is_refused(network_down, name):
    line = refused(TOKENIZERS[name]().fit, [], True, print, print)
    for hint in (f"tokenizer={name}", "tokenizer=bpe", "tokenizer=byte", "TIKTOKEN_CACHE_DIR"):
        assert hint in line


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_a_published_vocabulary_keeps_its_ids_its_end_and_its_holes(name, monkeypatch):
    import tiktoken

    letters = {bytes([value]): 255 - value for value in range(256)} | {b"ab": 256}
    special = {"<|endoftext|>": 258, "<|other|>": 270}
    theirs = tiktoken.Encoding(
        name, pat_str=r"\w+|\W+", mergeable_ranks=letters, special_tokens=special
    )
    monkeypatch.setattr(vocabularies._Vocabulary, "_load", lambda self: theirs)
    ours = TOKENIZERS[name]().fit([], True, print, print)
    assert (ours.vocab_size, ours.end) == (271, 258)
    text = "abcab <|endoftext|>"
    assert ours.encode(text).tolist() == theirs.encode_ordinary(text)
    assert ours.decode([256, 258, 257, 270]) == "ab"
    assert load_tokenizer(ours.save()).pieces == ours.pieces


# A data set on the hub that is stored as Parquet. Local files stand for those of the hub.


def stand_in(monkeypatch, tmp_path, kind, data_files):
    """Lets local files of a kind stand for the data set of the hub. Returns what will hold the
    arguments with which it is asked for."""
    import datasets

    asked, cache_dir = [], str(tmp_path / "cache")
    local = datasets.load_dataset_builder(kind, data_files=data_files, cache_dir=cache_dir)
    monkeypatch.setattr(OFFLINE, False)
    monkeypatch.setattr(
        datasets, "load_dataset_builder", lambda *a, **k: asked.append((a, k)) or local
    )
    return asked


@pytest.fixture
def hub_of_parquet(monkeypatch, tmp_path):
    """A data set of three files, in two parts, and the addresses that were downloaded."""
    import datasets

    for name in "abc":
        texts = [{"page": f"{name}{number}" if number % 5 else ""} for number in range(20)]
        write_rows(tmp_path / f"{name}.parquet", texts, row_group_size=7)
    paths = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    stand_in(monkeypatch, tmp_path, "parquet", {"train": paths[:2], "test": paths[2:]})
    asked, download = [], datasets.DownloadManager.download

    def record(self, address):
        asked.append(Path(str(address)).stem)
        return download(self, address)

    monkeypatch.setattr(datasets.DownloadManager, "download", record)
    return asked


def page_texts(names):
    return [f"{name}{number}" for name in names for number in range(20) if number % 5]


@pytest.mark.parametrize(("part", "names"), [("train", "ab"), ("test+train", "cab")])
def test_a_whole_data_set_is_downloaded_file_by_file_and_cut_in_its_order(
    hub_of_parquet, monkeypatch, part, names
):
    monkeypatch.setattr("transformer_norms.data.documents.SLICE", 40)
    corpus = hub(part)
    slices = list(corpus.slices())
    assert [text for cut in slices for text in cut.documents() if text] == page_texts(names)
    assert hub_of_parquet == list(names)
    assert len(slices) > 2 * len(names)
    assert list(corpus.documents()) == page_texts(names)
    assert corpus.size > sum(map(len, page_texts(names)))


@pytest.mark.parametrize("documents", ["all", 3])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_the_rows_of_the_hub_are_texts_without_empty_ones_whatever_other_columns_hold(
    kind, documents, monkeypatch, tmp_path
):
    files = [tmp_path / f"{number}.{kind}" for number in range(2)]
    write_rows(files[0], [{"page": "2024-01-01", "m": None}, {"page": ""}])
    write_rows(files[1], [{"page": "b", "m": "x", "n": 1}, {"page": "c"}])
    asked = stand_in(monkeypatch, tmp_path, kind, [str(file) for file in files])
    corpus = hub("train", documents)
    expected = ["2024-01-01", "b", "c"]
    assert list(corpus.documents()) == (expected if documents == "all" else expected[:2])
    assert asked == [(("some/corpus", None), {"revision": "main"})]
    assert {"some/corpus", "main", "page", "train"} <= set(map(str, corpus.identity().values()))
    line = refused(lambda: list(hub("train", documents, field="pag").documents()))
    assert "data.field=pag: did you mean 'page'? " in line


def test_a_number_of_documents_downloads_no_whole_file(hub_of_parquet):
    corpus = hub("train", documents=7)
    assert list(corpus.documents()) == page_texts("a")[:5]  # two of the seven rows are empty
    assert corpus.slices() is None
    assert hub_of_parquet == []


def test_a_part_that_is_cut_by_datasets_is_read_by_it(hub_of_parquet):
    assert list(hub("train[5:10]").documents()) == page_texts("a")[4:8]
    assert len(hub_of_parquet) == 1  # all files at once


def test_a_download_that_fails_and_a_wrong_field_are_refused_in_one_line(
    hub_of_parquet, monkeypatch
):
    line = refused(lambda: list(hub("train", field="pag").slices()))
    assert "did you mean 'page'" in line

    def fail(self, address):
        raise FileNotFoundError("403: the data set is gated\nask for access")

    monkeypatch.setattr("datasets.DownloadManager.download", fail)
    line = refused(lambda: list(hub("train").slices()))
    assert "data.name=some/corpus cannot be downloaded (403: the data set is gated)" in line
