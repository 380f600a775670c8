"""python -m transformer_norms.data OVERRIDES      prepares the tokens of a run before it is trained

The overrides are those of train.py, and those of data, tokenizer and plugins matter. The tokens lie
in the cache afterwards, so that a run with the same overrides starts at once and asks no network.
The last line is JSON.
"""

import json
import sys
import time
from argparse import RawDescriptionHelpFormatter
from typing import Any

from transformer_norms.cli import Parser, run_command
from transformer_norms.config.compose import compose
from transformer_norms.data.token_cache import PARTS
from transformer_norms.run.plan import prepare_tokens


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m transformer_norms.data",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", metavar="OVERRIDES", nargs="*", help="e.g. data=fineweb_edu")

    def body() -> int:
        print(json.dumps(prepare_ahead(parser.parse_args(arguments).overrides), allow_nan=False))
        return 0

    return run_command(body, when_stopped="stopped; the same command goes on")


def prepare_ahead(overrides: list[str]) -> dict[str, Any]:
    """Puts the tokens of a config into the cache and returns how many there are."""
    began = time.monotonic()
    config = compose(overrides)
    tokens = prepare_tokens(config)
    keys = ("documents", "bytes", "tokens")
    return {
        "folder": str(tokens.folder),
        "fingerprint": tokens.fingerprint,
        "vocab_size": tokens.vocab_size,
        **{key: {part: tokens.facts[part][key] for part in PARTS} for key in keys},
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
