"""report.html: a study as one file that loads nothing and can be mailed."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from transformer_norms.report import table as tables
from transformer_norms.report.answer import answer, sentence
from transformer_norms.report.figures import COLOURS, DASHES
from transformer_norms.report.findings import LOSSES, Findings, confounds
from transformer_norms.report.page.charts import chart_data, label_on
from transformer_norms.report.page.drawings import drawn_blocks
from transformer_norms.report.study import Rows, Study, StudyRun, Variant
from transformer_norms.report.table import number
from transformer_norms.report.tuning_audit import audit_lines, audit_table
from transformer_norms.run.sweep_record import value_text
from transformer_norms.text_tables import Table, shorten, templates

_HERE = Path(__file__).parent
_PROBES = "trainer.probe_every"
_SCRIPTS = ("theme.js", "charts.js", "diagnostics.js", "page.js")


def render_page(findings: Findings, rows: Mapping[Path, Rows], refresh: int | None = None) -> bytes:
    """`rows` of metrics by run folder; `refresh`: seconds after which a browser looks again."""
    study = findings.study
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    data = chart_data(findings, rows)
    on = scale(findings)
    text = (
        _environment()
        .get_template("page.html")
        .render(
            policy=_content_policy(_plotly(), script),
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
            sentence={v.name: sentence(findings, v) for v in study.variants},
            results=_results(tables.table(findings)),
            maps=maps(findings),
            blocks=[(block, Markup(block.svg)) for block in drawn_blocks(study.variants)],
            audit=audit_table(study),
            audit_lines=audit_lines(study),
            how=tables.method_note(findings),
            noise=tables.noise_notes(findings),
            warnings=tables.run_warnings(study),
            left_out=tables.left_out_notes(study),
            origin=tables.origin_notes(study),
            runs=runs_table(study),
            setup=shared_settings(study),
            probe_every=_probe_every(study),
            unusual=tables.unusual_runs(findings),
            confounds={v.name: confounds(study, v) for v in findings.compared},
        )
    )
    return text.encode()


def _probe_every(study: Study) -> Any:
    """The steps between two probes; None if no run states them, as runs without probes do not."""
    return next((run.value(_PROBES) for run in study.results if run.has(_PROBES)), None)


def _results(columns: Table) -> Table:
    """The table with the verdict in front, without columns of zeros, and without columns that
    stand in words below."""
    calm = all(cell in ("0", "") for cell in columns.get("diverged", ()))
    whole = all(cell in ("0", "") for cell in columns.get("missing", ()))
    left_out = {"diverged": calm, "median": calm, "missing": whole, "correlation": True}
    order = ["variant", "verdict", *columns]
    return {name: columns[name] for name in order if name in columns and not left_out.get(name)}


def _content_policy(*scripts: str) -> str:
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
    environment.filters |= {
        "style": _line_classes,
        "transposed": _transpose,
        "unescaped": html.unescape,
    }
    environment.globals["forest_size"] = (WIDTH, HEIGHT)
    return environment


def _transpose(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return list(zip(*columns, strict=True))


def _line_classes(place: int) -> str:
    """The classes of the line of the variant at a place, the same as in the figures."""
    return f"colour-{place % len(COLOURS)} dash-{place % len(DASHES)}"


# ---------------------------------------------------------------- small pictures of the differences

WIDTH, HEIGHT = 180, 26
_EDGE = 9  # room at either end, for arrows and half a dot
_FAR = 4  # times the median of what variants need: what lies beyond is at the edge


@dataclass(frozen=True)
class Forest:
    """x positions of a row: where zero lies, the band not worth naming, the interval, the mean (not
    of pairs that diverged), a dot for each seed with its words. `beyond`: whether the interval goes
    on to the left, right."""

    zero: float
    band: tuple[float, float]
    mean: float | None
    interval: tuple[float, float] | None
    beyond: tuple[bool, bool]
    seeds: list[tuple[float, str]]
    words: str


@dataclass(frozen=True)
class Scale:
    """`limit` is the difference at either end, in nats per token."""

    limit: float

    def __call__(self, difference: float) -> float:
        inside = max(-1.0, min(1.0, difference / self.limit))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - _EDGE), 1)


def scale(findings: Findings) -> Scale:
    """The scale on which all differences and intervals are drawn. What lies so far out that the
    others would be one dot is drawn at its edge."""
    extents = [
        extent for v in findings.study.variants if (extent := _extent(findings, v)) is not None
    ]
    far = _FAR * median(extents) if extents else 0.0
    return Scale(1.1 * max(findings.study.effect, min(far, max(extents, default=0.0))) or 1.0)


def _extent(findings: Findings, variant: Variant) -> float | None:
    """The largest distance from zero in a variant's row."""
    compared = findings.comparisons.get(variant.name)
    ends = [compared.low, compared.high, compared.difference] if compared else []
    sizes = [abs(end) for end in (*ends, *_differences(findings, variant).values()) if end]
    return max(sizes, default=None)


def forest(findings: Findings, variant: Variant, on: Scale) -> Forest | None:
    """The row of a variant; None if there is no difference to show."""
    compared = findings.comparisons.get(variant.name)
    if compared is None or compared.difference is None:
        return None
    effect, limit = findings.study.effect, on.limit
    there = compared.low is not None and compared.high is not None
    low, high = compared.low or 0.0, compared.high or 0.0
    return Forest(
        on(0),
        (on(-effect), on(effect)),
        None if compared.verdict == "diverged" else on(compared.difference),
        (on(low), on(high)) if there else None,
        (there and low < -limit, there and high > limit),
        [(on(d), f"seed {s}: {d:+.4f}") for s, d in _differences(findings, variant).items()],
        f"difference {compared.difference:+.4f} nats"
        + (f", 95 % interval {low:+.4f} to {high:+.4f}" if there else ""),
    )


