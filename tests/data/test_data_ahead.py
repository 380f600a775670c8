"""python -m transformer_norms.data: the tokens of a run, prepared before it is trained."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from transformer_norms.data.__main__ import main
from transformer_norms.run.plan import Plan


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = "".join(random.Random(0).choices("ab é\n", k=3000))
    Path("corpus.txt").write_text(text)
    return text


def test_the_command_prints_what_lies_in_the_cache_and_a_run_finds_it(text, capsys):
    from transformer_norms import compose

    overrides = ["data=text", "data.paths=corpus.txt", "data.split=tail", "model=nano"]
    assert main(overrides) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out.splitlines()[-1])
    cut = int(len(text) * 0.95)
    train, val = text[:cut].encode(), text[cut:].encode()
    assert answer["bytes"] == {"train": len(train), "val": len(val), "test": 0}
    assert answer["tokens"] == answer["bytes"]
    ids = np.fromfile(Path(answer["folder"], "train.bin"), "<u2")
    assert bytes(ids.astype(np.uint8)) == train
    assert "reading" in err
    assert not Path("runs").exists()
    assert Plan(compose(overrides)).tokens().fingerprint == answer["fingerprint"]
    assert "reading" not in capsys.readouterr().err


def test_the_command_refuses_in_one_line_what_a_run_refuses(text, capsys):
    for typed, named in (("data=txet", "'text'"), ("data=text data.paths=no.txt", "no.txt")):
        assert main(typed.split()) == 2
        out, err = capsys.readouterr()
        assert named in err
        assert err.count("\n") == 1
        assert out == ""
