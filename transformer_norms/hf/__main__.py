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

The extra `hf` brings transformers. The last line on stdout is JSON. Exit codes:
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
    return parser


def export(folder: str, out: str, plugins: str = "none", average: bool = False) -> int:
    """Writes config.json, model.safetensors and the tokenizer's files. The last line is JSON."""
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise ConfigError(f"{out}: is there already; name a new folder")
    run = find_run(folder)  # before torch is imported
    from transformer_norms.config.compose import compose
    from transformer_norms.data.tokenizer import RankTokenizer
    from transformer_norms.hf.conversion import their_config, to_hf
    from transformer_norms.hf.tokenizer_json import fast_tokenizer, uncertain
    from transformer_norms.run.loading import load, saved_on_cpu, tokenizer

    words = tokenizer(run)
    config = compose(saved_on_cpu(run, plugins))
    try:
        their_config(config, words.vocab_size)  # before the weights are read
    except (ValueError, ImportError) as error:
        raise missing_package(error) or ConfigError(f"{folder}: {error}") from None
    model = load(run, plugins, average)
    exported = to_hf(model)
    spelled = fast_tokenizer(words, model.context)
    for settings in (exported.config, exported.generation_config):
        settings.eos_token_id, settings.pad_token_id = spelled.eos_token_id, spelled.pad_token_id
    try:
        with storage(Path(out)):
            exported.save_pretrained(out)
            spelled.save_pretrained(out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # so that the same command works once there is space
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
    print(json.dumps({"folder": out, "class": type(exported).__name__}))
    return 0


main = command(make_parser, lambda typed: export(**vars(typed)))

if __name__ == "__main__":
    sys.exit(main())
