"""The command line of train.py: arguments to a run or a sweep, endings to exit codes.

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

from transformer_norms.config.compose import (
    check_hydras,
    check_names,
    compose,
    folder_of_configs,
    search_path,
)
from transformer_norms.config.overrides import parse
from transformer_norms.config.plugins import check as plugin_folder
from transformer_norms.errors import Busy, ConfigError

MULTIRUN = ("-m", "--multirun")
HYDRA_FLAGS = frozenset(
    "-h --help --hydra-help -c --cfg -i --info -sc --shell-completion --resolve -p --package "
    "--version".split()
)
INTERRUPTED = 130  # a shell's code of a command that Ctrl-C ended
CODES = {"finished": 0, "diverged": 5, "preempted": 75}


class Parser(argparse.ArgumentParser):
    """Of the other commands: its errors are a line, as those of the config."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help says more)")


def main(arguments: Sequence[str]) -> int:
    """Runs what was typed; the process's exit code."""
    return answered(partial(_run, arguments))


def answered(body: Callable[[], int], stopped: str = "stopped") -> int:
    """The exit code of `body`; an error of the user's as one line and with the code of its kind,
    and `stopped` where Ctrl-C ended it."""
    try:
        return body()
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code = exit_code(error)
        if code == 1:
            raise
        print(" ".join(str(error).split()), file=sys.stderr)
        return code


def printed(text: str) -> None:
    """To stdout, unless whoever reads it, as `| head`, has read enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # on which Python would complain of it as it ends


def _run(arguments: Sequence[str]) -> int:
    flags = [argument for argument in arguments if argument.startswith("-")]
    if any(flag.partition("=")[0] in HYDRA_FLAGS for flag in flags):
        check_names(
            text for text in arguments if "=" in text and not text.startswith(("-", "hydra"))
        )
        folder = _plugins(arguments)
        known = folder is not None and (folder / "configs").is_dir()
        own = ["--config-dir", f"{folder}/configs"] if known else []
        return hydra_main([*own, *_ordered(arguments)])
    unknown = [flag for flag in flags if flag not in MULTIRUN]
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such flag; there are -m, --help, --cfg job")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("WORLD_SIZE is above 1: a run is one process; there is no parallel= yet")
    overrides = [argument for argument in arguments if argument not in MULTIRUN]
    if flags or any(text.startswith("sweep=") and text != "sweep=none" for text in overrides):
        if any(text.startswith("hydra/sweeper=") for text in overrides):
            check_hydras(text for text in overrides if text.startswith("hydra/"))
        else:
            from transformer_norms.sweep.drive import planned

            planned(tuple(overrides))
            os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come back here, to be answered
        return hydra_main(["-m", *overrides, *search_path(_plugins(overrides))])
    return _answer(_one(overrides))


def _plugins(arguments: Sequence[str]) -> Path | None:
    """The folder of plugins that was typed."""
    named = [pair.word for pair in parse(t for t in arguments if t.startswith("plugins="))]
    return plugin_folder(named[0]) if named else None


def _ordered(arguments: Sequence[str]) -> list[str]:
    """Flags first, since Hydra wants KEY=VALUEs together; with `sweep=quick --cfg job` also what
    that sweep's runs have in common."""
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    flags = [text for text in arguments if text not in overrides]
    if not any(text.startswith("sweep=") for text in overrides):
        return [*flags, *overrides]
    from transformer_norms.sweep.asking import settings

    return [*flags, *overrides, *settings(t for t in overrides if not t.startswith("hydra"))]


def _one(overrides: Sequence[str]) -> dict[str, Any]:
    config = compose(overrides)
    from transformer_norms.run.run import train
    from transformer_norms.tracking.mirror import Mirror

    if config.tracking.type == "none":
        return train(config)
    mirror = Mirror(config.tracking.mode)
    try:
        return train(config, mirror.follow)
    finally:
        mirror.close()


def exit_code(error: Exception) -> int:
    """2, 3, 4, 75 for the errors that are answered with a line; 1 for any other."""
    if isinstance(error, ConfigError):
        return 2
    if isinstance(error, Busy):
        return 75
    from transformer_norms.data import InputError
    from transformer_norms.files import StorageError
    from transformer_norms.run.checkpoint import NoUsableCheckpoint

    codes = {InputError: 2, NoUsableCheckpoint: 3, StorageError: 4}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)


def _answer(summary: dict[str, Any]) -> int:
    """The last line on stdout; the exit code of the run's status."""
    answer = {
        "run": _relative(summary["folder"]),
        "status": summary["status"],
        "steps": summary["step"],
        "val_loss": summary["val_loss"],
        "tokens_per_second": summary.get("tokens_per_second"),
    }
    print(json.dumps(answer, allow_nan=False), flush=True)
    return CODES[summary["status"]]


def _relative(folder: str) -> str:
    return os.path.relpath(folder)


def hydra_main(arguments: Sequence[str]) -> int:
    """Hydra's own command line, for sweeps, --help, --cfg and completion."""
    import hydra

    sys.argv = [sys.argv[0], *arguments]
    configs = str(folder_of_configs().resolve())
    hydra.main(config_path=configs, config_name="train", version_base="1.3")(_job)()
    return 0


def _job(config: Any) -> Any:
    """One job of a sweep, wherever Hydra's launcher runs it. Another sweeper than ours, one
    that optimizes, is told the loss, and infinity where the run diverged."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    if "transformer_norms" in str(hydra.sweeper.get("_target_")):
        from transformer_norms.sweep.job import job

        return job(overrides)
    summary = _one(overrides)
    if summary["status"] == "preempted":
        raise SystemExit(CODES["preempted"])
    return summary["val_loss"] if summary["status"] == "finished" else float("inf")
