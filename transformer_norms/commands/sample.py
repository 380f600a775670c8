"""Writes text with a trained run."""

import os
from argparse import Namespace
from os.path import expanduser

from transformer_norms.commands.terminal import PROGRAM, Parser, command, print_line
from transformer_norms.config.finding import find_run

_EPILOG = """
RUN is a run's folder, its config.yaml, or a part of its name below ./runs:
  transformer-norms sample rmsnorm-pre --prompt "Once upon" --tokens 50

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 3 no usable checkpoint,
4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} sample", description=__doc__, epilog=_EPILOG)
    parser.add_argument("run", metavar="RUN", help="the run that writes")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=200, help="how many to add (default 200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that sum to P"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    parser.add_argument(
        "--plugins", type=expanduser, default="none", help="the folder of your own norm"
    )
    parser.add_argument("--average", action="store_true", help="of its weights, if it kept one")
    return parser


def _print(typed: Namespace) -> int:
    # In a locale without UTF-8 Python reads the bytes of an argument as lone surrogates.
    prompt = os.fsencode(typed.prompt).decode("utf-8", "replace")
    # The run is found before torch is imported.
    chosen = {**vars(typed), "prompt": prompt, "run": find_run(typed.run)}
    from transformer_norms.commands.sampling import sample

    print_line(sample(**chosen))
    return 0


main = command(make_parser, _print)
