"""Every norm against the formula of its YAML, torch's own, finite differences, and its laws.

Whatever lies in configs/norm is tested: a new YAML brings its tests by its formula and its type.
"""

import ast
import copy
import inspect
import itertools
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms import norms
from transformer_norms.config.compose import compose
from transformer_norms.config.option_content import read_config_file
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Epsilon
from transformer_norms.names import folder_of_configs
from transformer_norms.norms import NORMS, NOT_ARGUMENTS
from transformer_norms.norms.stated import check_formula
from transformer_norms.validation import check, parameters

SPECS = {
    file.stem: read_config_file(file)
    for file in sorted((folder_of_configs() / "norm").rglob("*.yaml"))
}
NAMES = [name for name in SPECS if name != "none"]
CAUSAL = [name for name in NAMES if getattr(NORMS[SPECS[name]["type"]], "causal", True)]
WIDTH = 24


def of_type(*types):
    return [name for name in NAMES if SPECS[name]["type"] in types]


CENTRED = of_type("layernorm")
DIVIDED = of_type("rmsnorm", "prmsnorm", "scalenorm", "l2norm")
DIVIDED += of_type("group_rmsnorm", "preaffine", "gatednorm", "bhyt")
BOUNDED = of_type("dyt", "derf")

every = pytest.mark.parametrize("name", NAMES)
EXAMPLES = int(os.environ.get("LAW_EXAMPLES", 30))
laws = settings(max_examples=EXAMPLES, deadline=None)
seeds, factors = st.integers(0, 2**32), st.floats(0.1, 10)


def arguments(name):
    return {key: value for key, value in SPECS[name].items() if key not in NOT_ARGUMENTS}


def norm_of(name, width=WIDTH, *, trained=True, **changed):
    """The YAML's norm in float64, its parameters moved off their starts unless told otherwise."""
    norm = NORMS[SPECS[name]["type"]](width, **{**arguments(name), **changed}).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters() if trained else ():
        shift = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        parameter.data += 0.5 * shift
    return norm


def ideal(name, width=WIDTH, **kinds):
    """The same without its eps, which the laws do not know of."""
    smaller = {"eps": 1e-24} if "eps" in SPECS[name] else {}
    return norm_of(name, width, **kinds, **smaller)


def draw(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (3, 5, WIDTH), generator=generator, dtype=torch.double)


