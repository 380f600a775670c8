"""What has no counterpart, on either side, is one line that names it."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from test_hf import ENDS, OPENAI
from test_hf import GROUPED as SIZES
from test_hf import LATENT as LATENT_SIZES

from transformer_norms import build_model, compose
from transformer_norms.hf import from_hf, to_hf
from transformer_norms.hf.conversion import ELSEWHERE, family_of, their_config
from transformer_norms.hf.facts import facts_of
from transformer_norms.hf.families import FAMILIES
from transformer_norms.model.settings import ModelConfig

pytestmark = [pytest.mark.filterwarnings("ignore")]
LLAMA4 = {**SIZES, "head_dim": 6, "intermediate_size_mlp": 40, "num_local_experts": 1,
          "moe_layers": []}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.5}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
FULL, SLIDING = "full_attention", "sliding_attention"


def rope(**more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **more}}


def turned(**more):
    full = {"rope_type": "proportional", "rope_theta": 1e4, **more}
    return {"rope_parameters": {FULL: full, SLIDING: rope()["rope_parameters"]}}


QWEN = {"num_experts": 2, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 4,
        "layer_types": [FULL] * 2}  # fmt: skip
RECURRENT = {"mlp_only_layers": [0, 1], "linear_num_value_heads": 2, "linear_num_key_heads": 1}
GEMMA4 = {"head_dim": 6, "global_head_dim": 6, "hidden_size_per_layer_input": 0,
          "vocab_size_per_layer_input": 37, **turned(partial_rotary_factor=0.5)}  # fmt: skip
LATENT = {**LATENT_SIZES, "n_routed_experts": 4, "moe_intermediate_size": 4}
GEMMA3N = {"head_dim": 6, "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 0,
           "vocab_size_per_layer_input": 37, "activation_sparsity_pattern": [0.5, 0.0]}  # fmt: skip
BLOOM = {"vocab_size": 37, "hidden_size": 24, "n_head": 4}
BASES = {
    **dict.fromkeys(("gpt2", "openai-gpt", "gptj"), OPENAI),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), {**SIZES, **LATENT}),
    "bloom": BLOOM,
    "gemma3n_text": {**SIZES, **GEMMA3N},
    "gemma4_text": {**SIZES, **GEMMA4},
    "llama4_text": LLAMA4,
}
# The last key, with its value, has no counterpart here.
THEIRS = [
    ("gemma2", {"use_bidirectional_attention": True}),
    ("gemma", {"use_bidirectional_attention": True}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("bloom", {"pretraining_tp": 2, "slow_but_exact": True}),
    *((name, {"is_causal": False}) for name in ("llama", "gpt2", "bloom")),
    ("mistral", {"layer_types": [FULL] * 2}),
    ("gpt_neox", {**rope(partial_rotary_factor=0.5), "head_dim": 8}),
    ("stablelm", {**rope(partial_rotary_factor=0.67), "qk_layernorm": True}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("olmo", {"clip_qkv": 8.0}),
    ("openai-gpt", {"afn": "gelu_new"}),
    ("llama", {"hidden_act": "mish"}, "known are gelu, "),
    ("opt", {"ffn_dim": 40, "word_embed_proj_dim": 12}, "hidden_size=24"),
    ("gptj", {"rotary_dim": 8}, "heads have 6"),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "beside use_qk_norm", "every fourth block has 0"),
    ("llama4_text", {"rms_norm_eps": 3e-3}, "queries and keys has 1e-05"),
    ("gemma4_text", {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 36},
     "vocab_size=37"),
    ("gemma4_text", {"num_kv_shared_layers": 1, "layer_types": [FULL] * 2,
                     "use_double_wide_mlp": True}, "here beside num_kv_shared_layers=1"),
    ("gemma4_text", {"rms_norm_eps": 1e-5}, "v_norm, which has"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}),
    ("gemma3n_text", {"altup_active_idx": 1}, "is 0"),
    ("gemma3n_text", {"altup_correct_scale": False}),
    ("gemma3n_text", {"intermediate_size": [41, 42]}),
    ("gemma3n_text", {"vocab_size_per_layer_input": 36}),
    *(case
      for name in ("deepseek_v3", "deepseek_v2")
      for case in (
          (name, {"rms_norm_eps": 1e-5}, "norms on latents keep 1e-06"),
          (name, {"num_key_value_heads": 2}, "num_attention_heads=4"),
          (name, {"qk_rope_head_dim": 3}, "in pairs"),
          (name, {"q_lora_rank": 0}, "None leaves"),
          (name, {"kv_lora_rank": 0}),
          (name, {"qk_nope_head_dim": 0}),
      )),
    *(("deepseek_v3", {"head_dim": size}, "rope_head_dim=4") for size in (2, 3, 6)),
]  # fmt: skip
# The line has other words.
THEIRS_IN_WORDS = [
    ("qwen3_next", RECURRENT, "layer_types: linear_attention has no", "known is full"),
    ("qwen3_next", {**QWEN, "mlp_only_layers": [0]}, "mlp_only_layers=[0]: block 1 has experts"),
    ("llama4_text", {"moe_layers": [1]}, "moe_layers=[1]: block 1 has experts, which"),
    *((name, {"first_k_dense_replace": 1}, "first_k_dense_replace=1: block 1 has experts")
      for name in ("deepseek_v3", "deepseek_v2")),
    ("gemma4_text", turned(partial_rotary_factor=0.2), "rotary_factor=0.2 of"),
    *((name, {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
       "rope_type=dynamic has no", "known are default, linear, llama3, yarn")
      for name in ("llama", "deepseek_v3", "deepseek_v2")),
    ("llama", {"rope_parameters": {**YARN, "factor": 1.0}}, "attention_factor=1.5 has no"),
    ("llama", {"rope_parameters": {**LINEAR, "factor": 0.5}}, "it is 0.5; a factor is"),
    # As many pairs as all, by the exponents of fewer.
    ("llama", {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.9}},
     "partial_rotary_factor=0.9 has no counterpart here with linear"),
    ("gemma3_text", {"layer_types": [SLIDING, FULL],
                     "rope_parameters": {SLIDING: YARN, FULL: LINEAR}}, "two scalings"),
    ("glm4", {"head_dim": 10, **rope(partial_rotary_factor=0.5)}, "0.5 turns 5 of 10"),
    ("gpt_neox", rope(partial_rotary_factor=0.1), "0.1 turns 0 of 6"),
    ("gptj", {"rotary_dim": 4, "tie_word_embeddings": True}, "bias: head", "tied"),
    ("phi", {}, "no family 'phi'", "there are gpt2, openai-gpt, opt, llama, "),
]  # fmt: skip


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


@pytest.mark.parametrize("case", THEIRS, ids=lambda case: f"{case[0]}: {[*case[1]][-1]}")
def test_a_value_of_theirs_without_a_counterpart_is_named(case):
    name, changes, *more = case
    *_, (key, value) = changes.items()
    line = line_of(from_hf, theirs_of(name, {**BASES.get(name, SIZES), **changes}))
    parts = [f"{key}={value} has no counterpart here", *more]
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize("case", THEIRS_IN_WORDS, ids=lambda case: f"{case[0]}: {case[2]}")
def test_what_ours_cannot_be_is_named(case):
    name, changes, *parts = case
    line = line_of(from_hf, theirs_of(name, {**BASES.get(name, SIZES), **changes}))
    assert [part for part in parts if part not in line] == [], line


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
    model = theirs_of("llama", SIZES)
    model.model.norm.weight = torch.nn.Parameter(torch.zeros(3))
    assert line_of(from_hf, model) == "model.norm.weight is [3] where its config makes it [24]"
    model = theirs_of("llama", SIZES)
    del model.model.norm.weight
    assert line_of(from_hf, model) == "the model has no parameter model.norm.weight"


LLAMA = "mlp=swiglu architecture.tied=false"
# After LLAMA, each of these words alone, or the last word of each line, is what no family can say.
ALONE = """
    placement=hybrid placement=residual_dual placement=llama4 norm=dyt norm=ssnorm norm=gatednorm
    qk_norm=per_head qk_norm=l2 v_norm=rmsnorm_np embed=norm final_norm=none attention=sinks
    position=sinusoidal position=none position=alibi architecture.value_residual=0.5
    architecture.value_embedding=3 architecture.smear=4 architecture.attention_gate=per_head
    architecture.attention_cap=50 architecture.bias=[query] architecture.rope_fraction=0.5
    architecture.bias=[query,key,value,head] architecture.rope_fraction=[1,0.5]
    architecture.rope_base=[100,10] architecture.sliding_window=[7,5] architecture.kv_from_block=0
    architecture.attention_chunk=[7,5] architecture.temperature_floor=[7,0] model.kv_heads=[1,2]
    architecture.values_from_keys=[1,0] architecture.activation_sparsity=[0.5,0]
    model.head_dim=[16,8]
