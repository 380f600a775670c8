"""Explains a config: equations, drawing, norms, numbers, and who chose what."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from transformer_norms.commands.terminal import PROGRAM, Parser, command, print_line, typed_path
from transformer_norms.config.finding import with_runs
from transformer_norms.errors import ConfigError
from transformer_norms.storage.files import storage
from transformer_norms.text_tables import printable

_EPILOG = """
Examples:
  transformer-norms explain placement=hybrid norm=rmsnorm
  transformer-norms explain preset=gpt2 --against preset=llama
  transformer-norms explain RUN     a run's folder, its config.yaml, or a part
                                    of its name below ./runs

Nothing is trained. Exit codes: 0 done, 1 an unexpected error, 2 wrong input,
4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} explain", description=__doc__, epilog=_EPILOG)
    parser.add_argument(
        "overrides", nargs="*", metavar="RUN | KEY=VALUE", help="the config, as train takes it"
    )
    parser.add_argument(
        "--svg", metavar="FILE", type=typed_path, help="write the drawing as a figure"
    )
    parser.add_argument(
        "--against",
        nargs="*",
        metavar="KEY=VALUE",
        help="show only the differences from a second config: the first one with these in place of "
        "its own (norm=NAME also replaces norm.KEY); config=FILE means a whole config, and "
        "--against alone for the defaults",
    )
    parser.add_argument("--list", action="store_true", help="list all choices with their sources")
    parser.add_argument("--vocab", type=int, metavar="N", help="size (default: the tokenizer's)")
    return parser


def _print(typed: argparse.Namespace) -> int:
    if typed.list and (typed.overrides or typed.svg or typed.against is not None):
        raise ConfigError("--list goes with nothing else; it lists all choices")
    if typed.svg and typed.against is not None:
        raise ConfigError("--svg draws one config; leave --against out, and draw the other alone")
    if typed.vocab is not None and typed.vocab < 1:
        raise ConfigError(f"--vocab {typed.vocab}: at least 1 is wanted")
    print_line(_output(typed).rstrip("\n"))
    return 0


def _output(typed: argparse.Namespace) -> str:
    """Returns the text to print, and writes the figure of --svg."""
    if typed.list:
        from transformer_norms.explain.listing import listing

        return listing()
    overrides = with_runs(typed.overrides)
    first = _explain(overrides, typed.vocab)
    from transformer_norms.explain.text import difference_text, explanation_text

    if typed.against is not None:
        second = second_config(overrides, with_runs(typed.against))
        a, b = (printable(" ".join(words)) or "the defaults" for words in (overrides, second))
        difference = difference_text(first, _explain(second, typed.vocab))
        return f"A  {a}\nB  {b}\n\n{difference}"
    if typed.svg:
        from transformer_norms.explain.painting import block_svg

        drawing = f"{block_svg(first.anatomy, alone=True)}\n".encode()
        try:
            with storage(typed.svg, len(drawing)):
                typed.svg.write_bytes(drawing)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ConfigError(f"--svg {typed.svg}: {error.strerror}") from None
    return explanation_text(first)


def second_config(overrides: Sequence[str], against: Sequence[str]) -> list[str]:
    """Returns the first config's overrides with those of `against` in their place.

    A choice on an axis also replaces the keys inside that axis: norm.eps belongs to the norm that
    was chosen with it. A saved run is a whole config, and so is no overrides at all.
    """
    from transformer_norms.config.overrides import parse

    keys = {pair.key for pair in parse(against)}
    if not keys or "config" in keys:
        return list(against)
    if keys & {"preset", "recipe"}:  # neither goes with a saved run
        keys.add("config")
    kept = [p for p in parse(overrides) if not {p.key, p.key.partition(".")[0]} & keys]
    return [*map(str, kept), *against]


def _explain(overrides: Sequence[str], vocab: int | None) -> Any:
    """Returns the explanation of a config. torch is imported only if the config is valid."""
    from transformer_norms.config.compose import compose
    from transformer_norms.config.data_settings import expected_vocab_size
    from transformer_norms.config.overrides import parse

    config = compose(overrides)
    from transformer_norms.explain.explanation import explain

    keys = {pair.key for pair in parse(overrides)}
    return explain(config, vocab or expected_vocab_size(config.tokenizer), keys)


main = command(make_parser, _print)

if __name__ == "__main__":
    sys.exit(main())
