"""Presets: whole architectures that go with everything and leave nothing of theirs behind."""

from pathlib import Path

import pytest
import yaml

from transformer_norms.config.building import build_model
from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.hf import families
from transformer_norms.hf.clauses.rotation import ROTARY, WINDOW_OF_KINDS
from transformer_norms.hf.conversion import family_of
from transformer_norms.hf.facts import differences, facts_of
from transformer_norms.kinds import plain
from transformer_norms.names import folder_of_configs, option_files, options

PRESETS = [name for name in options("preset") if name != "none"]
VOCABULARY = 37
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 8}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 16384}
OURS = ["model.width=32", "model.depth=8", "model.heads=2", "model.context=16384"]

CASES = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text())
PUBLISHED, RELEASED = CASES["published"], CASES["released"]


@pytest.mark.parametrize("name", [*PUBLISHED, *RELEASED])
def test_a_preset_is_what_transformers_config_of_the_family_says(name):
    transformers = pytest.importorskip("transformers")
    preset = name.partition("-")[0]
    kind = PUBLISHED[preset]["family"]
    size = {"depth": 8, "typed": [], **PUBLISHED[preset], **RELEASED.get(name, {})}
    more, depth, typed = dict(size["config"]), size["depth"], size["typed"]
    base = more.pop("base", None)
    sizes = {**SIZES, "num_hidden_layers": depth}
    if kind in ("gpt2", "openai-gpt", "gptj"):
        names = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
        sizes = dict(zip(names, SIZES.values(), strict=True))
    if base is not None:
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
    theirs = family_of(kind).facts(transformers.AutoConfig.for_model(kind, **{**sizes, **more}))
    keys = dict(word.split("=") for word in (*OURS, f"model.depth={depth}", *typed))
    assert_says(preset, [f"{key}={value}" for key, value in keys.items()], theirs)


def assert_says(preset, typed, theirs):
    ours = facts_of(compose([f"preset={preset}", *typed]), VOCABULARY)
    assert {key: (ours.get(key), theirs.get(key)) for key in differences(ours, theirs)} == {}


def test_preset_gpt_oss_is_what_its_config_class_says_but_for_the_experts():
    transformers = pytest.importorskip("transformers")
    config = transformers.GptOssConfig(
        **{**SIZES, "head_dim": 16, "num_key_value_heads": 2, "intermediate_size": 88},
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},  # for YaRN of this base
    )
    block = families.norm("rmsnorm", placement="pre", attention="sinks")
    rest = (ROTARY, WINDOW_OF_KINDS, families.ATTENTION_BIAS)
    theirs = families.Family("gpt_oss", block, *families.LLAMA, *rest).facts(config)
    assert_says("gpt_oss", OURS, theirs)
    assert config.default_theta == 150000.0


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_composes_at_every_size_and_says_where_it_is_published(preset):
    config = compose([f"preset={preset}", "model=nano"])
    build_model(config, VOCABULARY)
    assert len(config.about.source) > 8
    unverified = [line for line in config.warnings if line.startswith(f"preset={preset} is not")]
    assert bool(unverified) == (config.about.unverified != "none")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_chooses_an_architecture_and_neither_sizes_nor_a_recipe(preset):
    held = yaml.safe_load((folder_of_configs() / "preset" / f"{preset}.yaml").read_text())
    axes = {name.removeprefix("override /") for item in held["defaults"] for name in item}
    assert axes <= set("norm placement init position attention mlp".split())
    known = "defaults architecture embed qk_norm v_norm final_norm about init model"
    assert set(held) <= set(known.split())
    proportions = held.get("model", {})  # of the heads of some blocks to those of others
    assert proportions.keys() <= {"head_dim", "kv_heads"}
    assert all("l %" in formula and "H" in formula for formula in proportions.values())
    assert held.get("init") in (None, {"otherwise": "scaled"})


def test_no_constant_of_a_preset_leaks_into_another_choice():
    files = {axis: option_files(axis) for axis in ("norm", "placement", "mlp")}
    for preset in ("bert_decoder", "glm4", "gemma3", "nanochat", "ngpt"):
        for axis, name in (("norm", "dyt"), ("norm", "rmsnorm"), ("placement", "hybrid")):
            node = compose([f"preset={preset}", f"{axis}={name}", "model=nano"]).chosen[axis]
            assert plain(node) == read_config_file(files[axis][name])


def test_what_a_preset_says_of_itself_is_not_typed():
    for key in ("about.source=me", "about.unverified=none"):
        with pytest.raises(ConfigError, match="choose another, preset=NAME"):
            compose(["preset=gopher", key])
