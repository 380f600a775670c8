import json
import socket
import threading
from contextlib import closing

import pytest
from refusing import refused

from transformer_norms.data import CORPORA, TOKENIZERS, downloads, load_tokenizer, prepare
from transformer_norms.data.slices import ReadTexts
from transformer_norms.data.token_cache import PARTS
from transformer_norms.progress import tell_nobody

HUB = CORPORA["hub"](
    name="some/corpus", subset="none", revision="main", field="text", part="train", documents="all"
)


@pytest.fixture(params=["accepts and never answers", "nothing there"])
def network_down(request, monkeypatch, tmp_path):
    """Every request goes to a port of this machine that is silent, or closed."""
    for key in ("PATIENCE", "VOCABULARY_SECONDS"):
        monkeypatch.setattr(downloads, key, 0.3)
    for key in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "no_proxy", "NO_PROXY", "https_proxy"):
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
    line = refused(lambda: list(HUB.documents()))
    for hint in "data.name=some/corpus data=pydocs data.paths=FILE HF_DATASETS_OFFLINE=1".split():
        assert hint in line


def test_an_endpoint_of_ones_own_is_asked(network_down, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", network_down)
    assert network_down in refused(lambda: list(HUB.documents()))


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_without_an_answer_a_published_vocabulary_is_refused(network_down, name):
    line = refused(lambda: TOKENIZERS[name]().fit([], True, print))
    for hint in (f"tokenizer={name}", "tokenizer=bpe", "tokenizer=byte", "TIKTOKEN_CACHE_DIR"):
        assert hint in line


def test_offline_asks_no_network_and_says_what_is_not_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr(downloads, "answers", lambda url: pytest.fail("the network was asked"))

    def absent(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'some/corpus' on the Hub (OfflineModeIsEnabled)")

    monkeypatch.setattr("datasets.load_dataset_builder", absent)
    line = refused(lambda: list(HUB.documents()))
    assert "OfflineModeIsEnabled" in line


def test_a_hub_that_answers_the_probe_and_then_hangs_is_given_up(monkeypatch):
    for key in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(downloads, "answers", lambda url: True)
    monkeypatch.setattr(downloads, "METADATA_SECONDS", 0.2)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *a, **k: threading.Event().wait())
    assert "no answer within" in refused(lambda: list(HUB.documents()))


def test_a_refusal_is_an_answer():
    import http.server

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # The handler knows no method: 501, and yet somebody is there.
        assert downloads.answers(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_a_published_vocabulary_keeps_its_ids_its_end_and_its_holes(name, monkeypatch):
    import tiktoken

    letters = {bytes([value]): 255 - value for value in range(256)} | {b"ab": 256}
    special = {"<|endoftext|>": 258, "<|other|>": 270}
    theirs = tiktoken.Encoding(
        name, pat_str=r"\w+|\W+", mergeable_ranks=letters, special_tokens=special
    )
    monkeypatch.setattr(downloads._Vocabulary, "_load", lambda self: theirs)
    ours = TOKENIZERS[name]().fit([], True, print)
    assert (ours.vocab_size, ours.end) == (271, 258)
    text = "abcab <|endoftext|>"
    assert ours.encode(text).tolist() == theirs.encode_ordinary(text)
    assert ours.decode([256, 258, 257, 270]) == "ab"
    assert load_tokenizer(ours.save()).pieces == ours.pieces


@pytest.mark.parametrize(("documents", "expected"), [("all", ["a", "b", "d"]), (2, ["a", "b"])])
def test_a_hub_corpus_yields_its_rows_and_leaves_empty_ones_out(
    documents, expected, monkeypatch, tmp_path
):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"page": "{text}"}}\n' for text in ("a", "b", "", "d")))
    asked = stand_in(monkeypatch, tmp_path, "json", str(file))
    keys = {"name": "some/corpus", "revision": "main", "field": "page", "part": "train"}
    corpus = CORPORA["hub"](subset="none", documents=documents, **keys)
    assert list(corpus.documents()) == expected
    assert asked == [(("some/corpus", None), {"revision": "main"})]
    assert set(keys.values()) <= set(map(str, corpus.identity().values()))


