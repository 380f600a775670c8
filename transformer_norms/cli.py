"""The command `train`: arguments in, one run or a sweep of runs, exit codes out.

0 done · 1 unexpected error, or some job of a sweep failed · 2 wrong config or input · 3 no usable
checkpoint · 4 storage · 5 diverged · 75 preempted or busy: the same command again
"""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformer_norms import processes
from transformer_norms.commands.hydra_sweeps import (
    HydraLauncher,
    hydra_config,
    run_search,
    split_words,
)
from transformer_norms.commands.terminal import (
    PROGRAM,
    Parser,
    print_line,
    run_command,
    version_text,
)
from transformer_norms.errors import ConfigError

POWER, REGISTER, STAGE = "--power", "--register", "--stage"
ENDED = ("finished", "diverged")
CODES = {"finished": 0, "diverged": 5, "preempted": 75}


def main(arguments: Sequence[str]) -> int:
    """Runs `train` with these arguments and returns the exit code."""
    # A run answers Ctrl-C itself once it has begun.
    stopped = "stopped before the first step; the same command starts it again"
    return run_command(partial(_run, arguments), stopped, CODES["preempted"])


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} train", description=_ABOUT, epilog=_EPILOG)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="what differs from the defaults")
    add("-m", "--multirun", action="store_true", help="trains every combination of KEY=A,B")
    alone = parser.add_mutually_exclusive_group().add_argument
    alone(POWER, action="store_true", help="says what a sweep's seeds can find; starts nothing")
    alone(REGISTER, action="store_true", help="writes a sweep's question down; starts nothing")
    stage = "runs a sweep's stage alone, smoke or tune; no report"
    alone(STAGE, choices=("smoke", "tune"), metavar="NAME", help=stage)
    config = "prints the config, job or hydra's; starts nothing"
    alone("-c", "--cfg", choices=("job", "hydra"), metavar="NAME", help=config)
    add("-p", "--package", metavar="NODE", help="the part to print, such as resolved.model")
    add("--version", action="version", version=version_text(), help="our version and torch's")
    return parser


_ABOUT = """
Trains one run, or goes on with it; with -m or sweep=NAME many runs, and reports them. Runs go to
./runs/STUDY/RUN. The last line on stdout is JSON. `python train.py` is the same command in a clone.
"""
_EPILOG = """
What may follow `transformer-norms train`:
  norm=layernorm placement=post         one run
  -m norm=layernorm,rmsnorm seed=0,1,2  every combination; the first values are
                                        the baseline
  sweep=quick trainer.steps=200         a question of configs/sweep, with typed
                                        values instead of the file's
  sweep=quick seed=3..20                3 to 20 seeds, until each comparison is
                                        decided
  sweep=quick --power                   what its seeds can find
  -m norm=dyt,rmsnorm tune.optimizer.lr=1e-3,3e-3
                                        each variant at its own best rate
  sweep=quick --stage smoke             a few steps of each variant, no result
  sweep=quick launcher.part=3/8         the third of eight parts of its results
  sweep=quick --register                its question in a file, to be committed
                                        before the first run
  config=RUN trainer.steps=900          a saved run again, changed
  continue_from=RUN trainer.steps=5000  a finished run, trained on
  plugins=FOLDER norm=mine              your own norms and configs
  preset=gpt2 --cfg job                 the config, with every key that there is
One run in two processes:
  torchrun --nproc-per-node 2 -m transformer_norms train parallel=ddp

RUN is a run's folder, its config.yaml, or a part of its name below ./runs. KEY=VALUE is such as
model.depth=8 optimizer.lr=1e-3 trainer.steps=500 seed=1 study=mine. embed, final_norm, qk_norm
and v_norm take auto, none, a norm or an own word, such as qk_norm=head. All choices are
listed by: transformer-norms explain --list. Sweeps and launchers are the files of configs/sweep
and configs/launcher.

Exit codes: 0 done, 1 an unexpected error or a failed job of a sweep, 2 wrong config or input, 3 no
usable checkpoint, 4 storage, 5 diverged, 75 preempted or busy: type the same command again.
Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP save a checkpoint and end with 75. A second one ends at once.
"""


