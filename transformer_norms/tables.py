"""The README's tables of norms and placements, written from the definitions themselves.

python -m transformer_norms.tables README.md            writes them between their marks
python -m transformer_norms.tables README.md --check    1 where the file holds others
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
    parser = argparse.ArgumentParser(prog="python -m transformer_norms.tables", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    typed = parser.parse_args(arguments)
    try:
        before = typed.file.read_text()
        after = filled(before)
    except (OSError, ValueError) as error:
        print(f"{typed.file}: {error}", file=sys.stderr)
        return 2
    if before == after:
        return 0
    if typed.check:
        print(f"{typed.file}: its tables are old; write them: make tables", file=sys.stderr)
        return 1
    typed.file.write_text(after)
    return 0


def filled(text: str) -> str:
    """`text` with each table between `<!-- NAME: ... -->` and `<!-- /NAME -->`."""
    for name, table in {"norms": norms(), "placements": placements()}.items():
        marked = re.search(rf"<!-- {name}:[^>]*-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
        if marked is None:
            raise ValueError(f"there is no <!-- {name}: ... --> with its <!-- /{name} -->")
        rows = "".join(f"{row}\n" for row in table)
        text = text[: marked.start(1)] + rows + text[marked.end(1) :]
    return text


def norms() -> list[str]:
    rows = [
        (f"`{name}`", f"`{norm['formula']}`", norm["source"])
        for name, norm in _definitions("norm").items()
    ]
    return _table(("`norm=`", "formula, on the last axis", "source"), rows)


def placements() -> list[str]:
    rows = [
        (f"`{name}`", "<br>".join(_equations(of)), _companions(of), of["source"])
        for name, of in _definitions("placement").items()
    ]
    heads = ("`placement=`", "attention, then mlp", "with", "source")
    return _table(heads, rows)


def _equations(of: Definition) -> list[str]:
    """One line where both sub-layers say the same; a schedule's own below, with its condition."""
    parts = of["equation"]
    lines = dict.fromkeys(f"`{equation}`" for part, equation in parts.items() if part != "end")
    if "end" in parts:
        lines[f"before the head: `{parts['end']}`"] = None
    for entry in of.get("schedule", []):
        own = _equations({"equation": entry.get("equation", {})})
        lines |= dict.fromkeys(f"where `{entry['blocks']}`: {line}" for line in own)
    return list(lines)


def _companions(of: Definition) -> str:
    """What the equation does not say: where learned numbers start, and what is brought along."""
    found = [
        f"{key}: {_shown(spec)}"
        for where in ("both", "attention", "mlp")
        for key, spec in of.get(where, {}).items()
        if isinstance(spec, Mapping) and "learn" in spec
    ]
    found += [f"{key}={_shown(value)}" for key, value in of.get("brings", {}).items()]
    if "weight_constraint" in of:
        found.append(f"weights of {of['weight_constraint'].replace('_', ' ')}")
    if "unverified" in of:
        found.append(f"*unverified: {of['unverified']}*")
    return "<br>".join(found)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        share = ", one a block" if value.get("share") == "block" else ""
        return f"a learned {value['learn']} from {value['init']}{share}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _definitions(axis: str) -> dict[str, Definition]:
    return {name: yaml.safe_load(file.read_text()) for name, file in option_files(axis).items()}


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines]


if __name__ == "__main__":
    sys.exit(main())
