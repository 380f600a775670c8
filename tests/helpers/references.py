"""Public implementations to compare with: how each is built, what each calls our parameters.

They compute some steps in float32 whatever the model's dtype; `in_float64` lifts that. A table
reads their module -> our module, or their module -> (layout, our modules) where their tensor is a
function of ours; {i} counts blocks, {attention} and {mlp} the sub-layers of all blocks. Theirs
runs on those functions of our tensors, so its gradients come back to ours whatever the layout.
"""

import contextlib
import sys
from types import ModuleType
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

VOCABULARY, WIDTH, DEPTH, HEADS, CONTEXT = 37, 24, 4, 4, 20
HEAD_DIM = WIDTH // HEADS


@contextlib.contextmanager
def in_float64():
    """float32, asked for by a cast, by softmax or by default, is float64 in here."""
    to, softmax, default = torch.Tensor.to, F.softmax, torch.get_default_dtype()
    normal, quantile = torch.distributions.Normal, torch.distributions.Normal.icdf

    def lifted_to(self, *args, **kwargs):
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return to(self, *args, **kwargs)

    def lifted_softmax(x, dim=None, dtype=None, **kwargs):
        return softmax(x, dim=dim, dtype=torch.float64, **kwargs)

    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch.Tensor, "to", lifted_to),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
            mock.patch.object(F, "softmax", lifted_softmax),
            mock.patch.object(normal, "icdf", lambda own, p: quantile(own, p.double())),
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def transformers_model(name, **config):
    """`name` as in transformers' class names; the sizes common to most are filled in."""
    import transformers

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": DEPTH, "max_position_embeddings": CONTEXT}
    sizes |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), HEADS)
    config = getattr(transformers, f"{name}Config")(
        **{**sizes, **config},
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        attn_implementation="eager",  # its arithmetic is written out; ours is fused
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


def gpt_oss_without_experts(**config):
    """transformers' GPT-OSS with Llama's mlp in the place of its experts."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    class Dense(LlamaMLP):
        def forward(self, x):
            return super().forward(x), None  # there are no scores of a router

    model = transformers_model("GptOss", num_local_experts=1, num_experts_per_tok=1, **config)
    model.config.mlp_bias = False
    for layer in model.model.layers:
        layer.mlp = Dense(model.config)
    return model


def torchscale_decoder(**config):
    """torchscale's Decoder with a tied head; `subln` is on by default there, and off here.

    Its imports of fairscale and timm, which serve sharding and stochastic depth alone, meet stubs.
    """
    stubs = "fairscale fairscale.nn timm timm.models timm.models.layers"
    stubs = {name: ModuleType(name) for name in stubs.split()}
    vars(stubs["fairscale.nn"]).update(checkpoint_wrapper=None, wrap=None)
    vars(stubs["timm.models.layers"]).update(drop_path=None)
    # transformers looks for timm, and must not find this one afterwards.
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stubs.items():
            patch.setitem(sys.modules, name, module)
        from torchscale.architecture.config import DecoderConfig
        from torchscale.architecture.decoder import Decoder
    arguments = DecoderConfig(
        decoder_embed_dim=WIDTH,
        decoder_attention_heads=HEADS,
        decoder_ffn_embed_dim=4 * WIDTH,
        decoder_layers=DEPTH,
        vocab_size=VOCABULARY,
        share_decoder_input_output_embed=True,
        **{"subln": False, **config},
    )
    return Decoder(arguments, embed_tokens=torch.nn.Embedding(VOCABULARY, WIDTH))


def x_transformers_decoder(post_emb_norm=False, **config):
    """x-transformers' decoder without positions and with a tied head, whose scale is taken off."""
    import x_transformers

    layers = x_transformers.Decoder(
        dim=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        attn_dim_head=HEAD_DIM,
        ff_no_bias=True,
        **{"norm_add_unit_offset": False, "verbose": False, **config},
    )
    return x_transformers.TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=CONTEXT,
        use_abs_pos_emb=False,
        tie_embedding=True,
        tie_embedding_scale=1.0,
        post_emb_norm=post_emb_norm,
        attn_layers=layers,
    )


def logits_of(output):
    output = getattr(output, "logits", output)
    return output[0] if isinstance(output, tuple) else output


# Layouts: their tensor as a function of ours


def only(tensor):
    return tensor


def over_root_width(gain):
    """x-transformers' ScaleNorm multiplies by sqrt(d) itself."""
    return gain / WIDTH**0.5


def minus_one(*gains):
    """x-transformers' norm on heads stores what it adds to 1."""
    return torch.stack(gains) - 1


# Their parameter's last name -> what ours is called: the first that there is
LEAVES = {
    "weight": ("weight", "gain", "offset"),
    "g": ("gain", "offset"),
    "gamma": ("gain", "offset"),
    "bias": ("bias",),
    "beta": ("bias",),
    "pre_tanh_scale": ("alpha",),
    "alpha": ("alpha",),
    "s": ("shift",),
}


def copied(table, theirs, ours):
    """Their parameters by name, as functions of our tensors, {name: tensor}.

    Fails where a parameter of theirs stands in no line of the table, or one of ours goes nowhere.
    """
    lines = {}
    for i in range(DEPTH):
        at = {"i": i, "attention": 2 * i, "mlp": 2 * i + 1}
        for there, entry in table.items():
            layout, *here = (only, entry) if isinstance(entry, str) else entry
            lines[there.format(**at)] = layout, [name.format(**at) for name in here]
    made, unused = {}, set(ours)
    for name, parameter in theirs.named_parameters():
        module, leaf = name.rsplit(".", 1)
        assert name in lines or module in lines, f"no line for {name}"
        layout, names = lines.get(name) or lines[module]
        if name not in lines:
            names = [_leaf(our, leaf, ours) for our in names]
        made[name] = layout(*(ours[our] for our in names)).reshape(parameter.shape)
        unused -= set(names)
    assert not unused, f"not in theirs: {sorted(unused)}"
    return made


def _leaf(module, leaf, ours):
    return next(name for name in (f"{module}.{our}" for our in LEAVES[leaf]) if name in ours)