def _run(arguments: Sequence[str]) -> int:
    parser = make_parser()
    for text in arguments:
        if text.startswith("-") and text.partition("=")[0] not in parser.flags:
            from transformer_norms.config.overrides import meant_setting

            if near := meant_setting(text):
                raise ConfigError(f"{text}: {near} a setting has no dashes")
    typed = parser.parse_intermixed_args(arguments)
    hydras, overrides = split_words(typed.overrides)
    if typed.package is not None and typed.cfg != "job":
        raise ConfigError("--package: is a part of what --cfg job prints; type that, too")
    if typed.cfg == "hydra":
        print_line(hydra_config(hydras).rstrip())
        return 0
    from transformer_norms.config.overrides import are_many

    many = typed.multirun or are_many(overrides)
    if typed.cfg == "job":
        if many:
            raise ConfigError("--cfg job: shows one config, and this is a sweep of many")
        return _print_config(typed.overrides, typed.package or "")
    if many and processes.launched():
        raise ConfigError("torchrun starts one run, and this is a sweep; start it with python")
    if many and processes.has_agent():
        raise ConfigError("an agent of a W&B sweep starts single runs, and this is a sweep of ours")
    if typed.power:
        return _print_power(overrides, many)
    if typed.register:
        from transformer_norms.commands.registering import register

        print_line(register(overrides))
        return 0
    if typed.stage and (not many or any(text.startswith("hydra/sweeper=") for text in hydras)):
        raise ConfigError(f"{STAGE} {typed.stage}: is about a sweep; type sweep=NAME or -m")
    if many:
        return _run_sweep(hydras, overrides, typed.stage or "")
    summary = _train(typed.overrides)
    answer = {
        "run": os.path.relpath(summary["folder"]),
        "status": summary["status"],
        "steps": summary["step"],
        "val_loss": summary["val_loss"],
        "tokens_per_second": summary.get("tokens_per_second"),
    }
    if processes.rank() == 0:
        print(json.dumps(answer, allow_nan=False), flush=True)
    # To an agent a run that diverged is a result; several failures would end it.
    ended = processes.has_agent() and summary["status"] in ENDED
    return 0 if ended else CODES[summary["status"]]


def _train(overrides: Sequence[str]) -> dict[str, Any]:
    """Trains one run, mirrored to W&B if the config says so, and returns its summary."""
    from transformer_norms.config.compose import compose

    config = compose(overrides)  # before torch is imported
    processes.check_launch(config.parallel.type)
    from transformer_norms.run.run import train
    from transformer_norms.tracking.mirror import Mirror

    if processes.rank() > 0:
        return train(config)
    mirror = Mirror(config.tracking)
    try:
        summary = train(config, mirror.follow, finish=mirror.close)
        if processes.has_agent() and summary["status"] in ENDED:
            mirror.follow(Path(summary["folder"]))  # a run that had ended before, of another agent
        return summary
    finally:
        mirror.close()


def _print_power(overrides: Sequence[str], many: bool) -> int:
    """Prints what numbers of seeds of a sweep can find, and starts nothing."""
    if not many:
        raise ConfigError(f"{POWER}: is about the seeds of a sweep; type sweep=NAME or -m")
    from transformer_norms.sweep.power_table import power_table

    for line in power_table(overrides):
        print_line(line)
    return 0


def _run_sweep(hydras: Sequence[str], overrides: Sequence[str], only: str) -> int:
    """Runs a sweep, or `only` a stage, with what the words in `hydras` say of Hydra's."""
    if hydras:
        hydra_config(hydras)  # a wrong word is answered before anything is planned
    if any(text.startswith("hydra/sweeper=") for text in hydras):
        return run_search(hydras, overrides, _train_for_loss)
    from transformer_norms.sweep.drive import run_sweep

    if hydras:
        return run_sweep(overrides, lambda request: HydraLauncher(hydras, request.study), only)
    from transformer_norms.sweep.pilots import make_launcher

    return run_sweep(overrides, partial(make_launcher, overrides), only)


def _train_for_loss(overrides: Sequence[str]) -> float:
    """Trains a run and returns its validation loss, and infinity if it diverged."""
    summary = _train(overrides)
    if summary["status"] == "preempted":
        raise SystemExit(CODES["preempted"])
    return summary["val_loss"] if summary["status"] == "finished" else float("inf")


def _print_config(overrides: Sequence[str], node: str) -> int:
    """Prints the config as a run would have it, or a node of it."""
    from transformer_norms.config.compose import compose
    from transformer_norms.config.saved import to_yaml

    print_line(to_yaml(compose(overrides), node).removesuffix("...\n").rstrip())
    return 0
