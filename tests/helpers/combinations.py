"""Configs of many combinations at a fraction of Hydra's time: the defaults are composed once, and
the chosen files' contents put in their place before the whole is resolved and validated."""

from dataclasses import is_dataclass, replace
from functools import cache

from transformer_norms.config.choices import choose
from transformer_norms.config.compose import complete, compose
from transformer_norms.config.overrides import Typed, parse
from transformer_norms.kinds import Values
from transformer_norms.names import distinct_norms, options


@cache
def _base(typed):
    return choose(parse(typed), None)


def combined(*typed, norm="rmsnorm", placement="pre", **words):
    """As compose([*typed, "norm=...", "placement=...", "KEY=WORD"...]). A typed value of the norm
    or placement is no use: their files' contents come after it."""
    assert not [text for text in typed if text.startswith(("norm.", "placement."))]
    choices, pairs = _base(typed), parse(typed)
    for key, word in {"norm": norm, "placement": placement, **words}.items():
        pairs.append(Typed(key, word, word))
        chosen = {key: word} if key in choices.axes else {}
        content = choices.option(key, word) if chosen else word
        choices = replace(
            choices, values={**choices.values, key: content}, axes={**choices.axes, **chosen}
        )
    if norm == "batchnorm":
        choices.values["norm"]["allow_noncausal"] = True
    return complete(choices, pairs)


def composed(*typed, norm="rmsnorm", placement="pre", **words):
    """The same by the front door, which a test compares with the above."""
    allowed = ["norm.allow_noncausal=true"] * (norm == "batchnorm")
    chosen = [f"{key}={value}" for key, value in words.items()]
    return compose([*typed, f"norm={norm}", f"placement={placement}", *allowed, *chosen])


def changed(config, key, value):
    """The config with another value of a dotted key, which nothing checks."""
    name, _, last = key.partition(".")
    if last and is_dataclass(node := getattr(config, name)):
        value = replace(node, **{last: value})
    elif last:
        value = Values({**node, last: value})
    return replace(config, **{name: value})


_norms = cache(distinct_norms)  # which reads all their files
PARTS = 12  # of all pairs; the quick tests of three claims take one part each


def norms_in_turn(placement, part):
    """One part of the norms for a placement, and for the next placement the next part.

    The parts together are all pairs of placement and norm.
    """
    return _norms()[(options("placement").index(placement) + part) % PARTS :: PARTS]
