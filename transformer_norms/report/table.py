"""The table of variants as words and numbers, whatever it is then written in."""

from math import isinf, isnan

from transformer_norms.report.escape import printable
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Study, Variant
from transformer_norms.report.tuning import Audit, audits
from transformer_norms.report.verdict import share_in_words

Table = dict[str, list[str]]  # heading -> a cell for each variant
LOSSES = {"test_loss": "test loss", "val_loss": "validation loss"}
_WIDTH = 80


def table(findings: Findings) -> Table:
    """Columns that say nothing of any variant are left out."""
    names = (
        "variant tuned seeds diverged missing loss median difference interval p sign-flip "
        "correlation detectable verdict"
    ).split()
    rows = [_row(findings, variant) for variant in findings.study.variants]
    loss = LOSSES[findings.loss]
    headings = {"tuned": findings.study.rate or "", "loss": f"{loss}, mean ± sd",
                "interval": "95 % interval", "p": "p (Holm)"}  # fmt: skip
    columns = {headings.get(name, name): [row[name] for row in rows] for name in names}
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _row(findings: Findings, variant: Variant) -> dict[str, str]:
    own, compared = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    best = variant.tuned.best if variant.tuned else None
    row = {
        "variant": variant.name,
        "tuned": str((best or {}).get(findings.study.rate or "", "")),
        "seeds": str(len(own.losses)),
        "diverged": share_in_words(own.divergence) if own.diverged else "0",
        "missing": str(len(own.missing)),
        "loss": spread(own.mean, own.sd),
        "median": number(own.median),
        "verdict": standing(variant),
    }
    names = "difference interval p sign-flip correlation detectable".split()
    if compared is None:
        return row | dict.fromkeys(names, "")
    there = compared.low is not None and compared.high is not None
    return row | {
        "difference": number(compared.difference, sign=True),
        "interval": f"{compared.low:+.4f} to {compared.high:+.4f}" if there else "",
        "p": probability(compared.p_holm),
        "sign-flip": probability(compared.sign_flip),
        "correlation": number(compared.correlation, digits=2),
        "detectable": number(compared.detectable),
        "verdict": str(compared.verdict),
    }


def standing(variant: Variant) -> str:
    """What stands for a verdict where there is no comparison."""
    if variant.lost:
        return "diverged"
    return "baseline" if variant.baseline == variant.name else ""


def audit_table(study: Study) -> Table:
    """The audit by variant: points tried, the best, sensitivity, and the loss at each rate."""
    found, key = audits(study), study.rate
    if not found:
        return {}
    columns = {
        "variant": [audit.variant.name for audit in found],
        "points": [str(audit.points) for audit in found],
        f"best {key}": [_best(audit, key or "") for audit in found],
        "sensitivity": [number(audit.sensitivity) for audit in found],
    }
    for rate in sorted({rate for audit in found for rate in audit.losses}):
        columns[f"{rate:g}"] = [_at(audit, rate) for audit in found]
    return columns


def _best(audit: Audit, key: str) -> str:
    chosen = audit.variant.tuned
    if chosen is None:
        return "not chosen yet"
    if chosen.best is None:
        return "none"
    return f"{chosen.best.get(key)}{' (edge)' if key in chosen.edge else ''}"


def _at(audit: Audit, rate: float) -> str:
    text = number(audit.losses.get(rate))
    return f"{text} (diverged)" if rate in audit.diverged else text


def number(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """Empty for None and NaN; `diverged` for infinity, which is a diverged run's loss."""
    if value is None or isnan(value):
        return ""
    if isinf(value):
        return "diverged"
    return f"{value:{'+' if sign else ''}.{digits}f}"


def spread(mean: float | None, sd: float | None) -> str:
    return number(mean) + ("" if sd is None else f" ± {sd:.4f}")


def probability(value: float | None) -> str:
    if value is None:
        return ""
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def summary_lines(findings: Findings) -> list[str]:
    """The table for a terminal: a line a variant, of at most 80 columns. `seeds` are those that
    have ended, of those planned."""
    headings = ("variant", "seeds", LOSSES[findings.loss], "difference", "verdict")
    lines = [headings]
    for variant in findings.study.variants:
        row, own = _row(findings, variant), findings.outcomes[variant.name]
        diverged = f"diverged in {len(own.diverged)}" if own.diverged else ""
        seeds = f"{len(own.losses)} of {own.planned}" if own.missing else row["seeds"]
        lines.append(
            (row["variant"], seeds, row["loss"], row["difference"], diverged or row["verdict"])
        )
    widths = [max(len(printable(line[i])) for line in lines) for i in range(len(headings))]
    others = sum(widths[1:]) + 2 * (len(headings) - 1)
    widths[0] = min(widths[0], _WIDTH - others)
    return [
        "  ".join(
            _fit(printable(text), width) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 3]}..."
