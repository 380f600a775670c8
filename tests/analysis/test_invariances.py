"""What norms are found to be invariant to: the papers' tables, norms written out, planted norms."""

import pytest
import torch
from omegaconf import OmegaConf

from transformer_norms.analysis.invariance_laws import LAWS, draw_layer, measure_norms
from transformer_norms.analysis.invariances import VERDICTS, number, outcome
from transformer_norms.errors import ConfigError
from transformer_norms.names import distinct_norms, option_files
from transformer_norms.norms import NORMS

KEYS = [law.key for law in LAWS]

# Ba et al. 2016, Table 1, and Zhang & Sennrich 2019, Table 1, have the columns
#     W re-scaled, W re-centred, a row re-scaled, data re-scaled, data re-centred, a case re-scaled;
# the other columns follow from the formulas, as do the norms below:
#   W negated      z / length(z) turns its sign, and none of these is even: no.
#   W + b 1^T      z_i + b_i (1^T x): neither a constant over neurons nor one over tokens: no.
#   z + c 1        moves the mean over neurons (layernorm) and over tokens (batchnorm): yes there.
#   odd            all but a bias, which is drawn at random, is: no where there is one.
#   size           var / var and ms / ms are 1 for each token; batchnorm's only over tokens.
#   later          batchnorm's mean over tokens holds the last one, its running averages do not.
#   prmsnorm       the size of its output is that of z beyond the first coordinates.
#   dyt, derf      one injective function of each coordinate: all that moves z moves y.
#   gatednorm      a function of rmsnorm's output, and silu is not odd; its gate makes sizes unlike.
#   bhyt           a function of rmsnorm's output, odd; tanh makes sizes unlike.
#   seednorm       the factor gain + alpha tanh(beta^T z) of each coordinate changes with beta^T z.
YES = {
    "batchnorm": "weights_scaled row_scaled data_scaled data_shifted shifted later_evaluation",
    "layernorm": "weights_scaled weights_recentred data_scaled token_scaled shifted size "
    "later_training later_evaluation",
    "rmsnorm": "weights_scaled data_scaled token_scaled odd size later_training later_evaluation",
    "prmsnorm": "weights_scaled data_scaled token_scaled odd later_training later_evaluation",
    "dyt": "later_training later_evaluation",
    "none": "odd later_training later_evaluation",
}
EPS = {"rmsnorm": 1e-6}
FEW = ("batchnorm", "layernorm", "rmsnorm", "l2norm", "dyt")
YES |= dict.fromkeys("l2norm scalenorm preaffine ssnorm group_rmsnorm".split(), YES["rmsnorm"])
YES |= {"derf": YES["dyt"], "seednorm": YES["dyt"], "bhyt": YES["prmsnorm"]}
YES["gatednorm"] = YES["prmsnorm"].replace("odd ", "")


def by_norm(*typed):
    """The rows of each norm, by the key of their law."""
    norms = {}
    for row in measure_norms(typed):
        norms.setdefault(row["norm"], {})[row["transformation"]] = row
    return norms


def held(rows):
    return {key for key, row in rows.items() if row["verdict"] == "yes"}


@pytest.fixture(scope="module")
def rows():
    return by_norm(f"norm={','.join(YES)}")


@pytest.mark.parametrize("name", YES)
def test_a_norm_is_invariant_to_what_the_papers_and_its_formula_say_and_to_nothing_else(name, rows):
    assert list(rows[name]) == KEYS
    assert held(rows[name]) == set(YES[name].split())
    for row in rows[name].values():  # no verdict hangs on where the line is drawn
        assert row["change_without_eps"] < 1e-13 or row["change_without_eps"] > 1e-2


def root_mean_square(z, dim):
    return (z**2).mean(dim, keepdim=True)


def literal(name, z, gain, bias, eps):
    if name == "rmsnorm":
        return gain * z / (root_mean_square(z, -1) + eps).sqrt()
    dims = -1 if name == "layernorm" else (0, 1)
    centred = z - z.mean(dims, keepdim=True)
    return gain * centred / (root_mean_square(centred, dims) + eps).sqrt() + bias


