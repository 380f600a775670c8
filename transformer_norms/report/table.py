"""The table of variants as words and numbers, and the notes below it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import Any

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import plural, price_text
from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.verdict import Comparison, Interval
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons import at_text
from transformer_norms.report.left_out import left_out_lines, run_warnings
from transformer_norms.report.measured.cost import cost_ratio, gpu_memory, seconds_price
from transformer_norms.report.scatter import scatter_notes
from transformer_norms.report.scope import regime
from transformer_norms.report.study import RATE, TUNED_ON, Study, Variant, read_rows
from transformer_norms.report.texts import render_lines
from transformer_norms.run.failure import NGRAM_LEAD
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import (
    Table,
    narrow_table,
    rows_of,
    show,
    wrap_text,
    wrapped_table,
)
from transformer_norms.training.measures import Start, start_text

_COLUMNS = (
    "variant tuned tuning_error seeds failed missing loss median difference interval bounds p "
    "detectable saved verdict step_time peak_memory net"
).split()
_HEADINGS = {
    "tuning_error": "tuning error", "interval": "95 % interval", "saved": "tokens saved",
    "step_time": "step time", "peak_memory": "peak memory", "net": "seconds saved",
}  # fmt: skip
CONTRAST_HEADINGS = _HEADINGS | {"difference": "value"}
AFTER_MEAN = "mean ± standard deviation (sd) over seeds"
_OF_A_CONTRAST = ("contrast", "seeds", "value", "verdict")  # columns for a terminal


def number(value: float | None, infinite: str = "failed") -> str:
    return show(value, ".4f", infinite)


def table(findings: Findings) -> Table:
    """The table, without columns that are empty for every variant."""
    rows = [_row(findings, variant) for variant in findings.study.variants]
    return filled_columns(rows, _headings(findings), _COLUMNS)


def filled_columns(
    rows: Sequence[Mapping[str, str]], headings: Mapping[str, str], names: Iterable[str]
) -> Table:
    columns = {headings.get(name, name): [row.get(name, "") for row in rows] for name in names}
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _headings(findings: Findings) -> dict[str, str]:
    """The heading of each of _COLUMNS."""
    tuned, loss = findings.study.rate or "", f"{findings.study.loss_name}, mean ± sd"
    difference = f"difference{at_text(findings.study.at)}"
    own = {"tuned": tuned, "loss": loss, "difference": difference}
    return {name: name for name in _COLUMNS} | _HEADINGS | own


def _row(findings: Findings, variant: Variant) -> dict[str, str]:
    """The cells of a variant by the names in _COLUMNS, without the cells of a comparison if there
    is none."""
    outcomes, comparison = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    row = {
        "variant": variant.name,
        "tuned": variant.best_text(findings.study.rate or ""),
        "tuning_error": number(findings.slack.get(variant.name), infinite="unknown"),
        "seeds": str(outcomes.ended),
        "failed": str(outcomes.failure) if outcomes.failed else "0",
        "missing": str(len(outcomes.missing)),
        "loss": mean_text(outcomes),
        "median": number(outcomes.median),
        "verdict": verdict_words(findings, variant),
    }
    row |= comparison_cells(comparison) if comparison else {}
    return row | price_cells(findings, variant.name)


def price_cells(findings: Findings, name: str) -> dict[str, str]:
    """The cells of a variant that has a price."""
    if not (price := findings.prices.get(name)):
        return {}
    study = findings.study
    variant, baseline = map(study.variant, study.asked[name].pair or ())
    step_time, net = seconds_price(study, variant, baseline, price)
    memory = cost_ratio(study, variant, baseline, gpu_memory)
    cells = {"step_time": step_time, "peak_memory": memory, "net": net and price_text(net)}
    return {"saved": price_text(price)} | {key: str(one) for key, one in cells.items() if one}


def mean_text(outcomes: Outcomes) -> str:
    """`1.8270 ± 0.0005`: the mean and the standard deviation over the seeds that trained."""
    return number(outcomes.mean) + ("" if outcomes.sd is None else f" ± {outcomes.sd:.4f}")


def comparison_cells(comparison: Comparison) -> dict[str, str]:
    """The cells of a comparison."""
    p = comparison.p
    return {
        "difference": show(comparison.difference, "+.4f"),
        "interval": _ends_text(comparison.interval),
        "bounds": _ends_text(comparison.bounds),
        "p": "below 0.001" if p is not None and p < 0.001 else show(p, ".3f"),
        "detectable": number(comparison.detectable),
    }


def _ends_text(ends: Interval | None) -> str:
    """`-0.0225 to -0.0149`; nothing where neither end is known."""
    if not ends or all(map(isinf, ends)):
        return ""
    return " to ".join("no bound" if isinf(end) else f"{end:+.4f}" for end in ends)


def verdict_words(findings: Findings, variant: Variant) -> str:
    """The verdict; `baseline failed` if it was not the variant's own runs that failed."""
    verdict = findings.verdict(variant)
    trained = variant.results and not findings.outcomes[variant.name].failed
    return "baseline failed" if verdict == "failed" and trained else verdict


