"""What cannot be run is answered with one line, and nothing is written."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from new_process import run_python
from omegaconf import OmegaConf
from refusing import refused
from run_folders import tree

from transformer_norms import build_model, cli, prepare_tokens, train
from transformer_norms.commands.hydra_settings import check_hydra_settings
from transformer_norms.config.compose import choose, compose
from transformer_norms.config.tree import flat
from transformer_norms.errors import InputError
from transformer_norms.names import AXES, NORM_WORDS, options
from transformer_norms.sweep.drive import plan_sweep

ROOT = Path(__file__).parents[2]

NAMES = [
    ("foo=1", "foo=1", "axes are norm, placement"),
    ("architecture.window=8", "did you mean 'architecture.sliding_window'?", "and 22 more (transf"),
    ("window=8", "window=8", "did you mean 'architecture.sliding_window'?"),
    ("model.foo=1", "model.foo=1: there is no key 'model.foo'; keys of model are width"),
    ("preset=gptoss", "preset=gptoss: did you mean 'gpt_oss'? there is no preset"),
    ("placement=hyper", "placement=hyper: did you mean 'hyper_connections'? there is no"),
    ("lr=1e-3", "lr=1e-3", "did you mean 'optimizer.lr'"),
    ("trainer.steps.x=10", "trainer.steps.x=10", "did you mean 'trainer.steps'"),
    ("model/width=64", "model/width=64", "did you mean 'model.width'"),
    ("norm.share=0.5", "norm.share=0.5: type norm=prmsnorm too; ", "; norm=prmsnorm has it"),
    ("norm=dyt norm.eps=1", "norm.eps=1: norm=dyt has no key 'norm.eps'; norm=batchnorm, bhyt"),
    ("norm=rmsnorm norm.alpha_init=1", "norm=rmsnorm has no key", "; norm=derf, dyt, seednorm ha"),
    (
        "norm.alpha_init=1",
        "=1: there is no key 'norm.alpha_init'; norm=derf, dyt, seednorm have it",
    ),
    ("tracking=none tracking.mode=auto", "tracking=none has no key", "; tracking=wandb has it"),
    ("tokenizer.sz=3", "tokenizer.sz=3", "there is no key", "tokenizer has no keys"),
    ("choices.norm=layernorm", "choices.norm=layernorm", "axes are"),
    ("norm=RMSNorm", "norm=RMSNorm", "did you mean 'rmsnorm'"),
    ("norm=", "norm=", "layernorm, "),
    ("norm=true", "norm=true", "layernorm, "),
    ("norm={a: 1}", "norm={a: 1}", "layernorm, "),
    ("norm='rmsnоrm'", "norm='rmsnоrm'", "did you mean 'rmsnorm'"),  # noqa: RUF001 a Cyrillic o
    ("launcher=pool", "launcher=pool: is about many runs"),
    ("sweep=quick", "sweep=quick: is about many runs"),
    ("v_norm=rmsnorm_np placement=hybrid", "v_norm=rmsnorm_np", "sets q, k, v itself"),
    ("architecture.value_gate=999 architecture.value_embedding=3", "value_gate: 999", "x has 128"),
    ("architecture.value_residual=1/i", "architecture.value_residual", "has no value here"),
    ("architecture.value_embedding=3*q", "architecture.value_embedding", "names q; known here"),
    ("norm.type=layernorm", "norm.type=layernorm", "choose another, norm=NAME"),
    ("placement.learned=a placement.equation=x+f(x)", "placement.learned", "'a'"),
    ("norm._target_=os.system", "norm._target_=os.system", "keys of norm are"),
    ("placement.equation=x+f(norm(x)))", "it cannot be read: unmatched ')'; an equation is"),
    (
        "placement.equation=x+tanh(f(norm(x)))",
        "there is no norm 'tanh'",
        "all functions but f are norm",
    ),
    ("architecture.embed_scale=1/sqrt(|d|)", "'1/sqrt(|d|)' is no formula: write abs(x) for |x|"),
    ("architecture.embed_scale=sqrt(d", "'sqrt(d' is no formula: '(' was never closed"),
    ("architecture.embed_scale=d^2", "'d^2' is no formula: numbers, names, + - * / % **, < <= >"),
    (("placement.equation=(h := 2*x) + f(x)",), "placement.equation", "reads h or a norm of it"),
    (("placement.equation=(f := 2*x) + f(f)",), "placement.equation", "by a new name"),
    ("mlp.activation=rel", "mlp.activation", "'rel'", "did you mean 'relu'"),
    ("norm=batchnorm", "norm: batchnorm", "over later tokens", "norm.allow_noncausal=true"),
    ("final_norm=batchnorm", "norm: batchnorm", "besides the run's norm", "allow_noncausal"),
    (
        "norm=batchnorm norm.allow_noncausal=true trainer.batch_size=1 model.context=1",
        "trainer.batch_size: 1 is not allowed: norm=batchnorm takes statistics over a micro-batch",
    ),
    (
        "norm=batchnorm norm.allow_noncausal=true trainer.batch_size=2 trainer.accumulation=2 "
        "model.context=1",
        "trainer.batch_size: 2 is not allowed: norm=batchnorm",
        "(batch_size / accumulation), which has one token",
    ),
    (
        "final_norm=batchnorm trainer.batch_size=1 model.context=1",
        "trainer.batch_size: 1 is not allowed: norm=batchnorm",
    ),
    ("norm/head=groupnorm_head", "norm/head=groupnorm_head", "there is no key"),
    ("qk_norm=l2 architecture.attention_scale='1/sqrt(dh)'", "architecture.attention_scale", "l2"),
    ("norm=l2norm placement=qkv architecture.attention_scale='1/sqrt(dh)'", "length 1 (l2norm)"),
    ("qk_norm=l2 model.context=1", "architecture.attention_scale", "has no value here"),
    ("architecture.bias=[query,kye]", "architecture.bias", "query, key", "did you mean 'key'"),
    ("architecture.bias=[]", "architecture.bias", "at least 1 item"),
    ("architecture.rope_base=[100,0]", "architecture.rope_base", "2 bases for 4 blocks"),
    ("architecture.rope_base=true", "architecture.rope_base", "a number is wanted"),
    ("architecture.rope_base=1", "architecture.rope_base", "in block i=0 it is 1", "above 1"),
    ("architecture.rope_base='100*i-100'", "architecture.rope_base", "in block i=0 it is -100"),
    ("architecture.rope_base='d'", "architecture.rope_base", "names d; known here are L N i l"),
    ("plugins=nowhere", "plugins=nowhere", "no such folder"),
    ("config=nowhere.yaml", "config=nowhere.yaml", "no such file"),
    ("config=/", "config=/", "is no run folder"),
]
SHAPES = [
    ("", "''", "norm=rmsnorm"),
    ("seed", "'seed'", "KEY=VALUE"),
    ("=1", "'=1'", "KEY=VALUE"),
    ("+x=1", "+x=1", "without '+'"),
    ("~norm", "~norm", "without '~'"),
    ("norm@_global_=rmsnorm", "norm@_global_=rmsnorm", "there is no key"),
    ("norm.eps=${seed}", "norm.eps=${seed}", "not allowed"),
    ("study=${oc.env:HOME}", "study=${oc.env:HOME}", "not allowed"),
    ("seed=null", "seed=null", "none"),
    ("study=???", "study=???", "none"),
    ("hydra.run.dir=/tmp/x", "hydra.run.dir=/tmp/x", "sweeps"),
    ("norm=layernorm norm=rmsnorm", "norm is typed twice", "norm=layernorm and norm=rmsnorm"),
    ("placement=[pre,post]", "several are a sweep", "type -m placement=pre,post"),
    ("seed=1,2", "seed=1,2", "-m"),
    ("optimizer.betas=0.9,0.95", "(a list is optimizer.betas=[A,B])"),
    ("optimizer.lr=1,2", "several values are a sweep; type -m before them"),
    ("seed=range(3)", "seed=range(3)", "-m"),
    ("norm=glob(*)", "norm=glob(*)", "-m"),
    ("norm='rms", "norm='rms", "layernorm, "),
    ("study=mаin", "study: 'mаin'", "letters"),  # noqa: RUF001 a Cyrillic a
    ("seed=" + "9" * 5000, "seed=999", "cannot be read"),
    (("study=a\nb",), "'study=a\\nb'", "control characters"),
    (("study=a\x1b[31m",), r"'study=a\x1b[31m'", "control characters"),
    (("study=a\u202eb",), r"'study=a\u202eb'", "control characters"),
    (("seed=\udc80",), r"'seed=\udc80'", "control characters"),
    ((" norm=rmsnorm",), " norm=rmsnorm", "did you mean 'norm'"),
]
STUDIES = ["../../x", "/abs", "-rf", ".", "..", ".hidden", "a/b", "a b", "a\\b", "x" * 300]
STUDIES += ["'mаin'", "'ｍain'", ""]  # noqa: RUF001 letters that look like others
KINDS = [
    ("trainer=fast", "trainer=fast", "a group of keys"),
    ("trainer={stepz: 1}", "trainer.stepz", "did you mean 'steps'"),
    ("optimizer.betas=0.9", "optimizer.betas", "0.9", "list"),
    ("optimizer.betas=[0.9]", "optimizer.betas", "[0.9]", "at least 2 items"),
    ("optimizer.betas=[a,b]", "optimizer.betas", "'a'", "number"),
    ("data=text data.paths=[1]", "data.paths", "1", "a word"),
    ("placement.source=1", "placement.source", "choose another, placement=NAME"),
    ("placement.equation='x+f(x,q=norm@foo)'", "placement.equation", "foo", "head, per_"),
    ("init=gpt2 init.std.default=[1]", "init.std.default", "[1]", "a word"),
    (
        "init=gpt2 init.std.dfault=1",
        "init.std.dfault=1",
        "there are default, embedding",
        "did you mean 'default'",
    ),
]
RANGES = [
    ("norm.eps=-inf", "norm.eps=-inf", "finite"),
    ("optimizer.lr=1e400", "optimizer.lr=1e400", "finite"),
    ("optimizer.betas=[0.9,nan]", "optimizer.betas=[0.9,nan]", "finite"),
    ("optimizer.betas=[0.9,1]", "optimizer.betas", "1", "less than 1"),
    ("trainer.accumulation=5", "trainer.accumulation", "5", "trainer.batch_size"),
    ("data.test_fraction=0.1", "data.test_fraction", "0.1", "data.split=hash", "data.split=tail"),
    ("model.heads=3", "model.heads", "3", "model.width", "1, 2, 4, 8"),
    ("model.width=66", "model.heads", "66", "1, 3, 11, 33"),
    ("model.width=65 model.heads=2", "model.heads", "65", "or an even model.width"),
    ("model.kv_heads=3", "model.kv_heads", "3", "allowed are 1, 2, 4"),
    ("model.head_dim=31", "model.head_dim", "31", "position=learned"),
    ("init=gpt2 init.truncate=0", "init.truncate", "0", "none, or it should be greater"),
    ("init=gpt2 init.std.default=foo", "init.std.default", "'foo'", "known here are"),
    ("init=gpt2 init.std.default=-1", "init.std.default", "-1", "at least 0"),
    ("init=gpt2 init.std.output=1/0", "init.std.output", "'1/0'", "no value"),
    ("placement=admin placement.learned.a.init=foo", "placement.learned.a", "'foo'", "known"),
    (
        ("placement.equation=x + 1/i * f(x)",),
        "placement.equation: '1/i' in 'x + 1/i * f(x)'",
        "i=0",
    ),
    (
        ("placement.where={blocks: i == 1, equation: norm(x) + f(x)}",),
        "placement.where[0].equation: 'norm(x)'",
    ),
    (
        ("placement.where=[{blocks: i == 1, equation: x - log(0) * f(x)}]",),
        "placement.where: '- (log(0))' in 'x - log(0) * f(x)', block i=1",
    ),
    ("architecture.embed_scale=foo", "architecture.embed_scale", "'foo'", "known here are"),
    ("architecture.embed_scale=true", "architecture.embed_scale", "True", "sqrt(d)"),
    ("architecture.embed_scale=[1]", "architecture.embed_scale", "[1]", "sqrt"),
    ("architecture.embed_scale={a: 1}", "architecture.embed_scale", "{'a': 1}", "learn"),
    ("architecture.embed_scale='9**9**9'", "architecture.embed_scale", "no value"),
    (f"architecture.embed_scale='{'-' * 5000}1'", "architecture.embed_scale", "too deeply"),
    ("architecture.sliding_window=-4", "sliding_window: -4 is not allowed; in block i=0 it is -4"),
    ("architecture.sliding_window='4*(j%2)'", "sliding_window: '4*(j%2)' names j; known here"),
    ("placement=mhc placement.connection.streams=2.5", "2.5 is not allowed; it should be an integ"),
    ("architecture.rope_fraction=2", "architecture.rope_fraction", "2", "above 0 and at most 1"),
    ("placement=hybrid qk_norm=head", "qk_norm=head", "q, k, v", "another placement"),
    ("placement=post placement.brings={foo: 1}", "placement.brings", "'foo'", "embed_scale"),
]
CASES = NAMES + SHAPES + KINDS + RANGES
OF_DYT = "together: [{'norm.alpha_init': 1, 'norm': 'dyt'}, {'norm': 'rmsnorm'}]"
SWEEPS = [
    ("norm=rmsnorm,foo", "norm=foo", "layernorm, "),
    ("placement=pre,pots", "placement=pots", "did you mean 'post'"),
    ("seed=0,-1", "seed", "-1", "greater than or equal to 0"),
    ("seed=choice(1,foo)", "seed: 'foo'", "integer"),
    ("lr=1,2", "lr=1", "did you mean 'optimizer.lr'"),
    ("model.heads=4,3", "model.heads", "3", "1, 2, 4, 8"),
    ("study=../x,y", "study", "'../x'", "one value"),
    ("norm=a,,b", "norm=a", "layernorm, "),
    ("seed=range(1,1)", "seed=range(1,1)", "no value"),
    ("seed=interval(0,1)", "seed=interval(0,1)", "KEY=A,B"),
    ("norm=glob(*)", "norm=glob(*)", "KEY=A,B"),
    ("seed=range(0,1e9)", "seed=range(0,1e9)", "more than 10000 runs"),
    ("seed=1,2 seed=3", "seed is typed twice", "seed=3"),
    ("norm=rmsnorm,layernorm norm.share=0.5", "norm.share=0.5", "prmsnorm has it (in rmsnorm)"),
    ("norm=dyt,rmsnorm norm.alpha_init=1", "=rmsnorm has no key", "have it (in rmsnorm)", OF_DYT),
    ("norm=rmsnorm,dyt norm.alpha_init=1,2", "=rmsnorm has no key", OF_DYT),
    ("optimizer.betas=[0.9,0.95],0.9", "optimizer.betas: 0.9 is not allowed; it should be a list"),
    ("hydra/launcher=nowhere", "hydra/launcher=nowhere", "basic"),
    ("launcher=pol", "launcher=pol", "did you mean 'pool'?"),
    ("launcher=pool launcher.stacked=1", "launcher.stacked: 1 is not allowed"),
    ("launcher=pool launcher.stacked=all", "launcher.stacked: 'all' is not allowed"),
    ("launcher.workers=3", "launcher.workers=3", "there is no key"),
    ("launcher=pool launcher.time=3", "launcher.time=3", "launcher=slurm has it"),
    ("launcher=pool launcher.workers=3 launcher.per_gpu=2", "launcher.workers=3", "one of the two"),
    ("hydra/launcher=pool", "hydra/launcher=pool", "type launcher=pool"),
    ("launcher=slurm launcher.time=1:00:00", "launcher.time", "should be an integer"),
    ("launcher=slurm launcher.per_gpu=2", "launcher.per_gpu", "type launcher.gpus too"),
    ("launcher=slurm launcher.gpu=2", "launcher.gpu=2", "did you mean 'launcher.gpus'?"),
    ("launcher=slurm launcher.options=--time", "--time", "is the key launcher.time"),
    ("launcher=slurm launcher.options='--output=x'", "--output", "set by the launcher itself"),
    ("launcher=slurm launcher.options=nice", "'nice'", "'--NAME=VALUE --NAME'"),
    ("sweep=quick margin=0.1", "margin=0.1", "--margin"),
    ("sweep=quick seeds=0,1", "seeds=0,1", "did you mean seed=0,1,2?"),
    ("norm=rmsnorm,dyt norm.eps=1e-5,1e-6", "norm.eps=1e-05", "in dyt eps=1e-05"),
    ("hydra.launcher.nothing=1", "hydra.launcher.nothing=1", "Could not override"),
]


def typed(overrides) -> list:
    """A tuple is taken as it is, a string is split at its spaces between pairs."""
    if isinstance(overrides, tuple) or "=" not in overrides:
        return list(overrides) if isinstance(overrides, tuple) else [overrides]
    pairs: list[str] = []
    for word in overrides.split(" "):
        if "=" in word or not pairs:
            pairs.append(word)
        else:
            pairs[-1] += f" {word}"
    return pairs


@pytest.mark.goal("K1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0])[:60])
def test_a_malformed_command_is_refused_in_one_line_that_names_key_value_and_way_out(case):
    overrides, *fragments = case
    line = refused(compose, typed(overrides))
    assert [part for part in fragments if part not in line] == [], line


def misspelled(name: str) -> str:
    """trainer.steps -> trainer.ssteps"""
    above, dot, last = name.rpartition(".")
    return f"{above}{dot}{last[0]}{last}"


def test_a_misspelled_key_is_answered_with_that_key():
    fixed = {"type", "formula", "source", "unverified"}
    for key in flat(choose([], None).values):
        if key.rpartition(".")[2] not in fixed:
            typed = f"{misspelled(key)}=1"
            assert refused(compose, [typed]).startswith(f"{typed}: did you mean '{key}'? there is ")


@pytest.mark.parametrize("axis", [*AXES, *NORM_WORDS])
def test_a_misspelled_option_is_answered_with_that_option(axis):
    known = [*NORM_WORDS[axis], "rmsnorm"] if axis in NORM_WORDS else options(axis)
    for name in known:
        line = refused(compose, [f"{axis}={misspelled(name)}"])
        assert f"did you mean '{name}'? there is no {axis} '{misspelled(name)}'; there" in line
        assert known[0] in line
        assert axis not in AXES or len(known) <= 16 or " (configs/" in line or "--list" in line


@pytest.mark.goal("K1", "X4")
@pytest.mark.parametrize("study", STUDIES, ids=lambda name: ascii(name)[:40])
def test_a_study_whose_name_could_leave_its_folder_is_refused_by_name(study):
    line = refused(compose, [f"study={study}"])
    assert repr(study.strip("'"))[:50] in line
    assert "letters" in line


@pytest.mark.goal("K1")
@pytest.mark.parametrize("case", SWEEPS, ids=lambda case: case[0])
def test_a_malformed_element_of_a_sweep_is_refused_before_the_first_job(case):
    overrides, *fragments = case
    line = refused(plan_sweep, tuple(typed(overrides)))
    assert [part for part in fragments if part not in line] == [], line


def test_a_sweep_looks_at_the_data_of_each_job_before_the_first():
    with pytest.raises(InputError, match="there is no file nowhere.txt"):
        plan_sweep(("data=text", "data.paths=nowhere.txt", "seed=0,1"))


def test_a_single_string_is_no_list_of_overrides():
    assert "['norm=rmsnorm']" in refused(compose, "norm=rmsnorm")
    assert "['norm=rmsnorm']" in refused(compose, {"norm": "layernorm"})


@pytest.mark.parametrize(("takes", "more"), [(build_model, [8]), (train, []), (prepare_tokens, [])])
def test_a_function_that_takes_a_config_refuses_anything_else_in_one_line(takes, more):
    """As users call it: without the checker of types that tests have around it."""
    line = "{'norm': 'dyt'}: a config is wanted, as compose(['norm=rmsnorm'])"
    assert refused(inspect.unwrap(takes), {"norm": "dyt"}, *more) == line


def test_a_missing_key_is_answered_with_the_keys_that_are_required(tmp_path):
    file = tmp_path / "configs" / "init" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("std: {default: 0.02}\notherwise: scaled\n")
    line = refused(compose, [f"plugins={tmp_path}", "init=mine"])
    assert line == "init.truncate is missing; wanted are std, truncate"


HOSTILE_NAMES = [
    *STUDIES, "../x", "../../../../tmp/x", "x/../../y", "./x", "x/.", "//x", "~", "~/x", "$HOME",
    "`id`", "$(id)", "x;id", "x|id", "x&id", "*", "?", "[a]", "{a,b}", "x\n", "\nx", "x\x00.yaml",
    "\x1b[2J", "x\u202eyp", "x\u200b", "x:y", "\uff0e\uff0e/x", "\u2025/x", "%2e%2e%2fx", "-",
    "--help", "x" * 256, "\udc80",
]  # fmt: skip


@pytest.mark.goal("X4")
@pytest.mark.parametrize("most", [2, pytest.param(99, marks=pytest.mark.nightly)])
def test_no_hostile_name_writes_anything_anywhere(most, tmp_path, monkeypatch, capsys, measured):
    """A run and a sweep leave everything above the current folder as it is."""
    here = tmp_path / "above" / "here"
    here.mkdir(parents=True)
    (tmp_path / "above" / "x").write_text("somebody's")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    before, tried = tree(tmp_path), HOSTILE_NAMES[:most]
    for name in tried:
        for more in [], ["-m", "seed=0,1"]:
            for spelled in f"study={name}", f"study='{name}'":
                assert cli.main([*more, spelled, "model=nano", "data=stories"]) == 2, name
                said = capsys.readouterr()
                assert said.out == ""
                assert said.err.count("\n") == 1
                assert said.err[:-1].isprintable()
    assert tree(tmp_path) == before
    assert most == 2 or len(set(tried)) >= 40
    measured(f"{len(tried)} names, {4 * len(tried)} commands, nothing written")


# Each command is refused; then this program prints whether torch was imported.
ASKED = """
import json, sys
from refusing import refused
from transformer_norms.config.compose import compose
for typed in json.loads(sys.argv[1]):
    refused(compose, typed)
