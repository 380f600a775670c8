"""Plans a run or a sweep before it starts: parameters, FLOPs and memory."""

import json
import sys
from collections.abc import Sequence
from functools import partial

from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command
from transformer_norms.config.finding import with_runs
from transformer_norms.config.overrides import are_many
from transformer_norms.errors import ConfigError
from transformer_norms.training.accelerators import find_accelerator


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(partial(_print, arguments))


_EPILOG = """
Examples:
  transformer-norms plan model.depth=12 trainer.steps=20000
  transformer-norms plan sweep=quick --accelerator "H100 SXM"
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
    add("--accelerator", metavar="NAME", help='a GPU that it should fit, such as "H100 SXM"')
    add("--vocab", type=int, metavar="N", help="size (default: the tokenizer's)")
    add("--json", action="store_true", help="numbers in bytes and FLOPs, for a program")
    return parser


def _print(arguments: Sequence[str] | None) -> int:
    typed = make_parser().parse_intermixed_args(arguments)
    typed.overrides = with_runs(typed.overrides)
    many = typed.multirun or are_many(typed.overrides)
    if typed.vocab is not None and not 1 <= typed.vocab <= 10**9:
        raise ConfigError(f"--vocab {typed.vocab}: at least 1 is wanted")
    gpu = find_accelerator(typed.accelerator) if typed.accelerator else None
    device = "cuda" if gpu else "auto"
    from transformer_norms.config.compose import compose

    config = None if many else compose(typed.overrides, device)
    # The imports below take torch's time: a wrong command is answered before.
    from transformer_norms.plan.plans import plan_run, plan_sweep_of
    from transformer_norms.plan.sheet import run_lines, sweep_lines

    capacity = gpu.memory if gpu else None
    if config is None:
        sweep = plan_sweep_of(typed.overrides, device, typed.vocab)
        numbers, lines = sweep.numbers, sweep_lines(sweep, capacity)
    else:
        run = plan_run(config, typed.vocab)
        numbers, lines = run.numbers, run_lines(run, capacity)
    print_line(json.dumps(numbers, allow_nan=False) if typed.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
