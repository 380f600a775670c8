"""report.html: a study as one file, which loads nothing from elsewhere and can be mailed."""

import base64
import hashlib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from transformer_norms.report import table as tables
from transformer_norms.report.answer import answer, contrast_sentence, sentence
from transformer_norms.report.fairness import confounds, contrast_differences
from transformer_norms.report.findings import Findings
from transformer_norms.report.left_out import left_out_lines
from transformer_norms.report.measured.effects import NOTE, effect_table
from transformer_norms.report.measured.stability import STABILITY_NOTES, stability_table
from transformer_norms.report.page.charts import POINTS, page_charts
from transformer_norms.report.page.drawings import block_drawings
from transformer_norms.report.scope import regime
from transformer_norms.report.study import Rows, Study
from transformer_norms.report.table import number
from transformer_norms.report.texts import render
from transformer_norms.report.tuning_audit import audit_lines, audit_table
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import Table, file_name, shorten, show

_HERE = Path(__file__).parent


def render_page(content: Mapping[str, Any], findings: Findings, rows: Mapping[Path, Rows]) -> bytes:
    """Returns the page of a `content`. `rows` are the metrics by run folder."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    charts = page_charts(findings, rows)
    text = render(
        "page.html",
        policy=_content_policy(script),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        charts=charts,
        blocks=[(d, Markup(d.svg), names) for d, names in block_drawings(findings.study.variants)],
        probes=[(note, [*members]) for note, members in
                groupby(charts["probes"], lambda chart: chart.panel.note)],
        **content,
    )  # fmt: skip
    return text.encode()


def content_of(findings: Findings) -> dict[str, Any]:
    """The words and tables of a report, by their names in page.html and table.md."""
    study, key = findings.study, "trainer.probe_every"
    columns, contrasts = tables.table(findings), tables.contrast_table(findings)
    results, regime_notes = _results(columns), tables.regime_notes(findings)
    stability = stability_table(findings)
    return {
        "study": study,
        "findings": findings,
        "answer": answer(findings),
        "home": file_name(study.home.resolve().name) or "study",
        "points": POINTS,
        "sentence": {v.name: sentence(findings, v) for v in study.variants},
        "columns": columns,
        "column_notes": [*tables.column_notes(findings, {**columns, **contrasts}), *regime_notes],
        "results": results,
        "results_notes": [*tables.column_notes(findings, {**results, **contrasts}), *regime_notes],
        "scope": regime(findings),
        "contrasts": contrasts,
        "contrast_sentence": {c.text: contrast_sentence(findings, c) for c in study.contrasts},
        "effects": effect_table(findings),
        "effects_note": NOTE,
        "contrast_differences": {c.text: contrast_differences(study, c) for c in study.contrasts},
        "audit": audit_table(study),
        "audit_lines": audit_lines(study),
        "stability": stability,
        "stability_lines": [f"{name}: {STABILITY_NOTES[name]}" for name in [*stability][1:]],
        "failed": any(outcomes.failed for outcomes in findings.outcomes.values()),
        "evidence": tables.evidence_notes(findings),
        "origin": tables.origin_notes(study),
        "absent": left_out_lines(study, by_name=False),
        "studies": list(dict.fromkeys(run.folder.parent.name for run in study.runs)),
        "runs": runs_table(findings),
        "setup": shared_settings(study),
        "probe_every": next((run.value(key) for run in study.results if run.has(key)), None),
        "confounds": {v.name: confounds(study, v, study.baseline_of(v)) for v in findings.compared},
    }


def _results(columns: Table) -> Table:
    """The table with the verdict in front, and without columns of zeros."""
    zeros = {
        name
        for name in ("failed", "missing")
        if all(cell in ("0", "") for cell in columns.get(name, ()))
    }
    left_out = {*zeros, *(["median"] if "failed" in zeros else [])}
    order = ["variant", "verdict", *columns]
    return {name: columns[name] for name in order if name in columns and name not in left_out}


def _content_policy(script: str) -> str:
    """A policy under which nothing is loaded, and no other script runs. Styles are allowed, because
    drawings have them; a style that cannot load anything cannot send anything either. The bar of
    colours of a map is an image inside the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


# -------------------------------------------------------------------- every run, and their settings

# Columns of every run: the heading, and that in the table of the study.
_MEASURED = {
    "status": "status", "step": "step", "validation": "val_loss", "test": "test_loss",
    "config": "identity", "commit": "commit", "data": "data_fingerprint", "batches": "batch_chain",
    "threads": "threads", "device": "device", "torch": "torch",
}  # fmt: skip


def runs_table(findings: Findings) -> Table:
    """Every run of the study. Hashes are cut to 12 digits."""
    columns = {name: name for name in ("run", "stage", "seed", *findings.study.tune)} | _MEASURED
    rows = zip(findings.table.to_dict("records"), findings.study.runs, strict=True)
    runs = [_run_texts(row, member.run) for row, member in rows]
    return {heading: [run.get(key, "") for run in runs] for heading, key in columns.items()}


def _run_texts(row: Mapping[str, Any], run: SavedRun | None) -> dict[str, str]:
    """A row of the table of the study in words: `finished, no better than the bigram (2.482)`."""
    texts = {key: show(value) for key, value in row.items()}
    if run and run.summary.diverged:
        texts["status"] = f"diverged: {run.summary.diverged}"
    elif row["status"] == "finished" and row.get("failure"):
        texts["status"] = f"finished, {row['failure']}"
    for key in ("identity", "commit", "data_fingerprint", "batch_chain"):
        texts[key] = texts.get(key, "")[:12]
    texts["commit"] += ", changed" if row.get("dirty") else ""
    return texts | {key: number(row.get(key)) for key in ("val_loss", "test_loss")}


# The nodes that come first on the page.
_NODES = "model mlp position tokenizer data optimizer schedule trainer".split()


def shared_settings(study: Study) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    """The keys and values that are the same in all results, by node; and the keys that differ,
    which tables and variants show."""
    runs = [run.settings for run in study.results]
    same: dict[str, list[tuple[str, str]]] = {}
    differing = []
    for key in sorted({key for settings in runs for key in settings}):
        value = runs[0].get(key, "none")
        if any(settings.get(key, "none") != value for settings in runs):
            differing.append(key)
        else:
            node, _, name = key.partition(".")
            same.setdefault(node, []).append((name or node, shorten(value)))
    order = [*filter(same.__contains__, _NODES), *(node for node in same if node not in _NODES)]
    return {node: same[node] for node in order}, differing
