"""Hydra's launchers and sweepers: `hydra/launcher=joblib`, `hydra/sweeper=optuna`.

Hydra reads the words that begin with `hydra`, the number of a job, and the words that a sweeper
draws from. It composes no config of a run.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.signals import Stopping
from transformer_norms.sweep.launcher import JobEnd, Launcher, Stacks

# Hydra's other settings are refused, as any key that a run does not have.
_TAKEN = ("hydra/launcher=", "hydra/sweeper=", "hydra.launcher.", "hydra.sweeper.")
_QUIET = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the words for Hydra, which choose a launcher or a sweeper, and the others."""
    words = list(words)
    for text in words:
        if text in ("hydra/launcher=pool", "hydra/launcher=slurm"):
            raise ConfigError(f"{text}: type {text.removeprefix('hydra/')}")
    hydras = [text for text in words if text.startswith(_TAKEN) and "._target_=" not in text]
    return hydras, [text for text in words if text not in hydras]


def hydra_config(words: Sequence[str]) -> str:
    """Returns Hydra's own settings as YAML. Raises ConfigError where a word is wrong."""
    from hydra import compose
    from omegaconf import OmegaConf

    with _hydra(words):
        return OmegaConf.to_yaml(compose("sweep", list(words), return_hydra_config=True).hydra)


class HydraLauncher(Launcher):
    """A launcher of Hydra's, which gets all jobs at once. The basic one, which runs them in this
    process, gets one at a time."""

    def __init__(self, words: Sequence[str], study: str) -> None:
        self.words, self.study = words, study
        self.at_once = int("hydra/launcher=basic" in words)

    def run(self, stacks: Stacks, stopping: Stopping) -> dict[Path, JobEnd]:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.plugins import Plugins
        from hydra.types import HydraContext, RunMode

        jobs = list(chain(*stacks))
        # hydra.multirun composes a config for each job first, and leaves a file in the study.
        with _hydra(self.words, self.study, {"job": 0}) as hydra:
            config = hydra.compose_config("sweep", list(self.words), run_mode=RunMode.MULTIRUN)
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(hydra.config_loader, Callbacks(config)),
                task_function=partial(_run_job, [list(job.overrides) for job in jobs]),
                config=config,
            )
            numbers = [[f"job={number}"] for number in range(len(jobs))]
            returned = launcher.launch(numbers, initial_job_idx=0)
            return {job.folder: one.return_value for job, one in zip(jobs, returned, strict=True)}


def _run_job(jobs: Sequence[Sequence[str]], config: Any) -> JobEnd:
    from transformer_norms.sweep.launching import run_jobs

    (end,) = run_jobs([jobs[config.job]])
    return end


def run_search(
    hydras: Sequence[str], words: Sequence[str], train: Callable[[Sequence[str]], float]
) -> int:
    """Lets a sweeper of Hydra's draw values, and reports its study. `train` returns the loss of a
    run."""
    from omegaconf import OmegaConf

    from transformer_norms.config.chosen_files import check_names
    from transformer_norms.config.compose import compose
    from transformer_norms.config.overrides import FUNCTION, is_several, read_several
    from transformer_norms.sweep.ending import end_search

    drawn = [text for text in words if is_several(text)]
    fixed = [text for text in words if text not in drawn]
    keys, first, several = OmegaConf.create({}), [], []
    for text in drawn:
        key, values = read_several(text)
        OmegaConf.update(keys, key, None, force_add=True)
        listed = [f"{key}={value}" for value in values or ()]
        check_names(listed)
        first += listed[:1]
        if values and not FUNCTION.fullmatch(text.partition("=")[2]):
            text = f"{key}={','.join(map(_quoted, values))}"
        several.append(text)
    study = compose([*fixed, *first]).study
    with _hydra([*hydras, *drawn], study, OmegaConf.to_container(keys)) as hydra:
        hydra.multirun("sweep", partial(_run_drawn, train, fixed), [*hydras, *several])
    return end_search(Path("runs") / study)


def _quoted(value: str) -> str:
    """Returns a value that Hydra's grammar does not have, such as an equation, as a text in it."""
    if re.fullmatch(r"[\w./:+-]*|\[.*\]|\{.*\}|'.*'", value):
        return value
    return "'" + value.replace("'", r"\'") + "'"


def _run_drawn(train: Callable[[Sequence[str]], float], fixed: Sequence[str], _: Any) -> float:
    from hydra.core.hydra_config import HydraConfig

    from transformer_norms.sweep.launching import shorten

    return train([*fixed, *map(shorten, HydraConfig.get().overrides.task)])


@contextmanager
def _hydra(words: Sequence[str], study: str = "main", keys: Any = {}) -> Iterator[Any]:
    """Starts a Hydra that writes into the study's folder, and whose config has these keys. Raises
    ConfigError where it refuses one of the words."""
    from hydra import initialize
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    own = {"output_subdir": None, "sweep": {"dir": f"runs/{study}", "subdir": "."}}
    node = {"defaults": ["_self_", *_QUIET], "hydra": own, **keys}
    ConfigStore.instance().store("sweep", node)
    try:
        with initialize(config_path=None, version_base="1.3"):
            yield GlobalHydra.instance().hydra
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{' '.join(words)}: {error}") from None
