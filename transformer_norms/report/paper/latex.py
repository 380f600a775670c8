"""The tables of a report for LaTeX: the answer in short, all columns, and the losses by seed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_norms.comparison.sentences import plural
from transformer_norms.report import table as tables
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons import at_text
from transformer_norms.report.measured.stability import STABILITY_NOTES, stability_table
from transformer_norms.report.paper.citations import bibliography, choices_of, entries_of
from transformer_norms.report.scope import regime
from transformer_norms.report.study import Study, Variant
from transformer_norms.text_tables import (
    Table,
    escape_latex,
    file_name,
    latex_tabular,
    printable,
    rows_of,
    show,
)

_LOSS = r"loss $\pm$ sd"
_PRICE_WORDS = {
    "tokens saved": "the share with which the better one reaches the other one's loss, with the "
    "interval that follows from that of the verdict",
    "step time": "the baseline's is 0; median and quartiles over the pairs of all horizons",
    "seconds saved": "1 - (share of tokens needed) x (ratio of step times). In brackets is the "
    "interval of tokens saved at the quartiles of this ratio, not a 95 % interval",
}
_PRICES = {"saved": "tokens saved", "step_time": "step time", "net": "seconds saved"}
_WORDS = ("variant", "verdict")  # columns to the left, which hold no numbers
_NUMBER = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])")
_HEAD = r"% \usepackage{booktabs,graphicx}; \bibliography{sources} has the keys of \cite"
# Shrinks a table that would be wider than its line.
_FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def paper_files(findings: Findings, notes: Sequence[str]) -> dict[str, str]:
    """table.tex, table-seeds.tex and, where there is something to show, table-stability.tex, which
    begin with the `notes`, and as BibTeX the sources of the choices of all runs that count."""
    choices: dict[str, str] = {}
    for member in findings.study.counted:
        choices |= choices_of(member.run.config) if member.run else {}
    head = [_HEAD, *[f"% {printable(note)}" for note in notes], *_keys_by_variant(findings.study)]
    floats = {"table.tex": _short_table(findings), "table-seeds.tex": _seeds_table(findings)}
    if stability := stability_table(findings):
        floats["table-stability.tex"] = _stability_table(findings, stability)
    texts = {name: "\n".join([*head, text]) for name, text in floats.items()}
    return texts | {"sources.bib": bibliography(choices)}


def _short_table(findings: Findings) -> str:
    """Variant, loss, difference, verdict and the number of seeds."""
    best = best_variants(findings)
    rows = [_short_row(findings, variant, best) for variant in findings.study.variants]
    shown = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    words = _caption_words(findings, shown) + [
        "bold: the lowest mean, which is not a verdict"
    ] * bool(best)
    return _float(findings, "", [shown, *([row[name] for name in shown] for row in rows)], words)


def best_variants(findings: Findings) -> set[str]:
    """The variant of the lowest mean among those that have the same baseline, if there are several.
    A variant of which a run failed or is missing, or whose best rate was not found, does not count.
    """
    groups: dict[str, dict[str, float]] = {}
    for variant in findings.study.variants:
        outcomes = findings.outcomes[variant.name]
        lacks = outcomes.failed or outcomes.missing or variant.at_edge
        if variant.baseline and outcomes.mean is not None and not lacks:
            groups.setdefault(variant.baseline, {})[variant.name] = outcomes.mean
    return {min(means, key=means.__getitem__) for means in groups.values() if len(means) > 1}


def _short_row(findings: Findings, variant: Variant, best: set[str]) -> dict[str, str]:
    outcomes = findings.outcomes[variant.name]
    mean, loss = tables.number(outcomes.mean), latex_cell(tables.mean_text(outcomes))
    if outcomes.failed:
        loss = f"{len(outcomes.failed)} of {outcomes.ended} failed"
    elif variant.name in best:
        loss = loss.replace(mean, rf"\mathbf{{{mean}}}", 1)
    compared = findings.comparisons.get(variant.name)
    difference = show(compared.difference, "+.4f") if compared else ""
    prices = tables.price_cells(findings, variant.name)
    return {
        "variant": escape_latex(variant.name),
        _LOSS: loss,
        f"difference{at_text(findings.study.at)}": latex_cell(difference),
        **{heading: latex_cell(prices.get(name, "")) for name, heading in _PRICES.items()},
        "verdict": escape_latex(tables.verdict_words(findings, variant)),
        "$n$": f"${outcomes.ended}$",
    }


def _caption_words(findings: Findings, shown: Sequence[str]) -> list[str]:
    """Returns the sentences that say what loss, difference and verdict are."""
    loss = f"final {findings.study.loss_name} in nats per token"
    words = [f"{loss}, {tables.AFTER_MEAN}"]
    names = {variant.baseline for variant in findings.compared}
    if names:
        baseline = names.pop() if len(names) == 1 else "its baseline"
        at = at_text(findings.study.at)
        words += [f"difference{at}: the loss - that of {baseline}, over the seeds that both have"]
    if count := findings.compared_together:
        together = plural(count, "comparison")
        words += [f"verdict: by an interval for {together} at once, tuning error included"]
    words += [f"{name}: {text}" for name, text in _PRICE_WORDS.items() if name in shown]
    return words


def _seeds_table(findings: Findings) -> str:
    """The final loss of every seed: the seeds are the rows if they are more than the variants."""
    every = findings.outcomes.values()
    seeds = sorted({s for o in every for s in (*o.losses, *o.failed, *o.missing)})
    rows = [["variant", *(f"seed ${seed}$" for seed in seeds)]]
    for name, outcomes in findings.outcomes.items():
        losses = {seed: f"${loss:.4f}$" for seed, loss in outcomes.losses.items()}
        losses |= dict.fromkeys(outcomes.failed, "failed") | dict.fromkeys(outcomes.missing, "--")
        rows.append([escape_latex(name), *(losses.get(seed, "") for seed in seeds)])
    if len(seeds) > len(findings.outcomes):
        rows = [list(column) for column in zip(*rows, strict=True)]
        rows[0][0] = ""
    words = [f"final {findings.study.loss_name} in nats per token of every seed"]
    return _float(findings, "seeds", rows, words)


def _stability_table(findings: Findings, stability: Table) -> str:
    heading, *rows = rows_of(stability)
    cells = [heading, *([escape_latex(name), *map(latex_cell, rest)] for name, *rest in rows)]
    words = [f"{name}: {STABILITY_NOTES[name]}" for name in heading[1:]]
    return _float(findings, "stability", cells, words)


def latex_cell(text: str) -> str:
    """A cell with its numbers in math mode, where a hyphen is a minus sign."""
    parts = _NUMBER.split(text.replace("below ", "< "))  # each second one is a number
    escaped = (f"${one}$" if n % 2 else escape_latex(one) for n, one in enumerate(parts))
    return "".join(escaped).replace(r"$ $\pm$ $", r" \pm ")


def latex_text(text: str) -> str:
    return escape_latex(text).replace(" - ", " $-$ ").replace(r" \%", r"\,\%")


def _float(findings: Findings, form: str, rows: Sequence[Sequence[str]], words: list[str]) -> str:
    """A table environment."""
    align = "".join("l" if not n or name in _WORDS else "r" for n, name in enumerate(rows[0]))
    label = file_name(findings.study.home.resolve().name) or "study"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(findings, words)}}}",
            rf"\label{{tab:{'-'.join(filter(None, [label, form]))}}}",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            _FITTED,
            latex_tabular(rows, f"@{{}}{align}@{{}}") + "}",
            r"\end{table}",
            "",
        ]
    )


def _caption(findings: Findings, words: Sequence[str]) -> str:
    """The question, the words, and the regime: without it a loss says nothing."""
    study = findings.study
    texts = [study.question or "Runs by variant", *words]
    if about := regime(findings):
        data = "; ".join(dict.fromkeys(f"data {run.choice('data')}" for run in study.results))
        tuned = f" ({', '.join(study.tune)})" if study.tune else ""
        texts.append(f"regime: {data}; {about}{tuned}")
    sentences = (text[0].upper() + text[1:] for text in texts if text)
    ended = [text if text.endswith((".", "?", "!")) else f"{text}." for text in sentences]
    return latex_text(" ".join(ended))


def _keys_by_variant(study: Study) -> list[str]:
    r"""A comment for each variant, with the keys to \cite for what it varies."""
    lines = []
    for variant in study.variants:
        config: Mapping[str, Any] = variant.ended[0].config if variant.ended else {"choices": {}}
        keys = [
            key
            for choice, source in choices_of(config).items()
            if choice.split("=")[0] in study.axes
            for key in entries_of(choice, source)
        ]
        if keys:
            lines.append(rf"% {printable(variant.name)}: \cite{{{','.join(dict.fromkeys(keys))}}}")
    return lines
