"""What has no counterpart, on either side, is one line that names it."""

import re
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from test_hf import ENDS, OPENAI
from test_hf import GROUPED as SIZES

from transformer_norms import build_model, compose
from transformer_norms.hf import from_hf, to_hf
from transformer_norms.hf.conversion import ELSEWHERE, family_of, their_config
from transformer_norms.hf.facts import facts_of
from transformer_norms.hf.families import FAMILIES
from transformer_norms.model.settings import ModelConfig

pytestmark = [pytest.mark.filterwarnings("ignore")]
REFUSALS = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())
LLAMA = "mlp=swiglu architecture.tied=false"
SCALED = ("", "architecture.tied=false", "model.width=96")


@pytest.fixture(autouse=True, scope="module")
def compose_once():
    """Most refusals compare a model with the same configs of other families."""
    composed = cache(compose)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_norms.hf.families.compose", lambda w: composed(tuple(w)))
        yield


def theirs_of(name, config):
    import transformers

    config = transformers.AutoConfig.for_model(name, **{**config, **ENDS})
    if name == "openai-gpt":  # which its own code does not know either
        model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**OPENAI))
        model.config.afn = config.afn
        return model
    return transformers.AutoModelForCausalLM.from_config(config)


def line_of(function, *arguments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        function(*arguments)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    "case", REFUSALS["theirs"], ids=lambda case: f"{case['family']}: {case['said'][0]}"
)
def test_what_ours_cannot_be_is_named(case):
    sizes = REFUSALS["bases"].get(case["family"], SIZES)
    line = line_of(from_hf, theirs_of(case["family"], {**sizes, **case["config"]}))
    assert [part for part in case["said"] if part not in line] == [], line


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_family_that_is_not_built_is_named_with_the_reason(name):
    assert line_of(family_of, name) == f"{name} has no counterpart here: {ELSEWHERE[name]}"


def test_an_encoder_decoder_and_a_model_without_its_head_are_named():
    import transformers

    t5 = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    line = line_of(from_hf, transformers.T5ForConditionalGeneration(t5))
    assert line == "t5 is an encoder-decoder, and this is a decoder alone"
    line = line_of(from_hf, transformers.GPT2Model(transformers.GPT2Config(**OPENAI)))
    assert line == "a GPT2Model has no counterpart here; wanted is GPT2LMHeadModel"


def test_a_parameter_without_a_place_and_one_of_another_shape_are_named():
    model = theirs_of("llama", SIZES)
    model.register_parameter("adapter", torch.nn.Parameter(torch.zeros(1)))
    assert line_of(from_hf, model) == "the parameter adapter has no counterpart here"
    del model.adapter
    model.model.norm.weight = torch.nn.Parameter(torch.zeros(3))
    assert line_of(from_hf, model) == "model.norm.weight is [3] where its config makes it [24]"
    del model.model.norm.weight
    assert line_of(from_hf, model) == "the model has no parameter model.norm.weight"


@pytest.mark.parametrize("typed", REFUSALS["ours"])
def test_what_theirs_cannot_be_names_the_key_and_what_is_there(typed):
    usual = "" if "preset=" in typed or "mlp=" in typed else LLAMA
    model = build_model(compose(["model=nano", *usual.split(), *typed.split()]), 37)
    line = line_of(to_hf, model)
    assert line.startswith("transformers has no such model: ")
    assert REFUSALS["ours"][typed] in line, line


def test_all_differences_are_named_up_to_a_few_and_the_rest_counted():
    unlike = ["placement=hyper_connections", "attention=sinks"]
    unlike.append("architecture.attention_gate=per_head")
    more = ["architecture.logit_cap=9", "embed=norm", "final_norm=none", "v_norm=head"]
    four = compose(["model=nano", "position=alibi", *unlike])
    line = line_of(their_config, four, 37)
    typed = [text.removeprefix("architecture.") for text in unlike]
    assert [text for text in (*typed, "position=alibi") if text not in line] == []
    assert line.count(", where ") == 4
    assert "more" not in line
    line = line_of(their_config, compose(["model=nano", *unlike, *more]), 37)
    assert line.count(", where ") == 5
    assert re.search("; and [2-9] more; no other family differs in fewer$", line)


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        ("placement.equation=x + norm(f(norm(x)))", "sandwich"),  # and not peri, which brings more
        ("placement=peri", "peri"),
        ("placement.equation={attention: x + f(norm(x)), mlp: x+f( norm(x) )}", "pre"),
        ("placement.equation=norm(x + f(norm(x)))", "norm(x + f(norm(x)))"),
        ("placement=layerscale placement.learned.b.init=1", "layerscale, changed"),
    ],
)
def test_a_placement_is_named_as_it_was_chosen_and_an_equation_by_the_file_that_has_it(
    placement, name
):
    typed = [placement] if placement.startswith("placement.") else placement.split()
    assert facts_of(compose(["model=nano", *typed]), 37)["placement"] == name


