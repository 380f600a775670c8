"""The drawings of explain: every norm, factor and sum of a block, in characters and as a figure."""

import ast
import re
import xml.etree.ElementTree as ElementTree

import pytest
from test_explain import (
    DEPTH,
    PLACEMENTS,
    TINY,
    VOCABULARY,
    check_factors,
    check_norms,
    explained,
    facts,
)
from typed_equations import EQUATIONS, typed

from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.explain.explanation import explain
from transformer_norms.explain.layout import SUM, blocks_text, kinds_of_block
from transformer_norms.explain.painting import block_svg, terminal_lines, wrap
from transformer_norms.explain.text import explanation_text


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_typed_equation_is_explained_and_drawn_like_one_of_a_file(name):
    keys = EQUATIONS[name]
    config = compose([*TINY, "model.kv_heads=1", *typed(keys)], device="cpu")
    explanation = explain(config, VOCABULARY, set())
    model = build_uninitialized(config, VOCABULARY)
    check_factors(model, explanation.anatomy)
    check_norms(model, explanation.anatomy)
    text = explanation_text(explanation)
    words = "".join(text.partition("Drawing")[0].split())
    stated = keys["equation"]
    for part in [stated] if isinstance(stated, str) else stated.values():
        assert "".join(part.split()) in words
    assert max(map(len, text.splitlines())) <= 80
    for layout in kinds_of_block(explanation.anatomy):
        check_drawing(layout)
    assert ElementTree.fromstring(block_svg(explanation.anatomy, alone=True)).tag.endswith("svg")
    if name == "x0":
        assert "x = x0 = E[tokens]" in text
        assert "x0 * c, learned from 0.25 ─►⊕" in text
        assert facts(explanation, "Coefficients")[3, "mlp c"] == ("0.25", "0.25", "scalar")
    if name == "where":
        assert "norm(x + f(x) + start)" in text
        assert "blocks 0, 2" in text
        assert "blocks 1, 3" in text


def test_an_equation_typed_without_blanks_breaks_between_its_words():
    equation = "0.1234*x+0.5**l*norm(f(norm(x),q=norm@per_head,head_norm=norm,ctx=norm,mid=norm))"
    lines = wrap(equation, width=40)
    assert max(map(len, lines)) <= 40
    assert "".join(lines) == equation
    words = [word for line in lines for word in re.findall(r"[\w.@]+|[*]+", line)]
    assert words == re.findall(r"[\w.@]+|[*]+", equation)


def test_blocks_are_named_once_and_in_order():
    assert blocks_text([3, 0, 0, 1, 1]) == "blocks 0-1, 3"
    assert blocks_text([2, 2]) == "block 2"


def boxes_of(layout):
    every = (box for row in layout.rows for box in (row.stream, row.share, *row.branches))
    return [box for box in every if box]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_is_said_in_80_columns_and_drawn_with_all_of_its_norms(placement):
    for chosen in ("", " mlp=geglu_tanh norm=layernorm_nobias"):
        explanation = explained(f"placement={placement}{chosen}")
        assert max(map(len, explanation_text(explanation).splitlines())) <= 80
        anatomy = explanation.anatomy
        kinds = kinds_of_block(anatomy)
        assert sorted(i for blocks in kinds.values() for i in blocks) == list(range(DEPTH))
        boxes = 0
        for layout, blocks in kinds.items():
            check_drawing(layout)
            if not chosen and anatomy.placement.topology in ("serial", "blocks"):
                check_terms(anatomy, layout, blocks[0])
            inside = [norm.site for norm, block in anatomy.norms() if block == blocks[0]]
            # Norms of read and write, and those inside a matrix, have no box.
            there = sorted(at for at in inside if at != "connection" and "inside" not in at)
            norms = [box.label for box in boxes_of(layout) if box.kind == "norm"]
            words = (part.split() for label in norms for part in label.split(" | "))
            assert sorted(part[0] for part in words if len(part) > 1) == there
            boxes += len(norms)
    root = ElementTree.fromstring(block_svg(anatomy, alone=True))
    assert len([box for box in root.iter() if box.get("class") == "norm"]) == boxes


STREAM_NAMES = {"x", "f", "h", "start", "x0"}


def added(equation):
    """How many sums of streams an equation has: x + b * (f - x) is one, x times 1 - b and f."""
    names = lambda node: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & STREAM_NAMES  # noqa: E731
    return sum(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
        and bool(names(node.left)) and bool(names(node.right))
        for node in ast.walk(ast.parse(equation))
    )  # fmt: skip


def check_terms(anatomy, layout, block):
    """The drawing adds and multiplies as often as the equations: a sum has the stream, where it
    is carried there, a branch, and an earlier stream."""
    equations = [anatomy.equations(block)[part] for part in ("attention", "mlp")]
    sums = 0
    for before, row in zip(layout.rows, layout.rows[1:], strict=False):
        if row.stream == SUM:
            sums += (before.stream is not None) + (row.edge == "join") + bool(row.term) - 1
    assert sums == sum(map(added, equations))
    drawn = "\n".join([*(box.label for box in boxes_of(layout)), *(r.term for r in layout.rows)])
    for name in anatomy.placement.learned:
        words = [word for text in equations for word in re.findall(r"\w+", text)]
        assert len(re.findall(rf"\* {name}\b", drawn)) == words.count(name), name


def check_drawing(layout):
    """The words of every box are whole, and no line ends in the air."""
    lines = terminal_lines(layout)
    for line, row in zip(lines, layout.rows, strict=True):
        assert row.term in line
        for box in (row.stream, row.share, *row.branches):
            assert box is None or box.label in line
    drawn = "\n".join(lines)
    assert drawn.count("⊕") == sum(box == SUM for box in boxes_of(layout))
    filled = [re.sub(r"[\[(].*?[\])]", lambda box: "#" * len(box[0]), line) for line in lines]
    grid = {(x, y): sign for y, line in enumerate(filled) for x, sign in enumerate(line)}
    reaches = {"│": "ud", "─": "lr", "╭": "dr", "╮": "dl", "╰": "ur", "╯": "ul", "├": "udr",
               "┬": "dlr", "┴": "ulr"}  # fmt: skip
    assert not re.search(r"◄(?!─)|►(?![⊕(r])|(?<![⊕)])◄", drawn)
    steps = {"u": (0, -1), "d": (0, 1), "l": (-1, 0), "r": (1, 0)}
    for (x, y), sign in grid.items():
        for way in reaches.get(sign, ""):
            dx, dy = steps[way]
            words = way == "l" and grid.get((x + 1, y)) in ("►", "╮")  # of a term
            if not words:
                assert grid.get((x + dx, y + dy), " ") != " ", (sign, x, y, way)
