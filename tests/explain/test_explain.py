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
VARIED = "norm=dyt mlp=swiglu embed=layernorm final_norm=scalenorm"


@cache
def config_of(typed=""):
    if "preset" in typed:
        return compose([*TINY, *typed.split()])
    words = [text.split("=", 1) for text in typed.split()]
    dotted = [f"{key}={word}" for key, word in words if "." in key]
    return combined(*TINY, *dotted, **{key: word for key, word in words if "." not in key})


@cache
def explained(typed=""):
    keys = {text.partition("=")[0] for text in typed.split()}
    return explain(config_of(typed), VOCABULARY, keys)


@cache
def built(typed=""):
    """The model before its weights are drawn."""
    return build_uninitialized(config_of(typed), VOCABULARY)


def facts(explanation, title):
    """What a section says: (block, name) -> cells."""
    (section,) = [section for section in explanation.sections if section.title == title]
    return {(fact.block, fact.name): fact.cells for fact in section.facts}


def words_of(explanation):
    return " ".join(explanation_text(explanation).split())


# A section, and of what is typed the cells of one of its lines, with ... for anything; no line is
# said by a dash. Numbers are worked out by hand: width 16, 2 heads, 4 blocks.
SAID = """Coefficients
placement=deepnorm: 2 mlp a: (2*N)**0.25 | 1.682 | no
placement=lns: 3 attention pre scale: 1 / sqrt(l) | 1, 0.7071, 0.5774, 0.5 | no
placement=rezero: 0 attention b: 0 | 0 | scalar, one for both sub-layers
placement=ngpt: 0 attention scale: ... | 2.828 | ...
placement=ngpt: 0 attention a: 1 - b | 0.95 | with b
placement=pre: 0 attention scale: ... | 0.3536 | ...

Initialization
placement=pre init=scaled: 1 attention output: ... | 0.007071 ...
placement=deepnorm: 1 mlp up: ...(0.4204)...

What auto became
placement=post: final_norm: none | ...ends in a norm...
placement=post: architecture.embed_scale: sqrt(d) | init=transformer2017, which brings it
init=t5: architecture.logit_scale: 1/sqrt(d) | init=t5, which brings it
placement=pre: final_norm: ... | ...without a norm...
final_norm=none: final_norm: none | you typed it
norm=dyt: architecture.embed_scale: a learned scalar from sqrt(d) | norm=dyt, which brings it
qk_norm=l2: architecture.attention_scale: ... | ...want a learned scale...
preset=gpt2: init: gpt2 | preset=gpt2
preset=gpt2: architecture.tied: true | preset=gpt2

Parameters, rates and decay
placement=pre: norms: ... | no
optimizer.decay_norms=true optimizer.weight_decay=0.3: norms: ... | 0.3
placement=ngpt: matrices: ... | no

Equations
qk_norm=full: 0 inside attention: q=norm@full, k=norm@full (qk_norm=full)
qk_norm=l2: 0 inside attention: q=l2norm, k=l2norm (qk_norm=l2)
v_norm=rmsnorm_np: 0 inside attention: v=rmsnorm_np (v_norm=rmsnorm_np)
architecture.value_residual=0.5: 0 inside attention: -
architecture.value_residual=0.5: 1 inside attention:
  v = 1 * v + 0.5 * v1, v1 the values of the first...
architecture.value_embedding=i architecture.value_gate=12: 0 inside attention: -
architecture.value_embedding=i architecture.value_gate=12: 1 inside attention:
  v = v + 1 * sigmoid(W x[:12]) * E_v[tokens], a table of this block...
attention=sinks: 0 inside attention:
  attention=sinks: exp(s) v / (exp(sink) + sum of exp(s))...
architecture.attention_gate=per_head: 0 inside attention:
  ...sigmoid(W_g x), one gate for each head (architecture.attention_gate=per_head)...
architecture.activation_sparsity=0.95*(i==0): 0 inside the mlp:
  relu2(max(z - mean(z) - 1.645 * std(z), 0))...
architecture.activation_sparsity=0.95*(i==0): 1 inside the mlp: -
architecture.attention_cap=30: 0 inside attention: cap=30 (architecture.attention_cap)
placement=hybrid norm=dyt: 0 inside attention: the norm at q, k, v is rmsnorm, since norm=dyt
placement=hybrid: 0 inside attention: -
architecture.logit_cap=30 placement=post position=learned: start: x = sqrt(d) * E[tokens] + P[time]
architecture.logit_cap=30 placement=post position=learned: end: logits = 30 * tanh(E @ x / 30)
norm=derf position=learned: start: x = embed_scale * (E[tokens] + P[time])
placement=residual_dual embed=rmsnorm norm=layernorm init=scaled: start: x = r = rmsnorm(E[tokens])
placement=residual_dual embed=rmsnorm norm=layernorm init=scaled: end: logits = E @ (x + norm(r))
embed=fixnorm init=scaled: end: logits = l2norm(E) @ norm(x)
init=mup: end: logits = 128/d * E @ norm(x)
placement=ngpt: end: logits = logit_scale * W @ x"""
ROWS = [
    (title, *line.split(": ", 2))
    for title, *lines in map(str.splitlines, re.sub(r"\n  ", " ", SAID).split("\n\n"))
    for line in lines
]


