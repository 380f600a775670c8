"""python -m transformer_norms.hf FOLDER OUT      a run as a folder that transformers loads"""

import json
import sys
from pathlib import Path

from transformer_norms.cli import Parser, run_command
from transformer_norms.data.tokenizer import RankTokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.hf.conversion import to_hf
from transformer_norms.hf.tokenizer_json import fast_tokenizer, uncertain
from transformer_norms.run.loading import load, tokenizer


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m transformer_norms.hf", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="a run folder, as runs/main/...")
    parser.add_argument("out", metavar="OUT", help="the folder to write, new or empty")
    parser.add_argument("--plugins", default="none", help="the folder of a norm of your own")

    def body() -> int:
        return export(**vars(parser.parse_args(arguments)))

    return run_command(body)


def export(folder: str, out: str, plugins: str = "none") -> int:
    """Writes config.json, model.safetensors and the tokenizer's files. The last line is JSON."""
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise ConfigError(f"{out}: is there already; name a new folder")
    words = tokenizer(folder)
    model = load(folder, plugins)
    try:
        exported = to_hf(model)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{folder}: {error}") from None
    spelled = fast_tokenizer(words, model.context)
    for settings in (exported.config, exported.generation_config):
        settings.eos_token_id, settings.pad_token_id = spelled.eos_token_id, spelled.pad_token_id
    exported.save_pretrained(out)
    spelled.save_pretrained(out)
    if words.end is None:
        print("tokenizer: the text was one stretch, so eos and pad are the byte 0", file=sys.stderr)
    if isinstance(words, RankTokenizer) and (count := uncertain(words.ranks)):
        print(f"tokenizer: exact but for {count} pieces that repeat themselves", file=sys.stderr)
    print(json.dumps({"folder": out, "class": type(exported).__name__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
