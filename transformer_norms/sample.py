"""Writes text with a trained run."""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from os.path import expanduser

from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command
from transformer_norms.config.finding import find_run

_EPILOG = """
RUN is a run's folder, its config.yaml, or a part of its name below ./runs:
  transformer-norms sample rmsnorm-pre --prompt "Once upon" --tokens 50

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 3 no usable checkpoint,
4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} sample", description=__doc__, epilog=_EPILOG)
    parser.add_argument("folder", metavar="RUN", help="the run that writes")
    parser.add_argument("--prompt", type=_read_text, default="", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=200, help="how many to add (default 200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that sum to P"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    parser.add_argument(
        "--plugins", type=expanduser, default="none", help="the folder of a norm of your own"
    )
    return parser


def _read_text(typed: str) -> str:
    """The text of an argument's bytes, which are UTF-8 in every locale."""
    try:
        return os.fsencode(typed).decode() if _has_raw_bytes(typed) else typed
    except UnicodeError:
        raise ArgumentTypeError("is not UTF-8") from None


def _has_raw_bytes(typed: str) -> bool:
    """Python reads as lone surrogates what the locale's encoding does not spell (PEP 383)."""
    return any("\udc80" <= sign <= "\udcff" for sign in typed)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(lambda: _print(arguments))


def _print(arguments: Sequence[str] | None) -> int:
    typed = vars(make_parser().parse_args(arguments))
    typed["folder"] = find_run(typed["folder"])  # before torch is imported
    from transformer_norms.commands.sampling import sample

    print_line(sample(**typed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
