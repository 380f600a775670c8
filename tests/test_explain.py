"""explain says what the built model is: numbers by hand, every placement drawn, planted changes."""

import re
import xml.etree.ElementTree as ElementTree
from functools import cache

import pytest
import torch
from combinations import combined

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.explain.__main__ import main
from transformer_norms.explain.difference import difference
from transformer_norms.explain.drawing import drawings
from transformer_norms.explain.equations import block_equations, same
from transformer_norms.explain.explanation import explain, explain_model
from transformer_norms.explain.figure import figure
from transformer_norms.explain.reading import Reader
from transformer_norms.explain.sketch import sketch
from transformer_norms.explain.text import text
from transformer_norms.explain.weightless import build_weightless
from transformer_norms.model.placement import Placement
from transformer_norms.names import AXES_OF_A_RUN, options
from transformer_norms.norms import nothing

pytestmark = pytest.mark.area("catalogue")

DEPTH, WIDTH, HEADS = 4, 16, 2
TINY = ("model=tiny", f"model.width={WIDTH}", f"model.heads={HEADS}", f"model.depth={DEPTH}")
PLACEMENTS = options("placement")
VOCABULARY = 11


@cache
def explained(*typed, **chosen):
    return explain(combined(*TINY, *typed, **chosen), VOCABULARY, set(chosen))


def facts(explanation, title):
    """What a section says: (block, name) -> cells."""
    (section,) = [section for section in explanation.sections if section.title == title]
    return {(fact.block, fact.name): fact.cells for fact in section.facts}


def total_of_norms(**chosen):
    return facts(explained(**chosen), "Where norms stand")[None, "all"][-2:]


# Numbers, each against a formula written here


def test_norms_are_as_many_as_each_placement_has_and_hold_as_many_numbers():
    one = 2 * DEPTH
    of_heads = 3 * WIDTH // HEADS
    assert total_of_norms(placement="pre") == (one + 1, (one + 1) * WIDTH)
    assert total_of_norms(placement="post") == (one, one * WIDTH)
    assert total_of_norms(placement="peri") == (2 * one + 2, (2 * one + 2) * WIDTH)
    hybrid = DEPTH * (of_heads + WIDTH) + WIDTH
    assert total_of_norms(placement="hybrid") == (4 * DEPTH + 1, hybrid)
    star = DEPTH * of_heads + 2 * WIDTH + (DEPTH - 1) * WIDTH + WIDTH
    assert total_of_norms(placement="hybrid_star") == (3 * DEPTH + 2 + DEPTH - 1 + 1, star)
    assert total_of_norms(placement="parallel") == (DEPTH + 1, (DEPTH + 1) * WIDTH)
    assert total_of_norms(placement="ngpt") == (6 * DEPTH, 0)
    heads = {"placement": "pre", "qk_norm": "per_head"}
    per_head = total_of_norms(**heads)
    assert per_head == (one + 1 + 2 * HEADS * DEPTH, (one + 1 + 2 * DEPTH) * WIDTH)


def test_every_norm_and_every_parameter_of_the_model_is_counted():
    for placement in PLACEMENTS:
        explanation = explained(placement=placement)
        model = build_model(explanation.config, VOCABULARY)
        named = [type(m).__name__ in ("RMSNorm", "L2Norm") for m in model.modules()]
        assert facts(explanation, "Where norms stand")[None, "all"][-2] == sum(named)
        groups = facts(explanation, "Parameters and decay")
        assert groups[None, "all"][1] == sum(p.numel() for p in model.parameters())


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
    scaled = facts(explained(placement="pre"), "Initialization")
    output = float(scaled[1, "attention output"][2].split()[0])
    assert output == pytest.approx(0.02 / (2 * DEPTH) ** 0.5, rel=1e-3)
    beta = facts(explained(placement="deepnorm"), "Initialization")[1, "mlp up"][2]
    gain = float(re.search(r"\((.*)\)", beta)[1])
    assert gain == pytest.approx((8 * DEPTH) ** -0.25, rel=1e-3)
    config = combined("model=tiny", placement="pre", init="depth_scaled")
    model = build_model(config, VOCABULARY)
    said = facts(explain(config, VOCABULARY, set()), "Initialization")[1, "mlp down"][2]
    for block, number in zip(model.blocks, re.findall(r"([\d.]+) \(", said), strict=True):
        drawn = block.mlp.f.down.weight.std().item()
        assert drawn == pytest.approx(float(number), rel=0.05)


