"""The laws of norms hold for random examples: what they forget, what they keep, what they bound."""

import os
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from new_process import run_python
from test_norms import CAUSAL, DIVIDED, NAMES, SPECS, WIDTH, draw, mean, norm_of, of_type, same
from tiny_models import seeded

pytestmark = pytest.mark.goal("A3")
CENTRED = of_type("layernorm")
BOUNDED = of_type("dyt", "derf")
EXAMPLES = int(os.environ.get("LAW_EXAMPLES", 30))
seeds, factors = st.integers(0, 2**32), st.floats(0.1, 10)
ZEROS = torch.zeros(3, 5).double()


def law(*examples, names=()):
    """A property of the norms with these names, or of those that the test builds."""

    def of_norms(test):
        test = settings(max_examples=EXAMPLES, deadline=None)(given(*examples)(test))
        return pytest.mark.parametrize("name", names)(test) if names else test

    return of_norms


def ideal(name, width=WIDTH, **kinds):
    """A norm without its eps, which the laws do not know of."""
    smaller = {"eps": 1e-24} if "eps" in SPECS[name] else {}
    return norm_of(name, width, **kinds, **smaller)


def gradient(norm, x, of):
    x = x.clone().requires_grad_()
    return torch.autograd.grad((norm(x) * of).sum(), x)[0]


@law(seeds, factors, st.floats(-10, 10), names=CENTRED)
def test_layernorm_forgets_scale_and_shift(name, seed, factor, shift):
    norm, x = ideal(name), draw(seed)
    same(norm(factor * x + shift), norm(x))


@law(seeds, factors, names=DIVIDED)
def test_what_divides_by_a_length_forgets_scale_and_not_shift(name, seed, factor):
    norm, x = ideal(name), draw(seed)
    same(norm(factor * x), norm(x))
    assert not torch.allclose(norm(x + factor), norm(x), atol=1e-3)


@law(seeds, factors, names=CENTRED + DIVIDED)
def test_a_gradient_has_nothing_along_what_is_forgotten_and_falls_as_x_grows(name, seed, factor):
    norm, x, of = ideal(name), draw(seed), draw(seed + 1)
    grad = gradient(norm, x, of)
    same((grad * x).sum(-1), ZEROS)
    same(gradient(norm, factor * x, of), grad / factor)
    if name in CENTRED:
        same(grad.sum(-1), ZEROS)


@law(seeds, factors)
def test_layernorms_output_has_mean_0_and_variance_1_and_is_its_own_layernorm(seed, factor):
    norm, x = ideal("layernorm_np"), factor * draw(seed) + 3
    y = norm(x)
    same(y.mean(-1), ZEROS)
    same(y.square().mean(-1), torch.ones(3, 5).double())
    same(norm(y), y)


@law(seeds, factors)
def test_lengths_after_are_1_for_l2norm_and_the_gain_for_scalenorm(seed, factor):
    x, scale = factor * draw(seed), ideal("scalenorm")
    lengths = torch.linalg.vector_norm(x, dim=-1)
    same(ideal("l2norm")(x) * lengths[..., None], x)
    same(torch.linalg.vector_norm(scale(x), dim=-1), scale.gain.abs().expand(3, 5))


@law(seeds, names=NAMES)
def test_features_in_another_order_come_out_in_that_order(name, seed):
    norm, other, x = norm_of(name), norm_of(name), draw(seed)
    shuffled = partial(torch.randperm, generator=seeded(seed))
    order = shuffled(WIDTH)
    if name in of_type("prmsnorm"):  # the first stay the first
        order = torch.cat((torch.tensor([0]), 1 + shuffled(WIDTH - 1)))
    if name in of_type("group_rmsnorm"):  # a group stays together
        parts = torch.arange(WIDTH).view(4, -1)[shuffled(4)]
        order = torch.cat([part[shuffled(6)] for part in parts])
    for parameter in other.parameters():
        for axis in [axis for axis, size in enumerate(parameter.shape) if size == WIDTH]:
            parameter.data = parameter.data.index_select(axis, order)
    same(other(x[..., order]), norm(x)[..., order])


@law(seeds, names=CAUSAL)
def test_a_token_does_not_know_of_another(name, seed):
    norm, x = norm_of(name), draw(seed)
    same(norm(x)[1, 2], norm(x[1, 2]), 1e-14)


@law(seeds)
def test_layernorm_is_rmsnorm_of_what_is_centred(seed):
    x = draw(seed) + 2
    same(ideal("layernorm_np")(x), ideal("rmsnorm_np")(x - mean(x)))


@law(seeds, factors)
def test_partial_rmsnorm_divides_all_by_the_first_alone(seed, factor):
    norm, x, k = ideal("prmsnorm", share=0.25), draw(seed), WIDTH // 4
    other = torch.cat((x[..., :k], factor * draw(seed + 1)[..., k:]), -1)
    same(norm(other)[..., :k], norm(x)[..., :k])
    same(norm(other) / other, norm(x) / x)
    whole, rms = ideal("prmsnorm", share=1), ideal("rmsnorm")
    same(whole(x), rms(x))


