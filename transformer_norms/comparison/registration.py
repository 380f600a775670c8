"""registered/STUDY.yaml: a question that was written down before its runs. The record of the sweep
keeps it, and the report says whether the study asked what was registered.

The first line of the file has the SHA-256 of all lines below it (`tail -n +2 FILE | sha256sum`).
Neither a hash nor a date proves what came first. The commit that has the file does, where
`git merge-base --is-ancestor COMMIT_OF_THE_FILE COMMIT_OF_A_RUN` succeeds for every run.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from transformer_norms.errors import ConfigError
from transformer_norms.storage.reading import parse_yaml
from transformer_norms.text_tables import show
from transformer_norms.validation import build

_ELSEWHERE = "{} had begun at commits that are not in its repository and cannot be compared"


@dataclass(frozen=True)
class Registered:
    """A registration as a sweep found it: the `text` of the file, and the `commit` that has it,
    None if none has. `earlier` counts the runs of the study that had begun by then, at a commit
    without `commit` in its history. `elsewhere` counts those whose commit the repository of the
    file does not have. `terms` are those that commands asked from then on."""

    text: str
    commit: str | None
    earlier: int
    terms: list[str]
    elsewhere: int = 0


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Registration:
    """The content of the file. `commit` and `dirty` are those of the package's clone. `terms` are
    the parts of the question, its plugins, and the first run of each variant. `words` are those
    that a comparison can get, and `budget` counts runs, steps, tokens and FLOPs."""

    sweep: str
    date: str
    commit: str | None
    dirty: bool | None
    terms: list[str]
    words: list[str]
    budget: dict[str, float]


def path_of_registration(study: str) -> Path:
    return Path("registered", f"{study}.yaml")


def terms_of(**parts: Iterable[Any]) -> list[str]:
    """Returns each part of a question in a line: `seed 3`, `variant norm=dyt placement=post`."""
    return [
        f"{kind} {' '.join(f'{k}={show(v)}' for k, v in value.items())}"
        if isinstance(value, dict)
        else f"{kind} {show(value)}"
        for kind, values in parts.items()
        for value in values
    ]


def sealed(content: str) -> str:
    """Returns a text with the line of its hash in front."""
    return f"sha256: {hashlib.sha256(content.encode()).hexdigest()}\n{content}"


def read_registration(text: str, name: str) -> tuple[Registration, bool]:
    """Returns a registration, and whether its hash fits. Raises ConfigError, which begins with the
    `name` of the file, where the text is not a registration."""
    content = text.partition("\n")[2]
    values = parse_yaml(content.encode(), name, values_only=False)
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: is not a file that sweep=NAME --register wrote")
    return build(Registration, name, values), text == sealed(content)


def difference_lines(registered: Iterable[str], asked: Iterable[str]) -> list[str]:
    """Returns whether the terms are the same, and those that are not. The last word of a run or of
    a plugin is its hash, and it differs where settings, data or code do."""
    before, now = dict.fromkeys(registered), dict.fromkeys(asked)
    hashed = {one.rpartition(" ")[0] for one in before if one.startswith(("run ", "plugin "))}
    changed = sorted(hashed & {one.rpartition(" ")[0] for one in now if one not in before})
    later, never = (
        [one for one in some if one not in others and not one.startswith(("run ", *changed))]
        for some, others in ((now, before), (before, now))
    )
    lines = {
        "Settings, data or plugins differ from the registered ones": changed,
        "Asked and not registered": later,
        "Registered and not asked": never,
    }
    differences = [f"{words}: {'; '.join(terms)}." for words, terms in lines.items() if terms]
    return differences or ["What was asked is what was registered."]


def registration_lines(found: Iterable[tuple[str, Registered]], reported: list[str]) -> list[str]:
    """Returns the sentences of a report on registrations, with the names of their sweeps. The terms
    that are `reported` count as asked."""
    lines: list[str] = []
    terms: list[str] = []
    asked = reported
    for name, one in found:
        try:
            file, intact = read_registration(one.text, f"the registration of {name}")
        except ConfigError as error:
            lines.append(f"{error}.")
            continue
        terms, asked = terms + file.terms, asked + one.terms
        code = f" at commit {file.commit[:12]}" if file.commit else ""
        counts = {"AFTER {} had begun": one.earlier, _ELSEWHERE: one.elsewhere}
        when = ", ".join(text.format(f"{n} run{'s' * (n > 1)}") for text, n in counts.items() if n)
        lines.append(
            f"{name} was registered on {file.date[:40]}{code}{' with changes' * bool(file.dirty)} "
            f"(SHA-256 {one.text[8:20]}), {when or 'before the first run began'}; "
            f"{f'commit {one.commit[:12]}' if one.commit else 'no commit'} had the file then."
        )
        lines += [] if intact else ["The file was changed by then: its hash does not fit."]
    return lines + (difference_lines(terms, asked) if terms else [])
