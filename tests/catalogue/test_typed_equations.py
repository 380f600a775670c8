"""Equations that no paper has: typed, they are computed, trained, explained and drawn like those of
a file. A typed equation of a paper is that paper's placement."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from test_block_equations import SMALL, computes_its_equation, norm_of, randomize

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.explain.explanation import explain
from transformer_norms.explain.painting import block_svg
from transformer_norms.explain.text import explanation_text
from transformer_norms.kinds import plain

VECTOR = {"learn": "vector", "init": 0.9}
EQUATIONS = [
    ("x + 0.5 * f(norm(x))", {}),
    ("norm(x + f(norm(x), q=norm@full, k=norm@full))", {}),
    ("(x + norm(f(norm(x), ctx=norm, mid=norm))) / sqrt(2)", {}),
    ("x - f(norm(x)) + 0.1 * x0", {}),
    ("a * x + a * f(norm(x)) + c * x0", {"a": VECTOR, "c": {"learn": "scalar", "init": 0.1}}),
    ("x + attention(h := norm(x), q=norm, k=norm) + 0.5 * norm(mlp(h, mid=norm))", {}),
    ("(1 - b) * x + b * norm(f(x))", {"b": VECTOR}),
    ({"attention": "x + f(norm(x), v=norm@per_head)", "mlp": "norm(x + f(x)) / sqrt(l)"}, {}),
    ({"x": "norm(x + f(norm(x)))", "r": "r + f(norm(x))", "end": "x + norm(r)"}, {}),
    (
        "x + f(s * norm(x), head_scale=g, hidden_scale=2)",
        {"s": VECTOR, "g": {"learn": "head", "init": 1}},
    ),
    ("norm(2 * x + f(norm(x)) - 0.5 * start)", {}),
    ("norm(f(norm(x)))", {}),
    ("x + (0.5 + (l == 1)) * f(norm(x))", {}),
    ("norm((h := 2 * x + c * start) + f(h, hidden=norm, hidden_scale=2) + x0)", {"c": VECTOR}),
]


def typed(equation, learned):
    keys = [as_typed("placement.equation", equation)]
    return keys + ([as_typed("placement.learned", learned)] if learned else [])


@pytest.mark.parametrize(("equation", "learned"), EQUATIONS, ids=lambda v: str(v)[:50])
def test_a_typed_equation_is_computed_trained_explained_and_drawn(equation, learned):
    config = compose([*SMALL, "init=xavier", "trainer.batch_size=2", *typed(equation, learned)])
    model = randomize(build_model(config, 11))
    computes_its_equation(model, config, norm_of("rmsnorm"))
    trainer = build_trainer(config, build_model(config, 11), batch_of, lambda: [batch_of(0)])
    assert trainer.train_step() is None
    assert trainer.grad_norm > 0
    parts = [equation] if isinstance(equation, str) else list(equation.values())
    explanation = explain(config, 11, {"placement.equation"})
    text = explanation_text(explanation)
    assert max(map(len, text.splitlines())) <= 80
    for part in parts:
        assert "".join(part.split()) in "".join(text.split())
    assert ElementTree.fromstring(block_svg(explanation.anatomy, alone=True)).tag.endswith("svg")
    assert all(part in config.choices.placement for part in parts)


def batch_of(step):
    return torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize(
    ("equation", "placement"),
    [
        ("x + norm(f(norm(x)))", "sandwich"),
        ("x+f( norm(x) )", "pre"),
        pytest.param("x + norm(f(x))", "out", marks=pytest.mark.nightly),
    ],
)
def test_a_typed_equation_of_a_paper_is_its_placement_bitwise(
    equation, placement, tmp_path, monkeypatch
):
    from transformer_norms import load, train

    monkeypatch.chdir(tmp_path)
    small = ["model=nano", "data=stories", "data.documents=150", "data.val_tokens=512"]
    small += ["trainer.steps=6", "trainer.threads=1", "tracking=none", "trainer.probe_every=3"]
    start = ["init=scaled", "architecture.tied=true"]  # out brings another
    chosen = (
        ["study=file", f"placement={placement}", *start],
        ["study=typed", f"placement.equation={equation}", *start],
    )
    runs = [train(compose([*small, *choice])) for choice in chosen]
    texts = [Path(run["folder"], "metrics.jsonl").read_text() for run in runs]
    rows = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for first, second in zip(*rows, strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}
    for first, second in zip(*(load(run["folder"]).parameters() for run in runs), strict=True):
        assert torch.equal(first, second)
    assert runs[0]["identity"] == runs[1]["identity"]
    assert runs[1]["choices"]["placement"] == equation


WHERE = "[{blocks: i == 0, equation: norm(x + f(x))}]"
PARTS = "{blocks: i == 1, equation: {attention: norm(x + f(x)), mlp: x + f(x)}}"


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (WHERE, [{"blocks": "i == 0", "equation": "norm(x + f(x))"}]),
        (
            PARTS,  # one entry needs no brackets
            [{"blocks": "i == 1", "equation": {"attention": "norm(x + f(x))", "mlp": "x + f(x)"}}],
        ),
        ("[]", []),
    ],
)
def test_where_is_typed_without_quotes_as_an_equation_is(text, entries):
    config = compose(["placement.equation=x + f(norm(x))", f"placement.where={text}"])
    quoted = compose(["placement.equation=x + f(norm(x))", as_typed("placement.where", entries)])
    assert config == quoted
    assert plain(config.placement.where) == entries
