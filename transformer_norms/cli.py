"""The command line of train.py, and what all commands share: arguments in, exit codes out.

0 done · 1 unexpected error, or some job of a sweep failed · 2 wrong config or input · 3 no usable
checkpoint · 4 storage · 5 diverged · 75 preempted or busy: the same command again
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from transformer_norms import processes
from transformer_norms.config.compose import (
    check_hydra_keys,
    check_names,
    compose,
    search_path,
)
from transformer_norms.config.overrides import parse, quote_equations
from transformer_norms.config.plugins import check as check_plugins
from transformer_norms.errors import ConfigError, InputError
from transformer_norms.names import folder_of_configs

MULTIRUN = ("-m", "--multirun")
POWER = "--power"
HYDRA_FLAGS = frozenset(
    "-h --help --hydra-help -c --cfg -i --info -sc --shell-completion --resolve -p --package "
    "--version".split()
)
INTERRUPTED = 130  # a shell's code of a command that Ctrl-C ended
CODES = {"finished": 0, "diverged": 5, "preempted": 75}


def main(arguments: Sequence[str]) -> int:
    """Runs train.py with these arguments and returns the exit code."""
    return run_command(partial(_run, arguments))


def run_command(body: Callable[[], int], when_stopped: str = "stopped") -> int:
    """Calls `body` and returns its exit code.

    A user's error becomes one line on stderr and the exit code of its kind. Ctrl-C prints
    `when_stopped`. An unexpected error is raised.
    """
    try:
        return body()
    except KeyboardInterrupt:
        print(when_stopped, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        _print_error(error)
        return code


def _print_error(error: Exception) -> None:
    """Prints the error in one line. Of the processes that train one run, the first on each machine
    says what is wrong with the input, which all see."""
    line, rank = " ".join(str(error).split()), processes.rank()
    if isinstance(error, (ConfigError, InputError)) and processes.local_rank() > 0:
        return
    print(f"rank {rank}: {line}" if rank else line, file=sys.stderr)


def print_line(text: str) -> None:
    """Prints to stdout. A reader such as `| head` may have closed it already."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # Python would complain about the pipe when it exits


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like those of the config."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help says more)")


def _run(arguments: Sequence[str]) -> int:
    flags = [argument for argument in arguments if argument.startswith("-")]
    if any(flag.partition("=")[0] in HYDRA_FLAGS for flag in flags):
        return _run_hydra_flag(arguments)
    if unknown := [flag for flag in flags if flag not in (*MULTIRUN, POWER)]:
        raise ConfigError(
            f"{unknown[0]}: there is no such flag; there are -m, --power, --help, --cfg job"
        )
    overrides = [argument for argument in arguments if argument not in flags]
    named = any(text.startswith("sweep=") and text != "sweep=none" for text in overrides)
    many = named or any(flag in MULTIRUN for flag in flags)
    if many and processes.launched():
        raise ConfigError(
            "torchrun starts one run in many processes, and this is a sweep; start it with python "
            "(launcher=pool runs several runs at a time, launcher=slurm on a cluster)"
        )
    if POWER in flags:
        return _print_power(overrides, many)
    if many:
        return _run_sweep(overrides)
    summary = _train(overrides)
    answer = {
        "run": os.path.relpath(summary["folder"]),
        "status": summary["status"],
        "steps": summary["step"],
        "val_loss": summary["val_loss"],
        "tokens_per_second": summary.get("tokens_per_second"),
    }
    if processes.rank() == 0:
        print(json.dumps(answer, allow_nan=False), flush=True)
    return CODES[summary["status"]]


def _train(overrides: Sequence[str]) -> dict[str, Any]:
    """Trains one run, mirrored to W&B if the config says so, and returns its summary."""
    config = compose(overrides)  # before torch is imported
    processes.check_launch(config.parallel.type)
    from transformer_norms.run.run import train
    from transformer_norms.tracking.mirror import Mirror

    if config.tracking.type == "none" or processes.rank() > 0:
        return train(config)
    mirror = Mirror(config.tracking.mode)
    try:
        return train(config, mirror.follow, finish=mirror.close)
    finally:
        mirror.close()


def _print_power(overrides: Sequence[str], many: bool) -> int:
    """Prints what numbers of seeds of a sweep can find, and starts nothing."""
    if not many:
        raise ConfigError(
            f"{POWER}: says what the seeds of a sweep can find; type sweep=NAME or -m"
        )
    from transformer_norms.sweep.power_table import power_table

    for line in power_table([quote_equations(text) for text in overrides]):
        print_line(line)
    return 0


def _run_sweep(overrides: Sequence[str]) -> int:
    overrides = [quote_equations(text) for text in overrides]
    if any(text.startswith("hydra/sweeper=") for text in overrides):
        check_hydra_keys(text for text in overrides if text.startswith("hydra/"))
    else:
        from transformer_norms.sweep.drive import plan_sweep

        plan_sweep(tuple(overrides))  # a wrong sweep is answered before Hydra starts
        os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come back to run_command
    return _run_hydra(["-m", *overrides, *search_path(_plugins_folder(overrides))])


def _run_hydra_flag(arguments: Sequence[str]) -> int:
    """Answers --help, --cfg and the like. `sweep=quick --cfg job` also shows what the runs of that
    sweep have in common."""
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    flags = [text for text in arguments if text not in overrides]  # Hydra wants KEY=VALUEs together
    own = [text for text in overrides if not text.startswith("hydra")]
    check_names(own)
    folder = _plugins_folder(overrides)
    if folder is not None and (folder / "configs").is_dir():
        flags = ["--config-dir", f"{folder}/configs", *flags]
    if any(text.startswith("sweep=") for text in overrides):
        from transformer_norms.sweep.question import common_settings

        overrides += common_settings(own)
    return _run_hydra([*flags, *map(quote_equations, overrides)])


def _plugins_folder(overrides: Sequence[str]) -> Path | None:
    typed = [pair.word for pair in parse(t for t in overrides if t.startswith("plugins="))]
    return check_plugins(typed[0]) if typed else None


def _run_hydra(arguments: Sequence[str]) -> int:
    import hydra

    sys.argv = [sys.argv[0], *arguments]
    configs = str(folder_of_configs().resolve())
    hydra.main(config_path=configs, config_name="train", version_base="1.3")(_run_job)()
    return 0


def _run_job(config: Any) -> Any:
    """Runs one job of a sweep, in whichever process Hydra's launcher calls it. A sweeper that
    optimizes receives the validation loss, and infinity for a run that diverged."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    if "transformer_norms" in str(hydra.sweeper.get("_target_")):
        from transformer_norms.sweep.launching import run_job

        return run_job(overrides)
    summary = _train(overrides)
    if summary["status"] == "preempted":
        raise SystemExit(CODES["preempted"])
    return summary["val_loss"] if summary["status"] == "finished" else float("inf")
