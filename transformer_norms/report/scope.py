"""Says in one line how large the models of a study are, and how much they learned."""

from collections.abc import Iterable, Sequence

from transformer_norms.comparison.sentences import plural
from transformer_norms.report.findings import Findings


def regime(findings: Findings, names: Iterable[str] = ()) -> str:
    """`0.8 M parameters, 0.5 M training bytes, best n-gram passed: 3-gram; init mup; 5 seeds`

    The regime of the results of the variants `names`, else of all. The n-gram is the best that the
    baselines among the variants pass.
    """
    study = findings.study
    variants = list(map(study.variant, names)) or study.variants
    runs = [run for variant in variants for run in variant.ended]
    if not runs:
        return ""
    bytewise = {run.choice("tokenizer") for run in runs} == {"byte"}
    unit = "training bytes" if bytewise else "training tokens"
    sizes = [
        *_span([run.summary.parameters for run in runs], "parameters"),
        *_span([run.summary.tokens for run in runs], unit),
    ]
    passing = [variant for variant in variants if variant in study.baselines] or variants
    if passed := dict.fromkeys(one for v in passing if (one := findings.passed(v.name))):
        sizes.append(f"best n-gram passed: {' or '.join(passed)}")
    inits = sorted({init for run in runs if (init := run.choice("init"))})
    compared = [v for v in variants if v.compared and v.results] or variants
    seeds = sorted({findings.outcomes[variant.name].ended for variant in compared})
    parts = [
        ", ".join(sizes),
        f"init {inits[0]}" if len(inits) == 1 else plural(len(inits), "init"),
        f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed"),
        "tuned" if study.tune else "not tuned",
    ]
    return "; ".join(filter(None, parts))


def _span(counts: Sequence[int | None], unit: str) -> list[str]:
    """`0.12 M bytes`, `0.2 to 3.1 M parameters`; nothing if a run has no such number."""
    known = [count / 1e6 for count in counts if count is not None]
    if len(known) < len(counts):
        return []
    texts = dict.fromkeys(f"{count:.2g}" for count in (min(known), max(known)))
    return [f"{' to '.join(texts)} M {unit}"]
