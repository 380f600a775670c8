"""python experiments/results.py                 every table, figure and number here, written anew
python experiments/results.py pack runs/NAME   a study's runs, without weights: NAME/runs.tar.xz
python experiments/results.py pack --unfinished runs/NAME
                                               those that have ended: NAME/unfinished.tar.xz
python experiments/results.py unpack NAME      packed runs into runs/NAME

What is committed of a study is what its runs recorded, or what was measured of models; the rest
follows from that, but for the simulations of noise/error_rates.md. Each study's report is the one
that `python -m transformer_norms.report` writes: its page, report.html, is not committed, and lies
beside the rest once this has run.

A study that takes longer than a machine is at hand is committed unfinished. No table is written of
such a study. It is unpacked on the next machine, where its command trains the runs that are left.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import correlation, fmean

import agreement
import branches
import depths
import streams
import streams_256
import torch
import untied
import usual_protocol
import widths
from analyses import init_gradients
from claims import claims_csv, claims_text, contradictions, judge_claims
from claims_figure import write_figures
from judged_anew import verdicts_table
from measured import STEPS, XIONG, described, gap_sentences, measured_rows
from packing import RUNS, extract, find_homes, pack, unpack
from primary import primary_contrasts, primary_rows
from screens import SCREENS, screen_text
from small_questions import MODES, SHARES, modes_rows, read_rows, shares_rows
from trained import ASKED, STUDY, measured_values, trained_text

from transformer_norms.analysis import coordinate_check, invariances, norm_removal
from transformer_norms.analysis.invariance_laws import measure_norms
from transformer_norms.analysis.outcome import Outcome, View, csv_of, of_kind
from transformer_norms.analysis.rendering import figure, tables, title
from transformer_norms.comparison.power import smallest_difference
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.names import options
from transformer_norms.report.answer import sentence
from transformer_norms.report.charts.panels import panel_files, panels
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.findings import Findings
from transformer_norms.report.joined_report import write_joined
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.scope import regime
from transformer_norms.report.study import read_rows as rows_of_runs
from transformer_norms.report.table import table
from transformer_norms.report.tuning_audit import audit_table
from transformer_norms.report.writing import write_report
from transformer_norms.text_tables import (
    Table,
    escape_markdown,
    markdown_list,
    markdown_table,
    rows_of,
)
from transformer_norms.training.measures import WORDS
from transformer_norms.training.probes import measure_start

HERE = Path(__file__).parent
# Of a report what is committed; a figure where the README shows it. In a README there is no room
# for all columns of its table.
FILES = ("table.md", "results.csv", "curves.svg", "rates.svg")
LEFT_OUT = ("missing", "median", "points")
FIRST_BLOCK = (
    "stream_rms/embedding", "branch_over_stream/attention/0", "branch_over_stream/mlp/0",
)  # fmt: skip
# The home of one estimate over studies, the studies, and the comparison.
JOINED = {
    "horizon_post": (
        ("horizon", "horizon_pydocs", "horizon_post"),
        "(post - pre) under steps=4800 - (post - pre) under steps=300",
    )
}
# Panels of a report, by their names, that a README shows.
FIGURES = {
    "horizon": {"final-loss-by-tokens": "tokens.svg"},
    "horizon_pydocs": {"final-loss-by-tokens": "tokens.svg"},
    "horizon_branches": {
        "final-loss-by-tokens": "tokens.svg", "final-loss-by-step-time": "time.svg"
    },
}  # fmt: skip
SHEET = Sheet(("svg",), width=6.0)
SEEDS = (3, 5, 8, 10)
ONE_START = ["architecture.tied=true", "architecture.embed_scale=none"]
# What was found, and the verdicts and the tables of it for the README.
Report = tuple[Findings, list[str], list[str]]
# Studies whose contrasts are one family of their own, and which ask nothing else beyond the report.
PRIMARY = (
    "untied_stream", "hybridnorm_parts", "qk_width", "dynamic_alpha", "dynamic_alpha_rates",
    "horizon_post", "horizon_branches", "token_norm", "depth_trend", "orthogonal",
)  # fmt: skip
STARTS = {
    "": [],
    ", all at mup": ["init=mup", *ONE_START],
    ", all at 0.02": ["init=scaled", *ONE_START],
}


def regenerate() -> None:
    """Each core has a process, and each process one thread: what is measured anew is small."""
    one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
    cores = min(os.cpu_count() or 1, 8)  # a process has half a GB
    with (
        ProcessPoolExecutor(cores, get_context("spawn"), **one_thread) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        runs, homes = Path(folder), find_homes()
        trained = [home for home in homes.values() if (home / RUNS).exists()]
        links = {name: str(home.relative_to(HERE)) for name, home in homes.items()}
        list(pool.map(extract, [home / RUNS for home in trained], repeat(runs)))
        written = pool.map(_write_study, trained, repeat(runs))
        # Last what needs no report: meanwhile this process fills the READMEs.
        measurements = _begin_measurements(pool, runs)
        reports = {home.name: report for home, report in zip(trained, written, strict=True)}
        found = {study: report[0] for study, report in reports.items()}
        drawn = pool.submit(_widths, HERE / "width", widths.rules_of(found))
        for study, (findings, verdicts, tables) in reports.items():
            if study in SCREENS:  # its report has too many lines for a README
                parts = [f"{regime(findings)}.", screen_text(study, findings)]
            else:
                parts = [*_asked(study, found, runs), *verdicts]
                parts += [*_contradicted(contradictions(study, found, links)), *tables]
            _fill(homes[study] / "README.md", "\n\n".join(parts))
        for home, (studies, contrast) in JOINED.items():
            write_joined([runs / study for study in studies], HERE / home, contrasts=[contrast])
        modes = read_rows(HERE / "batchnorm" / MODES.name)
        _fill(HERE / "batchnorm" / "README.md", markdown_table(modes_rows(modes)))
        _fill(HERE / "judged_anew" / "README.md", verdicts_table(found))
        pairs = [*usual_protocol.pairs_of(found)]
        (HERE / "usual_protocol" / "protocols.svg").write_bytes(usual_protocol.draw(pairs))
        _fill(HERE / "usual_protocol" / "README.md", usual_protocol.protocol_text(pairs))
        for name, text in measurements.texts.items():
            _fill(HERE / name / "README.md", text.result())
        measured = {name: values.result() for name, values in measurements.values.items()}
        measured["norm_removal"] = _removal(HERE / "norm_removal")
        claims = judge_claims(HERE / "claims.yaml", found, measured)
        write_figures(claims, HERE)
        (HERE / "claims.csv").write_bytes(claims_csv(claims, found))
        _fill(HERE / "README.md", claims_text(claims, links))
        for one in (*measurements.files, drawn):
            one.result()


@dataclass(frozen=True)
class Measurements:
    """What other processes compute of the studies that measured models: by study the text of its
    README, and its values by name. `files` write all files of a study themselves."""

    texts: dict[str, Future[str]]
    values: dict[str, Future[dict[str, Comparison]]]
    files: list[Future[None]]


def _begin_measurements(pool: Executor, runs: Path) -> Measurements:
    values = {name: pool.submit(measured_values, HERE / name, runs / STUDY) for name in ASKED}
    texts = {name: pool.submit(trained_text, HERE / name, runs / STUDY) for name in ASKED}
    values["init_gradients"] = pool.submit(_init_gradients, HERE / "init_gradients")
    starts = pool.submit(_starts, HERE / "starts")
    return Measurements(texts, values, [starts, pool.submit(_invariances, HERE / "invariances")])


def _write_study(home: Path, folder: Path) -> Report:
    """Writes the report of the runs in `folder` and puts it into the study's home."""
    path, findings = write_report([folder / home.name], folder / f"{home.name}-report")
    readme = (home / "README.md").read_text()
    for name in (*FILES, "report.html"):
        shown = not name.endswith(".svg") or f"({name})" in readme
        if shown and (path.parent / name).exists():
            shutil.copyfile(path.parent / name, home / name)
    if home.name in SCREENS:
        return findings, [], []
    return findings, list(_verdicts(findings)), list(_tables(findings))


