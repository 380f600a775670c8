"""Runs that were written before config.yaml had `resolved` still load, train, report and sample.

fixtures/runs_before.tar.xz holds a few of them, and the logits that the code of then computed.
"""

import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from transformer_norms import compose, load, runs, train
from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.sweep_record import merge_records, read_record
from transformer_norms.config import old
from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.saved import to_mapping
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain, value_at
from transformer_norms.names import RENAMED, option_files, options
from transformer_norms.report.writing import write_report
from transformer_norms.run.checkpoint import newest, save
from transformer_norms.run.identity import run_hash
from transformer_norms.sample import main as sample

FIXTURES = Path(__file__).parents[1] / "fixtures"
PLAIN = Path("runs/old/rmsnorm-pre-tiny-stories-s0-0ff36506")
PREEMPTED = Path("runs/old/rmsnorm-pre-tiny-stories-s3-4e635474")
IDENTITY = "0123456789abcdef"
COMMAND = (
    "model=tiny model.width=8 model.depth=2 model.heads=2 model.context=16 data=stories "
    "data.documents=300 trainer.steps=6 trainer.eval_every=3 trainer.checkpoint_every=3 "
    "trainer.batch_size=4 trainer.probe_every=0 trainer.log_every=1 trainer.keep=1 "
    "trainer.threads=1 data.val_tokens=512 tracking=none schedule.warmup=2 study=old "
    "init.otherwise=scaled"
).split()


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open(FIXTURES / "runs_before.tar.xz") as archive:
        for member in archive.getmembers():
            archive.extract(member, filter="data")


@pytest.mark.goal("K3")
def test_an_old_run_loads_bitwise_and_one_line_says_that_it_was_translated(capfd):
    """Every weight has the bits of the file. The logits are those of the code of then to a
    float32's last digit, in which two processors may differ."""
    expected = json.loads(Path("runs/expected_logits.json").read_text())
    assert len(expected) == 8
    ids = torch.arange(16)[None] + 97
    for folder, logits in expected.items():
        model = load(folder)
        (file,) = Path(folder).glob("checkpoints/*/model.safetensors")
        weights, saved = model.state_dict(), load_file(file)
        for name, tensor in saved.items():  # a number was a vector of one then
            assert torch.equal(weights[name].flatten(), tensor.flatten()), (folder, name)
        with torch.no_grad():
            found = model(ids)[0, -1, :4].double().tolist()
        assert found == pytest.approx([*map(float.fromhex, logits)], rel=1e-6, abs=1e-7), folder
        assert capfd.readouterr().err.count("was translated") == 1


def test_the_same_command_finds_an_old_finished_run(capfd):
    summary = train(compose(COMMAND))
    assert summary["folder"] == str(PLAIN)
    assert "run by other code" in capfd.readouterr().err


@pytest.mark.goal("K3")
def test_an_old_unfinished_run_is_refused_as_by_other_code_and_runs_anew_beside_it():
    with pytest.raises(ConfigError, match="run by other code"):
        train(compose([*COMMAND, "seed=3"]))
    anew = train(compose([*COMMAND, "seed=3", "again=true"]))
    assert anew["folder"] == f"{PREEMPTED}-2"
    then = pytest.approx(5.475649774074554, rel=1e-7)  # to a float32's last digit
    assert anew["val_loss"] == then  # as the code of then trained it


def test_an_old_config_that_is_typed_is_called_translated_once(capfd):
    assert train(compose([f"config={PLAIN}/config.yaml"]))["folder"] == str(PLAIN)
    assert capfd.readouterr().err.count("was translated") == 1


def test_an_old_config_trains_as_it_did():
    config = compose([as_typed("config", f"{PLAIN}/config.yaml"), "study=again"])
    then = pytest.approx(5.466518044471741, rel=1e-7)  # to a float32's last digit
    assert train(config)["val_loss"] == then


def test_an_old_run_is_continued_and_the_record_says_by_other_code():
    summary = train(compose([f"continue_from={PLAIN}", "trainer.steps=9"]))
    assert summary["val_loss"] == 5.443346381187439
    assert any("run by other code" in warning for warning in summary["warnings"])