def test_what_auto_came_to_names_who_chose():
    def chosen(**words):
        return facts(explained(**words), "What auto came to")

    post = chosen(placement="post")
    assert post[None, "final_norm"][0] == "none"
    assert "ends in a norm" in post[None, "final_norm"][1]
    scale = ("sqrt(d)", "placement=post, which brings it")
    assert post[None, "architecture.embed_scale"] == scale
    assert "without a norm" in chosen(placement="pre")[None, "final_norm"][1]
    assert chosen(final_norm="none")[None, "final_norm"] == ("none", "you typed it")
    dyt = chosen(norm="dyt")[None, "architecture.embed_scale"]
    assert dyt == ("a learned scalar from sqrt(d)", "norm=dyt, which brings it")
    unit = chosen(qk_norm="l2")[None, "architecture.attention_scale"][1]
    assert "want a learned scale" in unit
    preset = explain(compose(["preset=gpt2", "model=tiny"]), VOCABULARY, {"preset"})
    of_preset = facts(preset, "What auto came to")
    assert of_preset[None, "init"] == ("gpt2", "preset=gpt2")
    assert of_preset[None, "architecture.tied"] == ("true", "preset=gpt2")


def test_norms_are_decayed_where_that_is_typed():
    assert facts(explained(), "Parameters and decay")[None, "norms"][-1] == "no"
    typed = explained("optimizer.decay_norms=true", "optimizer.weight_decay=0.3")
    assert facts(typed, "Parameters and decay")[None, "norms"][-1] == "0.3"
    ngpt = facts(explained(placement="ngpt"), "Parameters and decay")
    assert ngpt[None, "matrices"][-1] == "no"


# Drawings


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_is_said_in_80_columns_and_drawn_with_all_of_its_norms(placement):
    gated = {"mlp": "geglu_tanh", "norm": "layernorm_nobias"}
    for explanation in (explained(placement=placement), explained(placement=placement, **gated)):
        lines = text(explanation).splitlines()
        assert max(len(line) for line in lines) <= 80
        kinds = drawings(Reader(explanation.config), explanation.blocks)
        assert sorted(i for kind in kinds for i in kind.blocks) == list(range(DEPTH))
        root = ElementTree.fromstring(figure(explanation))
        boxes = [box for box in root.iter() if box.get("class") == "norm"]
        assert len(boxes) == sum(len(kind.norms) for kind in kinds)
        table = facts(explanation, "Where norms stand")
        for kind in kinds:
            there = sum(1 for block, _ in table if block == kind.blocks[0])
            assert len(kind.norms) == there, kind.title
            drawn = re.findall(r"\[(\w+)", "\n".join(sketch(kind)))
            assert sorted(drawn) == sorted(norm.site for norm in kind.norms)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_equation_read_off_the_model_is_the_one_that_the_placement_states(placement):
    explanation = explained(placement=placement)
    stated = Placement(**explanation.config["placement"])
    for i, block in enumerate(explanation.blocks):
        for part, made in block_equations(block).items():
            assert same(made, stated.equation(i, DEPTH)[part]), (made, i)
    assert not [n for _, n in facts(explanation, "Equations") if n.endswith("as built")]


def test_the_ends_of_the_model_are_two_equations():
    def of(*typed, **chosen):
        said = facts(explained(*typed, **chosen), "Equations")
        return said[None, "start"][0], said[None, "end"][0]

    capped = of("architecture.logit_cap=30", placement="post", position="learned")
    assert capped == (
        "x = sqrt(d) * E[tokens] + P[time]",
        "logits = 30 * tanh(E @ x / 30)",
    )
    dual = of(placement="residual_dual", embed="rmsnorm", norm="layernorm")
    assert dual == ("x = r = rmsnorm(E[tokens])", "logits = E @ (x + norm(r))")
    assert of(embed="fixnorm")[1] == "logits = l2norm(E) @ norm(x)"
    assert of(placement="ngpt")[1] == "logits = logit_scale * W @ x"


# It is the model that is read


def test_what_is_changed_in_the_model_is_seen():
    config = combined(*TINY, placement="deepnorm")
    model = build_weightless(config, VOCABULARY)
    del model.blocks[1].attention.post
    model.blocks[1].attention.post = nothing
    model.blocks[2].mlp.skip.value = 3.0
    model.blocks[3].mlp.post.length = model.blocks[3].mlp.post.length.__class__(16, 16, 0, 0.5)
    changed = explain_model(config, model, set())
    table = facts(changed, "Where norms stand")
    assert (1, "attention.post") not in table
    assert table[None, "all"][-2] == 2 * DEPTH - 1
    assert table[3, "mlp.post"][1:4] == ("RMSNorm", "16", "0.5")
    equations = facts(changed, "Equations")
    assert equations[1, "attention, as built"] == ("(2*N)**0.25 * x + f(x)",)
    assert equations[2, "mlp, as built"] == ("norm(3 * x + f(x))",)
    assert "3" in facts(changed, "Coefficients")[2, "mlp a"][1].split(", ")
    assert len(drawings(Reader(config), changed.blocks)) == 4