def _verdicts(findings: Findings) -> Iterator[str]:
    """The regime, and the verdicts."""
    yield f"{regime(findings)}:"
    yield markdown_list(sentence(findings, variant) for variant in findings.study.variants)


def _contradicted(lines: Sequence[str]) -> Iterator[str]:
    """What other studies contradict."""
    if lines:
        yield "Other signs elsewhere:"
        yield "\n".join(f"- {line}" for line in lines)


def _tables(findings: Findings) -> Iterator[str]:
    yield _grid(table(findings))
    if tuning := audit_table(findings.study):
        yield "Validation loss on the tuning seed at each rate:"
        yield _grid(tuning)
    if {"placement", "init"} & {*findings.study.axes}:
        yield (
            "Inside the first block at the first step (seed means): the rms of the embedded "
            "tokens, and how large what attention and mlp add is beside the stream it is added to:"
        )
        yield markdown_table(
            [["variant", "embedding", "attention adds", "mlp adds"], *_inside(findings)]
        )


def _asked(study: str, found: Mapping[str, Findings], runs: Path) -> Iterator[str]:
    """What a study asks beyond its report, in words and tables, with a figure of it. `found` has
    the findings of all studies, and `runs` their runs."""
    findings = found[study]
    if study in streams.STUDIES:
        (HERE / study / "losses.svg").write_bytes(streams.draw(findings))
    if study == "stream_or_table":
        yield streams.study_text(findings)
    if study == "stream_or_table_256":
        yield streams_256.study_text(findings, found["stream_or_table"].study)
    if study in agreement.SCALES:
        yield agreement.study_text(study, findings)
    if study == "untied_stream":
        yield untied.answer(findings)
    if study in PRIMARY:
        yield markdown_table(primary_rows(primary_contrasts(findings)))
    for panel, name in FIGURES.get(study, {}).items():
        _draw(findings, {panel: HERE / study / name})
    if study == "depth_trend":
        yield depths.depths_text(findings)
        (HERE / study / "losses.svg").write_bytes(depths.draw(findings))
    if study == "horizon_branches":
        yield branches.beside_text(findings, found["horizon"])
    if study == "untied_stream":
        yield untied.head_text(found["stream_or_table"].study, findings.study)
    if study == "noise":
        yield _noise_table(findings)
    if study == "eps":
        _draw(findings, {"differences": HERE.parent / "docs" / "differences.svg"})
        yield "The share of held-out tokens whose mean square is below ten eps, of one run each:"
        yield markdown_table(shares_rows(read_rows(HERE / study / SHARES.name)))


