"""The page on other codebases: every command of its column "our word" composes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from refusing import refused

from transformer_norms import compose
from transformer_norms.config.saved import to_mapping
from transformer_norms.config.tree import flat
from transformer_norms.names import AXES, options
from transformer_norms.sweep.question import read_request

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "configs" / "other_codebases.md"
COLUMN = "our word"
WITHOUT_A_WORD = ("not built", "nothing to type")


def rows_of(page: str) -> Iterator[tuple[str, list[str], str]]:
    """Yields of each row of the tables our words for a flag, the commands in them, and the
    source."""
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
        )
        (column,) = (number for number, name in enumerate(header) if name.startswith(COLUMN))
        for row in rows:
            word = row[column]
            yield word, re.findall(r"`([^`]+)`", word), row[header.index("source")]


ROWS = list(rows_of(PAGE.read_text()))


def test_every_command_that_the_page_gives_composes():
    every = {command for _, commands, _ in ROWS for command in commands}
    assert len(every) > 100
    for command in every:  # an error names what of the command was refused
        compose(shlex.split(command))


def test_every_flag_has_a_word_or_is_said_to_have_none_and_has_a_source():
    for word, commands, source in ROWS:
        assert commands or word.startswith(WITHOUT_A_WORD), word
        assert re.search(r"\d", source) or source.startswith("blog"), word


def test_the_readme_leads_to_the_page():
    assert "(configs/other_codebases.md)" in (ROOT / "README.md").read_text()


def test_every_word_that_the_table_offers_can_be_typed_and_no_word_of_others_is_ours():
    table = yaml.safe_load((ROOT / "configs" / "other_codebases.yaml").read_text())
    held = {*flat(to_mapping(compose(["data=text", "tokenizer=bpe"]))), *AXES, "config"}
    for ours, words in table.items():
        key, _, value = ours.partition("=")
        assert key in held or key == "placement.equation", ours
        assert value in (*options(key), "") or "." in key, ours
        assert not {*words} & {*options(key)} if value else not {*words} & held, ours


ANSWERS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())["other words"]


@pytest.mark.parametrize(("typed", "answer"), ANSWERS)
def test_a_word_of_another_codebase_is_answered_with_ours_before_all_else(typed, answer):
    line = refused(compose, [typed])
    assert line.index(f"did you mean {answer}") < 80
    assert line.index("did you mean") < line.rindex("; ")


def test_an_option_may_be_typed_as_its_file():
    assert compose(["norm=layernorm.yaml"]) == compose(["norm=layernorm"])
    assert compose(["norm=configs/norm/layernorm.yaml"]) == compose(["norm=layernorm"])
    name = read_request(["sweep=configs/sweep/quick.yaml"]).name
    assert name == read_request(["sweep=quick.yaml"]).name == "quick"


def test_the_home_folder_may_stand_in_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("")
    config = compose(["plugins=~/mine", "data=text", "data.paths=[~/a.txt,'b~/c.txt']"])
    assert config.plugins == f"{tmp_path}/mine"
    assert list(config.data.paths) == [f"{tmp_path}/a.txt", "b~/c.txt"]