@pytest.mark.parametrize(("title", "typed", "at", "said"), ROWS)
def test_a_section_says_what_is_computed_and_who_chose_it(title, typed, at, said):
    block, _, name = at.partition(" ") if at[0].isdigit() else (None, "", at)
    cells = facts(explained(typed), title).get((block and int(block), name), "-")
    pattern = ".*".join(map(re.escape, said.split("...")))
    assert re.fullmatch(pattern, " | ".join(map(str, cells))), cells


def test_deviations_are_those_that_the_weights_are_drawn_with():
    config = combined("model=nano", placement="pre", init="depth_scaled")
    model = build_model(config, VOCABULARY)
    said = facts(explain(config, VOCABULARY, set()), "Initialization")[1, "mlp down"][2]
    for block, number in zip(model.blocks, re.findall(r"([\d.]+) \(", said), strict=True):
        drawn = block.mlp.f.down.weight.std().item()
        assert drawn == pytest.approx(float(number), rel=0.05)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("mhc", "of a token; mHC, Xie et al. 2025"),  # a formula and its source are parted
        ("gemma3n", "c * x is 1/sqrt(2) * (x + norm(B A x)), A a matrix of 64 rows"),
        ("laurel", "c * x is x + B A x, A"),
        ("sandwich", "blocks 0-3 mlp: x + norm(f(norm(x)))"),
    ],
)
def test_a_remark_on_the_equations_is_in_the_text(placement, said):
    assert said in words_of(explained(f"placement={placement}"))


def every_second(first):
    """Every second placement, the others nightly."""
    others = [pytest.mark.nightly]
    return [
        pytest.param(name, marks=others * (number % 2 != first))
        for number, name in enumerate(PLACEMENTS)
    ]


@pytest.mark.parametrize("placement", every_second(0))
def test_every_norm_of_the_built_model_is_listed_with_its_parameters(placement):
    typed = f"placement={placement} {VARIED}"
    listed = check_norms(built(typed), explained(typed).anatomy)
    sums = tuple(map(sum, zip(*listed.values(), strict=True)))
    assert facts(explained(typed), "Where norms are")[None, "all"][-2:] == (sums or (0, 0))


