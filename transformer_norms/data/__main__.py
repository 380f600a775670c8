"""Prepares the tokens of a run before it is trained.

Of its config, data, tokenizer and plugins matter. The tokens lie
in the cache afterwards, so that a run with the same overrides starts at once and asks no network.
The last line is JSON.
"""

import json
import sys
import time
from argparse import Namespace

from transformer_norms import signals
from transformer_norms.commands.terminal import PROGRAM, Parser, command
from transformer_norms.config.finding import with_runs

_EPILOG = """
Example:
  transformer-norms data data=fineweb_edu tokenizer=gpt2

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage, 75 stopped by a
signal: the same command goes on.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} data", description=__doc__, epilog=_EPILOG)
    parser.add_argument(
        "overrides", metavar="RUN | KEY=VALUE", nargs="*", help="the config, as train takes it"
    )
    return parser


def _print(typed: Namespace) -> int:
    """Puts the tokens of the config into the cache and prints how many there are."""
    overrides = with_runs(typed.overrides)  # before torch is imported
    from transformer_norms.config.compose import compose
    from transformer_norms.data.token_cache import PARTS
    from transformer_norms.run.plan import prepare_tokens

    began = time.monotonic()
    tokens = prepare_tokens(compose(overrides))
    keys = ("documents", "bytes", "tokens")
    answer = {
        "folder": str(tokens.folder),
        "fingerprint": tokens.fingerprint,
        "vocab_size": tokens.vocab_size,
        **{key: {part: tokens.facts[part][key] for part in PARTS} for key in keys},
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(answer, allow_nan=False))
    return 0


main = command(make_parser, _print, "stopped; the same command goes on", signals.AGAIN)

if __name__ == "__main__":
    signals.watch_command()
    sys.exit(main())
