"""The learning rate at a step, as a share of its peak: pure functions, so resuming needs no state.

A schedule is a function of the step, which counts from 0, and of the horizon, registered in
SCHEDULES. The schedules here rise linearly over `warmup` steps; a schedule without a warm-up has no
such argument. A config may give the warm-up as a share of the steps, and makes steps of it before
a schedule is built.
"""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator

from transformer_norms.kinds import Count, Mark, OpenShare, Share
from transformer_norms.names import Registry

SCHEDULES = Registry("schedule")


def _steps_or_share(value: Any) -> Any:
    whole = isinstance(value, (int, float)) and value >= 0 and float(value).is_integer()
    if isinstance(value, bool) or not (whole or (isinstance(value, float) and 0 < value < 1)):
        raise ValueError("it should be steps, such as 100, or a share of the steps, such as 0.05")
    return value


Warmup = Annotated[Count | OpenShare, BeforeValidator(_steps_or_share), Mark.STEPS]


@SCHEDULES("constant")
def constant(step: int, steps: int, *, warmup: Warmup) -> float:
    """1 after the warm-up"""
    return _rise(step, warmup)


@SCHEDULES("cosine")
def cosine(step: int, steps: int, *, warmup: Warmup, final: Share) -> float:
    """final + (1 - final) * (1 + cos(pi t)) / 2, t from 0 after the warm-up to 1 at the end"""
    t = _progress(step, steps, warmup)
    return _rise(step, warmup) * (final + (1 - final) * (1 + math.cos(math.pi * t)) / 2)


@SCHEDULES("linear")
def linear(step: int, steps: int, *, warmup: Warmup, final: Share) -> float:
    """1 + (final - 1) * t, t from 0 after the warm-up to 1 at the end"""
    return _rise(step, warmup) * (1 + (final - 1) * _progress(step, steps, warmup))


@SCHEDULES("wsd")
def wsd(step: int, steps: int, *, warmup: Warmup, final: Share, decay: OpenShare) -> float:
    """Warm-up, stable, decay: 1, then linearly to `final` over the last share `decay` of the steps
    Hu et al. 2024 (MiniCPM), arXiv:2404.06395"""
    start = round(steps * (1 - decay))
    return _rise(step, warmup) * (1 + (final - 1) * _progress(step, steps, start))


def _rise(step: int, warmup: float) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _progress(step: int, steps: int, start: float) -> float:
    return min(1.0, max(0.0, (step - start) / max(1, steps - start)))
