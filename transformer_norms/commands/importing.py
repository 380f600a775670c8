"""Writes a model of transformers, with its weights and its tokenizer, as a folder of ours."""

import json
from argparse import Namespace

from transformer_norms.commands.terminal import PROGRAM, Parser, command, typed_path
from transformer_norms.errors import ConfigError
from transformer_norms.storage.files import storage

_EPILOG = """
MODEL is a folder with config.json, model.safetensors and tokenizer.json. Training
goes on from its weights, at step 0 and with a new optimizer:
  hf download openai-community/gpt2 --local-dir gpt2
  transformer-norms import gpt2 ours
  transformer-norms train continue_from=ours data=text data.paths=mine.txt

The saved config has a rate of 5e-5 for all weights and a warm-up of 5 % of the
steps. KEY=VALUE changes all but the model. sample, explain, export and analyses
read the folder, too. The extra `hf` brings transformers. The last line on stdout
is JSON. Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} import", description=__doc__, epilog=_EPILOG)
    parser.add_argument("model", type=typed_path, metavar="MODEL", help="what transformers wrote")
    parser.add_argument("out", type=typed_path, metavar="OUT", help="the folder to write, new")
    return parser


def _import(typed: Namespace) -> int:
    source, out = typed.model, typed.out
    if out.exists():
        raise ConfigError(f"{out}: is there already; name a new folder")
    from transformer_norms.analysis.trained import subjects
    from transformer_norms.analysis.trained.tuned_models import CHECKPOINT_RATE
    from transformer_norms.config.compose import recompose
    from transformer_norms.training.settings import GROUPS

    if not subjects.is_checkpoint(source):
        lacks = "transformers did not write it; config.json is missing" * source.is_dir()
        lacks = lacks or "there is no such folder"
        raise ConfigError(f"{source}: {lacks}; hf download NAME --local-dir FOLDER fetches a model")
    model = subjects.load_model(source)
    keys = ["trainer.device=auto", "schedule.warmup=0.05", f"optimizer.lr={CHECKPOINT_RATE:g}"]
    # The factors of a start are not those of weights that are trained.
    config = recompose(model.config, [*keys, *(f"optimizer.lr_factor.{g}=1" for g in GROUPS)])
    with storage(out):
        subjects.save_changed(out, model, config, source, "import")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"folder": str(out), "parameters": parameters}))
    return 0


main = command(make_parser, _import)
