"""How W&B shall know a run: under which words it groups, filters and sorts."""

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from transformer_norms.run.folder import attempts
from transformer_norms.run.identity import digest, part
from transformer_norms.run.sweep_record import PlannedRun, SweepRecord, label, read_record

_LONGEST_TAG = 64

Summary = dict[str, Any]


def described(folder: Path, summary: Summary) -> dict[str, Any]:
    """The fields of wandb.init. What the config has above a run's own keys is what one groups by:
    `choices.norm`, `choices.placement`, ..., `variant`, `stage`, `seed`."""
    config = _config(folder)
    choices = summary.get("choices") or config.get("choices") or {}
    planned, record = planned_in(folder, summary.get("identity")) or (None, None)
    stage = planned.stage if planned else "train"
    words = {
        "choices": choices,
        "variant": label(planned.variant) if planned else variant_of(folder, config),
        "stage": stage,
        "identity": summary.get("identity"),
        "commit": summary.get("commit"),
    }
    return {
        "name": folder.name,
        "job_type": stage,
        "tags": [f"{axis}={value}"[:_LONGEST_TAG] for axis, value in choices.items()],
        "notes": record.question if record else None,
        "config": {**config, **words},
    }


def questions(study: Path) -> str:
    """What the sweeps of a study ask."""
    return " ".join(dict.fromkeys(record.question for record in _records(study)))


def planned_in(folder: Path, identity: str | None) -> tuple[PlannedRun, SweepRecord] | None:
    """What a sweep planned the run for; as a result, where one did so and another for tuning."""
    found = [
        (run, record)
        for record in _records(folder.parent)
        for run in record.runs
        if run.identity == identity and folder in _attempts_at(run, folder.parent)
    ]
    return min(found, key=lambda pair: pair[0].stage != "result", default=None)


def _attempts_at(run: PlannedRun, study: Path) -> list[Path]:
    return attempts(study, run.identity, run.folder.rpartition(run.identity[:8])[2])


def _records(study: Path) -> list[SweepRecord]:
    records = []
    for path in sorted(study.glob("sweep-*.json")):
        with suppress(Exception):  # a record that cannot be read keeps no run from W&B
            records.append(_record(path, path.stat().st_mtime_ns))
    return records


@lru_cache(maxsize=32)
def _record(path: Path, written: int) -> SweepRecord:
    return read_record(path)


def variant_of(folder: Path, config: dict[str, Any]) -> str:
    """Of a run that no sweep planned: its name without the seed, and a hash of all other keys, so
    that nothing but seeds is averaged: `rmsnorm-post-tiny-3f2a`."""
    name = re.sub(r"(-s\d+)?-[0-9a-f]{8}(-from-\w+)?(-\d+)?$", "", folder.name)
    try:
        rest = part(config)
        del rest["seed"]
        if config["words"].get("data.seed") == "auto":
            del rest["data"]["seed"]
        return f"{name}-{digest(rest)[:4]}"
    except (KeyError, TypeError, AttributeError):  # an older config
        return name


def _config(folder: Path) -> dict[str, Any]:
    with suppress(Exception):
        loaded = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=False)
        return {str(key): value for key, value in loaded.items()}  # type: ignore[union-attr]
    return {}
