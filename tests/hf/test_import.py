"""Published weights: read by `import`, and trained on by `continue_from` as torch trains them."""

import shutil
from pathlib import Path

import pytest
import torch
from corpora import learn_pairs
from tokenizers import Tokenizer

from transformer_norms import (
    ConfigError,
    build_batches,
    compose,
    load,
    prepare_tokens,
    sample,
    train,
)
from transformer_norms.commands.importing import main
from transformer_norms.run.metrics import read_metrics

pytestmark = [pytest.mark.filterwarnings("ignore")]
TEXT = "the cat sat on the mat and the dog sat on the log\n" * 60
STEPS, RATE = 4, 3e-3
FROM = "continue_from=ours data=text data.paths=corpus.txt data.val_tokens=99 trainer.batch_size=4"
FROM += f" trainer.steps={STEPS} trainer.log_every=1 trainer.probe_every=0 trainer.threads=1"
FROM += f" schedule=constant schedule.warmup=0 optimizer.lr={RATE} optimizer.weight_decay=0"


@pytest.fixture(scope="module", autouse=True)
def theirs(tmp_path_factory):
    """A GPT-2 of transformers with random weights, which is imported into ./ours."""
    import transformers

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("imported"))
        Path("corpus.txt").write_text(TEXT)
        torch.manual_seed(0)
        no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "vocab_size": 270}
        config = transformers.GPT2Config(**sizes, **no_dropout, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
        for parameter in model.parameters():  # nothing starts at 0 or 1
            parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained("theirs")
        learn_pairs("theirs/tokenizer.json", [TEXT], 264, ["<|endoftext|>"])
        assert main(["theirs", "ours"]) == 0
        yield model.eval()


def test_the_folder_has_the_logits_the_tokens_and_the_text_of_the_model(theirs):
    model = load("ours")
    ids = torch.tensor(model.tokenizer.encode("the cat sat").astype("int64"))
    theirs_words = Tokenizer.from_file("theirs/tokenizer.json")
    assert ids.tolist() == theirs_words.encode("the cat sat").ids
    torch.testing.assert_close(model(ids[None]), theirs(ids[None]).logits)
    drawn = theirs.generate(ids[None], max_new_tokens=6, do_sample=False)[0].tolist()
    assert sample(model, "the cat sat", 6, temperature=0) == model.tokenizer.decode(drawn)
    assert sample("ours", "the cat sat", 6, temperature=0) == model.tokenizer.decode(drawn)


def test_training_goes_on_from_the_weights_as_torch_trains_them(theirs):
    config = compose(FROM.split())
    summary = train(config)
    assert train(config) == summary  # the same command finds it finished
    batches = build_batches(config, prepare_tokens(config))
    model = type(theirs)(theirs.config)
    model.load_state_dict(theirs.state_dict())
    betas, eps = config.optimizer.betas, config.optimizer.eps
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas, eps, weight_decay=0)
    losses = []
    for step in range(STEPS):
        batch = batches(step)
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.trainer.clip)
        optimizer.step()
        losses.append(loss.item())
    rows = read_metrics(Path(summary["folder"], "metrics.jsonl"))
    found = [row["train/loss"] for row in rows if "train/loss" in row]
    assert found == pytest.approx(losses, rel=1e-5)
    assert losses[-1] < losses[0] - 0.01
    further = train(compose([f"continue_from={summary['folder']}", f"trainer.steps={STEPS + 2}"]))
    rows = read_metrics(Path(further["folder"], "metrics.jsonl"))
    assert [row["train/loss"] for row in rows if "train/loss" in row][:STEPS] == found


def test_other_weights_are_another_run_and_a_run_without_them_is_too(theirs):
    before = train(compose(FROM.split()))
    shutil.copytree("theirs", "changed")
    theirs.transformer.wte.weight.data[0, 0] += 1e-3
    theirs.save_pretrained("changed")
    theirs.transformer.wte.weight.data[0, 0] -= 1e-3
    assert main(["changed", "changed_ours"]) == 0
    after = train(compose(FROM.replace("=ours", "=changed_ours").split()))
    scratch = train(compose([f"config={before['folder']}"]))
    assert len({one["identity"] for one in (before, after, scratch)}) == 3
    origins = [one["continued_from"] for one in (before, after, scratch)]
    assert origins == ["ours", "changed_ours", None]
    assert before["data"]["fingerprint"] == scratch["data"]["fingerprint"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("norm=rmsnorm", "its weights are of another model; norm.bias is True there"),
        ("model.depth=3", "its weights are of another model; model.depth is 2 there and 3 here"),
        ("model.context=8", r"position.position.weight is \[24, 16\], not \[8, 16\]"),
        ("tokenizer=byte", "for another tokenizer; type tokenizer=file tokenizer.path=ours"),
    ],
)
def test_what_the_weights_do_not_fit_is_refused_in_one_line(typed, said):
    before = sorted(Path("runs").rglob("*"))
    with pytest.raises(ConfigError, match=f"^continue_from=ours: .*{said}") as error:
        train(compose([*FROM.split(), "study=refused", typed]))
    assert "\n" not in str(error.value)
    assert sorted(Path("runs").rglob("*")) == before


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nowhere new", "nowhere: there is no such folder; hf download NAME"),
        ("theirs ours", "ours: is there already; name a new folder"),
        ("ours new", "ours: transformers did not write it; config.json is missing"),
        ("wordless new", "wordless: has no tokenizer.json"),
    ],
)
def test_a_wrong_import_is_one_line_and_writes_nothing(typed, said, capsys):
    shutil.copytree("theirs", "wordless", dirs_exist_ok=True)
    Path("wordless/tokenizer.json").unlink()
    assert main(typed.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert not Path("new").exists()