def literal_changes(name, eps):
    """By the key of a law, with gain = 1 + half a draw and then bias = half a draw."""
    layer, generator = draw_layer(), torch.Generator().manual_seed(0)
    x, w = layer.x, layer.weight
    gain = 1 + 0.5 * torch.randn(64, generator=generator, dtype=torch.double)
    bias = 0.5 * torch.randn(64, generator=generator, dtype=torch.double)

    def of(z, gain=gain, bias=bias):
        return literal(name, z, gain, bias, eps)

    y = of(x @ w.T)

    def moved(*others):
        return max(float((of(z) - y).abs().max() / (y**2).mean() ** 0.5) for z in others)

    one, rows, tokens = torch.ones(64, 1).double(), [], []
    for delta in (1 / 3, 3):
        row, token = torch.ones(64, 1).double(), torch.ones(4, 16, 1).double()
        row[0], token[0, 0] = delta, delta
        rows.append(x @ (row * w).T)
        tokens.append((token * x) @ w.T)
    later = torch.cat((x[:, :-1], layer.last[:, None]), 1)
    leak = (of(later @ w.T) - y)[:, :-1].abs().max() / (y[:, :-1] ** 2).mean() ** 0.5
    sizes = (of(x @ w.T, gain=1.0, bias=0.0) ** 2).mean(-1)
    return {
        "weights_scaled": moved(x @ (3 * w).T, x @ (w / 3).T),
        "weights_negated": moved(x @ (-3 * w).T, x @ (w / -3).T),
        "weights_recentred": moved(x @ (w + one @ layer.g[None]).T),
        "weights_shifted": moved(x @ (w + layer.b[:, None] @ torch.ones(1, 48).double()).T),
        "row_scaled": moved(*rows),
        "data_scaled": moved((3 * x) @ w.T, (x / 3) @ w.T),
        "data_shifted": moved((x + layer.c) @ w.T),
        "token_scaled": moved(*tokens),
        "shifted": moved(x @ w.T + 2),
        "odd": float((-of(-x @ w.T) - y).abs().max() / (y**2).mean() ** 0.5),
        "size": float((sizes / sizes.mean() - 1).abs().max()),
        "later_training": float(leak),
    }


@pytest.mark.parametrize("name", ["batchnorm", "layernorm", "rmsnorm"])
def test_a_change_is_that_of_the_norm_and_the_transformation_written_out(name, rows):
    for column, eps in (("change_without_eps", 0), ("change_with_eps", EPS.get(name, 1e-5))):
        found = {key: row[column] for key, row in rows[name].items() if key in KEYS[:-1]}
        assert found == pytest.approx(literal_changes(name, eps), rel=1e-6, abs=1e-13)
        assert {row["eps"] for row in rows[name].values()} == {EPS.get(name, 1e-5)}


def test_a_norm_without_eps_has_one_number_and_each_learns_what_its_formula_has(rows):
    every = [row for own in rows.values() for row in own.values()]
    without = {row["norm"] for row in every if row["eps"] is None}
    assert without == {row["norm"] for row in every if row["change_with_eps"] is None}
    assert without == {"dyt", "derf", "none"}
    learned = dict.fromkeys(("none", "l2norm"), "0") | {"scalenorm": "1", "dyt": "2d + 1"}
    learned |= {"derf": "2d + 2", "seednorm": "3d", "rmsnorm": "d", "batchnorm": "2d"}
    assert {name: rows[name]["odd"]["learned"] for name in learned} == learned
    assert rows["l2norm"]["odd"]["mean_square"] == pytest.approx(1 / 64)
    assert rows["scalenorm"]["odd"]["mean_square"] == pytest.approx(1)


