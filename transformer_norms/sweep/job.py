"""One job of a sweep, in whichever process a launcher runs it."""

import contextlib
import io
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_norms.config.compose import compose
from transformer_norms.errors import Busy
from transformer_norms.files import write_json
from transformer_norms.run import checkpoint
from transformer_norms.run.folder import ENDED, hold_run, summary_of


def job(overrides: Sequence[str]) -> dict[str, Any]:
    """Trains one run: its `status` (finished, diverged, preempted, busy, failed) and, where it
    failed, the `error` as one line and its `traceback`. It raises nothing: the sweep goes on.

    What the run says while it trains is left out; the sweep shows its state with the others'.
    """
    from transformer_norms.run.run import train

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            summary = train(compose(overrides), weights_only=True)
            keep_weights_only(Path(summary["folder"]))
    except Busy:
        return {"status": "busy"}
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return {"status": "failed", "error": line, "traceback": traceback.format_exc()}
    return {"status": summary["status"]}


def record_failure(folder: Path, error: str) -> None:
    """For a run that could not say so itself: whoever ran it is gone, or the disk is full, which
    must not end the sweep."""
    with contextlib.suppress(Busy, OSError), hold_run(folder):
        summary = summary_of(folder)
        if summary and summary["status"] not in (*ENDED, "failed"):
            write_json(folder / "summary.json", {**summary, "status": "failed", "error": error})


def keep_weights_only(folder: Path) -> None:
    """Drops the optimizer's state of a finished run of a sweep, two thirds of a checkpoint, so that
    hundreds of runs fit. A run that somebody trained alone keeps it."""
    summary = summary_of(folder)
    if summary.get("status") != "finished" or not summary.get("weights_only"):
        return
    with hold_run(folder):
        for file in sorted(folder.glob("checkpoints/step-*/optimizer.safetensors")):
            checkpoint.drop(file.parent, "optimizer")
