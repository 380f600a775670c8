"""explain says what a config computes: numbers by hand, and every norm and factor of the model."""

import os
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from combinations import combined

from transformer_norms.config.building import build_model, build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.explain.__main__ import main, second_config
from transformer_norms.explain.anatomy import Factor
from transformer_norms.explain.explanation import explain
from transformer_norms.explain.text import difference_text, explanation_text
from transformer_norms.model.coefficient import LowRank
from transformer_norms.model.placement import Placement
from transformer_norms.names import AXES_OF_A_RUN, options
from transformer_norms.norms import NORMS

DEPTH, WIDTH, HEADS = 4, 16, 2
TINY = ("model=nano", f"model.width={WIDTH}", f"model.heads={HEADS}", f"model.depth={DEPTH}")
PLACEMENTS = options("placement")
VOCABULARY = 11
KINDS = tuple(kind for kind in NORMS.values() if isinstance(kind, type))
# Beside the default: gains of each head, other norms at q and k, a gate, a scale that is learned.
VARIED = {"norm": "dyt", "mlp": "swiglu", "embed": "layernorm", "final_norm": "scalenorm"}


@cache
def config_of(*typed, **chosen):
    return combined(*TINY, *typed, **chosen)


@cache
def explained(*typed, **chosen):
    return explain(config_of(*typed, **chosen), VOCABULARY, set(chosen))


@cache
def built(*typed, **chosen):
    """The model before its weights are drawn."""
    return build_uninitialized(config_of(*typed, **chosen), VOCABULARY)


def facts(explanation, title):
    """What a section says: (block, name) -> cells."""
    (section,) = [section for section in explanation.sections if section.title == title]
    return {(fact.block, fact.name): fact.cells for fact in section.facts}


# Numbers, each against a formula written here


def test_coefficients_are_numbers_for_this_depth():
    deepnorm = facts(explained(placement="deepnorm"), "Coefficients")
    formula, value, learned = deepnorm[2, "mlp a"]
    assert (formula, learned) == ("(2*N)**0.25", "no")
    assert float(value) == pytest.approx((2 * DEPTH) ** 0.25, rel=1e-3)
    lns = facts(explained(placement="lns"), "Coefficients")[3, "attention pre scale"]
    values = [float(value) for value in lns[1].split(", ")]
    assert values == pytest.approx([block**-0.5 for block in range(1, DEPTH + 1)], rel=1e-3)
    rezero = facts(explained(placement="rezero"), "Coefficients")[0, "attention b"]
    assert rezero == ("0", "0", "scalar, one for both sub-layers")
    ngpt = facts(explained(placement="ngpt"), "Coefficients")
    assert float(ngpt[0, "attention scale"][1]) == pytest.approx((WIDTH / HEADS) ** 0.5, rel=1e-3)
    assert ngpt[0, "attention a"] == ("1 - b", "0.95", "with b")
    usual = facts(explained(placement="pre"), "Coefficients")[0, "attention scale"]
    assert float(usual[1]) == pytest.approx((WIDTH / HEADS) ** -0.5, rel=1e-3)


def test_deviations_are_those_that_the_weights_are_drawn_with():
    scaled = facts(explained(placement="pre", init="scaled"), "Initialization")
    output = float(scaled[1, "attention output"][2].split()[0])
    assert output == pytest.approx(0.02 / (2 * DEPTH) ** 0.5, rel=1e-3)
    beta = facts(explained(placement="deepnorm"), "Initialization")[1, "mlp up"][2]
    gain = float(re.search(r"\((.*)\)", beta)[1])
    assert gain == pytest.approx((8 * DEPTH) ** -0.25, rel=1e-3)
    config = combined("model=nano", placement="pre", init="depth_scaled")
    model = build_model(config, VOCABULARY)
    said = facts(explain(config, VOCABULARY, set()), "Initialization")[1, "mlp down"][2]
    for block, number in zip(model.blocks, re.findall(r"([\d.]+) \(", said), strict=True):
        drawn = block.mlp.f.down.weight.std().item()
        assert drawn == pytest.approx(float(number), rel=0.05)


# The whole text. GOLDEN=write writes it anew

TEXTS = Path(__file__).parent / "texts"
COMMANDS = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text())


def explanation_of(words):
    """Without the numbers that are measured."""
    typed = [*TINY, *words.split()]
    keys = {word.partition("=")[0] for word in words.split()}
    explanation = explain(compose(typed, device="cpu"), VOCABULARY, keys)
    sections = [section for section in explanation.sections if section.title != "Start"]
    return replace(explanation, sections=sections)


def is_golden(name, text):
    file = TEXTS / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", COMMANDS["said"])
def test_an_explanation_is_this_text(name):
    is_golden(name, explanation_text(explanation_of(COMMANDS["said"][name])))


@pytest.mark.parametrize("name", COMMANDS["differences"])
def test_a_difference_is_this_text(name):
    one, two = map(explanation_of, COMMANDS["differences"][name])
    is_golden(f"against {name}", difference_text(one, two))


