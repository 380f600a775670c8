"""Parts of a sweep on machines without a common disk, a smoke test, and a tuning that is typed."""

import json
import math
import shutil
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest
from refusing import refused
from sweeps import MADE_UP, REFUSALS, SHORT, BasicLauncher, trainings, write_sweep
from warm import TEXT, Command

from transformer_norms import cli
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.config.saved import read_saved
from transformer_norms.report.gathering import read_study
from transformer_norms.report.writing import write_report
from transformer_norms.run.summary import read_summary
from transformer_norms.sweep import drive
from transformer_norms.sweep.drive import plan_sweep, smoke_test
from transformer_norms.sweep.planning import Jobs
from transformer_norms.sweep.question import Question, Request, read_request

NORMS = ("rmsnorm", "layernorm", "dyt")
QUESTION = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm, dyt]}\n"
TUNE = "tune: {optimizer.lr: [1e-3, 2e-3, 4e-3], seed: [100, 101]}\n"
STUDY = Path("runs/mine")
RECORD = STUDY / "sweep-mine.json"
WORDS = ("table.md", "results.csv")


def on_machine(name, *typed, text=QUESTION, only="", record=None, short=MADE_UP):
    """The exit code of a command in a separate folder, where the `record` of
    another machine was copied to."""
    Path(name, STUDY).mkdir(parents=True, exist_ok=True)
    if Path("registered").is_dir():
        shutil.copytree("registered", Path(name, "registered"), dirs_exist_ok=True)
    if record:
        shutil.copy(record, Path(name, STUDY))
    with chdir(name):
        words = [*short, *write_sweep(text), *typed]
        return drive.run_sweep(words, lambda request: BasicLauncher(), only)


def join(*machines):
    """All that the machines have, in one folder, as `rsync` copies it."""
    for name in machines:
        shutil.copytree(Path(name, STUDY), Path("joined", STUDY), dirs_exist_ok=True)
    return Path("joined", STUDY)


def reported(study):
    """The files of a report that hold words and numbers."""
    files = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    return {name: data for name, data in files.items() if not name.endswith((".json", ".lock"))}


@pytest.mark.parametrize(("seeds", "variants"), [(1, 1), (1, 4), (3, 4), (5, 2)])
@pytest.mark.parametrize("horizons", [0, 3])
def test_parts_are_all_of_the_results_once_with_whole_seeds_and_horizons(seeds, variants, horizons):
    """Whole seeds where there are enough, and all horizons of a variant always in one part."""
    steps = [{"trainer.steps": 10 * (i + 1)} for i in range(horizons)] or [{}]
    every = [{**step, "norm": f"n{v}"} for step in steps for v in range(variants)]
    asked = Question("", {}, together=every, seeds=[*range(seeds)])
    request = Request("mine", asked, named=True)
    for parts in range(1, seeds * variants + 1):
        cut = [Jobs(replace(request, part=f"{k}/{parts}")).results() for k in range(1, parts + 1)]
        listed = [(seed, *one.items()) for part in cut for one, _, seed in part]
        whole = [(seed, *one.items()) for seed in range(seeds) for one in every]
        assert sorted(listed) == sorted(whole)
        if parts <= seeds or not horizons:
            assert listed == whole  # in order, so that a report has its rows in this order
        norm = "" if parts <= seeds else "norm"
        keys = [{(one.get(norm), seed) for one, _, seed in part} for part in cut]
        sizes = [len(part) for part in keys]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == len(set.union(*keys))  # none is in two parts
    said = refused(Jobs(replace(request, part=f"1/{seeds * variants + 1}")).results)
    assert f"there are {seeds * variants} pair" in said


@pytest.mark.parametrize(("parts", "tune"), [(8, ""), (3, TUNE)])
def test_joined_parts_have_the_runs_and_the_report_of_one_machine(parts, tune, trainings, capsys):
    def tuned_loss(config):
        far = {"rmsnorm": 2e-3, "layernorm": 1.5e-3, "dyt": 3e-3}[config.choices["norm"]]
        return loss(config) + 0.1 * math.log(config.optimizer.lr / far) ** 2

    loss, text = trainings.loss, f"{QUESTION}{tune}seeds: [0, 1, 2]\n"
    if tune:
        trainings.loss = tuned_loss
        assert cli.main([*MADE_UP, *write_sweep(text), "--register"]) == 0
    on_machine("one", text=text)
    trained = sorted(trainings.folders)
    trainings.folders.clear()
    if tune:
        assert on_machine("tuning", text=text, only="tune") == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["report"] is None
    record = Path("tuning", RECORD) if tune else None
    machines = ["tuning"] * bool(tune)
    for k in range(1, parts + 1):
        machines.append(f"m{k}")
        assert on_machine(f"m{k}", f"launcher.part={k}/{parts}", text=text, record=record) == 0
        assert reported(Path(f"m{k}", STUDY)) == {}
    assert "launcher.part" not in capsys.readouterr().out
    assert sorted(trainings.folders) == trained
    one = reported(Path("one", STUDY))
    assert {*WORDS, "table.tex", "report.html"} <= {*one}
    assert one["table.md"].count(b"What was asked is what was registered") == bool(tune)
    write_report([Path(name, STUDY) for name in machines], "apart")
    apart = reported(Path("apart"))  # its labels for LaTeX have the names of its folders
    assert [apart[name] for name in WORDS] == [one[name] for name in WORDS]
    study = join(*machines)
    write_report([study])
    assert reported(study) == one
    # The command without a part trains nothing more there, and takes their records into its own.
    on_machine("joined", text=text)
    assert sorted(trainings.folders) == trained
    assert reported(study) == one
    assert [path.name for path in study.glob("sweep-*")] == [RECORD.name]
    records = [read_record(Path(home, RECORD)) for home in ("one", "joined")]
    planned = [sorted(run.folder for run in record.runs) for record in records]
    assert planned[0] == planned[1]


