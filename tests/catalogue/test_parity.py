"""The same numbers as public implementations in float64: logits and the gradient of every weight.

Theirs runs with its own float32 casts lifted, ours as it is.
"""

import importlib
from functools import partial

import papers
import pytest
import reference_tables as tables
import references as there
import torch
from tiny_models import drawn, some_tokens, with_gradients
from torch.func import functional_call

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.norms import GroupRMSNorm

pytestmark = pytest.mark.filterwarnings("ignore")
FIXED = [f"model.width={there.WIDTH}", f"model.depth={there.DEPTH}", f"model.heads={there.HEADS}"]
FIXED += ["trainer.precision=fp64", "init=megatron"]


def ours_of(overrides, context=there.CONTEXT):
    typed = [*FIXED, f"model.context={context}", *overrides.split()]
    model = build_model(compose(typed), there.VOCABULARY)
    torch.manual_seed(0)
    for parameter in model.parameters():  # gains and biases that a slip would show
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def compare(ours, reference, time=there.CONTEXT):
    """`reference(tokens, weights)` -> logits, from leaves with the values of our parameters."""
    tokens = some_tokens(3, time, vocabulary=there.VOCABULARY)
    pull = drawn(3, time, there.VOCABULARY)
    weights = {k: p.detach().clone().requires_grad_() for k, p in ours.named_parameters()}
    logits = ours(tokens)
    (logits * pull).sum().backward()
    with there.in_float64():
        expected = reference(tokens, weights)
        (expected * pull).sum().backward()
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    sizes = {name: weight.grad.abs().max().item() for name, weight in weights.items()}
    least = 1e-3 * max(sizes.values())  # a key's bias has no gradient at all, but for rounding
    for name, parameter in ours.named_parameters():
        atol = 1e-10 * max(sizes[name], least)
        expected = weights[name].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=atol, msg=name)


def compare_with(table, ours, build, *args, **config):
    def reference(tokens, weights):
        theirs = build(*args, **config).double()
        made = there.copied(table, theirs, weights)
        return there.logits_of(functional_call(theirs, made, (tokens,)))

    compare(ours_of(ours), reference)