@pytest.mark.parametrize(
    ("name", "simple"),
    [
        *(("rmsnorm" + kind, "rmsnorm_np") for kind in ("", "_1p", "_bias")),
        *((name, "rmsnorm_np") for name in ("scalenorm", "seednorm", "preaffine", "ssnorm")),
        *(("layernorm" + kind, "layernorm_np") for kind in ("", "_1p")),
    ],
)
@law(seeds, factors)
def test_at_the_start_a_norm_is_a_simpler_one(name, simple, seed, factor):
    norm, simple = ideal(name, 16, trained=False), ideal(simple, 16, trained=False)
    x = factor * draw(seed, 3, 5, 16)
    same(norm(x), simple(x))


@law(seeds, factors)
def test_a_group_is_divided_by_its_own_root_mean_square(seed, factor):
    norm, x, rms = ideal("group_rmsnorm"), draw(seed), ideal("rmsnorm_np", WIDTH // 4)
    same(norm(x), norm.gain * torch.cat([rms(part) for part in x.chunk(4, -1)], -1))
    other = torch.cat((x[..., :6], factor * draw(seed + 1)[..., 6:12], factor * x[..., 12:]), -1)
    same(norm(other)[..., :6], norm(x)[..., :6])
    same(norm(other)[..., 12:], norm(x)[..., 12:])
    one, whole = ideal("group_rmsnorm", groups=1), ideal("rmsnorm")
    same(one(x), whole(x))


@law(seeds, factors)
def test_a_gate_starts_at_one_half_and_lets_through_less_than_the_whole(seed, factor):
    norm, x = ideal("gatednorm", trained=False), factor * draw(seed)
    same(2 * norm(x), ideal("rmsnorm_np")(x))
    norm, whole = ideal("gatednorm"), ideal("rmsnorm")
    whole.gain = norm.gain
    assert (norm(x).abs() < whole(x).abs()).all()
    assert (norm(x) * whole(x) > 0).all()


@law(seeds, factors)
def test_bhyt_is_bounded_and_odd_and_rmsnorm_where_tanh_is_straight(seed, factor):
    norm, x, rms = ideal("bhyt"), factor * draw(seed), ideal("rmsnorm_np")
    assert (norm(x).abs() < norm.gain.abs()).all()
    same(norm(-x), -norm(x))
    straight, scale = ideal("bhyt", kappa=1e4), norm.bound / 1e4
    same(straight(x) / scale, straight.gain * rms(x), 1e-6)


@law(seeds, factors, names=BOUNDED)
def test_a_squashing_is_bounded_odd_and_knows_one_coordinate(name, seed, factor):
    norm, x = norm_of(name), factor * draw(seed)
    assert ((norm(x) - norm.bias).abs() <= norm.gain.abs() * (1 + 1e-12)).all()
    other = x.clone()
    other[..., 1] += 1
    others = torch.arange(WIDTH) != 1
    same(norm(other)[..., others], norm(x)[..., others], 0)
    if hasattr(norm, "shift"):
        assert not torch.allclose(norm(-x) - norm.bias, norm.bias - norm(x), atol=1e-3)
        norm.shift.data.zero_()
    same(norm(-x) - norm.bias, norm.bias - norm(x))


# Ba et al. 2016, table 1: what may be done to a layer z = x w^T before a norm and leave its output.
# Changes of w, [neurons, inputs], and of x, [cases, inputs]: for batchnorm, layernorm, rmsnorm.
ONE = F.one_hot(torch.tensor(2), 12).double()[:, None]
CHANGES = {
    "weights times a number": ((1, 1, 1), lambda w, x, g: (2.5 * w, x)),
    "weights times a negative number": ((0, 0, 0), lambda w, x, g: (-w, x)),
    "one vector added to each neuron": ((0, 1, 0), lambda w, x, g: (w + g, x)),
    "a number of its own added to each neuron": ((0, 0, 0), lambda w, x, g: (w + w[:, :1], x)),
    "one neuron times a number": ((1, 0, 0), lambda w, x, g: (w * (1 + ONE), x)),
    "data times a number": ((1, 1, 1), lambda w, x, g: (w, 2.5 * x)),
    "one vector added to all data": ((1, 0, 0), lambda w, x, g: (w, x + g)),
    "one case times a number": ((0, 1, 1), lambda w, x, g: (w, x * (1 + ONE[:9]))),
}


@pytest.mark.parametrize(("kept", "change"), CHANGES.values(), ids=CHANGES)
@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(seeds)
def test_what_a_layer_may_undergo_before_a_norm_is_the_table_of_ba(kept, change, seed):
    w, x, g = draw(seed, 12, 6), draw(seed + 1, 9, 6), draw(seed + 2, 6)
    new_w, new_x = change(w, x, g)
    for keeps, name in zip(kept, ("batchnorm", "layernorm", "rmsnorm"), strict=True):
        norm = ideal(name, 12)
        before, after = norm(x @ w.T), norm(new_x @ new_w.T)
        assert torch.allclose(before, after, atol=1e-8 if keeps else 1e-3) == bool(keeps)


@pytest.mark.nightly
def test_every_law_holds_for_200_examples(measured, monkeypatch):
    laws = [name for name, test in globals().items() if hasattr(test, "hypothesis")]
    monkeypatch.setenv("LAW_EXAMPLES", "600")  # of which one law takes a third
    typed = ["-n", "0", *(f"{__file__}::{law}" for law in laws)]
    printed = run_python(f"import sys, pytest; sys.exit(pytest.main({typed}))")
    cases = printed.count(".", 0, printed.index("100%"))
    assert cases >= len(laws) == 15
    measured(f"{len(laws)} laws, {cases} cases of 200 to 600 examples each")
