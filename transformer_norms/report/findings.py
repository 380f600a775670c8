"""The findings of a study: outcomes by seed, comparisons, and what makes a comparison unfair."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.report.statistics import Outcomes
from transformer_norms.report.study import Study, StudyRun, Variant
from transformer_norms.report.verdict import Comparison, compare
from transformer_norms.run.reader import SavedRun

LOSSES = {"test_loss": "test loss", "val_loss": "validation loss"}


@dataclass(frozen=True)
class Findings:
    """`loss` is the field of summary.json that counts. There are outcomes of every variant,
    comparisons of those that have a baseline, and in words the differences between the two beyond
    what was asked."""

    study: Study
    loss: str
    outcomes: Mapping[str, Outcomes]
    comparisons: Mapping[str, Comparison]
    differences: Mapping[str, Sequence[str]]

    @property
    def compared(self) -> list[Variant]:
        return [v for v in self.study.variants if v.name in self.comparisons]

    @property
    def compared_together(self) -> int:
        """The number of comparisons over which Holm's correction runs."""
        every = self.comparisons.values()
        return sum(one.p is not None or one.verdict == "diverged" for one in every)

    def verdict(self, variant: Variant) -> str:
        """The verdict; without a comparison `diverged`, `baseline` or nothing."""
        if variant.name in self.comparisons:
            return str(self.comparisons[variant.name].verdict)
        if variant.lost:
            return "diverged"
        return "baseline" if variant.baseline == variant.name else ""


def findings(study: Study) -> Findings:
    """Raises ConfigError if runs would be compared that must not be."""
    check_comparable(study)
    finished = [run.summary for run in study.results if run.finished]
    tested = bool(finished) and all(summary.test_loss is not None for summary in finished)
    loss = "test_loss" if tested else "val_loss"
    outcomes = {variant.name: _outcomes(variant, loss) for variant in study.variants}
    compared = [v for v in study.variants if v.compared and v.results]
    pairs = {v.name: (outcomes[v.name], outcomes[study.baseline_of(v).name]) for v in compared}
    return Findings(
        study,
        loss,
        outcomes,
        compare(pairs, study.effect),
        {variant.name: differences(study, variant) for variant in compared},
    )


def _outcomes(variant: Variant, loss: str) -> Outcomes:
    diverged = {r.seed for r in variant.results if r.status == "diverged"}
    return Outcomes(
        losses={m.seed: m.run.final_loss(loss) for m in variant.results if m.run and m.ended},
        diverged=frozenset(diverged),
        missing=frozenset(member.seed for member in variant.results if not member.ended),
    )


# --------------------------------------------------------------------------------- fair comparisons

# Two runs must share these for their losses to be compared: key or group of keys -> its name.
_SHARED = {
    "tokenizer": "tokenizer",
    "data.split": "split",
    "data.val_fraction": "split",
    "data.val_tokens": "evaluation",
    "model.context": "evaluation",
    "data": "data",
    "trainer.precision": "precision",
    "trainer.steps": "horizon",
    "trainer.batch_size": "horizon",
}
_LONGEST = 48  # characters of a value
FLOPS_WORD = 0.001  # share from which different FLOPs per token are named; below are gains and sums
FLOPS_MARGIN = 0.01  # and from which that is more than a fair comparison has


def check_comparable(study: Study) -> None:
    """Raises ConfigError, naming the field and two runs, if runs would be compared or averaged that
    differ in data, split, tokenizer, evaluation, precision, horizon or batches."""
    for variant in study.variants:
        _check_seeds(variant)
        if variant.compared:
            _check_pair(variant, study.baseline_of(variant))


def _check_seeds(variant: Variant) -> None:
    """The runs of a variant differ in their seed, each in another, and in nothing else; those of
    its tuning also in what is tuned."""
    places: dict[str, StudyRun] = {}
    for member in (*variant.trials, *variant.results):
        place = json.dumps([member.stage, member.tuned, member.seed], sort_keys=True)
        other = places.setdefault(place, member)
        if other is not member:
            if member.run and other.run:
                _refuse_different(other.run, member.run)
            raise ConfigError(
                f"{variant.name}: seed {member.seed} has two runs, {other.folder} and "
                f"{member.folder}; name the folders, or the one sweep, that are meant"
            )
    trials = [(trial.run, trial.tuned) for trial in variant.trials if trial.run and trial.ended]
    for run, tuned in trials[1:]:
        _refuse_different(trials[0][0], run, of_shared=True, but=tuned)
    for run in variant.ended[1:]:
        _refuse_different(variant.ended[0], run)


def _check_pair(variant: Variant, baseline: Variant) -> None:
    if not (variant.ended and baseline.ended):
        return
    _refuse_different(variant.ended[0], baseline.ended[0], of_shared=True)
    at_seed = {run.seed: run for run in baseline.ended if run.finished}
    for run in variant.ended:
        pair = at_seed.get(run.seed) if run.finished else None
        if pair and run.summary.batch_chain != pair.summary.batch_chain:
            raise ConfigError(
                f"batch_chain: {run.folder} and {pair.folder} have read different batches; their "
                "losses are no pair"
            )


