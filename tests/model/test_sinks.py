"""Attention with sinks: what probes, dropout and half precision make of it. test_parity compares it
with transformers' GPT-OSS, and test_patterns with its formula."""

import torch
from torch import nn
from written_out import by_hand

from transformer_norms import build_model, compose
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.training.parameter_groups import groups

TIME = 9
SIZES = ["model=nano", "model.width=24", "model.heads=4", f"model.context={TIME}", "model.depth=2"]
SIZES += ["model.kv_heads=2", "init=megatron"]


def built(*typed):
    return build_model(compose([*SIZES, "attention=sinks", *typed], device="cpu"), 31)


def test_the_logits_that_probes_read_give_the_weights_of_the_softmax():
    attend = ATTENTIONS["sinks"](heads=3, scale=0.7, cap=None, dropout=0.0).double()
    attend.sinks.data = torch.tensor([-1.0, 0.0, 3.0]).double()
    q, k, v = torch.randn(3, 2, 3, TIME, 16, dtype=torch.double)
    at = torch.tensor([0, 5])
    weights = attend.logits(q[:, :, at], k, at).softmax(-1)
    expected, *_ = by_hand(q, k, v, sinks=attend.sinks, scale=0.7)
    torch.testing.assert_close(weights[..., :-1] @ v, expected[:, :, at], atol=1e-13, rtol=0)


def test_dropout_takes_weights_of_tokens_as_it_does_without_a_sink():
    """Ones as values: what is kept of the weights of the tokens, each divided by 1 - dropout."""
    attend = ATTENTIONS["sinks"](heads=3, scale=0.7, cap=None, dropout=0.5)
    q, k = torch.randn(2, 200, 3, TIME, 16)
    given = q, k, torch.ones_like(k)
    whole, x = by_hand(*given, sinks=attend.sinks, scale=0.7)[0], torch.zeros(200, TIME, 8)
    torch.testing.assert_close(attend.eval()(*given, x), whole)
    found = attend.train()(*given, x)
    assert not torch.allclose(found, whole)
    torch.testing.assert_close(found.mean((0, 2)), whole.mean((0, 2)), rtol=0, atol=0.05)


def test_sinks_in_bfloat16_and_beside_a_learned_scale():
    model, tokens = built("qk_norm=l2"), torch.randint(31, (2, TIME))
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    expected = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens)
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.3)


def test_sinks_begin_at_zero_and_are_not_decayed():
    model = built()
    sinks = [block.attention.f.attend.sinks for block in model.blocks]
    assert all(isinstance(sink, nn.Parameter) and not sink.any() for sink in sinks)
    assert {id(sink) for sink in sinks} <= {id(p) for _, p in groups(model)["norms"]}