def test_by_default_every_norm_is_asked_but_those_that_differ_in_eps_alone():
    chosen, kept = distinct_norms(), {}
    for name, file in option_files("norm").items():
        held = OmegaConf.to_container(OmegaConf.load(file))
        kept[name] = str({k: v for k, v in held.items() if k not in ("eps", "source")})
    assert {"layernorm", "rmsnorm", "batchnorm", "none"} <= set(chosen)
    assert not {"layernorm_eps6", "rmsnorm_eps5", "rmsnorm_glm4"} & set(chosen)
    assert len({kept[name] for name in chosen}) == len(chosen)
    assert {kept[name] for name in chosen} == set(kept.values())


CLASS = """
@NORMS("{name}")
class {class_name}(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        return {formula}
"""
PLUGINS = {
    "greatest": "x / x.abs().amax(-1, keepdim=True)",
    "overtime": "x - x.mean(1, keepdim=True)",
    # invariant to larger, not to smaller, for tokens that are long already
    "clamped": "x / x.norm(dim=-1, keepdim=True).clamp(min=4)",
    "nought": "0 * x",
    "narrow": "x.float()",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / "configs" / "norm").mkdir(parents=True)
    imports = "from torch import nn\nfrom transformer_norms.norms import NORMS\n"
    classes = [CLASS.format(name=name, class_name=name.title(), formula=formula)
               for name, formula in PLUGINS.items()]  # fmt: skip
    (folder / "planted.py").write_text("\n".join([imports, *classes]))
    for name in PLUGINS:
        (folder / "configs" / "norm" / f"{name}.yaml").write_text(f"type: {name}\n")
    yield folder
    for name in PLUGINS:  # other files test which norms there are
        NORMS.pop(name, None)


def test_a_planted_norm_gets_the_verdicts_of_its_formula(planted):
    """max|x| scales with x and is the same for -x; greatest + c is not greatest; a token's mean
    square is not fixed by its largest coordinate."""
    norms = by_norm(f"plugins={planted}", "norm=greatest,overtime,clamped")
    greatest, over_time, clamped = norms.values()
    of_a_token = {"odd", "later_training", "later_evaluation"}
    scales = {"weights_scaled", "data_scaled", "token_scaled"}
    assert held(greatest) == scales | of_a_token
    # A mean over each sequence is linear: odd, free of what is added to all tokens, and a leak.
    assert held(over_time) == {"odd", "data_shifted", "shifted"}
    for mode in ("training", "evaluation"):
        assert over_time[f"later_{mode}"]["change_without_eps"] > 0.1
    assert held(clamped) == of_a_token | {"size"}  # all tokens are long


@pytest.mark.parametrize(
    ("name", "said"), [("nought", "zero or not finite"), ("narrow", "the dtype")]
)
def test_what_is_no_norm_is_refused_by_its_name(name, said, planted):
    with pytest.raises(ConfigError, match=f"norm={name}: .*{said}"):
        measure_norms([f"plugins={planted}", f"norm={name}"])


def test_the_spreadsheet_has_the_digits_that_any_processor_finds(rows):
    few = [row for name in FEW for row in rows[name].values()]
    for written, row in zip(outcome(few).rows, few, strict=True):
        for key, value in row.items():
            exact = isinstance(value, float)
            assert written[key] == (pytest.approx(value, rel=1e-5, abs=1e-12) if exact else value)
        numbers = [number for number in written.values() if isinstance(number, float)]
        assert numbers == [float(f"{number:.6g}") for number in numbers]


def test_the_table_for_a_readme_puts_norms_with_the_same_answers_in_a_row(rows):
    few = outcome([row for name in FEW for row in rows[name].values()])
    heading, *lines = VERDICTS.table(few.rows).cells
    found = {line[0]: line[1:] for line in lines}
    assert "rmsnorm, l2norm" in found
    assert found["batchnorm"] == "yes no no no yes yes yes no yes no no no yes".split()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (3.02e-4, "3e-4"), (4e-15, "0"), (0.0891, "0.089"), (3.51, "3.5"), (123, "123")],
)
def test_a_number_is_shown_with_two_digits_at_most(value, shown):
    assert number(value) == shown
