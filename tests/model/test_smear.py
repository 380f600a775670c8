"""The token before is mixed into each embedded token, and nothing of a later one."""

import re

import pytest
import torch
from combinations import combined
from generating import from_a_cache
from refusing import refused

from transformer_norms import build_model
from transformer_norms.config.compose import compose
from transformer_norms.model.coefficient import Smear

TIME, VOCAB, CHANNELS = 6, 11, 5
SIZES = ["model=nano", "model.width=16", "model.heads=2", f"model.context={TIME}"]


def moved(module):
    """The same module in float64, with every parameter elsewhere than at its start."""
    generator = torch.Generator().manual_seed(5)
    for parameter in module.double().parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data = parameter.data + 0.5 * noise
    return module


def model_of(*typed):
    return moved(build_model(combined(*SIZES, *typed), vocab_size=VOCAB)).eval()


def some_tokens():
    return torch.randint(VOCAB, (2, TIME), generator=torch.Generator().manual_seed(1))


def test_each_token_has_the_one_before_times_a_gate_of_its_own_channels():
    smear = Smear(CHANNELS)
    torch.nn.init.zeros_(smear.smear_gate.weight)  # the init has not drawn it
    moved(smear)
    x = torch.randn(2, TIME, 16, dtype=torch.double, requires_grad=True)
    rows = []
    for t in range(TIME):
        logit = sum(smear.smear_gate.weight[0, c] * x[:, t, c] for c in range(CHANNELS))
        gate = smear.scale / (1 + (-logit).exp())
        rows.append(x[:, t] + (gate[:, None] * x[:, t - 1] if t else 0))
    found, expected = smear(x), torch.stack(rows, 1)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    pull, learned = torch.randn_like(x), [x, *smear.parameters()]
    gradients = [torch.autograd.grad((y * pull).sum(), learned) for y in (found, expected)]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_it_starts_as_nothing():
    plain, smeared = (
        build_model(compose([*SIZES, *typed]), VOCAB) for typed in ([], ["architecture.smear=4"])
    )
    assert torch.equal(plain(some_tokens()), smeared(some_tokens()))
    extra = dict(smeared.named_parameters()).keys() - dict(plain.named_parameters()).keys()
    assert extra == {"smear.smear_gate.weight", "smear.scale"}


@pytest.mark.parametrize("split", [[1] * TIME, [3, 1, 2], [TIME]])
def test_generating_from_a_cache_gives_the_logits_of_the_full_forward(split):
    model = model_of("architecture.smear=4", "embed=norm")
    found, _ = from_a_cache(model, some_tokens(), split)
    torch.testing.assert_close(found, model(some_tokens()), rtol=0, atol=1e-12)


def test_later_tokens_move_earlier_logits_by_exactly_nothing():
    model, tokens = model_of("architecture.smear=4"), some_tokens()
    expected = model(tokens)
    for t in range(1, TIME):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % VOCAB
        assert torch.equal(model(changed)[:, :t], expected[:, :t])
        assert not torch.equal(model(changed)[:, t:], expected[:, t:])


@pytest.mark.parametrize("channels", [17, 0, -3])
def test_channels_that_x_does_not_have_are_refused_in_one_line(channels):
    line = refused(compose, [*SIZES, f"architecture.smear={channels}"])
    assert re.match(rf"architecture\.smear: .*{channels}", line)