print("torch" in sys.modules)
"""


@pytest.mark.goal("K1")
def test_unknown_keys_and_names_of_options_are_refused_before_torch_is_imported(measured):
    """The first of NAMES; a norm for the embedding is looked up among the classes, with torch."""
    wanted = [typed(overrides) for overrides, *_ in NAMES[:21]]
    assert run_python(ASKED, json.dumps(wanted)) == "False\n"
    measured(f"{len(wanted)} refused without torch")


COMMANDS = [
    ["norm=rmsnrom"],
    ["trainer.stesp=10"],
    ["study=../../x"],
    ["config=nowhere.yaml"],
    ["-m", "norm=rmsnorm,rmsnrom"],
    ["-m", "seed=0,1", "hydra/launcher=nowhere"],
    ["-m", "seed=0,1", "launcher=pool", "launcher.workers=0"],
    ["-m", "seed=0,1", "hydra/sweeper=nowhere"],
    ["-m", "seed=0,1", "hydra.sweep.dir=/tmp/elsewhere"],
    ["-m", "seed=0,1", "hydra/sweeper=basic", "+hydra.sweep.dir=/tmp/elsewhere"],
    ["-m", "seed=0,1", "hydra/job_logging=default"],
    ["sweep=quick", "--config-dir=here"],
]


def hydras_settings() -> list[str]:
    """Each key of Hydra's own config and each of its groups, as they are typed."""
    tree = OmegaConf.to_container(OmegaConf.structured(HydraConf))
    groups = [f"hydra/{next(iter(group))}=1" for group in tree.pop("defaults")]
    return [*groups, *(f"hydra.{key}=1" for key in flat(tree))]