@pytest.mark.parametrize("share", ["head", "per_head", "full", "l2"])
def test_norms_on_queries_and_few_keys_are_listed_with_their_parameters(share):
    typed = f"model.kv_heads=1 qk_norm={share}"
    check_norms(built(typed), explained(typed).anatomy)


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
    config = config_of(f"placement={placement}")
    model = build_uninitialized(config, VOCABULARY)
    check_factors(model, explained(f"placement={placement}").anatomy)


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
    inside = []
    for typed in ("placement=ngpt mlp=swiglu", "placement=normformer qk_norm=l2"):
        block, parts = built(typed).blocks[1], explained(typed).anatomy.blocks[1]
        inside.append((block.attention.f, block.mlp.f, *(parts[name].factors for name in parts)))
    (f, mlp, of_f, of_mlp), (own, _, factors, _) = inside
    for module, factor, shape in (
        (f.q.scale, of_f["q.scale"], (HEADS, WIDTH // HEADS)),
        (mlp.up_scale, of_mlp["hidden_scale"], (mlp.up.out_features,)),
        (mlp.gate_scale, of_mlp["gate"], (mlp.up.out_features,)),
        (own.head_scale, factors["head_scale"], (HEADS, WIDTH // HEADS)),
        (own.scale, factors["attention scale"], (HEADS, WIDTH // HEADS)),
    ):
        one = torch.ones(1, 1, *shape)
        torch.testing.assert_close(module(one), factor.value * one)


@pytest.mark.parametrize("placement", ["pre", "ngpt", "normformer", "parallel", "residual_dual"])
def test_every_parameter_of_the_built_model_is_counted(placement):
    parameters = list(built(f"placement={placement}").parameters())
    counted = facts(explained(f"placement={placement}"), "Parameters, rates and decay")[None, "all"]
    assert counted[:2] == (len(parameters), sum(p.numel() for p in parameters))


def test_the_equation_is_the_placements_own():
    for placement in PLACEMENTS:
        said = facts(explained(f"placement={placement}"), "Equations")
        stated = Placement(**config_of(f"placement={placement}").placement)
        for i in range(DEPTH):
            for part, text in stated.equation(i, DEPTH).items():
                assert part == "end" or said[i, part] == (text,), placement


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
    said = difference_text(explained("placement=hybrid"), explained("placement=hybrid_star"))
    assert "  block 0 attention:  " in said
    assert "blocks" not in said.partition("Where norms are")[0]
    fewer = difference_text(explained("placement=pre"), explained("final_norm=none"))
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


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """run("placement=pre --svg x.svg") in an empty folder: the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return lambda words="": (main(words.split()), *capsys.readouterr())


def said(run, words):
    code, out, err = run(words)
    assert (code, err) == (0, "")
    return out


def test_the_command_prints_writes_the_figure_and_nothing_else(run, tmp_path):
    out = said(run, "placement=hybrid model=nano --svg hybrid.svg")
    assert out.startswith("placement=hybrid norm=rmsnorm model=nano\n")
    assert [file.name for file in tmp_path.iterdir()] == ["hybrid.svg"]
    ElementTree.parse("hybrid.svg")
    out = said(run, "model=nano --vocab 7 --against model=nano norm=none")
    assert "B  choose" not in out
    assert "placement" not in out.partition("Where norms are")[0]
    out = said(run, "model=nano model.depth=3 --against placement=post")
    assert out.startswith(
        "A  model=nano model.depth=3\nB  model=nano model.depth=3 placement=post\n\nEquations\n"
    )
    assert "  blocks 0-2 mlp:  norm(x + f(x))\n" in out.partition("\nB\n")[2]
    assert "model." not in out.partition("Equations")[2]
    out = said(run, "model=nano --against")
    assert out.startswith("A  model=nano\nB  the defaults\n\n")


def test_a_branch_says_where_it_begins(run):
    """The last fifth decays: of 300 steps from step 240 on, whose rate is still that before."""
    words = "begins after step 241 of the run of trainer.steps=300"
    for steps, is_said in ((1200, True), (300, False)):
        _, out, _ = run(f"schedule=wsd trainer.branches=[300,1200] trainer.steps={steps}")
        assert (words in " ".join(out.split())) is is_said


def test_the_largest_model_is_explained_without_its_weights(run):
    out = said(run, "model=1558m tokenizer=gpt2")
    assert "50257 x 1600" in out
    assert re.search(r"all +\d+ +1,55\d,\d{3},\d{3}", out)


ERRORS = {
    "placement=prre": "did you mean 'pre'?",
    "placement=pre --against norm=rmsnrm": "did you mean 'rmsnorm'?",
    "--vob 3": "--vob",
    "--vocab x": "--vocab",
    "--vocab 0": "--vocab 0: at least 1",
    "--svg nowhere/x.svg model=nano": "nowhere/x.svg: No such file",
    "--svg x.svg --against norm=none": "--svg draws one config",
    "--list norm=none": "--list goes with nothing else",
}


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_is_one_line_and_exit_code_2(words, run, tmp_path):
    code, out, err = run(words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ERRORS[words] in err
    assert list(tmp_path.iterdir()) == []


def test_the_list_names_every_choice(run):
    out = said(run, "--list")
    axes = {part.splitlines()[0].removesuffix("="): part for part in out.split("\n\n")}
    assert list(axes) == AXES_OF_A_RUN
    for axis, part in axes.items():
        assert re.findall(r"^  (\w+) ", part, re.MULTILINE) == options(axis)
    assert max(map(len, out.splitlines())) <= 80


def test_what_no_section_above_shows_is_among_the_other_choices(run):
    _, out, _ = run("preset=exaone4 model=nano model.depth=8")
    for line in ("architecture.rope_base  .*1000000", "rotary base .* 1e[+]06", "not rotated"):
        assert re.search(line, out), line
    assert "LG AI Research" in out
    _, out, _ = run("preset=gemma2 --against preset=gemma3")
    assert "architecture.rope_base" in out
    _, out, _ = run("mlp=geglu --against mlp=geglu architecture.bias=true")
    assert re.findall(r"architecture.bias +(\w+)\n", out) == ["false", "true"]


def test_what_is_not_verified_is_short_at_the_start_of_a_run_and_whole_once_in_explain():
    config = compose(["model=nano", "placement=geonorm"])
    (line,) = (line for line in config.warnings if "is not verified" in line)
    assert line.startswith("placement=geonorm is not verified: the angle (its limit pi/4")
    assert line.endswith(" ... (explain has the whole)")
    assert len(line) < 200
    text = words_of(explain(config, VOCABULARY, set()))
    assert text.count("the angle (its limit pi/4") == 1
    assert " ".join(config.placement.unverified.split()) in text
