"""report.html: a study as one file, which loads nothing from elsewhere and can be mailed."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from transformer_norms.report import table as tables
from transformer_norms.report.answer import answer, sentence
from transformer_norms.report.fairness import confounds, contrast_differences
from transformer_norms.report.figures import COLOURS, DASHES
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.left_out import left_out_notes, left_out_summary, run_warnings
from transformer_norms.report.page.charts import POINTS, page_charts
from transformer_norms.report.page.drawings import block_drawings
from transformer_norms.report.page.maps import maps
from transformer_norms.report.regime import all_failures, shared_lines
from transformer_norms.report.scope import regime
from transformer_norms.report.study import Rows, Study, StudyRun
from transformer_norms.report.table import number
from transformer_norms.report.tuning_audit import audit_lines, audit_table
from transformer_norms.text_tables import Table, file_name, shorten, templates

_HERE = Path(__file__).parent


def render_page(findings: Findings, rows: Mapping[Path, Rows], refresh: int | None = None) -> bytes:
    """Returns the page. `rows` are the metrics by run folder; `refresh` is the number of seconds
    after which a browser loads the page again."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    charts = page_charts(findings, rows)
    page = _environment().get_template("page.html")
    text = page.render(
        policy=_content_policy(script),
        refresh=refresh,
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        charts=charts,
        probes=[(note, [*members]) for note, members in
                groupby(charts["probes"], lambda chart: chart.panel.note)],
        **_content(findings),
    )  # fmt: skip
    return text.encode()


def _content(findings: Findings) -> dict[str, Any]:
    """The words and tables of the page, by their names in page.html."""
    study, key = findings.study, "trainer.probe_every"
    results, contrasts = _results(tables.table(findings)), tables.contrast_table(findings)
    return {
        "study": study,
        "findings": findings,
        "answer": answer(findings),
        "count": study.count(),
        "loss": LOSSES[findings.loss],
        "home": file_name(study.home.resolve().name) or "study",
        "points": POINTS,
        "ngrams": bool(shared_lines(study, findings.loss)),
        "sentence": {v.name: sentence(findings, v) for v in study.variants},
        "results": results,
        "scope": regime(findings),
        "contrasts": contrasts,
        "contrast_note": tables.CONTRAST_NOTE,
        "contrast_differences": [
            line for contrast in study.contrasts for line in contrast_differences(study, contrast)
        ],
        "maps": maps(findings),
        "blocks": [(d, Markup(d.svg), names) for d, names in block_drawings(study.variants)],
        "audit": audit_table(study),
        "audit_lines": audit_lines(study, findings.loss),
        "failed": any(outcomes.failed for outcomes in findings.outcomes.values()),
        "notes": [
            *tables.column_notes(findings, {**results, **contrasts}),
            *tables.regime_notes(findings),
        ],
        "starts": tables.start_notes(findings),
        "noise": tables.noise_notes(findings),
        "warnings": run_warnings(study),
        "left_out": left_out_notes(study),
        "absent": left_out_summary(study),
        "studies": list(dict.fromkeys(run.folder.parent.name for run in study.runs)),
        "origin": tables.origin_notes(study),
        "runs": runs_table(findings),
        "setup": shared_settings(study),
        "probe_every": next((run.value(key) for run in study.results if run.has(key)), None),
        "unusual": tables.unusual_runs(findings),
        "confounds": {v.name: confounds(study, v) for v in findings.compared},
    }


def _results(columns: Table) -> Table:
    """The table with the verdict in front, without columns of zeros, and without the correlation,
    which stands in the section on noise."""
    zeros = {
        name
        for name in ("failed", "missing")
        if all(cell in ("0", "") for cell in columns.get(name, ()))
    }
    left_out = {"correlation", *zeros, *(["median"] if "failed" in zeros else [])}
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


@cache
def _environment() -> Environment:
    environment = templates(_HERE)
    filters: dict[str, Any] = {
        "nats": number,
        "signed": lambda value: "" if value is None else f"{value:+.4f}",
        "style": _line_classes,
    }
    environment.filters |= filters
    environment.globals |= {"zip": zip}
    return environment


def _line_classes(place: int) -> str:
    """The classes of a variant's line, by the variant's place; the same styles as in figures."""
    return f"colour-{place % len(COLOURS)} dash-{place % len(DASHES)}"


# -------------------------------------------------------------------- every run, and their settings

_HEADINGS = "run stage seed".split()
_MORE = "status step validation test config commit data batches threads device torch".split()


def runs_table(findings: Findings) -> tuple[Sequence[str], list[list[str]]]:
    """Headings, and a row for each run of the study. Hashes are cut to 12 digits."""
    study, failures = findings.study, all_failures(findings.study, findings.loss)
    headings = [*_HEADINGS, *study.tune, *_MORE]
    return headings, [_row(study, member, failures) for member in study.runs]


def _row(study: Study, member: StudyRun, failures: Mapping[Path, str]) -> list[str]:
    tuned = [str(member.tuned.get(key, "")) for key in study.tune]
    start = [member.folder.name, member.stage, str(member.seed), *tuned]
    if member.run is None:
        return [*start, member.status, *[""] * (len(_MORE) - 1)]
    summary = member.run.summary
    commit = (summary.commit or "unknown")[:12] + (", changed" if summary.dirty else "")
    return [
        *start,
        _ending(member, failures),
        str(summary.step),
        number(summary.val_loss),
        number(summary.test_loss),
        summary.identity[:12],
        commit,
        summary.data.fingerprint[:12],
        (summary.batch_chain or "")[:12],
        "" if summary.threads is None else str(summary.threads),
        summary.device or "",
        summary.versions.get("torch", ""),
    ]


def _ending(member: StudyRun, failures: Mapping[Path, str]) -> str:
    """`finished`, `diverged: the loss is nan`, `finished, no better than the bigram (2.482)`"""
    if member.run and member.run.summary.diverged:
        return f"diverged: {member.run.summary.diverged}"
    reason = failures.get(member.folder) if member.status == "finished" else None
    return f"{member.status}, {reason}" if reason else member.status


_NODES = (
    "model mlp position tokenizer data optimizer schedule trainer".split()
)  # the first on the page


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
