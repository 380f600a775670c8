"""What torchrun, or the agent of a W&B sweep, says of this process in its environment. Nothing here
imports torch."""

import os
from collections.abc import Mapping

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


def launched() -> bool:
    """Returns whether torchrun, or what sets the same variables, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ or count() > 1


def check_launch(parallel: str) -> None:
    """Raises ConfigError where torchrun started a run that is not parallel."""
    if parallel == "none" and launched():
        raise ConfigError(
            f"parallel=none: torchrun started {count()} process{'es' * (count() > 1)} for this "
            "run; type parallel=ddp or parallel=fsdp, or start it with python"
        )


def has_agent(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether an agent of a W&B sweep started this process, for a run that it names."""
    return bool(environment.get("WANDB_SWEEP_ID") and environment.get("WANDB_RUN_ID"))
