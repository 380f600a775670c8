"""report.html: a study as one file that loads nothing and can be mailed."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from transformer_norms.report import notes
from transformer_norms.report.answer import answer
from transformer_norms.report.comparable import confounds
from transformer_norms.report.drawing import COLOURS, DASHES
from transformer_norms.report.findings import Findings
from transformer_norms.report.losses import Rows
from transformer_norms.report.page.charts import charts
from transformer_norms.report.page.drawings import drawn_blocks
from transformer_norms.report.page.forest import HEIGHT, WIDTH, forest, scale
from transformer_norms.report.page.grids import maps
from transformer_norms.report.page.runs import runs_table
from transformer_norms.report.page.setup import setup
from transformer_norms.report.study import Study
from transformer_norms.report.table import LOSSES, Table, audit_table, number, table
from transformer_norms.report.templates import templates
from transformer_norms.report.tuning import audit_lines

_HERE = Path(__file__).parent
_PROBES = "trainer.probe_every"
_SCRIPTS = ("theme.js", "charts.js", "diagnostics.js", "page.js")


def page(findings: Findings, rows: Mapping[Path, Rows], refresh: int | None = None) -> bytes:
    """`rows` of metrics by run folder; `refresh`: seconds after which a browser looks again."""
    study = findings.study
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    data = charts(findings, rows)
    on = scale(findings)
    compared = [v for v in study.variants if v.name in findings.comparisons]
    text = (
        _environment()
        .get_template("page.html")
        .render(
            policy=_policy(_plotly(), script),
            refresh=refresh,
            style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
            plotly=Markup(_plotly()),
            script=Markup(script),
            data=_json(data),
            charts=data,
            study=study,
            findings=findings,
            answer=answer(findings),
            count=study.count(),
            loss=LOSSES[findings.loss],
            forests=[forest(findings, variant, on) for variant in study.variants],
            scale=on,
            results=_results(table(findings)),
            maps=maps(findings),
            blocks=[(block, Markup(block.svg)) for block in drawn_blocks(study.variants)],
            audit=audit_table(study),
            audit_lines=audit_lines(study),
            how=notes.how(findings),
            noise=notes.noise(findings),
            warnings=notes.warnings(study),
            left_out=notes.left_out(study),
            origin=notes.origin(study),
            runs=runs_table(study),
            setup=setup(study),
            probe_every=_probe_every(study),
            unusual=notes.unusual(findings),
            confounds={v.name: confounds(study, v) for v in compared},
        )
    )
    return text.encode()


def _probe_every(study: Study) -> Any:
    """In steps; None where no run says it, as those of before there were probes."""
    runs = [run for variant in study.variants for run in variant.ended]
    return next((run.value(_PROBES) for run in runs if run.has(_PROBES)), None)


def _results(columns: Table) -> Table:
    """The table with what is asked first in front, without columns of zeros, and without what
    stands in words below."""
    calm = all(cell in ("0", "") for cell in columns.get("diverged", ()))
    whole = all(cell in ("0", "") for cell in columns.get("missing", ()))
    left_out = {"diverged": calm, "median": calm, "missing": whole, "correlation": True}
    order = ["variant", "verdict", *columns]
    return {name: columns[name] for name in order if name in columns and not left_out.get(name)}


def _policy(*scripts: str) -> str:
    """Nothing is loaded, and no script runs but these. Plotly styles what it draws by attributes,
    which therefore may be; a style that can load nothing sends nothing."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline';"
        " base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> Markup:
    """For a script element: no character in it can end that."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"}))


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("\r", "")


@cache
def _environment() -> Environment:
    environment = templates(_HERE)
    environment.filters["nats"] = number
    environment.filters["signed"] = lambda value: "" if value is None else f"{value:+.4f}"
    environment.filters |= {"style": _style, "transposed": _transposed, "unescaped": html.unescape}
    environment.globals["forest_size"] = (WIDTH, HEIGHT)
    return environment


def _transposed(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return list(zip(*columns, strict=True))


def _style(place: int) -> str:
    """The classes of the line of the variant at a place, the same as in the figures."""
    return f"colour-{place % len(COLOURS)} dash-{place % len(DASHES)}"
