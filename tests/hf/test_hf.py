"""A transformers model is the same function here, and comes back bit for bit."""

import sys
from pathlib import Path

import pytest
import references as there
import torch

from transformer_norms import build_model
from transformer_norms.hf import from_hf, to_hf
from transformer_norms.hf.conversion import BY_NAME
from transformer_norms.hf.weights import their_tensors

pytestmark = [pytest.mark.filterwarnings("ignore")]
VOCABULARY, CONTEXT = 37, 12
NAMED = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2}
SIZES = {**NAMED, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
MODERN = {**SIZES, "intermediate_size": 41}
GROUPED = {**MODERN, "num_key_value_heads": 2}
ODD = {**MODERN, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1}
LLAMA4 = {**SIZES, "num_key_value_heads": 2, "intermediate_size_mlp": 41, "moe_layers": []}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 9, "kv_lora_rank": 7, "qk_nope_head_dim": 5,
          "qk_rope_head_dim": 4, "v_head_dim": 3, "first_k_dense_replace": 2}  # fmt: skip
EVEN_LATENT = {**LATENT, "kv_lora_rank": 8, "qk_nope_head_dim": 6}  # V2 takes pairs as one number
GEMMA4 = {**GROUPED, "head_dim": 10, "global_head_dim": 10, "hidden_size_per_layer_input": 0}
INPUTS = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCABULARY}
GEMMA3N = {**GROUPED, **INPUTS, "head_dim": 10, "num_kv_shared_layers": 0, "laurel_rank": 3,
           "altup_num_inputs": 3, "activation_sparsity_pattern": [0.75, 0.0]}  # fmt: skip
OPENAI = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "seq_length": CONTEXT}
BASE = {"rope_type": "default", "rope_theta": 77.0}
FULL, SLIDING = "full_attention", "sliding_attention"


