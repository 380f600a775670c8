"""The command `runs compare`: a few runs side by side, and whether their losses may be compared."""

from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from transformer_norms.commands.conditions import read_condition, read_runs, select
from transformer_norms.commands.terminal import PROGRAM, Parser, command, print_line
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.config.finding import RUNS, find_run
from transformer_norms.errors import ConfigError
from transformer_norms.report.fairness import differing_settings, notes_beside, obstacles
from transformer_norms.run.reader import CHOSEN, SavedRun, differing_keys, run_table
from transformer_norms.text_tables import show, wrap_text, wrapped_table

_ABOUT = """
Puts runs side by side: the settings that differ, the losses and the costs, and whether the losses
may be compared. Each run is compared with the first.
"""
_EPILOG = """
RUN is a run's folder, its config.yaml, a part of its name below ./runs, or a condition that one
run below ./runs fits, such as placement=post. Losses are in nats per token. One pair of runs
carries no verdict; a report of several seeds does.
"""
_LETTERS = "ABCDEFGH"
# The results of a run: the words for a field of its summary, and the format of its numbers.
_RESULTS = {
    "val_loss": ("final val loss", ".4f"),
    "best_val_loss": ("best val loss", ".4f"),
    "test_loss": ("test loss", ".4f"),
    "step": ("steps", ",d"),
    "tokens": ("tokens", ",d"),
    "parameters": ("parameters", ",d"),
    "flops": ("FLOPs", ".3g"),
    "seconds": ("seconds of training", ",.1f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "peak_memory": ("peak memory, bytes", ",d"),
}


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} runs compare", description=_ABOUT, epilog=_EPILOG)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two runs, or a few more")
    return parser


def _compare(typed: Namespace) -> int:
    if not 2 <= len(typed.runs) <= len(_LETTERS):
        raise ConfigError(
            f"{' '.join(typed.runs)}: name 2 to {len(_LETTERS)} runs, such as {PROGRAM} runs "
            "compare norm=rmsnorm norm=layernorm"
        )
    runs = [SavedRun(find_one(text)) for text in typed.runs]
    folders = [run.folder.resolve() for run in runs]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        named = runs[folders.index(twice[0])].folder
        raise ConfigError(f"{' '.join(typed.runs)}: {named} is named twice")
    print_line("\n".join(_lines(runs)))
    return 0


main = command(make_parser, _compare)


def find_one(text: str) -> Path:
    """Returns the run of a name, or of a condition that no other run fits."""
    if (condition := read_condition(text)) is None:
        return find_run(text)
    fit = select(run_table(read_runs([RUNS])), [condition])
    if len(fit) == 1:
        return Path(fit["folder"].item())
    if fit.empty:
        raise ConfigError(f"{text}: no run below ./runs fits")
    names = ", ".join(fit["folder"][:4]) + " ..." * (len(fit) > 4)
    raise ConfigError(f"{text}: {len(fit)} runs fit, and one is wanted: {names}")


def _lines(runs: Sequence[SavedRun]) -> list[str]:
    letters = _LETTERS[: len(runs)]
    lines = [
        line
        for letter, run in zip(letters, runs, strict=True)
        for line in wrap_text(f"{letter}  {run.folder} ({run.summary.status})", "", "   ")
    ]
    table = run_table(runs)
    chosen = {key: table[f"{CHOSEN}{key}"].tolist() for key in differing_keys(table)}
    for title, settings in (("chosen", chosen), ("resolved", _resolved(runs, chosen))):
        rows = [[k, *(show(value) or "-" for value in values)] for k, values in settings.items()]
        lines += ["", *wrapped_table([[title, *letters], *rows])] if rows else []
    lines += ["", *wrapped_table(_result_rows(runs, letters))]
    for letter, run in zip(letters[1:], runs[1:], strict=True):
        lines += ["", *_judgement_lines(letter, runs[0], run)]
    closing = (
        f"One run each carries no verdict: another seed may turn the order. {FEWEST} seeds or more "
        f"of each choice do ({PROGRAM} report STUDY)."
    )
    return [*lines, "", *wrap_text(closing)]


def _resolved(runs: Sequence[SavedRun], chosen: Collection[str]) -> dict[str, list[Any]]:
    """The settings that differ because of what was chosen, with the value of each run."""
    first, *others = runs
    keys = dict.fromkeys(key for run in others for key in differing_settings(first, run))
    return {
        key: [run.settings.get(key) for run in runs]
        for key in keys
        if key not in chosen and key != "data.fingerprint" and not key.endswith(".type")
    }


def _result_rows(runs: Sequence[SavedRun], letters: str) -> list[list[str]]:
    """The table of losses and costs; of two runs with their difference or, for costs, ratio."""
    two = len(runs) == 2
    rows = [["results", *letters, *(["B - A"] if two else [])]]
    for name, (words, form) in _RESULTS.items():
        values = [getattr(run.summary, name) for run in runs]
        if all(value is None for value in values):
            continue
        cells = [show(value, form) for value in values]
        rows.append([words, *cells, *([_difference(name, values)] if two else [])])
    return rows


def _difference(name: str, values: Sequence[float | None]) -> str:
    first, second = values
    if first is None or second is None or first == second:
        return ""
    if name.endswith("_loss"):
        return f"{second - first:+.4f}"
    return f"{second / first - 1:+.1%}" if first else ""


def _judgement_lines(letter: str, first: SavedRun, run: SavedRun) -> list[str]:
    """Whether the losses of a run and of the first may be compared, and what else differs."""
    if reasons := obstacles(first, run):
        lines = wrap_text(f"A and {letter} must not be compared by their losses:")
    else:
        pair = "a pair: they read the same batches" if first.seed == run.seed else "no pair"
        lines = wrap_text(
            f"A and {letter} may be compared: data, split, tokenizer, evaluation, precision and "
            f"horizon are the same. Their seeds make them {pair}."
        )
        reasons = notes_beside(first, run)
        lines += ["They also differ in:"] if reasons else []
    return [*lines, *(line for text in reasons for line in wrap_text(text, "  - ", "    "))]
