"""The table of variants as words and numbers, and the notes that have to stand beside it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isinf, isnan
from textwrap import wrap

from transformer_norms.comparison.moderation import Spread
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.statistics import detectable_difference
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.left_out import left_out_summary, run_warnings
from transformer_norms.report.study import Study, Variant
from transformer_norms.run.failure import EFFECT
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import Table, narrow_table, rows_of, wrapped_table
from transformer_norms.training.measures import Start, start_text

_COLUMNS = (
    "variant tuned tuning_error seeds failed missing loss median difference interval p sign-flip "
    "correlation detectable verdict"
).split()
CONTRAST_NOTE = (
    "The value of a contrast is the sum of coefficient x loss over its variants, for a trend the "
    "least-squares slope per doubling. It is tested as a difference is, in the same family of Holm."
)
_OF_A_CONTRAST = ("contrast", "seeds", "value", "verdict")  # columns for a terminal
_TERMINAL = 80  # columns
_SEEDS = (3, 5, 8, 10)  # for which the smallest difference that is found is given


def number(
    value: float | None, digits: int = 4, sign: bool = False, infinite: str = "failed"
) -> str:
    """Empty for None and NaN; `infinite` for infinity, which as a loss is that of a failed run."""
    if value is None or isnan(value):
        return ""
    if isinf(value):
        return infinite
    return f"{value:{'+' if sign else ''}.{digits}f}"


def table(findings: Findings) -> Table:
    """The table, without columns that are empty for every variant."""
    rows = [_row(findings, variant) for variant in findings.study.variants]
    headings = {
        "tuned": findings.study.rate or "",
        "tuning_error": "tuning error",
        "loss": f"{LOSSES[findings.loss]}, mean ± sd",
        "interval": "95 % interval",
        "p": "p (Holm)",
    }
    columns = {headings.get(name, name): [row.get(name, "") for row in rows] for name in _COLUMNS}
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _row(findings: Findings, variant: Variant) -> dict[str, str]:
    """The cells of a variant by the names in _COLUMNS, without the cells of a comparison if there
    is none."""
    outcomes, comparison = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    row = {
        "variant": variant.name,
        "tuned": _tuned_text(variant, findings.study.rate or ""),
        "tuning_error": number(findings.gains.get(variant.name), infinite="unknown"),
        "seeds": str(outcomes.ended),
        "failed": str(outcomes.failure) if outcomes.failed else "0",
        "missing": str(len(outcomes.missing)),
        "loss": number(outcomes.mean) + ("" if outcomes.sd is None else f" ± {outcomes.sd:.4f}"),
        "median": number(outcomes.median),
        "verdict": verdict_words(findings, variant),
    }
    return row | (_numbers(comparison) if comparison else {})


def _tuned_text(variant: Variant, key: str) -> str:
    """`0.003`, or `0.009 (edge)` where a better value may lie beyond the last that was tried."""
    tuned = variant.tuned
    if tuned is None or tuned.best is None or key not in tuned.best:
        return ""
    return f"{tuned.best[key]}{' (edge)' if key in tuned.edge else ''}"


def _numbers(comparison: Comparison) -> dict[str, str]:
    """The cells of a comparison."""
    ends = comparison.low, comparison.high
    interval = ["no bound" if end is None else f"{end:+.4f}" for end in ends]
    return {
        "difference": number(comparison.difference, sign=True),
        "interval": "" if ends == (None, None) else " to ".join(interval),
        "p": _probability(comparison.p_holm),
        "sign-flip": _probability(comparison.sign_flip),
        "correlation": number(comparison.correlation, digits=2),
        "detectable": number(comparison.detectable),
    }


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
        seeds, verdict = (len(c.seeds), str(c.verdict)) if c else (0, "no results")
        row = {"contrast": contrast.text, "seeds": str(seeds), "verdict": verdict}
        rows.append(row | (_numbers(c) if c else {}))
    headings = {"difference": "value", "interval": "95 % interval", "p": "p (Holm)"}
    names = "contrast seeds difference interval p sign-flip detectable verdict".split()
    columns = {headings.get(name, name): [row.get(name, "") for row in rows] for name in names}
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _probability(value: float | None) -> str:
    return "below 0.001" if value is not None and value < 0.001 else number(value, digits=3)


def summary_lines(findings: Findings) -> list[str]:
    """The table for a terminal: a line for each variant, of at most 80 columns, the contrasts, and
    the n-grams. `seeds` are those that have ended, of those that were planned."""
    lines = [("variant", "seeds", LOSSES[findings.loss], "difference", "verdict")]
    for variant in findings.study.variants:
        row, outcomes = _row(findings, variant), findings.outcomes[variant.name]
        failed = f"failed in {len(outcomes.failed)}" if outcomes.failed else ""
        seeds = row["seeds"] + (f" of {outcomes.planned}" if outcomes.missing else "")
        verdict = failed or row["verdict"]
        lines.append((row["variant"], seeds, row["loss"], row.get("difference", ""), verdict))
    unasked = [findings.study.unasked] if findings.study.unasked else []
    warnings = [f"warning of {warning}" for warning in run_warnings(findings.study)]
    told = [*left_out_summary(findings.study), *unasked, *warnings, *regime_notes(findings)]
    damaged = findings.study.damaged  # in one line each, as an error would be
    notes = [
        line for note in told for line in ([note] if note in damaged else wrap(note, _TERMINAL))
    ]
    contrasts = contrast_table(findings)
    shown = {name: contrasts[name] for name in _OF_A_CONTRAST if name in contrasts}
    return [*narrow_table(lines), *(wrapped_table(rows_of(shown)) if shown else []), *notes]


# ---------------------------------------------------------------------------------------- the notes


def method_note(findings: Findings) -> str:
    """How the numbers of the table were computed."""
    note = f"Final {LOSSES[findings.loss]} in nats per token."
    if any(outcomes.failed for outcomes in findings.outcomes.values()):
        note += (
            f" A run failed if it diverged, or is not {EFFECT:g} nats better than the unigram or, "
            "at a horizon where most runs of a baseline pass it, the bigram. Means leave failed "
            "runs out, and medians take them as infinity; where a run failed, no difference is "
            "given."
        )
    if not (findings.comparisons or findings.contrasts):
        return note
    note += " Differences: mean over the seeds that both have of variant - baseline."
    made = [*findings.comparisons.values(), *findings.contrasts.values()]
    if not any(c.spread or c.verdict == "failed" for c in made):
        note += " None of them has an interval or a p."
        return " ".join([note, *_tuning_error_note(findings)])
    return " ".join(
        [
            note,
            _interval_note(findings),
            *_tuning_error_note(findings),
            f"p is after Holm's correction for {plural(findings.compared_together, 'comparison')} "
            "made together, so that an interval may leave out zero where p is no longer below "
            "0.05; detectable: the true difference that such a comparison finds nine times in ten. "
            "Better or worse is said where p is below 0.05 and the difference at least "
            f"{findings.study.effect:g}, equivalent where two one-sided tests show that it is "
            "less, below the effect where p is below 0.05 and neither is so.",
            *_SIGN_FLIP * any(c.sign_flip is not None for c in made),
        ]
    )


_SIGN_FLIP = [
    "sign-flip: the exact p of the measured differences of one comparison, without tuning error "
    "and Holm's correction."
]


def _interval_note(findings: Findings) -> str:
    """Which test gives intervals and p, and where its variances come from."""
    study, prior = findings.study, findings.rules.prior
    if study.sequential:
        more = "with more seeds at each" if study.looks > 1 else "after which seeds can be added"
        test = (
            f"{plural(study.looks, 'look')}, {more}: interval and p are those that hold at every "
            "look (Wang & Ramdas 2024)"
        )
    else:
        test = "Interval (95 %, each for itself) and p are those of the paired t test"
        if not study.recorded:
            test += (
                ", of runs that no sweep planned: if some were added after a look at the others, "
                "both claim too much"
            )
        if any(c.waits for c in (*findings.comparisons.values(), *findings.contrasts.values())):
            test += (
                ", once all planned pairs have ended: an early look is not the planned test; until "
                "then the interval is one that holds at every look (Wang & Ramdas 2024)"
            )
    if prior is None:
        return f"{test}, with the variance of each comparison alone."
    return (
        f"{test}. The variance of each comparison is shrunk toward the usual one, a deviation of "
        f"{prior.variance**0.5:.4f} that counts as {prior.weight:.1f} more seeds (Smyth 2004), "
        f"from {prior.origin}."
    )


def _tuning_error_note(findings: Findings) -> list[str]:
    if not findings.gains:
        return []
    return [
        "tuning error: what a better value of the tuned keys could still gain, an upper 95 % bound "
        "from the curve through the trials; it is a part of every interval and p."
    ]


def regime_notes(findings: Findings) -> list[str]:
    """The losses of n-grams, and the best that each variant's mean has passed: it says how much the
    models that are compared have learned."""
    by_lines: dict[tuple[float, ...], dict[str, list[str]]] = {}
    for variant in findings.study.variants:
        if passed := findings.passed(variant.name):
            lines = tuple(findings.ngrams[variant.name])
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


def noise_notes(findings: Findings) -> list[str]:
    """How much losses vary over seeds, and how small a difference is found in such noise."""
    deviations = [
        f"{name} {outcomes.sd:.4f}"
        for name, outcomes in findings.outcomes.items()
        if outcomes.sd is not None and not outcomes.failed
    ]
    notes = []
    if deviations:
        notes.append(f"standard deviation over seeds, in nats: {', '.join(deviations)}")
    together = findings.compared_together
    for name, c in findings.comparisons.items():
        if c.correlation is None or not c.sd or isinf(max(c.gains)):
            continue
        sizes = [f"{_detectable_with(c, n, together):.4f} with {n}" for n in _SEEDS]
        notes.append(
            f"{name} and its baseline: pairs of one seed correlate at {number(c.correlation, 2)}, "
            f"their differences have a standard deviation of {c.sd:.4f}; such noise lets a true "
            f"difference be found nine times in ten from {', '.join(sizes)} seeds"
        )
    return notes


def _detectable_with(c: Comparison, seeds: int, compared: int) -> float:
    """The smallest true difference that another number of seeds, planned at once, would find."""
    assert c.spread is not None
    spread = Spread(c.spread.variance, c.spread.freedom - len(c.seeds) + seeds)
    return detectable_difference(spread, seeds, compared, c.effect, max(c.gains))


def start_notes(findings: Findings) -> list[str]:
    """How each variant starts, by three numbers of the untrained model at its first seed."""
    return [
        f"{variant.name}: {start_text(Start(*run.summary.start))}"
        for variant in findings.study.variants
        for run in variant.ended[:1]
        if run.summary.start is not None
    ]


def unusual_runs(findings: Findings) -> list[str]:
    """The runs that count as trained and yet finished above their initial loss: no n-grams are
    known that say that they learned nothing. A mean over them says little."""
    name = LOSSES[findings.loss]
    return [
        f"{variant.name}: {run.folder.name} finished with a {name} of "
        f"{run.final_loss(findings.loss):.4f}, above its initial loss of "
        f"{run.summary.initial_loss:.4f} (validation loss {number(run.summary.val_loss)}); it "
        "counts as it is"
        for variant in findings.study.variants
        for run in variant.ended
        if run.seed in findings.outcomes[variant.name].losses
        and run.final_loss(findings.loss) > (run.summary.initial_loss or inf)
    ]


def origin_notes(study: Study) -> list[str]:
    """The code, data and machine of the results; if they differ, with the number of runs."""
    origins = [_origin(run) for run in study.results]
    notes = []
    for name in origins[0] if origins else ():
        counts = Counter(origin[name] for origin in origins).most_common()
        several = len(counts) > 1
        texts = [f"{text} ({count} runs)" if several else text for text, count in counts]
        notes.append(f"{name}: {'; '.join(texts)}")
    return [*notes, "run by run: results.csv"]


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