def rope(base, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


@pytest.mark.goal("A2")
def test_layernorm_1p_is_that_of_transformers_nemotron():
    """Families that are converted are compared in tests/hf/test_hf.py, gradients too."""
    config = {"intermediate_size": 96, **rope(10000.0, partial_rotary_factor=1.0)}
    ours = "norm=layernorm_1p mlp=relu2 architecture.tied=false"
    compare_with(tables.LLAMA, ours, there.transformers_model, "Nemotron", **config)


@pytest.mark.goal("A2")
def test_preset_gpt_oss_is_that_of_transformers_but_for_its_experts():
    """Blocks take turns between a window and all tokens, and each head has a sink."""
    config = {"head_dim": 8, "num_key_value_heads": 2, "intermediate_size": 64, "sliding_window": 5}
    ours = "preset=gpt_oss model.kv_heads=2 model.head_dim=8 architecture.sliding_window=5*(i%2==0)"
    build = there.gpt_oss_without_experts
    compare_with(tables.GPT_OSS, ours, build, **config, **rope(150000.0))


@pytest.mark.goal("A2")
@pytest.mark.parametrize(
    ("placement", "config"),
    [
        ("pre", {"decoder_normalize_before": True}),
        ("post", {"decoder_normalize_before": False, "no_scale_embedding": False}),
        ("deepnorm", {"deepnorm": True}),
        ("subln", {"subln": True}),
    ],
)
def test_torchscale_has_the_same_decoder(placement, config):
    """The forward is theirs; the init is not: torchscale scales its linear layers' own init, the
    biases included, where DeepNorm and Sub-LN scale Xavier's weights.
    """
    table = tables.TORCHSCALE_POST if placement in ("post", "deepnorm") else tables.TORCHSCALE_PRE
    scale = "d**0.5" if placement == "post" else "none"
    ours = f"placement={placement} norm=layernorm mlp=gelu position=none architecture.bias=true "
    ours += f"architecture.embed_scale={scale} final_norm=auto"
    compare_with(table, ours, there.torchscale_decoder, **config)


RMS = "norm=rmsnorm norm.eps=1e-30"  # its norms but LayerNorm know no eps
RMS_1P, RMS_NP = (f"norm=rmsnorm_{kind} norm.eps=1e-30" for kind in ("1p", "np"))
X = tables.X_ATTENTION
PER_HEAD = {f"{X}.{site}_rmsnorm": tables.X_HEADS[site] for site in "qk"}
HEAD_GATE = "architecture.attention_gate=per_head architecture.bias=[attention_gate]"
VALUES = "architecture.value_scale=0.5 architecture.value_residual=0.5"
R = 2 * there.DEPTH  # the factor of Keel's skip, which is left to the user there
# Ours, their config, whose keys are true unless they have a value, and its lines of the table.
X_TRANSFORMERS = {
    "pre": ("", "", {}),
    "rmsnorm": (RMS, "use_rmsnorm", {}),
    # its default for every norm: what is stored is added to 1
    "rmsnorm_1p": (RMS_1P, "use_rmsnorm norm_add_unit_offset", {}),
    "rmsnorm_np": (RMS_NP, "use_simple_rmsnorm", {}),
    "scalenorm": ("norm=scalenorm embed=none", "use_scalenorm", tables.X_SCALENORM),
    "dyt": ("norm=dyt architecture.tied=true", "use_dynamic_tanh", {}),
    "derf": ("norm=derf", "use_derf", {}),
    "post": ("placement=post", "pre_norm=0", {}),
    "sandwich": ("placement=sandwich", "sandwich_norm", {}),
    "peri": ("placement=peri", "sandwich_norm post_emb_norm", {}),
    "keel": ("placement=keel", f"pre_and_post_norm scale_residual_constant={R}", {}),
    "layerscale": ("placement=layerscale", "use_layerscale", tables.X_LAYERSCALE),
    "qk_per_head": (f"{RMS} qk_norm=per_head", "use_rmsnorm attn_qk_rmsnorm", PER_HEAD),
    "v_per_head": (f"{RMS} v_norm=per_head", "use_rmsnorm attn_value_rmsnorm",
                   {f"{X}.value_rmsnorm": tables.X_HEADS["v"]}),
    "sinks": ("attention=sinks", "attn_head_learned_sink",
              {f"{X}.attend.head_attn_sink": tables.X_SINKS}),
    "value_residual": (VALUES, "add_value_residual learned_value_residual_mix=0", {}),
    "gate": ("architecture.attention_gate=elementwise", "attn_gate_values",
             {f"{X}.to_v_gate": tables.X_GATE}),
    "head_gate": (HEAD_GATE, "attn_gate_value_heads", {f"{X}.to_v_head_gate": tables.X_GATE}),
    "qk_l2": ("qk_norm=l2 architecture.attention_scale=10", "attn_qk_norm attn_qk_norm_scale=10",
              {}),
    "alibi": ("position=alibi", f"alibi_pos_bias alibi_num_heads={there.HEADS}", {}),
    "attention_cap": ("architecture.attention_cap=5",
                      "attn_softclamp_logits attn_logit_softclamp_value=5", {}),
}  # fmt: skip


@pytest.mark.goal("A2")
@pytest.mark.parametrize("case", X_TRANSFORMERS)
def test_x_transformers_has_the_same_decoder(case):
    ours, theirs, lines = X_TRANSFORMERS[case]
    config = {key: int(value or 1) for key, _, value in (t.partition("=") for t in theirs.split())}
    usual = "mlp=relu2 architecture.embed_scale=none"
    usual += "" if ours.startswith("norm=") else " norm=layernorm_nobias"
    usual += "" if "position=" in ours else " position=none"
    table = {**tables.X_TRANSFORMERS, **lines}
    build = partial(there.x_transformers_decoder, ff_relu_squared=True, **config)
    compare_with(table, f"{usual} {ours}", build)


def test_normformer_is_made_of_the_parts_of_x_transformers():
    """Its head scale stands before W_o, as in the paper; fairseq's stands after."""

    def build():
        model = there.x_transformers_decoder(
            sandwich_norm=True, attn_head_scale=True, ff_post_act_ln=True, ff_relu_squared=True
        )
        for norms, *_ in model.attn_layers.layers[1::2]:
            norms[1] = None  # NormFormer has the norm after a sub-layer in attention alone
        return model

    ours = "placement=normformer norm=layernorm_nobias mlp=relu2 position=none"
    table = {**tables.X_TRANSFORMERS, **tables.X_NORMFORMER}
    compare_with(table, f"{ours} architecture.embed_scale=none", build)


@pytest.mark.parametrize("placement", papers.ALL)
def test_a_placement_is_its_papers_equation_over_the_whole_model(placement):
    """Where no package can be held against it, or the official code is not what the paper says."""

    def reference(tokens, weights):
        return papers.ALL[placement](papers.Parts(weights), weights["embedding.weight"][tokens])

    mlp = "swiglu" if placement in ("ngpt", "simplenorm") else "relu2"
    fixed = f"norm=rmsnorm mlp={mlp} position=none architecture.embed_scale=none"
    compare(ours_of(f"placement={placement} {fixed}"), reference)


def test_preset_nanochat_is_its_code_over_the_whole_model():
    """The sequence is longer than the short window."""
    eps = torch.finfo(torch.float64).eps  # F.rms_norm's, unless it is given
    time = papers.CONTEXT_OF_WINDOWS
    reference = partial(papers.whole_nanochat, eps=eps)
    compare(ours_of(f"preset=nanochat norm.eps={eps}", time), reference, time)


@pytest.mark.parametrize(("model", "name"), [("zamba2", "Zamba2"), ("falcon_h1", "FalconH1")])
def test_an_rmsnorm_in_groups_and_every_gradient_are_those_of_transformers(model, name):
    """Theirs can be gated, and is not here."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    groups = {"group_size": there.WIDTH // 4} if model == "zamba2" else {"n_groups": 4}
    theirs = getattr(module, f"{name}RMSNormGated")(there.WIDTH, eps=1e-6, **groups).double()
    ours = GroupRMSNorm(there.WIDTH).double()
    ours.gain.data = theirs.weight.data = drawn(there.WIDTH)
    x = drawn(3, 5, there.WIDTH).requires_grad_()
    found = with_gradients(ours(x), (x, ours.gain))
    with there.in_float64():
        expected = theirs(x)
    wanted = with_gradients(expected, (x, theirs.weight))
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)