def test_learned_numbers_that_were_saved_without_an_axis_load_and_go_on(tmp_path):
    learned = "placement.learned={b: {learn: scalar, init: 0}}"
    equation = "placement.equation=x + b * f(norm(x))", learned, "norm=rmsnorm"
    config = compose([*COMMAND, *equation, "optimizer.weight_decay=0"])
    model = build_model(config, 31)
    saved = {name: p.detach().clone() for name, p in model.named_parameters()}
    numbers = {name: torch.tensor(0.25) for name in saved if name.endswith("branch.gain")}
    assert len(numbers) == 4
    moments = {"exp_avg": torch.tensor(0.5), "exp_avg_sq": torch.tensor(0.04)}
    kept = {f"{name}:{key}": value for name in numbers for key, value in moments.items()}
    kept |= {f"{name}:step": torch.tensor(9.0) for name in numbers}
    trainer = build_trainer(config, model, lambda step: None, lambda: ())
    written = tmp_path / "checkpoints"
    tensors = {"model": saved | numbers, "optimizer": kept}
    save(written, IDENTITY, 1, tensors, trainer.state(), {}, keep=1)
    read = newest(written, IDENTITY, pytest.fail)
    with read.open("model") as weights, read.open("optimizer") as state:
        trainer.restore(read.state, weights, state)

    block, x = model.blocks[0], torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    f, norm = block.mlp.f, lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(block.mlp(x, x, x), x + 0.25 * f(norm(x)))
    (optimizer,) = trainer.optimizers
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer.step()
    first, second = 0.9 * 0.5 + 0.1 * 0.1, 0.99 * 0.04 + 0.01 * 0.1**2
    step = first / (1 - 0.9**10) / ((second / (1 - 0.99**10)) ** 0.5 + 1e-8)
    for name in numbers:
        number = model.get_parameter(name)
        assert number.tolist() == [pytest.approx(0.25 - config.optimizer.lr * step, rel=1e-5)]
        assert optimizer.state[number]["step"].shape == ()


def test_a_run_without_a_test_share_is_the_run_of_before_there_was_one():
    typed = ["data=text", "data.paths=a.txt", "data.split=tail"]
    without, tested = (
        run_hash(compose([*typed, f"data.test_fraction={share}"]), {}) for share in (0, 0.1)
    )
    assert without != tested
    before = plain(compose(typed))
    del before["data"]["test_fraction"]
    assert run_hash(before, {}) == without


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        ("v_norm", "head"),
        ("architecture.attention_gate", "per_head"),
        ("architecture.value_residual", "0.5"),
        ("architecture.value_embedding", "3"),
        ("architecture.smear", "4"),
        ("position.scaling", "{type: linear, factor: 2}"),
    ],
)
def test_a_run_without_a_younger_key_is_the_run_of_its_default(key, chosen):
    default, other = compose([]), compose([f"{key}={chosen}"])
    before = plain(default)
    for tree in (before, before["choices"]):
        *above, last = key.split(".")
        node = tree if not above else tree.get(above[0], {})
        if isinstance(node, dict):  # of an axis, the choices have the name alone
            node.pop(last, None)
    assert run_hash(before, {}) == run_hash(default, {}) != run_hash(other, {})
    completed = old.complete({"resolved": before})["resolved"]
    assert value_at(completed, key) == value_at(default, key)