def same(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def gradient(norm, x, of):
    x = x.clone().requires_grad_()
    return torch.autograd.grad((norm(x) * of).sum(), x)[0]


# Formulas


def mean(x):
    return x.mean(-1, keepdim=True)


def group_mean(x, groups):
    means = [part.mean(-1, keepdim=True).expand(part.shape) for part in x.chunk(groups, -1)]
    return torch.cat(means, -1)


WORDS = {
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "erf": torch.erf,
    "max": lambda x, least: torch.where(x > least, x, least),
    "mean": mean,
    "var": lambda x: mean((x - mean(x)) ** 2),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "norm": lambda x: (x**2).sum(-1, keepdim=True).sqrt(),
    "first": lambda x, share: x[..., : max(1, int(share * x.shape[-1]))],
    "group_mean": group_mean,
    "product": lambda matrix, x: torch.einsum("rc,...c->...r", matrix, x),
    "batch_mean": lambda x: x.flatten(0, -2).mean(0),
    "batch_var": lambda x: x.flatten(0, -2).var(0, unbiased=False),
}


def named(norm):
    """The parameters of a norm as its formula names them: a matrix by the name of its module."""
    return {key.removesuffix(".weight"): p for key, p in norm.named_parameters()}


def by_formula(name, norm, x):
    own = {key: parameter.to(x.dtype) for key, parameter in named(norm).items()}
    return eval(
        SPECS[name]["formula"], {"__builtins__": {}}, WORDS | arguments(name) | own | {"x": x}
    )


SIZES = (1, 1e-4, 1e-8)  # of x; where it is small, it counts what eps is and where it stands


@every
def test_a_norm_is_the_formula_of_its_yaml(name):
    tokens = () if name in CAUSAL else (2,)
    for shape in ((WIDTH,), (5, WIDTH), (3, 5, WIDTH), (2, 3, 4, 8), (4, 1), (2, 3, 2)):
        fewer = {"groups": min(4, shape[-1])} if "groups" in SPECS[name] else {}
        norm, x = norm_of(name, shape[-1], **fewer), draw(0, *tokens, *shape) * 7 + 2
        for size in SIZES:
            same(norm(size * x), by_formula(name, norm, size * x), 1e-12)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: norms.RMSNorm(64, eps=-1), "RMSNorm.eps: -1 is not allowed; it should be greater"),
        (
            lambda: norms.RMSNorm(64, gain="all"),
            "RMSNorm.gain: 'all' is not allowed; allowed are l",
        ),
        (
            lambda: norms.PRMSNorm(64, share=3),
            "PRMSNorm.share: 3 is not allowed; it should be less",
        ),
        (
            lambda: norms.DyT(64, alpha_init="a"),
            "DyT.alpha_init: 'a' is not allowed; it should be ",
        ),
        (
            lambda: norms.LayerNorm(64, epss=1),
            "LayerNorm.epss: did you mean 'eps'? there is no key",
        ),
    ],
)
def test_a_norm_built_in_python_refuses_a_wrong_setting_in_one_line(build, line):
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("name", sorted({spec["type"] for spec in SPECS.values()} - {"none"}))
def test_a_norm_shows_its_settings_and_help_names_the_kinds_of_its_values(name):
    norm, kind = NORMS[name](64), NORMS[name]
    stated = {key: f"{key}={one.default!r}" for key, one in parameters(kind).items()}
    text = ", ".join(["width=64", *(stated[key] for key in stated if key != "width")])
    assert text in repr(norm)
    assert repr(copy.deepcopy(norm)) == repr(norm)
    head = pydoc.plain(pydoc.render_doc(kind)).split(" |  \n")[0]
    assert "Validator" not in head
    assert "Strict" not in head


def test_a_norm_of_the_users_own_is_checked_as_well():
    class Mine(norms.RMSNorm):
        def __init__(self, width: int, *, eps: Epsilon = 0.5) -> None:
            super().__init__(width, eps=eps)

    try:
        NORMS("mine_checked")(Mine)
        assert repr(Mine(8)) == "Mine(width=8, eps=0.5)"
        with pytest.raises(ConfigError, match=r"^Mine.eps: -1 is not allowed"):
            Mine(8, eps=-1)
    finally:
        del NORMS["mine_checked"]