def test_the_family_that_was_asked_for_says_what_it_is_not():
    typed = ["model=nano", *LLAMA.split(), "architecture.logit_scale=none"]
    model = build_model(compose(typed), 37)
    assert type(to_hf(model)).__name__ == "LlamaForCausalLM"
    assert type(to_hf(model, "mistral")).__name__ == "MistralForCausalLM"
    line = line_of(to_hf, model, "qwen3")
    assert line == "transformers has no such model: qk_norm=none, where qwen3 has head"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(("qwen33", "qwen3"), ("lama", "llama"), ("deepseek", "deepseek_v3"), ("gemma5", "gemma")),
        # Families of theirs that are not built here are no misspellings, and neither is a word.
        *((name, "") for name in ("ernie4_5", "starcoder2", "phi3", "cohere2", "glm", "mamba")),
        *(("gpt-5", ""), ("my_model", "")),
    ],
)
def test_a_family_is_suggested_where_the_name_is_a_misspelling_alone(name, near):
    line = line_of(family_of, name)
    assert line.startswith(f"did you mean '{near}'? there" if near else "there is")


def test_a_family_that_has_the_scales_says_them_and_keeps_the_head_tied():
    typed = "architecture.embed_scale=3", "placement.equation=(x+f(norm(x))*0.3)"
    model = build_model(compose(["model=nano", "mlp=swiglu", "init=mup", *typed]), 37)
    theirs = to_hf(model)
    assert theirs.config.model_type == "granite"
    assert theirs.config.tie_word_embeddings
    assert theirs.config.residual_multiplier == 0.3
    assert theirs.config.logits_scaling == 0.5


@pytest.mark.parametrize(
    ("typed", "family"),
    [("", "Arcee"), *((f"mlp=swiglu init=mup qk_norm=head {more}", "Qwen3") for more in SCALED)],
)
def test_a_model_is_one_of_theirs_and_a_scale_of_the_logits_goes_into_a_head_of_its_own(
    typed, family
):
    model = build_model(compose(["model=nano", *typed.split()]), 37)
    theirs = to_hf(model)
    assert type(theirs).__name__ == f"{family}ForCausalLM"
    if typed:
        assert model.config.architecture.logit_scale == "128/d"
        assert model.config.model.width != 128
        assert not theirs.config.tie_word_embeddings
    tokens = torch.arange(30)[None] % 37
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-5)
        back = from_hf(theirs)
        torch.testing.assert_close(back(tokens), model(tokens), rtol=0, atol=1e-5)


def test_a_model_that_carries_no_config_and_a_missing_package_are_named(monkeypatch):
    model = build_model(compose(["model=nano", *LLAMA.split()]), 37)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="transformers"):
        to_hf(model)
    monkeypatch.undo()
    del model.config
    assert "carries no config" in line_of(to_hf, model)


def test_every_key_that_makes_a_model_is_a_fact():
    typed = ["model=nano", "norm=rmsnorm", "qk_norm=head", "architecture.temperature_floor=8"]
    model = build_model(compose(typed), 37)
    keys = set(facts_of(model.config, 37))
    for node in ("architecture", "model"):
        names = {f"{node}.{field.name}" for field in fields(getattr(model.config, node))}
        assert names - {"model.dropout"} <= keys
    # `norms` and `qkv` are what `embed`, `final_norm`, `qk_norm` and the placement name.
    rest = {"architecture", "model", "norms", "qkv", "init", "seed"}
    assert {field.name for field in fields(ModelConfig)} - rest <= keys


def test_the_guide_names_the_families():
    page = (Path(__file__).parents[2] / "docs" / "your_own.md").read_text()
    listed = re.search(r"<!-- families -->\n(.*?)\.\n<!-- /families -->", page, re.DOTALL)[1]
    assert listed.replace("\n", " ").split(", ") == [family.model_type for family in FAMILIES]