def _draw(findings: Findings, files: Mapping[str, Path]) -> None:
    """Draws panels of a report, by their names, as files."""
    rows, _ = rows_of_runs(findings.study.results)
    with drawn_with(TEXT, SHEET.settings()):
        for panel in panels(findings, rows):
            if file := files.get(panel.name):
                file.write_bytes(next(iter(panel_files(panel, SHEET).values())))


def _noise_table(findings: Findings) -> str:
    """What is found in the noise of two variants, which is measured by their runs of one seed."""
    (variant,) = findings.compared
    pair = variant.name, findings.study.baseline_of(variant).name
    noise = findings.comparisons[variant.name].sd or 0.0
    losses = [[*map(findings.outcomes[name].losses.get, range(10))] for name in pair]
    found = [smallest_difference(Spread(noise**2, 0), n, 1, in_sequence=False) for n in SEEDS]
    rows = [
        ["seeds", *map(str, SEEDS)],
        ["smallest difference found, nats", *(f"{x:.3f}" for x in found)],
    ]
    return (
        f"The differences have a standard deviation of {noise:.4f}, and the losses of one seed "
        f"correlate at {correlation(*losses):.2f}. What is found nine times in ten, of one "
        f"comparison without tuning error:\n\n{markdown_table(rows)}"
    )


def _inside(findings: Findings) -> Iterator[list[str]]:
    keys = [f"probe/{key}" for key in FIRST_BLOCK]
    for variant in findings.study.variants:
        first = [next(row for row in run.metrics() if row["step"] == 1) for run in variant.ended]
        yield [variant.name, *(f"{fmean(row[key] for row in first):.3g}" for key in keys)]


def _grid(columns: Table) -> str:
    kept = {heading: cells for heading, cells in columns.items() if heading not in LEFT_OUT}
    return markdown_table(rows_of(kept))


def _init_gradients(folder: Path) -> dict[str, Comparison]:
    """The slopes of the two placements for which there is a theorem."""
    setting = init_gradients.read_setting(XIONG, xiong=True)
    rows = measured_rows("init_gradients")
    made, variants = (
        init_gradients.outcome(setting, rows),
        init_gradients.variants_of(rows, setting),
    )
    (folder / "init_gradients.svg").write_bytes(figure(made))
    notes = markdown_list(init_gradients.notes(setting, variants))
    _fill(folder / "README.md", f"{markdown_table(tables(made)[0].cells)}\n\n{notes}")
    laws = {v.name: v.law for v in variants if v.bound is not None}
    return {
        name: Comparison(
            (), difference=law.slope, interval=(law.slope - law.half, law.slope + law.half),
            verdict="described",
        )
        for name, law in laws.items()
        if law and law.half
    }  # fmt: skip


