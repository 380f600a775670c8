"""Moves gains, biases and centring of norms into the matrices beside them, exactly."""

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
from torch import Tensor

from transformer_norms.analysis.command import (
    analysis_parser,
    check_folder,
    paragraph,
    run_analysis,
)
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
from transformer_norms.analysis.trained.subjects import (
    check_tokenizer,
    find_model,
    is_checkpoint,
    load_checkpoint,
)
from transformer_norms.commands.terminal import Parser, typed_path
from transformer_norms.config.compose import compose, recompose
from transformer_norms.config.overrides import as_typed
from transformer_norms.data import TOKENIZERS, Tokenizer
from transformer_norms.data.vocabularies.tokenizer_file import FileTokenizer
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell, say
from transformer_norms.report.writing import write_files
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.run.summary import read_summary
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table, text_table

TITLE = "Norms folded into the weights"
EPILOG = f"""
MODEL is a run, by its folder or a part of its name below ./runs, a folded run, or
a folder that transformers wrote. A gain and a bias go into the matrices that read
the norm, where matrices alone read it. A LayerNorm becomes an RMSNorm where its
input is written by matrices and tables alone, whose outputs are then centred.
What stays is named, with the reason. A tied head that takes in a gain becomes a
matrix of its own. The logits before and after are compared in float64 on tokens
at random: if they differ by more than {EXACT:g} of the largest, nothing is written.
"""
HEADING = ["site", "blocks", "norm", "moved", "is now"]
LEGEND = (
    "moved: the gain and the bias, into the matrices that read the norm; centring, into those that "
    "write its input. is now: the norm that is left."
)
LIMITS = (
    "The model is the same function in evaluation. Dropout, and training on, act on other weights.",
    "Weights are saved in the precision of the run: in float32 they are rounded once more.",
)


def make_parser() -> Parser:
    out = "also write fold.csv and fold.md"
    parser = analysis_parser("fold", __doc__, out, "rmsnorm_eps5 --save folded", EPILOG)
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


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    if typed.save is not None:
        check_folder(typed.save)
        if typed.save.exists():
            raise ConfigError(f"--save {typed.save}: is there already; name a new folder")
    tell(f"loading {typed.model}", 0, 0)
    subject = read_subject(typed.model, typed.plugins, typed.save is not None)
    tell(f"folding {typed.model}", 0, 0)
    tokens = probe_tokens(subject.model)
    folded = fold_gains(subject.model, tokens)
    if not folded.rounding < EXACT:
        raise ConfigError(
            f"{typed.model}: folding has changed the logits, by {folded.rounding:.0e} of the "
            "largest, and nothing is written; a fault of this program, or a class of your own"
        )
    remarks = sentences(subject.model, folded, tokens)
    paths = write_files(typed.out, files(subject, folded, remarks)) if typed.out else []
    if typed.save is not None:
        subject.save(folded.model, typed.save)
        paths.append(str(typed.save))
    text = "\n".join([text_table(rows(folded.folds)), "", *map(paragraph, (LEGEND, *remarks))])
    return text, {"rounding": folded.rounding, "files": paths}


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
            own = compose(["tracking=none", *_tokenizer_beside(folder.resolve())])
            node = own.chosen["tokenizer"]
            choice = {"tokenizer": ("file", plain(node))}
            model.config = recompose(model.config, choices=choice)
        extra = {"folded_from": self.name}
        save_model(folder, model, model.config, self.words, self.step, self.data_identity, extra)


def _tokenizer_beside(folder: Path) -> list[str]:
    return ["tokenizer=file", as_typed("tokenizer.path", str(folder))]


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
        config = compose(["tracking=none", *_tokenizer_beside(folder)])
        words = TOKENIZERS.maker(config.tokenizer)().fit((), False, say)
    model = load_checkpoint(folder)
    if isinstance(words, FileTokenizer) and words.vocab_size < model.vocab_size:
        words = FileTokenizer(words.text, words.end, model.vocab_size)
    if words is not None and words.vocab_size != model.vocab_size:
        raise ConfigError(
            f"{folder}: its tokenizer has {words.vocab_size} ids, and its model {model.vocab_size}"
        )
    return Subject(folder, model, words)


