"""The publications of the choices of a run, as BibTeX. configs/sources.bib has the entries; the
`source:` of a choice leads there."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from transformer_norms.names import folder_of_configs
from transformer_norms.text_tables import escape_latex, file_name

_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n(.*?)^\}", re.M | re.S)
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})(?:v\d+)?")
_NAMED = re.compile(r"^  named = \{(.*)\},\n", re.M)
_YEAR = re.compile(r"\b(19|20)\d\d\b")
_BIB_TEXT = str.maketrans({"{": "(", "}": ")", "@": "(at)"})  # braces delimit, @ begins an entry


class Publication(NamedTuple):
    """An entry of sources.bib: `text` is the entry without the field `named`, whose phrases lead to
    it, as its arXiv numbers do."""

    key: str
    text: str
    phrases: tuple[str, ...]

    def named_in(self, source: str) -> bool:
        """Whether a source names this publication. A phrase counts as whole words."""
        source = _ARXIV.sub(r"arXiv:\1", source)  # whichever version
        return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", source) for one in self.phrases)


@cache
def publications() -> tuple[Publication, ...]:
    found = []
    for match in _ENTRY.finditer((folder_of_configs() / "sources.bib").read_text(encoding="utf-8")):
        phrases = [f"arXiv:{number}" for number in _ARXIV.findall(match[0])]
        phrases += [one for named in _NAMED.findall(match[0]) for one in named.split("; ")]
        found.append(Publication(match[1], _NAMED.sub("", match[0]), tuple(phrases)))
    return tuple(found)


def choices_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The choices of a config as plain values, such as `norm=rmsnorm`, each with its source, which
    is empty where none is given."""
    about = config.get("about", {})
    sources = {"preset": about.get("source"), "recipe": about.get("recipe_source")}
    nodes = {axis: config.get(axis) for axis in config["choices"]}
    sources |= {
        a: n["source"] for a, n in nodes.items() if isinstance(n, Mapping) and "source" in n
    }
    choices = {f"{axis}={name}": sources.get(axis) for axis, name in config["choices"].items()}
    for site, norm in config.get("norms", {}).items():  # norms in addition to the first
        if isinstance(norm, Mapping):
            choices[f"norms.{site}={norm.get('type')}"] = norm.get("source")
    return {choice: "" if text in (None, "none") else str(text) for choice, text in choices.items()}


def bibliography(choices: Mapping[str, str]) -> str:
    """The entries of the publications of `choices`, as `choices_of` returns them, sorted by key,
    each below the choices that use it."""
    entries: dict[str, str] = {}
    users: dict[str, list[str]] = {}
    for choice, source in choices.items():
        for key, text in entries_of(choice, source).items():
            entries[key] = text
            users.setdefault(key, []).append(choice.translate(_BIB_TEXT))
    blocks = [f"% {', '.join(users[key])}\n{entries[key]}\n" for key in sorted(entries)]
    return "\n".join(blocks)


def entries_of(choice: str, source: str) -> dict[str, str]:
    r"""The entries of a choice, such as `norm=rmsnorm`, and its source, by the key to \cite. A
    source that leads to none, but names a year or an arXiv number, becomes the note of a separate
    entry: it is somebody's plugin."""
    found = [one for one in publications() if one.named_in(f"{choice}; {source}")]
    entries = {one.key: one.text for one in found}
    number = _ARXIV.search(source)
    if not any(one.named_in(source) for one in found) and (number or _YEAR.search(source)):
        key = file_name(choice)
        note = escape_latex(source.translate(_BIB_TEXT))
        title = escape_latex(choice.translate(_BIB_TEXT))
        entries[key] = f"@misc{{{key},\n  title = {{{title}}},\n  note = {{{note}}},\n}}"
    return entries
