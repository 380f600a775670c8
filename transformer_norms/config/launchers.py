"""The settings of `launcher=pool` and `launcher=slurm`: how many runs go on at once, and where; and
the part of a sweep's command that Hydra reads."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from transformer_norms.config.chosen_files import check_option
from transformer_norms.config.option_content import option_content
from transformer_norms.config.overrides import parse, place
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import Auto, Flag, Integer, Nothing, Number, Text, node
from transformer_norms.names import Registry, folder_of_configs
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


def check_hydra_keys(typed: Iterable[str]) -> None:
    """Raises ConfigError where launcher=NAME, one of its keys, or a key of Hydra's own such as
    hydra/launcher=NAME is wrong."""
    typed = list(typed)
    hydras = [text for text in typed if text.startswith("hydra")]
    pairs = parse(text for text in typed if text not in hydras)
    for pair in (pair for pair in pairs if pair.key in ("launcher", "parallel")):
        check_option(pair, None)
        if pair.key == "parallel" and pair.word != "none":
            raise ConfigError(
                f"{pair}: is for one run under torchrun; each run of a sweep is one process "
                "(launcher=pool runs several at a time)"
            )
    name = next((pair.word for pair in pairs if pair.key == "launcher"), "basic")
    content = {"launcher": {}, **option_content("launcher", name)}
    read_launcher(name, place({"launcher": content["launcher"]}, pairs)["launcher"])
    for text in hydras:
        plugin = text.removeprefix("hydra/launcher=")
        if plugin in LAUNCHERS and plugin != name:
            raise ConfigError(f"{text}: type launcher={plugin}")
    if hydras:  # composing takes Hydra a tenth of a second
        _compose_with_hydra(hydras)


def _compose_with_hydra(typed: list[str]) -> None:
    """Composes Hydra's own settings, apart from any Hydra that is running. Raises ConfigError."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from hydra.version import VersionBase
    from omegaconf.errors import OmegaConfBaseException

    enclosing, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder_of_configs().resolve()), version_base="1.3"):
            compose("train", typed, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{' '.join(typed)}: {' '.join(str(error).split())}") from None
    finally:
        GlobalHydra.instance().hydra = enclosing
        VersionBase.instance().version_base = version


def _refuse_two_numbers(workers: int | str, per_gpu: int) -> None:
    if workers != "auto" and per_gpu > 1:
        raise ValueError(
            f"launcher.workers={workers}: launcher.per_gpu={per_gpu} says already how many workers "
            "there are; type one of the two"
        )
