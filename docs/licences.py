"""Writes docs/licences.md: each package that the lock installs, with its version and its licence.

python docs/licences.py docs/licences.md      make tables
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = PROJECT["project"]["name"]
DECLARED = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
# By extra; the extra `all` has others of this package, too.
EXTRAS = {
    extra: [Requirement(text) for text in texts if not text.startswith(NAME)]
    for extra, texts in {
        **PROJECT["project"]["optional-dependencies"],
        **PROJECT["dependency-groups"],
    }.items()
}
OPTIONAL = [one for wanted in EXTRAS.values() for one in wanted]
USERS = ("report", "data", "wandb", "hf", "slurm", "all")  # the extras that commands ask for
LEFT_OUT = set(PROJECT["tool"]["uv"]["exclude-dependencies"])
COPYLEFT = re.compile("GPL|GNU|MPL|Mozilla|EPL|CDDL")
HEAD = """\
# Licences

transformer_norms has the [MIT licence](../LICENSE). The packages that it installs have the licences
below, as each package states them; `make tables` writes this page. The last column names what needs
a package: every run, or the first extra that brings it. None of them is copied into this project.
These are copyleft (LGPL, MPL): {copyleft}.
They are installed with this project, unchanged; both licences allow that for a program of any
licence. The builds of torch for a GPU also install NVIDIA's libraries, under NVIDIA's own terms.

"""


def pinned(file: str = "constraints.txt") -> dict[str, str]:
    """The version of each package that a file of pins names for this machine."""
    lines = re.findall(r"^[a-z].*?(?= \\$|$)", (ROOT / file).read_text(), re.MULTILINE)
    wanted = [Requirement(line) for line in lines]
    assert all(re.fullmatch("==[^,*]+", str(one.specifier)) for one in wanted)
    return {
        canonical(one.name): str(one.specifier)[2:]
        for one in wanted
        if one.marker is None or one.marker.evaluate()
    }


def brought(wanted: Iterable[Requirement]) -> set[str]:
    """The packages that requirements bring, by what is installed."""
    found: set[tuple[str, str]] = set()
    waiting = list(wanted)
    while waiting:
        one = waiting.pop()
        name = canonical(one.name)
        for extra in {"", *one.extras}:
            if (name, extra) in found or name in LEFT_OUT:
                continue
            found.add((name, extra))
            for text in metadata.requires(name) or ():
                then = Requirement(text)
                if then.marker is None or then.marker.evaluate({"extra": extra}):
                    waiting.append(then)
    return {name for name, _ in found}


def licence(package: str) -> str:
    """The licence that a package states: as an expression, by its classifiers, or in words."""
    says = metadata.metadata(package)
    classes = [text.rpartition(" :: ")[2] for text in says.get_all("Classifier", [])
               if text.startswith("License ::")]  # fmt: skip
    words = (says["License"] or "").strip().splitlines()
    return says["License-Expression"] or " or ".join(classes) or words[0]


def page() -> str:
    """Returns docs/licences.md."""
    by_need = {extra: brought(EXTRAS[extra]) for extra in USERS}
    by_need = {"every run": brought(DECLARED), **by_need}
    rows = [
        (
            name,
            metadata.version(name).partition("+")[0],
            licence(name),
            next((need for need, names in by_need.items() if name in names), "tests, examples"),
        )
        for name in pinned()
    ]
    copyleft = [name for name, _, text, _ in rows if COPYLEFT.search(text)]
    lines = ["| package | version | licence | needed for |", "|---|---|---|---|"]
    lines += [f"| {name} | {version} | {text} | {need} |" for name, version, text, need in rows]
    *some, last = copyleft
    return HEAD.format(copyleft=f"{', '.join(some)} and {last}") + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