def test_a_class_that_is_registered_keeps_its_own_attributes_and_a_class_of_torch_stays_as_it_is():
    class Mine(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.settings = torch.nn.Parameter(torch.ones(width))

        def extra_repr(self) -> str:
            return "mine"

    try:
        NORMS("mine_kept")(Mine)
        NORMS("torchs")(torch.nn.LayerNorm)
        assert (repr(Mine(8)), len(list(Mine(8).parameters()))) == ("Mine(mine)", 1)
        assert "settings" not in repr(torch.nn.LayerNorm(8))
        assert torch.nn.LayerNorm.__init__.__module__ == "torch.nn.modules.normalization"
        assert not hasattr(torch.nn.LayerNorm.__init__, "__wrapped__")
    finally:
        del NORMS["mine_kept"], NORMS["torchs"]


@pytest.mark.parametrize("setting", [False, True])
def test_a_buffer_may_be_a_setting_that_a_formula_names_but_no_gain(setting, monkeypatch):
    class Held(torch.nn.Module):
        def __init__(self, width, *, eps=0.5):
            super().__init__()
            self.register_buffer("eps", torch.tensor(eps))

        def forward(self, x):
            return self.eps * x

    name = f"held {setting}"
    monkeypatch.setitem(NORMS, name, Held)
    if setting:
        return check_formula(name, "eps * x", {"eps": 0.5})
    with pytest.raises(ConfigError, match=f"{name}.eps is a plain tensor"):
        check_formula(name, "eps * x", {})
    return None


def test_the_none_of_configs_is_its_input_and_no_module():
    none, x = NORMS["none"](WIDTH), draw(0)
    assert none(x) is x
    assert eval(SPECS["none"]["formula"], {"x": x}) is x
    assert not isinstance(none, torch.nn.Module)


@every
def test_a_yaml_has_a_source_all_arguments_of_its_class_and_no_parameter_beside_its_formula(name):
    spec, owner = SPECS[name], NORMS[SPECS[name]["type"]]
    builders = {"width", "place"}  # what the builder of a model adds
    assert set(arguments(name)) == inspect.signature(owner).parameters.keys() - builders
    assert check("norm", arguments(name), owner, supplied=builders) == arguments(name)
    assert spec["source"]
    names = {n.id for n in ast.walk(ast.parse(spec["formula"])) if isinstance(n, ast.Name)}
    numbers = {key for key, value in arguments(name).items() if type(value) in (int, float)}
    assert named(norm_of(name)).keys() == names - {"x", *WORDS, *numbers}


@pytest.mark.parametrize("name", [name for name in SPECS if name == SPECS[name]["type"]])
def test_the_docstring_of_a_class_begins_with_the_formula_of_its_yaml(name):
    assert " ".join(NORMS[name].__doc__.split()).startswith(SPECS[name]["formula"])


# torch's own


def torchs(name, norm, x):
    spec, width = SPECS[name], x.shape[-1]
    gain, bias = getattr(norm, "gain", None), getattr(norm, "bias", None)
    gain = 1 + norm.offset if spec.get("gain") == "offset" else gain
    if spec.get("gain") == "scalar":
        return gain * F.rms_norm(x, (width,), None, spec["eps"])
    if spec["type"] == "layernorm":
        return F.layer_norm(x, (width,), gain, bias, spec["eps"])
    if spec["type"] == "rmsnorm":
        return F.rms_norm(x, (width,), gain, spec["eps"]) + (0 if bias is None else bias)
    if spec["type"] == "batchnorm":
        y = F.batch_norm(x.flatten(0, -2), None, None, gain, bias, True, eps=spec["eps"])
        return y.view_as(x)
    return F.normalize(x, dim=-1, eps=spec["eps"]) * (1 if gain is None else gain)


@pytest.mark.parametrize(
    "name", of_type("layernorm", "rmsnorm", "batchnorm", "l2norm", "scalenorm")
)
def test_a_norm_and_its_gradients_are_torchs_own_where_torch_has_it(name):
    norm, x = norm_of(name), (draw(0) * 7 + 2).requires_grad_()
    inputs, of = (x, *norm.parameters()), draw(1)
    same(norm(x), torchs(name, norm, x), 1e-13)
    found = torch.autograd.grad(norm(x), inputs, of)
    expected = torch.autograd.grad(torchs(name, norm, x), inputs, of)
    same(found, expected, 1e-12)


# The authors' arithmetic


def gated(x, gain, gate_down, gate_up, *, eps, **_):
    """Qiu et al. 2026, section 3.4: y = RMSNorm(x), y' = sigmoid(W_up(swish(W_down(y)))) * y"""
    y = F.rms_norm(x, x.shape[-1:], gain, eps)
    return torch.sigmoid(F.linear(F.silu(F.linear(y, gate_down)), gate_up)) * y


def pre_affine(x, gain, scale, *, eps):
    """Section 3.3: RMSNorm(lambda_1 * x)"""
    return F.rms_norm(scale * x, x.shape[-1:], gain, eps)


def bhyt_star(x, gain, bound, *, eps, kappa, **_):
    """MLAI-Yonsei/BHyT, BHyT_Star.forward, with its lam, weight and inv_kappa"""
    alpha = bound * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * (1 / kappa)
    return gain * torch.tanh(alpha * x)


def in_groups(x, gain, *, eps, groups, **_):
    """transformers, Zamba2RMSNormGated without a gate, in the dtype of x"""
    parts = x.view(*x.shape[:-1], groups, -1)
    parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + eps)
    return gain * parts.view(x.shape)


