"""explain says what a config computes: numbers by hand, and every norm and factor of the model."""

import re
import xml.etree.ElementTree as ElementTree
from functools import cache

import pytest
import torch
from combinations import changed, combined

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


def test_what_auto_came_to_names_who_chose():
    def chosen(**words):
        return facts(explained(**words), "What auto became")

    post = chosen(placement="post")
    assert post[None, "final_norm"][0] == "none"
    assert "ends in a norm" in post[None, "final_norm"][1]
    scale = ("sqrt(d)", "init=transformer2017, which brings it")
    assert post[None, "architecture.embed_scale"] == scale
    t5 = chosen(init="t5")[None, "architecture.logit_scale"]
    assert t5 == ("1/sqrt(d)", "init=t5, which brings it")
    assert "without a norm" in chosen(placement="pre")[None, "final_norm"][1]
    assert chosen(final_norm="none")[None, "final_norm"] == ("none", "you typed it")
    dyt = chosen(norm="dyt")[None, "architecture.embed_scale"]
    assert dyt == ("a learned scalar from sqrt(d)", "norm=dyt, which brings it")
    unit = chosen(qk_norm="l2")[None, "architecture.attention_scale"][1]
    assert "want a learned scale" in unit
    preset = explain(compose(["preset=gpt2", "model=nano"]), VOCABULARY, {"preset"})
    of_preset = facts(preset, "What auto became")
    assert of_preset[None, "init"] == ("gpt2", "preset=gpt2")
    assert of_preset[None, "architecture.tied"] == ("true", "preset=gpt2")


def test_norms_are_decayed_where_that_is_typed():
    assert facts(explained(), "Parameters, rates and decay")[None, "norms"][-1] == "no"
    typed = explained("optimizer.decay_norms=true", "optimizer.weight_decay=0.3")
    assert facts(typed, "Parameters, rates and decay")[None, "norms"][-1] == "0.3"
    ngpt = facts(explained(placement="ngpt"), "Parameters, rates and decay")
    assert ngpt[None, "matrices"][-1] == "no"


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
    assert facts(explained(**chosen), "Where norms are")[None, "all"][-2:] == (sums or (0, 0))


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
        for name, part in anatomy.blocks[i].items():
            sub_layer = getattr(block, name)
            a, b = (_value(part.factors.get(key)) for key in "ab")
            if "normed" in part.plan.adds:  # ones, normed, are ones
                matrix, times = sub_layer.skip.normed.scale, _value(part.factors.get("normed"))
                torch.testing.assert_close(matrix(one), times * one)
                a += times
            torch.testing.assert_close(sub_layer.skip(one, zero, zero), a * one)
            torch.testing.assert_close(sub_layer.branch(one), b * one)
            earlier = {"start": (zero, one, zero), "x0": (zero, zero, one)}
            for stream, streams in earlier.items():
                added = _value(part.factors.get(stream)) if stream in part.plan.adds else 0.0
                torch.testing.assert_close(sub_layer.skip(*streams), added * one)
            for site in ("pre", "out", "post"):
                scale = part.factors.get(f"{site}.scale")
                times = getattr(getattr(sub_layer, site), "scale", torch.nn.Identity())
                torch.testing.assert_close(times(one), _value(scale) * one)


def _value(factor: Factor | None) -> float:
    return 1.0 if factor is None else factor.value


