"""The commands of all analyses: their text, their files, and what they refuse."""

import io
import json
import runpy
import shutil
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import small_studies as small
from analyses import collapse, depth_use, init_gradients, mean_drift, quantization
from guide import ROOT, blocks
from untrained import model_and_text, sequences, streams_by_hand

from transformer_norms.analysis import coordinate_check, invariances, norm_removal
from transformer_norms.analysis.outcome import Outcome, of_kind, read_rows
from transformer_norms.analysis.rendering import tables
from transformer_norms.analysis.trained import fold, swap
from transformer_norms.progress import tell_nobody
from transformer_norms.storage.files import write_json
from transformer_norms.text_tables import markdown_table

DEPTH = small.DEPTH
MODULES = {module.ANALYSIS.name: module
           for module in (collapse, coordinate_check, depth_use, fold, invariances, mean_drift,
                          norm_removal, quantization, swap)}  # fmt: skip
MODULES["init_gradients"] = init_gradients
STEPS = ["trainer.steps=8", "schedule.warmup=1"]
UNTRAINED = ["model.depth=1,2", "model.width=8,16", "model.context=4", "seed=0"]
# The words of each command, and how many rows of which kind it writes.
STUDIES = {
    "mean_drift": (["STUDY"], {"model": 6, "stream": 6 * (1 + DEPTH), "norm": 6 * (2 * DEPTH + 1)}),
    "depth_use": (["STUDY"], {"model": 6, "block": 6 * DEPTH, "span": 3 * DEPTH * (DEPTH + 1)}),
    "quantization": (["STUDY", "--bits", "4"], {"model": 6, "rounding": 6 * 6, "matrix": 6 * 19}),
    "collapse": (["STUDY", "--noise", "0.2"], {"model": 6, "noise": 6 * 2, "block": 6 * 8 * DEPTH}),
}
COMMANDS = {
    "coordinate_check": (["model.width=8,16", *UNTRAINED[2:], "init=gpt2,mup"], {"model": 4}),
    "init_gradients": (["placement=pre,post", "model.width=8", *UNTRAINED[::2], "seed=0"], None),
    "invariances": (["norm=rmsnorm,dyt"], None),
    "mean_drift": (["RUN"], {"model": 1, "stream": 1 + DEPTH, "norm": 2 * DEPTH + 1}),
    "depth_use": (["RUN"], {"model": 1, "block": DEPTH}),
    "quantization": (["RUN", "--bits", "6"], {"model": 1, "rounding": 6, "matrix": 19}),
    "collapse": (["RUN", "--foreign", "TEXT", "--noise", "0.2"], {"model": 1, "windows": 3}),
    "fold": (["RUN"], {"model": 1, "norm": 2 * DEPTH + 1}),
    "swap": (["RUN", "norm=dyt", *STEPS], {"model": 1, "norm": 3, "stage": 3, "step": 8}),
    "norm_removal": (["RUN", "trainer.steps=12", STEPS[1], "--start", "1", "--gap", "1"],
                     {"model": 1, "stage": 7, "step": 12}),
}  # fmt: skip
CASES = [*(("study", name) for name in STUDIES), *(("one", name) for name in COMMANDS)]
MODELS = ("mean_drift", "swap norm=dyt", "norm_removal", "fold")


def in_full(word, more={}):
    meant = {
        "STUDY": small.study,
        "RUN": lambda: small.run_of("study=pair", "norm=layernorm", "seed=1"),
        "TEXT": lambda: small.home() / "text.txt",
        **more,
    }
    return str(meant[word]() if word in meant else word)


@cache
def made(models, name, again=0):
    """The lines that a command prints, the folder of its files, and its CSV."""
    words, _ = {"study": STUDIES, "one": COMMANDS}[models][name]
    folder = Path(mkdtemp()) / "out"
    with redirect_stdout(io.StringIO()) as printed:
        assert MODULES[name].main([*map(in_full, words), "--out", str(folder)]) == 0
    return printed.getvalue().splitlines(), folder, (folder / f"{name}.csv").read_text()


@pytest.mark.parametrize(("models", "name"), CASES)
def test_a_command_prints_80_columns_and_writes_one_csv_a_page_and_a_figure(models, name):
    lines, folder, text = made(models, name)
    assert max(map(len, lines[:-1])) <= 80
    facts = json.loads(lines[-1])
    ends = (".csv", ".md") if name == "fold" else (".csv", ".md", ".svg")
    assert facts["files"] == [str(folder / f"{name}{end}") for end in ends]
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}{end}" for end in ends]
    kinds = {"study": STUDIES, "one": COMMANDS}[models][name][1] or {}
    rows = read_rows(text)
    assert {kind: len(of_kind(rows, kind)) for kind in kinds} == kinds
    if "numbers" in facts:
        assert len(facts["numbers"]) == len(of_kind(rows, "model"))


@pytest.mark.parametrize(("models", "name"), [x for x in CASES if x[1] != "init_gradients"])
def test_the_rows_of_a_csv_file_give_the_tables_of_the_page_again(models, name):
    _, folder, text = made(models, name)
    page = (folder / f"{name}.md").read_text()
    shown = tables(Outcome(MODULES[name].ANALYSIS, read_rows(text)))
    assert shown
    assert all(markdown_table(table.cells) in page for table in shown)


