"""The settings that a study's results share, so that a page says what was trained."""

from typing import Any

from transformer_norms.report.comparable import cut
from transformer_norms.report.study import Study

_FIRST = "model mlp position tokenizer data optimizer schedule trainer".split()  # nodes, in order


def setup(study: Study) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    """By node, the keys and values that are the same in all results; and the keys that are not,
    which tables and variants show."""
    runs = [run for variant in study.variants for run in variant.ended]
    if not runs:
        return {}, []
    first, *others = [run.settings for run in runs]
    keys = sorted({key for settings in (first, *others) for key in settings})
    same: dict[str, list[tuple[str, str]]] = {}
    differing = []
    for key in keys:
        if any(_value(settings, key) != _value(first, key) for settings in others):
            differing.append(key)
        else:
            node, _, name = key.partition(".")
            same.setdefault(node, []).append((name or node, cut(first[key])))
    order = [*filter(same.__contains__, _FIRST), *(node for node in same if node not in _FIRST)]
    return {node: same[node] for node in order}, differing


def _value(settings: dict[str, Any], key: str) -> Any:
    return settings.get(key, "none")