# --------------------------------------------------------------------------- tables and sentences


def rows(folds: Sequence[NormFold]) -> list[list[str]]:
    """A heading, and a row for each site at which the same was done in the same way."""
    groups: dict[tuple[str, ...], list[NormFold]] = {}
    for fold in folds:
        key = (fold.site.title, norm_text(fold.before), fold.moved or "-", norm_text(fold.after))
        groups.setdefault(key, []).append(fold)
    lines = [
        [site, numbers([fold.site.block for fold in own]), norm, moved, now]
        for (site, norm, moved, now), own in groups.items()
    ]
    return [HEADING, *lines]


def norm_text(content: Mapping[str, Any]) -> str:
    """A norm in a few words, as `rmsnorm` or `layernorm, no gain`."""
    without = ["no gain"] * (content.get("gain") == "none")
    return ", ".join([str(content.get("type", "l2norm")), *without])


def numbers(blocks: Sequence[int | None]) -> str:
    """Blocks, counted from 1, as `1-3, 6`."""
    counted = sorted({block + 1 for block in blocks if block is not None})
    runs: list[list[int]] = []
    for number in counted:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def sentences(model: Transformer, folded: Folded, tokens: Tensor) -> list[str]:
    """Says what stays and why, what became of the head, and the proof."""
    reasons: dict[tuple[str, str], list[int | None]] = {}
    for fold in folded.folds:
        for why in fold.why:
            reasons.setdefault((fold.site.title, why), []).append(fold.site.block)
    lines = []
    for (site, why), blocks in reasons.items():
        where = numbers(blocks)
        word = "blocks" if "-" in where or "," in where else "block"
        lines.append(f"{site}{f' of {word} {where}' if where else ''}: {why}")
    if model.head is None and folded.model.head is not None:
        lines.append("the head was tied to the embedding, and is now a matrix of its own")
    return [*lines, proof(model, folded, tokens)]


def proof(model: Transformer, folded: Folded, tokens: Tensor) -> str:
    """The differences between logits, in float64, and of what is saved."""
    line = (
        "proof: the largest difference between logits before and after, in float64, over the "
        f"largest logit: {folded.rounding:.1e} (allowed: below {EXACT:g})"
    )
    if stored_dtype(folded.config) == torch.float64:
        return line
    exact = copy.deepcopy(model).double().cpu().eval()
    before, after = (
        largest_difference(exact, copy.deepcopy(one).float().cpu().eval(), tokens)
        for one in (model, folded.model)
    )
    return f"{line}; in float32, as saved: {after:.1e} (the model before: {before:.1e})"


# ------------------------------------------------------------------------------------- the files


def files(subject: Subject, folded: Folded, remarks: Sequence[str]) -> dict[str, bytes]:
    """The contents of fold.csv and fold.md."""
    return {"fold.csv": norms_csv(subject.name, folded.folds), "fold.md": page(folded, remarks)}


def norms_csv(name: str, folds: Sequence[NormFold]) -> bytes:
    """A row for each site of each block."""
    table: list[list[Any]] = ["model site block norm moved into centred now why".split()]
    for fold in folds:
        block = None if fold.site.block is None else fold.site.block + 1
        now, into, centred = norm_text(fold.after), " ".join(fold.into), " ".join(fold.centred)
        before, why = norm_text(fold.before), "; ".join(fold.why)
        table.append([name, fold.site.title, block, before, fold.moved, into, centred, now, why])
    return csv_table(table)


def page(folded: Folded, remarks: Sequence[str]) -> bytes:
    sections = [f"# {TITLE}", markdown_table(rows(folded.folds)), LEGEND, markdown_list(remarks)]
    sections += ["## What this does not show", markdown_list(LIMITS)]
    return ("\n\n".join(sections) + "\n").encode()


if __name__ == "__main__":
    sys.exit(main())