@pytest.mark.goal("X4")
def test_hydras_settings_and_flags_are_refused_besides_those_of_a_launcher_and_a_sweeper():
    """All that Hydra has, so one that a later Hydra adds has to be decided upon."""
    taken = ["hydra/launcher=1", "hydra/sweeper=1"]
    check_hydra_settings([*taken, "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=9"])
    flags = [flag for action in get_args_parser()._actions for flag in action.option_strings]
    theirs = sorted(set(flags) - set(cli.make_parser().flags))
    typed = ["hydra={run:1}", "hydra.launcher._target_=abort", "hydra.launchers.n_jobs=2"]
    for text in [*hydras_settings(), *typed, *theirs]:
        if text not in taken:
            line = refused(check_hydra_settings, [text])
            assert line.startswith(f"{text}: Hydra's "), line
            assert "is not taken; " in line, line


def run_process(arguments, home: Path):
    keep = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    done = subprocess.run(
        [sys.executable, "-B", str(ROOT / "train.py"), *arguments],
        cwd=home / "here",
        env={**keep, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.goal("K1")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_malformed_command_exits_with_2_and_one_line_and_writes_nothing(
    arguments, tmp_path, monkeypatch, capsys
):
    """A run and a sweep in their own processes; others in this one, which has imported torch."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / "here").mkdir()
    before = tree(tmp_path)
    if arguments in (COMMANDS[0], COMMANDS[5]):
        code, out, err = run_process(arguments, tmp_path)
    else:
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it for a sweep
        monkeypatch.setattr(sys, "argv", ["train.py"])
        code = cli.main(arguments)
        out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert tree(tmp_path) == before
    assert arguments[-1].rpartition(",")[2].partition("=")[0] in err
