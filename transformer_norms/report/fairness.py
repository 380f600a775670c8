"""Finds what makes a comparison unfair: runs that must not be compared, and differences that nobody
asked about."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.config.tree import diff, within
from transformer_norms.errors import ConfigError
from transformer_norms.report.study import Study, Variant
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import listed, shorten
from transformer_norms.training.measures import FACTOR, Start, differing_numbers

# Two runs must share these for their losses to be compared: key or group of keys -> its name.
_SHARED = {
    "tokenizer": "tokenizer",
    "data.split": "split",
    "data.val_fraction": "split",
    "data.test_fraction": "split",
    "data.val_tokens": "evaluation",
    "model.context": "evaluation",
    "data": "data",
    "trainer.precision": "precision",
    "trainer.steps": "horizon",
    "trainer.batch_size": "horizon",
}
_ROUNDING = 1e-9  # of a sum of coefficients
_FLOPS_NAMED = 0.001  # share from which FLOPs per token are named; below are gains and sums
_FLOPS_UNFAIR = 0.01  # share from which that is more than a fair comparison has
_MACHINE = ("device", "threads", "commit", "dirty")  # fields of a summary


def check_comparable(study: Study) -> None:
    """Raises ConfigError, naming the field and two runs, if runs would be compared or averaged that
    differ in data, split, tokenizer, evaluation, precision, horizon or batches."""
    for variant in study.variants:
        _check_seeds(variant)
    for contrast in study.asked.values():
        check_contrast(study, contrast.coefficients)


def _check_seeds(variant: Variant) -> None:
    """The runs of a variant differ only in their seed, and no two have the same seed. Its tuning
    runs differ also in what is tuned."""
    members = [*variant.trials, *variant.results]
    for earlier, *more in grouped(members, lambda run: [run.stage, run.tuned, run.seed]):
        for member in more:
            if member.run and earlier.run:
                _refuse_different(earlier.run, member.run)
            raise ConfigError(
                f"{variant.name}: seed {member.seed} has two runs, {earlier.folder} and "
                f"{member.folder}; name the folders, or the one sweep, that are meant"
            )
    trials = [(trial.run, trial.tuned) for trial in variant.trials if trial.run and trial.ended]
    for run, tuned in trials[1:]:
        _refuse_different(trials[0][0], run, only_shared=True, ignored=tuned)
    for run in variant.ended[1:]:
        _refuse_different(variant.ended[0], run)


def _check_pair(study: Study, variant: Variant, baseline: Variant) -> None:
    """Raises ConfigError, as `check_comparable` does, if two variants must not be compared."""
    runs = variant.ended[0], baseline.ended[0]
    ignored = _budgeted(study, *runs)
    _refuse_different(*runs, only_shared=True, ignored=ignored)
    if _shared_differences(*runs).keys() & {*ignored}:
        return  # other batches, of the same text
    at_seed = {run.seed: run for run in baseline.ended if run.finished}
    for run in variant.ended:
        pair = at_seed.get(run.seed) if run.finished else None
        if pair and run.summary.batch_chain != pair.summary.batch_chain:
            raise ConfigError(
                f"batch_chain: {run.folder} and {pair.folder} have read different batches; their "
                "losses are not a pair"
            )


def _budgeted(study: Study, first: SavedRun, second: SavedRun) -> list[str]:
    """The settings in which two runs may differ at an equal budget: the size of a batch, and so the
    steps to the same tokens."""
    same = first.summary.tokens == second.summary.tokens
    return ["trainer.batch_size", *["trainer.steps"] * same] if study.at else []


def check_contrast(study: Study, coefficients: Mapping[str, float]) -> None:
    """Raises ConfigError, as `check_comparable` does, if a contrast takes losses from one another
    that must not be compared.

    Runs that differ in, say, their horizon may be in one contrast if the coefficients of each
    horizon sum to zero: it then compares differences, each within one horizon. The tokenizer must
    be the same in all: nats per token are another unit with another tokenizer.
    """

    def obstructing(first: Variant, second: Variant) -> set[str]:
        runs = first.ended[0], second.ended[0]
        return {*_shared_differences(*runs)} - {*_budgeted(study, *runs)}

    alike: list[list[Variant]] = []  # within a group all may be compared
    for variant in map(study.variant, coefficients):
        if not variant.ended:
            return  # it has no number yet
        for group in alike:
            if not obstructing(group[0], variant):
                group.append(variant)
                break
        else:
            alike.append([variant])
    whole = all(abs(sum(coefficients[each.name] for each in group)) < _ROUNDING for group in alike)
    first, *others = (group[0] for group in alike)
    for other in others:
        if not whole or "tokenizer" in map(_kind, obstructing(first, other)):
            _check_pair(study, first, other)
    for group in alike:
        for pair in combinations(group, 2):
            _check_pair(study, *pair)


def _refuse_different(
    first: SavedRun, second: SavedRun, *, only_shared: bool = False, ignored: Iterable[str] = ()
) -> None:
    """Raises ConfigError if a setting differs that is not `ignored`; with `only_shared` only the
    settings count that every two runs must share."""
    differing = (_shared_differences if only_shared else differing_settings)(first, second)
    differing = {key: differing[key] for key in differing if not within(key, ignored)}
    if not differing:
        return
    key = min(differing, key=lambda key: (_rank(key), key))
    value, second_value = map(shorten, differing[key])
    kind = f" ({_kind(key)})" if _kind(key) else ""
    tokens = ", or --at tokens" if key == "trainer.batch_size" else ""
    raise ConfigError(
        f"{key}{kind}: {value} in {first.folder} and {second_value} in {second.folder}; such runs "
        f"are not compared: name other folders, or a --baseline without it{tokens}"
    )


def differing_settings(first: SavedRun, second: SavedRun) -> dict[str, tuple[Any, Any]]:
    """The settings that are not the same in two runs, `none` where one has no such key, and the
    fingerprints of their tokens if these differ."""
    pairs = diff(first.settings, second.settings, absent="none")
    fingerprints = first.summary.data.fingerprint, second.summary.data.fingerprint
    return pairs | ({"data.fingerprint": fingerprints} if len({*fingerprints}) > 1 else {})


def _shared_differences(first: SavedRun, second: SavedRun) -> dict[str, tuple[Any, Any]]:
    """The differing settings that any two runs that are compared must share."""
    differing = differing_settings(first, second)
    return {key: differing[key] for key in differing if _kind(key)}


def obstacles(first: SavedRun, second: SavedRun) -> list[str]:
    """Why the losses of two runs must not be compared, by the rules of a report, a line for each
    reason. Nothing if they may be."""
    lines = [
        f"{run.folder.name} is {run.summary.status}: it has no final loss"
        for run in (first, second)
        if not run.finished
    ]
    shared = _shared_differences(first, second)
    lines += [
        f"{_kind(key)}: {key} is {shorten(value)} and {shorten(second_value)}"
        for key, (value, second_value) in sorted(shared.items(), key=lambda item: _rank(item[0]))
    ]
    alike = first.seed == second.seed and not shared and first.finished and second.finished
    if alike and first.summary.batch_chain != second.summary.batch_chain:
        lines.append("batches: the two runs have one seed and have read different batches")
    return lines


def notes_beside(first: SavedRun, second: SavedRun) -> list[str]:
    """All else that differs between two runs, in words: costs and starts of the second, with those
    of the first in brackets, machine, libraries and code."""
    return _different_costs(second, first) + mixture_notes([first, second])


def _rank(key: str) -> int:
    """The place of a key in _SHARED; after the last for all other keys."""
    places = (place for place, group in enumerate(_SHARED) if within(key, [group]))
    return next(places, len(_SHARED))


def _kind(key: str) -> str:
    return [*_SHARED.values(), ""][_rank(key)]


# -------------------------------------------------------------- differences that nobody asked about


def differences(study: Study, variant: Variant, baseline: Variant) -> list[str]:
    """All differences, in words, of a variant and a baseline beyond the axes asked about:
    settings (the baseline's in brackets), parameters, FLOPs per token, machines and code."""
    if not (variant.ended and baseline.ended):
        return []
    settings = [
        f"{key} {shorten(value)} ({shorten(baseline_value)})"
        for key, (value, baseline_value) in _unasked_settings(study, variant, baseline).items()
    ]
    costs = _different_costs(variant.ended[0], baseline.ended[0])
    return settings + costs + mixture_notes([*variant.ended, *baseline.ended])


def pairs_within(study: Study, contrast: Contrast) -> list[tuple[Variant, Variant]]:
    """Each variant that a contrast adds, with one that it subtracts whose values are the most
    alike: both sides of a plain difference, and of each difference in an interaction."""
    signed = [(study.variant(name), c) for name, c in contrast.coefficients.items()]
    subtracted = [variant for variant, c in signed if c < 0]

    def alike(variant: Variant, second: Variant) -> int:
        return sum(value == second.values.get(key) for key, value in variant.values.items())

    pairs, left = [], subtracted.copy()
    for variant in (variant for variant, c in signed if c > 0):
        nearest = max(left or subtracted, key=partial(alike, variant))
        left = [one for one in left if one is not nearest]
        pairs.append((variant, nearest))
    return pairs


def contrast_differences(study: Study, contrast: Contrast) -> list[str]:
    """The differences within each pair of a contrast, as `differences` has them."""
    return [
        f"{variant.name} ({baseline.name} in brackets): {'; '.join(found)}"
        for variant, baseline in pairs_within(study, contrast)
        if (found := differences(study, variant, baseline))
    ]


def confounds(study: Study, variant: Variant, baseline: Variant) -> list[str]:
    """The names of the settings in `differences`, cut short: init, embed_scale, final_norm."""
    keys = [
        key.removeprefix("architecture.").replace("optimizer.lr_factor", "lr_factor")
        for key in _unasked_settings(study, variant, baseline)
    ]
    return list(dict.fromkeys(key.partition(".")[0] for key in keys))


def _unasked_settings(
    study: Study, variant: Variant, baseline: Variant
) -> dict[str, tuple[Any, Any]]:
    """The settings in which a variant and a baseline differ, without the axes asked about and the
    keys that were tuned."""
    if not (variant.ended and baseline.ended):
        return {}
    asked = [key for key, value in variant.values.items() if value != baseline.values.get(key)]
    differing = differing_settings(variant.ended[0], baseline.ended[0])
    return {key: differing[key] for key in differing if not within(key, [*asked, *study.tune])}


def _different_costs(variant: SavedRun, baseline: SavedRun) -> list[str]:
    """The costs of two runs, and their starts where they are too far apart to be comparable."""
    notes = []
    parameters, of = variant.summary.parameters, baseline.summary.parameters
    if parameters is not None and of is not None and parameters != of:
        notes.append(f"parameters {parameters - of:+,} (of {of:,})")
    if variant.flops_per_token is not None and baseline.flops_per_token:
        share = variant.flops_per_token / baseline.flops_per_token - 1
        if abs(share) >= _FLOPS_NAMED:
            flag = f", more than {_FLOPS_UNFAIR:.0%} apart" if abs(share) > _FLOPS_UNFAIR else ""
            notes.append(f"FLOPs per token {share:+.2%}{flag}")
    start, of_baseline = variant.summary.start, baseline.summary.start
    numbers = differing_numbers(Start(*start), Start(*of_baseline)) if start and of_baseline else []
    if numbers:
        notes.append(f"starts more than a factor of {FACTOR:g} apart: {', '.join(numbers)}")
    return notes


def mixture_notes(runs: Sequence[SavedRun]) -> list[str]:
    """The properties of machine, libraries and code, in words, that differ between runs."""
    summaries = [run.summary for run in runs]
    values = {name: [getattr(summary, name) for summary in summaries] for name in _MACHINE}
    values["replicas"] = [summary.replicas or 1 for summary in summaries]
    values["parallel"] = [summary.parallel_text for summary in summaries]
    for name in sorted({name for summary in summaries for name in summary.versions}):
        values[name] = [summary.versions.get(name) for summary in summaries]
    notes = []
    for name, of_runs in values.items():
        counts = Counter(map(str, of_runs)).most_common()
        values_text = ", ".join(f"{shorten(value)} in {count}" for value, count in counts)
        notes += [f"{name} mixed: {values_text}"] if len(counts) > 1 else []
    sources = [summary.source for summary in summaries]
    common = set.intersection(*map(set, sources)) if sources else set()
    files = sorted(name for name in common if len({source[name] for source in sources}) > 1)
    if files:
        notes.append(f"code mixed: {listed([*map(shorten, files)], 3)} differ")
    return notes
