"""Hands jobs to a launcher, Hydra's or ours, and says what became of each."""

from collections.abc import Callable
from typing import Any

from transformer_norms.sweep.planning import Job

Answer = dict[str, Any]  # of transformer_norms.sweep.job


def batches(launcher: Any, jobs: list[Job]) -> list[list[Job]]:
    """One by one where they run in this process: a signal need not wait for Hydra to compose those
    that will not be run, and what another driver has finished meanwhile is seen."""
    if type(launcher).__name__ == "BasicLauncher":  # Hydra loads plugins as modules of their own
        return [[job] for job in jobs]
    return [jobs] if jobs else []


def launched(launcher: Any, batch: list[Job], say: Callable[[str], None]) -> list[Answer]:
    """What became of each job; a launcher that breaks down loses no more than its own jobs."""
    if all(job.ended for job in batch):
        return [{"status": "finished"}] * len(batch)
    try:
        returns = launcher.launch([list(job.overrides) for job in batch], initial_job_idx=0)
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"the launcher broke down: {line}")
        lost = {"status": "failed", "error": line}
        return [{"status": "finished"} if job.ended else lost for job in batch]
    return [_answer(one) for one in returns]


def _answer(returned: Any) -> Answer:
    try:
        return dict(returned.return_value)
    except Exception as error:  # Hydra keeps what a job raised until one asks for its value
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return {"status": "failed", "error": line}
