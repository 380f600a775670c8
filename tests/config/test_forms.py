"""K3: each file of a run carries the number of its form, and a file of another form is refused."""

import json
import re
from pathlib import Path

import pytest
from run_folders import config_of, make_run, make_study
from short_runs import go, here  # noqa: F401

from transformer_norms import compose, load, runs
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.config.saved import FORM
from transformer_norms.data import load_tokenizer
from transformer_norms.errors import ConfigError, InputError
from transformer_norms.kinds import plain
from transformer_norms.run.checkpoint import verify
from transformer_norms.run.identity import run_hash
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.manifest import DamagedError, seal_manifest


def other_form(file, key="schema", number=99):
    text, found = re.subn(rf'("?{key}"?: ?)\d+', rf"\g<1>{number}", file.read_text(), count=1)
    assert found == 1
    file.write_text(text)
    return file


def manifest_of(run, number):
    file = next(run.glob("checkpoints/*/manifest.json"))
    held = json.loads(file.read_bytes())
    del held["sha256"]
    file.write_bytes(seal_manifest(held | {"schema": number}))
    verify(file.parent)


OTHERS = {
    "config.yaml": lambda run: compose([f"config={other_form(run / 'config.yaml', 'form')}"]),
    "config.yaml: its form": lambda run: runs(other_form(run / "config.yaml", "form").parent),
    "tokenizer": lambda run: load_tokenizer(
        json.loads(other_form(run / "tokenizer.json").read_text())
    ),
    "manifest.json": lambda run: manifest_of(run, 1),
    "summary.json": lambda run: read_summary(other_form(run / "summary.json").parent),
}


@pytest.mark.goal("K3")
def test_a_file_of_another_form_is_refused_in_one_line_that_names_it(tmp_path):
    run = Path(go()["folder"])
    kept = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    load(run)
    for name, read in OTHERS.items():
        with pytest.raises((ConfigError, InputError, DamagedError)) as caught:
            read(run)
        line = str(caught.value)
        assert (name in line, line.isprintable()) == (True, True)
        assert "schema" in line or "its form is 99; this version reads form 1" in line
        for file, data in kept.items():
            file.write_bytes(data)
    make_study(tmp_path, {"pre": {0: 2.3}})
    with pytest.raises(ConfigError, match=r"sweep-quick\.json: .*schema"):
        read_record(other_form(tmp_path / "sweep-quick.json"))


@pytest.mark.goal("K3")
def test_a_config_without_a_form_is_refused_and_a_config_is_written_with_one(tmp_path):
    file = make_run(tmp_path, config_of(), 2.3) / "config.yaml"
    file.write_text(file.read_text().replace(f"form: {FORM}\n", ""))
    with pytest.raises(ConfigError, match=r"its form is None; this version reads form 1 alone"):
        compose([f"config={file}"])


@pytest.mark.parametrize(
    ("typed", "hashed"),
    [
        ("", "b793c14affde831c"),
        ("placement=peri norm=dyt optimizer=muon", "0db25db69bf626a7"),
        ("preset=gpt2 data=text data.paths=a.txt", "93fdce1662243cec"),
        ("position=alibi v_norm=head architecture.attention_gate=per_head", "7751c831962abf46"),
    ],
)
def test_a_command_names_the_run_that_it_has_always_named(typed, hashed):
    assert run_hash(compose(typed.split()), {}) == hashed


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        ("v_norm", "head"),
        ("architecture.attention_gate", "per_head"),
        ("architecture.value_residual", "0.5"),
        ("architecture.value_embedding", "3"),
        ("architecture.smear", "4"),
        ("position.scaling", "{type: linear, factor: 2}"),
        ("data.test_fraction", "0.1"),
        ("norm.bias", "false"),
    ],
)
def test_a_key_that_no_run_had_at_first_is_hashed_where_it_is_not_its_default(key, chosen):
    typed = ["norm=dyt", "data=stories", "data.split=tail"]
    default, other = compose(typed), compose([*typed, f"{key}={chosen}"])
    before = plain(default)
    *above, last = key.split(".")
    for tree in (before, before["choices"]):
        node = tree.get(above[0], {}) if above else tree
        if isinstance(node, dict):  # of an axis, the choices have the name alone
            node.pop(last, None)
    assert run_hash(before, {}) == run_hash(default, {}) != run_hash(other, {})


def test_mini_is_the_small_model_of_nanogpt():
    sizes = compose(["model=mini"]).model
    shape = (sizes.depth, sizes.heads, sizes.width, sizes.context)
    assert shape == (6, 6, 384, 256)  # n_layer, n_head, n_embd, block_size
    assert sizes.depth * 12 * sizes.width**2 == 10_616_832  # its weights besides the embedding