def _refuse_different(
    one: SavedRun, other: SavedRun, *, of_shared: bool = False, but: Iterable[str] = ()
) -> None:
    """Raises ConfigError if a setting differs that is not in `but`; with `of_shared` only settings
    count that every two runs must share."""
    differing = {
        key: both
        for key, both in _differing(one, other).items()
        if (_kind(key) or not of_shared) and not any(_under(key, name) for name in but)
    }
    prints = one.summary.data.fingerprint, other.summary.data.fingerprint
    if prints[0] != prints[1]:
        differing["data.fingerprint"] = prints
    if not differing:
        return
    key = min(differing, key=lambda key: (_rank(key), key))
    here, there = differing[key]
    kind = _kind(key)
    raise ConfigError(
        f"{key}{f' ({kind})' if kind else ''}: {shorten(here)} in {one.folder} and "
        f"{shorten(there)} in {other.folder}; such runs are not compared: name other folders, or "
        "a --baseline without it"
    )


def _differing(one: SavedRun, other: SavedRun) -> dict[str, tuple[Any, Any]]:
    """The settings that are not the same in two runs, `none` where one has no such key."""
    here, there = one.settings, other.settings
    return {
        key: (here.get(key, "none"), there.get(key, "none"))
        for key in sorted({*here, *there})
        if here.get(key, "none") != there.get(key, "none")
    }


def _rank(key: str) -> int:
    """The place of a key in _SHARED; behind the last for all other keys."""
    places = (place for place, group in enumerate(_SHARED) if _under(key, group))
    return next(places, len(_SHARED))


def _kind(key: str) -> str:
    return [*_SHARED.values(), ""][_rank(key)]


def _under(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")


def differences(study: Study, variant: Variant) -> list[str]:
    """All differences, in words, of a variant and its baseline beyond the axes asked about:
    settings (the baseline's in brackets), parameters, FLOPs per token, machines and code."""
    baseline = study.baseline_of(variant)
    if not (variant.ended and baseline.ended):
        return []
    one, other = variant.ended[0], baseline.ended[0]
    found = [
        f"{key} {shorten(here)} ({shorten(there)})"
        for key, (here, there) in _unasked(study, variant, baseline).items()
    ]
    return found + _costs(one, other) + mixture_notes([*variant.ended, *baseline.ended])


def confounds(study: Study, variant: Variant) -> list[str]:
    """The names of the settings in `differences`, cut short: init, embed_scale, final_norm."""
    baseline = study.baseline_of(variant)
    if not (variant.ended and baseline.ended):
        return []
    keys = _unasked(study, variant, baseline)
    short = [key.removeprefix("architecture.") for key in keys]
    return list(dict.fromkeys(key.partition(".")[0] for key in short))


def _unasked(study: Study, variant: Variant, baseline: Variant) -> dict[str, tuple[Any, Any]]:
    """The settings in which the two differ, without those asked about and those tuned."""
    asked = [key for key, value in variant.values.items() if value != baseline.values.get(key)]
    return {
        key: both
        for key, both in _differing(variant.ended[0], baseline.ended[0]).items()
        if not any(_under(key, axis) for axis in (*asked, *study.tune))
    }


def _costs(one: SavedRun, other: SavedRun) -> list[str]:
    found = []
    here, there = one.summary.parameters, other.summary.parameters
    if here is not None and there is not None and here != there:
        found.append(f"parameters {here - there:+,} (of {there:,})")
    costs = one.flops_per_token, other.flops_per_token
    if costs[0] is not None and costs[1] and costs[0] != costs[1]:
        share = costs[0] / costs[1] - 1
        if abs(share) < FLOPS_WORD:
            return found
        flag = f", more than {FLOPS_MARGIN:.0%} apart" if abs(share) > FLOPS_MARGIN else ""
        found.append(f"FLOPs per token {share:+.2%}{flag}")
    return found


def mixture_notes(runs: Sequence[SavedRun]) -> list[str]:
    """The properties of machine, libraries and code, in words, that differ between runs."""
    found = []
    for name in ("device", "threads", "commit", "dirty"):
        found += _several(name, [getattr(run.summary, name) for run in runs])
    found += _several("replicas", [run.summary.replicas or 1 for run in runs])
    versions = [run.summary.versions for run in runs]
    for name in sorted({name for version in versions for name in version}):
        found += _several(name, [version.get(name) for version in versions])
    sources = [run.summary.source for run in runs]
    common = set.intersection(*(set(source) for source in sources)) if sources else set()
    files = sorted(name for name in common if len({source[name] for source in sources}) > 1)
    if files:
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        found.append(f"code mixed: {', '.join(map(shorten, files[:3]))}{more} differ")
    return found


def _several(name: str, values: Sequence[Any]) -> list[str]:
    counts = Counter(str(value) for value in values)
    if len(counts) < 2:
        return []
    listed = ", ".join(f"{shorten(value)} in {count}" for value, count in counts.most_common())
    return [f"{name} mixed: {listed}"]


def shorten(value: Any) -> str:
    """The value as text, cut where it is long."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
