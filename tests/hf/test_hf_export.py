"""A run as a folder that transformers loads alone: the same text, from either tokenizer."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch

from transformer_norms import load, train
from transformer_norms.commands.sampling import generate
from transformer_norms.config.compose import compose
from transformer_norms.data import TOKENIZERS
from transformer_norms.data.tokenizer import RankTokenizer
from transformer_norms.hf.__main__ import main
from transformer_norms.hf.tokenizer_json import END, fast_tokenizer, splits, uncertain
from transformer_norms.run.loading import tokenizer

pytestmark = [pytest.mark.filterwarnings("ignore")]
TEXT = "the cat sat on the mat and the dog sat on the log, 1234 times; é漢字!\n\n" * 60
STRANGE = [
    "the cat  sat\ton the mat's\r\n\n  log 1234567",
    f"é漢字 \u00a0\u2028 İſ ǅ x{END}y<|end|> 'LL don't",
    "   \n   ",
    "\x00\x7f�\U0001f600 aaaaaaaaaaaaaaa",
]
RUN = ["model=nano", "data=text", "data.paths=corpus.txt", "tracking=none", "trainer.threads=1"]
RUN += ["schedule.warmup=3", "optimizer.lr=1e-2", "data.val_tokens=99"]
RUN += ["trainer.eval_every=0", "trainer.probe_every=0"]


def trained(tmp_path, monkeypatch, *more):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    return train(compose([*RUN, *more]))["folder"]


@pytest.mark.parametrize(
    "more",
    [
        ["tokenizer=byte", "model.kv_heads=2", "trainer.steps=30"],
        ["tokenizer=bpe", "tokenizer.vocab_size=290", "preset=gpt2", "trainer.steps=30"],
    ],
    ids=["byte", "bpe"],
)
def test_transformers_writes_the_same_text_from_the_folder_alone(
    tmp_path, monkeypatch, capfd, more
):
    import transformers

    folder = trained(tmp_path, monkeypatch, *more)
    assert main([folder, "out"]) == 0
    assert len({path.stat().st_mode for path in Path("out").iterdir()}) == 1  # all may read all
    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out")
    words = transformers.AutoTokenizer.from_pretrained("out")
    assert answer == {"folder": "out", "class": type(theirs).__name__}
    ours, own = load(folder), tokenizer(folder)
    for text in [TEXT[:200], *STRANGE]:
        assert words(text)["input_ids"] == own.encode(text).tolist()
        assert words.decode(words(text)["input_ids"]) == text
    prompt = own.encode("the cat").tolist()
    expected = prompt + list(generate(ours, torch.tensor(prompt), 16, temperature=0))
    found = theirs.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0].tolist()
    assert found == expected
    assert words.decode(found) == own.decode(expected)
    for settings in (theirs.config, theirs.generation_config):
        assert words.convert_ids_to_tokens(settings.eos_token_id) == words.eos_token
        assert settings.pad_token_id == settings.eos_token_id == words.pad_token_id
    # Prompts of two lengths in one batch, padded, are continued as each alone.
    write = transformers.pipeline("text-generation", "out", device="cpu", batch_size=2)
    prompts = ["the cat", "the dog sat on the"]
    asked = {"max_new_tokens": 9, "do_sample": False, "return_full_text": False}
    together = [answer[0]["generated_text"] for answer in write(prompts, **asked)]
    for prompt, text in zip(prompts, together, strict=True):
        ids = own.encode(prompt)
        alone = generate(ours, torch.tensor(ids.astype("int64")), 9, temperature=0)
        assert text == own.decode(list(alone))
    assert main([folder, "out"]) == 2
    assert "out: is there already" in capfd.readouterr().err


def test_what_cannot_be_exported_is_one_line_and_a_code(tmp_path, monkeypatch, capfd):
    folder = trained(tmp_path, monkeypatch, "placement=hybrid", "trainer.steps=1")
    capfd.readouterr()
    assert main([folder, "out"]) == 2
    assert main(["nowhere", "out"]) == 2
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main([folder, "out"]) == 2
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(Path(folder, "checkpoints"))
    Path(folder, "checkpoints").mkdir()
    assert main([folder, "out"]) == 2  # before the weights are read, which are gone
    monkeypatch.setattr("transformer_norms.hf.conversion.their_config", lambda *_: None)
    assert main([folder, "out"]) == 3
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    said = "placement=hybrid, where", "nowhere: there is no such file", "transformers is not inst"
    for part, line in zip((*said, said[0], "has no checkpoint yet"), lines, strict=True):
        assert part in line
    assert not Path("out").exists()


def test_the_end_of_a_document_is_an_id_that_no_text_has(tmp_path):
    import transformers

    for unfit, at in (TOKENIZERS["byte"](), 256), (TOKENIZERS["bpe"](vocab_size=280), 279):
        ours = unfit.fit([TEXT], True, print, print)
        theirs = fast_tokenizer(ours, 32)
        assert (ours.end, len(theirs)) == (at, at + 1)
        assert (theirs.eos_token, theirs.eos_token_id) == (END, at)
        assert (theirs.pad_token, theirs.pad_token_id) == (END, at)
        theirs.save_pretrained(tmp_path / str(at))
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / str(at))
        assert again(STRANGE[1])["input_ids"] == ours.encode(STRANGE[1]).tolist()
        assert again.decode([at, *ours.encode("a").tolist()], skip_special_tokens=True) == "a"


@pytest.mark.parametrize("pattern", ["r50k", "cl100k"])
def test_theirs_cuts_any_text_as_ours_does(pattern):
    """Random text of what the patterns tell apart, with a hole before the end as in cl100k."""
    bytes_ = [bytes([value]) for value in range(256)]
    pairs = b"th|he|the| t| the|  |12|123|aa|aaa|\r\n|34|qqq".split(b"|")  # no two make qqq
    ours = RankTokenizer("bpe", pattern, [*bytes_, *pairs], 280, 279)
    theirs = fast_tokenizer(ours, 10**6)
    letters = [*"the  \t\n\r'sdlLmvR1234aaaa.!?é漢İſ\u00a0\u2028\u3000"]
    letters += ["the", "'ll", "1234567", "1qqq1"]
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(letters, k=12))
        assert theirs(text)["input_ids"] == ours.encode(text).tolist(), ascii(text)


def test_pieces_that_two_neighbours_make_either_way_are_counted():
    assert splits([b"a", b"b", b"ab", b"abb"]) == [(b"a", b"b"), (b"ab", b"b")]
    assert uncertain([b"a", b"b", b"ab", b"aa", b"aaaa"]) == 0
    assert uncertain([b"a", b"aa", b"aaa"]) == 1
