"""The tables of norms and placements in docs/catalogue.md, written from their YAML files.

    python docs/tables.py docs/catalogue.md

writes the tables between their marks. With --check it writes nothing, and exits with 1 if the file
holds old tables.
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
    parser = argparse.ArgumentParser(prog="python docs/tables.py", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    typed = parser.parse_args(arguments)
    try:
        before = typed.file.read_text(encoding="utf-8")
        after = insert_tables(before)
    except (OSError, ValueError) as error:
        print(f"{typed.file}: {error}", file=sys.stderr)
        return 2
    if typed.check and before != after:
        print(f"{typed.file}: its tables are old; run: make tables", file=sys.stderr)
        return 1
    if before != after:
        typed.file.write_text(after, encoding="utf-8")
    return 0


def insert_tables(text: str) -> str:
    """Returns `text` with each table between `<!-- NAME: ... -->` and `<!-- /NAME -->`."""
    for name, table in {"norms": norm_table(), "placements": placement_table()}.items():
        place = re.search(rf"<!-- {name}:[^>]*-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
        if place is None:
            raise ValueError(f"there is no <!-- {name}: ... --> with its <!-- /{name} -->")
        text = text[: place.start(1)] + table + text[place.end(1) :]
    return text


def norm_table() -> str:
    rows = [
        (f"`{name}`", f"`{norm['formula']}`", norm["source"] + _doubt(norm))
        for name, norm in _definitions("norm").items()
    ]
    return _markdown(("`norm=`", "formula, on the last axis", "source"), rows)


def placement_table() -> str:
    rows = [
        (f"`{name}`", "<br>".join(_equations(file)), _companions(file), file["source"])
        for name, file in _definitions("placement").items()
    ]
    heads = ("`placement=`", "attention, then mlp", "with", "source")
    return _markdown(heads, rows)


def _equations(file: Definition) -> list[str]:
    """Returns one line if both sub-layers have the same equation. Below it stand the equations of
    some blocks, with their condition."""
    equation = file["equation"]
    parts = equation if isinstance(equation, Mapping) else {"": equation}
    lines = dict.fromkeys(f"`{text}`" for part, text in parts.items() if part != "end")
    if "end" in parts:
        lines[f"before the head: `{parts['end']}`"] = None
    for entry in file.get("where", []):
        lines |= dict.fromkeys(f"where `{entry['blocks']}`: {line}" for line in _equations(entry))
    return list(lines)


def _companions(file: Definition) -> str:
    """Returns what the equation does not say: learned numbers, and what the placement brings."""
    lines = [f"{key}: {_spelling(value)}" for key, value in file.get("learned", {}).items()]
    lines += [f"{key}={_spelling(value)}" for key, value in file.get("brings", {}).items()]
    if "weight_constraint" in file:
        lines.append(f"weights of {file['weight_constraint'].replace('_', ' ')}")
    if "unverified" in file:
        lines.append(_doubt(file).removeprefix("<br>"))
    return "<br>".join(lines)


def _doubt(file: Definition) -> str:
    return f"<br>*unverified: {file['unverified']}*" if "unverified" in file else ""


def _spelling(value: Any) -> str:
    if isinstance(value, Mapping):
        share = ", one a block" if value.get("share") == "block" else ""
        return f"a learned {value['learn']} from {value['init']}{share}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _definitions(axis: str) -> dict[str, Definition]:
    return {
        name: yaml.safe_load(file.read_text(encoding="utf-8"))
        for name, file in option_files(axis).items()
    }


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
