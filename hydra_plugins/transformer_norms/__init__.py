"""Where Hydra looks for sweepers. `hydra/sweeper=study` is the project's own, and the default."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="study",
    node={"_target_": "hydra_plugins.transformer_norms.StudySweeper"},
    provider="transformer_norms",
)


class StudySweeper(Sweeper):
    """Checks all jobs before the first, then runs each in turn: transformer_norms.sweep."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from hydra.core.plugins import Plugins

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> Any:
        from transformer_norms.sweep import run

        return run(list(arguments), self.launcher)