# A data set on the hub that is stored as Parquet. Local files stand for those of the hub.


def stand_in(monkeypatch, tmp_path, kind, data_files):
    """Lets local files of a kind stand for the data set of the hub. Returns what will hold the
    arguments with which it is asked for."""
    import datasets

    asked, local = (
        [],
        datasets.load_dataset_builder(
            kind, data_files=data_files, cache_dir=str(tmp_path / "cache")
        ),
    )
    for key in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(downloads, "answers", lambda url: True)
    monkeypatch.setattr(
        datasets, "load_dataset_builder", lambda *a, **k: asked.append((a, k)) or local
    )
    return asked


@pytest.fixture
def hub_of_parquet(monkeypatch, tmp_path):
    """A data set of three files, in two parts, and the addresses that were downloaded."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    files = {"train": ["a", "b"], "test": ["c"]}
    for name in "abc":
        texts = [f"{name}{number}" if number % 5 else "" for number in range(20)]
        parquet.write_table(pyarrow.table({"page": texts}), tmp_path / name, row_group_size=7)
    stand_in(
        monkeypatch, tmp_path, "parquet",
        {part: [str(tmp_path / name) for name in names] for part, names in files.items()},
    )  # fmt: skip
    asked, download = [], datasets.DownloadManager.download

    def record(self, address):
        asked.append(str(address).rpartition("/")[2])
        return download(self, address)

    monkeypatch.setattr(datasets.DownloadManager, "download", record)
    return asked


def hub(part, documents="all", field="page"):
    keys = {"name": "some/corpus", "subset": "none", "revision": "main"}
    return CORPORA["hub"](**keys, field=field, part=part, documents=documents)


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
def test_columns_that_nobody_asked_for_do_not_decide_on_the_hub(
    kind, documents, monkeypatch, tmp_path
):
    import pyarrow
    from pyarrow import parquet

    rows = [[{"page": "2024-01-01", "m": None}], [{"page": "b", "m": "x", "n": 1}, {"page": "c"}]]
    files = [tmp_path / f"{number}.{kind}" for number in range(2)]
    for file, some in zip(files, rows, strict=True):
        if kind == "json":
            file.write_text("".join(json.dumps(row) + "\n" for row in some))
        else:
            parquet.write_table(pyarrow.Table.from_pylist(some), file)
    stand_in(monkeypatch, tmp_path, kind, [str(file) for file in files])
    assert list(hub("train", documents).documents()) == ["2024-01-01", "b", "c"]
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


class Branch:
    """A large corpus under a name that stands for another text tomorrow."""

    floor, size = None, 0

    def __init__(self, day):
        self.texts = [f"{day}, text {number} " * 10 for number in range(200)]

    def identity(self):
        return {"type": "branch", "revision": "main"}

    def documents(self):
        return iter(self.texts)

    def slices(self):
        return (ReadTexts(self.texts[at : at + 40]) for at in range(0, 200, 40))


def test_a_preparation_that_goes_on_mixes_no_two_states_of_a_branch(monkeypatch, tmp_path):
    monkeypatch.setattr("transformer_norms.data.slices.MOST_CHARACTERS", 1000)
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path))

    def ready(day, tell=tell_nobody):
        choice = TOKENIZERS["byte"]()
        return prepare(Branch(day), choice, "hash", 0.1, 0, print, tell, workers=1)

    def stop(what, done, total):
        if "encoding" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ready("Monday", stop)
    tokens = ready("Tuesday")
    text = "".join(tokens.tokenizer.decode(getattr(tokens, part)) for part in PARTS)
    assert (text.count("Monday"), text.count("Tuesday")) == (0, 2000)