def test_nothing_is_drawn_and_every_number_that_is_no_weight_is_there():
    config = combined(*TINY, placement="ngpt", init="megatron")
    model, real = build_weightless(config, VOCABULARY), build_model(config, VOCABULARY)
    assert model.blocks[0].mlp.f.up.weight.is_meta
    shapes = {name: p.shape for name, p in real.named_parameters()}
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    held = {name: p for name, p in model.named_parameters() if not p.is_meta}
    assert len(held) == 4 * DEPTH + 1  # b twice, q's scale, the hidden scale; the logits'
    for name, parameter in held.items():
        torch.testing.assert_close(parameter, dict(real.named_parameters())[name])


# Two beside each other


def test_against_shows_the_one_difference_and_nothing_else():
    config = combined(*TINY)
    config["norm"]["eps"] = 0.5
    lines = difference(explained(), explain(config, VOCABULARY, set())).splitlines()
    titles = [above for above, line in zip(lines, lines[1:], strict=False) if line[:2] == "--"]
    assert titles == ["Norms", "Where norms stand"]
    where = lines[lines.index("Where norms stand") + 2 :]
    assert where == [
        "  blocks 0-3 attention.pre", "    A  eps 1e-06", "    B  eps 0.5",
        "  blocks 0-3 mlp.pre", "    A  eps 1e-06", "    B  eps 0.5",
        "  final", "    A  eps 1e-06", "    B  eps 0.5",
    ]  # fmt: skip
    assert difference(explained(), explained()) == "there is no difference\n"


def test_against_speaks_of_the_blocks_that_differ_and_of_parameters():
    said = difference(explained(placement="hybrid"), explained(placement="hybrid_star"))
    assert "block 0 attention\n" in said
    assert "blocks" not in said.partition("Where norms stand")[0]
    fewer = difference(explained(placement="pre"), explained(final_norm="none"))
    assert f"  all\n    A  norms {2 * DEPTH + 1}, parameters" in fewer
    assert "  norms\n    A  tensors 9, parameters 144\n    B  tensors 8, parameters 128" in fewer


# The command


def run(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_writes_the_figure_and_nothing_else(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "placement=hybrid", "model=tiny", "--svg", "hybrid.svg")
    assert (code, err) == (0, "")
    assert out.startswith("placement=hybrid norm=rmsnorm model=tiny\n")
    assert [file.name for file in tmp_path.iterdir()] == ["hybrid.svg"]
    ElementTree.parse("hybrid.svg")
    code, out, _ = run(capsys, "model=tiny", "--vocab", "7", "--against", "model=tiny", "norm=none")
    assert code == 0
    assert "B  choose" not in out
    assert "placement" not in out.partition("Where norms stand")[0]


def test_the_largest_model_is_explained_without_its_weights(capsys):
    code, out, _ = run(capsys, "model=xl", "tokenizer=gpt2")
    assert code == 0
    assert "50257 x 1600" in out
    assert re.search(r"all +\d+ +1,55\d,\d{3},\d{3}", out)


ERRORS = [
    (["placement=prre"], "did you mean 'pre'?"),
    (["placement=pre", "--against", "norm=rmsnrm"], "did you mean 'rmsnorm'?"),
    (["--vob", "3"], "--vob"),
    (["--vocab", "x"], "--vocab"),
    (["--vocab", "0"], "--vocab 0: at least 1"),
    (["--svg", "nowhere/x.svg", "model=tiny"], "nowhere/x.svg: No such file"),
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
    _, said, _ = run(capsys, "preset=exaone4", "model=tiny", "model.depth=8")
    for line in ("architecture.rope_base  .*1000000", "rotary base .* 1e[+]06", "not rotated"):
        assert re.search(line, said), line
    assert "LG AI Research" in said
    _, said, _ = run(capsys, "preset=gemma2", "--against", "preset=gemma3")
    assert "architecture.rope_base" in said
    _, said, _ = run(capsys, "mlp=geglu", "--against", "mlp=geglu", "architecture.bias=true")
    assert "architecture.bias\n    A  value false\n    B  value true" in said