""".split()
LAST = """
    norm=rmsnorm placement=gpas
    qk_norm=head norm=layernorm
    qk_norm=head architecture.qk_norm_order=after
    qk_norm=head architecture.embed_scale=3
    architecture.embed_scale=none embed=fixnorm
    architecture.rope_fraction=0.5 architecture.rope_proportional=true
    placement=out qk_norm=full architecture.rope_interleaved=true
    preset=deepseek_v3 model.head_dim=[12,24]
    preset=gpt2 model.head_dim=4
    preset=gpt2 model.kv_heads=2
""".strip().splitlines()
OURS_IN_WORDS = [
    (f"{LLAMA} placement=layerscale placement.learned.b.init=1", "placement=layerscale, changed"),
    (f"{LLAMA} architecture.attention_scale={{learn:head,init:1}}", "a learned head from 1"),
    (f"{LLAMA} architecture.logit_scale={{learn:vector,init:1}}", "a learned vector from 1"),
    ("mlp=swiglu architecture.logit_scale={learn:scalar,init:2}", "logit_scale=a learned scalar"),
    (f"{LLAMA} placement.equation=x+0.3*f(norm(x)) qk_norm=head", "placement=x+0.3*f("),
    (f"{LLAMA} placement.equation=x+f(norm(x))/N", "placement=x+f(norm(x))/N, where"),
    (f"{LLAMA} placement.equation=x+f(norm(x)) placement.where=[{{blocks:l==1,equation:x+f(x)}}]",
     "placement=x+f(norm(x)), changed, where llama has pre"),
    (f"{LLAMA} position=rope_linear position.scaling.factor=[1,2]",
     "position.scaling=type linear, factor 1 2, where llama has type linear, factor 2"),
    ("preset=gemma4 model.head_dim=[16,8] model.kv_heads=1 architecture.sliding_window=0 "
     "architecture.rope_base=1e4 architecture.rope_fraction=1 architecture.values_from_keys=0",
     "model.head_dim=16 8, where"),
    ("placement=sandwich norm=rmsnorm_1p mlp=geglu_tanh architecture.embed_scale='sqrt(d)' "
     "architecture.attention_scale=0.3", "architecture.attention_scale=0.3, where"),
    ("placement=parallel norm=layernorm position=rope mlp=gelu architecture.bias=[up,down] "
     "architecture.rope_interleaved=true", "bias=up down, where gptj has up down head"),
]  # fmt: skip


def refusal_of(typed):
    line = line_of(to_hf, build_model(compose(["model=nano", *typed.split()]), 37))
    assert line.startswith("transformers has no such model: ")
    return line


@pytest.mark.parametrize("typed", [*ALONE, *LAST], ids=str.strip)
def test_a_key_of_ours_is_named_with_its_value_and_what_is_there(typed):
    line = refusal_of(typed if "preset=" in typed else f"{LLAMA} {typed}")
    key, _, value = typed.split()[-1].partition("=")
    shown = value.strip("[]").replace(",", " ").replace("true", "True")
    assert re.search(rf"{key}={shown}, where \w+ has \w", line), line


@pytest.mark.parametrize("case", OURS_IN_WORDS, ids=lambda case: case[0])
def test_what_theirs_cannot_be_names_the_key_and_what_is_there(case):
    typed, said = case
    line = refusal_of(typed)
    assert said in line, line


def test_all_differences_are_named_up_to_a_few_and_the_rest_counted():
    unlike = [
        "placement=hyper_connections",
        "attention=sinks",
        "architecture.attention_gate=per_head",
    ]
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


def test_the_default_recipe_is_a_model_of_theirs():
    model = build_model(compose(["model=nano", "trainer.precision=fp64"]), 37)
    theirs = to_hf(model)
    assert type(theirs).__name__ == "ArceeForCausalLM"
    tokens = torch.arange(30)[None] % 37
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-5)


def test_a_family_that_has_the_scales_says_them_and_keeps_the_head_tied():
    typed = "architecture.embed_scale=3", "placement.equation=(x+f(norm(x))*0.3)"
    model = build_model(compose(["model=nano", "mlp=swiglu", "init=mup", *typed]), 37)
    theirs = to_hf(model)
    assert theirs.config.model_type == "granite"
    assert theirs.config.tie_word_embeddings
    assert theirs.config.residual_multiplier == 0.3
    assert theirs.config.logits_scaling == 0.5


@pytest.mark.parametrize("typed", ["", "architecture.tied=false", "model.width=96"])
def test_a_scale_of_the_logits_goes_into_a_head_of_its_own(typed):
    sizes = "model=nano", "mlp=swiglu", "init=mup", "qk_norm=head"
    model = build_model(compose([*sizes, *typed.split()]), 37)
    assert model.config.architecture.logit_scale == "128/d"
    assert model.config.model.width != 128
    theirs = to_hf(model)
    assert not theirs.config.tie_word_embeddings
    tokens = torch.arange(30)[None] % 37
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-5)
        back = from_hf(theirs)
        torch.testing.assert_close(back(tokens), model(tokens), rtol=0, atol=1e-5)


def test_a_model_that_carries_no_config_and_a_missing_package_are_named(monkeypatch):
    model = build_model(compose(["model=nano", *LLAMA.split()]), 37)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="transformers is not installed"):
        to_hf(model)
    monkeypatch.undo()
    del model.config
    assert "carries no config" in line_of(to_hf, model)


def test_every_key_that_makes_a_model_is_a_fact():
    typed = ["model=nano", "norm=rmsnorm", "qk_norm=head", "architecture.temperature_floor=8"]
    model = build_model(compose(typed), 37)
    keys = set(facts_of(model.config, 37))
    for node, free in (("architecture", set()), ("model", {"dropout"})):
        names = {field.name for field in fields(getattr(model.config, node))}
        assert {f"{node}.{name}" for name in names - free} <= keys
    # `norms` and `qkv` are what `embed`, `final_norm`, `qk_norm` and the placement name.
    rest = {"architecture", "model", "norms", "qkv", "init", "seed"}
    assert {field.name for field in fields(ModelConfig)} - rest <= keys


def test_the_guide_names_the_families():
    page = (Path(__file__).parents[2] / "docs" / "your_own.md").read_text()
    listed = re.search(r"<!-- families -->\n(.*?)\.\n<!-- /families -->", page, re.DOTALL)[1]
    assert listed.replace("\n", " ").split(", ") == [family.model_type for family in FAMILIES]