def test_a_factor_inside_attention_or_the_mlp_is_what_the_built_model_multiplies_by():
    f = built(placement="ngpt", mlp="swiglu").blocks[1].attention.f
    parts = explained(placement="ngpt", mlp="swiglu").anatomy.blocks[1]
    mlp, scales = built(placement="ngpt", mlp="swiglu").blocks[1].mlp.f, parts["mlp"].factors
    chosen = {"placement": "normformer", "qk_norm": "l2"}
    own = built(**chosen).blocks[1].attention.f
    factors = explained(**chosen).anatomy.blocks[1]["attention"].factors
    for module, factor, shape in (
        (f.q.scale, parts["attention"].factors["q.scale"], (HEADS, WIDTH // HEADS)),
        (mlp.up_scale, scales["hidden_scale"], (mlp.up.out_features,)),
        (mlp.gate_scale, scales["gate"], (mlp.up.out_features,)),
        (own.head_scale, factors["head_scale"], (HEADS, WIDTH // HEADS)),
        (own.scale, factors["attention scale"], (HEADS, WIDTH // HEADS)),
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


def test_what_other_keys_put_inside_attention_stands_beside_the_equation():
    def inside(*typed, **chosen):
        return facts(explained(*typed, **chosen), "Equations")[0, "inside attention"]

    assert inside(qk_norm="full") == ("q=norm@full, k=norm@full (qk_norm=full)",)
    assert inside(qk_norm="l2") == ("q=l2norm, k=l2norm (qk_norm=l2)",)
    assert inside(v_norm="rmsnorm_np") == ("v=rmsnorm_np (v_norm=rmsnorm_np)",)
    for typed, said in (
        (["architecture.value_residual=0.5"], "v = 1 * v + 0.5 * v1, v1 the values of the first"),
        (
            ["architecture.value_embedding=i", "architecture.value_gate=12"],
            "v = v + 1 * sigmoid(W x[:12]) * E_v[tokens], a table of this block",
        ),
    ):
        found = facts(explained(*typed), "Equations")
        assert (0, "inside attention") not in found
        assert found[1, "inside attention"][0].startswith(said)
    (sinks,) = inside("attention=sinks")
    assert sinks.startswith("attention=sinks: exp(s) v / (exp(sink) + sum of exp(s))")
    (gate,) = inside("architecture.attention_gate=per_head")
    assert "sigmoid(W_g x), one gate for each head (architecture.attention_gate=per_head)" in gate
    sparse = facts(explained("architecture.activation_sparsity=0.95*(i==0)"), "Equations")
    assert sparse[0, "inside the mlp"][0].startswith("relu2(max(z - mean(z) - 1.645 * std(z), 0))")
    assert (1, "inside the mlp") not in sparse
    assert inside("architecture.attention_cap=30") == ("cap=30 (architecture.attention_cap)",)
    stand_in = inside(placement="hybrid", norm="dyt")
    assert stand_in == ("the norm at q, k, v is rmsnorm, since norm=dyt",)
    assert (0, "inside attention") not in facts(explained(placement="hybrid"), "Equations")


def test_a_formula_and_its_source_are_parted():
    explanation = explanation_text(explained(placement="mhc"))
    assert "of a token; mHC, Xie et al. 2025" in " ".join(explanation.split())


def test_a_matrix_of_low_rank_is_said_beside_the_equations():
    def text(**chosen):
        return " ".join(explanation_text(explained(**chosen)).split())

    assert "c * x is 1/sqrt(2) * (x + norm(B A x)), A a matrix of 64 rows" in text(
        placement="gemma3n"
    )
    assert "c * x is x + B A x, A" in text(placement="laurel")


def test_the_ends_of_the_model_are_two_equations():
    def of(*typed, **chosen):
        said = facts(explained(*typed, **chosen), "Equations")
        return said[None, "start"][0], said[None, "end"][0]

    capped = of("architecture.logit_cap=30", placement="post", position="learned")
    assert capped == ("x = sqrt(d) * E[tokens] + P[time]", "logits = 30 * tanh(E @ x / 30)")
    assert of(norm="derf", position="learned")[0] == "x = embed_scale * (E[tokens] + P[time])"
    dual = of(placement="residual_dual", embed="rmsnorm", norm="layernorm", init="scaled")
    assert dual == ("x = r = rmsnorm(E[tokens])", "logits = E @ (x + norm(r))")
    assert of(embed="fixnorm", init="scaled")[1] == "logits = l2norm(E) @ norm(x)"
    assert of(init="mup")[1] == "logits = 128/d * E @ norm(x)"
    assert of(placement="ngpt")[1] == "logits = logit_scale * W @ x"


# Two beside each other


def test_against_shows_the_facts_that_differ_and_nothing_else():
    config = changed(combined(*TINY), "norm.eps", 0.5)
    lines = difference_text(explained(), explain(config, VOCABULARY, set())).splitlines()
    titles = [above for above, line in zip(lines, lines[1:], strict=False) if line[:2] == "--"]
    assert titles == ["Norms", "Where norms are", "Start"]
    where = lines[lines.index("Where norms are") + 2 : lines.index("Start") - 1]
    sites = ["attention.pre", "mlp.pre", "final"]
    rows = [line.split() for line in where]
    assert [row[0] for row in rows].index("B") == len(rows) / 2 == len(sites) + 2
    for site in sites:
        a, b = (row for row in rows if site in row)
        assert (set(a) - set(b), set(b) - set(a)) == ({"1e-06"}, {"0.5"})
    assert difference_text(explained(), explained()) == "there is no difference\n"


def test_against_speaks_of_the_blocks_that_differ_and_of_parameters():
    said = difference_text(explained(placement="hybrid"), explained(placement="hybrid_star"))
    assert "  block 0 attention:  " in said
    assert "blocks" not in said.partition("Where norms are")[0]
    fewer = difference_text(explained(placement="pre"), explained(final_norm="none"))
    rows = [line.split() for line in fewer.splitlines()]
    norms = [row[1:3] for row in rows if row[:1] == ["norms"]]
    tensors = 2 * DEPTH + 1
    assert norms == [[str(n), str(n * WIDTH)] for n in (tensors, tensors - 1)]


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
    assert "placement" not in out.partition("Where norms are")[0]
    code, out, _ = run(capsys, "model=nano", "model.depth=3", "--against", "placement=post")
    assert code == 0
    assert out.startswith(
        "A  model=nano model.depth=3\nB  model=nano model.depth=3 placement=post\n\nEquations\n"
    )
    assert "  blocks 0-2 mlp:  norm(x + f(x))\n" in out.partition("\nB\n")[2]
    assert "model." not in out.partition("Equations")[2]
    code, out, _ = run(capsys, "model=nano", "--against")
    assert out.startswith("A  model=nano\nB  the defaults\n\n")


def test_a_branch_says_where_it_begins(capsys):
    """The last fifth decays: of 300 steps from step 240 on, whose rate is still that before."""
    typed = ["schedule=wsd", "trainer.branches=[300,1200]"]
    words = "begins after step 241 of the run of trainer.steps=300"
    for steps, said in ((1200, True), (300, False)):
        _, out, _ = run(capsys, *typed, f"trainer.steps={steps}")
        assert (words in " ".join(out.split())) is said


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


def test_what_no_section_above_shows_is_among_the_other_choices(capsys):
    _, said, _ = run(capsys, "preset=exaone4", "model=nano", "model.depth=8")
    for line in ("architecture.rope_base  .*1000000", "rotary base .* 1e[+]06", "not rotated"):
        assert re.search(line, said), line
    assert "LG AI Research" in said
    _, said, _ = run(capsys, "preset=gemma2", "--against", "preset=gemma3")
    assert "architecture.rope_base" in said
    _, said, _ = run(capsys, "mlp=geglu", "--against", "mlp=geglu", "architecture.bias=true")
    assert re.findall(r"architecture.bias +(\w+)\n", said) == ["false", "true"]


def test_what_is_not_verified_is_short_at_the_start_of_a_run_and_whole_once_in_explain():
    config = compose(["model=nano", "placement=geonorm"])
    (line,) = (line for line in config.warnings if "is not verified" in line)
    assert line.startswith("placement=geonorm is not verified: the angle (its limit pi/4")
    assert line.endswith(" ... (explain has the whole)")
    assert len(line) < 200
    text = " ".join(explanation_text(explain(config, VOCABULARY, set())).split())
    assert text.count("the angle (its limit pi/4") == 1
    assert " ".join(config.placement.unverified.split()) in text
