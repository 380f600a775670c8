"""A transformers model is the same function here, and comes back bit for bit."""

import sys
from pathlib import Path

import pytest
import references as there
import torch
import yaml

from transformer_norms import build_model
from transformer_norms.hf import from_hf, to_hf
from transformer_norms.hf.conversion import BY_NAME
from transformer_norms.hf.weights import their_tensors

pytestmark = [pytest.mark.filterwarnings("ignore")]
VOCABULARY, CONTEXT = 37, 12
CONFIGS = yaml.safe_load((Path(__file__).parent / "configs.yaml").read_text())
SIZES, CASES = CONFIGS["sizes"], CONFIGS["configs"]
SCALED, SCALED_NIGHTLY = (CONFIGS["scalings"][tier] for tier in ("quick", "nightly"))
OPENAI, GROUPED = SIZES["OPENAI"], SIZES["GROUPED"]
EVERY = [
    pytest.param(name, config, id=f"{name}-{n}", marks=[pytest.mark.nightly] if n else ())
    for name, configs in CASES.items()
    for n, config in enumerate(configs)
]
for name, scalings in (*SCALED.items(), *SCALED_NIGHTLY.items()):
    for n, scaling in enumerate(scalings):
        config, label = {**CASES[name][0], "rope_parameters": scaling}, f"{name}-scaled-{n}"
        marks = [pytest.mark.nightly] * bool(n or scalings is not SCALED.get(name))
        EVERY.append(pytest.param(name, config, id=label, marks=marks))
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
@pytest.mark.parametrize(("name", "config"), EVERY)
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
    tensors = dict(their_tensors(name, gradients, ours.config))
    wanted = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    assert tensors.keys() == wanted.keys()
    least = 1e-3 * max(grad.abs().max().item() for grad in wanted.values())
    for key, grad in wanted.items():  # a key's bias has none at all, but for rounding
        assert relative(tensors[key], grad, least) <= 1e-9, key


# Without what has a default. The original context is a third of the context.
RELEASED = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("deepseek_v2", {"rope_scaling": {**RELEASED, "mscale": 0.7, "mscale_all_dim": 0.4}}),
        ("qwen3", {"rope_scaling": RELEASED, "rope_theta": 77.0}),
        ("olmo3", {"rope_scaling": {**RELEASED, "truncate": False}}),  # which is not read there
        *(pytest.param(name, {"rope_scaling": one}, marks=pytest.mark.nightly) for name, one in (
            ("deepseek_v3", {**RELEASED, "mscale": 1.0, "mscale_all_dim": 1.0}),
            ("deepseek_v3", {**RELEASED, "mscale": 0.7}),
            ("deepseek_v3", {"type": "linear", "factor": 3.0, "mscale_all_dim": 1.0}),
            ("llama", {**RELEASED, "factor": None}),
            ("llama", {"rope_type": "yarn", "factor": 3.0}),
            ("llama", {"rope_type": "linear", "factor": 1.0}),
            ("gemma3_text", {"rope_type": "linear", "factor": 8.0}),
        )),
    ],
)  # fmt: skip
def test_a_scaling_is_the_same_in_every_spelling_of_released_configs(name, more):
    given = {key: value for key, value in CASES[name][0].items() if key != "rope_parameters"}
    theirs = theirs_of(name, {**given, **more})
    ours = from_hf(theirs)
    with torch.no_grad():
        assert relative(from_hf(to_hf(ours, name))(text()), ours(text())) <= 1e-10
        with there.in_float64():
            assert relative(ours(text()), theirs(text()).logits) <= 1e-10


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
    # A config keeps none of the words for full attention; it has both sizes by block.
    free = "sliding_window use_sliding_window max_window_layers layer_types global_head_dim "
    free += "num_global_key_value_heads sliding_window_pattern"
    for one in (back.config, theirs.config):
        one.allow_global_per_layer_attribute_access = True
    assert each_block(back.config) == each_block(theirs.config)
    for key in config.keys() - {*free.split()}:
        assert close(getattr(back.config, key), getattr(theirs.config, key)), key
    again = from_hf(back)
    assert again.config == ours.config
    for key, parameter in ours.named_parameters():
        assert torch.equal(parameter, again.get_parameter(key)), key
    chosen = to_hf(ours)  # another family, perhaps, and the same function
    torch.testing.assert_close(chosen(text()).logits, ours(text()), rtol=1e-4, atol=1e-4)


def each_block(config):
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
    back = to_hf(ours)
    assert (ours.training, ours.config.model.dropout) == (False, 0.2)
    assert (back.training, back.config.attn_pdrop) == (False, 0.2)


def test_a_model_from_there_is_built_again_from_its_config():
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
