"""python experiments/measured.py   writes init_gradients.csv and width/coordinate_check.csv again

These measurements need no saved run, and take two minutes of two cores. The report of all studies
reads their CSV files, and that of norm_removal.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from analyses.init_gradients import Setting, measure_variants, read_setting, rows_of

from transformer_norms.analysis import coordinate_check
from transformer_norms.analysis.outcome import Row, Rows, csv_of, of_kind, read_rows
from transformer_norms.comparison.statistics import half_interval
from transformer_norms.comparison.sweep_record import label
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.sweep.question import read_request

HERE = Path(__file__).parent
XIONG = [
    "norm=layernorm",  # the theorem's
    "placement=pre,post,deepnorm,sandwich,out,hybrid,normformer,mixln", "seed=range(0,10)"
]  # fmt: skip
WIDTHS, STEPS = ["model.width=64,128,256,512", "seed=0,1"], 5
FILES = {
    "init_gradients": HERE / "init_gradients" / "init_gradients.csv",
    "coordinate_check": HERE / "width" / "coordinate_check.csv",
    "norm_removal": HERE / "norm_removal" / "norm_removal.csv",
}


def measured_rows(name: str) -> list[dict[str, object]]:
    """The committed rows of an analysis."""
    return read_rows(FILES[name].read_text())


def measure_blocks(setting: Setting | None = None) -> Rows:
    """The gradients and streams of every block of the models of XIONG."""
    return rows_of(measure_variants(setting or read_setting(XIONG, xiong=True)))


def measure_changes(widths: Sequence[str] = WIDTHS) -> Rows:
    """The coordinate check of each rule of configs/sweep/width.yaml."""
    rows: list[Row] = []
    for values in read_request(["sweep=width"]).question.variants:
        typed = [f"{key}={value}" for key, value in values.items()]
        _, configs = coordinate_check.read_variants([*widths, *typed])
        measured = coordinate_check.measure(configs, STEPS)
        rows += [{**row, "model": label(values)} for row in measured]
    return rows


def described(values: Sequence[float]) -> Comparison:
    """The mean of measured values with Student's 95 % interval, without a test."""
    mean, half = fmean(values), half_interval(values) or 0.0
    ends, seeds = (mean - half, mean + half), (*range(len(values)),)
    return Comparison(seeds, difference=mean, interval=ends, verdict="described")


def gap_sentences(rows: Rows) -> list[str]:
    """The gap of each variant over its seeds, and how exact the folding is.

    A gap has Student's 95 % interval. Where a run diverged it has none, since the runs that are
    left are no sample of all.
    """
    lines = []
    variants: dict[str, list[Row]] = {}
    for row in of_kind(rows, "model"):
        variants.setdefault(row["model"], []).append(row)
    for name, own in variants.items():
        gaps = [row["gap"] for row in own if not row.get("diverged")]
        seeds = f"{len(own)} seed{'s' * (len(own) > 1)}"
        if len(gaps) < len(own):
            rest = f"; the others {', '.join(f'{gap:+.3f}' for gap in gaps)}" if gaps else ""
            lines.append(f"{name}: {len(own) - len(gaps)} of {seeds} diverged{rest}")
            continue
        mean, half = fmean(gaps), half_interval(gaps)
        within = "" if half is None else f"95 % interval {mean - half:+.3f} to {mean + half:+.3f}, "
        lines.append(f"{name}: {mean:+.3f} nats against the control ({within}{seeds})")
    known = [row["rounding"] for row in of_kind(rows, "model") if row.get("rounding") is not None]
    exact = "folded into the weights: the same logits in float64, to {:.0e} of the largest"
    return [*lines, exact.format(max(known))] if known else lines


def main() -> None:
    FILES["init_gradients"].write_bytes(csv_of(measure_blocks()))
    FILES["coordinate_check"].write_bytes(csv_of(measure_changes()))


if __name__ == "__main__":
    main()
