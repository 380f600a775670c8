"""The horizon of a run, and what follows from it: steps, warm-up, tokens of the last evaluation."""

import pytest
import yaml

from transformer_norms import compose, train
from transformer_norms.config.saved import to_yaml
from transformer_norms.explain.__main__ import main as explain
from transformer_norms.names import option_files
from transformer_norms.run.identity import run_hash
from transformer_norms.storage.reading import read_yaml
from transformer_norms.sweep.question import read_request

QUIET = ["tracking=none", "model=nano"]  # a context of 32 tokens
STORIES = {"type": "stories"}


def composed(*typed):
    return compose([*QUIET, *typed])


@pytest.mark.parametrize(
    ("tokens", "batch_size", "steps"),
    [("1e6", 16, 1954), ("1e6", 32, 977), ("512", 16, 1), ("513", 16, 2), ("1", 1, 1)],
)
def test_a_horizon_in_tokens_is_the_fewest_steps_that_read_so_many(tokens, batch_size, steps):
    typed = f"trainer.batch_size={batch_size}"
    config = composed(f"trainer.tokens={tokens}", typed)
    assert (steps - 1) * batch_size * 32 < float(tokens) <= steps * batch_size * 32
    assert (config.trainer.steps, config.trainer.tokens) == (steps, steps * batch_size * 32)
    same = composed(f"trainer.steps={steps}", typed)
    assert run_hash(config, STORIES) == run_hash(same, STORIES)


def test_steps_and_tokens_contradict_each_other_only_where_both_are_typed(tmp_path, monkeypatch):
    assert (
        compose(["recipe=gpt2_124m", "trainer.tokens=1e9", "tracking=none"]).trainer.steps == 2035
    )
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(composed("trainer.tokens=1e6")))
    for typed, steps in ([], 1954), (["trainer.batch_size=32"], 977), (["trainer.steps=7"], 7):
        assert compose([f"config={file}", *typed]).trainer.steps == steps
    for key, value in ("trainer.tokens", "1e6"), ("trainer.steps", "9"):
        fixed = read_request(["sweep=norms", f"{key}={value}"]).question.fixed
        assert {"trainer.steps", "trainer.tokens"} & fixed.keys() == {key}


@pytest.mark.parametrize(
    ("warmup", "steps"), [("0.05", 125), ("0.5", 1250), ("1e-9", 1), ("1", 1), ("0", 0), ("40", 40)]
)
def test_a_warm_up_below_one_is_a_share_of_the_steps(warmup, steps):
    assert composed(f"schedule.warmup={warmup}").schedule.warmup == steps
    same = composed(f"schedule.warmup={steps}")
    assert run_hash(composed(f"schedule.warmup={warmup}"), STORIES) == run_hash(same, STORIES)


def test_a_share_grows_with_the_horizon_and_a_number_of_steps_does_not(tmp_path):
    file = tmp_path / "config.yaml"
    for typed, steps in (("0.05", 250), ("125", 125)):
        file.write_text(to_yaml(composed(f"schedule.warmup={typed}")))
        longer = compose([f"config={file}", "trainer.steps=5000"])
        assert longer.schedule.warmup == steps


def test_the_last_evaluation_takes_a_tenth_of_the_run_at_most_unless_its_length_is_typed():
    for steps in (1, 3, 20, 426, 427, 2500, 100_000):
        config = composed(f"trainer.steps={steps}", "model.context=128")
        trained, read = steps * 16 * 128, config.data.val_tokens
        # Forward and backward are three forward passes; val and test are each read once.
        assert 2 * read <= 3 * trained / 10
        assert read == 131072 or 4 * read > 3 * trained / 10  # no power of two between fits
    assert composed("trainer.steps=20", "data.val_tokens=131072").data.val_tokens == 131072
    assert compose(["tracking=none"]).data.val_tokens == 131072
    variants = (["norm=layernorm"], ["placement=post"], ["seed=3"], ["optimizer=muon"])
    assert {composed("trainer.steps=20", *more).data.val_tokens for more in variants} == {1024}


def test_a_short_run_reads_as_much_of_val_as_its_config_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    typed = ["data=stories", "data.documents=300", "trainer.tokens=1e4", "trainer.threads=1"]
    summary = train(composed(*typed, "schedule.warmup=0.25", "trainer.probe_every=0"))
    held = yaml.safe_load((tmp_path / summary["folder"] / "config.yaml").read_text())
    resolved = held["resolved"]
    assert resolved["data"]["val_tokens"] == 1024  # 3/20 of 10,240 is 1,536
    assert (resolved["trainer"]["steps"], resolved["schedule"]["warmup"]) == (20, 5)
    assert explain([*QUIET, "trainer.tokens=1e4", "schedule.warmup=0.25"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("0.25 of trainer.steps=20", "trainer.tokens=10000", "a tenth of the run at most"):
        assert words in shown


def test_the_studies_that_are_committed_evaluate_on_what_they_did():
    """Their runs are shorter than those for which the rule takes all 131,072 tokens."""
    for name in ("norms", "placements", "depth", "warmup", "noise", "very_deep"):
        content = read_yaml(option_files("sweep")[name])
        assert content["fixed"]["data.val_tokens"] == 131072
