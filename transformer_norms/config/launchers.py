"""The settings of `launcher=pool` and `launcher=slurm`: how many runs go on at once, and where."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Auto, Flag, Integer, Nothing, Number, Text, node
from transformer_norms.names import Registry
from transformer_norms.validation import build

LAUNCHERS = Registry("launcher")
WITHOUT_A_GPU = 2  # workers

# Options of sbatch that are keys of the launcher, or that it sets itself.
_KEYS = {
    "partition": "partition", "time": "time", "gpus-per-node": "gpus", "cpus-per-task": "cpus",
    "mem": "memory", "array": "pilots",
}  # fmt: skip
_OURS = ("output", "error", "open-mode", "nodes", "ntasks", "ntasks-per-node", "requeue", "wrap")

Workers = Annotated[Integer, Field(ge=1, le=1024)]
Stacked = Nothing | Annotated[Integer, Field(ge=2, le=1024)]  # runs
Sharing = Annotated[Integer, Field(ge=1, le=48)]  # processes of one GPU under MPS
Minutes = Annotated[Integer, Field(ge=3, le=525600)]  # Slurm's signal comes 90 s before the limit
Gigabytes = Annotated[Number, Field(gt=0, le=1e6)]


def _options_of_sbatch(text: str) -> str:
    for name in read_options(text):
        if name in _KEYS:
            raise ValueError(f"--{name} is the key launcher.{_KEYS[name]}")
        if name in _OURS:
            raise ValueError(f"--{name} is set by the launcher itself")
    return text


def read_options(text: str) -> dict[str, str | bool]:
    """Returns the options of sbatch that `--account=me --exclusive` names. Raises ValueError."""
    options: dict[str, str | bool] = {}
    for word in [] if text == "none" else shlex.split(text):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name.replace("-", "").isalnum():
            raise ValueError(f"it should be options of sbatch, '--NAME=VALUE --NAME', not {word!r}")
        options[name] = value if equals else True
    return options


@LAUNCHERS("pool")
@node
class PoolSettings:
    """`launcher=pool`: workers that stay. `pools` commands like this one share the sweep's runs.
    So many runs of a variant train as one in a worker as are `stacked`, at most."""

    workers: Auto | Workers
    per_gpu: Sharing
    stacked: Stacked
    pools: Workers

    def __post_init__(self) -> None:
        _refuse_two_numbers(self.workers, self.per_gpu)

    def count(self, gpus: int) -> int:
        """Returns the number of workers on a machine with so many GPUs."""
        return self.workers if self.workers != "auto" else gpus * self.per_gpu or WITHOUT_A_GPU


@LAUNCHERS("slurm")
@node
class SlurmSettings:
    """`launcher=slurm`: an array of jobs that each run a pool on one node. `time` is in minutes,
    `memory` in GB; `gpus`, `cpus` and `memory` are those of one node."""

    partition: Nothing | Text
    pilots: Annotated[Integer, Field(ge=1, le=1000)]
    time: Minutes
    gpus: Annotated[Integer, Field(ge=0, le=64)]
    cpus: Workers
    memory: Nothing | Gigabytes
    workers: Auto | Workers
    per_gpu: Sharing
    stacked: Stacked
    wait: Flag
    options: Annotated[Text, AfterValidator(_options_of_sbatch)]

    def __post_init__(self) -> None:
        _refuse_two_numbers(self.workers, self.per_gpu)
        if self.per_gpu > 1 and not self.gpus:
            raise ValueError("launcher.per_gpu: there is no GPU to share; type launcher.gpus too")

    @property
    def pool(self) -> PoolSettings:
        """The settings of the pool that each job runs."""
        return PoolSettings(
            workers=self.workers, per_gpu=self.per_gpu, stacked=self.stacked, pools=self.pilots
        )


def read_launcher(name: str, values: Mapping[str, Any]) -> Any:
    """Returns the settings of a launcher of ours; None of one that has none. Raises ConfigError."""
    return build(LAUNCHERS[name], "launcher", values) if name in LAUNCHERS else None


def check_chosen_launcher(name: str, plugin: str) -> None:
    """Raises ConfigError where `hydra/launcher=` names a launcher of ours, which has a group."""
    if plugin in LAUNCHERS and plugin != name:
        raise ConfigError(f"hydra/launcher={plugin}: type launcher={plugin}")


def _refuse_two_numbers(workers: int | str, per_gpu: int) -> None:
    if workers != "auto" and per_gpu > 1:
        raise ValueError(
            f"launcher.workers={workers}: launcher.per_gpu={per_gpu} says already how many workers "
            "there are; type one of the two"
        )
