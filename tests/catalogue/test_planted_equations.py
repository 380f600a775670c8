"""Equations that differ from a paper's in one sign, one norm or one place are caught.

Each fault is planted in the equation of a placement. It is caught if the reader refuses it, or if
the fingerprint, which is derived from the paper and not from the file, is another.
"""

import ast
import copy

import pytest
import test_fingerprints as fingerprints
from combinations import changed

from transformer_norms.kinds import plain
from transformer_norms.model.placement import Placement

PLACEMENTS = fingerprints.PLACEMENTS
NORMS, SUB_LAYERS = ("norm", "l2norm"), ("f", "attention", "mlp")


def calls(node, names):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in names


def exchanges(tree):
    """(what is wrong, a node of the equation, what takes its place)"""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        parent = parents.get(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            sign = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield "a sign", node, ast.BinOp(node.left, sign, node.right)
        if calls(node, NORMS):
            yield "no norm", node, node.args[0]
        elif calls(node, SUB_LAYERS) and node.keywords:
            yield "no norm", node, ast.Call(node.func, node.args, node.keywords[:-1])
        reads = calls(parent, SUB_LAYERS) and node is parent.args[0] and isinstance(node, ast.Name)
        whole = calls(node, SUB_LAYERS) or node is tree.body
        if (reads or whole) and not (calls(node, NORMS) or calls(parent, NORMS)):
            yield "a norm", node, ast.Call(ast.Name("norm"), [node], [])


def exchanged(tree, old, new):
    return ast.unparse(copy.deepcopy(tree, {id(old): new}))


def faults(text):
    """(what is wrong, the text with it), each fault once. The first norm is also moved."""
    tree = ast.parse(text, mode="eval")
    planted = [(kind, exchanged(tree, *nodes)) for kind, *nodes in exchanges(tree)]
    for norm in [node for node in ast.walk(tree) if calls(node, NORMS)][:1]:
        without = ast.parse(exchanged(tree, norm, norm.args[0]), mode="eval")
        planted += [("a place", exchanged(without, *nodes))
                    for kind, *nodes in exchanges(without) if kind == "a norm"]  # fmt: skip
    wrong = {planted: kind for kind, planted in planted if planted != ast.unparse(tree)}
    return [(kind, planted) for planted, kind in wrong.items()]


def planted_in(placement):
    """Every placement file with one fault: (kind, equation, where)."""
    node = plain(fingerprints.config_of(placement).placement)
    original, where = node["equation"], node.get("where", [])
    for kind, text in in_equation(original):
        yield kind, text, where
    for n, entry in enumerate(where):
        for kind, text in in_equation(entry["equation"]):
            yield kind, original, [*where[:n], {**entry, "equation": text}, *where[n + 1 :]]


def in_equation(equation):
    if isinstance(equation, str):
        yield from faults(equation)
        return
    for part, text in equation.items():
        for kind, planted in faults(text):
            yield kind, {**equation, part: planted}


def is_caught(placement, equation, where, monkeypatch):
    config, original = fingerprints.config_of(placement), fingerprints.config_of
    node = {**plain(config.placement), "equation": equation, "where": where}
    try:
        read = Placement(**node)
    except ValueError:
        return True
    if read.brings != Placement(**plain(config.placement)).brings:
        return True  # the end of two streams is the final norm, which the comparison copies by name
    name = f"{placement} as {equation} where {where}"
    config = changed(changed(config, "placement.equation", equation), "placement.where", where)
    chosen = lambda of: config if of == name else original(of)  # noqa: E731
    monkeypatch.setattr(fingerprints, "config_of", chosen)
    return any(fingerprints.differences(name, placement))


EVERY_SEVENTH = [(placement, 7) for placement in PLACEMENTS[::3]]
ALL = [pytest.param(placement, 1, marks=pytest.mark.nightly) for placement in PLACEMENTS]


@pytest.mark.parametrize(("placement", "every"), [*EVERY_SEVENTH, *ALL])
def test_a_fault_in_the_equation_of_a_placement_is_caught(placement, every, monkeypatch):
    """Every seventh of a third of the placements by day; all of all by night."""
    planted = list(planted_in(placement))
    assert {"a sign", "a norm"} <= {kind for kind, *_ in planted}
    for kind, equation, where in planted[PLACEMENTS.index(placement) % min(4, every) :: every]:
        with monkeypatch.context() as patch:
            assert is_caught(placement, equation, where, patch), (kind, equation, where)