AUTHORS = {
    "gatednorm": gated,
    "preaffine": pre_affine,
    "bhyt": bhyt_star,
    "group_rmsnorm": in_groups,
}


@pytest.mark.parametrize("name", AUTHORS)
def test_a_norm_of_2026_and_every_gradient_are_the_authors_arithmetic(name):
    norm, x, of = norm_of(name), (draw(0) * 7 + 2).requires_grad_(), draw(1)
    inputs = (x, *norm.parameters())
    settings = {key: value for key, value in arguments(name).items() if key not in named(norm)}
    expected = AUTHORS[name](x, **named(norm), **settings)
    same(norm(x), expected, 1e-14)
    found = torch.autograd.grad(norm(x), inputs, of)
    same(found, torch.autograd.grad(expected, inputs, of), 1e-12)


# Gradients


@every
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradients_of_a_norm_are_those_of_its_formula(name, create_graph):
    norm, shapes = norm_of(name), [(2, 3, WIDTH), (4, WIDTH)] + [(WIDTH,)] * (name in CAUSAL)
    for size, shape in itertools.product(SIZES, shapes):
        x, of = (size * draw(0, *shape)).requires_grad_(), draw(1, *shape)
        inputs = (x, *norm.parameters())
        # Twice, so that one input of the second was made of another: the gain.
        for times in (1, 2):
            found, expected = x, x
            for _ in range(times):
                found, expected = norm(found), by_formula(name, norm, expected)
            found = torch.autograd.grad(found, inputs, of, create_graph=create_graph)
            same(found, torch.autograd.grad(expected, inputs, of), 1e-11)


@pytest.mark.goal("A3")
@every
def test_first_and_second_derivatives_are_those_of_finite_differences(name):
    width, fewer = 4, {"groups": 2} if "groups" in SPECS[name] else {}
    norm, x = norm_of(name, width, **fewer), draw(3, 2, 3, width).transpose(0, 1).requires_grad_()
    names = list(dict(norm.named_parameters()))

    def function(x, *values):
        return torch.func.functional_call(norm, dict(zip(names, values, strict=True)), (x,))

    inputs = (x, *norm.parameters())
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@every
@pytest.mark.parametrize("value", [0, 3, 1e-30, 1e4])
def test_constant_rows_give_finite_outputs_and_gradients_in_float32(name, value):
    norm = norm_of(name).float()
    x = torch.full((2, 3, WIDTH), float(value), requires_grad=True)
    assert norm(x).isfinite().all()
    for create_graph in (False, True):
        inputs = (x, *norm.parameters())
        for grad in torch.autograd.grad(norm(x).sum(), inputs, create_graph=create_graph):
            assert grad.isfinite().all()


