"""The page on other codebases: every command of its column "our word" composes."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from transformer_norms import ConfigError, compose

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "configs" / "other_codebases.md"
COLUMN = "our word"
WITHOUT_A_WORD = ("not built", "nothing to type")


class Row(NamedTuple):
    """A row of a table: the number of its line, what is looked up, our words for it, its source."""

    line: int
    flag: str
    word: str
    source: str

    def commands(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.word)


def rows_of(page: str) -> list[Row]:
    """Returns the rows of all tables that have the column of our words."""
    rows: list[Row] = []
    header: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            header = []
        elif not header:
            header = _cells(line)
        elif set(line) - set("|-"):
            row = dict(zip(header, _cells(line), strict=True))
            word = next(cell for name, cell in row.items() if name.startswith(COLUMN))
            rows.append(Row(number, _cells(line)[0], word, row["source"]))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def refused_commands(rows: list[Row]) -> list[str]:
    """Returns one line for each command that does not compose, with the line of the page."""
    refused = []
    lines = {command: row.line for row in rows for command in row.commands()}
    for command, line in lines.items():
        try:
            compose(shlex.split(command))
        except ConfigError as error:
            refused.append(f"{PAGE.name}:{line}: {command}: {error}")
    return refused


ROWS = rows_of(PAGE.read_text())


def test_every_command_that_the_page_gives_composes():
    assert len({command for row in ROWS for command in row.commands()}) > 100
    assert refused_commands(ROWS) == []


def test_a_wrong_word_is_found_with_its_line():
    page = "| their flag | our word | source |\n|---|---|---|\n| `a` | `norm=rmsnrom` | b:1 |"
    (refused,) = refused_commands(rows_of(page))
    assert refused.startswith(f"{PAGE.name}:3: norm=rmsnrom: ")
    assert "did you mean 'rmsnorm'" in refused


def test_every_flag_has_a_word_or_is_said_to_have_none_and_has_a_source():
    for row in ROWS:
        assert row.commands() or row.word.startswith(WITHOUT_A_WORD), row
        assert re.search(r"\d", row.source) or row.source.startswith("blog"), row


def test_the_readme_leads_to_the_page():
    assert "(configs/other_codebases.md)" in (ROOT / "README.md").read_text()
