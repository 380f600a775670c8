"""The page on other codebases: every command of its column "our word" composes."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from transformer_norms import ConfigError, cli, compose, names
from transformer_norms.config.compose import choose, complete
from transformer_norms.config.overrides import parse, place
from transformer_norms.config.saved import to_mapping
from transformer_norms.config.tree import flat
from transformer_norms.names import AXES, option_files, options
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


def compose_by_files(overrides: list[str]) -> None:
    """Checks and resolves what `compose` would. An option that is one file is read from it; Hydra
    composes a preset. Hydra takes longer than everything else."""
    typed = parse(overrides)
    axes = [pair for pair in typed if pair.key in AXES]
    if any(pair.key == "preset" or pair.key.startswith("placement.") for pair in typed):
        compose(overrides)
        return
    choices = choose([], None)
    for pair in axes:
        choices = choices.choose(pair.key, pair.word)
    values = place(choices.values, [pair for pair in typed if pair not in axes])
    complete(replace(choices, values=values), typed)


def refused_commands(rows: list[Row]) -> list[str]:
    """Returns one line for each command that does not compose, with the line of the page."""
    refused = []
    lines = {command: row.line for row in rows for command in row.commands()}
    for command, line in lines.items():
        try:
            compose_by_files(shlex.split(command))
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


def test_every_word_of_the_table_is_answered_with_words_that_can_be_typed():
    table = yaml.safe_load((ROOT / "configs" / "other_codebases.yaml").read_text())
    words = [word for values in (table["keys"], *table["values"].values()) for word in values]
    for command in {word for word in [*words, *table["goes_with"].values()] if "=" in word}:
        compose([command])
    files = {axis: option_files(axis).values() for axis in AXES}
    held = flat(to_mapping(compose()))
    for key in [key for key in [*table["keys"], *table["goes_with"]] if "=" not in key]:
        axis, _, own = key.partition(".")
        there = key in AXES or key in held
        there = there or any(f"{own}:" in file.read_text() for file in files.get(axis, ()))
        # `config` names a run to start from: it is typed, and no key of what is composed.
        assert there or key in ("init.std.default", "config"), key
    for key, values in table["values"].items():
        for ours in (word for word in values if "=" not in word):
            if key in AXES:
                assert ours in options(key), (key, ours)
            elif key == "placement.equation":
                assert ours in ("f", "attention", "mlp", "norm")
            else:
                compose([f"{key}={ours}"], device="cpu")


def test_no_word_of_the_table_is_an_option_of_ours():
    for key, words in names.other_codebases().values.items():
        known = set(options(key)) if key in AXES else set()
        assert all(words[name] == [name] for name in known & set(words)), key


ANSWERS = [
    ("norm=ln", "'layernorm'"),
    ("norm=pre", "'placement=pre'"),
    ("placement=Pre-LN", "'pre'"),
    ("placement=prenorm", "'pre'"),
    ("placement=post_norm", "'post'"),
    ("trainer.device=gpu", "'cuda'"),
    ("trainer.precision=float16", "'bf16'?"),
    ("trainer.precision=float32", "'fp32'"),
    ("optimizer=lion", "'adamw' or 'muon'?"),
    ("mlp=glu", "'swiglu' or 'geglu'"),
    ("model=gpt2", "'124m' or 'preset=gpt2'"),
    ("model=gpt2-medium", "'350m'"),
    ("tokenizer=char", "'byte'"),
    ("n_layer=6", "'model.depth'"),
    ("block_size=256", "'model.context'"),
    ("batch_size=12", "'trainer.batch_size'?"),
    ("trainer.max_steps=9", "'trainer.steps'"),
    ("bias=false", "'architecture.bias'"),
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


def test_a_key_of_another_option_is_answered_with_that_option():
    with pytest.raises(ConfigError, match=r"^data.paths=a.txt: type data=text too; "):
        compose(["data.paths=a.txt"])


@pytest.mark.parametrize(
    ("typed", "line"),
    [
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
