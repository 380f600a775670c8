"""How stably each variant trains: spikes of its results, and rates at which its trials train."""

from transformer_norms.comparison.spike_rate import PER, SpikeRate
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.report.tuning_audit import Audit, audits
from transformer_norms.text_tables import Table
from transformer_norms.training.measures import DEVIATIONS, WINDOW

_SPIKES, _TRAIN, _EDGE = f"spikes in {PER:,} steps", "rates that train", "edge / best"
STABILITY_NOTES = {
    _SPIKES: f"losses of the results more than {DEVIATIONS:g} standard deviations above the mean "
    f"of the {WINDOW} before, with Garwood's 95 % interval, wider where seeds scatter more than "
    "Poisson's law",
    _TRAIN: "the tried values at which no trial failed",
    _EDGE: "the highest value that trains and the lowest above the best that fails, divided by the "
    "best. at least: none failed above the best",
}


def stability_table(findings: Findings) -> Table:
    """Returns the spikes of each variant, if a result has any. If a trial failed, it adds the share
    of rates that train, and the factor from the best rate to the edge. It may be empty."""
    study = findings.study
    spikes = {variant.name: spike_rate(variant) for variant in study.variants}
    columns = {"variant": [*spikes]}
    if any(rate and any(rate.counts) for rate in spikes.values()):
        columns[_SPIKES] = [str(rate or "") for rate in spikes.values()]
    audited = {audit.variant.name: audit for audit in audits(study)}
    if any(len(audit.training) < len(audit.outcomes) for audit in audited.values()):
        tuned = [audited.get(name) for name in spikes]
        columns[_TRAIN] = [f"{len(a.training)} of {len(a.outcomes)}" if a else "" for a in tuned]
        columns[_EDGE] = [edge_text(audit) if audit else "" for audit in tuned]
    return columns if len(columns) > 1 else {}


def spike_rate(variant: Variant) -> SpikeRate | None:
    """The spikes of a variant's results. None if none has a step at which one can be seen: the
    first steps have too few before them."""
    runs = [run.summary for run in variant.ended if run.summary.step > WINDOW]
    known = [(one.spikes, one.step - WINDOW) for one in runs if one.spikes is not None]
    return SpikeRate(*zip(*known, strict=True)) if known else None


def edge_text(audit: Audit) -> str:
    """`1 to 3.3`, or `at least 10`; nothing without a best rate, or if a trial failed there."""
    best = audit.chosen
    if best not in audit.training or best <= 0:
        return ""
    failed = [rate for rate in audit.outcomes if rate > best and rate not in audit.training]
    edge = max(rate for rate in audit.training if not failed or rate < min(failed))
    factors = [rate / best for rate in (edge, *sorted(failed)[:1])]
    text = " to ".join(f"{one:.2g}" if one < 10 else f"{one:.0f}" for one in factors)
    return text if failed else f"at least {text}"
