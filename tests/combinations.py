"""Configs of many combinations at a fraction of Hydra's time: the defaults are composed once, and
the chosen files' contents put in their place before the whole is resolved and validated."""

import copy
from functools import cache

from transformer_norms.config.compose import _fresh, compose
from transformer_norms.config.overrides import parse
from transformer_norms.config.resolution import resolve
from transformer_norms.names import distinct_norms, options


@cache
def _base(typed):
    return _fresh(parse(typed), None)


def combined(*typed, norm="rmsnorm", placement="pre", **words):
    """As compose([*typed, "norm=...", "placement=...", "KEY=WORD"...]), as plain dicts. A typed
    value of the norm or placement is no use: their files' contents come after it."""
    assert not [text for text in typed if text.startswith(("norm.", "placement."))]
    config, axes, option = copy.deepcopy(_base(typed))
    keys = {pair.key for pair in parse(typed)} | {"norm", "placement", *words}
    for axis, name in {"norm": norm, "placement": placement}.items():
        config[axis], axes[axis] = option(axis, name), name
    for word, value in words.items():
        if word in axes:
            config[word], axes[word] = option(word, value), value
        else:
            config[word] = value
    if norm == "batchnorm":
        config["norm"]["allow_noncausal"] = True
    return resolve(config, axes, keys, option)


def composed(*typed, norm="rmsnorm", placement="pre", **words):
    """The same by the front door, which a test compares with the above."""
    allowed = ["norm.allow_noncausal=true"] * (norm == "batchnorm")
    chosen = [f"{key}={value}" for key, value in words.items()]
    return compose([*typed, f"norm={norm}", f"placement={placement}", *allowed, *chosen])


def norms_in_turn(placement, part, parts=3):
    """One part of the norms for a placement, and for the next placement the next part.

    The parts together are all pairs of placement and norm.
    """
    return distinct_norms()[(options("placement").index(placement) + part) % parts :: parts]
