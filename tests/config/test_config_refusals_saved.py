"""A saved config that was edited, damaged or made up is refused in one line."""

from pathlib import Path

import pytest
import yaml
from refusing import refused

from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml


@pytest.fixture(scope="module")
def saved() -> str:
    """What a run folder's config.yaml holds."""
    return to_yaml(compose(["final_norm=layernorm"]))


HOSTILE = [
    ("x: !!python/object/apply:os.system [ls]\n", "tags"),
    ("seed: !!int 0\n", "tags"),
    ("a: &x 1\n", "anchors"),
    ("<<: {seed: 1}\n", "<<"),
    ("study: ${oc.env:HOME}\n", "${"),
    ("choices: {norm: '${oc.env:HOME}'}\n", "${"),
    ("seed: ${eval:1}\n", "${"),
    ('study: "\\x24{oc.env:HOME}"\n', "${"),
    ("study: ???\n", "???"),
    ("hello", "is not a saved run"),
    ("- a\n- b\n", "is not a saved run"),
    ("", "is not a saved run"),
    ("form: 0x" + "f" * 5000, "Exceeds the limit"),
    ("choices: {a: " + "[" * 30 + "]" * 30 + "}", "nested too deeply"),
    ("#" * (1 << 19), "longer than"),
    ("\0", "is not YAML"),
]


@pytest.mark.goal("X3")
@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: ascii(case[0])[:40])
def test_a_file_that_is_more_or_less_than_a_saved_config_is_refused(case, tmp_path):
    content, fragment = case
    file = tmp_path / "config.yaml"
    file.write_text(content)
    line = refused(compose, [f"config={file}"])
    assert line.startswith(f"config={file}: ")
    assert fragment in line


ROWS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
GONE = "(gone)"  # in the place of a value


@pytest.mark.goal("K2", "X3")
@pytest.mark.parametrize("edit", ROWS["edits"], ids=lambda edit: f"{edit[0]}-{edit[1]}"[:40])
def test_a_saved_config_is_complete_and_every_key_in_it_counts_or_is_refused(edit, saved, tmp_path):
    key, value, fragment = edit
    held = yaml.safe_load(saved)
    node, (*above, last) = held, key.split(".")
    for name in above:
        node = node[name]
    if value == GONE:
        del node[last]
    else:
        node[last] = value
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(held))
    line = refused(compose, [f"config={file}"])
    assert key.removeprefix("init.std.").removeprefix("resolved.") in line
    assert fragment in line, line


@pytest.mark.parametrize(
    "key",
    "preset=gpt2 recipe=olmo2_1b qkv=none norms={} warnings=[] resolved={} choices={}".split(),
)
def test_what_a_saved_run_derives_cannot_be_typed_beside_it(key, saved, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(saved)
    assert key in refused(compose, [f"config={file}", key])