@pytest.mark.goal("K3")
def test_an_old_study_is_reported_and_an_old_run_sampled(capsys):
    written = write_report([Path("runs/mini")])
    assert "layernorm" in written[0].with_name("table.md").read_text()
    assert sample([str(PLAIN), "--prompt", "The", "--tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("The")


def test_every_old_placement_is_translated_to_what_its_file_says_today():
    before = yaml.safe_load((FIXTURES / "placements_before.yaml").read_text())
    files = option_files("placement")
    assert len(before) == 30
    for name, node in before.items():
        today = yaml.safe_load(files[name].read_text())
        # An old run keeps what its placement brought; today's file may bring another start.
        expected = {**today, "brings": node.get("brings", {})}
        if name == "layerscale":  # whose start does not follow the depth in an old run
            expected |= {"learned": {"b": node["both"]["b"]}, "source": node["source"]}
            del expected["brings"]
        assert old._placement(node, name) == expected, name
        written = old._placement(node, "a name that no file has")
        assert old._plans(written) == old._plans(expected), name


def test_old_sections_that_were_typed_make_an_equation_of_their_own():
    before = yaml.safe_load((FIXTURES / "placements_before.yaml").read_text())
    typed = {**before["deepnorm"], "both": {"post": "norm", "a": 3}}
    assert old._placement(typed, "deepnorm")["equation"] == "norm((3) * x + f(x))"


@pytest.mark.parametrize(
    "name", ["mixln", "normformer", "out", "residual_dual", "sandwich", "pre", "prepost"]
)
def test_an_old_run_keeps_the_start_that_its_placement_brought_then(name):
    before = yaml.safe_load((FIXTURES / "placements_before.yaml").read_text())
    file = PLAIN / "config.yaml"
    saved = yaml.safe_load(file.read_text())
    saved["placement"], saved["choices"]["placement"] = before[name], name
    file.write_text(yaml.safe_dump(saved))
    config = compose([f"config={file}"])
    assert config.choices.placement == name
    assert dict(config.init.std) == saved["init"]["std"]
    assert config.architecture.tied is saved["architecture"]["tied"] is True
    assert config.architecture.embed_scale == saved["architecture"]["embed_scale"] == "none"


def test_a_run_of_an_earlier_default_start_keeps_it(tmp_path):
    config = compose(["init.otherwise=scaled", "init.std.head=0.3", "data=stories"])
    content = to_mapping(config)
    assert content["init"] == {"otherwise": "scaled", "std": {"head": 0.3}}
    del content["init"]["otherwise"], content["optimizer"]["lr_factor"]
    del content["resolved"]["optimizer"]["lr_factor"]
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    again = compose([f"config={file}"])
    assert again.init == config.init
    assert (again.choices.init, dict(again.optimizer.lr_factor)) == (
        "scaled", dict.fromkeys(("matrices", "embeddings", "head", "norms", "biases"), 1.0)
    )  # fmt: skip
    assert compose([f"config={file}", "placement=hybrid"]).choices.init == "megatron"
    wider = compose([f"config={file}", "init=mup", "model.width=256"])
    assert wider.optimizer.lr_factor.matrices == 0.5


@pytest.mark.parametrize("typed", ["auto", "scald", "7"])
def test_what_auto_comes_to_otherwise_is_a_rule(typed):
    with pytest.raises(ConfigError, match=rf"^init.otherwise={typed}: "):
        compose([f"init.otherwise={typed}"])


SIZED = ["study=sizes" if text == "study=old" else text for text in COMMAND]
# A part of a sweep record as it was written when nano was called tiny.
PLANNED = {
    "folder": "rmsnorm-pre-tiny-stories-s0-01234567", "identity": "0123456789abcdef",
    "stage": "result", "variant": {"model": "tiny"}, "tuned": {}, "seed": 0,
}  # fmt: skip
RECORD = {
    "name": "sizes", "question": "", "axes": ["model"], "baseline": {"model": "tiny"}, "tune": {},
    "tune_seeds": [], "seeds": [0], "effect": 0.005, "runs": [PLANNED], "tuned": [],
    "contrasts": ["small - tiny"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "former"), [(a, old) for a, names in RENAMED.items() for old in names]
)
def test_a_former_name_of_an_option_is_the_same_run(axis, former):
    today = RENAMED[axis][former]
    assert today in options(axis)
    assert former not in options(axis)
    typed = ["tokenizer=byte", f"{axis}={former}"]
    assert plain(compose(typed)) == plain(compose(["tokenizer=byte", f"{axis}={today}"]))


def test_mini_is_the_small_model_of_nanogpt():
    sizes = compose(["model=mini"]).model
    shape = (sizes.depth, sizes.heads, sizes.width, sizes.context)
    assert shape == (6, 6, 384, 256)  # n_layer, n_head, n_embd, block_size
    assert sizes.depth * 12 * sizes.width**2 == 10_616_832  # its weights besides the embedding


def test_a_run_that_was_saved_under_a_former_name_is_found_and_shown_under_todays():
    new = Path(train(compose(SIZED))["folder"])
    old = new.with_name(new.name.replace("-nano-", "-tiny-"))
    assert new != old
    new.rename(old)
    for file, count in (("config.yaml", 2), ("summary.json", 1)):
        text, found = re.subn(r'(model"?: "?)nano', r"\1tiny", (old / file).read_text())
        assert found == count
        (old / file).write_text(text)
    for name in ("tiny", "nano"):
        typed = [f"model={name}", *SIZED[1:]]
        assert train(compose(typed))["folder"] == str(old)
    assert train(compose([f"config={old}/config.yaml"]))["folder"] == str(old)
    (row,) = runs("runs/sizes")
    assert row["config"]["choices"]["model"] == row["summary"]["choices"]["model"] == "nano"


def test_a_sweep_that_was_recorded_under_a_former_name_plans_nothing_twice(tmp_path):
    file = tmp_path / "sweep-sizes.json"
    file.write_text(json.dumps({**RECORD, "schema": 1}))
    before = read_record(file)
    assert before.baseline == before.runs[0].variant == {"model": "nano"}
    name = PLANNED["folder"].replace("-tiny-", "-nano-")
    now = replace(before, runs=[replace(before.runs[0], folder=name)])
    assert [run.folder for run in merge_records(before, now).runs] == [PLANNED["folder"]]
    variants = {"nano": {"model": "nano"}, "micro": {"model": "micro"}}
    assert find_contrast("small - tiny", variants).pair == ("micro", "nano")


def test_files_of_plugins_choose_by_former_names(tmp_path):
    recipe = tmp_path / "configs" / "recipe" / "own.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("# @package _global_\ndefaults:\n  - override /model: tiny\n")
    config = compose([f"plugins={tmp_path}", "recipe=own"])
    assert (config.choices.model, config.model.width) == ("nano", 64)
    taken = tmp_path / "configs" / "model" / "small.yaml"
    taken.parent.mkdir()
    taken.write_text("width: 8\n")
    with pytest.raises(ConfigError, match="model=small is ours"):
        compose([f"plugins={tmp_path}"])
