"""The settings of `launcher=pool` and `launcher=slurm`: how many runs go on at once, and where."""

import re
import shlex
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from transformer_norms.config.choices import place
from transformer_norms.config.chosen_files import check_option, option_content
from transformer_norms.config.overrides import parse
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Auto, Flag, Integer, Nothing, Number, Text, node
from transformer_norms.names import Registry
from transformer_norms.validation import build

LAUNCHERS = Registry("launcher")
WITHOUT_A_GPU = 2  # workers

# Options of sbatch that a sweep does not take.
_KEYS = {
    "partition": "partition", "time": "time", "gpus-per-node": "gpus", "cpus-per-task": "cpus",
    "mem": "memory", "array": "pilots",
}  # fmt: skip
_OURS = ("output", "error", "open-mode", "nodes", "ntasks", "ntasks-per-node", "requeue", "wrap")
_TAKEN = {name: f"the key launcher.{key}" for name, key in _KEYS.items()}
_TAKEN |= dict.fromkeys(_OURS, "set by the launcher itself")

Workers = Annotated[Integer, Field(ge=1, le=1024)]
Stacked = Nothing | Annotated[Integer, Field(ge=2, le=1024)]  # runs
Sharing = Annotated[Integer, Field(ge=1, le=48)]  # processes of one GPU under MPS
Minutes = Annotated[Integer, Field(ge=3, le=525600)]  # Slurm's signal comes 90 s before the limit
Gigabytes = Annotated[Number, Field(gt=0, le=1e6)]


def _check_part(text: str) -> str:
    numbers = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    if text != "none" and not (numbers and int(numbers[1]) <= int(numbers[2])):
        raise ValueError("it should be K/N, such as 3/8 for the third of eight parts, or none")
    return text


Part = Annotated[Text, AfterValidator(_check_part)]


def _options_of_sbatch(text: str) -> str:
    for name in read_options(text):
        if name in _TAKEN:
            raise ValueError(f"--{name} is {_TAKEN[name]}")
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
    So many runs of a variant train as one in a worker as are `stacked`, at most. `part` is K/N, the
    part of the sweep's results that this command trains."""

    workers: Auto | Workers
    per_gpu: Sharing
    stacked: Stacked
    pools: Workers
    part: Part

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
    part: Part
    wait: Flag
    options: Annotated[Text, AfterValidator(_options_of_sbatch)]

    def __post_init__(self) -> None:
        _refuse_two_numbers(self.workers, self.per_gpu)
        if self.per_gpu > 1 and not self.gpus:
            raise ValueError("launcher.per_gpu: there is no GPU to share; type launcher.gpus too")

    @property
    def pool(self) -> PoolSettings:
        """The settings of the pool that each job runs."""
        same = {key: getattr(self, key) for key in ("workers", "per_gpu", "stacked", "part")}
        return PoolSettings(pools=self.pilots, **same)


_READ = ("launcher=", "launcher.", "parallel=")


def read_launcher(command: Iterable[str]) -> PoolSettings | SlurmSettings:
    """Returns the settings that launcher=NAME and launcher.KEY=VALUE of a sweep's command choose.
    launcher=basic is a pool of one worker: a run that ends its own process must not end the sweep.
    Raises ConfigError."""
    pairs = parse(text for text in command if text.startswith(_READ))
    for pair in (pair for pair in pairs if pair.key in ("launcher", "parallel")):
        check_option(pair, None)
        if pair.key == "parallel" and pair.word != "none":
            raise ConfigError(
                f"{pair}: is for one run under torchrun; each run of a sweep is one process "
                "(launcher=pool runs several at a time)"
            )
    name = next((pair.word for pair in pairs if pair.key == "launcher"), "basic")
    values = place({"launcher": option_content("launcher", name)}, pairs)["launcher"]
    if name == "basic":
        name, values = "pool", {"workers": 1, "per_gpu": 1, "stacked": "none", "pools": 1, **values}
    settings: PoolSettings | SlurmSettings = build(LAUNCHERS[name], "launcher", values)
    return settings


def _refuse_two_numbers(workers: int | str, per_gpu: int) -> None:
    if workers != "auto" and per_gpu > 1:
        say_both = f"launcher.workers={workers}: launcher.per_gpu={per_gpu} says how many, too"
        raise ValueError(f"{say_both}; type one of the two")
