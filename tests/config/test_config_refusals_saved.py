"""A saved config that was edited, damaged or made up is refused in one line."""

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
    ("hello", "is no saved run"),
    ("- a\n- b\n", "is no saved run"),
    ("", "is no saved run"),
    ("form: 0x" + "f" * 5000, "is no run's config: ValueError"),
    ("choices: {a: " + "[" * 30 + "]" * 30 + "}", "nested too deeply"),
    ("#" * (1 << 19), "longer than"),
    ("\0", "is no YAML"),
]


@pytest.mark.goal("X3")
@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: ascii(case[0])[:40])
def test_a_file_that_is_more_or_less_than_a_saved_config_is_refused(case, tmp_path):
    content, *fragments = case
    file = tmp_path / "config.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(compose, [f"config={file}"])
    assert line.startswith(f"config={file}: ")
    assert [part for part in fragments if part not in line] == [], line


# (the key that is changed, what stands there instead, what the refusal names besides the key)
GONE = "(gone)"


EDITS = [
    *(
        (key, GONE, "missing")
        for key in ("choices", "resolved", "init", "norm", "seed", "norm.eps")
    ),
    *((key, GONE, "missing") for key in ("norm.type", "data.split", "choices.norm")),
    ("resolved.init.std", GONE, "missing"),
    *((key, [1], "a group of keys") for key in ("choices", "resolved", "norm", "trainer")),
    *((key, None, "a group of keys") for key in ("placement", "init", "resolved.norms.layernorm")),
    ("resolved.norms", [1], "a group of keys"),
    ("nrom", {}, "did you mean 'norm'"),
    ("mlp.widht", 1, "there are activation"),
    ("position.base", 1, "there is no key"),
    ("choices.zeta", 1, "there are norm"),
    ("trainer.stesp", 1, "did you mean 'steps'"),
    ("norm.type", ["rmsnorm"], "['rmsnorm']"),
    ("norm.brings", 1, "a group of keys"),
    ("norm._target_", "os.system", "there are"),
    ("_target_", "os.system", "there is no key"),
    ("norm.type", "os.system", "layernorm, "),
    ("seed", "one", "'one'"),
    ("seed", True, "bool"),
    ("seed", float("nan"), "nan"),
    ("study", "../x", "'../x'"),
    ("study", "a\nb", r"'a\nb'"),
    ("choices.norm", "../../x", "it should be a name"),
    ("choices.placement", "x + f(x)", "it should be a name"),
    ("resolved.norms.layernorm.type", "zz", "layernorm, "),
    ("resolved.model.mlp_width", 999, "512"),
    ("resolved.model.head_dim", 16, "32"),
    ("resolved.final_norm", "none", "'layernorm'"),
    ("resolved.qkv", "none", "'norm'"),
    ("resolved.data.seed", 5, "0"),
    ("resolved.architecture.embed_scale", 3, "'none'"),
    ("resolved.trainer.steps", 3, "config=FILE trainer.steps=VALUE"),
    ("model.mlp_width", 999, "512"),
    ("norm.eps", 0.5, "0.5"),
]


@pytest.mark.goal("K2", "X3")
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit[0]}-{edit[1]}"[:40])
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
