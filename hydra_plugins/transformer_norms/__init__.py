"""Shows Hydra our sweeper, `hydra/sweeper=study`, and our launcher, `hydra/launcher=pool`.

Hydra imports this folder at every start, so nothing heavy is imported here.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper

_HERE = "hydra_plugins.transformer_norms"
_store = partial(ConfigStore.instance().store, provider="transformer_norms")
_store("study", {"_target_": f"{_HERE}.StudySweeper"}, "hydra/sweeper")
_store("pool", {"_target_": f"{_HERE}.PoolLauncher", "workers": 2}, "hydra/launcher")


class StudySweeper(Sweeper):
    """Checks all jobs before the first one starts, then runs what is missing."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from hydra.core.plugins import Plugins

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> Any:
        from transformer_norms.sweep.drive import run_sweep

        try:
            return run_sweep(arguments, self.launcher)
        finally:
            getattr(self.launcher, "close", lambda: None)()


class PoolLauncher(Launcher):
    """Runs jobs in the workers of transformer_norms.sweep.pool, which stay until the end."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pool: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from transformer_norms.sweep.pool import Pool

        self.pool = Pool(self.workers)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Any:
        from hydra.core.utils import JobReturn, JobStatus

        return [
            JobReturn(_return_value=answer, status=JobStatus.COMPLETED)
            for answer in self.pool.run(job_overrides)
        ]

    def close(self) -> None:
        self.pool.close()
