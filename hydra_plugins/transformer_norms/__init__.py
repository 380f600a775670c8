"""Where Hydra looks for sweepers and launchers: `hydra/sweeper=study`, the default, and
`hydra/launcher=pool`, which `launcher=pool` chooses. A few lines each, read at every start."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper

for group, name, node in (
    ("hydra/sweeper", "study", {"_target_": "hydra_plugins.transformer_norms.StudySweeper"}),
    (
        "hydra/launcher",
        "pool",
        {"_target_": "hydra_plugins.transformer_norms.PoolLauncher", "workers": 2},
    ),
):
    ConfigStore.instance().store(group=group, name=name, node=node, provider="transformer_norms")


class StudySweeper(Sweeper):
    """Checks all jobs before the first, then runs what is missing: transformer_norms.sweep."""

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
    """Workers that stay: transformer_norms.sweep.pool."""

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
