"""What a config makes: equations, drawing, norms, numbers, and who chose what."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformer_norms.cli import Parser, print_line, run_command
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import parse
from transformer_norms.errors import ConfigError

# As published; a byte vocabulary has one more where documents are kept apart, which only the data
# can tell, and pairs that are learned as many as typed.
VOCABULARIES = {"byte": 256, "gpt2": 50257, "cl100k": 100277}
UNKNOWN = 256


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m transformer_norms.explain", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as train.py takes them")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="the drawing as a figure")
    parser.add_argument(
        "--against", nargs="*", metavar="KEY=VALUE", help="what differs from that, and only that"
    )
    parser.add_argument("--list", action="store_true", help="all that can be chosen, with sources")
    parser.add_argument("--vocab", type=int, metavar="N", help="size (default: the tokenizer's)")
    return run_command(partial(_answer, parser, arguments))


def _answer(parser: Parser, arguments: Sequence[str] | None) -> int:
    typed = parser.parse_args(arguments)
    if typed.list and (typed.overrides or typed.svg or typed.against is not None):
        raise ConfigError("--list goes with nothing else; it lists what there is")
    if typed.svg and typed.against is not None:
        raise ConfigError(
            "--svg draws one config; leave --against out, and draw the other by itself"
        )
    if typed.vocab is not None and typed.vocab < 1:
        raise ConfigError(f"--vocab {typed.vocab}: at least 1 is wanted")
    print_line(_text(typed).rstrip("\n"))
    return 0


def _text(typed: argparse.Namespace) -> str:
    """What is asked for; a figure is written on the way."""
    if typed.list:
        from transformer_norms.explain.listing import listing

        return listing()
    one = _explained(typed.overrides, typed.vocab)
    if typed.against is not None:
        from transformer_norms.explain.difference import difference

        return difference(one, _explained(typed.against, typed.vocab))
    if typed.svg:
        from transformer_norms.explain.figure import figure

        try:
            typed.svg.write_text(figure(one), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg {typed.svg}: {error.strerror}") from None
    from transformer_norms.explain.text import text

    return text(one)


def _explained(overrides: Sequence[str], vocab: int | None) -> Any:
    """torch is imported only for a config that stands."""
    config = compose(overrides)
    from transformer_norms.explain.explanation import explain

    keys = {pair.key for pair in parse(overrides)}
    tokenizer = config["tokenizer"]
    known = tokenizer.get("vocab_size", VOCABULARIES.get(tokenizer["type"], UNKNOWN))
    return explain(config, known if vocab is None else vocab, keys)


if __name__ == "__main__":
    sys.exit(main())