# Against the built model


def every_second(first):
    """Every second placement, the others nightly."""
    others = [pytest.mark.nightly]
    return [
        pytest.param(name, marks=others * (number % 2 != first))
        for number, name in enumerate(PLACEMENTS)
    ]


@pytest.mark.parametrize("placement", every_second(0))
def test_every_norm_of_the_built_model_is_listed_with_its_parameters(placement):
    chosen = {"placement": placement, **VARIED}
    listed = check_norms(built(**chosen), explained(**chosen).anatomy)
    sums = tuple(map(sum, zip(*listed.values(), strict=True)))
    assert facts(explained(**chosen), "Where norms stand")[None, "all"][-2:] == (sums or (0, 0))


@pytest.mark.parametrize("share", ["head", "per_head", "full", "l2"])
def test_norms_on_queries_and_few_keys_are_listed_with_their_parameters(share):
    typed, chosen = "model.kv_heads=1", {"qk_norm": share}
    check_norms(built(typed, **chosen), explained(typed, **chosen).anatomy)


def check_norms(model, anatomy):
    listed = {}
    for norm, block in anatomy.norms():
        name = norm.module if block is None else f"blocks.{block}.{norm.module}"
        listed[name] = norm.count, norm.count * norm.parameters
    there = {}
    for name, module in model.named_modules():
        if isinstance(module, KINDS):
            site = re.sub(r"\.(norm|heads\.\d+)(?=\.|$)", "", name)
            count, parameters = there.get(site, (0, 0))
            there[site] = count + 1, parameters + sum(p.numel() for p in module.parameters())
    assert listed == there
    return listed


@pytest.mark.parametrize("placement", every_second(1))
def test_every_factor_is_what_the_built_model_multiplies_by(placement):
    config = config_of(placement=placement)
    check_factors(build_uninitialized(config, VOCABULARY), explained(placement=placement).anatomy)


def check_factors(model, anatomy):
    """Each factor on the stream is what its module makes of ones."""
    one, zero = torch.ones(1, 1, WIDTH), torch.zeros(1, 1, WIDTH)
    for module in model.modules():
        if isinstance(module, LowRank):  # not drawn
            module.left.weight.data.zero_()
            module.right.weight.data.zero_()
    for i, block in enumerate(model.blocks):
        for name, part in anatomy.blocks[i].parts.items():
            sub_layer = getattr(block, name)
            a, b = (_value(part.factors.get(key)) for key in "ab")
            if "normed" in part.adds:  # ones, normed, are ones
                matrix, times = sub_layer.skip.normed.scale, _value(part.adds["normed"])
                torch.testing.assert_close(matrix(one), times * one)
                a += times
            torch.testing.assert_close(sub_layer.skip(one, zero, zero), a * one)
            torch.testing.assert_close(sub_layer.branch(one), b * one)
            earlier = {"start": (zero, one, zero), "x0": (zero, zero, one)}
            for stream, streams in earlier.items():
                added = _value(part.adds[stream]) if stream in part.adds else 0.0
                torch.testing.assert_close(sub_layer.skip(*streams), added * one)
            for site in ("pre", "out", "post"):
                scale = part.norms[site].scale if site in part.norms else None
                times = getattr(getattr(sub_layer, site), "scale", torch.nn.Identity())
                torch.testing.assert_close(times(one), _value(scale) * one)


def _value(factor: Factor | None) -> float:
    return 1.0 if factor is None else factor.value


