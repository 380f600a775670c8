"""Moves gains, biases and centring of norms into the matrices next to them, exactly."""

# As SliceGPT (Ashkboos et al. 2024, arXiv:2401.15024) makes RMSNorm of LayerNorm before it slices,
# and QuaRot (arXiv:2404.00456) takes gains out before it rotates. norm_removal folds with the same
# functions the rest of a norm that no longer divides.

import copy
from argparse import Namespace
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.command import analysis_parser, run_analysis
from transformer_norms.analysis.folded_model import (
    EXACT,
    Folded,
    check_exact,
    fold_gains,
    largest_difference,
    probe_tokens,
)
from transformer_norms.analysis.norm_folding import NormFold
from transformer_norms.analysis.outcome import (
    KIND,
    MODEL,
    Analysis,
    Number,
    Outcome,
    Row,
    Rows,
    View,
    of_kind,
)
from transformer_norms.analysis.rendering import check_new
from transformer_norms.analysis.trained.subjects import (
    is_checkpoint,
    load_model,
    save_changed,
    stored_dtype,
    tokenizer_of,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.config.finding import find_run
from transformer_norms.explain.layout import ranges
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell

EPILOG = f"""
MODEL is a run, by its folder or a part of its name below ./runs, a folded run, or
a folder that transformers wrote. A gain and a bias go into the matrices that read
the norm, where matrices alone read it. A LayerNorm on a latent, or on the stream
before a sub-layer or the head, becomes an RMSNorm where matrices and tables alone
write its input: their outputs are then centred. What stays is named, with the
reason. A tied head that takes in a gain becomes a separate matrix. The logits
before and after are compared in float64 on tokens at random: if they differ by
more than {EXACT:g} of the largest, nothing is written.
"""


def alike(rows: Rows, *keys: str) -> Rows:
    """A row for the norms of a site that have the same values of `keys`, with their blocks. Norms
    without the last of these are left out."""
    told = [row for row in of_kind(rows, "norm") if row.get(keys[-1])]
    return [
        {
            "blocks": ranges(row["block"] for row in own if row.get("block")),
            **{key: own[0].get(key) or "-" for key in ("site", *keys)},
        }
        for own in grouped(told, lambda row: [row.get(key) for key in ("site", *keys)])
    ]


ANALYSIS = Analysis(
    "fold",
    "Norms folded into the weights",
    numbers={
        "rounding": Number(
            "difference",
            f"the largest one between logits before and after, in float64, over the largest logit "
            f"(allowed: below {EXACT:g})",
            ".1e",
        ),
        "saved": Number("as saved", "the same in float32, as the model is saved", ".1e"),
        "unfolded": Number("unfolded", "the same for the model before, in float32", ".1e"),
    },
    views=(
        View(
            lambda rows: alike(rows, "norm", "moved", "now"),
            ("site", "blocks", "norm"),
            {
                "moved": Number(
                    "moved",
                    "the gain and the bias, into the matrices that read the norm; centring, into "
                    "those that write its input",
                ),
                "now": Number("is now", "the norm that is left"),
            },
        ),
        View(lambda rows: alike(rows, "why"), ("site", "blocks"), {"why": Number("what stays")}),
    ),
    limits=(
        "The model is the same function in evaluation. Dropout, and training on, act on other "
        "weights.",
        "Weights are saved in the precision of the run: in float32 they are rounded once more.",
    ),
)


def make_parser() -> Parser:
    parser = analysis_parser(__doc__, "rmsnorm_eps5 --save folded", EPILOG, "fold")
    parser.add_argument("model", type=expanduser, metavar="MODEL", help="the model; see below")
    parser.add_argument(
        "--save", type=typed_path, metavar="FOLDER", help="a new folder for the folded model"
    )
    parser.add_argument(
        "--plugins", type=expanduser, default="none", help="the folder of your own norm"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    folder = Path(typed.model)
    folder = folder if is_checkpoint(folder) else find_run(typed.model)
    if typed.save is not None:
        check_new(typed.save)
        tokenizer_of(folder)  # a folder without one is refused before it is folded
    tell(f"folding {typed.model}", 0, 0)
    model = load_model(folder, typed.plugins)
    folded = fold_gains(model, probe_tokens(model))
    check_exact(typed.model, folded.rounding)
    name = folder.resolve().name
    rows = [
        {MODEL: name, **differences(model, folded)},
        *({KIND: "norm", MODEL: name, **row_of(fold)} for fold in folded.folds),
    ]
    if typed.save is not None:
        save_changed(typed.save, folded.model, folded.config, folder, "folded")
    untied = model.head is None and folded.model.head is not None
    remarks = ["the head was tied to the embedding, and is now a separate matrix"] * untied
    saved = [] if typed.save is None else [str(typed.save)]
    return Outcome(ANALYSIS, rows, name, (), remarks, saved=saved)


def row_of(fold: NormFold) -> Row:
    """A site of a block: its norm, what was moved where, and the norm that is left."""
    return {
        "site": fold.place.title,
        "block": None if fold.place.block is None else fold.place.block + 1,
        "norm": norm_text(fold.before),
        "moved": fold.moved,
        "into": " ".join(fold.into),
        "centred": " ".join(fold.centred),
        "now": norm_text(fold.after) + ", gain 1" * bool(fold.into and fold.after == fold.before),
        "why": "; ".join(fold.why),
    }


def norm_text(content: Mapping[str, Any]) -> str:
    """A norm in a few words, as `rmsnorm` or `layernorm, no gain`."""
    without = ["no gain"] * (content.get("gain") == "none")
    return ", ".join([str(content.get("type", "l2norm")), *without])


def differences(model: Transformer, folded: Folded) -> Row:
    """The differences between logits in float64, and those of the saved model in float32."""
    if stored_dtype(folded.config) == torch.float64:
        return {"rounding": folded.rounding}
    rounded = (copy.deepcopy(one).float().cpu().eval() for one in (model, folded.model))
    tokens = probe_tokens(model)
    before, after = (largest_difference(folded.source, one, tokens) for one in rounded)
    return {"rounding": folded.rounding, "saved": after, "unfolded": before}
