"""Small trained runs for the analyses of trained models, trained once in each process."""

from contextlib import chdir
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from transformer_norms import build_model, compose, train

WIDTH, DEPTH, CONTEXT, STEPS = 12, 3, 8, 3
SIZES = f"model=nano model.width={WIDTH} model.heads=2 model.depth={DEPTH} model.context={CONTEXT}"
TEXT = "data=text data.split=tail data.val_tokens=60 tracking=none"
TRAINER = f"trainer.steps={STEPS} trainer.threads=1 schedule.warmup=1 trainer.probe_every=0"
WORDS = "the quick brown fox jumps over the lazy dog\n"


@cache
def home():
    """A folder with a text, in which runs are trained."""
    folder = Path(mkdtemp(prefix="small-studies-")).resolve()
    (folder / "text.txt").write_text(WORDS * 100)
    return folder


@cache
def run_of(*typed):
    """The folder of a trained run. A typed key takes the place of the one here."""
    with chdir(home()):
        keys = dict(word.split("=") for word in (*f"{SIZES} {TEXT} {TRAINER}".split(), *typed))
        paths = f"data.paths={home() / 'text.txt'}"
        config = compose([paths, *(f"{key}={value}" for key, value in keys.items())])
        return home() / train(config)["folder"]


@cache
def study():
    """The folder of a study: LayerNorm and RMSNorm, three seeds each."""
    for norm in ("layernorm", "rmsnorm"):
        for seed in range(3):
            run_of("study=pair", f"norm={norm}", f"seed={seed}")
    return home() / "runs" / "pair"


@cache
def checkpoint():
    """A folder that transformers wrote: a run of the study."""
    from transformer_norms.hf.__main__ import export

    folder = home() / "exported"
    with chdir(home()):
        assert export(str(run_of("study=pair", "norm=rmsnorm", "seed=0")), str(folder)) == 0
    return folder


@cache
def folder_of(family, **sizes):
    """A folder of transformers with drawn weights, the tokenizer of the run, and more ids."""
    import shutil

    import transformers

    torch.manual_seed(0)
    sizes |= {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(family, **sizes)
    folder = home() / family
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    shutil.copy(checkpoint() / "tokenizer.json", folder)
    return folder


def gpt2():
    return folder_of("gpt2", n_embd=WIDTH, n_layer=2, n_head=2, n_positions=CONTEXT)


def llama():
    return folder_of(
        "llama", hidden_size=WIDTH, intermediate_size=20, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=2 * CONTEXT,
    )  # fmt: skip


@torch.no_grad()
def lively(config, vocabulary, spread, drawn=True):
    """A model whose gains, biases and learned numbers are no ones and zeros. Weights that are
    `drawn` stay as they are if that is False."""
    model, generator = build_model(config, vocabulary), torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if drawn or not name.endswith("weight"):
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(spread * noise)
    return model
