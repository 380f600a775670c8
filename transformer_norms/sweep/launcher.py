"""The input and output of a launcher of a sweep. A worker imports this file first: nothing here
imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_norms.signals import Stopping

if TYPE_CHECKING:
    from transformer_norms.sweep.planning import Job

Stacks = Sequence[Sequence["Job"]]  # a worker gets the jobs of one stack at once, mostly one job


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: finished, diverged, preempted, busy or failed. A job that failed has an
    `error` in one line and, where there is one, its `traceback`. A `remark` says why runs were not
    stacked."""

    status: str
    error: str = ""
    traceback: str = ""
    remark: str = ""


class Launcher:
    """Runs the jobs of a sweep: ours in workers or in pilots of Slurm, or one of Hydra's.

    `at_once` is how many runs go on at a time, 0 if that is not known. `stacked` is the largest
    number of runs that train as one, or none. `can_run_alone` says whether `run` may be called
    for single jobs of a sweep.
    """

    at_once = 0
    stacked: int | str = "none"
    can_run_alone = True

    def run(self, stacks: Stacks, stopping: Stopping) -> dict[Path, JobEnd]:
        """Returns how each job ended, by its folder. Where `stopping.stop_requested` is set, the
        runs are saved and no further one begins."""
        raise NotImplementedError

    def forget_sweep(self) -> None:
        """Forgets what concerns this sweep alone, which has ended."""

    def close(self) -> None:
        """Ends the processes that stay between jobs."""
