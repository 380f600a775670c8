"""Every norm against the formula of its YAML, torch's own, finite differences, and its laws.

Whatever lies in configs/norm is tested: a new YAML brings its tests by its formula and its type.
"""

import ast
import copy
import inspect
import itertools
import pydoc
import re
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from plugin_folders import write_plugins
from tiny_models import drawn, seeded

from transformer_norms import norms
from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Epsilon
from transformer_norms.names import folder_of_configs
from transformer_norms.norms import NORMS, NOT_ARGUMENTS
from transformer_norms.norms.stated import check_formula
from transformer_norms.validation import check, parameters

FILES = sorted((folder_of_configs() / "norm").rglob("*.yaml"))
SPECS = {file.stem: read_config_file(file) for file in FILES}
NAMES = [name for name in SPECS if name != "none"]
CAUSAL = [name for name in NAMES if getattr(NORMS[SPECS[name]["type"]], "causal", True)]
WIDTH = 24


def of_type(*types):
    return [name for name in NAMES if SPECS[name]["type"] in types]


DIVIDED = "rmsnorm prmsnorm scalenorm l2norm group_rmsnorm preaffine gatednorm bhyt"
DIVIDED = of_type(*DIVIDED.split())
every = pytest.mark.parametrize("name", NAMES)


def arguments(name):
    return {key: value for key, value in SPECS[name].items() if key not in NOT_ARGUMENTS}


def norm_of(name, width=WIDTH, *, trained=True, **changed):
    """The YAML's norm in float64, its parameters moved off their starts unless told otherwise."""
    norm = NORMS[SPECS[name]["type"]](width, **{**arguments(name), **changed}).double()
    draws = {"generator": seeded(1), "dtype": torch.double}
    for parameter in norm.parameters() if trained else ():
        parameter.data += 0.5 * torch.randn(parameter.shape, **draws)
    return norm


def draw(seed, *shape):
    return drawn(*(shape or (3, 5, WIDTH)), seed=seed)


def same(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def mean(x):
    return x.mean(-1, keepdim=True)


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
    "group_mean": lambda x, n: torch.cat([mean(y).expand(y.shape) for y in x.chunk(n, -1)], -1),
    "product": lambda matrix, x: torch.einsum("rc,...c->...r", matrix, x),
    "batch_mean": lambda x: x.flatten(0, -2).mean(0),
    "batch_var": lambda x: x.flatten(0, -2).var(0, unbiased=False),
}


def named(norm):
    """The parameters of a norm as its formula names them: a matrix by the name of its module."""
    return {key.removesuffix(".weight"): p for key, p in norm.named_parameters()}


def by_formula(name, norm, x):
    words = WORDS | arguments(name) | {key: p.to(x.dtype) for key, p in named(norm).items()}
    return eval(SPECS[name]["formula"], {"__builtins__": {}}, words | {"x": x})


LEARNED = ("gain", "bias", "rank")  # settings by which a norm has a parameter
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
    ("kind", "setting", "line"),
    [
        ("RMSNorm", {"eps": -1}, "eps: -1 is not allowed; it should be greater"),
        ("RMSNorm", {"gain": "all"}, "gain: 'all' is not allowed; allowed are l"),
        ("PRMSNorm", {"share": 3}, "share: 3 is not allowed; it should be less"),
        ("DyT", {"alpha_init": "a"}, "alpha_init: 'a' is not allowed; it should be "),
        ("LayerNorm", {"epss": 1}, "epss: did you mean 'eps'? there is no key"),
    ],
)
def test_a_norm_built_in_python_refuses_a_wrong_setting_in_one_line(kind, setting, line):
    with pytest.raises(ConfigError) as caught:
        getattr(norms, kind)(64, **setting)
    assert str(caught.value).startswith(f"{kind}.{line}")


