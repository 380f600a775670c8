"""A tokenizer that was made elsewhere: from a file, from the hub, from another run."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from corpora import learn_pairs, ready
from refusing import refused
from tokenizers import normalizers

from transformer_norms import compose, train
from transformer_norms.commands.sampling import sample
from transformer_norms.config.data_settings import expected_vocab_size
from transformer_norms.data import TOKENIZERS, load_tokenizer
from transformer_norms.data.documents import TextFiles
from transformer_norms.data.split import ReadTexts, split_corpus
from transformer_norms.hf.__main__ import main as export
from transformer_norms.run.loading import tokenizer
from transformer_norms.run.plan import Plan

pytestmark = [pytest.mark.filterwarnings("ignore")]
TEXT = "the cat sat on the mat, and the dog sat; 1234 é漢字!\n\n"
SPELLED = [TEXT, "<|endoftext|> spelled </s>", " \u00a0\n\t\x00 aaa\U0001f600", ""]


def made_elsewhere(file, end="<|endoftext|>", normalizer=None):
    return learn_pairs(file, [TEXT] * 9, 300, [end] * bool(end), normalizer)


def fitted(path, separated=True):
    return TOKENIZERS["file"](path=str(path), end="auto").fit([], separated, print, print)


def test_a_file_is_read_as_its_library_reads_it_and_every_text_comes_back(tmp_path):
    theirs = made_elsewhere(tmp_path / "tokenizer.json")
    ours = fitted(tmp_path)
    again = load_tokenizer(json.loads(json.dumps(ours.save())))
    assert ours.end == theirs.token_to_id("<|endoftext|>")
    for text in SPELLED:
        ids = ours.encode(text)
        assert ours.decode(ids) == again.decode(again.encode(text)) == text
        assert ours.byte_lengths[ids].sum() == len(text.encode())
        assert ours.end not in ids
    assert ours.encode(TEXT).tolist() == theirs.encode(TEXT).ids
    expected = [[*ours.encode(text), ours.end] for text in SPELLED]
    found = np.concatenate(list(ours.encode_documents(SPELLED, True))).tolist()
    assert found == sum(expected, [])


def test_a_file_without_an_end_gets_one_and_one_without_bytes_is_refused(tmp_path):
    made_elsewhere(tmp_path / "tokenizer.json", end="")
    assert fitted(tmp_path, separated=False).end is None
    ours = fitted(tmp_path)
    assert (ours.end, ours.byte_lengths[ours.end]) == (ours.vocab_size - 1, 0)
    content, words = json.loads((tmp_path / "tokenizer.json").read_text()), tmp_path / "words.json"
    pieces = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    words.write_text(json.dumps(content | {"decoder": pieces}))
    assert "bits per byte" in refused(fitted, words)
    words.write_text("{}")
    assert refused(fitted, words).startswith(f"tokenizer.path={words}: ")


def word(id, content, special=True):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": id, "content": content, "special": special, **flags}


@pytest.mark.parametrize(
    "added",
    [
        lambda n: [word(n + 1, "</s>")],
        lambda n: [word(n + 1, "</s>"), word(n + 20, "<a>"), word(n + 99, "<b>", special=False)],
        lambda n: [word(n, "</s>"), word(n + 1, "</s>")],
        lambda n: [word(n, "<a>"), word(n, "</s>")],
        lambda n: [word(5, "</s>")],
        lambda n: [word(n, ""), word(n + 1, "</s>")],
    ],
    ids=["gap", "gaps", "twice", "one id", "id of a letter", "empty"],
)
def test_the_ids_of_added_tokens_are_those_of_the_library(added, tmp_path):
    from tokenizers import Tokenizer

    file = tmp_path / "tokenizer.json"
    made_elsewhere(file, end="")
    content = json.loads(file.read_text())
    content["added_tokens"] = added(len(content["model"]["vocab"]))
    file.write_text(json.dumps(content))
    theirs, ours = Tokenizer.from_file(str(file)), fitted(file)
    assert ours.end == theirs.token_to_id("</s>")
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    assert expected_vocab_size({"path": str(file)}) == ours.vocab_size
    for id in range(ours.vocab_size):
        known = theirs.id_to_token(id) in ("</s>", "<a>")
        assert ours.pieces[id].decode(errors="replace") == ("" if known else theirs.decode([id]))
    for text in SPELLED:
        assert ours.end not in ours.encode(text)
        assert ours.decode(ours.encode(text)) == text


def test_a_vocabulary_with_a_gap_gets_an_end_whose_id_no_word_has(tmp_path):
    file = tmp_path / "tokenizer.json"
    made_elsewhere(file, end="")
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    last = max(words, key=words.get)
    size = words[last] = len(words)  # and nothing has the id before it
    file.write_text(json.dumps(content))
    assert (fitted(file, separated=False).vocab_size, fitted(file).end) == (size + 1, size + 1)
    assert (fitted(file).vocab_size, fitted(file).pieces[size - 1]) == (size + 2, b"")
    assert expected_vocab_size({"path": str(file)}) == size + 1
    again = load_tokenizer(json.loads(json.dumps(fitted(file).save())))
    for text in SPELLED:
        assert again.decode(again.encode(text)) == text
        assert again.end not in again.encode(text)
    # The library numbers an added token by the count of words: here it has the id of the last.
    file.write_text(json.dumps(content | {"added_tokens": [word(size + 1, "</s>")]}))
    assert refused(fitted, file).endswith(f"two of its tokens have one id, {size}")


@pytest.mark.parametrize("separator", ["none", "\\n"])
@pytest.mark.parametrize(
    ("normalizer", "change"),
    [
        (None, None),
        (normalizers.NFC(), None),  # the text is in this form already
        (normalizers.Lowercase(), str.lower),
        (normalizers.Strip(), str.strip),
        (normalizers.Prepend(" "), lambda text: "_" + text),
    ],
)
def test_a_tokenizer_that_changes_texts_is_named_with_their_count(
    normalizer, change, separator, tmp_path
):
    made_elsewhere(tmp_path / "tokenizer.json", normalizer=normalizer)
    lines = [f"The Cat \ufb01nds é  {i} " if i % 2 else f"sat {i}, as one" for i in range(180)]
    text = "\n".join(lines)
    (tmp_path / "corpus.txt").write_text(text)
    corpus = TextFiles(paths=(str(tmp_path / "corpus.txt"),), val_paths=(), separator=separator)
    choice = TOKENIZERS["file"](path=str(tmp_path), end="auto")
    notes = ready(corpus, choice).facts["notes"]
    said = [note for note in notes if note.startswith("tokenizer: ")]
    read = ReadTexts([text] if separator == "none" else lines)
    placed = [one for work in split_corpus(read, "hash", 0.1, 0).work() for one in work.placed()]
    changed = sum(change(one.text) != one.text for one in placed) if change else 0
    assert len(said) == bool(changed) == bool(change)
    assert all(f"changes {changed} of {len(placed)} texts" in line for line in said)


def test_a_run_keeps_its_tokenizer_and_exports_it(tmp_path, monkeypatch, capfd):
    import transformers

    monkeypatch.chdir(tmp_path)
    theirs = made_elsewhere("a.json", normalizer=normalizers.Lowercase())
    Path("corpus.txt").write_text((TEXT + "The End ß. ") * 40)
    keys = ["model=nano", "data=text", "data.paths=corpus.txt", "tracking=none", "tokenizer=file"]
    keys += ["trainer.steps=2", "trainer.threads=1", "trainer.probe_every=0"]
    summary = train(compose([*keys, "tokenizer.path=a.json"]))
    Path("b.json").write_bytes(Path("a.json").read_bytes())
    assert Plan(compose([*keys, "tokenizer.path=b.json"])).hash == summary["identity"]
    made_elsewhere("c.json")
    assert Plan(compose([*keys, "tokenizer.path=c.json"])).hash != summary["identity"]
    for name in ("a.json", "b.json", "corpus.txt"):
        Path(name).unlink()
    folder = summary["folder"]
    assert math.isfinite(summary["val_loss"])
    assert sample(folder, "the cat", tokens=3).startswith("the cat")
    assert export([folder, "out"]) == 0
    words = transformers.AutoTokenizer.from_pretrained("out")
    for text in SPELLED:
        assert words(text)["input_ids"] == tokenizer(folder).encode(text).tolist()
    assert words(TEXT)["input_ids"] == theirs.encode(TEXT).ids
    assert fitted(Path(folder) / "tokenizer.json").vocab_size == tokenizer(folder).vocab_size


def test_a_name_on_the_hub_is_read_by_the_library_and_a_missing_hub_is_one_line(
    tmp_path, monkeypatch
):
    import tokenizers

    theirs = made_elsewhere(tmp_path / "tokenizer.json")
    choice = TOKENIZERS["hub"](name="some/model", revision="main", end="auto")

    class Stand:
        from_str = tokenizers.Tokenizer.from_str

        @staticmethod
        def from_pretrained(name, revision="main"):
            if name != "some/model":
                raise OSError("no such model")
            return theirs

    monkeypatch.setattr(tokenizers, "Tokenizer", Stand)
    assert choice.fit([], True, print, print).encode(TEXT).tolist() == theirs.encode(TEXT).ids
    absent = TOKENIZERS["hub"](name="no/where", revision="main", end="auto")
    said = refused(absent.fit, [], True, print, print)
    assert re.match("tokenizer.name=no/where .*no such model", said)