@pytest.mark.parametrize("name", ["coordinate_check", "init_gradients", "swap"])
def test_a_command_writes_the_same_bytes_twice(name):
    folders = [made("one", name, again)[1] for again in (0, 1)]
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "mean_drift"])
def test_the_loss_of_a_run_is_that_of_its_summary_and_variants_are_compared(name):
    lines, _, text = made("study", name)
    losses = {(r["model"], r["seed"]): r["loss"] for r in of_kind(read_rows(text), "model")}
    run = small.run_of("study=pair", "norm=rmsnorm", "seed=0")
    assert losses["rmsnorm", 0] == json.loads((run / "summary.json").read_text())["val_loss"]
    compared = sum(number.compared for number in MODULES[name].ANALYSIS.numbers.values())
    expected = {"quantization": 5, "collapse": 6}.get(name, compared)
    assert sum(line.startswith("layernorm - rmsnorm") for line in lines) == expected


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert invariances.main(["norm=rmsnorm"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"files": []}
    assert not list(tmp_path.iterdir())


REFUSED = [
    ("coordinate_check model.width=64", "wants 2 widths or more"),
    ("coordinate_check model.width=64,abc", "model.width=abc: a slope wants 2 widths or more"),
    ("coordinate_check data=text", "is not read here"),
    ("coordinate_check --steps 0", "1 to 1000"),
    ("init_gradients placement=pots", "did you mean 'post'?"),
    ("init_gradients model.depth=8", "model.depth=8: a slope wants 2 depths"),
    ("init_gradients mlp=gelu --xiong", "--xiong supposes mlp=relu"),
    ("init_gradients init.std.up=1 --xiong", "--xiong supposes init=xavier"),
    ("init_gradients optimizer.lr=1", "optimizer.lr=1: is not read here"),
    ("init_gradients model=124m", "model=124m: is not read here"),
    ("init_gradients --out FILE", "other.txt is a file"),
    ("init_gradients --out FILE/below", "other.txt is a file"),
    ("invariances norm=rmsnrm", "norm=rmsnrm: did you mean 'rmsnorm'"),
    ("invariances norm=rmsnorm,dyt norm.eps=1e-3", "norm.eps"),
    ("invariances norm.eps=1e-3", "norm=NAME"),
    ("invariances placement=post", "norm, norm.KEY, plugins"),
    ("invariances plugins=nowhere", "no such folder"),
    ("invariances norm=rmsnorm --outt x", "--help"),
    ("collapse RUN --noise 0.1,much", "--noise 0.1,much: numbers from 0 to 10 are wanted"),
    ("collapse RUN --noise=-1", "--noise -1: numbers from 0 to 10 are wanted"),
    ("collapse RUN --foreign nowhere.txt", "--foreign nowhere.txt: there is no such file"),
    *((f"quantization RUN --bits={bits}", f"--bits {bits}: whole numbers from 2 to 16 are wanted")
      for bits in ("1", "17", "8,x", "4.0", "-8")),
    ("depth_use FLAT", "has one block; depth is measured from two blocks on"),
    *((f"{command} nowhere", "nowhere: there is no such file or folder") for command in MODELS),
    *((f"{command} NOTHING", "there is no run in it") for command in MODELS[:-1]),
    ("fold NOTHING", "is not a run folder; config.yaml is missing"),
    ("mean_drift data=text", "name at least one run, study or folder of transformers"),
    ("mean_drift RUN norm=rmsnorm", "norm: there is no key of an analysis 'norm'; there are data"),
    ("mean_drift RUN model.context=99", "model.context=99: RUN reads 8 at most"),
    ("mean_drift RUN model.context=x", "model.context=x: a whole number of tokens is wanted"),
    ("mean_drift RUN --text no.txt", "--text no.txt: there is no such file"),
    ("mean_drift RUN data.paths=OTHER", "RUN: its text is another than the one it was trained on"),
    ("mean_drift CHECKPOINT", "CHECKPOINT: has no text; type --text FILE, or a corpus"),
    ("mean_drift CHECKPOINT COPY data=stories", "exported: two folders have this name"),
    ("mean_drift EMPTY --text TEXT", "EMPTY: "),
    ("mean_drift TEXT", "text.txt: is not a run folder; config.yaml is missing"),
    ("mean_drift RUN --text BLANK", "blank.txt: has fewer than two tokens"),
    ("mean_drift BARE --text TEXT", "has no tokenizer.json; save the model's tokenizer into it"),
    ("mean_drift RUN --baseline norm=dyt", "--baseline dyt: no variant is that"),
    ("swap RUN", "type the norm that comes in, such as norm=dyt"),
    ("swap RUN norm=dyt model.width=9", "there is no key of a tuning 'model.width'"),
    ("swap RUN norm=dyt --text TEXT", "is a run, which is tuned on its own text"),
    ("swap CHECKPOINT norm=dyt", "has no text; type --text FILE"),
    ("swap CHECKPOINT norm=dyt --text TEXT model.context=99", "reads 8 at most"),
    ("swap CHECKPOINT norm=dyt --text TEXT data=pydocs", "data is typed twice: data=text and"),
    ("swap UNFINISHED norm=dyt", "no run in it is finished; runs are preempted"),
    ("swap MOVED norm=dyt", "its text is another than the one it was trained on"),
    ("swap RUN norm=dyt --save SAVED", "-swapped: is there already; name another folder"),
    ("norm_removal RUN trainer.steps=9", "trainer.steps=9: the last norm goes at step"),
    ("norm_removal RUN trainer.stepz=9", "did you mean 'trainer.steps'"),
    ("norm_removal RUN trainer.probe_every=1", "there is no key of a"),
    ("norm_removal RUN --save SAVED", "-folded: is there already; name another folder"),
    ("norm_removal RUN --gap 0", "--gap 0: a whole number from 1 is wanted"),
    ("fold RUN --save SAVED", "is there already; name another folder"),
    ("fold EMPTY", "EMPTY: "),
    ("fold BARE --save NEW", "has no tokenizer.json; save the model's tokenizer into"),
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Returns the values that the words of REFUSED name."""
    folder, run = tmp_path_factory.mktemp("refused"), Path(in_full("RUN"))
    saved = [f"saved/{run.name}-{change}" for change in ("swapped", "folded")]
    for name in ("nothing", "bare", "empty", *saved):
        (folder / name).mkdir(parents=True)
    (folder / "blank.txt").touch()
    (folder / "other.txt").write_text("the dog jumps back\n" * 60)
    shutil.copytree(small.checkpoint(), folder / "exported")
    shutil.copy(folder / "exported/config.json", folder / "bare")
    shutil.copy(folder / "exported/tokenizer.json", folder / "empty")
    write_json(folder / "empty/config.json", {})
    for name, old, new in (
        ("unfinished", '"finished"', '"preempted"'),
        ("moved", '"fingerprint": "', '"fingerprint": "0'),
    ):
        shutil.copytree(run, folder / name / run.name)
        text = (run / "summary.json").read_text()
        assert text.count(old) == 1
        (folder / name / run.name / "summary.json").write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize(("typed", "said"), REFUSED)
def test_what_cannot_be_is_one_line(typed, said, home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = Path(in_full("RUN"))
    meant = {
        "RUN": lambda: run,
        "FILE": lambda: home / "other.txt",
        "CHECKPOINT": small.checkpoint,
        "COPY": lambda: home / "exported",
        "FLAT": lambda: small.run_of("study=flat", "model.depth=1"),
        "BLANK": lambda: home / "blank.txt",
        "NEW": lambda: tmp_path / "new",
        "data.paths=OTHER": lambda: f"data.paths={home / 'other.txt'}",
    } | {name: lambda n=name: home / n.lower() for name in ("EMPTY", "NOTHING", "BARE", "SAVED")}
    meant |= {n: lambda n=n: home / n.lower() / run.name for n in ("UNFINISHED", "MOVED")}
    command, *words = typed.replace("--out FILE", f"--out {home / 'other.txt'}").split()
    out = [] if "--out" in words else ["--out", str(tmp_path / "out")]
    assert MODULES[command].main([*(in_full(word, meant) for word in words), *out]) == 2
    printed, error = capsys.readouterr()
    for word, before in (("RUN", ": "), ("RUN", " reads"), ("CHECKPOINT", ": "), ("EMPTY", ": ")):
        said = said.replace(word + before, in_full(word, meant) + before)
    assert said in error.splitlines()[-1]
    assert printed == ""
    assert not list(tmp_path.iterdir())


def test_the_analysis_of_the_docs_measures_the_stream_and_is_compared_over_seeds(capsys, tmp_path):
    (text,) = [block.text for block in blocks(ROOT / "docs" / "analyses.md")
               if block.text.startswith("# mine/")]  # fmt: skip
    (tmp_path / "stream_size.py").write_text(text)
    own = runpy.run_path(str(tmp_path / "stream_size.py"))
    loaded = model_and_text(placement="pre")
    _, *found = own["measure"](loaded, tell_nobody, None)
    streams = [streams_by_hand(loaded, tokens)[0] for tokens in sequences(loaded)]
    sizes = [np.concatenate(each) for each in zip(*streams, strict=True)][1:]
    assert [row["rms"] for row in found] == pytest.approx([(x**2).mean() ** 0.5 for x in sizes])
    with pytest.raises(own["Unmeasured"]):
        list(own["measure"](model_and_text(placement="hyper_connections"), tell_nobody, None))
    parser = own["models_parser"](own["__doc__"])
    typed = [str(small.study()), "--out", str(tmp_path / "out")]
    assert own["run_on_models"](own["ANALYSIS"], own["measure"], parser, typed) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert sum(line.startswith("layernorm - rmsnorm") for line in lines) == 1
    rows = read_rows((tmp_path / "out" / "stream_size.csv").read_text())
    assert len(of_kind(rows, "block")) == 6 * DEPTH
