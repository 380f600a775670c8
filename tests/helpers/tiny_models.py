"""The sizes of the float64 models of the catalogue's tests, what they read, and their gradients."""

import torch
from torch import nn

WIDTH, HEADS, DEPTH, TIME, VOCABULARY = 16, 2, 4, 6, 11
SIZES = ["model=nano", f"model.width={WIDTH}", f"model.heads={HEADS}", f"model.depth={DEPTH}"]
SIZES += [f"model.context={TIME}", "trainer.precision=fp64"]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    """Normal numbers of mean 0 and deviation 1, in float64."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def some_tokens(*shape, vocabulary=VOCABULARY, seed=0):
    return torch.randint(vocabulary, shape or (2, TIME), generator=seeded(seed))


def with_gradients(y, given, pull=None):
    """Returns y, and the gradients of sum(pull * y) for each tensor of `given`."""
    pull = drawn(*y.shape, seed=2) if pull is None else pull
    return [y, *torch.autograd.grad(y, given, pull, retain_graph=True, materialize_grads=True)]


def same_grads(found, expected, given, rtol=1e-11, atol=1e-11):
    """Compares two tensors, and the gradients of their weighted sums for each tensor of `given`."""
    both = (with_gradients(y, given) for y in (found, expected))
    torch.testing.assert_close(*both, rtol=rtol, atol=atol)


class Instead(nn.Module):
    """A function in the place of a layer, which keeps what it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *context):
        self.given = x
        return self.function(x, *context)
