"""Plans a run or a sweep before anything is bought: parameters, FLOPs, memory, time and cost."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import partial

from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command
from transformer_norms.config.finding import with_runs
from transformer_norms.errors import ConfigError
from transformer_norms.training.accelerators import find_accelerator


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(partial(_print, arguments))


_EPILOG = """
Examples:
  transformer-norms plan model.depth=12 trainer.steps=20000
  transformer-norms plan sweep=quick --accelerator "H100 SXM" --price 2.5
  transformer-norms plan RUN        a run's folder, its config.yaml, or a part
                                    of its name below ./runs

Nothing is trained. Exit codes: 0 done, 1 an unexpected error, 2 wrong input,
4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} plan", description=__doc__, epilog=_EPILOG)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="RUN | KEY=VALUE", help="the config, as train takes it")
    add("-m", "--multirun", action="store_true", help="plan a sweep over KEY=A,B")
    add("--devices", type=int, default=1, metavar="N", help="how many there are (default 1)")
    add("--accelerator", metavar="NAME", help='a device by its data sheet, such as "H100 SXM"')
    add("--utilisation", type=float, default=0.4, metavar="SHARE", help="of its peak (default 0.4)")
    add("--price", type=float, help="of a device-hour")
    add("--vocab", type=int, metavar="N", help="size (default: the tokenizer's)")
    add("--json", action="store_true", help="numbers in bytes, seconds and FLOPs, for a program")
    return parser


def _print(arguments: Sequence[str] | None) -> int:
    typed = make_parser().parse_intermixed_args(arguments)
    typed.overrides = with_runs(typed.overrides)
    many = typed.multirun or any(
        text.startswith("sweep=") and text != "sweep=none" for text in typed.overrides
    )
    _check(typed)
    from transformer_norms.config.compose import compose

    config = None if many else compose(typed.overrides, "cuda" if typed.accelerator else "auto")
    # The imports below take torch's time: a wrong command is answered before.
    from transformer_norms.plan.of_run import Hardware, plan_run
    from transformer_norms.plan.of_sweep import plan_sweep_of
    from transformer_norms.plan.sheet import run_lines, sweep_lines

    price, hardware = typed.price, Hardware(typed.devices, typed.accelerator, typed.utilisation)
    if config is None:
        sweep = plan_sweep_of(typed.overrides, hardware, typed.vocab)
        values, lines = sweep.values(), sweep_lines(sweep, price)
    else:
        run = plan_run(config, hardware, typed.vocab)
        values, lines = run.values(), run_lines(run, price)
    print_line(json.dumps(values, allow_nan=False) if typed.json else "\n".join(lines))
    return 0


def _check(typed: argparse.Namespace) -> None:
    """Raises ConfigError for options that are wrong or do not go together."""
    if typed.accelerator is not None:
        find_accelerator(typed.accelerator)
    for name, value in (("--devices", typed.devices), ("--vocab", typed.vocab)):
        if value is not None and not 1 <= value <= 10**9:
            raise ConfigError(f"{name} {value}: at least 1 is wanted")
    if not 0 < typed.utilisation <= 1:
        raise ConfigError(f"--utilisation {typed.utilisation:g}: a share above 0, at most 1")
    if typed.price is not None and not (typed.price >= 0 and math.isfinite(typed.price)):
        raise ConfigError(f"--price {typed.price:g}: a number of 0 or above is wanted")
    if typed.price is not None and not typed.accelerator:
        raise ConfigError("--price: needs --accelerator NAME, such as --accelerator 'H100 SXM'")


if __name__ == "__main__":
    sys.exit(main())