def _differences(findings: Findings, variant: Variant) -> dict[int, float]:
    """The differences by seed, of the pairs of which neither run diverged."""
    if variant.name not in findings.comparisons or variant.baseline is None:
        return {}
    own, other = findings.outcomes[variant.name], findings.outcomes[variant.baseline]
    lost = own.diverged | other.diverged
    return {
        seed: own.losses[seed] - other.losses[seed]
        for seed in sorted(own.losses.keys() & other.losses.keys() - lost)
        if isfinite(own.losses[seed] - other.losses[seed])
    }


# --------------------------------------------------------------------------------- maps of two axes

SHADES = 7
_FIRST = ("placement", "norm")  # the rows and the columns of a map, where both vary


@dataclass(frozen=True)
class MapCell:
    """`shade` counts from 0, the lowest loss of the map; None where no run has one."""

    variant: Variant
    loss: float | None
    shade: int | None
    difference: float | None
    verdict: str
    diverged: str


@dataclass(frozen=True)
class Map:
    """Losses by two axes, all else as `rest` says; a cell is None where no variant was planned."""

    row_axis: str
    column_axis: str
    rest: str
    columns: list[str]
    rows: list[tuple[str, list[MapCell | None]]]


def maps(findings: Findings) -> list[Map]:
    """A map for each combination of values on the other axes; none if less than two axes vary."""
    varying = [
        axis for axis in findings.study.axes if len(_values_on(findings.study.variants, axis)) > 1
    ]
    if len(varying) < 2:
        return []
    first = [axis for axis in _FIRST if axis in varying]
    row, column, *others = [*first, *(axis for axis in varying if axis not in first)]
    rests: dict[str, list[Variant]] = {}
    for variant in findings.study.variants:
        rests.setdefault(label_on(variant, others), []).append(variant)
    return [_map(findings, row, column, rest, members) for rest, members in rests.items()]


def _map(findings: Findings, row: str, column: str, rest: str, members: list[Variant]) -> Map:
    rows, columns = _values_on(members, row), _values_on(members, column)
    losses = [findings.outcomes[v.name].mean for v in members]
    known = sorted(loss for loss in losses if loss is not None and isfinite(loss))
    cells = {
        (_value_text(variant, row), _value_text(variant, column)): _cell(findings, variant, known)
        for variant in members
    }
    return Map(
        row, column, rest, columns, [(r, [cells.get((r, c)) for c in columns]) for r in rows]
    )


def _cell(findings: Findings, variant: Variant, known: Sequence[float]) -> MapCell:
    outcomes, compared = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    loss = outcomes.mean
    shade = None
    if loss is not None and isfinite(loss):
        span = known[-1] - known[0] or 1.0
        shade = round((SHADES - 1) * (loss - known[0]) / span)
    return MapCell(
        variant,
        loss,
        shade,
        compared.difference if compared else None,
        findings.verdict(variant),
        f"diverged in {len(outcomes.diverged)} of {len(outcomes.losses)}"
        if outcomes.diverged
        else "",
    )


def _values_on(variants: Sequence[Variant], axis: str) -> list[str]:
    return list(dict.fromkeys(_value_text(variant, axis) for variant in variants))


def _value_text(variant: Variant, axis: str) -> str:
    return value_text(variant.values[axis]) if axis in variant.values else "not set"


# -------------------------------------------------------------------- every run, and their settings

_HEADINGS = "run stage seed".split()
_MORE = "status step validation test config commit data batches threads device torch".split()


def runs_table(study: Study) -> tuple[Sequence[str], list[list[str]]]:
    """Headings, and a row for each run that was planned or found. Hashes are cut to 12 digits."""
    headings = [*_HEADINGS, *study.tune, *_MORE]
    return headings, [_row(study, member) for member in study.runs]


def _row(study: Study, member: StudyRun) -> list[str]:
    tuned = [str(member.tuned.get(key, "")) for key in study.tune]
    start = [member.folder.name, member.stage, str(member.seed), *tuned]
    if member.run is None:
        return [*start, member.status, *[""] * (len(_MORE) - 1)]
    summary = member.run.summary
    commit = (summary.commit or "unknown")[:12] + (", changed" if summary.dirty else "")
    return [
        *start,
        f"diverged: {summary.diverged}" if summary.diverged else member.status,
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


_NODES = "model mlp position tokenizer data optimizer schedule trainer".split()  # nodes, in order


def shared_settings(study: Study) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    """The keys and values that are the same in all results, by node; and the keys that are not,
    which tables and variants show."""
    runs = study.results
    if not runs:
        return {}, []
    first, *others = [run.settings for run in runs]
    keys = sorted({key for settings in (first, *others) for key in settings})
    same: dict[str, list[tuple[str, str]]] = {}
    differing = []
    for key in keys:
        if any(_setting(settings, key) != _setting(first, key) for settings in others):
            differing.append(key)
        else:
            node, _, name = key.partition(".")
            same.setdefault(node, []).append((name or node, shorten(first[key])))
    order = [*filter(same.__contains__, _NODES), *(node for node in same if node not in _NODES)]
    return {node: same[node] for node in order}, differing


def _setting(settings: dict[str, Any], key: str) -> Any:
    return settings.get(key, "none")
