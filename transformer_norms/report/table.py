"""The table of variants as words and numbers, and the notes that have to stand beside it."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.statistics import smallest_found
from transformer_norms.report.study import Study, StudyRun, Variant
from transformer_norms.report.tuning import Table, number
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.sweep_record import label
from transformer_norms.text_tables import narrow_table

_LISTED = 8  # runs named in one line


def table(findings: Findings) -> Table:
    """The table, without columns that are empty for every variant."""
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
        "diverged": str(own.divergence) if own.diverged else "0",
        "missing": str(len(own.missing)),
        "loss": number(own.mean) + ("" if own.sd is None else f" ± {own.sd:.4f}"),
        "median": number(own.median),
        "verdict": findings.verdict(variant),
    }
    names = "difference interval p sign-flip correlation detectable".split()
    if compared is None:
        return row | dict.fromkeys(names, "")
    there = compared.low is not None and compared.high is not None
    return row | {
        "difference": number(compared.difference, sign=True),
        "interval": f"{compared.low:+.4f} to {compared.high:+.4f}" if there else "",
        "p": _probability(compared.p_holm),
        "sign-flip": _probability(compared.sign_flip),
        "correlation": number(compared.correlation, digits=2),
        "detectable": number(compared.detectable),
    }


def _probability(value: float | None) -> str:
    if value is None:
        return ""
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def summary_lines(findings: Findings) -> list[str]:
    """The table for a terminal: a line a variant, of at most 80 columns. `seeds` are those that
    have ended, of those planned."""
    lines = [("variant", "seeds", LOSSES[findings.loss], "difference", "verdict")]
    for variant in findings.study.variants:
        row, own = _row(findings, variant), findings.outcomes[variant.name]
        diverged = f"diverged in {len(own.diverged)}" if own.diverged else ""
        seeds = f"{len(own.losses)} of {own.planned}" if own.missing else row["seeds"]
        lines.append(
            (row["variant"], seeds, row["loss"], row["difference"], diverged or row["verdict"])
        )
    return narrow_table(lines)


# ---------------------------------------------------------------------------------------- the notes


def method_note(findings: Findings) -> str:
    """How the numbers of the table were computed."""
    count, effect = findings.compared_together, findings.study.effect
    said = f"Final {LOSSES[findings.loss]} in nats per token."
    if any(outcomes.diverged for outcomes in findings.outcomes.values()):
        said += " A diverged run counts as its initial loss, and as infinity in a median."
    if not findings.comparisons:
        return said
    lost = any(compared.verdict == "diverged" for compared in findings.comparisons.values())
    untested = "; where a run diverged, only the difference is given" if lost else ""
    return (
        f"{said} Differences: mean over the seeds that both have of variant - baseline, with "
        f"Student's 95 % interval, each for itself; p: paired t test, after Holm's correction for "
        f"{count} comparison{'s' * (count != 1)} made together, so that an interval may leave out "
        f"zero where p is no longer below 0.05; detectable: the true difference that such a "
        f"comparison finds nine times in ten. Better or worse is said where p is below 0.05 and "
        f"the difference at least {effect:g}{untested}."
    )


def noise_notes(findings: Findings) -> list[str]:
    own = [
        f"{name} {outcomes.sd:.4f}"
        for name, outcomes in findings.outcomes.items()
        if outcomes.sd is not None and not outcomes.diverged
    ]
    lines = [f"standard deviation over seeds, in nats: {', '.join(own)}"] if own else []
    for name, compared in findings.comparisons.items():
        if compared.correlation is not None and compared.sd:
            found = smallest_found(compared.sd, compared.effect, findings.compared_together)
            sizes = ", ".join(f"{nats:.4f} with {seeds}" for seeds, nats in found.items())
            lines.append(
                f"{name} and its baseline: pairs of one seed correlate at "
                f"{number(compared.correlation, 2)}, their differences have a standard deviation "
                f"of {compared.sd:.4f}; such noise lets a true difference be found nine times in "
                f"ten from {sizes} seeds"
            )
    return lines


def unusual_runs(findings: Findings) -> list[str]:
    """The runs that finished above their initial loss, or no better than the frequencies of tokens.
    No rule calls them diverged, and yet a mean over them says little."""
    name = LOSSES[findings.loss]
    above = [
        f"{variant.name}: {run.folder.name} finished with a {name} of "
        f"{run.final_loss(findings.loss):.4f}, above its initial loss of "
        f"{run.summary.initial_loss:.4f} (validation loss {number(run.summary.val_loss)}); it "
        "counts as it is"
        for variant in findings.study.variants
        for run in variant.ended
        if run.finished and run.final_loss(findings.loss) > (run.summary.initial_loss or inf)
    ]
    return above + _stuck(findings.study)


def _stuck(study: Study) -> list[str]:
    """The runs of each variant that finished no better than the frequencies of tokens: the number
    of results, and the tuned values of trials."""
    lines = []
    for variant in study.variants:
        results = [run for run in variant.ended if run.stuck]
        tried = [trial for trial in variant.trials if trial.run and trial.run.stuck]
        where = [f"{len(results)} of its {len(variant.ended)} results"] if results else []
        where += [f"its trial at {label(trial.tuned)} (seed {trial.seed})" for trial in tried]
        if where:
            unigram = [*results, *(t.run for t in tried if t.run)][0].summary.data.unigram
            lines.append(
                f"{variant.name}: {', '.join(where)} finished no better than the frequencies "
                f"of tokens alone ({number(unigram)} nats)"
            )
    return lines


def run_warnings(study: Study) -> list[str]:
    """Each warning once, with the variants whose runs have it."""
    ended = [variant for variant in study.variants if variant.ended]
    warned: dict[str, list[str]] = {}
    for variant in ended:
        for warning in dict.fromkeys(w for run in variant.ended for w in run.summary.warnings):
            warned.setdefault(warning, []).append(variant.name)
    return [
        f"{'all' if 1 < len(names) == len(ended) else ', '.join(names)}: {warning}"
        for warning, names in warned.items()
    ]


def left_out_notes(study: Study) -> list[str]:
    """Each planned run without a result, and the runs that do not count."""
    lines = []
    for variant in study.variants:
        lost = [run for run in (*variant.trials, *variant.results) if not run.ended]
        lines += [
            f"missing of {variant.name}: {m.folder.name} ({m.status}, {m.stage})" for m in lost
        ]
    beside = [member for member in study.runs if member.stage == "superseded"]
    for said, members in {
        "planned by no sweep, and left out": [m for m in study.runs if m.stage == "unplanned"],
        "at what is no longer the best of the tuning, and left out": [m for m in beside if m.tuned],
        "a newer attempt counts instead of": [m for m in beside if not m.tuned],
    }.items():
        lines += [f"{said}: {_list_runs(members)}"] if members else []
    return lines


def _list_runs(members: Sequence[StudyRun]) -> str:
    more = f" and {len(members) - _LISTED} more" if len(members) > _LISTED else ""
    return ", ".join(member.folder.name for member in members[:_LISTED]) + more


_ORIGINS: dict[str, Callable[[SavedRun], str]] = {
    "commit": lambda run: (
        f"{run.summary.commit or 'unknown'}{' with changes' if run.summary.dirty else ''}"
    ),
    "data": lambda run: f"{run.choice('data')}, tokens {run.summary.data.fingerprint[:16]}",
    "model": lambda run: (
        f"depth {run.value('model.depth')}, width {run.value('model.width')}, "
        f"context {run.value('model.context')}"
    ),
    "horizon": lambda run: (
        f"{run.value('trainer.steps')} steps of {run.value('trainer.batch_size')} sequences"
    ),
    "evaluated on": lambda run: f"{run.value('data.val_tokens')} tokens at most",
    "device": lambda run: ", ".join(
        [
            f"{run.summary.device}, threads {run.summary.threads}",
            *([f"replicas {run.summary.replicas}"] if (run.summary.replicas or 1) > 1 else []),
            str(run.value("trainer.precision")),
        ]
    ),
    "torch": lambda run: run.summary.versions.get("torch", "unknown"),
}


def origin_notes(study: Study) -> list[str]:
    """The code, data and machine of the results; if they differ, with the number of runs."""
    runs = study.results
    lines = []
    for name, value in _ORIGINS.items():
        counts = Counter(map(value, runs)).most_common()
        several = len(counts) > 1
        listed = "; ".join(f"{text} ({n} runs)" if several else text for text, n in counts)
        lines += [f"{name}: {listed}"] if listed else []
    return [*lines, "run by run: results.csv"]
