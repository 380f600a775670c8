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
NORMS = ("norm", "l2norm")


def is_norm(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in NORMS


def is_sub_layer(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("f", "attention", "mlp")


def faults(text):
    """(what is wrong, the text with it), each fault once."""
    tree, seen = ast.parse(text, mode="eval"), {ast.unparse(ast.parse(text))}
    for kind, plant in (("sign", flip), ("norm", drop), ("norm", add), ("place", move)):
        for number in range(len(list(ast.walk(tree)))):
            planted = plant(copy.deepcopy(tree), number)
            if planted is not None and ast.unparse(planted) not in seen:
                seen.add(ast.unparse(planted))
                yield kind, ast.unparse(planted)


def replace(tree, old, new):
    class Replacing(ast.NodeTransformer):
        def visit(self, node):
            return new if node is old else self.generic_visit(node)

    return Replacing().visit(tree)


def flip(tree, number):
    """A plus becomes a minus, or a minus a plus."""
    node = list(ast.walk(tree))[number]
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))):
        return None
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    return tree


def drop(tree, number):
    """A norm is gone: around a stream, or at a site inside f."""
    node = list(ast.walk(tree))[number]
    if is_norm(node):
        return replace(tree, node, node.args[0])
    if is_sub_layer(node) and node.keywords:
        node.keywords.pop()
        return tree
    return None


def add(tree, number):
    """A norm that the paper does not have: around what f reads, around f, around the sum."""
    nodes = list(ast.walk(tree))
    node = nodes[min(number, len(nodes) - 1)]
    new = ast.Call(ast.Name("norm"), [node], [])
    parents = [of for of in ast.walk(tree) if node in ast.iter_child_nodes(of)]
    inside_norm = any(is_norm(of) for of in parents)
    reads = any(is_sub_layer(of) and node is of.args[0] for of in parents)
    if is_norm(node) or inside_norm:
        return None
    if isinstance(node, ast.Name) and reads:
        return replace(tree, node, new)
    if is_sub_layer(node) or node is tree.body:
        return replace(tree, node, new)
    return None


def move(tree, number):
    """A norm stands at another place: the first is dropped, and one is added."""
    norms = [node for node in ast.walk(tree) if is_norm(node)]
    if not norms:
        return None
    without = replace(tree, norms[0], norms[0].args[0])
    return add(without, number)


def planted_in(placement):
    """Every placement file with one fault: (kind, equation, where)."""
    node = plain(fingerprints.config_of(placement).placement)
    original, where = node["equation"], node.get("where", [])
    for kind, text in in_equation(original):
        yield kind, text, where
    for number, entry in enumerate(where):
        for kind, text in in_equation(entry["equation"]):
            entries = copy.deepcopy(where)
            entries[number]["equation"] = text
            yield kind, original, entries


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
    for key in ("equation", "where"):
        config = changed(config, f"placement.{key}", node[key])
    monkeypatch.setattr(
        fingerprints, "config_of", lambda of, **words: config if of == name else original(of)
    )
    return any(fingerprints.differences(name, placement))


PLANTED = 7  # every seventh fault of every third placement by day; all of all by night


@pytest.mark.parametrize("placement", PLACEMENTS[::3])
def test_a_fault_in_the_equation_of_a_placement_is_caught(placement, monkeypatch):
    planted = list(planted_in(placement))[PLACEMENTS.index(placement) % 4 :: PLANTED]
    assert planted
    assert_caught(placement, planted, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_fault_in_the_equation_of_a_placement_is_caught(placement, monkeypatch):
    planted = list(planted_in(placement))
    assert {"sign", "norm"} <= {kind for kind, *_ in planted}
    assert_caught(placement, planted, monkeypatch)


def assert_caught(placement, planted, monkeypatch):
    for kind, equation, where in planted:
        with monkeypatch.context() as patch:
            assert is_caught(placement, equation, where, patch), (kind, equation, where)
