"""How everything here is timed: in one process, by rounds, each of which times every contender; and
how a benchmark's command begins and ends."""

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from contenders import Size

from transformer_norms.errors import ConfigError
from transformer_norms.run import machine

ROTATION = 5  # rounds at least: quartiles of fewer say nothing
ASLEEP = 0.01  # seconds, after which the threads of what was timed before do not spin any more
WARM = 3  # steps before any is timed: allocations, kernels' choices, optimizer state
Steps = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]
Measured = dict[str, Any]  # of one size, as the JSON holds it


def each_size(
    typed: argparse.Namespace,
    measure: Callable[[Size, argparse.Namespace], Measured],
    table: Callable[[Measured], list[str]],
    more: Measured,
) -> int:
    """Measures every size that was typed, shows it, and writes it all with `more`; an exit code."""
    try:
        check(typed)
        results = []
        for size in [Size.read(text) for text in typed.sizes.split(",")]:
            results.append(measure(size, typed))
            print("\n".join(table(results[-1])), flush=True)
            gc.collect()
            torch.compiler.reset()  # else the next size would be compiled for any size
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    write(typed.out, {"sizes": results, "overrides": typed.overrides, **more})
    return 0


def check(typed: argparse.Namespace) -> None:
    """ConfigError where nothing could be measured, or nothing written."""
    if typed.rounds < ROTATION:
        raise ConfigError(f"--rounds {typed.rounds}: at least {ROTATION} are needed")
    if not 0 < typed.seconds < math.inf:
        raise ConfigError(f"--seconds {typed.seconds}: should be above 0")
    check_out(typed.out)


def check_out(out: Path | None) -> None:
    if out and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out and out.is_dir():
        raise ConfigError(f"--out {out}: is a folder")


def write(out: Path | None, record: dict[str, Any]) -> None:
    """The record with what it was measured on, where --out names a file."""
    if out:
        out.write_text(json.dumps(surroundings() | record, indent=1, allow_nan=False) + "\n")


def surroundings() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.device("cpu"),
        "threads": torch.get_num_threads(),
        "versions": machine.versions(),
    }


def steps_a_round(steps: Steps, seconds: float) -> int:
    """How many steps of each make a round of so many seconds, found while warming up."""
    for step in steps.values():
        timed(step, WARM)
    return max(1, round(seconds / sum(timed(step, 1) for step in steps.values())))


def interleaved(steps: Steps, count: int, rounds: int, seconds: float) -> Times:
    """One time of each a round, another first in each, so that a slow minute slows them all."""
    times: Times = {name: [] for name in steps}
    names, begun = list(steps), time.perf_counter()
    for i in range(rounds):
        if i >= ROTATION and time.perf_counter() - begun > seconds:
            break
        place = i % len(names)
        for name in names[place:] + names[:place]:
            time.sleep(ASLEEP)
            times[name].append(timed(steps[name], count) / count)
    return times


def timed(step: Callable[[], Any], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begun


def ratios(times: Times, name: str, other: str) -> list[float]:
    """Round by round: what slowed one round slowed both."""
    return [a / b for a, b in zip(times[name], times[other], strict=True)]
