"""What the charts of a page show, for its script. Names in it are ready for plotly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.report.escape import label_text
from transformer_norms.report.findings import Findings
from transformer_norms.report.losses import Rows
from transformer_norms.report.page.curves import curves
from transformer_norms.report.page.grids import number_axes
from transformer_norms.report.page.probes import probes
from transformer_norms.report.paired_tests import half_interval
from transformer_norms.report.study import Study
from transformer_norms.report.table import LOSSES
from transformer_norms.report.tuning import audits

_SHORT = 14  # characters of a name beside a narrow chart


def charts(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    study = findings.study
    return {
        "names": [label_text(variant.name) for variant in study.variants],
        "short": [label_text(variant.name[:_SHORT]) for variant in study.variants],
        "loss": LOSSES[findings.loss],
        "curves": curves(findings, rows),
        "finals": _finals(findings),
        "rates": _rates(study),
        "axes": number_axes(findings),
        "probes": probes(study, rows),
    }


def _finals(findings: Findings) -> list[dict[str, Any]]:
    """Where every seed ended; a run that diverged has no loss here."""
    found = []
    for variant in findings.study.variants:
        own = findings.outcomes[variant.name]
        names = {member.seed: member.folder.name for member in variant.results}
        ended = {seed: own.losses[seed] for seed in sorted(own.losses.keys() - own.diverged)}
        losses = list(ended.values())
        found.append(
            {
                "losses": losses,
                "texts": [label_text(f"seed {seed}: {names[seed]}") for seed in ended],
                "mean": sum(losses) / len(losses) if losses else None,
                "half": half_interval(losses),
                "diverged": len(own.diverged),
            }
        )
    return found


def _rates(study: Study) -> dict[str, Any] | None:
    """The mean loss of each variant at each value that was tried."""
    found = audits(study)
    if not found or study.rate is None:
        return None
    places = {variant.name: place for place, variant in enumerate(study.variants)}
    lines = []
    for audit in found:
        chosen = (audit.variant.tuned.best if audit.variant.tuned else None) or {}
        points = {r: loss for r, loss in audit.losses.items() if r not in audit.lost}
        lines.append(
            {
                "variant": places[audit.variant.name],
                "rates": list(points),
                "losses": list(points.values()),
                "diverged": sorted(audit.diverged),
                "best": chosen.get(study.rate),
            }
        )
    return {
        "key": label_text(study.rate),
        "ticks": sorted(study.tune[study.rate]),
        "log": min(study.tune[study.rate]) > 0,
        "lines": lines,
    }