def test_seeds_are_added_until_it_is_decided_where_parts_are_joined(trainings, capsys):
    text = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"
    text += "seeds: {first: 3, until: decided, most: 8}\n"
    on_machine("one", text=text)
    trained, looks = sorted(trainings.folders), read_record(Path("one", RECORD)).looks
    assert len(looks) > 1
    trainings.folders.clear()
    for k in (1, 2):
        on_machine(f"m{k}", f"launcher.part={k}/2", text=text)
    assert len(trainings.folders) == 2 * 3
    assert "type the command without launcher.part" in capsys.readouterr().err
    study = join("m1", "m2")
    on_machine("joined", text=text)
    assert sorted(trainings.folders) == trained
    assert read_record(study / RECORD.name).looks == looks
    assert reported(study) == reported(Path("one", STUDY))


def test_seeds_that_are_typed_after_a_report_of_joined_parts_are_tested_as_that(trainings):
    """As on one machine, where the look at three seeds is recorded when they end."""
    for k in (1, 2, 3):
        on_machine(f"m{k}", f"launcher.part={k}/3", "seed=0,1,2")
    study = join("m1", "m2", "m3")
    assert read_study([study]).held_looks == 1
    for typed in ("seed=0,1,2,3,4", "seed=0,1,2,3,4,5"):
        on_machine("joined", typed)
        if typed.endswith("4"):
            assert read_study([study]).held_looks == 2
            join("m1", "m2", "m3")  # once more: what was seen since stays
    for typed in ("seed=0,1,2", "seed=0,1,2,3,4", "seed=0,1,2,3,4,5"):
        on_machine("one", typed)
    assert read_study([study]).held_looks == read_study([Path("one", STUDY)]).held_looks == 3
    assert read_record(study / RECORD.name).looks == read_record(Path("one", RECORD)).looks


@pytest.mark.parametrize(("typed", "only", "said"), REFUSALS["stage"])
def test_what_cannot_be_is_one_line_before_anything_is_written(typed, only, said, trainings):
    for words in (write_sweep(QUESTION), ["norm=rmsnorm,layernorm,dyt"]):
        words = (*MADE_UP, *words, "seed=0,1", *typed.split())
        assert said in refused(plan_sweep, words, only)
    assert not Path("runs").exists()


def test_a_part_needs_the_tuning_of_its_own_settings(trainings):
    text = QUESTION + TUNE
    on_machine("tuning", text=text, only="tune")
    own = {"text": text, "record": Path("tuning", RECORD)}
    for typed in ("data.documents=500", "norm=rmsnorm,derf", "optimizer.lr=1e-3,3e-3"):
        said = refused(on_machine, "m1", "launcher.part=1/2", "seed=0,1", typed, **own)
        assert "has not tuned these variants with this data" in said
    assert [path.name for path in Path("m1", STUDY).iterdir()] == [RECORD.name]


