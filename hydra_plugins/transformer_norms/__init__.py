"""Shows Hydra our sweeper, `hydra/sweeper=study`, and our launchers, `launcher=basic`, `pool` and
`slurm`.

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
_LAUNCHERS = {"pool": "PoolLauncher", "slurm": "SlurmLauncher"}
for _name, _class in _LAUNCHERS.items():
    _node = {"_target_": f"{_HERE}.{_class}", "settings": "${launcher}"}
    _store(_name, _node, "hydra/launcher")
_ONE_WORKER = {"workers": 1, "per_gpu": 1, "stacked": "none", "pools": 1}


class StudySweeper(Sweeper):
    """Checks all jobs before the first one starts, then runs what is missing."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from hydra.core.plugins import Plugins

        typed = any(text.startswith("hydra/launcher=") for text in config.hydra.overrides.hydra)
        if config.hydra.runtime.choices["hydra/launcher"] == "basic" and not typed:
            # A run that ends its own process must not end the sweep.
            config.hydra.launcher = {"_target_": f"{_HERE}.PoolLauncher", "settings": _ONE_WORKER}
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

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.pool: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from transformer_norms.config.launchers import read_launcher
        from transformer_norms.sweep.pool import Pool

        settings = read_launcher("pool", self.settings)
        self.pool, self.stacked = Pool.of(settings), settings.stacked
        self.at_once = self.pool.at_once

    def launch(
        self,
        job_overrides: Sequence[Sequence[str]],
        initial_job_idx: int,
        stacks: Sequence[Sequence[int]] | None = None,
    ) -> Any:
        from hydra.core.utils import JobReturn, JobStatus

        return [
            JobReturn(_return_value=answer, status=JobStatus.COMPLETED)
            for answer in self.pool.run(job_overrides, stacks)
        ]

    def close(self) -> None:
        self.pool.close()


class SlurmLauncher(Launcher):
    """Leaves the sweep to jobs of Slurm: transformer_norms.sweep.pilots submits them and says how
    far they are."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from transformer_norms.config.launchers import read_launcher
        from transformer_norms.sweep.pilots import Pilots

        settings = read_launcher("slurm", self.settings)
        self.pilots = Pilots(settings, config.hydra.overrides.task)
        self.at_once = self.pilots.at_once

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Any:
        from transformer_norms.errors import ConfigError

        raise ConfigError("launcher=slurm: goes with hydra/sweeper=study, which is the default")
