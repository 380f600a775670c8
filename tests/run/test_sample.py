"""Text from a trained run."""

import copy
import math
from pathlib import Path

import pytest
import torch

from transformer_norms import ConfigError, build_model, compose, load, sample, train
from transformer_norms.commands.sample import main
from transformer_norms.commands.sampling import generate, narrow
from transformer_norms.errors import InputError

TINY = "model=nano data=text data.paths=corpus.txt data.val_tokens=99 trainer.steps=150 "
TINY += "trainer.threads=1 schedule.warmup=10 optimizer.lr=1e-2 tracking=none"
TEXT = "the cat sat on the mat and the dog sat on the log " * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sampled"))
        Path("corpus.txt").write_text(TEXT)
        return Path(train(compose(TINY.split()))["folder"]).resolve()


def test_the_command_prints_the_prompt_and_what_the_text_taught(folder, capsys):
    assert main([str(folder), "--prompt", "the cat", "--tokens", "40", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the cat")
    assert out.strip() in TEXT * 2


def test_a_loaded_model_has_its_tokenizer_and_writes_the_text_of_the_command(
    folder, monkeypatch, capsys
):
    main([str(folder), "--prompt", "the cat", "--tokens", "40", "--seed", "3"])
    printed = capsys.readouterr().out.removesuffix("\n")
    monkeypatch.chdir(folder.parents[2])
    model = load(folder.name[:12])  # a part of its name
    assert sample(model, "the cat", 40, seed=3) == printed == sample(folder, "the cat", 40, seed=3)
    assert model.tokenizer.decode(model.tokenizer.encode(TEXT)) == TEXT
    assert copy.deepcopy(model).tokenizer is model.tokenizer
    with pytest.raises(ConfigError, match="average and plugins: are of load"):
        sample(model, "the cat", average=True)
    with pytest.raises(ConfigError, match="there is no such file or folder, and no run"):
        load("nowhere")
    with pytest.raises(ConfigError, match="the model has no tokenizer"):
        sample(build_model(compose(["model=nano"]), 31), "the cat")


def test_a_run_below_any_path_is_sampled(folder, tmp_path, capsys):
    below = tmp_path / "lr=0.003, (müller)[1]"
    below.mkdir()
    (below / "run").symlink_to(folder)
    assert main([str(below / "run"), "--prompt", "the cat", "--tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_the_same_seed_is_the_same_text_past_the_end_of_the_context(folder, capsys):
    texts = []
    for seed in (0, 0, 2**31, 2**32 - 1):  # the first and the last that are allowed
        main([str(folder), *"--prompt the --tokens 70 --temperature 2".split(), f"--seed={seed}"])
        texts.append(capsys.readouterr().out)
    assert (texts[0] == texts[1], len(set(texts))) == (True, 3)


def test_the_cache_changes_no_choice():
    typed = ["model=nano", "model.context=16", "init=megatron", "trainer.precision=fp64"]
    model = build_model(compose(typed), 31).eval()
    prompt = torch.tensor([3, 1, 4])
    found = list(generate(model, prompt, 13, temperature=0))
    seen = prompt.tolist()
    for chosen in found:
        assert chosen == int(model(torch.tensor([seen]))[0, -1].argmax())
        seen.append(chosen)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_model_that_diverged_is_named_and_writes_nothing(temperature):
    model = build_model(compose(["model=nano", "model.context=16"]), 31).eval()
    torch.nn.init.constant_(model.blocks[0].mlp.f.down.weight, math.nan)
    with pytest.raises(InputError, match="has diverged"):
        next(generate(model, torch.tensor([3]), 1, temperature=temperature))


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.7), (40, 0.35), (99, 1.0), (1, 0.1)])
def test_top_k_and_top_p_leave_the_tokens_that_transformers_leaves(top_k, top_p):
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    generator = torch.Generator().manual_seed(0)
    for spread in (0.1, 1.0, 9.0):
        logits = spread * torch.randn(61, generator=generator).double()
        logits[7] = logits[31]  # of two that are as likely either may be the last
        theirs = logits[None]
        if top_k:
            theirs = TopKLogitsWarper(top_k)(None, theirs)
        theirs = TopPLogitsWarper(top_p)(None, theirs)[0]
        torch.testing.assert_close(narrow(logits, top_k, top_p), theirs, rtol=0, atol=0)


def test_only_the_tokens_that_are_left_are_drawn(folder, capsys):
    texts = []
    coldest = "temperature=0", "top-k=1", "top-p=1e-9", "temperature=1e-308", "temperature=5e-324"
    for more in (*coldest, "top-k=999999999999999999999"):
        main([str(folder), *"--prompt the --tokens 30 --temperature 5".split(), f"--{more}"])
        texts.append(capsys.readouterr().out)
    assert len(set(texts[:5])) == 1
    assert texts[5] not in texts[:5]


@pytest.mark.parametrize(
    "arguments",
    [
        "nowhere",
        *(f"FOLDER --tokens={tokens}" for tokens in (0, -1, "1e3", "inf")),
        *(f"FOLDER --top-k={top_k}" for top_k in (-1, 0.5)),
        *(f"FOLDER --top-p={top_p}" for top_p in (0, 1.5, "1.0000001", "nan")),
        *(f"FOLDER --temperature={value}" for value in ("nan", "inf", -1e-9, 101, "100.0000001")),
        *(f"FOLDER --seed={seed}" for seed in (-1, 2**32, 2**32 + 1, 2**64, -(2**63) - 1, 0.5)),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, folder, capsys):
    assert main(arguments.replace("FOLDER", str(folder)).split(" ")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments.partition("=")[2] in line
