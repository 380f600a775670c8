"""The loss curves of a page: every seed of every variant, and the means of those that finished."""

from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

from transformer_norms.report.escape import label_text
from transformer_norms.report.findings import Findings
from transformer_norms.report.losses import KEYS, Curve, Rows, averaged, curve_of, view, which
from transformer_norms.report.study import StudyRun, Variant
from transformer_norms.run.reader import SavedRun

_POINTS = 150  # of one curve, at most


def curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    """For the page's script: which loss comes first, in which range; each variant's curves."""
    every: dict[str, list[Curve]] = {key: [] for key in KEYS}
    variants = [_variant(variant, rows, every) for variant in findings.study.variants]
    evaluated = [len(curve.loss) for curve in every["val/loss"]]
    missing = len(every["train/loss"]) - len(evaluated)
    return {
        "first": which([*evaluated, *[0] * missing]),
        "ranges": {key: view(found) for key, found in every.items() if found},
        "variants": variants,
    }


def _variant(
    variant: Variant, rows: Mapping[Path, Rows], every: dict[str, list[Curve]]
) -> dict[str, Any]:
    runs, means = [], {}
    for key, found in every.items():
        finished = []
        for member in variant.results:
            curve = curve_of(rows.get(member.folder, ()), key, member.status == "diverged", _POINTS)
            if curve is None:
                continue
            found.append(curve)
            runs.append({"key": key, **_said(member), **_arrays(curve)})
            if member.status == "finished":
                finished.append(curve)
        if average := averaged(finished):
            means[key] = _arrays(average)
    run = next((member.run for member in variant.results if member.run), None)
    flops = [run.flops_per_token for run in variant.ended if run.flops_per_token]
    return {
        "runs": runs,
        "means": means,
        "tokens_per_step": tokens_per_step(run) if run else None,
        "flops_per_token": flops[0] if flops else None,
    }


def _said(member: StudyRun) -> dict[str, Any]:
    state = "" if member.status == "finished" else f", {member.status}"
    text = f"seed {member.seed}{state}: {member.folder.name}"
    return {"text": label_text(text), "diverged": member.status == "diverged"}


def tokens_per_step(run: SavedRun) -> float | None:
    sizes = [run.value("trainer.batch_size"), run.value("model.context")]
    whole = all(isinstance(size, int) and 0 < size < 2**40 for size in sizes)
    return sizes[0] * sizes[1] if whole else None


def _arrays(curve: Curve) -> dict[str, Any]:
    seconds = [None if isnan(second) else round(second, 1) for second in curve.seconds.tolist()]
    return {
        "tokens": [round(tokens) for tokens in curve.tokens.tolist()],
        "loss": [round(loss, 5) for loss in curve.loss.tolist()],
        "seconds": seconds if any(second is not None for second in seconds) else [],
    }