@pytest.mark.parametrize("name", sorted({spec["type"] for spec in SPECS.values()} - {"none"}))
def test_a_norm_shows_its_settings_and_help_names_the_kinds_of_its_values(name):
    norm, settings = NORMS[name](64), parameters(NORMS[name]).items()
    stated = [f"{key}={one.default!r}" for key, one in settings if key != "width"]
    assert ", ".join(["width=64", *stated]) in repr(norm)
    assert repr(copy.deepcopy(norm)) == repr(norm)
    head = pydoc.plain(pydoc.render_doc(NORMS[name])).split(" |  \n")[0]
    assert not re.search("Validator|Strict", head)


def test_a_norm_of_the_users_own_is_checked_and_one_of_torch_stays_as_it_is(monkeypatch):
    class Checked(norms.RMSNorm):
        def __init__(self, width: int, *, eps: Epsilon = 0.5) -> None:
            super().__init__(width, eps=eps)

    class Kept(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.settings = torch.nn.Parameter(torch.ones(width))

        def extra_repr(self) -> str:
            return "mine"

    for name, kind in {"checked": Checked, "kept": Kept, "torchs": torch.nn.LayerNorm}.items():
        monkeypatch.delitem(NORMS, name, raising=False)  # which is undone in the end
        NORMS(name)(kind)
    assert repr(Checked(8)) == "Checked(width=8, eps=0.5)"
    with pytest.raises(ConfigError, match=r"^Checked.eps: -1 is not allowed"):
        Checked(8, eps=-1)
    assert (repr(Kept(8)), len(list(Kept(8).parameters()))) == ("Kept(mine)", 1)
    assert "settings" not in repr(torch.nn.LayerNorm(8))
    assert not hasattr(torch.nn.LayerNorm.__init__, "__wrapped__")


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


# torch's own, and the authors' arithmetic


def rms_norm(x, gain=None, offset=0, bias=0, *, eps, **_):
    weight = None if gain is not None and len(gain) == 1 else gain
    y = F.rms_norm(x, x.shape[-1:], weight, eps) * (1 if weight is gain else gain)
    return y * (1 + offset) + bias


def layer_norm(x, gain=None, bias=None, offset=0, *, eps, **_):
    gain = 1 + offset if torch.is_tensor(offset) else gain
    return F.layer_norm(x, x.shape[-1:], gain, bias, eps)


def batch_norm(x, gain, bias, *, eps, **_):
    return F.batch_norm(x.flatten(0, -2), None, None, gain, bias, True, eps=eps).view_as(x)


def l2_norm(x, gain=1, *, eps):
    return F.normalize(x, dim=-1, eps=eps) * gain


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


REFERENCES = {"rmsnorm": rms_norm, "layernorm": layer_norm, "batchnorm": batch_norm}
REFERENCES |= {"l2norm": l2_norm, "scalenorm": l2_norm, "gatednorm": gated}
REFERENCES |= {"preaffine": pre_affine, "bhyt": bhyt_star}


@pytest.mark.parametrize("name", of_type(*REFERENCES))
def test_a_norm_and_every_gradient_are_those_of_torch_or_of_the_authors_arithmetic(name):
    norm, x, of = norm_of(name), (draw(0) * 7 + 2).requires_grad_(), draw(1)
    inputs, own = (x, *norm.parameters()), named(norm)
    settings = {key: value for key, value in arguments(name).items() if key not in LEARNED}
    expected = REFERENCES[SPECS[name]["type"]](x, **own, **settings)
    same(norm(x), expected, 1e-13)
    found = torch.autograd.grad(norm(x), inputs, of)
    same(found, torch.autograd.grad(expected, inputs, of), 1e-12)


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
    norm, x = norm_of(name).float(), torch.full((2, 3, WIDTH), float(value), requires_grad=True)
    assert norm(x).isfinite().all()
    for graph in (False, True):
        grads = torch.autograd.grad(norm(x).sum(), (x, *norm.parameters()), create_graph=graph)
        assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("name", DIVIDED)
def test_second_derivatives_at_zero_are_finite(name):
    norm, x = norm_of(name), torch.zeros(2, WIDTH, dtype=torch.double, requires_grad=True)
    (grad,) = torch.autograd.grad((norm(x) * draw(0, 2, WIDTH)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    assert second.isfinite().all()


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
    assert norm.running_mean[:2].ne(0).tolist() == [False, True]


def test_batchnorm_refuses_one_token_alone_and_keeps_its_statistics():
    norm = norm_of("batchnorm")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(draw(0, 1, 1, WIDTH))
    assert norm.running_var.isfinite().all()
    assert norm.eval()(draw(0, 1, 1, WIDTH)).isfinite().all()


def changed(formula, number):
    """The formula with one sign or one operation in the place of its opposite, or with 1 in the
    place of one name; None where its part of this number has no such change."""
    tree = ast.parse(formula, mode="eval")
    part = [*ast.walk(tree)][number]
    opposites = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)}
    called |= {"x", "gate_up", "gate_down"}
    if isinstance(part, ast.BinOp) and type(part.op) in opposites:
        part.op = opposites[type(part.op)]()
    elif isinstance(part, ast.Name) and part.id not in called:
        part.id = "1"
    else:
        return None
    return ast.unparse(tree)


@pytest.mark.parametrize("name", SPECS)
def test_the_formula_of_a_norm_is_what_its_class_computes_and_one_with_a_change_is_refused(name):
    kind, formula = SPECS[name]["type"], SPECS[name]["formula"]
    check_formula(kind, formula, arguments(name))
    for number in range(len([*ast.walk(ast.parse(formula, mode="eval"))])):
        wrong = changed(formula, number)
        if wrong and name != "layernorm_eps12":  # whose eps counts for no token
            with pytest.raises(ValueError, match=r"is not what the norm \w+ computes: on a random"):
                check_formula(kind, wrong, arguments(name))


def test_a_typed_gain_or_bias_is_still_the_norm_of_the_formula():
    for typed in ({"gain": "offset"}, {"gain": "none"}, {"bias": True}):
        own = {**arguments("rmsnorm_bias"), **typed}
        check_formula("rmsnorm", SPECS["rmsnorm_bias"]["formula"], own)


@pytest.mark.parametrize("held", ["tensor", "tensor with a gradient", "buffer", "setting"])
def test_a_formula_that_names_a_tensor_which_nothing_trains_is_refused(held, monkeypatch):
    class Plain(torch.nn.Module):
        def __init__(self, width, *, gain=0.5):
            super().__init__()
            value = torch.full((width,), gain, requires_grad=held == "tensor with a gradient")
            if held in ("buffer", "setting"):
                self.register_buffer("gain", value)
            else:
                self.gain = value

        def forward(self, x):
            return self.gain * x

    name = f"plain {held}"  # what was checked once is remembered by name
    monkeypatch.setitem(NORMS, name, Plain)
    check_formula(name, "0.5 * x", {})  # which does not say that anything is trained
    refusal = rf"{name}.gain is a plain tensor, .*: write self.gain = nn.Parameter\(\.\.\.\)"
    # A number of the norm's file may be kept in a buffer.
    setting = held == "setting"
    with nullcontext() if setting else pytest.raises(ConfigError, match=refusal):
        check_formula(name, "gain * x", {"gain": 0.5} if setting else {})


def test_a_plugins_norm_is_refused_where_its_formula_is_false_and_nothing_is_written(
    tmp_path, monkeypatch
):
    file = "type: l2norm\neps: 1e-6\nsource: here\nformula: "
    wrong = "2 * x / max(norm(x), eps)"
    files = {"norm/twice": file + wrong, "norm/once": f"{file}{wrong[4:]}"}
    plugins = write_plugins(tmp_path, "", files)
    monkeypatch.chdir(tmp_path)
    assert compose([plugins, "norm=once"]).norm.type == "l2norm"
    with pytest.raises(ConfigError, match=re.escape(f"norm.formula: '{wrong}' is not")):
        compose([plugins, "norm=twice"])
    assert not (tmp_path / "runs").exists()
