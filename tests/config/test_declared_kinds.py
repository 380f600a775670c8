"""A value that a declaration forbids is refused; the values follow from the annotations."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from refusing import refused
from typing_extensions import TypeAliasType

from transformer_norms.config.checks.registered import USES
from transformer_norms.config.chosen_files import option_content
from transformer_norms.config.compose import compose
from transformer_norms.config.launchers import LAUNCHERS, read_launcher
from transformer_norms.config.overrides import read_value
from transformer_norms.config.tree import CHOSEN, base_of, owner_of
from transformer_norms.kinds import Mark, short_text
from transformer_norms.names import options
from transformer_norms.validation import parameters

# A value of another kind, and what the refusal says of it.
OTHERS = {
    bool: {"1": "it should be true or false"},
    int: {"1.5": "it should be an integer", "true": "a whole number is wanted"},
    float: {"abc": "a number", "true": "a number", "[1]": "a number", "'1e-5'": "a number"},
    str: {"[1]": "it should be a word"},
}
BOUNDS = {
    Ge: "greater than or equal to", Gt: "greater than", Le: "less than or equal to", Lt: "less than"
}  # fmt: skip
# Keys that say what a file is, and those that are read before kinds are checked.
APART = {"type", "formula", "source", "unverified", "plugins", "continue_from", "separator"}
APART |= {"brings", "otherwise"}


def declared() -> Iterator[Any]:
    """Yields for each key: what refuses a value, what is typed before, the key, its annotation."""
    owners = [((), name, owner_of(kind)) for name, kind in CHOSEN.items() if name != "about"]
    for axis, use in USES.items():
        types = {option_content(axis, one).get("type"): one for one in options(axis)}
        owners += [((f"{axis}={types[k]}",), axis, use.registry[k]) for k in filter(None, types)]
    for typed, node, owner in owners:
        keys = parameters(owner) if owner else {}
        supplied = {*USES[node].supplied, *USES[node].offered} if node in USES else ()
        for key in (key for key in keys if key not in {*APART, *supplied}):
            yield compose, typed, f"{node}.{key}", keys[key].annotation
    for name, kind in CHOSEN.items():
        if not owner_of(kind) and not is_dataclass(base_of(kind)) and name not in {*USES, *APART}:
            yield compose, (), name, kind
    for name, settings in LAUNCHERS.items():
        for key, setting in parameters(settings).items():
            yield read_launcher, (f"launcher={name}",), f"launcher.{key}", setting.annotation


def members(kind: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each member of a union with its marks and limits."""
    limits: list[Any] = []
    while isinstance(kind, TypeAliasType) or get_origin(kind) is Annotated:
        if isinstance(kind, TypeAliasType):
            kind = kind.__value__
        else:
            kind, *own = get_args(kind)
            limits += [limit for one in own for limit in getattr(one, "metadata", [one])]
    if get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from ((member, [*own, *limits]) for member, own in members(one))
    else:
        yield kind, limits


def forbidden(kind: Any) -> Iterator[tuple[str, str]]:
    """Yields values as they are typed, and what their refusals say is allowed instead."""
    found = list(members(kind))
    words = ["auto"] if Mark.AUTO in found[0][1] else []
    words += [word for one, _ in found if get_origin(one) is Literal for word in get_args(one)]
    others = [member for member in found if get_origin(member[0]) is not Literal]
    if words and {one for one, _ in others} <= {int, float, bool}:
        yield words[-1][:-1], f"allowed are {', '.join(words)}"
        yield words[-1][:-1], f"did you mean '{words[-1]}'? "
    for one, limits in others if len(others) == 1 else ():
        yield from OTHERS.get(one, {}).items()
        bound_of = lambda limit: getattr(limit, type(limit).__name__.lower())  # noqa: E731
        for ends, tightest, sign in (((Ge, Gt), max, -1), ((Le, Lt), min, 1)):
            if among := [limit for limit in limits if type(limit) in ends]:
                limit = tightest(among, key=bound_of)
                bound, end = bound_of(limit), type(limit)
                step = 1 if one is int else 0.001 * max(1, abs(bound))
                beyond = bound if end in (Gt, Lt) else bound + sign * step
                yield str(one(beyond)), f"it should be {BOUNDS[end]} {short_text(bound)}"


CASES = [(*case[:3], *pair) for case in declared() for pair in forbidden(case[3])]


@pytest.mark.parametrize(
    ("refuse", "before", "key", "value", "allowed"),
    [pytest.param(*case, id=f"{case[2]}={case[3]}") for case in CASES],
)
def test_what_a_declaration_forbids_is_refused_with_what_it_allows(
    refuse, before, key, value, allowed
):
    line = refused(refuse, [*before, f"{key}={value}"])
    assert line.startswith(f"{key}: ")
    assert f"{short_text(read_value(value))} is not allowed; " in line
    assert allowed in line, line


def test_every_key_with_words_a_kind_or_a_bound_has_wrong_values():
    assert len({case[2] for case in CASES}) > 90
    for end in BOUNDS.values():
        assert any(f"be {end} " in case[4] for case in CASES), end
