"""The process of a command: what torchrun or an agent says of it, and the numbers of its streams.
Nothing here imports what Python has not loaded or loads at once.
"""

import os

from transformer_norms.errors import ConfigError


def rank() -> int:
    """Returns the number of this process among those that train one run; 0 for a process alone."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """Returns how many processes train the run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Returns the number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_count() -> int:
    """Returns how many of the processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


SHARE = "TRANSFORMER_NORMS_CORES"  # of the cores, for a process that works with others
# A thread of libgomp that waits for another thread turns so many times, some 50 microseconds, and
# then sleeps; libgomp's own number is 300,000. On a busy machine a turning thread holds the core
# that the other thread needs.
SPIN = ("GOMP_SPINCOUNT", "2000")


def cores() -> int:
    """Returns how many processors this process may use. Some clusters give a job its share of a
    node only in words."""
    here = hasattr(os, "sched_getaffinity")
    seen = len(os.sched_getaffinity(0)) if here else os.cpu_count() or 1
    shares = (os.environ.get(key) for key in (SHARE, "SLURM_CPUS_PER_TASK"))
    return min(seen, *(int(share or seen) for share in shares))


def shorten_spinning() -> None:
    """Lets waiting threads sleep soon, unless the user has chosen otherwise. torch reads this when
    it is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(*SPIN)


def launched() -> bool:
    """Returns whether torchrun, or what sets the same variables, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ or count() > 1


def check_launch(parallel: str) -> None:
    """Raises ConfigError where torchrun started a run that is not parallel."""
    if parallel == "none" and launched():
        raise ConfigError("parallel=none: torchrun started this run; type parallel=ddp or fsdp")


def has_agent() -> bool:
    """Returns whether an agent of a W&B sweep started this process, for a run that it names."""
    return bool(os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"))


def hold_stream_numbers() -> None:
    """Opens what is closed of stdin, stdout and stderr, on nothing. The next file that the process
    opens would get the number, and with it what others print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