@pytest.mark.parametrize("name", DIVIDED)
def test_second_derivatives_at_zero_are_finite(name):
    norm, x = norm_of(name), torch.zeros(2, WIDTH, dtype=torch.double, requires_grad=True)
    (grad,) = torch.autograd.grad((norm(x) * draw(0, 2, WIDTH)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    assert second.isfinite().all()


# Dtypes


def ordered(x):
    """Integers in the order of the half precision numbers, one apart where these are neighbours."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.goal("N4")
@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(name, dtype):
    norm, x = norm_of(name).float(), (draw(0, 4, 256, WIDTH) * 3).to(dtype)
    expected = by_formula(name, norm, x.double()).to(dtype)
    found = norm(x)
    assert found.dtype == dtype
    # One unit in the last place where float32 and float64 fall on two sides of a rounding edge.
    assert (found == expected).float().mean() > 0.999
    assert (ordered(found) - ordered(expected)).abs().max() <= 1
    assert all(parameter.dtype == torch.float32 for parameter in norm.parameters())


@every
def test_autocast_and_the_dtype_of_the_parameters_change_nothing_but_their_rounding(name):
    norm, x, of = norm_of(name).float(), draw(0).float().requires_grad_(), draw(1).float()
    inputs = (x, *norm.parameters())
    expected = (norm(x), *torch.autograd.grad(norm(x), inputs, of))
    with torch.autocast("cpu", torch.bfloat16):
        found = (norm(x), *torch.autograd.grad(norm(x), inputs, of))
        assert norm(x.bfloat16()).dtype == torch.bfloat16
    same(found, expected, 0)
    assert norm(x.double()).dtype == torch.double
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


COMPILED = """
import torch
from test_norms import NAMES, draw, norm_of, same

for name in NAMES:
    norm, x, of = norm_of(name), draw(0).requires_grad_(), draw(1)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    inputs = (x, *norm.parameters())
    same(compiled(x), norm(x))
    same(*(torch.autograd.grad(f(x), inputs, of) for f in (compiled, norm)))
"""


@pytest.mark.nightly
def test_compiled_a_norm_is_one_graph_and_the_same_function():
    """In a process of its own: what checks shapes here cannot be compiled."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


# Laws


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", CENTRED)
@laws
@given(seeds, factors, st.floats(-10, 10))
def test_layernorm_forgets_scale_and_shift(name, seed, factor, shift):
    norm, x = ideal(name), draw(seed)
    same(norm(factor * x + shift), norm(x))


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", DIVIDED)
@laws
@given(seeds, factors)
def test_what_divides_by_a_length_forgets_scale_and_not_shift(name, seed, factor):
    norm, x = ideal(name), draw(seed)
    same(norm(factor * x), norm(x))
    assert not torch.allclose(norm(x + factor), norm(x), atol=1e-3)


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", CENTRED + DIVIDED)
@laws
@given(seeds, factors)
def test_a_gradient_has_nothing_along_what_is_forgotten_and_falls_as_x_grows(name, seed, factor):
    norm, x, of = ideal(name), draw(seed), draw(seed + 1)
    grad = gradient(norm, x, of)
    same((grad * x).sum(-1), torch.zeros(3, 5).double())
    same(gradient(norm, factor * x, of), grad / factor)
    if name in CENTRED:
        same(grad.sum(-1), torch.zeros(3, 5).double())


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_layernorms_output_has_mean_0_and_variance_1_and_is_its_own_layernorm(seed, factor):
    norm, x = ideal("layernorm_np"), factor * draw(seed) + 3
    y = norm(x)
    same(y.mean(-1), torch.zeros(3, 5).double())
    same(y.square().mean(-1), torch.ones(3, 5).double())
    same(norm(y), y)


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_lengths_after_are_1_for_l2norm_and_the_gain_for_scalenorm(seed, factor):
    x, scale = factor * draw(seed), ideal("scalenorm")
    lengths = torch.linalg.vector_norm(x, dim=-1)
    same(ideal("l2norm")(x) * lengths[..., None], x)
    same(torch.linalg.vector_norm(scale(x), dim=-1), scale.gain.abs().expand(3, 5))


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", NAMES)
@laws
@given(seeds)
def test_features_in_another_order_come_out_in_that_order(name, seed):
    norm, other, x = norm_of(name), norm_of(name), draw(seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(WIDTH, generator=generator)
    if name in of_type("prmsnorm"):  # the first stay the first
        order = torch.cat((torch.tensor([0]), 1 + torch.randperm(WIDTH - 1, generator=generator)))
    if name in of_type("group_rmsnorm"):  # a group stays together
        parts = torch.arange(WIDTH).view(4, -1)
        parts = parts[torch.randperm(4, generator=generator)]
        order = torch.cat([part[torch.randperm(6, generator=generator)] for part in parts])
    for parameter in other.parameters():
        for axis in [axis for axis, size in enumerate(parameter.shape) if size == WIDTH]:
            parameter.data = parameter.data.index_select(axis, order)
    same(other(x[..., order]), norm(x)[..., order])


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", CAUSAL)
@laws
@given(seeds)
def test_a_token_does_not_know_of_another(name, seed):
    norm, x = norm_of(name), draw(seed)
    same(norm(x)[1, 2], norm(x[1, 2]), 1e-14)


@pytest.mark.goal("A3")
@laws
@given(seeds)
def test_layernorm_is_rmsnorm_of_what_is_centred(seed):
    x = draw(seed) + 2
    same(ideal("layernorm_np")(x), ideal("rmsnorm_np")(x - mean(x)))


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_partial_rmsnorm_divides_all_by_the_first_alone(seed, factor):
    norm, x, k = ideal("prmsnorm", share=0.25), draw(seed), WIDTH // 4
    other = torch.cat((x[..., :k], factor * draw(seed + 1)[..., k:]), -1)
    same(norm(other)[..., :k], norm(x)[..., :k])
    same(norm(other) / other, norm(x) / x)
    whole, rms = ideal("prmsnorm", share=1), ideal("rmsnorm")
    same(whole(x), rms(x))


@pytest.mark.goal("A3")
@pytest.mark.parametrize(
    ("name", "simple"),
    [
        ("scalenorm", "rmsnorm_np"),
        ("seednorm", "rmsnorm"),
        ("seednorm", "rmsnorm_np"),
        ("preaffine", "rmsnorm"),
        ("ssnorm", "rmsnorm"),
        ("rmsnorm", "rmsnorm_np"),
        ("rmsnorm_1p", "rmsnorm_np"),
        ("rmsnorm_bias", "rmsnorm_np"),
        ("layernorm", "layernorm_np"),
        ("layernorm_1p", "layernorm_np"),
    ],
)
@laws
@given(seeds, factors)
def test_at_the_start_a_norm_is_a_simpler_one(name, simple, seed, factor):
    norm, simple = ideal(name, 16, trained=False), ideal(simple, 16, trained=False)
    x = factor * draw(seed, 3, 5, 16)
    same(norm(x), simple(x))


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_a_group_is_divided_by_its_own_root_mean_square(seed, factor):
    norm, x, rms = ideal("group_rmsnorm"), draw(seed), ideal("rmsnorm_np", WIDTH // 4)
    same(norm(x), norm.gain * torch.cat([rms(part) for part in x.chunk(4, -1)], -1))
    other = torch.cat((x[..., :6], factor * draw(seed + 1)[..., 6:12], factor * x[..., 12:]), -1)
    same(norm(other)[..., :6], norm(x)[..., :6])
    same(norm(other)[..., 12:], norm(x)[..., 12:])
    one, whole = ideal("group_rmsnorm", groups=1), ideal("rmsnorm")
    same(one(x), whole(x))


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_a_gate_starts_at_one_half_and_lets_through_less_than_the_whole(seed, factor):
    norm, x = ideal("gatednorm", trained=False), factor * draw(seed)
    same(2 * norm(x), ideal("rmsnorm_np")(x))
    norm, whole = ideal("gatednorm"), ideal("rmsnorm")
    whole.gain = norm.gain
    assert (norm(x).abs() < whole(x).abs()).all()
    assert (norm(x) * whole(x) > 0).all()


@pytest.mark.goal("A3")
@laws
@given(seeds, factors)
def test_bhyt_is_bounded_and_odd_and_rmsnorm_where_tanh_is_straight(seed, factor):
    norm, x, rms = ideal("bhyt"), factor * draw(seed), ideal("rmsnorm_np")
    assert (norm(x).abs() < norm.gain.abs()).all()
    same(norm(-x), -norm(x))
    straight, scale = ideal("bhyt", kappa=1e4), norm.bound / 1e4
    same(straight(x) / scale, straight.gain * rms(x), 1e-6)


@pytest.mark.goal("A3")
@pytest.mark.parametrize("name", BOUNDED)
@laws
@given(seeds, factors)
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


@pytest.mark.goal("A3")
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


# BatchNorm


@pytest.mark.nightly
@pytest.mark.goal("A3")
def test_every_law_holds_for_200_examples(measured):
    laws = [name for name, test in globals().items() if hasattr(test, "hypothesis")]
    command = [sys.executable, *"-m pytest -n 0".split(), *(f"{__file__}::{law}" for law in laws)]
    environment = {**os.environ, "LAW_EXAMPLES": "600"}  # of which one law takes a third
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    cases = done.stdout.count(".", 0, done.stdout.index("100%"))
    assert cases >= 15
    measured(f"{len(laws)} laws, {cases} cases of 200 to 600 examples each")


def test_batchnorm_lets_the_future_in_while_it_trains_and_not_in_evaluation():
    norm, x = norm_of("batchnorm"), draw(0, 2, 5, WIDTH)
    other = x.clone()
    other[:, -1] += 3
    assert not torch.allclose(norm(other)[:, 0], norm(x)[:, 0], atol=0.1)
    norm.eval()
    same(norm(other)[:, :-1], norm(x)[:, :-1], 0)


def test_batchnorm_follows_its_statistics_as_torchs_does():
    norm, torchs = norm_of("batchnorm"), torch.nn.BatchNorm1d(WIDTH).double()
    torchs.weight, torchs.bias = norm.gain, norm.bias
    for seed in range(3):
        x = draw(seed, 2, 5, WIDTH) * (seed + 1) + seed
        same(norm(x), torchs(x.flatten(0, 1)).view_as(x), 1e-13)
        same(norm.running_mean, torchs.running_mean, 1e-13)
        same(norm.running_var, torchs.running_var, 1e-13)
    same(norm.eval()(x), torchs.eval()(x.flatten(0, 1)).view_as(x), 1e-13)


def test_batchnorm_keeps_its_statistics_where_a_batch_is_not_finite():
    norm, x = norm_of("batchnorm"), draw(0, 2, 5, WIDTH)
    x[0, 0, 0] = float("inf")
    norm(x)
    assert norm.running_mean.isfinite().all()
    assert norm.running_var.isfinite().all()
    assert norm.running_mean[0] == 0
    assert norm.running_mean[1] != 0


def test_batchnorm_refuses_one_token_alone_and_keeps_its_statistics():
    norm = norm_of("batchnorm")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(draw(0, 1, 1, WIDTH))
    assert norm.running_var.isfinite().all()
    assert norm.eval()(draw(0, 1, 1, WIDTH)).isfinite().all()


FALSE = [  # each differs from the file's in one sign, one number or one place
    ("rmsnorm", "gain * x / sqrt(mean(x**2) - eps)"),
    ("rmsnorm", "gain * x / sqrt(mean(x**2))"),
    ("rmsnorm", "gain * x / sqrt(sum(x**2) + eps)"),
    ("rmsnorm", "x / sqrt(mean(x**2) + eps)"),
    ("rmsnorm", "gain * (x - mean(x)) / sqrt(mean(x**2) + eps)"),
    ("layernorm", "gain * (x + mean(x)) / sqrt(var(x) + eps) + bias"),
    ("layernorm", "gain * ((x - mean(x)) / sqrt(var(x) + eps) + bias)"),
    ("layernorm", "gain * (x - mean(x)) / (sqrt(var(x)) + eps) + bias"),
    ("rmsnorm_1p", "(1 - offset) * x / sqrt(mean(x**2) + eps)"),
    ("prmsnorm", "gain * x / sqrt(mean(x**2) + eps)"),
    ("scalenorm", "gain * x / norm(x - mean(x))"),
    ("dyt", "gain * tanh(x) + bias"),
    ("derf", "gain * erf(alpha * x - shift) + bias"),
    ("seednorm", "(gain + alpha * tanh(sum(beta * x))) * x / sqrt(mean(x**2)) + eps"),
    ("group_rmsnorm", "gain * x / sqrt(mean(x**2) + eps)"),
    ("preaffine", "gain * scale * x / sqrt(mean(x**2) + eps)"),
    ("gatednorm", "gain * x / sqrt(mean(x**2) + eps)"),
    ("gatednorm", "x * sigmoid(product(gate_up, silu(product(gate_down, x))))"),
    ("bhyt", "gain * tanh(bound * x / sqrt(mean(x**2) + eps))"),
    ("batchnorm", "gain * (x - mean(x)) / sqrt(var(x) + eps) + bias"),
]


@pytest.mark.parametrize(("name", "formula"), FALSE)
def test_a_formula_that_is_not_what_the_class_computes_is_refused(name, formula):
    spec = SPECS[name]
    with pytest.raises(ValueError, match=r"is not what the norm \w+ computes: on a random token"):
        check_formula(spec["type"], formula, arguments(name))


@pytest.mark.parametrize("name", SPECS)
def test_the_formula_of_every_norm_is_what_its_class_computes(name):
    check_formula(SPECS[name]["type"], SPECS[name]["formula"], arguments(name))


def test_a_typed_gain_or_bias_is_still_the_norm_of_the_formula():
    for typed in ({"gain": "offset"}, {"gain": "none"}, {"bias": True}):
        own = {**arguments("rmsnorm_bias"), **typed}
        check_formula("rmsnorm", SPECS["rmsnorm_bias"]["formula"], own)


@pytest.mark.parametrize("held", ["tensor", "tensor with a gradient", "buffer"])
def test_a_formula_that_names_a_tensor_which_nothing_trains_is_refused(held, monkeypatch):
    class Plain(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            gain = torch.ones(width, requires_grad=held == "tensor with a gradient")
            if held == "buffer":
                self.register_buffer("gain", gain)
            else:
                self.gain = gain

        def forward(self, x):
            return self.gain * x

    name = f"plain {held}"  # what was checked once is remembered by name
    monkeypatch.setitem(NORMS, name, Plain)
    refusal = rf"{name}.gain is a plain tensor, .*: write self.gain = nn.Parameter\(\.\.\.\)"
    with pytest.raises(ConfigError, match=refusal):
        check_formula(name, "gain * x", {})
    check_formula(name, "x", {})  # which does not say that anything is trained


def test_a_plugins_norm_is_refused_where_its_formula_is_false_and_nothing_is_written(
    tmp_path, monkeypatch
):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from transformer_norms.norms import NORMS\n"
        '@NORMS("peak")\n'
        "class Peak(nn.Module):\n"
        "    def __init__(self, width: int) -> None:\n"
        "        super().__init__()\n"
        "        self.gain = nn.Parameter(torch.ones(width))\n"
        "    def forward(self, x):\n"
        "        return self.gain * x / x.abs().sum(-1, keepdim=True)\n"
    )
    folder = tmp_path / "configs" / "norm"
    folder.mkdir(parents=True)
    (folder / "peak.yaml").write_text("type: peak\nformula: gain * x / sum(abs(x))\n")
    (folder / "untrue.yaml").write_text("type: peak\nformula: gain * x / mean(abs(x))\n")
    monkeypatch.chdir(tmp_path)
    assert compose([f"plugins={tmp_path}", "norm=peak"]).norm.type == "peak"
    with pytest.raises(ConfigError, match=r"norm\.formula: 'gain \* x / mean\(abs\(x\)\)' is not"):
        compose([f"plugins={tmp_path}", "norm=untrue"])
    assert not (tmp_path / "runs").exists()