def _starts(folder: Path) -> None:
    """Measured anew: how each placement starts at its own start, and at one start for all."""
    rows = [["placement", "its start", *(f"{word}{of}" for of in STARTS for word in WORDS)]]
    sizes = ["model.depth=4", "model.width=128", "model.heads=4", "model.context=64"]
    for placement in options("placement"):
        configs = [compose([*sizes, f"placement={placement}", *typed]) for typed in STARTS.values()]
        numbers = [measure_start(build_model(config, 257)) for config in configs]
        tied = "" if configs[0].architecture.tied else ", untied"
        cells = [f"{number:.3g}" for start in numbers for number in start]
        rows.append([placement, f"{configs[0].choices.init}{tied}", *cells])
    _fill(folder / "README.md", markdown_table(rows))


def _widths(folder: Path, rules: Sequence[widths.Rule]) -> None:
    """What the studies of single widths say together, and the coordinate check."""
    checked = coordinate_check.outcome(measured_rows("coordinate_check"), STEPS)
    (folder / "rates.svg").write_bytes(widths.draw_rates(rules))
    (folder / "coordinate_check.svg").write_bytes(figure(checked))
    parts = [
        markdown_table(widths.rates_table(rules)),
        markdown_table(widths.losses_table(rules)),
        markdown_table(tables(checked)[0].cells),
        markdown_list(checked.remarks),
    ]
    _fill(folder / "README.md", "\n\n".join(parts))


def _invariances(folder: Path) -> None:
    made = invariances.outcome(measure_norms())
    (folder / "invariances.svg").write_bytes(figure(made))
    (folder / "invariances.csv").write_bytes(csv_of(made.rows))
    legend = markdown_list(f"{law.head}: {law.words}" for law in invariances.LAWS)
    setting = escape_markdown(f"{invariances.SETTING} {invariances.BELOW}.")
    verdicts = markdown_table(invariances.VERDICTS.table(made.rows).cells)
    _fill(folder / "README.md", "\n\n".join((verdicts, legend, setting)))


def _removal(folder: Path) -> dict[str, Comparison]:
    """The gap of each variant."""
    rows = measured_rows("norm_removal")
    made = Outcome(norm_removal.ANALYSIS, rows)
    (folder / "norm_removal.svg").write_bytes(figure(made))
    hidden = ("first token", "rounding")  # a README has no room for all
    numbers = {k: n for k, n in norm_removal.ANALYSIS.numbers.items() if k not in hidden}
    runs = [{"run": title(row), **{key: row[key] for key in numbers}}
            for row in of_kind(rows, "model")]  # fmt: skip
    lines = gap_sentences(rows)
    losses = markdown_table(View(lambda _: runs, ("run",), numbers).table(rows).cells)
    _fill(folder / "README.md", f"{markdown_list(lines)}\n\n{losses}")
    models = dict.fromkeys(row["model"] for row in of_kind(rows, "model"))
    return {
        model: described([row["gap"] for row in of_kind(rows, "model") if row["model"] == model])
        for model in models
    }


def _fill(file: Path, text: str) -> None:
    """Between its marks. ValueError where a README has none."""
    before = file.read_text()
    marked = re.search(r"<!-- results:[^>]*-->\n(.*?)<!-- /results -->", before, re.DOTALL)
    if marked is None:
        raise ValueError(f"{file}: there is no <!-- results: ... --> with its <!-- /results -->")
    file.write_text(before[: marked.start(1)] + text + "\n" + before[marked.end(1) :])


def main(arguments: Sequence[str]) -> int:
    command, paths = arguments[:1], [Path(argument) for argument in arguments[1:]]
    try:
        if not command:
            regenerate()
        elif command == ["pack"] and (studies := set(arguments[1:]) - {"--unfinished"}):
            for study in sorted(studies):
                pack(Path(study), unfinished="--unfinished" in arguments)
        elif command == ["unpack"] and paths:
            for name in arguments[1:]:
                unpack(name)
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except (ValueError, OSError) as error:
        if not command:  # our own mistake
            raise
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