def test_a_stage_is_for_a_sweep(capsys):
    assert cli.main(["norm=rmsnorm", "--stage", "smoke"]) == 2
    assert cli.main(["-m", "seed=0,1", "hydra/sweeper=basic", "--stage", "smoke"]) == 2
    assert cli.main(["sweep=quick", "--stage", "tune", "--power"]) == 2
    assert cli.main(["sweep=quick", "launcher.part=1/2", "--register"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told[:2]] == ["--stage smoke"] * 2
    assert told[-1] == "--register: is about all results; leave launcher.part out"


def test_a_tuning_that_is_typed_is_the_one_of_a_file(trainings):
    file = QUESTION + "tune: {optimizer.lr: [1e-3, 3e-3], init: [mup, scaled], seed: [100, 101]}\n"
    file += "fixed: {schedule.warmup: 2}\nseeds: [0, 1]\n"
    typed = ["tune.optimizer.lr=1e-3,3e-3", "tune.init=mup,scaled"]
    typed += ["norm=rmsnorm,layernorm,dyt", "schedule.warmup=2", "seed=0,1"]
    words = write_sweep(file)
    (asked, jobs), (bare, own) = (plan_sweep([*MADE_UP, *one]) for one in (words, typed))
    assert bare.request.question.tune == asked.request.question.tune
    each = [[(job.run.identity, job.run.place) for job in plan] for plan in (own, jobs)]
    assert each[0] == each[1]
    more = read_request([*words, "tune.optimizer.lr=2e-3,4e-3", "tune.refine=3", "tune.seed=7"])
    tune = more.question.tune
    assert tune.grid == {"optimizer.lr": [2e-3, 4e-3], "init": ["mup", "scaled"]}
    assert (tune.refine, tune.seed) == (3, [7])
    crossed = read_request([*words, "tune.schedule.warmup=2,4"]).question
    assert "schedule.warmup" not in crossed.fixed


def test_a_smoke_test_trains_a_few_steps_of_each_variant_and_judges_nothing(trainings, capsys):
    text = QUESTION + TUNE + "contrasts: [dyt - layernorm]\nfixed: {trainer.steps: 9}\n"
    assert on_machine(".", text=text, only="smoke", short=MADE_UP[:3]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out.splitlines()[-1])
    assert (answer["study"], answer["runs"], answer["report"]) == ("mine-smoke", 3, None)
    assert trainings.runs == [(norm, 0) for norm in NORMS]
    assert "these are not results" in err
    assert not list(STUDY.glob("*/summary.json"))
    folder = Path("runs/mine-smoke")
    configs = [read_saved(path).resolved for path in folder.glob("*/config.yaml")]
    assert {(one["trainer"]["steps"], one["optimizer"]["lr"]) for one in configs} == {(3, 1e-3)}
    on_machine(".", "seed=0,1,2", text=QUESTION)
    for folders in ([folder], [STUDY, folder]):
        assert "sweep-mine-smoke.json: is of a smoke test" in refused(write_report, folders)


def test_a_smoke_test_leaves_out_horizons_and_branches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in (
        QUESTION + "fixed: {schedule: wsd, trainer.branches: [10, 20]}",
        "baseline: {norm: dyt}\ntogether: [{norm: dyt, trainer.steps: 9}, {norm: rmsnorm}]",
        QUESTION + "fixed: {trainer.average: {type: window, count: 5, every: 100}}",
        "baseline: {trainer.tokens: 1e5}\nvary: {trainer.tokens: [1e5, 2e5]}",
    ):
        question = smoke_test(read_request(write_sweep(text))).question
        names = [one.get("norm") for one in question.variants]
        assert names == [*dict.fromkeys(names)]
        assert {*question.axes} <= {"norm"}
        fixed = {key: one for key, one in question.fixed.items() if key.startswith("trainer.")}
        assert fixed == {"trainer.steps": 3}


@pytest.mark.nightly
def test_eight_processes_with_separate_folders_are_one_machine(tmp_path, monkeypatch):
    """The tuning, eight parts and the report as commands; the weights and losses bit by bit."""
    monkeypatch.chdir(tmp_path)
    text = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm], trainer.steps: [8, 16]}\n"
    text += "tune: {init: [mup, scaled], seed: [100]}\nseeds: [0, 1, 2, 3]\n"
    text += "fixed: {schedule: wsd, trainer.branches: [8, 16]}\n"

    def start(name, *typed):
        Path(name, STUDY).mkdir(parents=True)
        if name not in ("one", "tuning"):
            shutil.copy(Path("tuning", RECORD), Path(name, STUDY))
        with chdir(name):
            Path("corpus.txt").write_text(TEXT)
            words = [*(w for w in SHORT if "steps" not in w), *write_sweep(text)]
            return Command([*words, *typed])

    assert start("one").end()[0] == start("tuning", "--stage", "tune").end()[0] == 0
    parts = [start(f"m{k}", f"launcher.part={k}/8") for k in range(1, 9)]
    assert [part.end()[0] for part in parts] == [0] * 8
    study = join("tuning", *(f"m{k}" for k in range(1, 9)))
    write_report([study])
    exact = "step tokens val_loss best_val_loss identity batch_chain branch_step status".split()

    def state(run):
        weights = [file.read_bytes() for file in run.rglob("model.safetensors")]
        return [getattr(read_summary(run), key) for key in exact], weights

    apart, one = (
        {path.parent.name: state(path.parent) for path in place.glob("*/summary.json")}
        for place in (study, Path("one", STUDY))
    )
    assert apart == one
    assert len(one) == 2 * 2 * (2 + 4)
    assert Path(study, "table.tex").read_text() == Path("one", STUDY, "table.tex").read_text()
