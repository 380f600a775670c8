"""Many runs from one command: every job is checked before the first, then each is run in turn."""

import itertools
import json
import math
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra.errors import HydraException

from transformer_norms.config import check_hydras, check_names, compose, plain
from transformer_norms.errors import Busy, ConfigError
from transformer_norms.overrides import parse_one

Job = tuple[str, ...]
MOST_JOBS = 10_000


@cache
def plan(arguments: Job) -> list[Job]:
    """The product of what was typed with commas, each job composed, its data and folder looked at.

    ConfigError or InputError, and nothing written, where one of them cannot be run.
    """
    check_hydras([text for text in arguments if _is_hydras(text)])
    axes = [_values(text) for text in arguments if not _is_hydras(text)]
    if math.prod(len(values) for values in axes) > MOST_JOBS:
        line = " ".join(arguments)
        raise ConfigError(f"{line}: is more than {MOST_JOBS} jobs; split the study")
    check_names(itertools.chain(*axes))
    jobs = list(itertools.product(*axes))
    for job in jobs:
        config = compose(job)  # before torch is imported with what comes next
        from transformer_norms.plan import Plan

        Plan(plain(config))
    return jobs


def run(arguments: Sequence[str], launcher: Any) -> list[Any]:
    """What Hydra's `-m` calls: launches the jobs, ends with the sweep's JSON line and exit code."""
    from transformer_norms.record import say  # imports torch

    jobs = plan(tuple(arguments))
    study = compose(jobs[0]).study
    say(f"{len(jobs)} jobs in runs/{study}")
    returns = launcher.launch([list(job) for job in jobs], initial_job_idx=0)
    counts = Counter(result.return_value["status"] for result in returns)
    close_mirrors()
    answer = {
        "study": study,
        "runs": len(jobs),
        **{status: counts[status] for status in ("finished", "diverged", "failed")},
        "missing": len(jobs) - sum(counts[s] for s in ("finished", "diverged", "failed")),
        "report": None,
    }
    print(json.dumps(answer), flush=True)
    if counts["preempted"] or counts["busy"]:
        raise SystemExit(75)
    if counts["failed"]:
        raise SystemExit(1)
    return list(returns)


def job(overrides: Sequence[str]) -> dict[str, Any]:
    """One job, in whichever process the launcher chose. It never raises for what goes wrong in it:
    it says so, and the sweep goes on. After a signal no further job is begun."""
    from transformer_norms.record import say
    from transformer_norms.run import train

    if _stopped:
        return {"status": "preempted"}
    say(f"--- {' '.join(overrides)}")
    try:
        config = compose(overrides)
        if config.tracking.type == "wandb":
            summary = train(config, mirror(config.tracking.mode).follow)
        else:
            summary = train(config)
    except Busy as error:
        say(f"{error}; left to it")
        return {"status": "busy"}
    except Exception as error:
        say(f"failed: {type(error).__name__}: {error}")
        print(traceback.format_exc(), file=sys.stderr)
        return {"status": "failed"}
    if summary["status"] == "preempted":
        _stopped.append(summary["folder"])
    loss = "" if summary["val_loss"] is None else f", val_loss {summary['val_loss']:.4f}"
    say(f"{summary['folder']}: {summary['status']}{loss}")
    return {key: summary[key] for key in ("status", "folder", "step", "val_loss")}


@cache
def mirror(mode: str) -> Any:
    """The one W&B mirror of this process."""
    from transformer_norms.tracking import Mirror

    _opened.append(Mirror(mode))
    return _opened[-1]


_opened: list[Any] = []
_stopped: list[str] = []  # the run that a signal stopped, if one did


def close_mirrors() -> None:
    while _opened:
        _opened.pop().close()
    mirror.cache_clear()


def _values(text: str) -> list[str]:
    """`norm=a,b` -> `norm=a`, `norm=b`"""
    override = parse_one(text)
    if not override.is_sweep_override():
        return [text]
    try:
        found = list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except HydraException:  # glob and interval
        raise ConfigError(f"{text}: a sweep lists its values, KEY=A,B or KEY=range(0,3)") from None
    values = [f"{override.get_key_element()}={value}" for value in found]
    if not values:
        raise ConfigError(f"{text}: names no value")
    return values


def _is_hydras(text: str) -> bool:
    return text.startswith(("hydra/", "hydra."))
