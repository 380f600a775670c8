"""The README's tables of norms and placements, written from their YAML files.

python -m transformer_norms.readme README.md            writes the tables between their marks
python -m transformer_norms.readme README.md --check    exits with 1 if the file holds old tables
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from transformer_norms.names import option_files

Definition = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_norms.readme", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    typed = parser.parse_args(arguments)
    try:
        before = typed.file.read_text()
        after = insert_tables(before)
    except (OSError, ValueError) as error:
        print(f"{typed.file}: {error}", file=sys.stderr)
        return 2
    if before == after:
        return 0
    if typed.check:
        print(f"{typed.file}: its tables are old; run: make tables", file=sys.stderr)
        return 1
    typed.file.write_text(after)
    return 0


def insert_tables(text: str) -> str:
    """`text` with each table between `<!-- NAME: ... -->` and `<!-- /NAME -->`."""
    for name, rows in {"norms": norm_table(), "placements": placement_table()}.items():
        marked = re.search(rf"<!-- {name}:[^>]*-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
        if marked is None:
            raise ValueError(f"there is no <!-- {name}: ... --> with its <!-- /{name} -->")
        table = "".join(f"{row}\n" for row in rows)
        text = text[: marked.start(1)] + table + text[marked.end(1) :]
    return text


def norm_table() -> list[str]:
    rows = [
        (f"`{name}`", f"`{norm['formula']}`", norm["source"])
        for name, norm in _definitions("norm").items()
    ]
    return _markdown(("`norm=`", "formula, on the last axis", "source"), rows)


def placement_table() -> list[str]:
    rows = [
        (f"`{name}`", "<br>".join(_equations(of)), _companions(of), of["source"])
        for name, of in _definitions("placement").items()
    ]
    heads = ("`placement=`", "attention, then mlp", "with", "source")
    return _markdown(heads, rows)


def _equations(of: Definition) -> list[str]:
    """One line if both sub-layers say the same; below it the equations of some blocks, with their
    condition."""
    stated = of["equation"]
    parts = stated if isinstance(stated, Mapping) else {"": stated}
    lines = dict.fromkeys(f"`{equation}`" for part, equation in parts.items() if part != "end")
    if "end" in parts:
        lines[f"before the head: `{parts['end']}`"] = None
    for entry in of.get("where", []):
        lines |= dict.fromkeys(f"where `{entry['blocks']}`: {line}" for line in _equations(entry))
    return list(lines)


def _companions(of: Definition) -> str:
    """Returns what the equation does not say: learned numbers, and what the placement brings."""
    said = [f"{key}: {_said(spec)}" for key, spec in of.get("learned", {}).items()]
    said += [f"{key}={_said(value)}" for key, value in of.get("brings", {}).items()]
    if "weight_constraint" in of:
        said.append(f"weights of {of['weight_constraint'].replace('_', ' ')}")
    if "unverified" in of:
        said.append(f"*unverified: {of['unverified']}*")
    return "<br>".join(said)


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        share = ", one a block" if value.get("share") == "block" else ""
        return f"a learned {value['learn']} from {value['init']}{share}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _definitions(axis: str) -> dict[str, Definition]:
    return {name: yaml.safe_load(file.read_text()) for name, file in option_files(axis).items()}


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines]


if __name__ == "__main__":
    sys.exit(main())
