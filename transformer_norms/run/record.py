"""Writes the record of a run while it trains: rows, checkpoints, its summary."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

from transformer_norms.config.tree import Config
from transformer_norms.data import Tokens
from transformer_norms.data.batches import held_out_bytes
from transformer_norms.progress import Live
from transformer_norms.run import checkpoint
from transformer_norms.run.failure import failure
from transformer_norms.run.metrics import MetricsFile, finite_or_none, read_metrics
from transformer_norms.run.summary import Summary
from transformer_norms.training.trainer import Trainer


class Record:
    """The run folder for the trainer. `summary` is written whole at every checkpoint.

    Every rank has a record, and knows from it the same steps. Where it does not write, it takes
    part in what all ranks do together. All of `begin` is called after the first step.
    """

    def __init__(
        self,
        folder: Path,
        summary: Summary,
        config: Config,
        tokens: Tokens,
        live: Live,
        *,
        begin: Iterable[Callable[[], object]],
        writes: bool,
    ) -> None:
        self.folder, self.summary, self.config, self.tokens = folder, summary, config, tokens
        self.live, self.begin = live, [*begin]
        self.metrics = MetricsFile(folder / "metrics.jsonl") if writes else None
        self.written, self.saved = 0, -1  # the steps of the last row and the last checkpoint
        self.diverged: str | None = None

    def losses(self, split: str, nats: float, tokens: int) -> dict[str, float]:
        """Returns the loss in nats per token and in bits per byte, from the summed nats."""
        held_out, lengths = getattr(self.tokens, split), self.tokens.tokenizer.byte_lengths
        size = held_out_bytes(held_out, self.config.data.val_tokens, lengths)
        bits_per_byte = nats / log(2) / max(1, size)
        return {f"{split}/loss": nats / tokens, f"{split}/bpb": bits_per_byte}

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
        self._save(trainer, "checkpoints", self.config.trainer.keep)
        if self.metrics:
            self.summary.write(self.folder)
        self.saved = trainer.step

    def save_branch(self, trainer: Trainer) -> None:
        self._save(trainer, checkpoint.BRANCHES, keep=1)

    def _save(self, trainer: Trainer, folder: str, keep: int) -> None:
        if not self.metrics:
            checkpoint.follow(trainer.tensors())
            return
        self.metrics.sync()  # its rows must outlive a crash that the checkpoint outlives
        checkpoint.save(
            self.folder / folder,
            self.summary.identity,
            trainer.step,
            trainer.tensors(),
            {**trainer.state(), "written": self.written},
            {"data": self.summary.data.fingerprint, "batch_chain": trainer.chain},
            keep,
        )

    def summarize(self, trainer: Trainer, **changed: Any) -> None:
        """Rewrites the summary with the trainer's numbers and the `changed` fields."""
        self.summary = replace(self.summary, **{**_measured(trainer), **changed})
        if self.summary.ended:
            trained = failure(self.summary, "val_loss") is None
            self.summary = replace(self.summary, trained=trained)
        if self.metrics:
            self.summary.write(self.folder)

    def progress(self, trainer: Trainer) -> None:
        if not self.metrics:
            return
        while self.begin:
            self.begin.pop(0)()
        val_loss = finite_or_none(trainer.final)
        rate = trainer.tokens / trainer.seconds if trainer.seconds else 0.0
        validation = "" if val_loss is None else f"  val {val_loss:.3f}"
        text = f"loss {trainer.last_loss:.3f}{validation}  {rate:,.0f} tokens/s"
        self.live("step {:.0f}/{:.0f}", trainer.step, trainer.settings.steps, text)


def _measured(trainer: Trainer) -> dict[str, Any]:
    """Returns what the summary says of the training so far."""
    ended, seconds = trainer.step == trainer.settings.steps, trainer.seconds
    return {
        "step": trainer.step,
        "tokens": trainer.tokens,
        "seconds": round(seconds, 3),
        "evaluation_seconds": round(trainer.evaluation_seconds, 3),
        "val_loss": finite_or_none(trainer.final) if ended else None,
        "average_loss": finite_or_none(trainer.average_loss) if ended else None,
        "best_val_loss": finite_or_none(trainer.best),
        "initial_loss": trainer.divergence.initial,
        "spikes": trainer.divergence.spikes,
        "batch_chain": trainer.chain or None,
        "tokens_per_second": round(trainer.tokens / seconds, 1) if seconds > 0 else None,
    }