def contrast_table(findings: Findings) -> Table:
    """A row for each contrast, without columns that are empty for all."""
    rows = []
    for contrast in findings.study.contrasts:
        c = findings.contrasts.get(contrast.text)
        lacking = "no value" if contrast.text in findings.budgets else "no results"
        seeds, verdict = (len(c.seeds), str(c.verdict)) if c else (0, lacking)
        row = {"contrast": contrast.title, "seeds": str(seeds), "verdict": verdict}
        price = findings.prices.get(contrast.text)
        saved = {"saved": price_text(price)} if price else {}
        rows.append(row | (comparison_cells(c) if c else {}) | saved)
    names = "contrast seeds difference interval bounds p detectable saved verdict".split()
    value = {"difference": f"value{at_text(findings.study.at)}"}
    return filled_columns(rows, CONTRAST_HEADINGS | value, names)


def summary_lines(findings: Findings) -> list[str]:
    """The table for a terminal: a line for each variant, of at most 80 columns, the contrasts, and
    the n-grams. `seeds` are those that have ended, of those that were planned."""
    spread = any(outcomes.sd is not None for outcomes in findings.outcomes.values())
    loss = findings.study.loss.replace("_", " ") + " ± sd" * spread
    lines = [("variant", "seeds", loss, "difference", "verdict")]
    for variant in findings.study.variants:
        row, outcomes = _row(findings, variant), findings.outcomes[variant.name]
        failed = f"failed in {len(outcomes.failed)}" if outcomes.failed else ""
        seeds = row["seeds"] + (f" of {outcomes.planned}" if outcomes.missing else "")
        verdict = failed or row["verdict"]
        lines.append((row["variant"], seeds, row["loss"], row.get("difference", ""), verdict))
    unasked = [findings.study.unasked] if findings.study.unasked else []
    warnings = [f"warning of {warning}" for warning in run_warnings(findings.study)]
    reasons = [f"{name} ({one.reasons})" for name, one in findings.outcomes.items() if one.failed]
    told = [f"failed to train: {', '.join(reasons)}"] if reasons else []
    at = at_text(findings.study.at)
    lacking = list(dict.fromkeys(one.lacking for one in findings.budgets.values() if one.lacking))
    told += [f"differences and verdicts are{at}"] if at else []
    told += [
        *[f"no value{at}: {one}" for one in lacking[:3]],
        *[f"no value{at}: {len(lacking) - 3} more reasons are in the report"] * (len(lacking) > 3),
        *filter(None, [branch_note(findings.study), findings.price_note]),
        *left_out_lines(findings.study, by_name=False),
        *unasked,
        *findings.study.registered,
        *warnings,
        f"scale of these results: {regime(findings)}",
        *regime_notes(findings),
    ]
    damaged = findings.study.damaged  # in one line each, as an error would be
    notes = [
        line
        for note in filter(None, told)
        for line in ([note] if note in damaged else wrap_text(note))
    ]
    contrasts = contrast_table(findings)
    shown = {name: cells for name, cells in contrasts.items() if name.startswith(_OF_A_CONTRAST)}
    prices = {name: price_text(price) for name, price in findings.prices.items()}
    priced = {"price of": [*prices], _HEADINGS["saved"]: [*prices.values()]} if prices else {}
    others = [line for one in (shown, priced) if one for line in wrapped_table(rows_of(one))]
    return [*narrow_table(lines), *others, *notes]


# ---------------------------------------------------------------------------------------- the notes


def column_notes(findings: Findings, columns: Iterable[str]) -> list[str]:
    """`difference: variant - baseline, mean over ...`: says what each of the `columns` holds."""
    study, shown, every = findings.study, {*columns}, findings.every.values()
    splits = {run.summary.data.split for run in study.results}
    return render_lines(
        "notes.txt",
        study=study,
        headings=_headings(findings),
        shown=shown,
        tested=not shown.isdisjoint({_HEADINGS["interval"], "p"}),
        fisher=any(c.fisher is not None for c in every),
        described=any(c.verdict == "described" for c in every),
        waits=any(c.waits for c in every),
        usual=findings.rules.usual,
        together=plural(findings.compared_together, "comparison"),
        margin=f"{study.margin:g}",
        lead=f"{NGRAM_LEAD:g}",
        after_mean=AFTER_MEAN,
        # Without a test_fraction the split says which tokens the test loss is of.
        hash_split=study.loss == "test_loss" and splits == {"hash"},
    )


def regime_notes(findings: Findings) -> list[str]:
    """The losses of n-grams, and the best that each variant's mean has passed: it says how much the
    models that are compared have learned."""
    by_lines: dict[tuple[float, ...], dict[str, list[str]]] = {}
    for variant in findings.study.variants:
        if passed := findings.passed(variant.name):
            lines = tuple(variant.ngrams(findings.study.loss))
            by_lines.setdefault(lines, {}).setdefault(passed, []).append(variant.name)
    return [_regime_note(lines, names) for lines, names in by_lines.items()]


