"""Trains the two runs of a seed, each by the code of its party, and reads their results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from transformer_norms.errors import Busy, ConfigError, NoUsableCheckpoint, StorageError
from transformer_norms.judge.child import run_python
from transformer_norms.judge.ledger import Pair, Party
from transformer_norms.judge.parties import code_hash, study_of
from transformer_norms.run.failure import failure
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.signals import AGAIN

_TRAIN = "import sys; from transformer_norms.cli import main; sys.exit(main(sys.argv[1:]))"
_ENDED = (0, 5)  # exit codes of train.py: finished, diverged
_ERRORS = {2: ConfigError, 3: NoUsableCheckpoint, 4: StorageError, AGAIN: Busy}


class TrainingError(RuntimeError):
    """A run ended with an unexpected error. Its summary.json has the traceback."""

    exit_code = 1


def train_pair(parties: Sequence[Party], seed: int) -> Pair:
    """Trains baseline and candidate with a seed, or finds their runs done.

    Raises ConfigError if they are not a pair, KeyboardInterrupt if a run was stopped, and an error
    with the exit code of a run that ended in one.
    """
    for party in parties:
        if code_hash(Path(party.root), party.arguments) != party.code:
            raise ConfigError(f"{party.typed}: its code has changed while it was judged")
    return read_pair(seed, *(_train(party, seed) for party in parties))


def _train(party: Party, seed: int) -> Path:
    """Returns the folder of the run of one seed."""
    arguments = [*party.arguments, f"seed={seed}", f"study={study_of(party.code)}"]
    answer = run_python(Path(party.root), _TRAIN, arguments)
    if answer.code == AGAIN and answer.out:
        raise KeyboardInterrupt
    if answer.code not in _ENDED:
        name = f"{party.typed!r} with seed {seed}"
        raise _ERRORS.get(answer.code, TrainingError)(f"{name}: {answer.err}")
    return Path(json.loads(answer.out)["run"])


def read_pair(seed: int, baseline: Path, candidate: Path) -> Pair:
    """Returns the pair of two runs. Raises ConfigError unless both read the same batches and were
    evaluated alike. If one has no test loss, the losses are those of validation."""
    folders = baseline, candidate
    first, second = summaries = [_summary(folder) for folder in folders]
    _check_evaluation(folders, summaries)
    both = first.test_loss is not None and second.test_loss is not None
    loss: Literal["test_loss", "val_loss"] = "test_loss" if both else "val_loss"
    # The bigram is not a bound here: near it, chance would decide a proposal. A candidate that
    # fails to reach it while the baseline passes it is not better by its differences.
    return Pair(
        seed=seed,
        runs=(str(baseline), str(candidate)),
        loss=loss,
        losses=(_loss(first, loss), _loss(second, loss)),
        failed=(failure(first, loss), failure(second, loss)),
    )


def _summary(folder: Path) -> Summary:
    summary = read_summary(folder)
    if summary is None:
        raise ConfigError(f"{folder}: is not a run folder; summary.json is missing")
    return summary


def _loss(summary: Summary, name: str) -> float | None:
    return None if summary.status == "diverged" else getattr(summary, name)


def _check_evaluation(folders: Sequence[Path], summaries: Sequence[Summary]) -> None:
    """A diverged run has read fewer batches. N-grams have the same losses on the same tokens."""
    named: dict[str, list[Any]] = {
        "tokens": [summary.data.fingerprint for summary in summaries],
        "held-out tokens": [(summary.data.val, summary.data.test) for summary in summaries],
        "n-grams": [summary.data.ngrams for summary in summaries],
    }
    if all(summary.status == "finished" for summary in summaries):
        named["batches"] = [summary.batch_chain for summary in summaries]
    for name, values in named.items():
        if values[0] != values[1]:
            raise ConfigError(f"{folders[0]} and {folders[1]} differ in their {name}: no pair")
