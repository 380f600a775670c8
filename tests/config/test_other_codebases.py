"""The page on other codebases: every command of its column "our word" composes."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from transformer_norms import ConfigError, cli, compose
from transformer_norms.config.saved import to_mapping
from transformer_norms.config.tree import flat
from transformer_norms.names import AXES, options
from transformer_norms.sweep.question import read_request

ROOT = Path(__file__).parents[2]
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


# ------------------------------------------------------------ words that are answered with our own


def test_every_word_that_the_table_offers_can_be_typed_and_no_word_of_others_is_ours():
    table = yaml.safe_load((ROOT / "configs" / "other_codebases.yaml").read_text())
    held = {*flat(to_mapping(compose(["data=text", "tokenizer=bpe"]))), *AXES, "config"}
    for ours, words in table.items():
        key, _, value = ours.partition("=")
        assert key in held or key == "placement.equation", ours
        assert value in (*options(key), "") or "." in key, ours
        assert not {*words} & {*options(key)} if value else not {*words} & held, ours


ANSWERS = [
    ("norm=ln", "'layernorm'"),
    ("placement=prenorm", "'pre'"),
    ("trainer.device=gpu", "'cuda'"),
    ("trainer.precision=float16", "'bf16'?"),
    ("optimizer=lion", "'adamw' or 'muon'?"),
    ("mlp=glu", "'swiglu' or 'geglu'"),
    ("model=gpt2-medium", "'350m'"),
    ("n_layer=6", "'model.depth'"),
    ("trainer.max_steps=9", "'trainer.steps'"),
    ("optimizer.lr_factor.matrix=2", "'optimizer.lr_factor.matrices'"),
    ("placement.equation=x + attn(ln(x))", "f for attn, norm for ln"),
]


@pytest.mark.parametrize(("typed", "answer"), ANSWERS)
def test_a_word_of_another_codebase_is_answered_with_ours_before_all_else(typed, answer):
    with pytest.raises(ConfigError) as caught:
        compose([typed])
    line = str(caught.value)
    assert line.index(f"did you mean {answer}") < 80
    assert line.index("did you mean") < line.rindex("; ")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["layernorm"], "'layernorm': did you mean 'norm=layernorm'? "),
        (["norm", "rmsnorm"], "'norm': did you mean 'norm=rmsnorm'? "),
        (["norm:", "rmsnorm"], "'norm:': did you mean 'norm=rmsnorm'? "),
        (["--norm", "rmsnorm"], "--norm: did you mean 'norm=rmsnorm'? "),
        (["--learning-rate=1e-3"], "--learning-rate=1e-3: did you mean 'optimizer.lr=1e-3'? "),
        (["-m", "norm", "rmsnorm"], "'norm': did you mean 'norm=rmsnorm'? "),
    ],
)
def test_a_setting_in_another_form_is_answered_with_ours(typed, line, capsys):
    assert cli.main(typed) == 2
    assert capsys.readouterr().err.startswith(line)


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
