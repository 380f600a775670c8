"""Joins studies that ask the same: one estimate of each comparison that all of them have."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.joining import Joined, join
from transformer_norms.comparison.sentences import comparison_sentence, plural
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live
from transformer_norms.report.charts.differences import Row
from transformer_norms.report.charts.panels import difference_panel, panel_files
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.gathering.sources import home_of
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.scope import regime
from transformer_norms.report.table import CONTRAST_HEADINGS, comparison_cells, filled_columns
from transformer_norms.report.texts import render
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import Table, shorten

_SHEET = Sheet(("svg",), width=7.0)


class JoinedContrast(NamedTuple):
    """`studies` are the comparisons that are joined, by the names of their studies."""

    contrast: Contrast
    studies: dict[str, Comparison]
    joined: Joined


def write_joined(
    folders: Sequence[Path],
    out: Path | None = None,
    baseline: dict[str, Any] | None = None,
    margin: float | None = None,
    contrasts: Sequence[str] = (),
) -> tuple[Path, list[str]]:
    """Writes joined.md and joined.svg of the studies in `folders`, one each. Returns the path of
    joined.md, and a sentence for each comparison that is joined.

    Those are the typed `contrasts`; without them what every study declared or compared. Raises
    ConfigError, one line and nothing written, where studies must not be joined.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise ConfigError("--join: name the FOLDERs of two studies or more, each once")
    names = [str(folder) for folder in folders]
    if len({folder.name for folder in folders}) == len(names):
        names = [folder.name for folder in folders]
    with Live() as live:
        found = {
            name: findings(read_study([folder], baseline, margin, contrasts, live))
            for name, folder in zip(names, folders, strict=True)
        }
        every = join_findings(found, contrasts)
    files = {"joined.md": _text(found, every).encode(), "joined.svg": _figure(every)}
    home = home_of(folders) if out is None else out
    write_files(home, files)
    return home / "joined.md", [_sentence(one) for one in every]


def join_findings(found: dict[str, Findings], typed: Sequence[str] = ()) -> list[JoinedContrast]:
    """The comparisons that are joined, of findings by the names of their studies. Those that every
    study declares are one family; others are only described."""
    _check_alike(found)
    asked = [{f.study.asked[name].text: name for name in f.family} for f in found.values()]
    family = [text for text in asked[0] if all(text in other for other in asked)]
    texts = [*dict.fromkeys(typed)] or family
    if not texts:
        listed = "; ".join(
            f"{name} has {', '.join(texts) or 'none'}"
            for name, texts in zip(found, asked, strict=True)
        )
        raise ConfigError(f"--join: no comparison is in every study; {shorten(listed, 200)}")
    names = [{text: one.get(text, text) for text in texts} for one in asked]
    _check_apart(found, names)
    every = []
    for text in texts:
        studies = {
            study: _measured(study, f, own[text])
            for (study, f), own in zip(found.items(), names, strict=True)
        }
        together = len(family) if text in family else 0
        contrast = next(iter(found.values())).study.asked[names[0][text]]
        every.append(JoinedContrast(contrast, studies, join([*studies.values()], together)))
    return every


def _check_alike(found: dict[str, Findings]) -> None:
    """Nats per token are another unit with another tokenizer, and a margin decides words."""
    for (one, first), (other, second) in combinations(found.items(), 2):
        if first.study.margin != second.study.margin:
            margins = f"{first.study.margin:g} in {one} and {second.study.margin:g} in {other}"
            raise ConfigError(f"--join: the margin is {margins}; type --margin NATS")
        if not (first.study.results and second.study.results):
            raise ConfigError(f"--join: {one if second.study.results else other} has no results")
        units = [{str(r.choice("tokenizer")) for r in f.study.results} for f in (first, second)]
        if units[0] != units[1]:
            kinds = " and ".join("+".join(sorted(unit)) for unit in units)
            raise ConfigError(f"--join: {one} and {other} have other tokenizers ({kinds})")


def _check_apart(found: dict[str, Findings], names: Sequence[dict[str, str]]) -> None:
    """A run that is in two studies would be counted twice."""
    runs = {
        name: {
            member.identity: member.folder.name
            for text in own.values()
            for variant in f.study.asked[text].coefficients
            for member in f.study.variant(variant).results
        }
        for (name, f), own in zip(found.items(), names, strict=True)
    }
    for (one, first), (other, second) in combinations(runs.items(), 2):
        if shared := first.keys() & second.keys():
            run = min(first[identity] for identity in shared)
            raise ConfigError(
                f"--join: {one} and {other} share {plural(len(shared), 'run')}, such as {run}: "
                "they are one measurement"
            )


def _measured(name: str, f: Findings, text: str) -> Comparison:
    """The comparison of a study, which can be joined if it has a difference and its variance."""
    c = f.every.get(text)
    if c is None or c.spread is None or c.waits or c.verdict == "best rate not found":
        word = "it has no results" if c is None else c.verdict
        raise ConfigError(f"--join: {f.study.asked[text].text} has no value in {name}: {word}")
    return c


def _sentence(one: JoinedContrast) -> str:
    """The verdict on what is joined, with how much the studies differ."""
    tau, p = one.joined.tau, one.joined.heterogeneity
    claim = comparison_sentence(one.contrast, one.joined.comparison, {})
    agree = f"deviation between studies {tau:.4f} {one.contrast.unit}, p of Cochran's Q {p:.2g}"
    return f"{claim}, joined over {len(one.studies)} studies; {agree}"


def _text(found: dict[str, Findings], every: Sequence[JoinedContrast]) -> str:
    """joined.md: a sentence and a table for each comparison, and what joining takes for granted."""
    by_text: dict[str, list[str]] = {}
    for name, f in found.items():
        by_text.setdefault(_texts(f), []).append(name)
    seeds = [{*c.seeds} for c in every[0].studies.values()]
    return render(
        "joined.md",
        found=found,
        every=every,
        sentence=_sentence,
        table=_table,
        family=sum(one.joined.comparison.bounds is not None for one in every),
        texts=len(by_text),
        one_text=[names for names in by_text.values() if len(names) > 1],
        common_seeds=any(one & other for one, other in combinations(seeds, 2)),
        grown=[name for name, f in found.items() if f.study.held_looks > 1],
    )


def _table(found: dict[str, Findings], one: JoinedContrast) -> Table:
    """A row for each study, and one for all of them."""
    rows = []
    for name, c in one.studies.items():
        scope = regime(found[name], one.contrast.coefficients)
        about = {"study": name, "text": _texts(found[name]), "regime": scope}
        rows.append(about | comparison_cells(c) | {"verdict": c.verdict})
    joined = one.joined.comparison
    rows.append({"study": "joined"} | comparison_cells(joined) | {"verdict": joined.verdict})
    names = "study text regime difference interval bounds detectable verdict".split()
    return filled_columns(rows, CONTRAST_HEADINGS, names)


def _texts(f: Findings) -> str:
    runs = f.study.results
    named = {f"{r.choice('data')} {r.summary.data.fingerprint[:8]}" for r in runs}
    return ", ".join(sorted(named))


def _figure(every: Sequence[JoinedContrast]) -> bytes:
    rows: list[Row] = []
    for place, one in enumerate(every):
        what = f"{one.contrast.title}, " if len(every) > 1 else ""
        rows += [(place, f"{what}{name}", c) for name, c in one.studies.items()]
        rows.append((place, f"{what}joined", one.joined.comparison))
    margin = every[0].joined.comparison.margin
    with drawn_with(TEXT, _SHEET.settings()):
        (data,) = panel_files(difference_panel("", rows, margin), _SHEET).values()
    return data
