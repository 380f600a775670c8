"""Writes the record of a run while it trains: rows, checkpoints, its summary."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_norms.run import checkpoint
from transformer_norms.run.failure import failure
from transformer_norms.run.metrics import MetricsFile, finite_or_none, read_metrics
from transformer_norms.run.summary import Summary
from transformer_norms.training.trainer import Trainer

BitsPerByte = Callable[[str, float], float]  # from a part of the text and its summed nats


class Record:
    """The run folder for the trainer. `summary` is written whole at every checkpoint.

    Every rank has a record, and knows from it the same steps. Where `writes` is False, it takes
    part in what all ranks do together, and writes nothing.
    """

    def __init__(
        self,
        folder: Path,
        summary: Summary,
        *,
        keep: int,
        bits_per_byte: BitsPerByte,
        watch: Callable[[Trainer, float | None], None],
        writes: bool = True,
    ) -> None:
        self.folder, self.summary, self.keep = folder, summary, keep
        self.bits_per_byte, self.watch = bits_per_byte, watch
        self.metrics = MetricsFile(folder / "metrics.jsonl") if writes else None
        self.written, self.saved = 0, -1  # the steps of the last row and the last checkpoint
        self.diverged: str | None = None

    def losses(self, split: str, nats: float, tokens: int) -> dict[str, float]:
        """Returns the loss in nats per token and in bits per byte, from the summed nats."""
        return {f"{split}/loss": nats / tokens, f"{split}/bpb": self.bits_per_byte(split, nats)}

    def rewind(self, written: int) -> int:
        """Removes the rows after step `written`, which was the last row at the checkpoint from
        which the run goes on. Returns the step of the last row that is left. A later row of the
        checkpoint's step is measured again, because the trainer is in its earlier state."""
        assert self.metrics, "rank 0 alone has rows to remove"
        self.metrics.truncate_after(written)
        rows = read_metrics(self.metrics.path)
        return rows[-1]["step"] if rows else 0

    def row(self, row: dict[str, Any]) -> None:
        if self.metrics:
            self.metrics.append(row)
        self.written = row["step"]

    def checkpoint(self, trainer: Trainer) -> None:
        self.summary = replace(self.summary, **_measured(trainer))
        if self.metrics:
            self.metrics.sync()  # its rows must outlive a crash that the checkpoint outlives
            checkpoint.save(
                self.folder / "checkpoints",
                self.summary.identity,
                trainer.step,
                trainer.tensors(),
                {**trainer.state(), "written": self.written},
                {"data": self.summary.data.fingerprint, "batch_chain": trainer.chain},
                self.keep,
            )
            self.summary.write(self.folder)
        else:
            checkpoint.follow(trainer.tensors())
        self.saved = trainer.step

    def summarize(self, trainer: Trainer, **changed: Any) -> None:
        """Rewrites the summary with the trainer's numbers and the `changed` fields."""
        self.summary = replace(self.summary, **{**_measured(trainer), **changed})
        if self.summary.ended:
            trained = failure(self.summary, "val_loss") is None
            self.summary = replace(self.summary, trained=trained)
        if self.metrics:
            self.summary.write(self.folder)

    def progress(self, trainer: Trainer) -> None:
        if self.metrics:
            self.watch(trainer, finite_or_none(trainer.final))


def _measured(trainer: Trainer) -> dict[str, Any]:
    """Returns what the summary says of the training so far."""
    ended, seconds = trainer.step == trainer.settings.steps, trainer.seconds
    return {
        "step": trainer.step,
        "tokens": trainer.tokens,
        "seconds": round(seconds, 3),
        "evaluation_seconds": round(trainer.evaluation_seconds, 3),
        "val_loss": finite_or_none(trainer.final) if ended else None,
        "best_val_loss": finite_or_none(trainer.best),
        "initial_loss": trainer.divergence.initial,
        "spikes": trainer.divergence.spikes,
        "batch_chain": trainer.chain or None,
        "tokens_per_second": round(trainer.tokens / seconds, 1) if seconds > 0 else None,
    }