def test_a_factor_inside_attention_or_the_mlp_is_what_the_built_model_multiplies_by():
    f = built(placement="ngpt", mlp="swiglu").blocks[1].attention.f
    parts = explained(placement="ngpt", mlp="swiglu").anatomy.blocks[1].parts
    mlp, scales = built(placement="ngpt", mlp="swiglu").blocks[1].mlp.f, parts["mlp"].factors
    chosen = {"placement": "normformer", "qk_norm": "l2"}
    own = built(**chosen).blocks[1].attention.f
    factors = explained(**chosen).anatomy.blocks[1].parts["attention"].factors
    for module, factor, shape in (
        (f.q.scale, parts["attention"].norms["q"].scale, (HEADS, WIDTH // HEADS)),
        (mlp.up_scale, scales["hidden_scale"], (mlp.up.out_features,)),
        (mlp.gate_scale, scales["gate"], (mlp.up.out_features,)),
        (own.head_scale, factors["head_scale"], (HEADS, WIDTH // HEADS)),
        (own.scale, factors["attention_scale"], (HEADS, WIDTH // HEADS)),
    ):
        one = torch.ones(1, 1, *shape)
        torch.testing.assert_close(module(one), factor.value * one)


def test_every_parameter_of_the_built_model_is_counted():
    for placement in ("pre", "ngpt", "normformer", "parallel", "residual_dual"):
        model = built(placement=placement)
        counted = facts(explained(placement=placement), "Parameters, rates and decay")[None, "all"]
        assert counted[:2] == (
            len(list(model.parameters())),
            sum(p.numel() for p in model.parameters()),
        )


def test_the_equation_is_the_placements_own():
    for placement in PLACEMENTS:
        said = facts(explained(placement=placement), "Equations")
        stated = Placement(**config_of(placement=placement).placement)
        for i in range(DEPTH):
            for part, text in stated.equation(i, DEPTH).items():
                assert part == "end" or said[i, part] == (text,), placement
    assert "blocks 0-3 mlp:  x + norm(f(norm(x)))" in explanation_text(
        explained(placement="sandwich")
    )


# Two beside each other


SECOND = [
    ("placement=pre model=nano", "placement=post", "model=nano placement=post"),
    ("norm=dyt norm.alpha=0.7 model.depth=3", "norm=none", "model.depth=3 norm=none"),
    ("placement.equation=x+f(x) model=nano", "placement=pre", "model=nano placement=pre"),
    ("placement=post", "placement.equation=x+f(x)", "placement=post placement.equation=x+f(x)"),
    ("norm=none", "config=runs/a", "config=runs/a"),
    ("config=runs/a model.depth=3", "norm=none", "config=runs/a model.depth=3 norm=none"),
    ("config=runs/a norm=none", "preset=gpt2", "norm=none preset=gpt2"),
    ("norm=none", "", ""),
]


@pytest.mark.parametrize(("first", "against", "second"), SECOND)
def test_against_changes_in_the_first_config_only_what_is_typed(first, against, second):
    assert second_config(first.split(), against.split()) == second.split()


# The command


def run(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_writes_the_figure_and_nothing_else(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "placement=hybrid", "model=nano", "--svg", "hybrid.svg")
    assert (code, err) == (0, "")
    assert out.startswith("placement=hybrid norm=rmsnorm model=nano\n")
    assert [file.name for file in tmp_path.iterdir()] == ["hybrid.svg"]
    ElementTree.parse("hybrid.svg")
    code, out, _ = run(capsys, "model=nano", "--vocab", "7", "--against", "model=nano", "norm=none")
    assert code == 0
    assert "B  choose" not in out
    assert "placement" not in out.partition("Where norms stand")[0]
    code, out, _ = run(capsys, "model=nano", "model.depth=3", "--against", "placement=post")
    assert code == 0
    assert out.startswith(
        "A  model=nano model.depth=3\nB  model=nano model.depth=3 placement=post\n\nEquations\n"
    )
    assert "  blocks 0-2 mlp:  norm(x + f(x))\n" in out.partition("\nB\n")[2]
    assert "model." not in out.partition("Equations")[2]
    code, out, _ = run(capsys, "model=nano", "--against")
    assert out.startswith("A  model=nano\nB  the defaults\n\n")


def test_the_largest_model_is_explained_without_its_weights(capsys):
    code, out, _ = run(capsys, "model=1558m", "tokenizer=gpt2")
    assert code == 0
    assert "50257 x 1600" in out
    assert re.search(r"all +\d+ +1,55\d,\d{3},\d{3}", out)


ERRORS = [
    (["placement=prre"], "did you mean 'pre'?"),
    (["placement=pre", "--against", "norm=rmsnrm"], "did you mean 'rmsnorm'?"),
    (["--vob", "3"], "--vob"),
    (["--vocab", "x"], "--vocab"),
    (["--vocab", "0"], "--vocab 0: at least 1"),
    (["--svg", "nowhere/x.svg", "model=nano"], "nowhere/x.svg: No such file"),
    (["--svg", "x.svg", "--against", "norm=none"], "--svg draws one config"),
    (["--list", "norm=none"], "--list goes with nothing else"),
]


@pytest.mark.parametrize(("arguments", "line"), ERRORS)
def test_an_error_is_one_line_and_exit_code_2(arguments, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err
    assert list(tmp_path.iterdir()) == []


def test_the_list_names_every_choice(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0
    for part in re.split(r"\n\n", out):
        axis = part.splitlines()[0].removesuffix("=")
        assert re.findall(r"^  (\w+) ", part, re.MULTILINE) == options(axis)
    assert re.findall(r"^(\w+)=$", out, re.MULTILINE) == AXES_OF_A_RUN
    assert max(len(line) for line in out.splitlines()) <= 80


def test_what_is_not_verified_is_short_at_the_start_of_a_run_and_whole_once_in_explain():
    config = compose(["model=nano", "placement=geonorm"])
    (line,) = (line for line in config.warnings if "is not verified" in line)
    assert line.startswith("placement=geonorm is not verified: the angle (its limit pi/4")
    assert line.endswith(" ... (explain has the whole)")
    assert len(line) < 200
    text = " ".join(explanation_text(explain(config, VOCABULARY, set())).split())
    assert text.count("the angle (its limit pi/4") == 1
    assert " ".join(config.placement.unverified.split()) in text
