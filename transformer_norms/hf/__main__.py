"""Writes a trained run as a folder that transformers loads."""

import json
import shutil
import sys
from os.path import expanduser
from pathlib import Path

from transformer_norms.commands.terminal import PROGRAM, Parser, command
from transformer_norms.config.finding import find_run
from transformer_norms.errors import ConfigError, missing_package
from transformer_norms.storage.files import storage

_EPILOG = """
RUN is a run's folder, its config.yaml, or a part of its name below ./runs:
  transformer-norms export rmsnorm-pre exported
  transformer-norms export hybrid exported --torch

With --torch, OUT has model.py: the variant in plain torch, which transformers
loads as remote code. The extra `hf` brings transformers, and ruff, which formats
model.py. The last line on stdout is JSON. Exit codes:
0 done, 1 an unexpected error, 2 wrong input, 3 no usable checkpoint, 4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} export", description=__doc__, epilog=_EPILOG)
    parser.add_argument("folder", metavar="RUN", help="the run")
    parser.add_argument(
        "out", type=expanduser, metavar="OUT", help="the folder to write, new or empty"
    )
    parser.add_argument(
        "--plugins", type=expanduser, default="none", help="the folder of your own norm"
    )
    parser.add_argument("--average", action="store_true", help="of its weights, if it kept one")
    parser.add_argument(
        "--torch", action="store_true", help="write the model as a file of plain torch"
    )
    return parser


def export(
    folder: str, out: str, plugins: str = "none", average: bool = False, torch: bool = False
) -> int:
    """Writes config.json, model.safetensors and the tokenizer's files, with `torch` also model.py
    and a card. The last line is JSON."""
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise ConfigError(f"{out}: is there already; name a new folder")
    run = find_run(folder)  # before torch is imported
    from transformer_norms.config.compose import compose
    from transformer_norms.data.tokenizer import RankTokenizer
    from transformer_norms.hf.conversion import their_config, write_theirs
    from transformer_norms.hf.plain_torch.plain_folder import write_folder
    from transformer_norms.hf.tokenizer_json import fast_tokenizer, uncertain
    from transformer_norms.run.loading import load, saved_on_cpu, tokenizer

    words = tokenizer(run)
    config = compose(saved_on_cpu(run, plugins))
    try:
        if not torch:
            their_config(config, words.vocab_size)  # before the weights are read
    except (ValueError, ImportError) as error:
        raise missing_package(error) or ConfigError(f"{folder}: {error}") from None
    model = load(run, plugins, average)
    try:
        with storage(Path(out)):
            spelled = fast_tokenizer(words, model.context)
            write = write_folder if torch else write_theirs
            name = write(run, model, spelled, Path(out))
            mode = Path(out, "config.json").stat().st_mode
            for file in Path(out).glob("*.safetensors"):  # whose library lets the owner alone read
                file.chmod(mode)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)  # so that the same command works once there is space
        if torch and isinstance(error, (ValueError, ImportError)):
            raise ConfigError(f"{folder}: {error}") from None
        raise
    if words.end is None:
        print(
            "tokenizer: the text was one stretch, so eos and pad do not end a document",
            file=sys.stderr,
        )
    if isinstance(words, RankTokenizer) and (count := uncertain(words.ranks)):
        print(
            f"tokenizer: transformers may split text with {count} of the tokens in another way "
            "than this run did",
            file=sys.stderr,
        )
    print(json.dumps({"folder": out, "class": name}))
    return 0


main = command(make_parser, lambda typed: export(**vars(typed)))

if __name__ == "__main__":
    sys.exit(main())