def rope(base=77.0, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


def gemma3(local, full):
    return {
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in {SLIDING: local, FULL: full}.items()
    }


def gemma4(local, full, share):
    parameters = gemma3(local, full)
    parameters[FULL] |= {"rope_type": "proportional", "partial_rotary_factor": share}
    return parameters


# The first of each family runs with `make test`, the others nightly.
CASES = {
    "gpt2": [
        {**OPENAI, "layer_norm_epsilon": 3e-3, "n_inner": 41, "activation_function": "gelu"},
        OPENAI,
        {**OPENAI, "n_embd": 15, "n_head": 3, "tie_word_embeddings": False},
        {**OPENAI, "scale_attn_weights": False, "activation_function": "silu"},
    ],
    "openai-gpt": [
        OPENAI,
        {**OPENAI, "n_embd": 15, "n_head": 3, "layer_norm_epsilon": 3e-3, "afn": "silu"},
        {**OPENAI, "tie_word_embeddings": False, "afn": "relu"},
    ],
    "opt": [
        {**SIZES, "ffn_dim": 41, "do_layer_norm_before": False},
        {**SIZES, "ffn_dim": 41},
        {**SIZES, "ffn_dim": 40, "enable_bias": False, "tie_word_embeddings": False},
        {**SIZES, "ffn_dim": 40, "layer_norm_elementwise_affine": False},
    ],
    "llama": [
        {**GROUPED, **rope(), "head_dim": 10, "rms_norm_eps": 3e-3, "attention_bias": True},
        {**ODD, "tie_word_embeddings": True, "mlp_bias": True},
        {**MODERN, "hidden_act": "gelu"},
    ],
    "llama4_text": [
        {**LLAMA4, **rope(), "num_hidden_layers": 5, "head_dim": 10, "floor_scale": 3,
         "attn_scale": 0.7, "attention_chunk_size": 5},
        {**LLAMA4, "head_dim": 6, "use_qk_norm": False, "no_rope_layers": [0, 1],
         "rms_norm_eps": 3e-3, "attention_bias": True, "floor_scale": 4, "attention_chunk_size": 7,
         "tie_word_embeddings": True, "layer_types": ["chunked_attention"] * 2},
        {**LLAMA4, "head_dim": 6, "attn_temperature_tuning": False, "num_key_value_heads": 4,
         "attention_chunk_size": CONTEXT},
    ],
    "smollm3": [
        {**GROUPED, **rope(), "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0],
         "rms_norm_eps": 3e-3, "head_dim": 10},
        {**ODD, "num_hidden_layers": 5, "attention_bias": True, "mlp_bias": True},
        {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "no_rope_layers": [1, 0]},
    ],
    "granite": [
        {**GROUPED, **rope(), "embedding_multiplier": 7.0, "attention_multiplier": 0.3,
         "residual_multiplier": 0.22, "logits_scaling": 6.0, "rms_norm_eps": 3e-3},
        {**ODD, "residual_multiplier": 1.7, "tie_word_embeddings": True, "mlp_bias": True},
        {**GROUPED, "embedding_multiplier": 2.0, "attention_bias": True, "head_dim": 10},
    ],
    "arcee": [
        {**GROUPED, **rope(), "head_dim": 10, "rms_norm_eps": 3e-3, "mlp_bias": True},
        {**MODERN, "tie_word_embeddings": True, "attention_bias": True, "hidden_act": "gelu"},
    ],
    "nanochat": [
        {**GROUPED, **rope(), "rms_norm_eps": 3e-3, "attention_bias": True},
        {**ODD, "final_logit_softcapping": None, "tie_word_embeddings": True, "head_dim": 4},
        {**MODERN, "final_logit_softcapping": 2.5, "hidden_act": "gelu"},
    ],
    "mistral": [
        {**GROUPED, **rope(), "head_dim": 10, "sliding_window": 5},
        {**GROUPED, **rope(), "head_dim": 10, "sliding_window": CONTEXT},
        {**ODD, "sliding_window": None, "tie_word_embeddings": True, "rms_norm_eps": 3e-3},
    ],
    "qwen2": [
        {**GROUPED, **rope(), "rms_norm_eps": 3e-3},
        {**ODD, "tie_word_embeddings": True, "head_dim": 4},
        {**GROUPED, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2},
        {**GROUPED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ],
    "qwen3": [
        {**GROUPED, **rope(), "head_dim": 10, "rms_norm_eps": 3e-3},
        {**ODD, "head_dim": 6, "tie_word_embeddings": True, "attention_bias": True},
        {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ],
    "qwen3_next": [
        {**GROUPED, **rope(partial_rotary_factor=0.4), "head_dim": 10, "rms_norm_eps": 3e-3,
         "layer_types": [FULL] * 2, "mlp_only_layers": [0, 1]},
        {**ODD, **rope(partial_rotary_factor=1.0), "head_dim": 6, "attention_bias": True,
         "layer_types": [FULL] * 2, "mlp_only_layers": [0, 1], "tie_word_embeddings": True},
    ],
    "deepseek_v3": [
        {**MODERN, **rope(), **LATENT, "attention_bias": True},
        {**MODERN, **LATENT, "q_lora_rank": None, "rope_interleave": False},
        {**ODD, **LATENT, "num_key_value_heads": 5, "tie_word_embeddings": True},
        {**MODERN, **LATENT, "q_lora_rank": None, "attention_bias": True},
    ],
    "deepseek_v2": [
        {**MODERN, **rope(), **EVEN_LATENT, "attention_bias": True, "mlp_bias": True},
        {**ODD, **EVEN_LATENT, "num_key_value_heads": 5, "q_lora_rank": None},
    ],
    "olmo": [
        {**GROUPED, **rope(), "attention_bias": True},
        {**ODD, "tie_word_embeddings": True},
    ],
    "olmo2": [
        {**GROUPED, **rope(), "rms_norm_eps": 3e-3},
        {**ODD, "tie_word_embeddings": True, "attention_bias": True},
    ],
    "olmo3": [
        {**GROUPED, "num_hidden_layers": 4, "rms_norm_eps": 3e-3, "sliding_window": 5,
         "rope_parameters": gemma3(77.0, 77.0)},
        {**ODD, "tie_word_embeddings": True, "attention_bias": True, "sliding_window": 9},
    ],
    "exaone4": [
        {**GROUPED, **rope(), "num_hidden_layers": 4, "rms_norm_eps": 3e-3, "sliding_window": 7,
         "sliding_window_pattern": 4},
        {**ODD, "sliding_window": None, "tie_word_embeddings": True, "layer_types": [FULL] * 2},
        {**GROUPED, "sliding_window": 99, "layer_types": [FULL, FULL], "head_dim": 8},
        {**GROUPED, "sliding_window": 99, "layer_types": [SLIDING, SLIDING]},
    ],
    "gemma": [
        {**GROUPED, **rope(), "head_dim": 10, "rms_norm_eps": 3e-3},
        {**ODD, "head_dim": 6, "tie_word_embeddings": False, "attention_bias": True},
        {**MODERN, "head_dim": 6, "num_key_value_heads": 4, "hidden_act": "silu"},
    ],
    "gemma2": [
        {**GROUPED, **rope(), "head_dim": 10, "query_pre_attn_scalar": 7, "rms_norm_eps": 3e-3,
         "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "sliding_window": 4},
        {**ODD, "head_dim": 6, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        {**GROUPED, "head_dim": 6, "tie_word_embeddings": False, "attention_bias": True},
    ],
    "gemma3_text": [
        {**GROUPED, "num_hidden_layers": 7, "head_dim": 10, "query_pre_attn_scalar": 7,
         "rope_parameters": gemma3(50.0, 900.0), "rms_norm_eps": 3e-3, "sliding_window": 4},
        {**ODD, "head_dim": 6, "tie_word_embeddings": False, "final_logit_softcapping": 3.0},
        {**GROUPED, "head_dim": 6, "attention_bias": True, "layer_types": [FULL, SLIDING]},
    ],
    "gemma4_text": [
        {**GEMMA4, "num_hidden_layers": 7, "rope_parameters": gemma4(50.0, 900.0, 0.38),
         "sliding_window": 4, "attention_k_eq_v": True, "final_logit_softcapping": 3.0,
         "global_head_dim": 16, "num_global_key_value_heads": 1, "num_kv_shared_layers": 3,
         "output_hidden_states": True,
         "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, SLIDING, FULL]},
        {**GEMMA4, "num_hidden_layers": 3, "rope_parameters": gemma4(50.0, 900.0, 0.34),
         "sliding_window": 4, "attention_bias": True, "head_dim": 12, "global_head_dim": 6},
        {**GEMMA4, "tie_word_embeddings": False, "attention_bias": True, "layer_types": [FULL] * 2},
        {**GEMMA4, "num_key_value_heads": 4, "layer_types": [FULL, FULL], "attention_k_eq_v": True},
        {**GEMMA4, **INPUTS, "layer_types": [FULL, FULL], "final_logit_softcapping": 3.0},
    ],
    "gemma3n_text": [
        {**GEMMA3N, "num_hidden_layers": 5, "sliding_window": 4, "attention_bias": True,
         "num_kv_shared_layers": 2, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
         "rope_parameters": gemma3(50.0, 900.0), "final_logit_softcapping": 3.0,
         "activation_sparsity_pattern": [0.75, 0.5, 0.0, 0.25, 0.0]},
        {**GEMMA3N, "tie_word_embeddings": False, "layer_types": [FULL, SLIDING]},
        {**GEMMA3N, "altup_num_inputs": 2, "hidden_size_per_layer_input": 7},
    ],
    "glm4": [
        {**GROUPED, **rope(partial_rotary_factor=0.5), "head_dim": 12, "rms_norm_eps": 3e-3},
        {**ODD, "head_dim": 6, "tie_word_embeddings": True, "attention_bias": False,
         **rope(partial_rotary_factor=1.0)},
        {**GROUPED, "head_dim": 10, **rope(partial_rotary_factor=0.61)},
    ],
    "gpt_neox": [
        {**MODERN, **rope(partial_rotary_factor=0.67), "layer_norm_eps": 3e-3},
        {**MODERN, **rope(partial_rotary_factor=0.34), "use_parallel_residual": False},
        {**MODERN, "attention_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu_new",
         **rope(partial_rotary_factor=1.0)},
    ],
    "stablelm": [
        {**GROUPED, **rope(partial_rotary_factor=0.67), "use_qkv_bias": True,
         "layer_norm_eps": 3e-3},
        {**GROUPED, **rope(partial_rotary_factor=0.34), "use_parallel_residual": True},
        {**ODD, **rope(partial_rotary_factor=1.0), "tie_word_embeddings": True,
         "hidden_act": "gelu"},
    ],
    "bloom": [
        {**BLOOM, "n_head": 6, "layer_norm_epsilon": 3e-3},
        {**BLOOM, "n_head": 8, "tie_word_embeddings": False},
    ],
    "gptj": [
        {**OPENAI, "rotary_dim": 4, "layer_norm_epsilon": 3e-3},
        {**OPENAI, "n_embd": 30, "n_head": 5, "rotary_dim": 6, "n_inner": 41,
         "activation_function": "relu"},
    ],
    "cohere": [
        {**GROUPED, **rope(), "use_qk_norm": True, "layer_norm_eps": 3e-3, "logit_scale": 0.3},
        {**ODD, "tie_word_embeddings": False, "attention_bias": True},
        {**GROUPED, "head_dim": 10, "use_qk_norm": True},
    ],
}  # fmt: skip
ORIGINAL = {"original_max_position_embeddings": 4}  # a third of the context
LINEAR = {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 77.0, "factor": 3.0, **ORIGINAL,
          "low_freq_factor": 0.2, "high_freq_factor": 0.6}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 77.0, "factor": 3.0, **ORIGINAL, "beta_fast": 0.6,
        "beta_slow": 0.2, "truncate": True, "attention_factor": 1.3}  # fmt: skip
EXACT = {**YARN, "truncate": False, "beta_fast": 1, "beta_slow": 0.1}
ON_FULL = {SLIDING: {"rope_type": "default", "rope_theta": 77.0}}
TURNED_FIRST = {"rope_type": "proportional", "partial_rotary_factor": 0.63, "factor": 8.0}
# The scalings of a family. The first of some run with `make test`, the others nightly.
SCALED = {
    "llama": [LLAMA3, LINEAR, EXACT],
    "gemma3_text": [{**ON_FULL, FULL: LINEAR}, {SLIDING: LLAMA3, FULL: {**LLAMA3, "factor": 2.0}}],
    "olmo3": [{**ON_FULL, FULL: YARN}],
    "deepseek_v3": [{**YARN, "attention_factor": 1.0, "mscale_all_dim": 0.7}, LINEAR],
}
SCALED_NIGHTLY = {
    "qwen2": [YARN],
    "qwen3": [EXACT],
    "gemma4_text": [{**ON_FULL, FULL: {**TURNED_FIRST, "rope_theta": 900.0}}],
    "glm4": [{**YARN, "partial_rotary_factor": 0.5}],
    "arcee": [YARN],
    "llama4_text": [LLAMA3],
    "exaone4": [LLAMA3],
    "smollm3": [EXACT],
    "deepseek_v2": [YARN, {**LLAMA3, "mscale_all_dim": 0.7}],
    "gemma3n_text": [{**ON_FULL, FULL: LINEAR}],
    "gpt_neox": [{**LLAMA3, "partial_rotary_factor": 0.67}],
    "stablelm": [{**YARN, "partial_rotary_factor": 0.67}],
}
EVERY = [
    pytest.param(name, config, id=f"{name}-{n}", marks=[pytest.mark.nightly] if n else ())
    for name, configs in CASES.items()
    for n, config in enumerate(configs)
]
EVERY += [
    pytest.param(
        name,
        {**CASES[name][0], "rope_parameters": scaling},
        id=f"{name}-scaled-{n}",
        marks=[pytest.mark.nightly] if n or scalings is not SCALED.get(name) else (),
    )
    for name, scalings in [*SCALED.items(), *SCALED_NIGHTLY.items()]
    for n, scaling in enumerate(scalings)
]
ENDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


def theirs_of(name, config, dtype=torch.float64, seed=0):
    """A model of theirs whose weights are all random, built with its float32 casts lifted."""
    import transformers

    config = transformers.AutoConfig.for_model(name, **{**config, **ENDS})
    make = transformers.AutoModelForCausalLM.from_config
    with there.in_float64():
        model = make(config, attn_implementation="eager").to(dtype)
    for block in model.model.layers if name == "gemma4_text" else ():
        scalar = block._buffers.pop("layer_scalar")  # that its gradient is compared too
        block.layer_scalar = torch.nn.Parameter(scalar)
    inner = getattr(model, "model", model.base_model)
    if rotary := getattr(inner, "rotary_emb", None):  # with frequencies in float32
        inner.rotary_emb = type(rotary)(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    for block in model.transformer.h if name == "gptj" else ():
        block.attn.embed_positions = sines(config.rotary_dim)
    for block in model.transformer.h if name == "bloom" else ():
        block.mlp.gelu_impl = torch.nn.GELU("tanh")  # whose sqrt(2/pi) has eight digits there
    return model.eval()


def sines(turned):
    """GPT-J's table in float64, of frequencies in float32 as it has them."""
    frequencies = 1 / 10000 ** (torch.arange(0, turned, 2, dtype=torch.float32) / turned)
    angle = torch.outer(torch.arange(CONTEXT).double(), frequencies.double())
    return torch.cat((angle.sin(), angle.cos()), dim=1)


def text(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (3, CONTEXT), generator=generator)


def relative(found, expected, least=0.0):
    return ((found - expected).abs().max() / max(expected.abs().max().item(), least)).item()


@pytest.mark.goal("A2")
@pytest.mark.parametrize(("name", "config"), [case for case in EVERY if not case.marks])
def test_logits_and_gradients_are_theirs(name, config):
    theirs = theirs_of(name, config)
    ours = from_hf(theirs)
    pull = torch.randn(3, CONTEXT, VOCABULARY, generator=torch.Generator().manual_seed(2)).double()
    logits = ours(text())
    (logits * pull).sum().backward()
    with there.in_float64():
        expected = theirs(text()).logits
        (expected * pull).sum().backward()
    assert relative(logits, expected) <= 1e-10
    gradients = {key: parameter.grad for key, parameter in ours.named_parameters()}
    tensors = dict(their_tensors(BY_NAME[name].table(), gradients, ours.config))
    wanted = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    assert tensors.keys() == wanted.keys()
    least = 1e-3 * max(grad.abs().max().item() for grad in wanted.values())
    for key, grad in wanted.items():  # a key's bias has none at all, but for rounding
        assert relative(tensors[key], grad, least) <= 1e-9, key


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "config"), [case for case in EVERY if case.marks])
def test_logits_and_gradients_are_theirs_in_every_config(name, config):
    test_logits_and_gradients_are_theirs(name, config)


RELEASED = {"type": "yarn", "factor": 40.0, **ORIGINAL}  # without what has a default


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("deepseek_v2", {"rope_scaling": {**RELEASED, "mscale": 0.7, "mscale_all_dim": 0.4}}),
        ("qwen3", {"rope_scaling": RELEASED, "rope_theta": 77.0}),
        ("olmo3", {"rope_scaling": {**RELEASED, "truncate": False}}),  # which is not read there
        *(
            pytest.param(name, {"rope_scaling": scaling}, marks=pytest.mark.nightly)
            for name, scaling in (
                ("deepseek_v3", {**RELEASED, "mscale": 1.0, "mscale_all_dim": 1.0}),
                ("deepseek_v3", {**RELEASED, "mscale": 0.7}),
                ("deepseek_v3", {"type": "linear", "factor": 3.0, "mscale_all_dim": 1.0}),
                ("llama", {**RELEASED, "factor": None}),
                ("llama", {"rope_type": "yarn", "factor": 3.0}),
                ("llama", {"rope_type": "linear", "factor": 1.0}),
                ("gemma3_text", {"rope_type": "linear", "factor": 8.0}),
            )
        ),
    ],
)
def test_a_scaling_is_the_same_in_every_spelling_of_released_configs(name, more):
    given = {key: value for key, value in CASES[name][0].items() if key != "rope_parameters"}
    theirs = theirs_of(name, {**given, **more})
    ours = from_hf(theirs)
    with there.in_float64(), torch.no_grad():
        assert relative(ours(text()), theirs(text()).logits) <= 1e-10
    again = from_hf(to_hf(ours, name))
    with torch.no_grad():
        assert relative(again(text()), ours(text())) <= 1e-10


# Their code reads these keys, and no fact is made of them. No case reaches some of that code.
NO_FACT = {
    # in training alone, or at the start of a parameter
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "dropout"),
    *("layerdrop", "initializer_range", "pad_token_id"),
    # what is returned beside the logits, and how they are computed
    *("output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef"),
    *("num_experts_per_tok", "use_cache", "return_dict", "_attn_implementation"),
    *("reorder_and_upcast_attn", "pretraining_tp"),
    # what decides `layer_types`, which is read; a property made of what is read
    *("use_sliding_window", "sliding_window_pattern", "kv_sharing_modes"),
    "attn_logit_softcapping of gemma3_text",  # is never used
}

GENERAL = ("modeling_utils.py", "modeling_rope_utils.py")


@pytest.mark.parametrize("name", CASES)
def test_every_key_of_a_config_that_their_code_reads_is_read_here(name, monkeypatch):
    import transformers

    config = transformers.AutoConfig.for_model(name, **{**CASES[name][0], **ENDS})
    kind, reader, read = type(config), "theirs", {"theirs": set(), "ours": set()}
    plain = kind.__getattribute__

    def recorded(self, key):
        file = Path(sys._getframe(1).f_code.co_filename).name
        theirs = file.startswith(("masking_utils", "modeling_")) and file not in GENERAL
        if reader == "ours" or theirs:
            read[reader].add(plain(self, "attribute_map").get(key, key))
        return plain(self, key)

    monkeypatch.setattr(kind, "__getattribute__", recorded)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()(text())
    reader = "ours"
    BY_NAME[name].read(config)
    unread = read["theirs"] - read["ours"] - NO_FACT
    assert {key for key in unread if f"{key} of {name}" not in NO_FACT} == set()
    assert {"num_hidden_layers", "n_layer"} & read["theirs"]


@pytest.mark.parametrize(("name", "config"), EVERY)
def test_there_and_back_is_every_bit_of_the_weights_and_the_config(name, config):
    theirs = theirs_of(name, config, torch.float32)
    ours = from_hf(theirs)
    back = to_hf(ours, name)
    assert type(back) is type(theirs)
    weights = back.state_dict()
    for key, weight in theirs.state_dict().items():
        if key == "model.decoder.embed_positions.weight":  # whose first two rows are never read
            weight[:2] = 0
        assert torch.equal(weight, weights[key]), key
    free = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
    # A config keeps none of the words for full attention; it has both sizes by block.
    free += ("global_head_dim", "num_global_key_value_heads")
    for one in (back.config, theirs.config):
        one.allow_global_per_layer_attribute_access = True
    assert each_block(back.config) == each_block(theirs.config)
    for key in config.keys() - set(free) - {"sliding_window_pattern"}:
        assert close(getattr(back.config, key), getattr(theirs.config, key)), key
    again = from_hf(back)
    assert again.config == ours.config
    for key, parameter in ours.named_parameters():
        assert torch.equal(parameter, again.get_parameter(key)), key
    chosen = to_hf(ours)  # another family, perhaps, and the same function
    torch.testing.assert_close(chosen(text()).logits, ours(text()), rtol=1e-4, atol=1e-4)


def each_block(config):
    """The sizes of heads of each block, which blocks of one config may differ in."""
    keys = ("head_dim", "num_key_value_heads")
    return [[getattr(one, key, None) for key in keys] for one in config.per_layer_config]


def test_half_precision_is_held_exactly_and_dropout_taken_where_it_is_one():
    theirs = theirs_of("gpt2", {**OPENAI, "resid_pdrop": 0.2}, torch.float32).bfloat16()
    ours = from_hf(theirs)
    assert ours.config.model.dropout == 0  # 0.2 here, 0.1 there
    for key, parameter in to_hf(ours).named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter.bfloat16(), theirs.get_parameter(key))
    pdrops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.2)
    ours = from_hf(theirs_of("gpt2", {**OPENAI, **pdrops}))
    assert not ours.training
    assert ours.config.model.dropout == 0.2
    assert to_hf(ours).config.attn_pdrop == 0.2
    assert not to_hf(ours).training


def test_a_model_from_there_is_built_anew_from_its_config():
    ours = from_hf(theirs_of("gemma3_text", CASES["gemma3_text"][0]))
    again = build_model(ours.config, ours.vocab_size)
    again.load_state_dict(ours.state_dict())
    assert torch.equal(again(text()), ours(text()))
    assert again.config == ours.config
    assert ours.config.architecture.rope_base == (*[50.0] * 5, 900.0, 50.0)


def close(found, expected, key=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        return all(close(found[key], expected[key], key) for key in found)
    if isinstance(expected, float):  # a share of a head is written as that of its whole pairs
        return found == pytest.approx(expected, rel=0.03 if "partial" in key else 1e-14)
    return found == expected
