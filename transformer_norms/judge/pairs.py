"""Trains the two runs of a seed, each by the code of its party, and reads what came of them."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from transformer_norms.errors import ConfigError, NoUsableCheckpoint, StorageError
from transformer_norms.judge.child import Child
from transformer_norms.judge.ledger import Pair, Party
from transformer_norms.judge.parties import code_hash, study_of
from transformer_norms.progress import say
from transformer_norms.run.failure import failure
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.signals import AGAIN

_TRAIN = "import sys; from transformer_norms.cli import main; sys.exit(main(sys.argv[1:]))"
_ENDED = (0, 5)  # exit codes of train.py: finished, diverged
_BUSY_FOR = 10.0  # seconds
_ERRORS = {2: ConfigError, 3: NoUsableCheckpoint, 4: StorageError}


class TrainingError(RuntimeError):
    """A run ended with an unexpected error. Its summary.json has the traceback."""

    exit_code = 1


def train_pair(parties: Sequence[Party], seed: int, workers: int) -> Pair:
    """Trains baseline and candidate with a seed, at once if there are two `workers`, or finds their
    runs done.

    Raises ConfigError if they are no pair, KeyboardInterrupt if a run was stopped, and an error
    with the exit code of a run that ended in one.
    """
    for party in parties:
        if code_hash(Path(party.root), party.arguments) != party.code:
            raise ConfigError(f"{party.typed}: its code has changed while it was judged")
    trainings = [_Training(party, seed, workers) for party in parties]
    try:
        for training in trainings if workers == 2 else ():
            training.start()
        folders = [training.finish() for training in trainings]
    finally:
        for training in trainings:
            training.stop()
    return read_pair(seed, *folders)


class _Training:
    """The training of one run in a process of its own."""

    def __init__(self, party: Party, seed: int, workers: int) -> None:
        self.name = f"{party.typed!r} with seed {seed}"
        self.root = Path(party.root)
        self.arguments = [*party.arguments, f"seed={seed}", f"study={study_of(party.code)}"]
        if workers > 1 and not any(text.startswith("trainer.threads=") for text in self.arguments):
            from transformer_norms.processes import cores

            self.arguments.append(f"trainer.threads={max(1, cores() // workers)}")
        self.child: Child | None = None

    def start(self) -> Child:
        self.child = Child(self.root, _TRAIN, self.arguments)
        return self.child

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()

    def finish(self) -> Path:
        """Waits for the run, begun now unless it was, and returns its folder. A run that another
        process trains is waited for: its command says so, and gives no JSON line."""
        answer, waits = (self.child or self.start()).wait(), False
        while answer.code == AGAIN and not answer.out:
            if not waits:
                say(f"{self.name}: {answer.err}; waiting")
            waits = True
            time.sleep(_BUSY_FOR)
            answer = self.start().wait()
        if answer.code == AGAIN:
            raise KeyboardInterrupt
        if answer.code not in _ENDED:
            raise _ERRORS.get(answer.code, TrainingError)(f"{self.name}: {answer.err}")
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