def _regime_note(lines: Sequence[float], passing: Mapping[str, Sequence[str]]) -> str:
    """Names the variants but for those of the most frequent n-gram."""
    listed = ", ".join(f"{ngram_name(k)} {loss:.3f}" for k, loss in enumerate(lines, 1))
    note = f"n-grams counted on the training tokens: {listed} nats; the best that a mean has passed"
    if len(passing) == 1:
        return f"{note}: {next(iter(passing))}"
    usual = max(passing, key=lambda ngram: len(passing[ngram]))
    by = [f"{ngram} by {', '.join(names)}" for ngram, names in passing.items() if ngram != usual]
    rest = "every other" if len(passing[usual]) > 1 else passing[usual][0]
    return f"{note}: {'; '.join(by)}; {usual} by {rest}"


def evidence_notes(findings: Findings) -> dict[str, list[str]]:
    """Returns the evidence for the answer: notes by heading."""
    return {
        "Where the scatter comes from": scatter_notes(findings),
        "Starts": start_notes(findings),
        "What averaged weights foretell": average_notes(findings),
        "Warnings of the runs": run_warnings(findings.study),
        "Missing and left out": left_out_lines(findings.study, by_name=True),
    }


def start_notes(findings: Findings) -> list[str]:
    """How each variant starts, by three numbers of the untrained model at its first seed."""
    return [
        f"{variant.name}: {start_text(Start(*run.summary.start))}"
        for variant in findings.study.variants
        for run in variant.ended[:1]
        if run.summary.start is not None
    ]


def average_notes(findings: Findings) -> list[str]:
    """How far a variant's averaged weights are above its loss at the end, before its rate falls."""
    lines = []
    for name, outcomes in findings.outcomes.items():
        trained = (run for run in findings.study.variant(name).ended if run.seed in outcomes.losses)
        rows = {run: row for run in trained if (row := _row_before_decay(run))}
        averaged, raw = (
            Outcomes({run.seed: row[key] - run.final_loss(TUNED_ON) for run, row in rows.items()})
            for key in ("val/average_loss", "val/loss")
        )
        steps = ", ".join(sorted({f"step {row['step']:,}" for row in rows.values()}))
        line = f"{name}: {mean_text(averaged)}, without averaging {mean_text(raw)}, at {steps}"
        lines += [f"{line} ({plural(len(rows), 'seed')})"] if rows else []
    note = (
        "validation loss of the averaged weights (trainer.average) at the last evaluation before "
        f"the rate of wsd falls, minus the validation loss at the end, in nats: {AFTER_MEAN}"
    )
    return [*lines, note] if lines else []


def _row_before_decay(run: SavedRun) -> Mapping[str, Any] | None:
    """Returns the row of the last evaluation of averaged weights at the peak rate of wsd."""
    if run.summary.average_loss is None or run.value("schedule.type") != "wsd" or not run.has(RATE):
        return None
    rows, peak = read_rows([run])[0][run.folder], run.value(RATE)
    known = (r for r in rows if r.get("lr") == peak and finite(r.get("val/average_loss")))
    return max(known, key=lambda row: row["step"], default=None)


def origin_notes(study: Study) -> list[str]:
    """The code, data and machine of the results; if they differ, with the number of runs."""
    origins = [_origin(run) for run in study.results]
    notes = []
    for name in origins[0] if origins else ():
        counts = Counter(origin[name] for origin in origins).most_common()
        several = len(counts) > 1
        texts = [f"{text} ({count} runs)" if several else text for text, count in counts]
        notes.append(f"{name}: {'; '.join(texts)}")
    return [*notes, *filter(None, [branch_note(study)]), "run by run: results.csv"]


def branch_note(study: Study) -> str:
    """Says that horizons share first steps, and what follows from it."""
    branches = sum(run.summary.branched_from is not None for run in study.results)
    line = (
        f"{branches} of {plural(len(study.results), 'result')} began from the last step that they "
        "share with a shorter horizon, so losses of two horizons at one seed are not independent."
    )
    return line if branches else ""


def _origin(run: SavedRun) -> dict[str, str]:
    summary, value = run.summary, run.value
    replicas = f", replicas {summary.replicas}" if (summary.replicas or 1) > 1 else ""
    parallel = f", parallel {summary.parallel_text}" if (summary.ranks or 1) > 1 else ""
    return {
        "commit": f"{summary.commit or 'unknown'}{' with changes' if summary.dirty else ''}",
        "data": f"{run.choice('data')}, tokens {summary.data.fingerprint[:16]}",
        "model": f"depth {value('model.depth')}, width {value('model.width')}, "
        f"context {value('model.context')}",
        "horizon": f"{value('trainer.steps')} steps of {value('trainer.batch_size')} sequences",
        "evaluated on": f"{value('data.val_tokens')} tokens at most",
        "device": f"{summary.device}, threads {summary.threads}{replicas}{parallel}, "
        f"{value('trainer.precision')}",
        "torch": summary.versions.get("torch", "unknown"),
    }
