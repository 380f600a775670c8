"""Moves gains, biases and centring of norms into the matrices next to them, exactly."""

# As SliceGPT (Ashkboos et al. 2024, arXiv:2401.15024) makes RMSNorm of LayerNorm before it slices,
# and QuaRot (arXiv:2404.00456) takes gains out before it rotates. norm_removal folds with the same
# functions what is left of a norm that no longer divides.

import copy
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch

from transformer_norms.analysis.command import analysis_parser, run_analysis
from transformer_norms.analysis.folded_model import (
    EXACT,
    Folded,
    fold_gains,
    largest_difference,
    probe_tokens,
    save_model,
    stored_dtype,
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
from transformer_norms.analysis.rendering import check_folder
from transformer_norms.analysis.trained.subjects import (
    check_tokenizer,
    find_model,
    is_checkpoint,
    load_checkpoint,
    tokenizer_keys,
    with_ids_of,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.config.compose import compose, recompose
from transformer_norms.data import TOKENIZERS, Tokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.explain.layout import blocks_text, ranges
from transformer_norms.kinds import plain
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell, say, tell_nobody
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.run.summary import read_summary

EPILOG = f"""
MODEL is a run, by its folder or a part of its name below ./runs, a folded run, or
a folder that transformers wrote. A gain and a bias go into the matrices that read
the norm, where matrices alone read it. A LayerNorm becomes an RMSNorm where its
input is written by matrices and tables alone, whose outputs are then centred.
What stays is named, with the reason. A tied head that takes in a gain becomes a
matrix of its own. The logits before and after are compared in float64 on tokens
at random: if they differ by more than {EXACT:g} of the largest, nothing is written.
"""


def alike(rows: Rows) -> Rows:
    """A row for the norms of a site at which the same was done, in the same way."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in of_kind(rows, "norm"):
        key = (row["site"], row["norm"], row.get("moved") or "-", row["now"])
        block = row.get("block")
        groups.setdefault(key, []).extend([] if block is None else [block])
    return [
        {"site": site, "blocks": ranges(blocks), "norm": norm, "moved": moved, "now": now}
        for (site, norm, moved, now), blocks in groups.items()
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
            alike,
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
    ),
    limits=(
        "The model is the same function in evaluation. Dropout, and training on, act on other "
        "weights.",
        "Weights are saved in the precision of the run: in float32 they are rounded once more.",
    ),
)


def make_parser() -> Parser:
    parser = analysis_parser(__doc__, "rmsnorm_eps5 --save folded", EPILOG, "fold")
    parser.add_argument("model", metavar="MODEL", help="the model; see below")
    parser.add_argument(
        "--save", type=typed_path, metavar="FOLDER", help="a new folder for the folded model"
    )
    parser.add_argument(
        "--plugins", type=expanduser, default="none", help="the folder of a norm of your own"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    if typed.save is not None:
        check_folder(typed.save)
        if typed.save.exists():
            raise ConfigError(f"--save {typed.save}: is there already; name a new folder")
    tell(f"loading {typed.model}", 0, 0)
    subject = read_subject(typed.model, typed.plugins, typed.save is not None)
    tell(f"folding {typed.model}", 0, 0)
    folded = fold_gains(subject.model, probe_tokens(subject.model))
    if not folded.rounding < EXACT:
        raise ConfigError(
            f"{typed.model}: folding has changed the logits, by {folded.rounding:.0e} of the "
            "largest, and nothing is written; a fault of this program, or a class of your own"
        )
    rows = [
        {MODEL: subject.name, **differences(subject.model, folded)},
        *({KIND: "norm", MODEL: subject.name, **row_of(fold)} for fold in folded.folds),
    ]
    saved = [] if typed.save is None else [str(typed.save)]
    if typed.save is not None:
        subject.save(folded.model, typed.save)
    remarks = sentences(subject.model, folded)
    return Outcome(ANALYSIS, rows, subject.name, (), remarks, saved=saved)


# ------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class Subject:
    """A model, and what its folder has besides. `words` is None unless the model is to be saved."""

    folder: Path
    model: Transformer
    words: Tokenizer | None
    step: int = 0
    data_identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def save(self, model: Transformer, folder: Path) -> None:
        """Writes a folded model. One that came from transformers names the tokenizer beside it."""
        assert self.words is not None
        if is_checkpoint(self.folder):
            own = compose(["tracking=none", *tokenizer_keys(folder)])
            node = own.chosen["tokenizer"]
            choice = {"tokenizer": ("file", plain(node))}
            model.config = recompose(model.config, choices=choice)
        extra = {"folded_from": self.name}
        save_model(folder, model, model.config, self.words, self.step, self.data_identity, extra)


def read_subject(word: str, plugins: str, saves: bool) -> Subject:
    folder = find_model(word)
    if is_checkpoint(folder):
        return _of_transformers(folder, saves)
    model, summary = load(folder, plugins), read_summary(folder)
    words = tokenizer(folder) if saves else None
    if summary is None:
        return Subject(folder, model, words)
    return Subject(folder, model, words, summary.step, summary.data.identity)


def _of_transformers(folder: Path, saves: bool) -> Subject:
    words: Tokenizer | None = None
    if saves:
        check_tokenizer(folder)
        config = compose(["tracking=none", *tokenizer_keys(folder)])
        words = TOKENIZERS.maker(config.tokenizer)().fit((), False, say, tell_nobody)
    model = load_checkpoint(folder)
    words = words and with_ids_of(model, words)
    if words is not None and words.vocab_size != model.vocab_size:
        raise ConfigError(
            f"{folder}: its tokenizer has {words.vocab_size} ids, and its model {model.vocab_size}"
        )
    return Subject(folder, model, words)


# ---------------------------------------------------------------------------- rows and sentences


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


def sentences(model: Transformer, folded: Folded) -> list[str]:
    """Says what stays and why, and what became of the head."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for fold in folded.folds:
        block = [] if fold.place.block is None else [fold.place.block + 1]
        for why in fold.why:
            reasons.setdefault((fold.place.title, why), []).extend(block)
    lines = [
        f"{site}{f' of {blocks_text(blocks)}' if blocks else ''}: {why}"
        for (site, why), blocks in reasons.items()
    ]
    if model.head is None and folded.model.head is not None:
        lines.append("the head was tied to the embedding, and is now a matrix of its own")
    return lines


def differences(model: Transformer, folded: Folded) -> Row:
    """The differences between logits in float64, and those of what is saved in float32."""
    if stored_dtype(folded.config) == torch.float64:
        return {"rounding": folded.rounding}
    exact, tokens = copy.deepcopy(model).double().cpu().eval(), probe_tokens(model)
    before, after = (
        largest_difference(exact, copy.deepcopy(one).float().cpu().eval(), tokens)
        for one in (model, folded.model)
    )
    return {"rounding": folded.rounding, "saved": after, "unfolded": before}


if __name__ == "__main__":
    sys.exit(main())
